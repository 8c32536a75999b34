"""Environments outside JAX: Python objects, stepped in this process or by worker processes.

Worker processes import only what steps environments; `vector` and `pool` are the side that learns.
"""
