"""The families, a folder each, and their registry."""
