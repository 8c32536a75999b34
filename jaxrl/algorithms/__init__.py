"""Algorithms, and the parts that they share."""
