"""Logs, console and plots of a run."""
