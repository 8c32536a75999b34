"""Environments of jaxrl for programs that use gymnax (https://github.com/RobertTLange/gymnax).

    env = jaxrl.to_gymnax("cartpole")                 as gymnax 1.0: `step` returns six values
    env = jaxrl.to_gymnax("cartpole", legacy=True)    as before 1.0, for PureJaxRL and rejax: five

Environments of one agent have gymnax's methods already. What differs are the classes of the spaces,
and the base class. gymnax is imported when an environment is made.
"""

from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.adapters.to_numpy import derived, resolve_single
from jaxrl.core.env import lift, raw_reset, raw_step
from jaxrl.core.errors import UsageError, require
from jaxrl.core.fields import flag, takes
from jaxrl.core.program_spaces import from_program, program_space, to_program
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, tree_of
from jaxrl.core.types import Key, PyTree

if TYPE_CHECKING:
    from gymnax.environments.environment import Environment


@takes(legacy=flag)
def to_gymnax(env: Any, params: PyTree = None, *, legacy: bool = False) -> "Environment":
    """An environment of gymnax; `env.default_params` are the given parameters.

    gymnax knows no integers that do not count from 0, or that do not lie in a row: its spaces and
    its numbers are those here, and the environment gets and gives its own.

    Args:
        env: an environment of one agent, or its name.
        params: its parameters; None: the default ones.
        legacy: whether `step` returns five values as before gymnax 1.0, with one `done` for both
            kinds of ends. A learner cannot tell a time limit from a real end then.

    Raises:
        UsageError: gymnax is not installed, several agents, actions that are no space of gymnax.
    """
    require("gymnax", "to_gymnax")
    from gymnax.environments import environment, spaces

    env, params = resolve_single(env, params, "to_gymnax")
    parts = jax.tree.leaves(tree_of(env.action_space(params)))
    if any(isinstance(part, MultiDiscrete) for part in parts):
        raise UsageError(
            f"to_gymnax: gymnax has no space for the actions of {env.name}, "
            f"{env.action_space(params)}; allowed: Discrete, Box, Dict, Tuple"
        )
    kind = LegacyGymnaxEnv if legacy else GymnaxEnv
    # rejax copies environments, and modules cannot be copied: this one belongs to the class.
    return derived(kind, environment.Environment, _spaces=spaces)(env, params)


class GymnaxEnv:
    """An environment of gymnax; see `to_gymnax`."""

    _spaces: ModuleType

    def __init__(self, env: Any, params: PyTree):
        self._env, self._lifted, self._params = env, lift(env), params

    @property
    def default_params(self) -> PyTree:
        return self._params

    @property
    def name(self) -> str:
        return self._env.name

    @property
    def num_actions(self) -> int:
        """The number of actions if Discrete, otherwise the size of an action, as in gymnax."""
        space = self._env.action_space(self._params)
        return space.n if isinstance(space, Discrete) else int(np.prod(space.shape))

    def observation_space(self, params: PyTree = None) -> Any:
        return gymnax_space(self._observations(params), self._spaces)

    def action_space(self, params: PyTree = None) -> Any:
        return gymnax_space(self._env.action_space(self._or_default(params)), self._spaces)

    def _observations(self, params: PyTree) -> Space:
        return self._env.observation_space(self._or_default(params))

    def reset_env(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        obs, state = raw_reset(self._lifted, key, params)
        return to_program(self._observations(params), _only_agent(obs), jnp), state

    def step_env(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple:
        """Returns (obs, state, reward, terminated, info), with no reset."""
        action = from_program(self._env.action_space(self._or_default(params)), action, jnp)
        action = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], action)
        raw = raw_step(self._lifted, key, state, action, params)
        obs = to_program(self._observations(params), _only_agent(raw.obs), jnp)
        return obs, raw.state, raw.reward[0], raw.terminated[0], raw.info

    def is_truncated(self, state: PyTree, params: PyTree) -> jax.Array:
        return self._env.is_truncated(state, params)

    def step(
        self, key: Key, state: PyTree, action: PyTree, params: PyTree | None = None
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, jax.Array, dict]:
        """Returns (obs, state, reward, terminated, truncated, info), reset where an episode ended.

        Both flags are never set together, as in `jaxrl.Environment.step`.
        """
        *results, terminated, truncated, info = super().step(key, state, action, params)
        truncated = truncated & ~terminated
        return *results, terminated, truncated, {**info, "truncated": truncated}

    def _or_default(self, params: PyTree) -> PyTree:
        return self._params if params is None else params


class LegacyGymnaxEnv(GymnaxEnv):
    """An environment of gymnax before 1.0; see `to_gymnax`."""

    def step(
        self, key: Key, state: PyTree, action: PyTree, params: PyTree | None = None
    ) -> tuple[PyTree, PyTree, jax.Array, jax.Array, dict]:
        """Returns (obs, state, reward, done, info), reset where an episode ended."""
        *results, terminated, truncated, info = super().step(key, state, action, params)
        return *results, terminated | truncated, info


def gymnax_space(space: Space, spaces: ModuleType) -> Any:
    """A space of jaxrl in the classes of gymnax, or in those of JaxMARL, which are made alike.

    Integers are the program's, from 0 and in a row: the classes have no others. gymnax has no
    MultiDiscrete: observations are a Box of integers there.
    """
    match program_space(space):
        case Discrete(n):
            return spaces.Discrete(n)
        case MultiDiscrete(nvec) if hasattr(spaces, "MultiDiscrete"):
            return spaces.MultiDiscrete(nvec)
        case MultiDiscrete(nvec):
            return spaces.Box(0, np.asarray(nvec) - 1, (len(nvec),), jnp.int32)
        case Box(low, high):
            low, high = (np.asarray(bound, space.dtype) for bound in (low, high))
            return spaces.Box(low, high, space.shape, jnp.dtype(space.dtype))
        case Dict(parts):
            return spaces.Dict({name: gymnax_space(part, spaces) for name, part in parts})
        case Tuple(parts):
            return spaces.Tuple(tuple(gymnax_space(part, spaces) for part in parts))


def _only_agent(values: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0], values)
