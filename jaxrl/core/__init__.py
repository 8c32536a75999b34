"""Environments: base classes, spaces, the registry and the checker; settings and errors."""
