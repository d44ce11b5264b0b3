"""Small mathematics that every floor shares."""
