"""What a page says of each family: `heading(subject)` and `sections(subject, command)` a module."""
