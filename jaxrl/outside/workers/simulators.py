"""Simulators that step many copies in one call, on tensors: Isaac Lab, mjlab, ManiSkill, Genesis.

They have `num_envs`, take the actions of all copies as one tensor, and begin new episodes within
the step that ended one. A step gives its results in one of three dialects:

    obs, reward, terminated, truncated, info      Gymnasium's: mjlab, Isaac Lab, ManiSkill
    obs, reward, dones, info                      rsl_rl, rl_games; time limits in info["time_outs"]
    obs, critic's obs, reward, dones, info        legged_gym; time limits as in rsl_rl

Observations may be in groups, of which the policy sees one and a centralised critic another.
"""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.types import PyTree
from jaxrl.outside.workers.tensors import tree_of_tensors

OF_POLICY, OF_CRITIC = ("policy", "actor", "obs"), ("critic", "states")  # names of groups
FINAL = ("final_obs", "final_observation")  # in info: what a step reached, before any reset
TIME_OUTS, OBSERVATIONS = "time_outs", "observations"  # in info, as rsl_rl has them
SAME_STEP = "SameStep"  # Gymnasium's word


class SimulatorResults(NamedTuple):
    """The results of a step or a reset, as the simulator's own tensors."""

    obs: PyTree
    critic: PyTree | None  # what only a centralised critic sees
    info: Mapping
    reward: Any = None  # None of a reset
    ends: tuple = ()  # (terminated, truncated), or (dones, time-outs or None)
    has_dones: bool = False  # whether `ends` are dones


class Simulator:
    """An object that steps all its copies, whatever its dialect.

    Raises:
        UsageError: it has no `num_envs`, or does not begin new episodes within its step.
    """

    def __init__(self, env: Any, name: str):
        self.env, self.name, self.num_envs = env, name, said(env, "num_envs")
        is_number = isinstance(self.num_envs, int) and not isinstance(self.num_envs, bool)
        if not is_number or self.num_envs < 1:
            raise UsageError(
                f"environment {name!r} steps many copies in one call, as its num_actions or its "
                f"device say, so it needs num_envs, their number, not {brief(self.num_envs)}"
            )
        self._is_legged = hasattr(env, "get_privileged_observations")
        takes = inspect.signature(env.reset).parameters if hasattr(env, "reset") else ()
        self._takes_seed = "seed" in takes
        self._refuse_other_resets()

    def reset(self, seed: int) -> SimulatorResults:
        """Begins new episodes of all copies; one without a `reset` goes on in those it has."""
        found, seed_env = None, said(self.env, "seed")
        if hasattr(self.env, "reset"):
            if not self._takes_seed and callable(seed_env):
                seed_env(seed)
            found = self.env.reset(**({"seed": seed} if self._takes_seed else {}))
        obs, rest = _in_two(found)
        if rest is None and hasattr(self.env, "get_observations"):
            obs, rest = _in_two(self.env.get_observations())
        info, critic = (rest, None) if isinstance(rest, Mapping) else ({}, rest)
        if critic is None and self._is_legged:
            critic = self.env.get_privileged_observations()
        return SimulatorResults(*_by_role(obs, info, critic), info)

    def step(self, actions: Any) -> SimulatorResults:
        """Steps all copies.

        Raises:
            UsageError: it gives something else than one of the dialects.
        """
        found, critic, ends = self.env.step(actions), None, []
        if not isinstance(found, tuple | list) or len(found) not in (4, 5):
            raise UsageError(
                "step must give (obs, reward, terminated, truncated, info) or (obs, reward, dones, "
                f"info), not {brief(found)}"
            )
        has_dones = len(found) == 4 or self._is_legged
        if not has_dones:
            obs, reward, *ends, info = found
        elif len(found) == 4:
            obs, reward, dones, info = found
        else:
            obs, critic, reward, dones, info = found
        if not isinstance(info, Mapping):
            raise UsageError(f"info must be a dict, not {brief(info)}")
        if has_dones:
            ends = dones, info.get(TIME_OUTS)
        return SimulatorResults(*_by_role(obs, info, critic), info, reward, tuple(ends), has_dones)

    def final(self, results: SimulatorResults) -> tuple[PyTree, PyTree | None] | None:
        """(obs, critic's) that a step reached before any reset; None: it is not said."""
        for name in FINAL:
            if results.info.get(name) is not None:
                reached = _by_role(results.info[name], {}, None)
                same = _shapes(reached) == _shapes((results.obs, results.critic))
                return reached if same else None
        return None

    def _refuse_other_resets(self) -> None:
        metadata = said(self.env, "metadata")
        mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
        mode = getattr(mode, "value", mode)
        is_bare = _is_of_maniskill(self.env) and not hasattr(self.env, "auto_reset")
        if mode not in (None, SAME_STEP) or said(self.env, "auto_reset") is False or is_bare:
            instead = ": wrap it in ManiSkillVectorEnv" if is_bare else ""
            raise UsageError(
                f"environment {self.name!r} does not begin new episodes within the step that ended "
                f"one{instead}"
            )


def said(env: Any, name: str) -> Any:
    """An attribute of a simulator, or of the one within its wrappers; None: there is none."""
    found = getattr(env, name, None)
    return getattr(getattr(env, "unwrapped", None), name, None) if found is None else found


def group_of_policy(names: Mapping) -> str | None:
    """The name of the policy's group; None: the names are those of parts of an observation."""
    if "obs" in names and not names.keys() <= {"obs", *OF_CRITIC}:
        return None
    return next((name for name in OF_POLICY if name in names), None)


def _by_role(obs: Any, info: Mapping, critic: Any) -> tuple[PyTree, PyTree | None]:
    """(what the policy sees, what only a centralised critic sees).

    Args:
        critic: what the dialect has for the critic; None: it may be in a group.
    """
    obs, groups = tree_of_tensors(obs), tree_of_tensors(info.get(OBSERVATIONS) or {})
    name = group_of_policy(obs) if isinstance(obs, dict) else None
    if name is not None:
        groups = {**groups, **obs}
        obs = obs[name]
    if critic is None:
        critic = next((groups[name] for name in OF_CRITIC if name in groups), None)
    return obs, critic if critic is None else tree_of_tensors(critic)


def _in_two(found: Any) -> tuple[Any, Any]:
    """(observations, the rest or None) of a reset."""
    return tuple(found) if isinstance(found, tuple) and len(found) == 2 else (found, None)


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: tuple(getattr(leaf, "shape", ("none",))), tree)


def _is_of_maniskill(env: Any) -> bool:
    bases = type(getattr(env, "unwrapped", env)).__mro__
    return any(base.__module__.startswith("mani_skill.") for base in bases)
