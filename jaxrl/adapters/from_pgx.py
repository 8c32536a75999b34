"""Board and card games, and MinAtar, of Pgx (https://github.com/sotetsuk/pgx, 2.6).

`make("pgx:connect_four")` makes one. Games of several players are turn-based: the player to move
acts, the others wait.
"""

import inspect
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.adapters.wrapping import (
    TRUNCATES,
    Wrapped,
    WrappedEnvironment,
    WrappedMultiAgent,
    all_ended,
    box_of,
    constructor_with,
    import_error,
    raw_key,
    require_known,
)
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Discrete, Space
from jaxrl.core.types import DEFAULT_POLICY, PyTree

try:
    import pgx
except ImportError as error:
    raise import_error("pgx", "pgx", error) from error

NEEDS_DATA = "bridge_bidding"
NAMED_BY_SIZE = {"go_9x9": 9, "go_19x19": 19}  # so the size is no argument


def constructor(name: str) -> Any:
    """The constructor of Pgx's game `name`, with the arguments of its class."""
    if name == NEEDS_DATA:
        raise UsageError(f"pgx environment {name!r} needs hands that Pgx would have to download")
    require_known("pgx", name, pgx.available_envs())
    game = pgx.make(name)
    arguments = {
        argument: parameter.default
        for argument, parameter in inspect.signature(type(game)).parameters.items()
        if not (argument == "size" and name in NAMED_BY_SIZE)
    }
    kind = PgxSolo if game.num_players == 1 else PgxGame
    return constructor_with(lambda **args: kind(name, **args), arguments)


class _Pgx(Wrapped):
    """What both kinds share. The state is Pgx's, without a time limit; Pgx truncates nothing."""

    def __init__(self, name: str, time_limit: str = TRUNCATES, **args: Any):
        size = {"size": NAMED_BY_SIZE[name]} if name in NAMED_BY_SIZE else {}
        try:
            self._game = type(pgx.make(name))(**size, **args)
            # Compiled as parts, each is traced once, and not for every place that calls it.
            self._init, self._play = jax.jit(self._game.init), jax.jit(self._game.step)
            self._first = jax.eval_shape(self._init, jax.random.PRNGKey(0))
        except Exception as error:
            raise UsageError(f"environment pgx:{name}: {args} are refused: {error!r}") from error
        super().__init__(f"pgx:{name}", args, time_limit=time_limit)

    def _observation(self) -> Space:
        return box_of(self._first.observation)

    def _actions(self) -> Space:
        return Discrete(self._first.legal_action_mask.shape[0])

    def _step(self, key: jax.Array, inner: PyTree, action: jax.Array) -> PyTree:
        return self._play(inner, action, raw_key(key))


class PgxSolo(_Pgx, WrappedEnvironment):
    """A game of one player: 2048 and MinAtar."""

    def observation_space(self, params: PyTree = None) -> Space:
        return self._observation()

    def action_space(self, params: PyTree = None) -> Space:
        return self._actions()

    def reset_inner(self, key):
        inner = self._init(raw_key(key))
        return inner.observation, inner

    def step_inner(self, key, inner, action):
        inner = self._step(key, inner, action)
        return inner.observation, inner, inner.rewards[0], inner.terminated, {}

    def action_mask(self, state, params) -> jax.Array:
        return state.inner.legal_action_mask


class PgxGame(_Pgx, WrappedMultiAgent):
    """A game of several players, "player_0" and so on. Who begins is drawn, as Pgx does.

    All share a policy by default. What waiting players observe is their view of the board.
    """

    def __init__(self, name: str, time_limit: str = TRUNCATES, **args: Any):
        super().__init__(name, time_limit, **args)
        self.agents = tuple(f"player_{index}" for index in range(self._game.num_players))

    @property
    def default_policies(self) -> dict[str, tuple[str, ...]]:
        return {DEFAULT_POLICY: self.agents}

    def observation_space(self, agent: str, params: PyTree = None) -> Space:
        return self._observation()

    def action_space(self, agent: str, params: PyTree = None) -> Space:
        return self._actions()

    def acting_agents(self, state, params) -> dict[str, jax.Array]:
        return self._by_player(lambda index: state.inner.current_player == index)

    def action_mask(self, state, params) -> dict[str, jax.Array]:
        """The mask of the player to move, for all: a waiting player's is not used."""
        return dict.fromkeys(self.agents, state.inner.legal_action_mask)

    def reset_inner(self, key):
        inner = self._init(raw_key(key))
        return self._views(inner), inner

    def step_inner(self, key, inner, action):
        moves = jnp.stack([action[agent] for agent in self.agents])
        inner = self._step(key, inner, moves[inner.current_player])
        rewards = self._by_player(lambda index: inner.rewards[index])
        return self._views(inner), inner, rewards, all_ended(inner.terminated, self.agents), {}

    def _views(self, inner: PyTree) -> dict[str, jax.Array]:
        # The public `observe` warns that it will not take a player in the future.
        return self._by_player(lambda index: self._game._observe(inner, jnp.int32(index)))

    def _by_player(self, value: Any) -> dict[str, Any]:
        return {agent: value(index) for index, agent in enumerate(self.agents)}
