"""Environments of jaxrl for Stable-Baselines3 (https://stable-baselines3.readthedocs.io).

    envs = VecMonitor(jaxrl.to_sb3_vec("cartpole", 16))    its own VecEnv, which it trains on
    PPO("MlpPolicy", envs).learn(100_000)

A step of all environments is one compiled program. Stable-Baselines3 is imported when environments
are made.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl.adapters.to_gymnasium import to_gymnasium_vector
from jaxrl.adapters.to_numpy import MAX_SEED, SAME_STEP, derived, require_library, resolve_single
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import takes
from jaxrl.core.program_spaces import from_program, program_space, to_program
from jaxrl.core.spaces import Space, is_tree
from jaxrl.core.types import PyTree
from jaxrl.episodes.minari_datasets import gymnasium_space
from jaxrl.ops.distributions import num_logits

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv


@takes()
def to_sb3_vec(
    env: Any, num_envs: int, params: PyTree = None, *, render_mode: str | None = None
) -> "VecEnv":
    """A `VecEnv` of Stable-Baselines3: many copies of an environment with one agent.

    Episodes are those of `to_gymnasium_vector` with the same seed. The info of an environment whose
    episode ended has "terminal_observation" and "TimeLimit.truncated", so that time limits
    bootstrap. `VecMonitor` on top counts returns. `env_method("action_masks")` has the masks that
    MaskablePPO asks for; before the first reset every action is possible.

    Stable-Baselines3 knows no integers that do not count from 0, or that do not lie in a row: its
    spaces and its numbers are those here, and the environment gets and gives its own.

    Args:
        env, params, num_envs, render_mode: as for `to_gymnasium_vector`.

    Raises:
        UsageError: Stable-Baselines3 is not installed, and as for `to_gymnasium_vector`.
    """
    require_library("stable_baselines3", "to_sb3_vec", "sb3")
    from stable_baselines3.common.vec_env import VecEnv

    env, params = resolve_single(env, params, "to_sb3_vec")
    if is_tree(env.action_space(params)):
        raise UsageError(
            f"to_sb3_vec: Stable-Baselines3 has no actions of several parts, and {env.name} has "
            f"{env.action_space(params)}; allowed: Discrete, MultiDiscrete, Box"
        )
    settings = {"autoreset_mode": SAME_STEP, "render_mode": render_mode}
    spaces = env.observation_space(params), env.action_space(params)
    envs = to_gymnasium_vector(env, num_envs, params, **settings)
    is_masked = hasattr(env, "action_mask")
    masks = np.ones((num_envs, num_logits(spaces[1])), np.int8) if is_masked else None
    return derived(Sb3VecEnv, VecEnv)(envs, spaces, masks)


class Sb3VecEnv:
    """A `VecEnv` of Stable-Baselines3; see `to_sb3_vec`."""

    def __init__(self, envs: Any, spaces: tuple[Space, Space], masks: np.ndarray | None):
        """The copies of an environment.

        Args:
            envs: Gymnasium's, which reset in the step of an end.
            spaces: of one's observations and actions, of jaxrl.
            masks: bool[num_envs, A], before the first reset; None without masks.
        """
        self._envs, self._actions, self._masks = envs, None, masks
        self._spaces = spaces
        observed, acted = map(program_space, spaces)
        super().__init__(envs.num_envs, gymnasium_space(observed), gymnasium_space(acted))

    def reset(self) -> PyTree:
        """Observations [num_envs, ...] of new episodes."""
        seeds = [None if seed is None else seed % (MAX_SEED + 1) for seed in self._seeds]
        obs, info = self._envs.reset(seed=seeds)
        self.reset_infos = self._listed(info)
        self._reset_seeds()
        self._reset_options()
        return to_program(self._spaces[0], obs)

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = from_program(self._spaces[1], actions)

    def step_wait(self) -> tuple[PyTree, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Returns (obs, rewards, dones, infos)."""
        obs, rewards, terminated, truncated, info = self._envs.step(self._actions)
        dones, infos = terminated | truncated, self._listed(info)
        for i in np.flatnonzero(dones):
            infos[i] |= infos[i].pop("final_info", {})
            last = to_program(self._spaces[0], infos[i].pop("final_obs"))
            infos[i]["terminal_observation"] = last
            infos[i]["TimeLimit.truncated"] = bool(truncated[i])
        return to_program(self._spaces[0], obs), rewards, dones, infos

    def close(self) -> None:
        self._envs.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self._envs.render() or [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the environments, which all have the same one."""
        indices = self._get_indices(indices)
        if attr_name == "action_masks" and self._masks is not None:
            return [functools.partial(self._action_mask, i) for i in indices]
        return [getattr(self._envs, attr_name) for _ in indices]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise UsageError(f"environments of jaxrl do not change: {attr_name} cannot be set")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """The result of `action_masks()` of each environment; they have no other method."""
        if method_name != "action_masks":
            raise AttributeError(f"environments that step together have no method {method_name!r}")
        return [method() for method in self.get_attr(method_name, indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False] * len(self._get_indices(indices))

    def _action_mask(self, index: int) -> np.ndarray:
        return self._masks[index].astype(bool)

    def _listed(self, info: dict[str, Any]) -> list[dict[str, Any]]:
        self._masks = info.pop("action_mask", None)
        info.pop("_action_mask", None)
        return infos_of(info, self.num_envs)


def infos_of(info: dict[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """Gymnasium's info of many environments as a dict for each of them."""
    infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for flag, where in info.items():
        name = flag[1:]
        if not flag.startswith("_"):
            continue
        values = info[name]
        if isinstance(values, dict):
            values = infos_of(values, num_envs)
        for i in np.flatnonzero(where):
            infos[i][name] = values[i]
    return infos
