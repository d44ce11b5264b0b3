"""How a fit runs."""
