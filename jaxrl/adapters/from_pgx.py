"""Board and card games, and MinAtar, of Pgx (https://github.com/sotetsuk/pgx, 2.6).

`make("pgx:connect_four")` makes one. Games of several players are turn-based: the player to move
acts, the others wait.
"""

import importlib.util
import io
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from jaxrl.adapters import wrapping
from jaxrl.core.errors import UsageError, is_installed
from jaxrl.core.fields import count
from jaxrl.core.spaces import Discrete, Space, box_of
from jaxrl.core.types import DEFAULT_POLICY, PyTree

with wrapping.imported("pgx", "pgx"):
    import pgx

NEEDS_DATA = "bridge_bidding"
TILE = 20  # pixels of a cell of MinAtar
# Of MinAtar's kinds of things, each painted over the ones before.
COLOURS = (
    *((31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189)),
    *((188, 189, 34), (227, 119, 194), (140, 86, 75), (23, 190, 207), (255, 255, 255)),
)
NAMED_BY_SIZE = {"go_9x9": 9, "go_19x19": 19}  # so the size is no argument


@wrapping.constructors("pgx", lambda: [*pgx.available_envs(), NEEDS_DATA])
def constructor(name: str) -> wrapping.Maker:
    """The constructor of Pgx's game `name`, with the arguments of its class."""
    if name == NEEDS_DATA:
        raise UsageError(f"pgx environment {name!r} needs hands that Pgx would have to download")
    arguments = wrapping.defaults_of(type(pgx.make(name)))
    if name in NAMED_BY_SIZE:
        del arguments["size"]
    return wrapping.Maker(_named, arguments)


def _named(name: str, **args: Any) -> "_Pgx":
    game_args = dict(args)
    if name in NAMED_BY_SIZE:
        game_args["size"] = NAMED_BY_SIZE[name]
    game = type(pgx.make(name))(**game_args)
    return _wrapped(game, f"pgx:{name}", args)


def adapt(name: str | None, make: Any, env: Any) -> "_Pgx":
    """A user's game of Pgx, `env`, which `make` is or has made."""
    return _wrapped(env, name or str(env.id), wrapping.made_by(make))


def _wrapped(game: Any, name: str, args: Mapping[str, Any]) -> "_Pgx":
    count()(f"environment {name!r}: num_players", game.num_players)
    kind = PgxSolo if game.num_players == 1 else PgxGame
    return kind(game, name, args)


class _Pgx(wrapping.Wrapped):
    """A game of Pgx, for both kinds. The state is Pgx's; only users' games have a time limit."""

    def __init__(self, game: Any, name: str, args: Mapping[str, Any]):
        super().__init__(name, args)
        self._game = game
        # Compiled as parts, each is traced once, and not for every place that calls it.
        self._init, self._play = jax.jit(game.init), jax.jit(game.step)
        self._first = jax.eval_shape(self._init, jax.random.PRNGKey(0))
        if str(game.id).startswith("minatar"):
            self.render = self._render_cells
        elif is_installed("resvg_py"):
            self.render = self._render_board

    def is_truncated(self, state: PyTree, params: PyTree) -> jax.Array:
        return super().is_truncated(state, params) | state.inner.truncated

    def _observation(self) -> Space:
        return box_of(self._first.observation)

    def _actions(self) -> Space:
        return Discrete(self._first.legal_action_mask.shape[0])

    def _step(self, key: jax.Array, inner: PyTree, action: jax.Array) -> PyTree:
        return self._play(inner, action, wrapping.raw_key(key))

    def _render_cells(self, state: PyTree, params: PyTree) -> jax.Array:
        return _cells(state.inner.observation)

    def _render_board(self, state: PyTree, params: PyTree) -> jax.Array:
        return self.picture(_board, state.inner)


class PgxSolo(_Pgx, wrapping.WrappedEnvironment):
    """A game of one player: 2048 and MinAtar."""

    def observation_space(self, params: PyTree = None) -> Space:
        return self._observation()

    def action_space(self, params: PyTree = None) -> Space:
        return self._actions()

    def reset_inner(self, key):
        inner = self._init(wrapping.raw_key(key))
        return inner.observation, inner

    def step_inner(self, key, inner, action):
        inner = self._step(key, inner, action)
        return inner.observation, inner, inner.rewards[0], inner.terminated, {}

    def action_mask(self, state, params) -> jax.Array:
        return state.inner.legal_action_mask


class PgxGame(_Pgx, wrapping.WrappedMultiAgent):
    """A game of several players, "player_0" and so on. Who begins is drawn, as Pgx does.

    All share a policy by default. What waiting players observe is their view of the board.
    """

    def __init__(self, game: Any, name: str, args: Mapping[str, Any]):
        super().__init__(game, name, args)
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
        inner = self._init(wrapping.raw_key(key))
        return self._views(inner), inner

    def step_inner(self, key, inner, action):
        moves = jnp.stack([action[agent] for agent in self.agents])
        inner = self._step(key, inner, moves[inner.current_player])
        rewards = self._by_player(lambda index: inner.rewards[index])
        ended = wrapping.all_ended(inner.terminated, self.agents)
        return self._views(inner), inner, rewards, ended, {}

    def _views(self, inner: PyTree) -> dict[str, jax.Array]:
        # The public `observe` warns that it will not take a player in the future.
        return self._by_player(lambda index: self._game._observe(inner, jnp.int32(index)))

    def _by_player(self, value: Any) -> dict[str, Any]:
        return {agent: value(index) for index, agent in enumerate(self.agents)}


def _cells(things: jax.Array) -> jax.Array:
    """u8[H, W, 3]: the things of MinAtar, bool[10, 10, C], on black."""
    picture = jnp.zeros((*things.shape[:2], 3), jnp.uint8)
    for channel in range(things.shape[2]):
        colour = jnp.array(COLOURS[channel], jnp.uint8)
        picture = jnp.where(things[..., channel, None], colour, picture)
    return picture.repeat(TILE, 0).repeat(TILE, 1)


def _board(inner: PyTree) -> np.ndarray:
    """u8[H, W, 3]: Pgx's own drawing of a state, in SVG, as pixels."""
    import resvg_py

    # Some of the drawings write into the state's arrays, as only JAX's let them.
    svg = jax.tree.map(jnp.asarray, inner).to_svg()
    # Where a computer has no fonts: matplotlib's.
    (matplotlib,) = importlib.util.find_spec("matplotlib").submodule_search_locations
    png = resvg_py.svg_to_bytes(
        svg_string=svg,
        font_dirs=[f"{matplotlib}/mpl-data/fonts/ttf"],
        **dict.fromkeys(("font_family", "serif_family", "sans_serif_family"), "DejaVu Sans"),
        monospace_family="DejaVu Sans Mono",
    )
    return np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGB"))
