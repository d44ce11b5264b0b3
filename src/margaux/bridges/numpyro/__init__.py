"""Models written in NumPyro."""
