"""Compiled resets and steps with results in NumPy, shared by the adapters to other libraries.

The state of an environment and its random key stay on the device between two calls. Operation n
after seeding, a reset or a step, draws from `fold_in(key(seed), n)`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env import (
    MultiAgentEnvironment,
    RawStep,
    is_multi_agent,
    is_stacked,
    lift,
    raw_action_mask,
    raw_reset,
    raw_step,
    restart,
    strongly_typed,
)
from jaxrl.core.env_contract import require_environment, require_params, require_trainable
from jaxrl.core.errors import UsageError, brief, is_installed
from jaxrl.core.fast_prng import with_fast_keys
from jaxrl.core.fields import without
from jaxrl.core.number_types import NotHeldError, as_type
from jaxrl.core.outside_env import refuse_outside
from jaxrl.core.registry import make, of_library
from jaxrl.core.spaces import Box, Space, beyond, is_tree, tree_of
from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.rollout.env_step import auto_reset

MAX_SEED = 2**32 - 1
# When an episode that ended is reset, in Gymnasium's words.
NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"
RENDER_FPS = 30  # in the metadata; environments here have no speed of their own


class KeyedState(NamedTuple):
    """An environment between two calls."""

    key: Key  # of the seed
    count: jax.Array  # i32[]  operations since it was seeded
    state: PyTree


def require_library(package: str, function: str, extra: str) -> None:
    """Raises UsageError where the library that `function` needs is not installed."""
    if not is_installed(package):
        raise UsageError(f'{function} needs {package}: pip install "jaxrl[{extra}]"')


@functools.cache
def derived(kind: type, base: type, **members: Any) -> type:
    """`kind`, a class of ours, as a subclass of `base`, a class of a library."""
    members = {"__module__": kind.__module__, "__doc__": kind.__doc__, **members}
    return type(kind.__name__, (kind, base), members)


def resolve(env: Any, params: PyTree) -> tuple[Any, PyTree]:
    """(env, params) of an environment or of its name, checked before anything is compiled."""
    if isinstance(env, str):
        env, made = make(env)
        params = made if params is None else params
    env = of_library(env)
    require_environment(env, "env")
    refuse_outside(env, "env")
    require_params(env, params)
    require_trainable(env, params)
    return env, env.default_params if params is None else params


def resolve_single(env: Any, params: PyTree, function: str) -> tuple[Any, PyTree]:
    """`resolve` for an adapter to an interface of one agent."""
    env, params = resolve(env, params)
    if is_multi_agent(env):
        raise UsageError(
            f"{function} takes an environment of one agent; {env.name} has {len(env.agents)}: "
            "use to_pettingzoo"
        )
    return env, params


def operation_key(key: Key, count: jax.Array) -> Key:
    """The key of operation `count`."""
    return with_fast_keys(jax.random.fold_in, key, count)


def reset_key(key: Key, count: jax.Array) -> Key:
    """The key of a reset, folded once more, as `auto_reset` does."""
    return operation_key(operation_key(key, count), 0)


def masks_of(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> PyTree | None:
    """The masks of possible actions, int8 as Gymnasium's `sample(mask)` wants; None without any."""
    if not hasattr(env, "action_mask"):
        return None
    mask = raw_action_mask(env, state, params)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.int8), mask)


@functools.partial(jax.jit, static_argnums=0)
def reset(
    env: MultiAgentEnvironment, key: Key, count: jax.Array, params: PyTree
) -> tuple[KeyedState, PyTree, PyTree]:
    """(state, obs, masks) of a new episode, for all agents as `raw_reset` has them."""
    obs, state = raw_reset(env, reset_key(key, count), params)
    return KeyedState(key, count + 1, state), obs, masks_of(env, state, params)


@functools.partial(jax.jit, static_argnums=0)
def step(
    env: MultiAgentEnvironment, before: KeyedState, action: PyTree, params: PyTree
) -> tuple[KeyedState, RawStep, PyTree]:
    """(state, raw, masks) after a step, with no reset; `raw` without the state."""
    raw = raw_step(env, operation_key(before.key, before.count), before.state, action, params)
    after = KeyedState(before.key, before.count + 1, raw.state)
    return after, raw._replace(state=None), masks_of(env, raw.state, params)


@functools.partial(jax.jit, static_argnums=0)
def render(env: Any, state: PyTree, params: PyTree) -> jax.Array:
    """u8[H, W, 3], the picture of a state."""
    return env.render(state, params)


@functools.partial(jax.jit, static_argnums=0)
def global_state(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> PyTree:
    """The environment's global state, for a centralised critic."""
    return env.global_state(state, params)


class Episodes:
    """One environment played episode by episode, any number of agents, results in NumPy."""

    def __init__(self, env: Any, params: PyTree):
        self.env, self.params = lift(env), strongly_typed(params)
        self.current: KeyedState | None = None
        self.key: Key | None = None

    def reset(self, seed: int | None) -> tuple[PyTree, PyTree]:
        """(obs, masks) of a new episode; without a seed the keys continue, at first random ones."""
        count = np.int32(0)
        if seed is None and self.current is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        if seed is not None:
            self.key = jax.random.key(np.uint32(check_seed(seed)))
        else:
            count = self.current.count
        self.current, *results = reset(self.env, self.key, count, self.params)
        return tuple(jax.device_get(results))

    def step(self, action: PyTree) -> tuple[RawStep, PyTree]:
        """(raw, masks) of a step, with no reset."""
        self.current, *results = step(self.env, self.current, action, self.params)
        return tuple(jax.device_get(results))

    def render(self) -> np.ndarray:
        require_started(self.current, "render")
        return np.array(render(self.env, self.current.state, self.params))

    def global_state(self) -> PyTree:
        require_started(self.current, "state")
        return plain(jax.device_get(global_state(self.env, self.current.state, self.params)))


# ---- copies that step together


class ManyStates(NamedTuple):
    """E copies of an environment between two calls."""

    keyed: KeyedState  # [E]
    obs: PyTree  # [E, ...]  the last ones, which a reset of a part of them returns again
    ended: jax.Array  # bool[E]  their episodes have ended and they were not reset


class ManySteps(NamedTuple):
    """Results of a step of E copies, of all agents."""

    obs: PyTree  # [E, ...]  to act by
    raw: RawStep  # [E]  before any reset; without the state, and `obs` only with SAME_STEP
    masks: PyTree | None  # i8[E, ...] of the states to act in


@functools.partial(jax.jit, static_argnums=0)
def reset_many(
    env: MultiAgentEnvironment,
    seeded: tuple[Key, jax.Array],
    mask: jax.Array,
    before: ManyStates | None,
    params: PyTree,
) -> tuple[ManyStates, PyTree, PyTree]:
    """(states, obs, masks): new episodes where `mask`, bool[E]; `before` elsewhere.

    Args:
        seeded: (key, number), [E]; the seeds' keys, and the number of operations since.
    """
    key, number = seeded
    keys = jax.vmap(reset_key)(key, number)
    fresh = jax.vmap(lambda key: raw_reset(env, key, params))(keys)
    ended = jnp.zeros_like(mask)
    if before is not None:
        fresh = jax.vmap(restart)(mask, fresh, (before.obs, before.keyed.state))
        ended = before.ended & ~mask
    obs, state = fresh
    states = ManyStates(KeyedState(key, number + mask, state), obs, ended)
    return states, obs, jax.vmap(lambda state: masks_of(env, state, params))(state)


@functools.partial(jax.jit, static_argnums=(0, 1))
def step_many(
    env: MultiAgentEnvironment, mode: str, before: ManyStates, action: PyTree, params: PyTree
) -> tuple[ManyStates, ManySteps]:
    """A step of E copies, with the resets of an autoreset mode."""
    key, number, state = before.keyed
    keys = jax.vmap(operation_key)(key, number)
    raw = jax.vmap(lambda key, state, action: raw_step(env, key, state, action, params))(
        keys, state, action
    )
    if mode == NEXT_STEP:  # those that had ended are reset, and their steps count for nothing
        started = ~before.ended
        raw = raw._replace(
            reward=jnp.where(started[:, None], raw.reward, 0),
            terminated=raw.terminated & started[:, None],
            truncated=raw.truncated & started[:, None],
            active=raw.active | before.ended[:, None],
            all_terminated=raw.all_terminated & started,
            episode_done=raw.episode_done & started,
        )
        reset_now, number = before.ended, number + 1
    elif mode == SAME_STEP:
        reset_now, number = raw.episode_done, number + 1 + raw.episode_done
        keys = jax.vmap(operation_key)(key, number - 1)
    else:
        reset_now, number = jnp.zeros_like(raw.episode_done), number + 1
    obs, state = raw.obs, raw.state
    if mode != DISABLED:
        reaching = raw._replace(episode_done=reset_now)
        obs, state = auto_reset(env, keys, jnp.int32(0), reaching, params)
    ended = jnp.zeros_like(reset_now) if mode == SAME_STEP else raw.episode_done
    if mode == DISABLED:
        ended |= before.ended
    masks = jax.vmap(lambda state: masks_of(env, state, params))(state)
    raw = raw._replace(state=None, obs=raw.obs if mode == SAME_STEP else None)
    return ManyStates(KeyedState(key, number, state), obs, ended), ManySteps(obs, raw, masks)


@functools.partial(jax.jit, static_argnums=0)
def render_many(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> jax.Array:
    """u8[E, H, W, 3], the pictures of states [E]."""
    return jax.vmap(lambda state: env.render(state, params))(state)


class ManyEpisodes:
    """Copies of an environment that step together, any number of agents, results in NumPy.

    A copy with seed s plays the episodes of `Episodes` with that seed.
    """

    def __init__(self, env: Any, params: PyTree, num_envs: int, autoreset_mode: str):
        self.env, self.params = lift(env), strongly_typed(params)
        self.num_envs, self.mode = num_envs, autoreset_mode
        self.current: ManyStates | None = None

    def reset(
        self, seed: Any, mask: np.ndarray, random: np.random.Generator
    ) -> tuple[PyTree, PyTree]:
        """(obs, masks) of all copies, after new episodes where `mask`, bool[num_envs].

        Args:
            seed: copy i has seed + i; a list: one for each; None: the keys continue.
            random: draws seeds for the first reset where none is given.
        """
        seeded = self._seeded(self._seeds(seed, random), mask)
        self.current, *results = reset_many(self.env, seeded, mask, self.current, self.params)
        return tuple(jax.device_get(results))

    def step(self, action: PyTree) -> ManySteps:
        """The results of a step, with the resets of the autoreset mode."""
        self.current, results = step_many(self.env, self.mode, self.current, action, self.params)
        return jax.device_get(results)

    def render(self) -> np.ndarray:
        require_started(self.current, "render")
        return np.array(render_many(self.env, self.current.keyed.state, self.params))

    def _seeds(self, seed: Any, random: np.random.Generator) -> list[int | None]:
        """A seed for each copy; None for those that continue from the last one."""
        if isinstance(seed, list | tuple):
            if len(seed) != self.num_envs:
                raise UsageError(f"seed has {len(seed)} entries for {self.num_envs} environments")
            seeds = list(seed)
        elif seed is not None:
            seeds = [check_seed(seed) + i for i in range(self.num_envs)]
        else:
            seeds = [None] * self.num_envs
        drawn = [None] * self.num_envs
        if self.current is None:
            drawn = random.integers(MAX_SEED, endpoint=True, size=self.num_envs).tolist()
        for i, seed in enumerate(seeds):
            seeds[i] = drawn[i] if seed is None else check_seed(seed)
        return seeds

    def _seeded(self, seeds: list[int | None], mask: np.ndarray) -> tuple[Key, jax.Array]:
        """The copies' keys, and the numbers of operations since they were seeded."""
        is_given = np.array([seed is not None for seed in seeds]) & mask
        before = self.current and self.current.keyed
        if not is_given.any():
            return before.key, before.count
        numbers = np.array([seed or 0 for seed in seeds], np.uint32)
        key, number = jax.vmap(jax.random.key)(numbers), jnp.zeros(self.num_envs, jnp.int32)
        if is_given.all():
            return key, number
        return jax.vmap(restart)(is_given, (key, number), (before.key, before.count))


# ---- seeds, actions, results


def require_started(current: Any, method: str) -> None:
    if current is None:
        raise UsageError(f"call reset() before {method}()")


def check_seed(seed: Any) -> int:
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or not 0 <= seed <= MAX_SEED:
        raise UsageError(f"a seed must be a whole number from 0 to 2^32 - 1, not {seed!r}")
    return int(seed)


def render_metadata(env: Any, render_mode: str | None) -> dict[str, Any]:
    """The entries about rendering in an environment's `metadata`."""
    modes = ["rgb_array"] if hasattr(env, "render") else []
    if render_mode is not None and not (isinstance(render_mode, str) and render_mode in modes):
        allowed = "None" if not modes else "None or 'rgb_array'"
        raise UsageError(f"render_mode of {env.name} must be {allowed}, not {brief(render_mode)}")
    return {"render_modes": modes, "render_fps": RENDER_FPS}


def as_actions(space: Space, actions: PyTree, batch: tuple[int, ...] = ()) -> PyTree:
    """Actions [*batch, ...] in the types of their space.

    Raises:
        UsageError: another structure or shape, no whole numbers, or numbers out of range.
    """
    if not is_tree(space):
        return _as_action(space, actions, batch)
    try:
        return jax.tree.map(
            lambda part, leaf: _as_action(part, leaf, batch), tree_of(space), actions
        )
    except UsageError:
        raise
    except (ValueError, TypeError):
        raise UsageError(f"actions must have the structure of {space}") from None


def _as_action(space: Space, action: Any, batch: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(action)
    if array.shape != (*batch, *space.shape):
        raise UsageError(
            f"actions must have shape {(*batch, *space.shape)}, not {array.shape}, for {space}"
        )
    is_integer = not isinstance(space, Box)
    if is_integer and (array.dtype.kind not in "iub" or np.any(beyond(space, array))):
        raise UsageError(f"actions must be whole numbers in {space}, not {brief(action)}")
    try:
        return as_type(array, space.dtype)
    except NotHeldError as error:
        raise UsageError(f"actions hold {error}, for {space}") from None


def plain(values: PyTree) -> PyTree:
    """An observation in arrays that may be written, or a number in a Discrete space."""

    def number_or_copy(leaf):
        is_number = np.ndim(leaf) == 0 and np.issubdtype(leaf.dtype, np.integer)
        return int(leaf) if is_number else np.array(leaf)

    return jax.tree.map(number_or_copy, values)


def plain_info(info: dict[str, Any]) -> dict[str, Any]:
    """The info of a step without the parts that its other results contain; scalars as numbers."""
    info = without(info, {"active"})
    return jax.tree.map(lambda leaf: leaf[()] if np.ndim(leaf) == 0 else leaf, info)


def by_agent(env: MultiAgentEnvironment, values: PyTree, axis: int = 0) -> dict[AgentId, PyTree]:
    """NumPy arrays of a stacked environment, with agents along `axis`, as a dict; or the dict."""
    if not is_stacked(env):
        return values
    place, parts = (slice(None),) * axis, {}
    for i, agent in enumerate(env.agents):
        parts[agent] = jax.tree.map(lambda leaf, i=i: leaf[*place, i], values)
    return parts
