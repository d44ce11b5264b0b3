"""Generalised linear mixed models: formulas, responses, links."""
