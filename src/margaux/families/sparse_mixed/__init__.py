"""Sparse mixed-effects logistic regression."""
