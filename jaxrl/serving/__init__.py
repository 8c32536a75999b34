"""Policies and experience over a socket; it needs the extra `serving`."""
