"""Poisson regression with a random intercept."""
