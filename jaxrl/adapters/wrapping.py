"""Common parts of the adapters that bring in the environments of other libraries.

An adapter gives a library's own reset and raw step, without its automatic reset. The clock is ours,
beside the library's state, wherever a library keeps its own; so its time limit is
`params.max_steps_in_episode`, and truncates.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import io
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.adapters.fast import WithFastChanges
from jaxrl.core.env import Environment, MultiAgentEnvironment
from jaxrl.core.errors import UsageError, brief, explained, is_installed, reason_of, unknown_name
from jaxrl.core.fields import FLOAT32, as_count, as_number, field_values
from jaxrl.core.frozen import freeze
from jaxrl.core.spaces import Box, Space, box_of, space_of
from jaxrl.core.types import ALL, Key, PyTree, other_form

NO_LIMIT = 2**31 - 1  # steps, of games that end by themselves
TRUNCATES, TERMINATES = "truncates", "terminates"
TIME_LIMIT = "time_limit"  # an argument: ours, or the library's own
# What libraries and users call the time limit, in steps.
LIMITS = (
    *("max_steps_in_episode", "max_episode_steps", "max_steps", "max_timesteps"),
    *("episode_length", "episode_horizon", "max_num_steps_per_episodes"),
)
PLAIN = "a number, a text, None, or a list or mapping of such"
# Brax's, for what training does itself.
TRAINING_WRAPPERS = ("VmapWrapper", "AutoResetWrapper", "BraxAutoResetWrapper", "EvalWrapper")
TRUNCATION = "truncation"  # an entry of Brax's info, of its wrapper for time limits


class Clocked(struct.PyTreeNode):
    """A library's state and our clock."""

    inner: PyTree  # the library's state
    time: jax.Array  # i32[], steps since the reset


class TimeLimit(struct.PyTreeNode):
    """The parameters of an environment whose other settings are arguments of its constructor."""

    max_steps_in_episode: int = NO_LIMIT


class Maker(NamedTuple):
    """A function that makes a library's environment of a name, with its arguments.

    Attributes:
        make: takes the name, and the arguments by keyword.
        arguments: {name: default}. A value must be of its default's kind.
        choices: {name: the texts that may be its value}.
        has_time_limit: whether the argument `time_limit` is added, one of our two words, which the
            environment gets as its attribute.
    """

    make: Callable[..., Any]
    arguments: Mapping[str, Any]
    choices: Mapping[str, Iterable[str]] = MappingProxyType({})
    has_time_limit: bool = True


@contextlib.contextmanager
def imported(library: str, extra: str, install: str = "") -> Iterator[None]:
    """A block that imports a library; where that fails, its one error says what to install.

    Args:
        extra: of pyproject.toml; the scheme has the same name.
        install: what pip installs, if not the extra.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what the library imports in its turn
            yield
    except Exception as error:  # as of a library that is older than what it imports
        is_missing = isinstance(error, ModuleNotFoundError) and not is_installed(library)
        why = "is not installed" if is_missing else f"cannot be imported ({reason_of(error)})"
        install = install or f'"jaxrl[{extra}]"'
        raise UsageError(
            f"environments {extra}:NAME: {library} {why}: pip install {install}"
        ) from error


def constructors(
    scheme: str, names: Callable[[], Iterable[str]]
) -> Callable[[Callable[[str], Maker]], Callable[[str], Callable[..., Any]]]:
    """A decorator of a function that gives the `Maker` of a name.

    The result gives the name's constructor, which checks the arguments.

    Args:
        names: gives the library's names.
    """

    def decorate(maker_of):
        @functools.wraps(maker_of)
        def constructor(name):
            with explained(f"environments {scheme}:NAME cannot be listed"):
                listed = list(names())
            if not isinstance(name, str) or name not in listed:
                raise unknown_name(f"{scheme} environment", name, listed)
            with explained(f"environment {scheme}:{name} cannot be made"):
                maker = maker_of(name)
                make = functools.partial(maker.make, name)
                return _checked(f"{scheme}:{name}", maker._replace(make=make))

        return constructor

    return decorate


def defaults_of(make: Callable[..., Any]) -> dict[str, Any]:
    """{argument: default} of a class or a function, without its `*args` and `**kwargs`."""
    defaults = {}
    for parameter in inspect.signature(make).parameters.values():
        if not parameter.kind.name.startswith("VAR_"):
            defaults[parameter.name] = parameter.default
    return defaults


def _checked(name: str, maker: Maker) -> Callable[..., Any]:
    """A constructor with a signature, from which `registry.make` knows the arguments."""
    arguments, choices = dict(maker.arguments), dict(maker.choices)
    if maker.has_time_limit:
        arguments[TIME_LIMIT] = TRUNCATES
        choices[TIME_LIMIT] = (TRUNCATES, TERMINATES)

    def construct(**args):
        checked_args = {}
        where = f"of environment {name!r}"
        for argument, value in args.items():
            if argument not in arguments:
                raise unknown_name("argument", argument, arguments, where)
            value, default = as_number(value), arguments[argument]
            if argument in LIMITS and isinstance(default, int):
                value = as_count(value)
            checked_args[argument] = value
            if argument in choices and not (isinstance(value, str) and value in choices[argument]):
                raise unknown_name(argument, value, choices[argument], where)
            if (requirement := _requirement(argument, value, default)) is not None:
                raise UsageError(
                    f"environment {name!r}: {argument} must be {requirement}, not {brief(value)}"
                )
        why = f": {brief(checked_args)} are refused" if checked_args else " cannot be made"
        library_args = dict(checked_args)
        if maker.has_time_limit:
            library_args.pop(TIME_LIMIT, None)
        with explained(f"environment {name}{why}"):
            env = maker.make(**library_args)
        if maker.has_time_limit:
            env.time_limit = checked_args.get(TIME_LIMIT, TRUNCATES)
        env.made_with = checked_args
        return env

    parameters = []
    for argument, default in arguments.items():
        keyword = inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY, default=default)
        parameters.append(keyword)
    construct.__signature__ = inspect.Signature(parameters)
    return construct


def _requirement(argument: str, value: Any, default: Any) -> str | None:
    """The values that an argument with this default may have; None if `value` is one of them."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, bool):
        is_met, requirement = isinstance(value, bool), "True or False"
    elif argument in LIMITS and isinstance(default, int):
        is_met = is_number and isinstance(value, int) and value >= 1
        requirement = "an integer of at least 1"
    elif isinstance(default, int | float):
        is_met, requirement = is_number and abs(value) <= FLOAT32, "a finite number"
    elif isinstance(default, str):
        is_met, requirement = isinstance(value, str), "a text"
    else:
        is_met, requirement = _is_plain(value), PLAIN
    return None if is_met else requirement


def _is_plain(value: Any) -> bool:
    try:
        hash(freeze(value))
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def raw_key(key: Key) -> jax.Array:
    """u32[2]: the key as `jax.random.PRNGKey` gives it, for libraries that keep it in their state.

    It draws the same numbers as `key` does, if that is a Threefry key.
    """
    data = jax.random.key_data(key)
    return data if data.shape == (2,) else jax.random.bits(key, (2,), "uint32")


def typed_as_before(before: PyTree, after: PyTree) -> PyTree:
    """A state with the types that it had before the step.

    With `jax_enable_x64` many environments have numbers of 64 bits from `reset` and of 32 from
    `step`, or the other way round. Other differences stay, for the checks to find.
    """
    same_form = jax.tree.structure(before) == jax.tree.structure(after)
    if not jax.config.jax_enable_x64 or not same_form:
        return after

    def typed(old, new):
        old, new = jnp.asarray(old), jnp.asarray(new)
        is_other_size = old.dtype != new.dtype and old.dtype.kind == new.dtype.kind
        return new.astype(old.dtype) if is_other_size else new

    return jax.tree.map(typed, before, after)


def by_name(obs: PyTree) -> PyTree:
    """An observation with its named tuples and dataclasses as dicts."""
    if dataclasses.is_dataclass(obs):
        fields = field_values(obs)
    elif hasattr(obs, "_asdict"):
        fields = obs._asdict()
    else:
        return obs
    return {name: by_name(value) for name, value in fields.items()}


def name_of(name: str | None, env: Any) -> str:
    """The name of a user's environment: the one it was made by, its own, or its class's."""
    class_name, held = type(env).__name__, getattr(env, "name", None)
    return name or (held if isinstance(held, str) else class_name)


def made_by(make: Any) -> dict[str, Hashable]:
    """The entry that stands for the arguments of a user's environment; see `Wrapped`."""
    return {"made_by": identity_of(make)}


def identity_of(make: Any) -> Hashable:
    """The identity by which users' environments are compared: an object, or how it is made."""
    if isinstance(make, functools.partial):
        make = (make.func, freeze(make.args), freeze(dict(sorted(make.keywords.items()))))
    try:
        hash(make)
    except TypeError:  # as of a dataclass that can be compared
        return SameObject(make)
    return make


class SameObject:
    """Stands for an object that cannot be hashed, and is equal to no other one."""

    def __init__(self, held: Any):
        self.held = held

    def __eq__(self, other):
        return isinstance(other, SameObject) and self.held is other.held

    def __hash__(self):
        return id(self.held)


def unwrapped(env: Any, step: str, harmless: Iterable[str]) -> Any:
    """The environment within wrappers that change what `step` returns, where training calls `step`.

    Args:
        step: the method that training calls, and that a wrapper of the library does not define.
        harmless: wrappers of which nothing is lost.
    """
    while inspect.getattr_static(env, step, None) is None:
        if (kind := type(env).__name__) not in harmless:
            raise UsageError(
                f"the wrapper {kind} changes `step`, and training calls `{step}`: "
                "define its methods reset_env and step_env, or give the environment that it wraps"
            )
        env = env._env
    return env


def without_training(env: Any, limit: int) -> tuple[Any, int]:
    """An environment without Brax's wrappers for copies, resets and time, and its time limit."""
    kind = type(env).__name__
    if kind in TRAINING_WRAPPERS:
        return without_training(env.env, limit)
    if kind == "EpisodeWrapper":
        inner, _ = without_training(env.env, limit)
        repeated = env.action_repeat
        if repeated != 1:
            inner = type(env)(inner, env.episode_length, repeated)
        return inner, -(-env.episode_length // repeated)
    if kind.endswith("DomainRandomizationVmapWrapper"):
        raise UsageError(
            f"{kind} has a physics of its own for each copy: give the environment that it wraps"
        )
    return env, limit


def without_limit(holder: Any) -> Any:
    """A copy of a library's environment or parameters with no time limit; None: it has none."""
    limits = {}
    for name in LIMITS:
        if _is_limit(limit := getattr(holder, name, None)):
            limits[name] = _no_limit(limit)
    if not limits:
        return None
    if hasattr(holder, "_replace"):
        return holder._replace(**limits)
    copied = copy.copy(holder)
    for name, limit in limits.items():
        object.__setattr__(copied, name, limit)  # of a frozen dataclass, too
    return copied


def steps_alike(first_step: Callable[..., PyTree], *holders: Any) -> bool:
    """Returns whether `first_step(holder, key)` has one form for both: a limit may size arrays."""
    key = jax.random.key(0)
    try:
        forms = [jax.eval_shape(functools.partial(first_step, holder), key) for holder in holders]
    except Exception:  # of the environment as it is, the checks of the contract report it
        return False
    return other_form(*forms) is None


def _is_limit(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.generic | np.ndarray | jax.Array)
    return is_number and not isinstance(value, bool) and not np.shape(value)


def _no_limit(limit: Any) -> np.generic:
    """`NO_LIMIT` in the type of a limit; no array of JAX, which programs would take as an input."""
    is_whole = jnp.issubdtype(jnp.result_type(limit), jnp.integer)
    return np.int32(NO_LIMIT) if is_whole else np.float32(NO_LIMIT)


class Wrapped(WithFastChanges):
    """Name, equality and clock of a library's environment.

    Two are equal if class, name and arguments are: equal environments share compiled programs.
    A subclass gives `reset_inner(key)` and `step_inner(key, inner, action)`, the library's own,
    with results as `reset_env` and `step_env` have them.

    Args:
        name: with its scheme, `brax:ant`.
        args: the constructor's arguments.
        limit: the library's time limit in steps.

    Attributes:
        time_limit: "truncates", or "terminates" for ends as a library reports them that has one
            flag for both; set before the first step.
    """

    time_limit = TRUNCATES

    def __init__(self, name: str, args: Mapping[str, Any], limit: int = NO_LIMIT):
        self._name, self._args = name, freeze(dict(sorted(args.items())))
        self._limit = limit
        self._picture_shape: tuple[int, ...] | None = None

    @property
    def _identity(self) -> tuple:
        return type(self), self._name, self._args, self._limit, self.time_limit

    def __eq__(self, other):
        return isinstance(other, Wrapped) and self._identity == other._identity

    def __hash__(self):
        return hash(self._identity)

    @property
    def name(self) -> str:
        return self._name

    @property
    def default_params(self) -> TimeLimit:
        return TimeLimit(self._limit)

    def reset_inner(self, key: Key) -> tuple[PyTree, PyTree]:
        """Returns (obs, inner) of a new episode, `inner` being the library's state."""
        raise NotImplementedError(f"{type(self).__name__} must define reset_inner(key)")

    def step_inner(self, key: Key, inner: PyTree, action: PyTree) -> tuple:
        """Returns (obs, inner, reward, terminated, info), without the time limit or a reset."""
        raise NotImplementedError(f"{type(self).__name__} must define step_inner(key, ...)")

    def reset_env(self, key: Key, params: TimeLimit) -> tuple[PyTree, Clocked]:
        obs, inner = self.reset_inner(key)
        return obs, Clocked(inner, jnp.int32(0))

    def step_env(self, key: Key, state: Clocked, action: PyTree, params: TimeLimit) -> tuple:
        obs, inner, reward, terminated, info = self.step_inner(key, state.inner, action)
        time = state.time + 1
        if self.time_limit == TERMINATES:
            ends = time >= params.max_steps_in_episode
            terminated = jax.tree.map(lambda flag: flag | ends, terminated)
        return obs, Clocked(inner, time), reward, terminated, info

    def picture(self, draw: Callable[[PyTree], Any], inner: PyTree) -> jax.Array:
        """u8[H, W, 3]: what `draw(inner)` draws in NumPy, within a compiled program too."""
        if self._picture_shape is None:
            with jax.ensure_compile_time_eval():
                _, first = jax.jit(self.reset_inner)(jax.random.key(0))
                self._picture_shape = np.shape(draw(first))
        shape = jax.ShapeDtypeStruct(self._picture_shape, np.uint8)
        return jax.pure_callback(
            lambda state: np.asarray(draw(state), np.uint8), shape, inner, vmap_method="sequential"
        )


def pixels_of(figure: Any) -> np.ndarray:
    """u8[H, W, 3]: what a figure of matplotlib shows."""
    file = io.BytesIO()
    figure.savefig(file, format="rgba", dpi="figure", bbox_inches=figure.bbox_inches)
    width, height = figure.canvas.get_width_height()
    return np.frombuffer(file.getbuffer(), np.uint8).reshape(height, width, 4)[..., :3]


class WrappedEnvironment(Wrapped, Environment):
    """A library's environment of one agent."""

    def computed_observation_space(
        self, box: Callable[[jax.ShapeDtypeStruct], Space] = box_of
    ) -> Space:
        """The space of what `reset_inner` observes; `box` gives that of each array."""
        obs = jax.eval_shape(lambda key: self.reset_inner(key)[0], jax.random.key(0))
        return space_of(jax.tree.map(box, obs))


class PhysicsEnvironment(WrappedEnvironment):
    """An environment with the interface of Brax, which MuJoCo Playground has too.

    Its `done` leaves the time limit to wrappers. Actions are between -1 and 1, and what the library
    calls metrics is summed over an episode.

    Args:
        env: the library's.
    """

    def __init__(self, env: Any, name: str, args: Mapping[str, Any], limit: int):
        super().__init__(name, args, limit)
        self._env = env
        # Compiled as parts, each is traced once, and not for every place that calls it.
        self._reset, self._step = jax.jit(env.reset), jax.jit(env.step)

    @cached_property
    def _observation_space(self) -> Space:
        return self.computed_observation_space()

    def observation_space(self, params: PyTree = None) -> Space:
        return self._observation_space

    def action_space(self, params: PyTree = None) -> Space:
        return Box(-1.0, 1.0, (self._env.action_size,))

    def reset_inner(self, key):
        state = self._reset(raw_key(key))
        return state.obs, state

    def step_inner(self, key, inner, action):
        state = self._step(inner, action)
        reward, terminated = jnp.float32(state.reward), jnp.asarray(state.done) > 0
        if TRUNCATION in state.info:
            terminated = terminated & ~(state.info[TRUNCATION] > 0)
        return state.obs, state, reward, terminated, {"metrics": state.metrics}

    def is_truncated(self, state, params) -> jax.Array:
        clock, info = super().is_truncated(state, params), state.inner.info
        if TRUNCATION not in info:
            return clock
        return clock | (info[TRUNCATION] > 0)


class WrappedMultiAgent(Wrapped, MultiAgentEnvironment):
    """A library's environment of several agents; flags are dicts by agent, with "__all__"."""


def all_ended(ended: jax.Array, agents: Iterable[str]) -> dict[str, jax.Array]:
    """The flags of agents that all end with the episode."""
    return dict.fromkeys([*agents, ALL], ended)
