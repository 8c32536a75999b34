"""Games and planning problems of Jumanji (https://github.com/instadeepai/jumanji, 1.1).

`make("jumanji:Snake-v1")` makes one. Teams are played by one agent, as by the library's
`MultiToSingleWrapper`: an action for each member, and the sum of their rewards.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.adapters import wrapping
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space, box_of, space_of
from jaxrl.core.types import PyTree

with wrapping.imported("jumanji", "jumanji"):
    import jumanji
    from jumanji import specs
    from jumanji.environments.routing.connector.viewer import ConnectorViewer
    from jumanji.types import StepType
    from jumanji.viewer import MatplotlibViewer, plt

DOWNLOADS = "Sokoban-v0"
MASK = "action_mask"  # an entry of the observation
BATCHES = ("VmapWrapper", "AutoResetWrapper", "VmapAutoResetWrapper")  # what training does itself
DOTS_PER_INCH = 50  # 500 x 500 pixels
WRITERS = ("MazeEnvViewer", "PacManViewer")  # that change arrays as JAX does
IN_UNIT_SQUARE = ("MMSTViewer", "SearchAndRescueViewer")  # that lose the limits of their axes
AXES = {  # of the figures that have others than the usual ones
    "BinPackViewer": lambda figure: figure.add_subplot(projection="3d"),
    "RubiksCubeViewer": lambda figure: figure.subplots(3, 2).ravel(),
}


class Inner(struct.PyTreeNode):
    """A state of Jumanji, and what only its time step holds."""

    state: PyTree
    truncated: jax.Array  # bool[]
    mask: jax.Array | None  # bool[A], where the library has one


@wrapping.constructors("jumanji", lambda: jumanji.registered_environments())
def constructor(name: str) -> wrapping.Maker:
    """The constructor of Jumanji's environment `name`, with its class's plain arguments."""
    if name == DOWNLOADS:
        raise UsageError(f"jumanji environment {name!r} would have to download its levels")
    arguments = {}
    for argument, default in wrapping.defaults_of(type(jumanji.make(name))).items():
        if isinstance(default, int | float) or argument == "time_limit":
            arguments[argument] = default
    return wrapping.Maker(_named, arguments, has_time_limit=False)


def _named(name: str, **args: Any) -> "Jumanji":
    return _wrapped(jumanji.make(name, **args), f"jumanji:{name}", args)


def adapt(name: str | None, make: Any, env: Any) -> "Jumanji":
    """A user's environment of Jumanji, `env`, which `make` is or has made."""
    while type(env).__name__ in BATCHES:
        env = env._env
    return _wrapped(env, wrapping.name_of(name, env.unwrapped), wrapping.made_by(make))


def _wrapped(env: Any, name: str, args: Mapping[str, Any]) -> "Jumanji":
    _, first = jax.eval_shape(env.reset, jax.random.PRNGKey(0))
    kind = MaskedJumanji if MASK in wrapping.by_name(first.observation) else Jumanji
    return kind(env, name, args)


class Jumanji(wrapping.WrappedEnvironment):
    """An environment of Jumanji. Observations are dicts by the library's names of their parts.

    Where the actions are masked jointly (BinPack: 40 spaces x 20 items), each combination is an
    action of its own.
    """

    def __init__(self, env: Any, name: str, args: Mapping[str, Any]):
        super().__init__(name, args)
        self._env = env
        # Compiled as parts, each is traced once, and not for every place that calls it.
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)
        _, first = jax.eval_shape(self._reset, jax.random.PRNGKey(0))
        self._viewer = _viewer(self._env)
        if self._viewer is not None:
            self.render = self._render
        obs = wrapping.by_name(first.observation)
        self._observations = space_of(jax.tree.map(box_of, obs))
        masked = obs[MASK].shape if MASK in obs else ()
        self._action_type = self._env.action_spec.dtype
        self._actions = _converted(self._env.action_spec, masked, self.name)
        # The shape of the combinations, where one mask covers them.
        self._combined = masked if isinstance(self._actions, Discrete) else ()

    def observation_space(self, params: PyTree = None) -> Space:
        return self._observations

    def action_space(self, params: PyTree = None) -> Space:
        return self._actions

    def is_truncated(self, state, params) -> jax.Array:
        return super().is_truncated(state, params) | state.inner.truncated

    def reset_inner(self, key):
        return self._reached(*self._reset(wrapping.raw_key(key)))

    def step_inner(self, key, inner, action):
        if len(self._combined) > 1:
            action = jnp.stack(jnp.unravel_index(action, self._combined))
        state, timestep = self._step(inner.state, action.astype(self._action_type))
        obs, inner = self._reached(state, timestep)
        terminated = (timestep.step_type == StepType.LAST) & ~inner.truncated
        return obs, inner, jnp.float32(jnp.sum(timestep.reward)), terminated, {}

    def _render(self, state: PyTree, params: PyTree) -> jax.Array:
        return self.picture(self._draw, state.inner)

    def _draw(self, inner: Inner) -> np.ndarray:
        # Most viewers look at each number, which is slow in JAX's arrays; two write into them.
        writes = type(self._viewer).__name__ in WRITERS
        state = jax.tree.map(jnp.asarray if writes else np.asarray, inner.state)
        is_connector = isinstance(self._viewer, ConnectorViewer)
        return self._viewer.render(state.grid if is_connector else state)

    def _reached(self, state: PyTree, timestep: Any) -> tuple[PyTree, Inner]:
        obs = wrapping.by_name(timestep.observation)
        # The last step by the clock alone has a discount, where the library tells the two apart.
        truncated = (timestep.step_type == StepType.LAST) & jnp.any(timestep.discount > 0)
        return obs, Inner(state, truncated, jnp.ravel(obs[MASK]) if MASK in obs else None)


class MaskedJumanji(Jumanji):
    """An environment of Jumanji that tells which actions are possible."""

    def action_mask(self, state, params) -> jax.Array:
        return state.inner.mask


def _viewer(env: Any) -> MatplotlibViewer | None:
    """The environment's viewer, made to draw arrays, each in a new figure outside pyplot.

    So no window opens, no figure stays open, and any thread may draw.
    """
    members = vars(env.unwrapped).values()
    viewer = next((member for member in members if isinstance(member, MatplotlibViewer)), None)
    if viewer is None:
        return None
    kind = type(viewer).__name__
    add_axes = AXES.get(kind, lambda figure: figure.add_subplot())

    def figure_and_axes(**settings):
        figure = plt.Figure(viewer.figure_size, DOTS_PER_INCH, layout="constrained", **settings)
        return figure, add_axes(figure)

    def shown(figure):
        if kind in IN_UNIT_SQUARE:
            figure.axes[0].set(xlim=(0, 1), ylim=(0, 1))
        return wrapping.pixels_of(figure)

    viewer._get_fig_ax, viewer._display = figure_and_axes, shown
    return viewer


def _converted(spec: Any, masked: tuple[int, ...], name: str) -> Space:
    """Our space for the library's actions, whose mask has the shape `masked`."""
    if isinstance(spec, specs.DiscreteArray):
        return Discrete(int(spec.num_values))
    is_integer = jnp.issubdtype(spec.dtype, jnp.integer)
    if isinstance(spec, specs.BoundedArray) and not is_integer:
        low, high = np.asarray(spec.minimum), np.asarray(spec.maximum)
        return Box(low, high, spec.shape, np.dtype(spec.dtype).name)
    counts = tuple(np.ravel(getattr(spec, "num_values", ())).tolist())
    if masked == counts:
        return Discrete(math.prod(counts))
    if len(masked) == 2 and masked[:1] == spec.shape:  # a row for each member of a team
        return MultiDiscrete((masked[1],) * masked[0])
    if counts and not masked:
        return MultiDiscrete(counts)
    raise UsageError(f"{name}: actions of {spec} with a mask of shape {masked} are not supported")
