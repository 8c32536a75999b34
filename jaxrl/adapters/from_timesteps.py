"""Environments of the interfaces stoa, gxm and Envelope, which many libraries in JAX share.

Each gives (state, timestep) of a reset and of a step. A user's environment of stoa-env
(https://github.com/EdanToledo/Stoa, 0.1), gxm (https://github.com/huterguier/gxm, 0.4) or
jax-envelope (https://github.com/keraJLi/envelope, 0.6) comes in as an object or a class. Its
library is not imported here.
"""

from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.adapters import wrapping
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space, space_of
from jaxrl.core.types import PyTree

# Wrappers for what training does itself, and where they hold the environment.
TRAINING_WRAPPERS = {
    *("AutoResetWrapper", "CachedAutoResetWrapper", "OptimisticResetVmapWrapper", "VmapWrapper"),
    *("AddRNGKey", "RecordEpisodeMetrics"),  # of stoa
    *("EpisodeCounter", "RecordEpisodeStatistics", "StepCounter"),  # of gxm
    *("PooledInitVmapWrapper", "EpisodeStatisticsWrapper"),  # of Envelope
}
HOLDERS = ("_env", "wrapped", "env")
MASKS = ("action_mask", "legal_action_mask")  # entries of a timestep's extras
TERMINATED, TRUNCATED = 2, 3  # stoa's types of steps


class Step(NamedTuple):
    """A timestep in our words."""

    obs: PyTree  # named tuples and dataclasses are dicts
    reward: jax.Array  # f32[]
    terminated: jax.Array  # bool[]
    truncated: jax.Array  # bool[]
    mask: jax.Array | None  # bool[actions]


class Stepped(struct.PyTreeNode):
    """A library's state, with what its last timestep said."""

    inner: PyTree
    truncated: jax.Array  # bool[]
    mask: jax.Array | None


def adapt(name: str | None, make: Any, env: Any) -> "TimestepEnvironment":
    """A user's environment of one of the interfaces, `env`, which `make` is or has made."""
    while (kind := type(env).__name__) in TRAINING_WRAPPERS:
        env = next(getattr(env, holder) for holder in HOLDERS if holder in vars(env))
    packages = [base.__module__.partition(".")[0] for base in type(env).__mro__]
    interface = INTERFACES[next(package for package in packages if package in INTERFACES)]
    return interface(env, wrapping.name_of(name, env) or kind, wrapping.made_by(make))


class TimestepEnvironment(wrapping.WrappedEnvironment):
    """An environment of an interface whose `_first` and `_next` a subclass gives.

    Both return the library's (state, timestep); `_step` reads a timestep.
    """

    def __init__(self, env: Any, name: str, args: dict[str, Any]):
        super().__init__(name, args)
        self._env = env
        # At once: their bounds are arrays, which must not be traced.
        self._action_space = converted(_declared(env.action_space), f"action of {name}")
        _, stepped = jax.eval_shape(self.reset_inner, jax.random.key(0))
        if stepped.mask is not None:
            self.action_mask = lambda state, params: state.inner.mask

    def _first(self, key: jax.Array) -> tuple[PyTree, Any]:
        """(state, timestep) of a reset."""
        raise NotImplementedError

    def _next(self, key: jax.Array, state: PyTree, action: PyTree) -> tuple[PyTree, Any]:
        """(state, timestep) of a step, best without the library's automatic reset."""
        raise NotImplementedError

    def _step(self, timestep: Any) -> Step:
        """A timestep of the library in our words."""
        raise NotImplementedError

    @cached_property
    def _observation_space(self) -> Space:
        """Computed, since bounds and shapes are often declared wrongly; a choice is a choice."""
        computed, declared = self.computed_observation_space(), self._env.observation_space
        if getattr(computed, "shape", None) == () and computed.dtype == "int32":
            declared = converted(_declared(declared), f"observation of {self.name}")
            return declared if isinstance(declared, Discrete) else computed
        return computed

    def observation_space(self, params: PyTree = None) -> Space:
        return self._observation_space

    def action_space(self, params: PyTree = None) -> Space:
        return self._action_space

    def reset_inner(self, key):
        state, timestep = self._first(key)
        step = self._step(timestep)
        return step.obs, Stepped(state, jnp.array(False), step.mask)

    def step_inner(self, key, inner, action):
        state, timestep = self._next(key, inner.inner, action)
        step = self._step(timestep)
        state = wrapping.typed_as_before(inner.inner, state)
        return step.obs, Stepped(state, step.truncated, step.mask), step.reward, step.terminated, {}

    def is_truncated(self, state, params) -> jax.Array:
        return super().is_truncated(state, params) | state.inner.truncated


class Stoa(TimestepEnvironment):
    """An environment of stoa-env."""

    def _first(self, key):
        return self._env.reset(wrapping.raw_key(key))

    def _next(self, key, state, action):
        return self._env.step(state, action)

    def _step(self, timestep):
        kind, extras = timestep.step_type, timestep.extras
        mask = next((extras[name].astype(bool) for name in MASKS if name in extras), None)
        ends = kind == TERMINATED, kind == TRUNCATED
        obs = wrapping.by_name(timestep.observation)
        return Step(obs, jnp.float32(timestep.reward), *ends, mask)


class Gxm(TimestepEnvironment):
    """An environment of gxm. Its automatic reset is left out where the library allows that."""

    def _first(self, key):
        return self._env.init(key)

    def _next(self, key, state, action):
        step = getattr(self._env, "_step", self._env.step)
        return step(key, state, action)

    def _step(self, timestep):
        ends = jnp.bool_(timestep.terminated), jnp.bool_(timestep.truncated)
        obs = wrapping.by_name(timestep.true_next_obs)
        return Step(obs, jnp.float32(timestep.reward), *ends, None)


class Envelope(TimestepEnvironment):
    """An environment of jax-envelope."""

    def _first(self, key):
        return self._env.init(key)

    def _next(self, key, state, action):
        return self._env.step(state, action)

    def _step(self, timestep):
        ends = jnp.bool_(timestep.terminated), jnp.bool_(timestep.truncated)
        obs = wrapping.by_name(timestep.obs)
        return Step(obs, jnp.float32(timestep.reward), *ends, None)


INTERFACES = {"stoa": Stoa, "gxm": Gxm, "envelope": Envelope}  # by the package of the base class


def _declared(space: Any) -> Any:
    """A space that an environment has as an attribute or as a method."""
    return space() if callable(space) else space


def converted(space: Any, what: str) -> Space:
    """Our space for one of stoa's, gxm's or Envelope's."""
    parts = getattr(space, "tree", getattr(space, "spaces", None))
    if parts is not None:
        is_leaf = lambda part: hasattr(part, "sample")
        return space_of(jax.tree.map(lambda part: converted(part, what), parts, is_leaf=is_leaf))
    match type(space).__name__:
        case "Discrete" | "DiscreteSpace" | "MultiDiscreteSpace":
            counts = np.asarray(space.num_values if hasattr(space, "num_values") else space.n)
            if counts.ndim:
                return MultiDiscrete(tuple(counts.ravel().tolist()))
            return Discrete(int(counts))
        case "Box" | "Continuous":
            low, high = np.asarray(space.low), np.asarray(space.high)
            return Box(low, high, low.shape, low.dtype.name)
        case "BoundedArraySpace":
            low, high = np.asarray(space.minimum), np.asarray(space.maximum)
            return Box(low, high, tuple(space.shape), np.dtype(space.dtype).name)
    raise UsageError(
        f"{what}: the space {type(space).__name__} is not supported; allowed: numbers between "
        "bounds, choices, and trees of both"
    )
