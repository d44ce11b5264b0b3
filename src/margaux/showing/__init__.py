"""What figures, pages, notebooks and commands share."""
