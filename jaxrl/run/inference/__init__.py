"""Trained policies: loading, acting, evaluating, recording."""
