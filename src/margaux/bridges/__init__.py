"""Bridges to other libraries: each module imports its library when it is first used."""
