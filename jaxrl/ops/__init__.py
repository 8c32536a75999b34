"""Arithmetic that knows arrays and never an environment."""
