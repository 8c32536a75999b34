"""Environments of jaxrl for programs that use Gymnasium (https://gymnasium.farama.org, 1.2.2).

    env = jaxrl.to_gymnasium("cartpole")               a gymnasium.Env
    envs = jaxrl.to_gymnasium_vector("cartpole", 256)  a gymnasium.vector.VectorEnv

A step of all environments is one compiled program. Gymnasium is imported when an environment is
made.
"""

import functools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.adapters import to_numpy
from jaxrl.adapters.to_numpy import KeyedState, as_actions, check_seed, masks_of, require_started
from jaxrl.core.env import MultiAgentEnvironment, lift, raw_reset, raw_step, restart, strongly_typed
from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.core.fields import count
from jaxrl.core.types import Key, PyTree
from jaxrl.episodes.minari_datasets import gymnasium_space
from jaxrl.rollout.env_step import auto_reset

if TYPE_CHECKING:
    import gymnasium

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"  # Gymnasium's own words


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
    count()("num_envs", num_envs)
    modes = {mode.value: mode for mode in gymnasium.vector.AutoresetMode}
    mode = getattr(autoreset_mode, "value", autoreset_mode)
    if mode not in modes:
        raise unknown_name("autoreset_mode", mode, modes)
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

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[PyTree, dict]:
        """Returns (obs, info) of a new episode."""
        seed = None if seed is None else check_seed(seed)
        super().reset(seed=seed)
        if seed is None and self._episodes.current is None:
            seed = int(self.np_random.integers(to_numpy.MAX_SEED, endpoint=True))
        obs, masks = self._episodes.reset(seed)
        self._has_ended = False
        return _observation(obs), _single_info({}, masks)

    def step(self, action: PyTree) -> tuple[PyTree, float, bool, bool, dict]:
        """Returns (obs, reward, terminated, truncated, info)."""
        require_started(self._episodes.current, "step")
        if self._has_ended:
            raise UsageError("the episode has ended: call reset() before step()")
        action = jax.tree.map(lambda leaf: leaf[None], as_actions(self._actions, action))
        raw, masks = self._episodes.step(action)
        self._has_ended = bool(raw.episode_done)
        flags = bool(raw.terminated[0]), bool(raw.truncated[0])
        info = _single_info(raw.info, masks)
        return _observation(raw.obs), float(raw.reward[0]), *flags, info

    def render(self) -> np.ndarray | None:
        """u8[H, W, 3] with render_mode "rgb_array"."""
        return None if self.render_mode is None else self._episodes.render()


def _observation(obs: PyTree) -> PyTree:
    """The only agent's of [1, ...]."""
    return to_numpy.plain(jax.tree.map(lambda leaf: leaf[0], obs))


def _single_info(info: dict[str, Any], masks: PyTree) -> dict[str, Any]:
    info = to_numpy.plain_info(info)
    return info if isinstance(masks, tuple) else {**info, "action_mask": masks[0].copy()}


# ---- many environments


class ManyStates(NamedTuple):
    """Environments between two calls."""

    keyed: KeyedState  # [E]
    obs: PyTree  # [E, 1, ...]  the last ones, which a reset of a part of them returns again
    ended: jax.Array  # bool[E]  their episodes have ended and they were not reset


class ManySteps(NamedTuple):
    """Results of a step of E environments."""

    obs: PyTree  # [E, ...]  to act by
    reward: jax.Array  # f32[E]
    terminated: jax.Array  # bool[E]
    truncated: jax.Array  # bool[E]
    info: dict[str, Any]  # [E]  of the step, before any reset
    masks: PyTree  # i8[E, A] of the states to act in, or ()
    final_obs: PyTree  # [E, ...]  what the step itself reached; () unless SAME_STEP


@functools.partial(jax.jit, static_argnums=0)
def reset_many(
    env: MultiAgentEnvironment,
    key: Key,
    number: jax.Array,
    mask: jax.Array,
    before: ManyStates | None,
    params: PyTree,
) -> tuple[ManyStates, PyTree, PyTree]:
    """(states, obs, masks): new episodes where `mask`, bool[E]; `before` elsewhere.

    Args:
        key, number: [E]; the seeds' keys, and the number of operations since.
    """
    keys = jax.vmap(to_numpy.reset_key)(key, number)
    fresh = jax.vmap(lambda key: raw_reset(env, key, params))(keys)
    ended = jnp.zeros_like(mask)
    if before is not None:
        fresh = jax.vmap(restart)(mask, fresh, (before.obs, before.keyed.state))
        ended = before.ended & ~mask
    obs, state = fresh
    states = ManyStates(KeyedState(key, number + mask, state), obs, ended)
    return states, _agent_of(obs), _masks_of_many(env, state, params)


@functools.partial(jax.jit, static_argnums=(0, 1))
def step_many(
    env: MultiAgentEnvironment, mode: str, before: ManyStates, action: PyTree, params: PyTree
) -> tuple[ManyStates, ManySteps]:
    """A step of E environments, with the resets of an autoreset mode."""
    key, number, state = before.keyed
    action = jax.tree.map(lambda leaf: leaf[:, None], action)
    keys = jax.vmap(to_numpy.operation_key)(key, number)
    raw = jax.vmap(lambda key, state, action: raw_step(env, key, state, action, params))(
        keys, state, action
    )
    if mode == NEXT_STEP:  # those that had ended are reset, and their steps count for nothing
        started = ~before.ended
        raw = raw._replace(
            reward=jnp.where(started[:, None], raw.reward, 0),
            terminated=raw.terminated & started[:, None],
            truncated=raw.truncated & started[:, None],
            episode_done=raw.episode_done & started,
        )
        reset_now, number = before.ended, number + 1
    elif mode == SAME_STEP:
        reset_now, number = raw.episode_done, number + 1 + raw.episode_done
        keys = jax.vmap(to_numpy.operation_key)(key, number - 1)
    else:
        reset_now, number = jnp.zeros_like(raw.episode_done), number + 1
    obs, state = raw.obs, raw.state
    if mode != DISABLED:
        reaching = raw._replace(episode_done=reset_now)
        obs, state = auto_reset(env, keys, jnp.int32(0), reaching, params)
    ended = jnp.zeros_like(reset_now) if mode == SAME_STEP else raw.episode_done
    if mode == DISABLED:
        ended |= before.ended
    results = ManySteps(
        obs=_agent_of(obs),
        reward=raw.reward[:, 0],
        terminated=raw.terminated[:, 0],
        truncated=raw.truncated[:, 0],
        info={name: value for name, value in raw.info.items() if name != "active"},
        masks=_masks_of_many(env, state, params),
        final_obs=_agent_of(raw.obs) if mode == SAME_STEP else (),
    )
    return ManyStates(KeyedState(key, number, state), obs, ended), results


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
        self._env, self._params = lift(env), strongly_typed(params)
        self._mode = autoreset_mode.value
        self._actions = env.action_space(params)
        self._states: ManyStates | None = None
        self._ended = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict | None = None
    ) -> tuple[PyTree, dict]:
        """Returns (obs, info); with options={"reset_mask": bool[num_envs]} resets only these."""
        is_list = isinstance(seed, list | tuple)
        super().reset(seed=None if seed is None or is_list else check_seed(seed))
        mask = self._reset_mask(options or {})
        key, number = self._keys(self._seeds(seed), mask)
        states, *results = reset_many(self._env, key, number, mask, self._states, self._params)
        self._states = states
        self._ended = self._ended & ~mask
        obs, masks = self._copied(jax.device_get(results))
        return obs, _with_masks({}, masks, mask)

    def step(self, actions: PyTree) -> tuple[PyTree, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Returns (obs, rewards, terminations, truncations, info)."""
        require_started(self._states, "step")
        if self._mode == DISABLED and self._ended.any():
            raise UsageError(
                f"the episodes of environments {np.flatnonzero(self._ended)[:8].tolist()} have "
                'ended: call reset(options={"reset_mask": ...}) before step()'
            )
        actions = as_actions(self._actions, actions, (self.num_envs,))
        states, results = step_many(self._env, self._mode, self._states, actions, self._params)
        self._states = states
        results = jax.device_get(results)
        ended = results.terminated | results.truncated
        info = self._info(results, ended)
        self._ended = ended
        return *self._copied(results[:4]), info

    def render(self) -> tuple[np.ndarray, ...] | None:
        """A picture u8[H, W, 3] of each environment, with render_mode "rgb_array"."""
        if self.render_mode is None:
            return None
        require_started(self._states, "render")
        return tuple(np.array(render_many(self._env, self._states.keyed.state, self._params)))

    def _reset_mask(self, options: dict[str, Any]) -> np.ndarray:
        if "reset_mask" not in options:
            return np.ones(self.num_envs, bool)
        mask = np.asarray(options["reset_mask"])
        if mask.shape != (self.num_envs,) or mask.dtype != bool:
            raise UsageError(
                f"reset_mask must be bool[{self.num_envs}], not {mask.dtype}{list(mask.shape)}"
            )
        if self._states is None and not mask.all():
            raise UsageError("the first reset() resets every environment: leave reset_mask out")
        return mask

    def _seeds(self, seed: Any) -> list[int | None]:
        """A seed for each environment; None for those that continue from the last one."""
        if isinstance(seed, list | tuple):
            if len(seed) != self.num_envs:
                raise UsageError(f"seed has {len(seed)} entries for {self.num_envs} environments")
            seeds = list(seed)
        elif seed is not None:
            seeds = [check_seed(seed) + i for i in range(self.num_envs)]
        else:
            seeds = [None] * self.num_envs
        if self._states is None:
            drawn = self.np_random.integers(to_numpy.MAX_SEED, endpoint=True, size=self.num_envs)
            seeds = [
                each if given is None else given for given, each in zip(seeds, drawn, strict=True)
            ]
        return [None if seed is None else check_seed(seed) for seed in seeds]

    def _keys(self, seeds: list[int | None], mask: np.ndarray) -> tuple[Key, jax.Array]:
        """The environments' keys, and the numbers of operations since they were seeded."""
        is_given = np.array([seed is not None for seed in seeds]) & mask
        before = self._states and self._states.keyed
        if not is_given.any():
            return before.key, before.count
        numbers = np.array([seed or 0 for seed in seeds], np.uint32)
        key, number = jax.vmap(jax.random.key)(numbers), jnp.zeros(self.num_envs, jnp.int32)
        if is_given.all():
            return key, number
        return jax.vmap(restart)(is_given, (key, number), (before.key, before.count))

    def _copied(self, results: PyTree) -> PyTree:
        return jax.tree.map(np.array, results) if self.copy else results

    def _info(self, results: ManySteps, ended: np.ndarray) -> dict[str, Any]:
        """Gymnasium's: a value "name" for each environment, and "_name", whether it has one."""
        everywhere = np.ones(self.num_envs, bool)
        if self._mode == NEXT_STEP:
            info = _vector_info(results.info, ~self._ended)
        elif self._mode == SAME_STEP and ended.any():
            info = _vector_info(results.info, ~ended)
            info |= {"final_obs": _final_obs(results.final_obs, ended), "_final_obs": ended.copy()}
            final_info = _vector_info(results.info, ended)
            info |= {"final_info": final_info, "_final_info": ended.copy()}
        else:
            info = _vector_info(results.info, everywhere)
        return _with_masks(info, self._copied(results.masks), everywhere)


@functools.partial(jax.jit, static_argnums=0)
def render_many(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> jax.Array:
    """u8[E, H, W, 3], the pictures of states [E]."""
    return jax.vmap(lambda state: env.render(state, params))(state)


def _agent_of(values: PyTree) -> PyTree:
    """[E, ...] of [E, 1, ...]."""
    return jax.tree.map(lambda leaf: leaf[:, 0], values)


def _masks_of_many(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> PyTree:
    return _agent_of(jax.vmap(lambda state: masks_of(env, state, params))(state))


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


def _with_masks(info: dict[str, Any], masks: PyTree, where: np.ndarray) -> dict[str, Any]:
    if isinstance(masks, tuple):
        return info
    return info | {"action_mask": masks, "_action_mask": where.copy()}


def _final_obs(obs: PyTree, ended: np.ndarray) -> np.ndarray:
    """Observations of the environments that ended, None for the others, as wrappers expect."""
    found = np.full(len(ended), None, dtype=object)
    for i in np.flatnonzero(ended):
        found[i] = jax.tree.map(lambda leaf, i=i: np.array(leaf[i]), obs)
    return found
