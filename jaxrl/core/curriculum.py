"""Curricula inside the compiled program: each environment's next task follows from its episodes."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core.env import (
    MultiAgentEnvironment,
    agents_may_wait,
    is_stacked,
    stack_agents,
    strongly_typed,
)
from jaxrl.core.errors import UsageError, brief, explained, unknown_name
from jaxrl.core.exact_sums import add
from jaxrl.core.fields import count, field_names, least_count, number
from jaxrl.core.frozen import freeze
from jaxrl.core.tasks import (
    DRAW,
    OfAlikeAgents,
    OfManyAgents,
    Randomization,
    TaskState,
    check_task,
    refuse_batched,
    typed_as,
    with_task,
)
from jaxrl.core.trust import Kind, maker
from jaxrl.core.types import Key, PyTree, other_form


class EpisodeOutcome(NamedTuple):
    """A finished episode of one environment, as its curriculum sees it."""

    task: dict[str, jax.Array]  # {field of params: value} that it was played with
    length: jax.Array  # i32[]  environment steps
    returns: jax.Array  # f32[M]  undiscounted, in the order of `env.agents`
    terminated: jax.Array  # bool[]  the world ended, not just the time limit

    @property
    def episode_return(self) -> jax.Array:
        """f32[]: summed over the agents."""
        return jnp.sum(self.returns)


class Curriculum:
    """Base class of curricula that are compiled into the training program.

    Every environment has a curriculum of its own: a memory, which its finished episodes change, and
    a task, which is chosen from it at each reset. All methods are pure functions of arrays, for one
    environment. An object with settings is best a frozen dataclass, which a run's file can name.
    """

    def init(self, params: PyTree) -> PyTree:
        """The memory before the first episode: a pytree of arrays; None without any."""
        return None

    def task(self, key: Key, memory: PyTree, params: PyTree) -> Mapping[str, Any]:
        """The task of the next episode: what differs from the configuration's `params`, by field.

        Always the same fields, with the shapes and types that they have in `params`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define task(key, memory, params)")

    def after_episode(self, memory: PyTree, episode: EpisodeOutcome, params: PyTree) -> PyTree:
        """The memory after a finished episode, in the form of `init`."""
        return memory


@dataclasses.dataclass(frozen=True)
class LevelsBySuccess(Curriculum):
    """Levels in order: an environment goes up when it has solved enough of its last episodes.

    Args:
        levels: the fields of `params` that differ in each level, from the easiest to the hardest;
            {} stands for the configuration's own numbers.
        threshold: the share of the last `window` episodes, all of one level, that must be solved.
        solved_at: the least return of a solved episode, summed over agents; None: an episode is
            solved if the environment terminated it, which the time limit does not.

    Raises:
        UsageError: no levels, or numbers that make no sense.
    """

    levels: Sequence[Mapping[str, Any]]
    threshold: float = 0.8
    window: int = 5
    solved_at: float | None = None

    def __post_init__(self):
        object.__setattr__(self, "levels", freeze(self.levels))
        try:
            levels = self.by_level
        except (TypeError, ValueError):
            levels = []
        if not any(levels):
            raise UsageError(
                f"levels={brief(self.levels)} must be a list of {{field: value}}, easiest first"
            )
        number(0, 1, open_low=True)("threshold", self.threshold)
        count()("window", self.window)
        if self.solved_at is not None:
            number()("solved_at", self.solved_at)

    @property
    def by_level(self) -> list[dict[str, Any]]:
        """The levels as they were given."""
        return [dict(level) for level in self.levels]

    def init(self, params: PyTree) -> PyTree:
        zeros = jnp.zeros(self.window, bool)
        return {"level": jnp.int32(0), "num_episodes": jnp.int32(0), "solved": zeros}

    def task(self, key: Key, memory: PyTree, params: PyTree) -> dict[str, jax.Array]:
        levels, task = self.by_level, {}
        for name in sorted({name for level in levels for name in level}):
            value = getattr(params, name)
            values = [jnp.asarray(level.get(name, value)) for level in levels]
            task[name] = jnp.stack(values)[memory["level"]]
        return task

    def after_episode(self, memory: PyTree, episode: EpisodeOutcome, params: PyTree) -> PyTree:
        solved = episode.terminated
        if self.solved_at is not None:
            solved = episode.episode_return >= self.solved_at
        recent = jnp.append(memory["solved"][1:], solved)
        num_episodes = memory["num_episodes"] + 1
        enough = jnp.sum(recent) >= least_count(self.threshold, self.window)
        goes_up = (num_episodes >= self.window) & enough
        last = len(self.levels) - 1
        return {
            "level": jnp.minimum(memory["level"] + goes_up.astype(jnp.int32), last),
            "num_episodes": jnp.where(goes_up, 0, num_episodes),
            "solved": recent,
        }


def _is_curriculum(found: Any) -> bool:
    return issubclass(found if isinstance(found, type) else type(found), Curriculum)


CURRICULUM = Kind(
    "curriculum", "jaxrl.curricula", "a class derived from jaxrl.Curriculum", _is_curriculum
)


@functools.cache
def resolve_curriculum(entry: Any) -> Curriculum:
    """The curriculum of an object, a class or "module:Class"; always the same one of an entry.

    Raises:
        UsageError: no such class, one of another kind, or arguments missing.
    """
    if not isinstance(entry, str) and not CURRICULUM.fits(entry):
        what = f"{CURRICULUM.allowed}, or module:Class"
        raise UsageError(f"curriculum={brief(entry)} must be {what}")
    return maker(CURRICULUM, entry)()


class _Remembering:
    """An environment with a task for each episode, which a curriculum chooses.

    `at_target` is the environment for evaluation: every task is what `params` says.
    """

    _fold = DRAW + 1  # the environment inside may draw tasks from the same key

    @property
    def at_target(self) -> Any:
        return type(self)(self.env, self.tasks, is_at_target=True)

    def reset_after(
        self, key: Key, state: TaskState, terminated: jax.Array, params: PyTree
    ) -> tuple[PyTree, TaskState]:
        """`raw_reset` after an episode that ended in `state`; called in its place."""
        outcome = EpisodeOutcome(state.task, state.length, state.returns, terminated)
        memory = self.tasks.after_episode(state.memory, outcome, params)
        reset = self.env.reset_stacked if is_stacked(self.env) else self.env.reset_env
        return self._begin(reset, key, memory, params)

    def _begin(
        self, reset: Callable, key: Key, memory: PyTree, params: PyTree
    ) -> tuple[PyTree, TaskState]:
        obs, state = super()._begin(reset, key, memory, params)
        zeros = jnp.zeros(len(self.env.agents))
        return obs, state.replace(returns=zeros, returns_lower=zeros)

    def _task(self, key: Key, memory: PyTree, params: PyTree) -> dict[str, jax.Array]:
        task = super()._task(key, memory, params)
        return {name: getattr(params, name) for name in task} if self.is_at_target else task

    def _step(
        self, step: Callable, key: Key, state: TaskState, action: PyTree, params: PyTree
    ) -> tuple:
        obs, state, reward, terminated, info = super()._step(step, key, state, action, params)
        by_agent = lambda value: stack_agents(self, value) if isinstance(value, dict) else value
        rewards = by_agent(reward)
        if "active" in info and not agents_may_wait(self):  # as in `resolve_step`
            rewards = jnp.where(by_agent(info["active"]), rewards, 0.0)
        returns, lower = add(state.returns, state.returns_lower, rewards)
        state = state.replace(returns=returns, returns_lower=lower)
        return obs, state, reward, terminated, info


@dataclasses.dataclass(frozen=True)
class _OfManyAgents(_Remembering, OfManyAgents):
    is_at_target: bool = False


@dataclasses.dataclass(frozen=True)
class _OfAlikeAgents(_Remembering, OfAlikeAgents):
    is_at_target: bool = False


def with_curriculum(env: MultiAgentEnvironment, params: PyTree, entry: Any) -> Any:
    """The environment with the tasks of a curriculum, which is traced once, and not computed.

    Raises:
        UsageError: what `resolve_curriculum` refuses, tasks or a memory of another form, or a level
            that the environment's `check_params` refuses.
    """
    curriculum = resolve_curriculum(entry)
    refuse_batched(env)
    levels = curriculum.by_level if isinstance(curriculum, LevelsBySuccess) else []
    _check_levels(levels, params)
    key = jax.eval_shape(lambda: jax.random.key(0))
    jax.eval_shape(functools.partial(_check_forms, curriculum, env, params), key)
    for level in levels:
        check_task(env, with_task(params, level))
    return (_OfAlikeAgents if is_stacked(env) else _OfManyAgents)(env, curriculum)


def _check_levels(levels: Sequence[Mapping[str, Any]], params: PyTree) -> None:
    """Refuses a level that names a field that is not in `params`, or a value that does not fit."""
    what = "curriculum LevelsBySuccess"
    fields = field_names(params)
    for level in levels:
        for name, value in level.items():
            if name not in fields:
                raise unknown_name("field", name, fields, f"in the levels of {what}")
            try:
                new = jnp.asarray(value)
                is_finite = bool(jnp.all(jnp.isfinite(new)))
            except (TypeError, ValueError, OverflowError):
                is_finite = False
            if not is_finite:
                raise UsageError(
                    f"{what}: {name}={brief(value)} must be a finite number, and below 2^31 where "
                    "params has an integer"
                )
            _check_value(f"{what}: {name}", jnp.asarray(getattr(params, name)), new)


def _check_forms(curriculum: Curriculum, env: MultiAgentEnvironment, params: PyTree, key: Key):
    """Traces every method once; a UsageError for what has another form than it must have."""
    name = f"curriculum {type(curriculum).__qualname__}"

    def call(method, *arguments):
        with explained(f"{name}: {method} fails as it is traced"):
            return getattr(curriculum, method)(*arguments)

    memory = strongly_typed(call("init", params))
    task = call("task", key, memory, params)
    if not isinstance(task, Mapping) or not task:
        raise UsageError(f"{name}: task must return {{field: value}}, not {brief(task)}")
    fields = field_names(params)
    tasks = getattr(env, "tasks", None)
    drawn = dict(tasks.drawn) if isinstance(tasks, Randomization) else ()
    for field, value in task.items():
        if field not in fields:
            raise unknown_name("field", field, fields, f"in the task of {name}")
        if field in drawn:
            raise UsageError(f"{name}: {field} is drawn by env_args already, which would win")
        _check_value(f"{name}: {field}", jnp.asarray(getattr(params, field)), jnp.asarray(value))
    task = {field: typed_as(getattr(params, field), value) for field, value in task.items()}
    returns = jnp.zeros(len(env.agents))
    outcome = EpisodeOutcome(task, jnp.int32(1), returns, jnp.array(True))
    after = strongly_typed(call("after_episode", memory, outcome, params))
    if difference := other_form(memory, after, "memory"):
        raise UsageError(
            f"{name}: after_episode must return the memory in the form of init: {difference}"
        )


def _check_value(name: str, old: jax.Array, new: jax.Array) -> None:
    """Refuses a value that its field of `params` cannot hold."""
    fits = jnp.result_type(old, new) == old.dtype or not jnp.issubdtype(new.dtype, jnp.floating)
    is_flag = old.dtype == bool
    if old.shape != new.shape or not fits or (is_flag != (new.dtype == bool)):
        expected, found = f"{old.dtype}{list(old.shape)}", f"{new.dtype}{list(new.shape)}"
        raise UsageError(f"{name} must be {expected} as in params, not {found}")
