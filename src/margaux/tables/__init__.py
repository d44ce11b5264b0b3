"""Reading a user's table."""
