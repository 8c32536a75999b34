"""Seats drawn for each episode: a game in which every player plays every role.

A policy is mapped to players for good. `ShuffledSeats` draws, at each reset, which seat of the game
each player takes, so a policy that plays `player_0` learns to begin and to answer.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import (
    StackedEnvironment,
    acting_agents,
    is_batched,
    is_multi_agent,
    is_stacked,
    raw_reset,
    split_agents,
    stack_agents,
)
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.types import ALL, AgentId, Key, PolicyId, PyTree
from jaxrl.core.wrapped_env import Wrapped

DRAW = 0x73656174  # folded into a reset's key: the game keeps the key that it has without us


class SeatsState(struct.PyTreeNode):
    """A state of the game, and who sits where."""

    inner: PyTree
    seats: jax.Array  # i32[M]  the seat of each player: a number among the game's agents


@dataclasses.dataclass(frozen=True)
class ShuffledSeats(Wrapped, StackedEnvironment):
    """A game of several agents with equal spaces, whose seats are drawn anew for each episode.

    Its agents are "player_0", "player_1" and so on. By default policy "main" plays the first, and
    "opponent" the others.

    Args:
        env: the game; `make("pgx:connect_four")[0]`, say, though Pgx draws who begins itself.

    Raises:
        UsageError: one agent alone, agents of different spaces, or copies in one call.
    """

    env: Any

    def __post_init__(self):
        if not is_multi_agent(self.env) or len(self.env.agents) < 2:
            hint = ": jaxrl.make(NAME)[0] makes one" if isinstance(self.env, str) else ""
            raise UsageError(
                f"ShuffledSeats: {brief(self.env)} must be an environment of several agents{hint}"
            )
        if is_batched(self.env):
            raise UsageError(f"ShuffledSeats: {self.env.name} steps all copies in one call")
        params = self.env.default_params
        for what in ("observation_space", "action_space"):
            spaces = [getattr(self.env, what)(agent, params) for agent in self.env.agents]
            for agent, space in zip(self.env.agents, spaces, strict=True):
                if space != spaces[0]:
                    raise UsageError(
                        f"ShuffledSeats: {what} of {self.env.agents[0]!r} is {spaces[0]}, and that "
                        f"of {agent!r} {space}; seats that are exchanged need equal ones"
                    )

    def __getattr__(self, name: str) -> Any:
        """Masks and turns are those of players."""
        found = super().__getattr__(name)
        if name == "acting_agents":
            return lambda state, params: acting_agents(self.env, state.inner, params)[state.seats]
        return self._action_mask if name == "action_mask" else found

    def _inside(self, state: SeatsState, params: PyTree) -> tuple[PyTree, PyTree]:
        return state.inner, params

    @property
    def agents(self) -> tuple[AgentId, ...]:
        return tuple(f"player_{i}" for i in range(len(self.env.agents)))

    @property
    def default_policies(self) -> dict[PolicyId, tuple[AgentId, ...]]:
        return {"main": self.agents[:1], "opponent": self.agents[1:]}

    def observation_space(self, agent: AgentId | None = None, params: PyTree = None):
        return self.env.observation_space(self.env.agents[0], params)

    def action_space(self, agent: AgentId | None = None, params: PyTree = None):
        return self.env.action_space(self.env.agents[0], params)

    def reset_stacked(self, key: Key, params: PyTree) -> tuple[PyTree, SeatsState]:
        obs, inner = raw_reset(self.env, key, params)
        order = jax.random.permutation(jax.random.fold_in(key, DRAW), len(self.agents))
        seats = order.astype(jnp.int32)
        return self._by_player(obs, seats), SeatsState(inner, seats)

    def step_stacked(self, key: Key, state: SeatsState, action: PyTree, params: PyTree) -> tuple:
        seats = state.seats
        players = jnp.argsort(seats)  # the player of each seat
        by_seat = jax.tree.map(lambda leaf: leaf[players], action)
        if is_stacked(self.env):
            stepped = self.env.step_stacked(key, state.inner, by_seat, params)
        else:
            by_seat = split_agents(self.env, by_seat)
            stepped = self.env.step_env(key, state.inner, by_seat, params)
        obs, inner, reward, terminated, info = stepped
        if isinstance(terminated, dict):
            terminated = stack_agents(self.env, terminated) | terminated[ALL]
        if "active" in info:
            info = {**info, "active": self._by_player(info["active"], seats)}
        obs, reward, terminated = (
            self._by_player(values, seats) for values in (obs, reward, terminated)
        )
        return obs, SeatsState(inner, seats), reward, terminated, info

    def _action_mask(self, state: SeatsState, params: PyTree) -> jax.Array:
        return self._by_player(self.env.action_mask(state.inner, params), state.seats)

    def _by_player(self, values: PyTree, seats: jax.Array) -> PyTree:
        """Values of the game's agents, dicts by agent id or [M, ...], in the players' order."""
        if isinstance(values, dict) and set(values) == set(self.env.agents):
            values = stack_agents(self.env, values)
        return jax.tree.map(lambda leaf: leaf[seats], values)
