"""Vector environments of Stable-Baselines3 and SuperSuit, with Gymnasium's interface.

Their infos are a list, one for each copy. A copy whose episode ended begins the next one in the
same step, and its info holds the last observation as "terminal_observation". This module must not
import JAX.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl.core.errors import brief
from jaxrl.core.mask_parts import MASK
from jaxrl.outside.workers.masks import METHOD

REACHED, CUT = "terminal_observation", "TimeLimit.truncated"


def with_gymnasiums_interface(env: Any) -> Any:
    """A vector environment as Gymnasium's; one that is so already stays as it is."""
    return env if hasattr(env, "single_observation_space") else ListedInfos(env)


class ListedInfos:
    """A vector environment whose infos are a list, as a `gymnasium.vector.VectorEnv`."""

    def __init__(self, env: Any):
        self._env, self.num_envs = env, int(env.num_envs)
        self.metadata = {"autoreset_mode": "SameStep"}
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        if _says(env, METHOD):
            self.action_masks = lambda: np.stack(env.env_method(METHOD))

    @property
    def unwrapped(self) -> Any:
        return self

    def reset(self, seed: int | list[int]) -> tuple[Any, dict[str, Any]]:
        """Begins episodes of all copies; of several seeds the first counts."""
        if isinstance(seed, list):
            seed = seed[0]
        if not hasattr(self._env, "reset_infos"):
            obs, infos = self._env.reset(seed=seed)
            # Those of SuperSuit's processes are packed in a way of their own.
            return obs, self._by_name(infos if self._are_infos(infos) else [])
        with contextlib.suppress(AttributeError):  # SuperSuit's, with the other base, has no seeds
            self._env.seed(seed)
        return self._env.reset(), self._by_name(self._first_infos())

    def step(self, actions: Any) -> tuple[Any, ...]:
        """A step as Gymnasium gives it, with "final_obs" for copies whose episodes ended."""
        obs, rewards, *ends, infos = self._env.step(actions)
        if not self._are_infos(infos):
            raise ValueError(f"infos are {brief(infos)}, not a list of a dict for each copy")
        if len(ends) == 1:  # Stable-Baselines3's `done`
            is_cut = np.array([bool(info.get(CUT)) for info in infos])
            ends = ends[0] & ~is_cut, ends[0] & is_cut
        terminated, truncated = (np.asarray(flags) != 0 for flags in ends)
        ended = terminated | truncated
        info = self._by_name(infos, ended)
        info["final_obs"] = [None] * self.num_envs
        for row in np.flatnonzero(ended):
            info["final_obs"][row] = _reached(row, infos[row])
        return obs, rewards, terminated, truncated, info

    def close(self) -> None:
        self._env.close()

    def _first_infos(self) -> list[Mapping]:
        """The infos of the last reset of each copy, where they are kept."""
        return getattr(self._env, "reset_infos", None) or [{}] * self.num_envs

    def _are_infos(self, infos: Any) -> bool:
        is_list = isinstance(infos, list | tuple) and len(infos) == self.num_envs
        return is_list and all(isinstance(info, Mapping) for info in infos)

    def _by_name(self, infos: list[Mapping], ended: Any = ()) -> dict[str, Any]:
        """Infos as one dict: masks of the next actions, and numbers in info["metrics"]."""
        found: dict[str, Any] = {}
        masked = list(infos)
        for row in np.flatnonzero(ended):
            masked[row] = {**infos[row], **self._first_infos()[row]}
        if any(MASK in info for info in masked):
            found[MASK] = [info.get(MASK) for info in masked]
            found[f"_{MASK}"] = [MASK in info for info in masked]
        metrics = [info.get("metrics") or {} for info in infos]
        if any(metrics):
            found["metrics"] = {}
        for name in sorted(set().union(*metrics)):
            found["metrics"][name] = np.array([float(row.get(name, 0)) for row in metrics])
        return found


def _reached(row: int, info: Mapping) -> Any:
    if REACHED not in info:
        raise ValueError(f"copy {row} has ended, and its info has no {REACHED!r}")
    return info[REACHED]


def _says(env: Any, method: str) -> bool:
    """Returns whether all copies of Stable-Baselines3's environment have a method."""
    try:
        return bool(env.has_attr(method))
    except (AttributeError, NotImplementedError):
        return False
