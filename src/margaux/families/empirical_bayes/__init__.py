"""Empirical-Bayes logistic regression."""
