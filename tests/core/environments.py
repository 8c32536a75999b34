"""Small environments that keep to the contract: a single agent, three in dicts, two stacked."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import StackedEnvironment
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from jaxrl.core.types import ALL
from tests.probes import OneAgent, SeveralAgents


class Params(struct.PyTreeNode):
    step_size: float = 1.0
    max_steps_in_episode: int = 8


class Place(struct.PyTreeNode):
    position: jax.Array  # f32[]
    time: jax.Array  # i32[]


@dataclass(frozen=True)
class Corridor(OneAgent):
    """A walk from the left third of a corridor to its right end, where the world ends."""

    length: float = 3.0
    observes = Box(-200.0, 200.0, (2,))
    default_params = Params()

    def reset_env(self, key, params):
        state = Place(position=jax.random.uniform(key, maxval=self.length / 3), time=jnp.int32(0))
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        move = jnp.where(action == 1, params.step_size, -params.step_size)
        move = move + 0.1 * jax.random.uniform(key)
        state = Place(position=state.position + move, time=state.time + 1)
        terminated = state.position >= self.length
        reward = jnp.where(terminated, 1.0, -0.1)
        return self.observe(state), state, reward, terminated, {"metrics": {"move": move}}

    def observe(self, state):
        return jnp.stack([state.position, jnp.float32(state.time)])


@dataclass(frozen=True)
class Signposted(Corridor):
    """The corridor seen in parts: a picture of it, signs along it, and place and time."""

    def observation_space(self, params=None):
        signs = Tuple((Discrete(9), MultiDiscrete((2, 9))))
        picture, place = Box(0, 1, (4, 1, 2), "uint8"), Box(-200.0, 200.0, (2,))
        return Dict({"picture": picture, "signs": signs, "place": place})

    def observe(self, state):
        cell = jnp.clip(jnp.int32(state.position), 0, 3)
        picture = jnp.zeros((4, 1, 2), jnp.uint8).at[cell, 0, 0].set(1)
        time = jnp.minimum(state.time, 8)
        return {
            "place": super().observe(state),
            "picture": picture,
            "signs": (time, jnp.stack([time % 2, time])),
        }


class Clock(struct.PyTreeNode):
    time: jax.Array  # i32[]


@dataclass(frozen=True)
class Trio(SeveralAgents):
    """Three agents act until a bell, random in each step, ends the episode.

    `early` leaves after three steps.
    """

    agents = ("early", "left", "right")
    default_params = Params()

    def observation_space(self, agent, params=None):
        return Discrete(1000) if agent == "early" else Box(0.0, jnp.inf, (1,))

    def action_space(self, agent, params=None):
        return Discrete(3) if agent == "early" else Box(-1.0, 1.0, (2,))

    def reset_env(self, key, params):
        return self.observe(jnp.int32(0)), Clock(time=jnp.int32(0))

    def step_env(self, key, state, action, params):
        time = state.time + 1
        reward = {agent: jnp.float32(jnp.sum(action[agent])) for agent in self.agents}
        bell = jax.random.uniform(key) < 0.1
        terminated = {
            "early": time == 3,
            "left": jnp.array(False),
            "right": jnp.array(False),
            ALL: bell,
        }
        active = {"early": time <= 3, "left": jnp.array(True), "right": jnp.array(True)}
        return self.observe(time), Clock(time=time), reward, terminated, {"active": active}

    def observe(self, time):
        return {"early": time, "left": jnp.float32(time)[None], "right": -jnp.float32(-time)[None]}


@dataclass(frozen=True)
class Relay(Trio):
    """As `Trio`, but `left` and `right` act in turns and are rewarded in every step."""

    def acting_agents(self, state, params):
        return {"early": state.time < 3, "left": state.time % 2 == 0, "right": state.time % 2 == 1}

    def step_env(self, key, state, action, params):
        obs, after, reward, terminated, _ = super().step_env(key, state, action, params)
        reward["early"] = jnp.where(state.time < 3, reward["early"], 0.0)
        return obs, after, reward, terminated, {}


@dataclass(frozen=True)
class Pair(SeveralAgents, StackedEnvironment):
    """Two stacked agents: the second leaves in the second step; the first one's end is the last."""

    agents = ("first", "second")
    observes = Box(-100.0, 100.0, (3,))
    default_params = Params()

    def reset_stacked(self, key, params):
        return jnp.zeros((2, 3)), Clock(time=jnp.int32(0))

    def step_stacked(self, key, state, action, params):
        state = Clock(time=state.time + 1)
        obs = jax.random.uniform(key, (2, 3)) + jnp.float32(action)[:, None]
        leaves = jnp.stack([(state.time > 2) & (obs[0, 0] > 1.5), state.time == 2])
        active = jnp.stack([jnp.array(True), state.time <= 2])
        return obs, state, jnp.float32(action), leaves, {"active": active}
