"""Environments whose numbers differ by episode: a task is drawn at each reset.

A task is {field of `params`: value}. It is kept in the state, so that an episode is played, masked
and drawn with the numbers that it began with. `Randomization` draws each number by itself (domain
randomisation), `jaxrl.core.curriculum` by what was learned.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import is_batched
from jaxrl.core.errors import UsageError, brief, nearest
from jaxrl.core.types import Key, PyTree
from jaxrl.core.wrapped_env import AlikeAgents, ManyAgents, OneAgent, Wrapped, form_of

TASK = "task/"  # begins the names in info["metrics"] that are reported as env_runners/task/<field>
METRICS_RULE = "metrics are single numbers, and their names fit into results"
STEPS = "max_steps_in_episode"
DRAW = 0x7461736B  # folded into a reset's key: the environment keeps the key that it has without us
BOUNDED = ("uniform", "loguniform", "randint")
DISTRIBUTIONS = (*BOUNDED, "choice")
FORMS = "uniform:LOW:HIGH, loguniform:LOW:HIGH, randint:LOW:HIGH or choice:A:B"


def wrong_metric_name(names: Collection[Any], params: PyTree) -> str | None:
    """The fault of the names in info["metrics"], in a line; None: they have none."""
    for name in names:
        if not (isinstance(name, str) and all(name.split("/"))):
            return f"must be named by texts, with a word on each side of a '/', not {brief(name)}"
        field = name.removeprefix(TASK)
        if name != field and not hasattr(params, field):
            return (
                f"must not be named {name!r}: {TASK!r} begins the names of numbers of params that "
                f"are drawn for an episode, and params have no {field!r}"
            )
    numbers = {f"{name}_{part}": name for name in names for part in ("mean", "min", "max")}
    for name in names:
        groups = itertools.accumulate(name.split("/")[:-1], "{}/{}".format)
        if clash := next(filter(numbers.__contains__, groups), None):
            both = f"{numbers[clash]!r} and {name!r}"
            return f"must not be named {both}: in results {clash} would be a number and a group"
    return None


class TaskState(struct.PyTreeNode):
    """A state of the environment, and the task of its episode."""

    inner: PyTree
    task: dict[str, jax.Array]  # {field of params: value}
    length: jax.Array  # i32[]  steps since the reset
    memory: PyTree | None = None  # of a curriculum, across episodes
    returns: jax.Array | None = None  # f32[M]  of the episode so far, for a curriculum
    returns_lower: jax.Array | None = None  # f32[M]  what rounding has left out of them


@dataclasses.dataclass(frozen=True)
class _PerEpisode(Wrapped):
    """An environment with a task for each episode; see `per_episode`.

    Args:
        env: any environment; it never sees the task but in `params`.
        tasks: has `init(params)`, its memory, and `task(key, memory, params)`, the task of a new
            episode, as a `Curriculum` has them.
    """

    env: Any
    tasks: Any
    _fold = DRAW

    def _inside(self, state: TaskState, params: PyTree) -> tuple[PyTree, PyTree]:
        return state.inner, with_task(params, state.task)

    def _reset(self, reset: Callable, key: Key, params: PyTree) -> tuple[PyTree, TaskState]:
        return self._begin(reset, key, self.tasks.init(params), params)

    def _begin(
        self, reset: Callable, key: Key, memory: PyTree, params: PyTree
    ) -> tuple[PyTree, TaskState]:
        task = self._task(jax.random.fold_in(key, self._fold), memory, params)
        task = {name: typed_as(getattr(params, name), value) for name, value in task.items()}
        obs, inner = reset(key, with_task(params, task))
        return obs, TaskState(inner, task, jnp.int32(0), memory)

    def _task(self, key: Key, memory: PyTree, params: PyTree) -> Mapping[str, Any]:
        return self.tasks.task(key, memory, params)

    def _step(
        self, step: Callable, key: Key, state: TaskState, action: PyTree, params: PyTree
    ) -> tuple:
        inner, params = self._inside(state, params)
        obs, inner, reward, terminated, info = step(key, inner, action, params)
        is_first = state.length == 0  # metrics are summed over the episode
        task = {
            f"{TASK}{name}": jnp.where(is_first, value.astype(jnp.float32), 0.0)
            for name, value in state.task.items()
            if value.ndim == 0
        }
        info = {**info, "metrics": {**info.get("metrics", {}), **task}}
        state = state.replace(inner=inner, length=state.length + 1)
        return obs, state, reward, terminated, info


class _OfOneAgent(_PerEpisode, OneAgent):
    pass


class OfManyAgents(_PerEpisode, ManyAgents):
    pass


class OfAlikeAgents(_PerEpisode, AlikeAgents):
    pass


def per_episode(env: Any, tasks: Any) -> Any:
    """The environment with a task for each episode, of as many agents as `env` has.

    With a task that says what `params` says anyway it plays the same episodes as `env`.
    """
    refuse_batched(env)
    return form_of(env, (_OfOneAgent, OfManyAgents, OfAlikeAgents))(env, tasks)


def refuse_batched(env: Any) -> None:
    """Raises UsageError for an environment whose copies cannot have numbers of their own."""
    if is_batched(env):
        raise UsageError(
            f"environment {env.name} steps all copies in one call: its numbers cannot be drawn for "
            "each episode"
        )


def check_task(env: Any, params: PyTree) -> None:
    """Refuses numbers that an environment cannot play with, so far as it is known.

    Raises:
        UsageError: what `env.check_params` refuses, or episodes without a step.
    """
    if getattr(params, STEPS, 1) < 1:
        raise UsageError(f"{STEPS} must be at least 1, not {getattr(params, STEPS)}")
    if hasattr(env, "check_params"):
        env.check_params(params)


def with_task(params: PyTree, task: Mapping[str, Any]) -> PyTree:
    """`params` with the fields that a task names."""
    return dataclasses.replace(params, **task)


def typed_as(number: Any, value: Any) -> jax.Array:
    """`value` with the type of the number that it replaces."""
    return jnp.asarray(value, jnp.asarray(number).dtype)


# ---- numbers drawn at random


@dataclasses.dataclass(frozen=True)
class Distribution:
    """The distribution of one number, with the names and the bounds of a sweep's distributions.

    uniform and loguniform are between LOW and HIGH, randint from LOW to HIGH - 1.
    """

    kind: str  # of DISTRIBUTIONS
    values: tuple[float | int | bool, ...]  # the two bounds, or the choices

    def __str__(self):
        return ":".join((self.kind, *(f"{value}" for value in self.values)))

    @property
    def ends(self) -> tuple[float | int | bool, ...]:
        """The values that all draws lie between; all of a choice."""
        if self.kind == "randint":
            return self.values[0], self.values[1] - 1
        return self.values

    @property
    def is_whole(self) -> bool:
        """True if every draw is an integer."""
        return self.kind == "randint" or (
            self.kind == "choice" and all(float(value).is_integer() for value in self.values)
        )

    def draw(self, key: Key) -> jax.Array:
        """A number at random, []."""
        low, high = self.values[0], self.values[-1]
        if self.kind == "uniform":
            return jax.random.uniform(key, minval=low, maxval=high)
        if self.kind == "loguniform":
            return jnp.exp(jax.random.uniform(key, minval=math.log(low), maxval=math.log(high)))
        if self.kind == "randint":
            return jax.random.randint(key, (), low, high)
        return jnp.asarray(self.values)[jax.random.randint(key, (), 0, len(self.values))]


@dataclasses.dataclass(frozen=True)
class Randomization:
    """A task for each episode whose numbers are drawn independently of each other."""

    drawn: tuple[tuple[str, Distribution], ...]  # by field of `params`

    def init(self, params: PyTree) -> None:
        """The memory of tasks drawn independently, which is empty."""

    def task(self, key: Key, memory: None, params: PyTree) -> dict[str, jax.Array]:
        """{field: value} of the next episode."""
        keys = jax.random.split(key, len(self.drawn))
        return {
            name: distribution.draw(keys[i]) for i, (name, distribution) in enumerate(self.drawn)
        }


def distribution_of(text: object) -> Distribution | None:
    """The distribution that "uniform:0.1:0.5" means; None for what does not begin with a name.

    Raises:
        UsageError: bounds that are missing, are no numbers, or leave nothing between them.
    """
    kind, *words = text.split(":") if isinstance(text, str) else ("",)
    if kind not in DISTRIBUTIONS or not words:
        return None
    if "" in words:
        raise UsageError(f"{text} has an empty value; write {_form(kind)}")
    values = tuple(map(_number, words))
    if None in values:
        raise UsageError(f"{text}: {words[values.index(None)]!r} is not a number")
    if kind == "choice":
        return Distribution(kind, values)
    if len(values) != 2 or bool in map(type, values):
        raise UsageError(f"{text}: {kind} takes two bounds, {kind}:LOW:HIGH")
    if not values[0] < values[1] or (kind == "loguniform" and values[0] <= 0):
        least = "0 < " if kind == "loguniform" else ""
        raise UsageError(f"{text}: {kind}:LOW:HIGH needs {least}LOW < HIGH")
    if kind == "randint":
        if not all(float(value).is_integer() for value in values):
            raise UsageError(f"{text}: the bounds of randint must be integers")
        values = tuple(map(int, values))
    return Distribution(kind, values)


def nearest_form(text: str) -> str | None:
    """`uniform:0.1:0.5` for `unifrom:0.1:0.5`, `uniform:LOW:HIGH` for `uniform`; None: no idea."""
    kind, _, rest = text.partition(":")
    meant = nearest(kind, DISTRIBUTIONS, most=1)
    if not meant:
        return None
    return f"{meant[0]}:{rest}" if rest else _form(meant[0])


def _form(kind: str) -> str:
    return f"{kind}:A:B" if kind == "choice" else f"{kind}:LOW:HIGH"


def _number(word: str) -> float | int | bool | None:
    """The finite number, True or False that a word is; None for any other word."""
    if word in ("True", "False"):
        return word == "True"
    for read in (int, float):
        try:
            number = read(word)
        except ValueError:
            continue
        return number if math.isfinite(number) else None
    return None
