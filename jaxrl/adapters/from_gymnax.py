"""Environments of gymnax (https://github.com/RobertTLange/gymnax, 1.0).

`make("gymnax:Breakout-MinAtar")` makes one. A user's own environments of gymnax, of any version,
come in as objects or classes. gymnax is imported only here, because it imports matplotlib, seaborn
and gymnasium.
"""

import copy
import functools
from collections.abc import Hashable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.adapters import wrapping
from jaxrl.adapters.fast import WithFastChanges
from jaxrl.core.env import Environment
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import only
from jaxrl.core.frozen import freeze
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from jaxrl.core.types import PyTree

INSTALL = "gymnax; docs/install.md has the versions of JAX that it needs"
with wrapping.imported("gymnax", "gymnax", INSTALL):
    import gymnax
    from gymnax.environments import environment

HARMLESS_WRAPPERS = ("GymnaxWrapper", "LogWrapper", "FlattenObservationWrapper")
KINDS = ("Discrete", "MultiDiscrete", "Box", "Dict", "Tuple")  # of spaces


@wrapping.constructors("gymnax", lambda: gymnax.registered_envs)
def constructor(name: str) -> wrapping.Maker:
    """The constructor of gymnax's environment `name`, with the arguments of gymnax's own class."""
    defaults = wrapping.defaults_of(type(gymnax.make(name)[0]))
    return wrapping.Maker(_named, defaults, has_time_limit=False)


def _named(name: str, **args: Any) -> "GymnaxEnvironment":
    identity = freeze(dict(sorted(args.items())))
    return GymnaxEnvironment(gymnax.make(name, **args)[0], f"gymnax:{name}", identity)


def adapt(name: str | None, make: Any, env: Any) -> Any:
    """A user's environment of gymnax's contract, `env`, which `make` is or has made."""
    env = wrapping.unwrapped(env, "step_env", HARMLESS_WRAPPERS)
    if isinstance(env.observation_space(env.default_params), Space):
        return env  # written for jaxrl, on gymnax's base class
    is_gymnaxs = type(env).__module__.startswith("gymnax.environments.")
    kind = GymnaxEnvironment if is_gymnaxs else UsersEnvironment
    return kind(env, wrapping.name_of(name, env), wrapping.identity_of(make))


class GymnaxEnvironment(WithFastChanges, Environment):
    """An environment of gymnax, with our spaces and constant array types.

    Args:
        identity: environments of one name with equal identities are equal.
    """

    def __init__(self, env, name: str, identity: Hashable = None):
        self.env = env
        self._name = name
        self._identity = identity

    def __eq__(self, other):
        if not isinstance(other, GymnaxEnvironment):
            return False
        return (self._name, self._identity) == (other._name, other._identity)

    def __hash__(self):
        return hash((self._name, self._identity))

    @property
    def name(self) -> str:
        return self._name

    @property
    def default_params(self):
        return self.env.default_params

    def observation_space(self, params=None) -> Space:
        space = self._space("observation_space", params)
        return convert_space(space, f"observation of {self.name}")

    def action_space(self, params=None) -> Space:
        return convert_space(self._space("action_space", params), f"action of {self.name}")

    def reset_env(self, key, params):
        obs, state = self.env.reset_env(key, params)
        return self._typed(obs, params), state

    def step_env(self, key, state, action, params):
        obs, after, reward, terminated, _ = self.env.step_env(key, state, action, params)
        after = wrapping.typed_as_before(state, after)
        return self._typed(obs, params), after, jnp.float32(reward), jnp.bool_(terminated), {}

    def is_truncated(self, state, params) -> jax.Array:
        return jnp.bool_(self.env.is_truncated(state, params))

    def _typed(self, obs, params) -> PyTree:
        """Observations in the type of their space; some environments give bools for an f32 Box."""
        return typed(self._space("observation_space", params), obs)

    def _space(self, which: str, params):
        """gymnax's space. Bounds that are arrays are computed at once, even while tracing."""
        with jax.ensure_compile_time_eval():
            return getattr(self.env, which)(self.env.default_params if params is None else params)


class Ended(struct.PyTreeNode):
    """A state of a user's environment, and what ended its episode."""

    inner: PyTree
    truncated: jax.Array  # bool[]


class UsersEnvironment(GymnaxEnvironment):
    """An environment that a user wrote for gymnax, before 1.0 or since.

    Before 1.0 `done` held the time limit as well. What ends the episode by the rules is `done` of
    the same step under parameters without a limit, and any other end is the clock's.
    """

    def __init__(self, env, name: str, identity: Hashable):
        super().__init__(_with_new_names(env), name, identity)
        if hasattr(env, "action_mask"):
            self.action_mask = lambda state, params: env.action_mask(state.inner, params)

    def reset_env(self, key, params):
        obs, inner = super().reset_env(key, params)
        return obs, Ended(inner, jnp.array(False))

    def step_env(self, key, state, action, params):
        arguments = key, state.inner, action
        obs, inner, reward, done, info = self.env.step_env(*arguments, params)
        inner = wrapping.typed_as_before(state.inner, inner)
        clock, done = self._clock(inner, params), _only(done, bool)
        terminated = done
        for env, others in self._unlimited(params):
            terminated = terminated & _only(env.step_env(*arguments, others)[3], bool)
        state, reward = Ended(inner, (done | clock) & ~terminated), _only(reward, jnp.float32)
        return self._typed(obs, params), state, reward, terminated, only(info, {"metrics"})

    def is_truncated(self, state, params) -> jax.Array:
        return state.truncated

    def _clock(self, inner: PyTree, params: PyTree) -> jax.Array:
        """gymnax 1.0's own clock, where the environment has what it reads."""
        clock = getattr(self.env, "is_truncated", None)
        if clock is None:
            return jnp.array(False)
        is_gymnaxs = getattr(clock, "__module__", "").startswith("gymnax.")
        has_all = hasattr(inner, "time") and hasattr(params, "max_steps_in_episode")
        if is_gymnaxs and not has_all:
            return jnp.array(False)
        return _only(clock(inner, params), bool)

    def _unlimited(self, params: PyTree) -> list[tuple[Any, PyTree]]:
        """(environment, parameters) without a time limit, of those that hold one."""
        found = []
        if self._has_limit["params"]:
            found.append((self.env, wrapping.without_limit(params)))
        if self._has_limit["env"]:
            found.append((wrapping.without_limit(self.env), params))
        return found

    @cached_property
    def _has_limit(self) -> dict[str, bool]:
        """Flags of the parameters and the object: whether a step works without their limit."""
        params = self.env.default_params
        works = lambda *pair: (
            None not in pair and wrapping.steps_alike(self._first_step, (self.env, params), pair)
        )
        return {
            "params": works(self.env, wrapping.without_limit(params)),
            "env": works(wrapping.without_limit(self.env), params),
        }

    def _first_step(self, pair: tuple[Any, PyTree], key: jax.Array) -> tuple:
        _, state = self.env.reset_env(key, self.env.default_params)
        env, params = pair
        return env.step_env(key, state, self.action_space().sample(key), params)


def _with_new_names(env: Any) -> Any:
    """An environment whose `is_terminal` gymnax 1.0 finds under today's name, `is_terminated`.

    The base class's `discount`, which many steps put into `info`, asks it.
    """
    kind, base = type(env), environment.Environment
    is_older = isinstance(env, base) and kind.is_terminated is base.is_terminated
    if not is_older or kind.is_terminal is base.is_terminal:
        return env
    env = copy.copy(env)
    env.__class__ = type(kind.__name__, (kind,), {"is_terminated": kind.is_terminal})
    return env


def _only(value: Any, dtype: Any) -> jax.Array:
    """A number that may come in an array of one element."""
    value = jnp.asarray(value, dtype)
    return value.reshape(()) if value.size == 1 else value


def convert_space(space, what: str) -> Space:
    """Our space for a space of gymnax, or of a user's copy of its classes."""
    match _kind_of(space):
        case "Discrete":
            return Discrete(int(space.n))
        case "MultiDiscrete":  # users', of several forms
            sizes = getattr(space, "nvec", getattr(space, "num_categories", None))
            return MultiDiscrete(tuple(np.ravel(sizes).tolist()))
        case "Box":
            with jax.ensure_compile_time_eval():  # bounds may be arrays computed from params
                low, high = np.asarray(space.low), np.asarray(space.high)
            return Box(low, high, _shape_of(space), np.dtype(space.dtype).name)
        case "Dict":
            parts = space.spaces.items()
            return Dict({name: convert_space(part, f"{what}[{name!r}]") for name, part in parts})
        case "Tuple":
            parts = enumerate(space.spaces)
            return Tuple(tuple(convert_space(part, f"{what}[{i}]") for i, part in parts))
    raise UsageError(
        f"{what}: gymnax's {type(space).__name__} space is not supported; "
        "allowed: Discrete, MultiDiscrete, Box, Dict, Tuple"
    )


def typed(space, obs: PyTree) -> PyTree:
    """`obs` in the types and shapes of gymnax's `space`; a mapping becomes a plain dict."""
    match _kind_of(space):
        case "Dict":
            by_field = functools.partial(getattr, obs)
            part_of = obs.__getitem__ if hasattr(obs, "__getitem__") else by_field
            return {name: typed(part, part_of(name)) for name, part in space.spaces.items()}
        case "Tuple":
            return tuple(typed(part, value) for part, value in zip(space.spaces, obs, strict=True))
    return jnp.asarray(obs, space.dtype).reshape(_shape_of(space))


def _kind_of(space: Any) -> str | None:
    """The name of the class among gymnax's that a space has, or derives from."""
    names = [base.__name__ for base in type(space).__mro__]
    return next((name for name in names if name in KINDS), None)


def _shape_of(space: Any) -> tuple[int, ...]:
    """A space's shape, which users may give as a number."""
    return (space.shape,) if isinstance(space.shape, int) else tuple(space.shape)
