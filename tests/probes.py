"""Probe environments: each tests a single part of training, and is learned in seconds.

After the idea of probe environments by Jones (2021), "Debugging reinforcement learning systems
without the agonizing pain": value only, discount, action, observation, a continuous action; with a
time limit that must bootstrap and agents that leave.
"""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import Environment, MultiAgentEnvironment
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl.core.types import ALL


class Curious(nn.Module):
    """For CartPole: predicts the next observation, and is paid for what it did not foresee."""

    @nn.compact
    def __call__(self, obs):
        predicted = nn.Dense(4)(obs)
        hidden = nn.tanh(nn.Dense(8)(obs))
        return nn.Dense(2)(hidden), nn.Dense(1)(hidden), predicted

    def apply(self, params, obs):
        return super().apply(params, obs)[:2]

    def error(self, params, obs, next_obs):
        predicted = super().apply(params, obs)[2]
        return jnp.mean((predicted - next_obs) ** 2, axis=-1)

    def intrinsic_reward(self, params, trajectory):
        return self.error(params, trajectory.obs, trajectory.next_obs)

    def loss(self, params, batch):
        error = self.error(params, batch.obs, batch.next_obs)
        return jnp.sum(batch.weight * error) / jnp.maximum(batch.weight.sum(), 1.0), {}


class State(struct.PyTreeNode):
    time: jax.Array  # i32[]
    cue: jax.Array  # i32[], or f32[] of a continuous probe, or i32[4] of `Forbidden`


class Params(struct.PyTreeNode):
    max_steps_in_episode: int = 1_000_000


class OneAgent(Environment):
    """An environment of one agent whose spaces and time limit are attributes of its class.

    If it does not say otherwise, it observes a number, chooses one of two actions, and has no time
    limit that an episode meets.
    """

    observes = Box(0.0, 1.0, (1,))
    acts = Discrete(2)
    time_limit = 1_000_000

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=self.time_limit)

    def observation_space(self, params=None):
        return self.observes

    def action_space(self, params=None):
        return self.acts


class SeveralAgents(MultiAgentEnvironment):
    """As `OneAgent`, with the same spaces for all agents."""

    observes, acts, time_limit = OneAgent.observes, OneAgent.acts, OneAgent.time_limit
    default_params = OneAgent.default_params

    def observation_space(self, agent, params=None):
        return self.observes

    def action_space(self, agent, params=None):
        return self.acts

    def nobody_ends(self):
        return dict.fromkeys((*self.agents, ALL), jnp.array(False))


PAID_FOR = ("nothing", "action", "cue")


class ProbeParams(struct.PyTreeNode):
    num_steps: int = 1  # 3 at most
    paid_for: int = 0  # an index of PAID_FOR
    shown: bool = True
    ends: bool = True
    max_steps_in_episode: int = 1_000_000


@dataclass(frozen=True)
class Probe(OneAgent):
    """An episode of `num_steps` steps that terminates, with a random cue, shown if `shown`.

    reward_for: "nothing" (1 at the end for any action), "action" (1 for action 1), or "cue" (1 for
    repeating it). Unless it `ends`, the last of these steps is repeated until the time limit, which
    is not observed.

    All four are parameters: one program trains probes of any.
    """

    num_steps: int = 1
    reward_for: str = "nothing"
    shown: bool = True
    ends: bool = True
    observes = Discrete(6)

    @property
    def default_params(self) -> ProbeParams:
        return ProbeParams(self.num_steps, PAID_FOR.index(self.reward_for), self.shown, self.ends)

    def reset_env(self, key, params):
        state = State(jnp.int32(0), jax.random.bernoulli(key).astype(jnp.int32))
        return self._observe(state, params), state

    def step_env(self, key, state, action, params):
        last = state.time >= params.num_steps - 1
        rewards = jnp.stack([last, action == 1, action == state.cue])
        reward = rewards[params.paid_for].astype(jnp.float32)
        state = state.replace(time=state.time + 1)
        return self._observe(state, params), state, reward, last & params.ends, {}

    def _observe(self, state, params):
        time = jnp.minimum(state.time, params.num_steps - 1)
        return 2 * time + jnp.where(params.shown, state.cue, 0)


@dataclass(frozen=True)
class Endless(OneAgent):
    """Reward 1 on every step; only the time limit, which is not observed, ends an episode.

    With gamma 0.5 every state is worth 2; a time limit treated as a real end would make it less.
    """

    time_limit = 2

    def reset_env(self, key, params):
        return jnp.ones(1), State(jnp.int32(0), jnp.int32(0))

    def step_env(self, key, state, action, params):
        return jnp.ones(1), state.replace(time=state.time + 1), jnp.float32(1), jnp.array(False), {}


@dataclass(frozen=True)
class Watch(OneAgent):
    """Observes the time; the reward is 10 times it; action 1 terminates, and 3 steps truncate."""

    observes = Box(0.0, 3.0, (1,))
    time_limit = 3

    def reset_env(self, key, params):
        return jnp.zeros(1), State(jnp.int32(0), jnp.int32(0))

    def step_env(self, key, state, action, params):
        time = state.time + 1
        info = {"metrics": {"late": 1.0 * time}}
        obs, state = time.astype(jnp.float32)[None], state.replace(time=time)
        return obs, state, 10.0 * time, action == 1, info


@dataclass(frozen=True)
class Plain(OneAgent):
    """A walk on a line without ends, from [-1, 1]: a step costs 1 and a tenth of the place.

    Only the time limit ends an episode. Standing still earns -25.5, walking away throughout -38.
    """

    observes = Box(-100.0, 100.0, (1,))
    acts = Discrete(3)
    time_limit = 25

    def reset_env(self, key, params):
        place = jax.random.uniform(key, minval=-1.0, maxval=1.0)
        return place[None], State(jnp.int32(0), place)

    def step_env(self, key, state, action, params):
        place = state.cue + 0.4 * (action - 1.0)
        reward = -1.0 - 0.1 * jnp.abs(place)
        return place[None], State(state.time + 1, place), reward, jnp.array(False), {}


class TargetParams(struct.PyTreeNode):
    offset: float = 0.0
    max_steps_in_episode: int = 1_000_000


@dataclass(frozen=True)
class Target(OneAgent):
    """One step: the observation encodes a target in [2, 8], and the action is a guess in [0, 10].

    The observation is within `offset` +- 1; the reward is minus the distance to the target.
    """

    observes = Box(-1e6, 1e6, (1,))
    acts = Box(0.0, 10.0, (1,))

    @property
    def default_params(self) -> TargetParams:
        return TargetParams()

    def reset_env(self, key, params):
        place = jax.random.uniform(key, minval=-1.0, maxval=1.0)
        return (params.offset + place)[None], State(jnp.int32(0), place)

    def step_env(self, key, state, action, params):
        reward = -jnp.abs(action[0] - (5.0 + 3.0 * state.cue))
        obs = (params.offset + state.cue)[None]
        return obs, state.replace(time=state.time + 1), reward, jnp.array(True), {}


@dataclass(frozen=True)
class Leavers(SeveralAgents):
    """Three agents of different spaces; `short` leaves after the first of four steps.

    `short` is rewarded for action 1. After it has left, its observation and reward are garbage that
    must not be learned from. `nan`: `wide` leaves too, and its observations are then NaN.
    """

    agents: tuple[str, ...] = ("short", "long", "wide")
    nan: bool = False
    time_limit = 4

    def observation_space(self, agent, params=None):
        return Box(-1e3, 1e3, (2,)) if agent == "wide" else Discrete(4)

    def action_space(self, agent, params=None):
        return Discrete(3 if agent == "wide" else 2)

    def reset_env(self, key, params):
        state = State(jnp.int32(0), jnp.int32(0))
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        first = state.time == 0
        reward = {
            "short": jnp.where(first, action["short"] == 1, -100.0 * action["short"]).astype(
                jnp.float32
            ),
            "long": (action["long"] == 1).astype(jnp.float32),
            "wide": (action["wide"] == 2).astype(jnp.float32),
        }
        wide = first | (not self.nan)
        terminated = {
            "short": first,
            "long": jnp.array(False),
            "wide": first & self.nan,
            ALL: jnp.array(False),
        }
        active = {"short": first, "long": jnp.array(True), "wide": wide}
        state = state.replace(time=state.time + 1)
        return self._observe(state), state, reward, terminated, {"active": active}

    def _observe(self, state):
        time = jnp.minimum(state.time, 3)
        angle = jnp.where(self.nan & (time > 0), jnp.nan, 1.0 * time)
        return {"short": time, "long": time, "wide": jnp.stack([jnp.cos(angle), jnp.sin(angle)])}


@dataclass(frozen=True)
class Crowd(SeveralAgents):
    """`count` equal agents, each of which observes a place that it and its neighbour move.

    Places and actions are two numbers. An agent is rewarded for an action near its place.
    """

    count: int = 2
    observes = Box(-1e3, 1e3, (2,))
    acts = Box(-1.0, 1.0, (2,))
    time_limit = 6

    @property
    def agents(self):
        return tuple(f"one_{i}" for i in range(self.count))

    def reset_env(self, key, params):
        state = State(jnp.int32(0), 3.0 * jax.random.normal(key, (self.count, 2)) + 5.0)
        return self._by_agent(state.cue), state

    def step_env(self, key, state, action, params):
        moves = jnp.stack([action[agent] for agent in self.agents])
        reward = -jnp.abs(moves - 0.1 * state.cue).sum(axis=-1)
        noise = 0.1 * jax.random.normal(key, moves.shape)
        place = state.cue + moves + 0.1 * jnp.roll(moves, 1, axis=0) + noise
        state = State(state.time + 1, place)
        return self._by_agent(place), state, self._by_agent(reward), self.nobody_ends(), {}

    def _by_agent(self, rows):
        return {agent: rows[i] for i, agent in enumerate(self.agents)}


@dataclass(frozen=True)
class Recall(OneAgent):
    """A cue is shown only at the first step; the last action is rewarded for repeating it.

    Without memory the best mean return is a half.
    """

    num_steps: int = 5
    observes = Discrete(3)

    def reset_env(self, key, params):
        state = State(jnp.int32(0), jax.random.bernoulli(key).astype(jnp.int32))
        return state.cue, state

    def step_env(self, key, state, action, params):
        last = state.time == self.num_steps - 1
        reward = (last & (action == state.cue)).astype(jnp.float32)
        state = state.replace(time=state.time + 1)
        return jnp.int32(2), state, reward, last, {}


@dataclass(frozen=True)
class Forbidden(OneAgent):
    """Episodes of a single step in which two random actions of four are possible, and observed.

    The larger of the two is rewarded. told: "mask" (by `action_mask`), "part" (by a part of the
    observation), or None: another action only loses the reward. The metric "forbidden" counts such
    actions.
    """

    told: str | None = "mask"
    acts = Discrete(4)

    def observation_space(self, params=None):
        shown = MultiDiscrete((2, 2, 2, 2))
        return (
            Dict({"observation": shown, "action_mask": Box(0, 1, (4,), "bool")})
            if self.told == "part"
            else shown
        )

    def reset_env(self, key, params):
        first, second = jax.random.choice(key, 4, (2,), replace=False)
        state = State(jnp.int32(0), jnp.zeros(4, jnp.int32).at[jnp.stack([first, second])].set(1))
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        best = 3 - jnp.argmax(state.cue[::-1])
        metrics = {"forbidden": 1.0 - state.cue[action]}
        state = state.replace(time=state.time + 1)
        reward = (action == best).astype(jnp.float32)
        return self._observe(state), state, reward, jnp.array(True), {"metrics": metrics}

    def _observe(self, state):
        if self.told == "part":
            return {"observation": state.cue, "action_mask": state.cue == 1}
        return state.cue

    def __getattr__(self, name):
        if name == "action_mask" and self.told == "mask":
            return lambda state, params: state.cue == 1
        raise AttributeError(name)


@dataclass(frozen=True)
class Twins(SeveralAgents):
    """Two agents with equal observations, rewarded for different actions: agent i for action i."""

    agents: tuple[str, ...] = ("first", "second")
    time_limit = 2

    def reset_env(self, key, params):
        return {agent: jnp.ones(1) for agent in self.agents}, State(jnp.int32(0), jnp.int32(0))

    def step_env(self, key, state, action, params):
        obs = {agent: jnp.ones(1) for agent in self.agents}
        reward = {
            agent: (action[agent] == i).astype(jnp.float32) for i, agent in enumerate(self.agents)
        }
        return obs, state.replace(time=state.time + 1), reward, self.nobody_ends(), {}


@dataclass(frozen=True)
class Turns(SeveralAgents):
    """A game of two moves: a, then b, then the end, at which a gets reward 1 and b gets 2."""

    agents: tuple[str, ...] = ("a", "b")
    observes = Discrete(2)

    def acting_agents(self, state, params):
        return {"a": state.time == 0, "b": state.time == 1}

    def reset_env(self, key, params):
        return {"a": jnp.int32(0), "b": jnp.int32(0)}, State(jnp.int32(0), jnp.int32(0))

    def step_env(self, key, state, action, params):
        last = state.time == 1
        state = state.replace(time=state.time + 1)
        reward = {"a": 1.0 * last, "b": 2.0 * last}
        terminated = {"a": last, "b": last, ALL: last}
        return {"a": jnp.int32(1), "b": jnp.int32(1)}, state, reward, terminated, {}


@dataclass(frozen=True)
class Joining(SeveralAgents):
    """`late` joins in the third of seven steps and pauses in the fifth; then the time limit.

    So does any agent but `early`.

    An agent that acts observes 1 and gets reward 1 in each step. `late` observes 100 while it
    waits, and gets reward 10 in its pause.
    """

    agents: tuple[str, ...] = ("early", "late")
    observes = Box(0.0, 100.0, (1,))
    time_limit = 7

    def acting_agents(self, state, params):
        late = (state.time >= 2) & (state.time != 4)
        return dict.fromkeys(self.agents, late) | {"early": jnp.array(True)}

    def reset_env(self, key, params):
        state = State(jnp.int32(0), jnp.int32(0))
        return self._observe(state, params), state

    def step_env(self, key, state, action, params):
        late = jnp.where(state.time == 4, 10.0, jnp.float32(state.time >= 2))
        reward = dict.fromkeys(self.agents, late) | {"early": jnp.float32(1)}
        state = state.replace(time=state.time + 1)
        return self._observe(state, params), state, reward, self.nobody_ends(), {}

    def _observe(self, state, params):
        acting = self.acting_agents(state, params)
        return {agent: jnp.where(acting[agent], 1.0, 100.0)[None] for agent in self.agents}


LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


class Board(struct.PyTreeNode):
    cells: jax.Array  # i32[9]: 0 empty, 1 of x, 2 of o
    time: jax.Array  # i32[]


@dataclass(frozen=True)
class TicTacToe(SeveralAgents):
    """Tic-tac-toe of x and o in turns: 1 for three in a row, -1 for the opponent's, 0 for a draw.

    Both observe their marks, then the opponent's.
    """

    agents: tuple[str, ...] = ("x", "o")
    observes = Box(0.0, 1.0, (2, 9))
    acts = Discrete(9)

    def acting_agents(self, state, params):
        return {"x": state.time % 2 == 0, "o": state.time % 2 == 1}

    def action_mask(self, state, params):
        return {agent: state.cells == 0 for agent in self.agents}

    def reset_env(self, key, params):
        state = Board(jnp.zeros(9, jnp.int32), jnp.int32(0))
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        mark = 1 + state.time % 2
        move = jnp.where(mark == 1, action["x"], action["o"])
        cells = state.cells.at[move].set(mark)
        won = jnp.any(jnp.all(cells[jnp.array(LINES)] == mark, axis=1))
        over = won | jnp.all(cells != 0)
        reward = jnp.where(won, 1.0, 0.0)
        rewards = {
            "x": jnp.where(mark == 1, reward, -reward),
            "o": jnp.where(mark == 2, reward, -reward),
        }
        state = Board(cells, state.time + 1)
        return self.observe(state), state, rewards, {"x": over, "o": over, ALL: over}, {}

    def observe(self, state):
        x, o = jnp.float32(state.cells == 1), jnp.float32(state.cells == 2)
        return {"x": jnp.stack([x, o]), "o": jnp.stack([o, x])}
