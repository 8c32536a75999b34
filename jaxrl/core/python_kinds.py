"""Kinds of environments written in Python, told by their methods; no library is imported.

Worker processes use this module, so it must not import JAX.
"""

from typing import Any

GYMNASIUM, VECTOR = "gymnasium.Env", "gymnasium.vector.VectorEnv"
PARALLEL, TURNS = "ParallelEnv", "AECEnv"  # PettingZoo's
RLLIB = "MultiAgentEnv"
SIMULATOR = "simulator"  # steps many copies in one call, on tensors
BASES = {RLLIB: RLLIB, "ParallelEnv": PARALLEL, "VectorEnv": VECTOR, "Env": GYMNASIUM}
OF_AGENTS = ("possible_agents", "_agent_ids", "observation_spaces")
VECTOR_CLASSES = ("VectorEnv", "VecEnv")  # Gymnasium's, and that of Stable-Baselines3
OF_JAX = ("reset_env", "step_env", "step_batch", "step_stacked")


def kind_of(env: Any) -> str | None:
    """The Python interface of an environment or of a class of environments; None if it has none."""
    if any(hasattr(env, name) for name in OF_JAX):
        return None
    begins = hasattr(env, "reset") or hasattr(env, "get_observations")  # of rsl_rl
    if not (begins and hasattr(env, "step")):
        return None
    if not isinstance(env, type) and _is_simulator(env):
        return SIMULATOR
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        return TURNS
    bases = {base.__name__ for base in (env if isinstance(env, type) else type(env)).__mro__}
    if RLLIB in bases:
        return RLLIB
    if isinstance(env, type):  # whose spaces may be set by its constructor
        return next((kind for name, kind in BASES.items() if name in bases), GYMNASIUM)
    if hasattr(env, "possible_agents") and callable(getattr(env, "observation_space", None)):
        return PARALLEL
    if hasattr(env, "single_observation_space") or not bases.isdisjoint(VECTOR_CLASSES):
        return VECTOR
    if any(hasattr(env, name) for name in OF_AGENTS):
        return RLLIB
    return GYMNASIUM if hasattr(env, "observation_space") else None


def _is_simulator(env: Any) -> bool:
    """Returns whether an object steps copies on a device, by what it or its core has."""
    has = lambda name: hasattr(env, name) or hasattr(getattr(env, "unwrapped", None), name)
    if has("num_envs"):
        return has("device") or has("num_actions")
    return hasattr(env, "num_actions") and not hasattr(env, "observation_space")
