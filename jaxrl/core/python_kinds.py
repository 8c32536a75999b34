"""Kinds of environments written in Python, told by their methods; no library is imported.

Worker processes use this module, so it must not import JAX.
"""

from typing import Any

GYMNASIUM, VECTOR = "gymnasium.Env", "gymnasium.vector.VectorEnv"
PARALLEL, TURNS = "ParallelEnv", "AECEnv"  # PettingZoo's
OF_JAX = ("reset_env", "step_env", "step_batch", "step_stacked")


def kind_of(env: Any) -> str | None:
    """Which interface an environment, or a class of them, has; None: none of Python's."""
    if any(hasattr(env, name) for name in OF_JAX):
        return None
    if not (hasattr(env, "reset") and hasattr(env, "step")):
        return None
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        return TURNS
    if isinstance(env, type):  # whose spaces may be set by its constructor
        bases = {base.__name__: base for base in env.__mro__}
        for name, kind in (("ParallelEnv", PARALLEL), ("VectorEnv", VECTOR), ("Env", GYMNASIUM)):
            if name in bases:
                return kind
    if hasattr(env, "possible_agents"):
        return PARALLEL
    if hasattr(env, "single_observation_space"):
        return VECTOR
    return GYMNASIUM if hasattr(env, "observation_space") else None
