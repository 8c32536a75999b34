"""Models: their protocol, and the built-in networks."""
