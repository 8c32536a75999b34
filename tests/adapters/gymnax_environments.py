"""Environments as users write them for gymnax, before its version 1.0 and since."""

import chex
import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

LIMIT = 6


@struct.dataclass
class WalkState(environment.EnvState):
    position: jax.Array
    time: int


@struct.dataclass
class WalkParams(environment.EnvParams):
    goal: int = 3
    max_steps_in_episode: int = LIMIT


class Walk(environment.Environment):
    """As before gymnax 1.0: `done` holds the time limit, and `discount` is in info.

    Action 1 walks to the goal, where the episode ends; action 0 walks back. Rewards are integers,
    and the clock is a Python number at first.
    """

    @property
    def default_params(self):
        return WalkParams()

    def reset_env(self, key, params):
        state = WalkState(position=jnp.int32(0), time=0)
        return self.get_obs(state), state

    def step_env(self, key, state, action, params):
        state = WalkState(position=state.position + 2 * action - 1, time=state.time + 1)
        reward = jnp.where(state.position >= params.goal, 1, 0)
        info = {"discount": self.discount(state, params)}
        obs = jax.lax.stop_gradient(self.get_obs(state))
        return obs, jax.lax.stop_gradient(state), reward, self.is_terminal(state, params), info

    def get_obs(self, state, params=None, key=None):
        return jnp.stack([state.position, state.time])

    def is_terminal(self, state, params):
        return (state.position >= params.goal) | (state.time >= params.max_steps_in_episode)

    @property
    def num_actions(self):
        return 2

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-jnp.inf, jnp.inf, (2,), jnp.float32)


class WalkOfToday(Walk):
    """As since gymnax 1.0: `terminated` leaves the clock to `is_truncated`."""

    def step_env(self, key, state, action, params):
        obs, state, reward, _, _ = super().step_env(key, state, action, params)
        return obs, state, reward, state.position >= params.goal, {}

    def is_terminated(self, state, params):
        return state.position >= params.goal


@chex.dataclass
class Counted:
    position: chex.Array
    step: chex.Array


@chex.dataclass
class CountedParams:
    goal: int = 3
    max_steps: int = LIMIT


class CountedWalk(Walk):
    """Dataclasses of chex, with other names for the clock and its limit."""

    @property
    def default_params(self):
        return CountedParams()

    def reset_env(self, key, params):
        state = Counted(position=jnp.int32(0), step=jnp.int32(0))
        return self.get_obs(state), state

    def step_env(self, key, state, action, params):
        state = Counted(position=state.position + 2 * action - 1, step=state.step + 1)
        done = (state.position >= params.goal) | (state.step >= params.max_steps)
        return self.get_obs(state), state, jnp.array([0.0]), done, {}

    def get_obs(self, state):
        return jnp.stack([state.position, state.step])


class SizedWalk(Walk):
    """The limit belongs to the object, where gymnax's parameters have none that is used."""

    def __init__(self, max_steps=LIMIT):
        super().__init__()
        self.max_steps = max_steps

    @property
    def default_params(self):
        return WalkParams(max_steps_in_episode=10**6)

    def is_terminal(self, state, params):
        return (state.position >= params.goal) | (state.time >= self.max_steps)


class RecordingWalk(Walk):
    """The limit sizes an array, so no step can be made without it."""

    def __init__(self):
        super().__init__()
        self.max_steps = LIMIT

    def step_env(self, key, state, action, params):
        obs, state, reward, done, _ = super().step_env(key, state, action, params)
        return jnp.zeros(2) * len(range(self.max_steps)) + obs, state, reward, done, {}


class FreeWalk:
    """gymnax's old contract and its spaces, without its base class."""

    default_params = WalkParams()
    reset_env, step_env, get_obs = Walk.reset_env, Walk.step_env, Walk.get_obs
    is_terminal, discount = Walk.is_terminal, Walk.is_terminal
    action_space, observation_space = Walk.action_space, Walk.observation_space


def make_walk():
    return Walk()


ALL = (Walk, WalkOfToday, CountedWalk, SizedWalk, RecordingWalk, FreeWalk)
