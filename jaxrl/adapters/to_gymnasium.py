"""Environments of jaxrl for programs that use Gymnasium (https://gymnasium.farama.org, 1.2.2).

    env = jaxrl.to_gymnasium("cartpole")               a gymnasium.Env
    envs = jaxrl.to_gymnasium_vector("cartpole", 256)  a gymnasium.vector.VectorEnv

A step of all environments is one compiled program. Gymnasium is imported when an environment is
made.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.adapters import to_numpy
from jaxrl.adapters.to_numpy import (
    DISABLED,
    NEXT_STEP,
    SAME_STEP,
    ManySteps,
    as_actions,
    check_seed,
    require_started,
)
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import count, flag, one_of, takes, without
from jaxrl.core.outside_env import is_outside
from jaxrl.core.registry import make_with
from jaxrl.core.types import PyTree
from jaxrl.episodes.minari_datasets import gymnasium_space
from jaxrl.ops.distributions import num_logits
from jaxrl.outside.workers.sources import make_copy, source_of

if TYPE_CHECKING:
    import gymnasium


@takes()
def to_gymnasium(
    env: Any, params: PyTree = None, *, render_mode: str | None = None
) -> "gymnasium.Env":
    """A `gymnasium.Env` of an environment with one agent.

    `reset(seed=s)` begins with the key `jax.random.key(s)`; a reset without a seed continues from
    it. `info` has what the environment's step says of itself, and "action_mask", int8, where some
    actions are impossible.

    Args:
        env: an environment or its name; `to_gymnasium(*jaxrl.make("cartpole", gravity=5.0))`.
        params: its parameters; None: the default ones.
        render_mode: "rgb_array", or None.

    Raises:
        UsageError: Gymnasium is not installed, several agents, an unknown `render_mode`.
    """
    to_numpy.require_library("gymnasium", "to_gymnasium", "gymnasium")
    import gymnasium

    env, params = to_numpy.resolve_single(env, params, "to_gymnasium")
    made = to_numpy.derived(GymnasiumEnv, gymnasium.Env)(env, params, render_mode)
    # With a specification `made.spec.make()` makes it again, as Gymnasium's check_env does.
    made.spec = gymnasium.envs.registration.EnvSpec(
        id=f"jaxrl/{re.sub('[^a-zA-Z0-9_:.-]', '_', env.name)}",
        entry_point=to_gymnasium,
        kwargs={"env": env, "params": params},
    )
    return made


def gymnasium_by_name(
    env: str, env_args: Mapping[str, Any] | None = None, render_mode: str | None = None
) -> "gymnasium.Env":
    """The `gymnasium.Env` of an environment by jaxrl's name for it, as specifications name it.

    Args:
        env: such as "cartpole", "gymnax:Breakout-MinAtar" or "module:Class".
        env_args: its arguments.
        render_mode: as of `to_gymnasium`; Python environments get it where it is given.

    Raises:
        UsageError: as for `to_gymnasium`, and an environment of several agents.
    """
    made, params = make_with(env, dict(env_args or {}))
    if not is_outside(made):
        return to_gymnasium(made, params, render_mode=render_mode)
    args = dict(env_args or {})
    if render_mode is not None:
        args["render_mode"] = render_mode
    return make_copy(source_of(env, args))


@takes(num_envs=count(), copy=flag)
def to_gymnasium_vector(
    env: Any,
    num_envs: int,
    params: PyTree = None,
    *,
    autoreset_mode: Any = NEXT_STEP,
    render_mode: str | None = None,
    copy: bool = True,
) -> "gymnasium.vector.VectorEnv":
    """A `gymnasium.vector.VectorEnv` of many copies of an environment with one agent.

    Environment i of `reset(seed=s)` plays the episodes of `to_gymnasium` with seed s + i; a list
    gives each its seed.

    Args:
        env, params, render_mode: as for `to_gymnasium`.
        num_envs: how many.
        autoreset_mode: when an episode that ended is reset; a member of
            `gymnasium.vector.AutoresetMode` or its value. "NextStep": the next step resets it,
            without its action, with reward 0. "SameStep": at once, and `info["final_obs"]` and
            `info["final_info"]` have what the step itself reached. "Disabled": by
            `reset(options={"reset_mask": ...})`.
        copy: whether results are NumPy's own arrays; otherwise they are views of JAX's memory,
            which cannot be written.

    Raises:
        UsageError: as for `to_gymnasium`, and no whole `num_envs`, an unknown `autoreset_mode`.
    """
    to_numpy.require_library("gymnasium", "to_gymnasium_vector", "gymnasium")
    import gymnasium

    env, params = to_numpy.resolve_single(env, params, "to_gymnasium_vector")
    modes = {mode.value: mode for mode in gymnasium.vector.AutoresetMode}
    mode = getattr(autoreset_mode, "value", autoreset_mode)
    one_of(*modes)("autoreset_mode", mode)
    kind = to_numpy.derived(GymnasiumVectorEnv, gymnasium.vector.VectorEnv)
    return kind(env, params, num_envs, modes[mode], render_mode, copy)


# ---- one environment


class GymnasiumEnv:
    """A `gymnasium.Env`; see `to_gymnasium`."""

    def __init__(self, env: Any, params: PyTree, render_mode: str | None):
        self.metadata = to_numpy.render_metadata(env, render_mode)
        self.render_mode = render_mode
        self.action_space = gymnasium_space(env.action_space(params))
        self.observation_space = gymnasium_space(env.observation_space(params))
        self._actions = env.action_space(params)
        self._episodes = to_numpy.Episodes(env, params)
        self._has_ended = True
        if hasattr(env, "action_mask"):  # MaskablePPO asks for a method of this name
            self._mask = np.ones(num_logits(self._actions), bool)
            self.action_masks = self._possible

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[PyTree, dict]:
        """Returns (obs, info) of a new episode."""
        if seed is not None:
            seed = check_seed(seed)
        super().reset(seed=seed)
        if seed is None and self._episodes.current is None:
            seed = int(self.np_random.integers(to_numpy.MAX_SEED, endpoint=True))
        obs, masks = self._episodes.reset(seed)
        self._has_ended = False
        return _observation(obs), self._with_mask({}, masks)

    def step(self, action: PyTree) -> tuple[PyTree, float, bool, bool, dict]:
        """Returns (obs, reward, terminated, truncated, info)."""
        require_started(self._episodes.current, "step")
        if self._has_ended:
            raise UsageError("the episode has ended: call reset() before step()")
        action = jax.tree.map(lambda leaf: leaf[None], as_actions(self._actions, action))
        raw, masks = self._episodes.step(action)
        self._has_ended = bool(raw.episode_done)
        flags = bool(raw.terminated[0]), bool(raw.truncated[0])
        info = self._with_mask(to_numpy.plain_info(raw.info), masks)
        return _observation(raw.obs), float(raw.reward[0]), *flags, info

    def render(self) -> np.ndarray | None:
        """u8[H, W, 3] with render_mode "rgb_array"."""
        return None if self.render_mode is None else self._episodes.render()

    def _with_mask(self, info: dict[str, Any], masks: PyTree) -> dict[str, Any]:
        if masks is None:
            return info
        self._mask = masks[0].astype(bool)
        return {**info, "action_mask": masks[0].copy()}

    def _possible(self) -> np.ndarray:
        """bool[A], which actions are possible; all of them before the first reset."""
        return self._mask.copy()


def _observation(obs: PyTree) -> PyTree:
    """The only agent's of [1, ...]."""
    return to_numpy.plain(jax.tree.map(lambda leaf: leaf[0], obs))


# ---- many environments


class GymnasiumVectorEnv:
    """A `gymnasium.vector.VectorEnv`; see `to_gymnasium_vector`."""

    def __init__(
        self,
        env: Any,
        params: PyTree,
        num_envs: int,
        autoreset_mode: Any,
        render_mode: str | None,
        copy: bool,
    ):
        from gymnasium.vector.utils import batch_space

        metadata = to_numpy.render_metadata(env, render_mode)
        self.metadata = {**metadata, "autoreset_mode": autoreset_mode}
        self.num_envs, self.render_mode, self.copy = num_envs, render_mode, copy
        self.single_action_space = gymnasium_space(env.action_space(params))
        self.single_observation_space = gymnasium_space(env.observation_space(params))
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._mode = autoreset_mode.value
        self._episodes = to_numpy.ManyEpisodes(env, params, num_envs, self._mode)
        self._actions = env.action_space(params)
        self._ended = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict | None = None
    ) -> tuple[PyTree, dict]:
        """Returns (obs, info); with options={"reset_mask": bool[num_envs]} resets only these."""
        is_list = isinstance(seed, list | tuple)
        super().reset(seed=None if seed is None or is_list else check_seed(seed))
        mask = self._reset_mask(options or {})
        obs, masks = self._episodes.reset(seed, mask, self.np_random)
        self._ended = self._ended & ~mask
        return self._copied(_agent_of(obs)), self._with_masks({}, masks, mask)

    def step(self, actions: PyTree) -> tuple[PyTree, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Returns (obs, rewards, terminations, truncations, info)."""
        require_started(self._episodes.current, "step")
        if self._mode == DISABLED and self._ended.any():
            raise UsageError(
                f"the episodes of environments {np.flatnonzero(self._ended)[:8].tolist()} have "
                'ended: call reset(options={"reset_mask": ...}) before step()'
            )
        actions = as_actions(self._actions, actions, (self.num_envs,))
        results = self._episodes.step(jax.tree.map(lambda leaf: leaf[:, None], actions))
        raw = results.raw
        values = _agent_of((results.obs, raw.reward, raw.terminated, raw.truncated))
        info = self._info(results, raw.episode_done)
        self._ended = raw.episode_done
        return *self._copied(values), info

    def render(self) -> tuple[np.ndarray, ...] | None:
        """A picture u8[H, W, 3] of each environment, with render_mode "rgb_array"."""
        return None if self.render_mode is None else tuple(self._episodes.render())

    def _reset_mask(self, options: dict[str, Any]) -> np.ndarray:
        if "reset_mask" not in options:
            return np.ones(self.num_envs, bool)
        mask = np.asarray(options["reset_mask"])
        if mask.shape != (self.num_envs,) or mask.dtype != bool:
            raise UsageError(
                f"reset_mask must be bool[{self.num_envs}], not {mask.dtype}{list(mask.shape)}"
            )
        if self._episodes.current is None and not mask.all():
            raise UsageError("the first reset() resets every environment: leave reset_mask out")
        return mask

    def _copied(self, results: PyTree) -> PyTree:
        return jax.tree.map(np.array, results) if self.copy else results

    def _info(self, results: ManySteps, ended: np.ndarray) -> dict[str, Any]:
        """Gymnasium's: a value "name" for each environment, and "_name", whether it has one."""
        everywhere = np.ones(self.num_envs, bool)
        env_info = without(results.raw.info, {"active"})
        if self._mode == NEXT_STEP:
            info = _vector_info(env_info, ~self._ended)
        elif self._mode == SAME_STEP and ended.any():
            info = _vector_info(env_info, ~ended)
            final_obs = _final_obs(_agent_of(results.raw.obs), ended)
            info |= {"final_obs": final_obs, "_final_obs": ended.copy()}
            info |= {"final_info": _vector_info(env_info, ended), "_final_info": ended.copy()}
        else:
            info = _vector_info(env_info, everywhere)
        return self._with_masks(info, results.masks, everywhere)

    def _with_masks(self, info: dict[str, Any], masks: PyTree, where: np.ndarray) -> dict[str, Any]:
        if masks is None:
            return info
        masks = self._copied(_agent_of(masks))
        return info | {"action_mask": masks, "_action_mask": where.copy()}


def _agent_of(values: PyTree) -> PyTree:
    """[E, ...] of [E, 1, ...]."""
    return jax.tree.map(lambda leaf: leaf[:, 0], values)


def _vector_info(info: dict[str, Any], where: np.ndarray) -> dict[str, Any]:
    """Values [E] of a step's info, zero where an environment has none."""
    found = {}
    for name, value in info.items() if where.any() else ():
        if isinstance(value, dict):
            found[name] = _vector_info(value, where)
        else:
            found[name] = jax.tree.map(lambda leaf: _only(leaf, where), value)
        found[f"_{name}"] = where.copy()
    return found


def _only(leaf: np.ndarray, where: np.ndarray) -> np.ndarray:
    return np.where(where.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, np.zeros((), leaf.dtype))


def _final_obs(obs: PyTree, ended: np.ndarray) -> np.ndarray:
    """Observations of the environments that ended, None for the others, as wrappers expect."""
    found = np.full(len(ended), None, dtype=object)
    for i in np.flatnonzero(ended):
        found[i] = jax.tree.map(lambda leaf, i=i: np.array(leaf[i]), obs)
    return found
