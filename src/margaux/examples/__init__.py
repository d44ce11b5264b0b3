"""The demonstrations, written with the public API only."""
