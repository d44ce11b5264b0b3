"""The two demonstrations, written with the public API only."""
