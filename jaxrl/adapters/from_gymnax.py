"""Environments of gymnax (https://github.com/RobertTLange/gymnax, 1.0).

`make("gymnax:Breakout-MinAtar")` makes one. gymnax is imported only here, because it imports
matplotlib, seaborn and gymnasium.
"""

import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env import Environment
from jaxrl.core.errors import UsageError, one_line, unknown_name
from jaxrl.core.spaces import Box, Dict, Discrete, Space, Tuple
from jaxrl.core.types import PyTree

try:
    import gymnax
    from gymnax.environments import spaces as gymnax_spaces
except (ImportError, AttributeError) as error:  # the latter: JAX is too new for gymnax
    raise UsageError(
        f"gymnax's environments are not available: {type(error).__name__}: {error}; "
        "install it with `pip install gymnax`; "
        "docs/install.md has the versions of JAX that it works with"
    ) from error


def constructor(name: str) -> Callable[..., Environment]:
    """The constructor of gymnax's environment `name`, with the arguments of gymnax's own class."""
    if name not in gymnax.registered_envs:
        raise unknown_name("gymnax environment", name, gymnax.registered_envs)

    def construct(**args):
        return GymnaxEnvironment(_make(name, **args), name, tuple(sorted(args.items())))

    construct.__signature__ = inspect.signature(type(_make(name)))
    return construct


def _make(name: str, **args):
    try:
        return gymnax.make(name, **args)[0]
    except OSError as error:  # some download their data
        raise UsageError(
            f"gymnax environment {name!r} needs data that could not be loaded: "
            f"{type(error).__name__}: {one_line(error)}"
        ) from error


class GymnaxEnvironment(Environment):
    """An environment of gymnax, with our spaces and constant array types."""

    def __init__(self, env, name: str, args: tuple = ()):
        self.env = env
        self._name = f"gymnax:{name}"
        self._args = args

    def __eq__(self, other):
        if not isinstance(other, GymnaxEnvironment):
            return False
        return (self._name, self._args) == (other._name, other._args)

    def __hash__(self):
        return hash((self._name, self._args))

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
        obs, state, reward, terminated, _ = self.env.step_env(key, state, action, params)
        return self._typed(obs, params), state, jnp.float32(reward), jnp.bool_(terminated), {}

    def is_truncated(self, state, params) -> jax.Array:
        return jnp.bool_(self.env.is_truncated(state, params))

    def _typed(self, obs, params) -> PyTree:
        """Observations in the type of their space; some environments give bools for an f32 Box."""
        return typed(self._space("observation_space", params), obs)

    def _space(self, which: str, params):
        """gymnax's space. Bounds that are arrays are computed at once, even while tracing."""
        with jax.ensure_compile_time_eval():
            return getattr(self.env, which)(self.env.default_params if params is None else params)


def convert_space(space, what: str) -> Space:
    """Our space for a space of gymnax."""
    if isinstance(space, gymnax_spaces.Discrete):
        return Discrete(space.n)
    if isinstance(space, gymnax_spaces.Box):
        with jax.ensure_compile_time_eval():  # bounds may be arrays computed from params
            low, high = np.asarray(space.low), np.asarray(space.high)
        return Box(low, high, tuple(space.shape), np.dtype(space.dtype).name)
    if isinstance(space, gymnax_spaces.Dict):
        parts = space.spaces.items()
        return Dict({name: convert_space(part, f"{what}[{name!r}]") for name, part in parts})
    if isinstance(space, gymnax_spaces.Tuple):
        parts = enumerate(space.spaces)
        return Tuple(tuple(convert_space(part, f"{what}[{i}]") for i, part in parts))
    raise UsageError(
        f"{what}: gymnax's {type(space).__name__} space is not supported; "
        "allowed: Discrete, Box, Dict, Tuple"
    )


def typed(space, obs: PyTree) -> PyTree:
    """`obs` in the types and shapes of gymnax's `space`; a mapping becomes a plain dict."""
    if isinstance(space, gymnax_spaces.Dict):
        return {name: typed(part, obs[name]) for name, part in space.spaces.items()}
    if isinstance(space, gymnax_spaces.Tuple):
        return tuple(typed(part, value) for part, value in zip(space.spaces, obs, strict=True))
    return jnp.asarray(obs, space.dtype).reshape(space.shape)
