"""Behaviour cloning and MARWIL."""
