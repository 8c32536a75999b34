"""The model contract and the built-in models."""
