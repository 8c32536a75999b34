"""Multi-agent environments of JaxMARL (https://github.com/FLAIROx/JaxMARL, 0.2).

`make("jaxmarl:MPE_simple_spread_v3")` makes one. The library has one flag for all ends; here those
by the rules terminate and those by the clock truncate.
"""

import contextlib
import copy
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.adapters import wrapping
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import without
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete, Space, box_of, space_of
from jaxrl.core.types import ALL, DEFAULT_POLICY, AgentId, PyTree

# The import replaces both streams, which would silence a notebook: they are put back.
with (
    wrapping.imported("jaxmarl", "jaxmarl"),
    contextlib.redirect_stdout(sys.stdout),
    contextlib.redirect_stderr(sys.stderr),
):
    import jaxmarl
    from jaxmarl.environments import spaces
    from jaxmarl.environments.multi_agent_env import MultiAgentEnv
    from jaxmarl.environments.overcooked import overcooked_layouts
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO
    from jaxmarl.registration import registered_envs
    from jaxmarl.viz.overcooked_v2_visualizer import OvercookedV2Visualizer
    from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer


def _alive(env: Any, state: PyTree) -> jax.Array:
    return getattr(state, "state", state).unit_alive[: len(env.agents)]


def _to_move(env: Any, state: PyTree) -> jax.Array:
    return state.cur_player_idx[jnp.argsort(state.seat_order)] > 0


def _discs(places, radii, colours, low, high) -> jax.Array:
    """u8[H, W, 3]: discs on white between the corners `low` and `high`, with y upwards."""
    step = (np.asarray(high) - np.asarray(low)) / PIXELS
    x, y = (low[i] + step[i] * (np.arange(PIXELS) + 0.5) for i in range(2))

    def add(picture, disc):
        (centre_x, centre_y), radius, colour = disc
        distance = jnp.hypot(x[None, :] - centre_x, y[::-1, None] - centre_y)
        share = jnp.clip(0.5 + (radius - distance) / step[0], 0.0, 1.0)[..., None]
        return picture * (1 - share) + colour * share, None

    white = jnp.full((PIXELS, PIXELS, 3), 255.0)
    discs = jnp.asarray(places), jnp.asarray(radii), jnp.asarray(colours, jnp.float32)
    return jnp.round(jax.lax.scan(add, white, discs)[0]).astype(jnp.uint8)


def _draw_particles(adapter: "JaxMARL", state: PyTree) -> jax.Array:
    env = adapter._env
    # Some have an opacity as a fourth number; simple_push gives its landmarks one, near black.
    colours = [np.resize(colour, 3) for colour in env.colour[: env.num_entities]]
    return _discs(state.p_pos, env.rad, colours, (-2.0, -2.0), (2.0, 2.0))


def _draw_battle(adapter: "JaxMARL", state: PyTree) -> jax.Array:
    env, state = getattr(adapter._env, "_env", adapter._env), getattr(state, "state", state)
    radii = jnp.where(state.unit_alive, env.unit_type_radiuses[state.unit_types], -1.0)
    colours = [ALLY] * env.num_allies + [ENEMY] * env.num_enemies
    corner = (float(env.map_width), float(env.map_height))
    return _discs(state.unit_positions, radii, colours, (0.0, 0.0), corner)


def _draw_kitchen(adapter: "JaxMARL", state: PyTree) -> jax.Array:
    padding = adapter._env.agent_view_size - 1  # around the map

    def draw(state):
        state = jax.tree.map(np.asarray, state)
        return OvercookedVisualizer._render_grid(
            state.maze_map[padding:-padding, padding:-padding],
            agent_dir_idx=state.agent_dir_idx,
            agent_inv=state.agent_inv,
        )

    return adapter.picture(draw, state)


def _draw_second_kitchen(adapter: "JaxMARL", state: PyTree) -> jax.Array:
    return OvercookedV2Visualizer()._render_state(state).astype(jnp.uint8)


def _draw_coins(adapter: "JaxMARL", state: PyTree) -> jax.Array:
    places = [state.red_pos, state.blue_pos, state.red_coin_pos, state.blue_coin_pos]
    places = jnp.stack([jnp.ravel(place) for place in places]) + 0.5
    radii = jnp.array([0.4, 0.4, 0.2, 0.2])
    return _discs(places, radii, [RED, BLUE, PALE_RED, PALE_BLUE], (0.0, 0.0), (3.0, 3.0))


def _draw_riddle(adapter: "JaxMARL", state: PyTree) -> jax.Array:
    """The bulb above a row of prisoners: who is in the room is large, who has been there is red."""
    number = len(adapter.agents)
    row = jnp.arange(number)
    places = jnp.stack([row + 0.5, jnp.full(number, number / 3)], 1)
    places = jnp.concatenate([places, jnp.array([[number / 2, number * 3 / 4]])])
    radii = jnp.where(row == state.agent_in_room, 0.45, 0.25)
    has_been = jnp.asarray(state.has_been).astype(bool)[:, None]
    colours = jnp.where(has_been, jnp.array([RED]), jnp.array([GREY]))
    bulb = jnp.where(jnp.asarray(state.bulb_state).astype(bool), jnp.array(YELLOW), jnp.array(GREY))
    radii, colours = jnp.append(radii, 0.1 * number), jnp.concatenate([colours, bulb[None]])
    return _discs(places, radii, colours, (0.0, 0.0), (float(number), float(number)))


def _draw_storm(adapter: "JaxMARL", state: PyTree) -> jax.Array:
    """The picture without the bars of the time, which the library cannot draw with NumPy 2."""
    draw = lambda state: adapter._env.render(state.replace(step=0, outer_t=0))
    return adapter.picture(draw, state)


def _draw_rooms(adapter: "JaxMARL", state: PyTree) -> jax.Array:
    from matplotlib.figure import Figure

    def draw(state):
        figure = Figure(figsize=(4, 4))
        adapter._env.init_render(figure.subplots(), state, lidar=False)
        return wrapping.pixels_of(figure)

    return adapter.picture(draw, state)


class Family(NamedTuple):
    """Properties for which JaxMARL's environments have no common interface."""

    extra_steps: int | None  # that an episode lasts beyond `max_steps`; None: it has no such limit
    by_rules: bool  # whether anything but the clock ends an episode
    acting: Callable[[Any, PyTree], jax.Array] | None = None  # bool[M], where some may wait
    masks: str = ""  # the method that gives the legal actions
    named: tuple[str, dict[str, Any]] = ("", {})  # an argument whose values have names
    refused: tuple[str, ...] = ()  # arguments
    draw: Callable[["JaxMARL", PyTree], jax.Array] | None = None  # a state's picture


# A dead unit of SMAX waits: what its team is rewarded with counts for its last action.
_smax = Family(
    1,
    True,
    _alive,
    "get_avail_actions",
    ("scenario", MAP_NAME_TO_SCENARIO),
    ("action_type",),
    draw=_draw_battle,
)
FAMILIES = {
    "MPE_": Family(1, by_rules=False, draw=_draw_particles),
    "switch_riddle": Family(0, by_rules=True, draw=_draw_riddle),
    "SMAX": _smax,
    "HeuristicEnemySMAX": _smax,
    "overcooked_v2": Family(0, by_rules=False, draw=_draw_second_kitchen),
    "overcooked": Family(
        0, by_rules=False, named=("layout", overcooked_layouts), draw=_draw_kitchen
    ),
    "hanabi": Family(None, True, _to_move, "get_legal_moves"),
    "jaxnav": Family(0, by_rules=True, refused=("evaporating",), draw=_draw_rooms),
    # These start their next round within the last step, and show that one's first observation.
    "coin_game": Family(None, by_rules=True, draw=_draw_coins),
    "storm_": Family(None, by_rules=True, draw=_draw_storm),
}
FOLDERS = {"mpe": "MPE_", "smax": "SMAX", "storm": "storm_"}  # whose families have other names
SILENT = ("InTheMatrix",)  # the class of `storm`
HARMLESS_WRAPPERS = ("LogWrapper", "MPELogWrapper", "SMAXLogWrapper", "OvercookedV2LogWrapper")
REFUSED = {
    "LearnedPolicyEnemySMAX": "needs a trained policy for its enemies; HeuristicEnemySMAX does not",
    "storm": "does not say which agent sees what; storm_2p and storm_np do",
    "JaxRobotarium": "needs jaxrobotarium, which is no part of JaxMARL's package",
    "": "is one of MABrax, which this adapter does not know",
}
PIXELS = 400  # of the height and the width of a picture of discs
ALLY, ENEMY = (0, 0, 255), (0, 128, 0)  # colours, the library's
RED, BLUE, PALE_RED, PALE_BLUE = (214, 39, 40), (31, 119, 180), (255, 152, 150), (174, 199, 232)
GREY, YELLOW = (190, 190, 190), (255, 200, 0)
SHAPED = "shaped_reward"  # an entry of Overcooked's info, and our argument: its weight


@wrapping.constructors("jaxmarl", lambda: registered_envs)
def constructor(name: str) -> wrapping.Maker:
    """The constructor of JaxMARL's environment `name`, with the arguments of its class."""
    family = _family(name)
    if family is None:
        why = next(why for begin, why in REFUSED.items() if name.startswith(begin))
        raise UsageError(f"jaxmarl environment {name!r} {why}")
    arguments = _arguments(jaxmarl.make(name))
    arguments = without(arguments, family.refused)
    if name.startswith("overcooked"):
        arguments[SHAPED] = 0.0
    return wrapping.Maker(_named, arguments, dict([family.named]))


def _named(name: str, **args: Any) -> "JaxMARL":
    family, class_args = _family(name), without(args, {SHAPED})
    argument, values = family.named
    if argument in class_args:
        class_args[argument] = values[class_args[argument]]
    env = jaxmarl.make(name, **class_args)
    return _kind_of(family)(env, f"jaxmarl:{name}", args, family)


def _kind_of(family: Family) -> type["JaxMARL"]:
    return JaxMARL if family.acting is None else JaxMARLInTurns


def adapt(name: str | None, make: Any, env: Any) -> "JaxMARL":
    """A user's environment of JaxMARL, `env`, which `make` is or has made."""
    env = wrapping.unwrapped(env, "step_env", HARMLESS_WRAPPERS)
    name, family = wrapping.name_of(name, env), _family_of(type(env))
    if type(env).__name__ in SILENT:
        raise UsageError(f"environment {name} {REFUSED['storm']}")
    if family is not None:
        return _kind_of(family)(_copied(env), name, wrapping.made_by(make), family)
    is_masked = type(env).get_avail_actions is not MultiAgentEnv.get_avail_actions
    kind = MaskedUsersJaxMARL if is_masked else UsersJaxMARL
    return kind(env, name, wrapping.made_by(make), Family(None, True))


def _family_of(kind: type) -> Family | None:
    """The family of a class of JaxMARL, or of one that a user derived from it."""
    for base in kind.__mro__:
        package, _, inner = base.__module__.partition(".environments.")
        folder = inner.partition(".")[0]
        if package == "jaxmarl" and base is not MultiAgentEnv and inner != folder:
            return _family(FOLDERS.get(folder, folder))
    return None


def _copied(env: Any) -> Any:
    """A copy, whose time limit may be changed."""
    copied = copy.copy(env)
    if hasattr(env, "_env"):
        copied._env = copy.copy(env._env)
    return copied


def _family(name: str) -> Family | None:
    fits = (family for begin, family in FAMILIES.items() if name.startswith(begin))
    return next(fits, None)


def _arguments(env: Any) -> dict[str, Any]:
    """{argument: default} of an environment's class, and of the one to which it passes the rest."""
    found: dict[str, Any] = {}
    kinds = itertools.takewhile(lambda kind: kind is not MultiAgentEnv, type(env).__mro__)
    for kind in (*kinds, type(getattr(env, "_env", env))):
        if "__init__" in vars(kind):
            found = wrapping.defaults_of(kind) | found
            parameters = inspect.signature(kind).parameters.values()
            if all(parameter.kind != parameter.VAR_KEYWORD for parameter in parameters):
                break
    return found


class JaxMARL(wrapping.WrappedMultiAgent):
    """An environment of JaxMARL. Agents with the same kind of name share a policy by default.

    Observations have the shapes and types that the library computes, and the bounds of the type:
    the spaces that it declares are not always right.
    """

    def __init__(self, env: Any, name: str, args: Mapping[str, Any], family: Family):
        self._env, self._family, self._shaped = env, family, args.get(SHAPED, 0.0)
        self.agents = self._keys = tuple(env.agents)
        self._indexed = not isinstance(self.agents[0], str)
        if self._indexed:
            self.agents = tuple(f"agent_{i}" for i in env.agents)
            self._keys = tuple(range(len(self.agents)))
        self._first, _ = jax.eval_shape(self.reset_inner, jax.random.PRNGKey(0))
        limit = wrapping.NO_LIMIT
        if family.extra_steps is not None:
            limit = self._env.max_steps + family.extra_steps
        # The library's flag is to tell the rules alone. Overcooked observes the steps left.
        if family.by_rules and limit != wrapping.NO_LIMIT:
            getattr(self._env, "_env", self._env).max_steps = wrapping.NO_LIMIT
        super().__init__(name, args, limit)
        if family.draw is not None:
            self.render = self._render
        if hasattr(self._env, "get_world_state"):
            self.global_state = self._global_state

    @property
    def default_policies(self) -> dict[str, tuple[AgentId, ...]]:
        groups: dict[str, tuple[AgentId, ...]] = {}
        for agent in self.agents:
            kind = agent.rpartition("_")[0]
            groups[kind] = (*groups.get(kind, ()), agent)
        return groups if len(groups) > 1 else {DEFAULT_POLICY: self.agents}

    def observation_space(self, agent: AgentId, params: PyTree = None) -> Space:
        space = self._env.observation_space(self._library_agent(agent))
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return _converted(space, f"observation of {agent!r} in {self.name}")
        return space_of(jax.tree.map(box_of, self._first[agent]))

    def action_space(self, agent: AgentId, params: PyTree = None) -> Space:
        space = self._env.action_space(self._library_agent(agent))
        return _converted(space, f"action of {agent!r} in {self.name}")

    def reset_inner(self, key):
        obs, inner = self._env.reset(wrapping.raw_key(key))
        return self._of_agents(obs), inner

    def step_inner(self, key, inner, action):
        action = self._actions(action)
        obs, inner, reward, done, info = self._env.step_env(wrapping.raw_key(key), inner, action)
        reward = self._of_agents(reward)
        if self._shaped:
            for agent in self.agents:
                reward[agent] = reward[agent] + self._shaped * info[SHAPED][agent]
        ended = wrapping.all_ended(jnp.bool_(done[ALL]) & self._family.by_rules, self.agents)
        return self._of_agents(obs), inner, jax.tree.map(jnp.float32, reward), ended, {}

    def _global_state(self, state: PyTree, params: PyTree) -> jax.Array:
        """f32[...]: the library's world state in one row; some have a part for each agent."""
        parts = jax.tree.leaves(self._env.get_world_state(state.inner))
        return jnp.concatenate([jnp.float32(part).reshape(-1) for part in parts])

    def _render(self, state: PyTree, params: PyTree) -> jax.Array:
        return self._family.draw(self, state.inner)

    def _actions(self, action: dict[AgentId, PyTree]) -> PyTree:
        return tuple(action[agent] for agent in self.agents) if self._indexed else action

    def _library_agent(self, agent: AgentId) -> str | int:
        return self._env.agents[self.agents.index(agent)]

    def _of_agents(self, values: PyTree) -> dict[AgentId, PyTree]:
        """Observations or rewards by agent, which some environments give by its index."""
        return {agent: values[key] for agent, key in zip(self.agents, self._keys, strict=True)}

    def _by_agent(self, values: jax.Array) -> dict[AgentId, jax.Array]:
        return {agent: values[i] for i, agent in enumerate(self.agents)}


class Played(struct.PyTreeNode):
    """A state of a user's environment, and who has ended."""

    inner: PyTree
    ended: jax.Array  # bool[M]  before the next step
    truncated: jax.Array  # bool[]


class UsersJaxMARL(JaxMARL):
    """A user's own environment of JaxMARL, whose agents may end before their episode does.

    `done` is for both kinds of ends. Those without the environment's time limit terminate, and any
    other one is the clock's.
    """

    def reset_env(self, key, params):
        obs, inner = self.reset_inner(key)
        return obs, Played(inner, jnp.zeros(len(self.agents), bool), jnp.array(False))

    def step_env(self, key, state, action, params):
        arguments = wrapping.raw_key(key), state.inner, self._actions(action)
        obs, inner, reward, done, _ = self._env.step_env(*arguments)
        ended, everybody = self._ends(done)
        terminated, all_terminated = ended, everybody
        if (unlimited := self._unlimited) is not None:
            terminated, all_terminated = self._ends(unlimited.step_env(*arguments)[3])
        of_clock = everybody & ~all_terminated
        terminated = terminated & ended & ~state.ended
        flags = {**self._by_agent(terminated), ALL: everybody & all_terminated}
        state, active = Played(inner, state.ended | terminated, of_clock), ~state.ended
        reward = self._of_agents(reward)
        reward = {agent: jnp.float32(reward[agent]).reshape(()) for agent in self.agents}
        return self._of_agents(obs), state, reward, flags, {"active": self._by_agent(active)}

    def is_truncated(self, state, params) -> jax.Array:
        return state.truncated

    def _ends(self, done: PyTree) -> tuple[jax.Array, jax.Array]:
        """(bool[M], bool[]): who has ended, and whether all have."""
        everybody = jnp.bool_(done[ALL])
        return jnp.stack([jnp.bool_(done.get(key, everybody)) for key in self._keys]), everybody

    @cached_property
    def _unlimited(self) -> Any:
        """The environment without its time limit; None: it has none that a step can be without."""
        env = wrapping.without_limit(self._env)

        def first_step(env, key):
            _, inner = self._env.reset(wrapping.raw_key(key))
            action = {agent: self.action_space(agent).sample(key) for agent in self.agents}
            return env.step_env(wrapping.raw_key(key), inner, self._actions(action))

        if env is None or not wrapping.steps_alike(first_step, self._env, env):
            return None
        return env


class MaskedUsersJaxMARL(UsersJaxMARL):
    """A user's own environment of JaxMARL that tells which actions are possible."""

    def action_mask(self, state, params) -> dict[AgentId, jax.Array]:
        masks = self._of_agents(self._env.get_avail_actions(state.inner))
        return {agent: masks[agent] > 0 for agent in self.agents}


class JaxMARLInTurns(JaxMARL):
    """An environment of JaxMARL whose agents wait: between turns in Hanabi, in SMAX once dead."""

    def acting_agents(self, state, params) -> dict[AgentId, jax.Array]:
        return self._by_agent(self._family.acting(self._env, state.inner))

    def action_mask(self, state, params) -> dict[AgentId, jax.Array]:
        masks = getattr(self._env, self._family.masks)(state.inner)
        return {agent: masks[agent] > 0 for agent in self.agents}


def _converted(space: Any, what: str) -> Space:
    """Our space for a space of JaxMARL."""
    with jax.ensure_compile_time_eval():
        match space:
            case spaces.Discrete():
                return Discrete(space.n)
            case spaces.MultiDiscrete():
                return MultiDiscrete(tuple(np.asarray(space.num_categories).tolist()))
            case spaces.Box():
                low, high = np.asarray(space.low), np.asarray(space.high)
                return Box(low, high, tuple(space.shape), np.dtype(space.dtype).name)
    raise UsageError(f"{what}: JaxMARL's {type(space).__name__} is not supported")
