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
    raw_reset,
    raw_step,
    strongly_typed,
)
from jaxrl.core.env_contract import require_environment, require_trainable
from jaxrl.core.errors import UsageError, is_installed
from jaxrl.core.fast_prng import to_fast_key, to_standard_key
from jaxrl.core.registry import make
from jaxrl.core.spaces import Box, Space, is_tree, tree_of
from jaxrl.core.types import AgentId, Key, PyTree
from jaxrl.rollout.action_masks import raw_action_mask

MAX_SEED = 2**32 - 1
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
    require_environment(env, "env")
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
    return to_standard_key(jax.random.fold_in(to_fast_key(key), count))


def reset_key(key: Key, count: jax.Array) -> Key:
    """The key of a reset, folded once more, as `auto_reset` does."""
    return operation_key(operation_key(key, count), 0)


def masks_of(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> PyTree:
    """The masks of possible actions, int8 as Gymnasium's `sample(mask)` wants; () without any."""
    if not hasattr(env, "action_mask"):
        return ()
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
    return after, raw._replace(state=()), masks_of(env, raw.state, params)


@functools.partial(jax.jit, static_argnums=0)
def render(env: Any, state: PyTree, params: PyTree) -> jax.Array:
    """u8[H, W, 3], the picture of a state."""
    return env.render(state, params)


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
    if render_mode is not None and render_mode not in modes:
        allowed = "None" if not modes else "None or 'rgb_array'"
        raise UsageError(f"render_mode of {env.name} must be {allowed}, not {render_mode!r}")
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
    if not isinstance(space, Box):
        above = np.asarray(getattr(space, "nvec", None) or space.n)
        if array.dtype.kind not in "iub" or np.any((array < 0) | (array >= above)):
            raise UsageError(f"actions must be whole numbers in {space}, not {action!r:.60}")
    return array.astype(space.dtype, copy=False)


def plain(values: PyTree) -> PyTree:
    """An observation in arrays that may be written, or a number in a Discrete space."""

    def number_or_copy(leaf):
        is_number = np.ndim(leaf) == 0 and np.issubdtype(leaf.dtype, np.integer)
        return int(leaf) if is_number else np.array(leaf)

    return jax.tree.map(number_or_copy, values)


def plain_info(info: dict[str, Any]) -> dict[str, Any]:
    """What a step tells of itself: all but what its other results say; scalars as numbers."""
    info = {name: value for name, value in info.items() if name != "active"}
    return jax.tree.map(lambda leaf: leaf[()] if np.ndim(leaf) == 0 else leaf, info)


def by_agent(env: MultiAgentEnvironment, values: PyTree) -> dict[AgentId, PyTree]:
    """NumPy arrays [M, ...] of a stacked environment as a dict; dicts as they are."""
    if not is_stacked(env):
        return values
    return {
        agent: jax.tree.map(lambda leaf, i=i: leaf[i], values) for i, agent in enumerate(env.agents)
    }
