"""Bridges to other libraries; each imports its library itself, and only when it is asked for."""
