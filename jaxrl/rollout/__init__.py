"""Acting in vectorised environments."""
