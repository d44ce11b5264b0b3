"""Models of one unit, one family a file."""
