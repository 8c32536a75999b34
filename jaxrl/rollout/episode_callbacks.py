"""Episode callbacks: the contract of traced hooks, how they are found, and their feature."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxrl.core.env import MultiAgentEnvironment, RawStep, restart, split_agents
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import without
from jaxrl.core.trust import maker
from jaxrl.core.types import AgentId, PolicyId, PyTree
from jaxrl.core.wrapped_env import without_task
from jaxrl.rollout.callbacks_kind import CALLBACKS, CALLBACKS_NAME
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, episodes_after, to_env_actions
from jaxrl.rollout.episode_stats import EpisodeStats, no_episodes
from jaxrl.rollout.feature import After, Begin, Feature, Played
from jaxrl.rollout.first_step import any_step, shape_of_a_key
from jaxrl.rollout.hook_contract import (
    LOGGER,
    NEXT_OBS,
    TRACED_HOOKS,
    TRACED_OR_HOST,
    TRAJECTORY_HOOKS,
    HookNumber,
    alike,
    arrays,
    call_traced,
    check_hooks,
    class_name,
    given_twice,
    names,
    scalar,
    takes_an_object,
    together,
)
from jaxrl.rollout.sample_batch import SampleBatch, as_trajectory

Logged = dict[str, HookNumber]


@dataclass(frozen=True)
class EpisodeStep:
    """One step of one environment as hooks see it; per-agent values are in order of `agents`."""

    env: MultiAgentEnvironment
    state: PyTree  # after the step, before any reset; the environment's, without any task
    action: PyTree  # as the environment takes it: a dict by agent, or [M, ...] if stacked
    reward: jax.Array  # f32[M]
    terminated: jax.Array  # bool[M]
    truncated: jax.Array  # bool[M]
    active: jax.Array  # bool[M]  the agent acted in this step
    episode_done: jax.Array  # bool[]  the episode ended with it
    info: dict[str, Any]
    params: PyTree  # the environment's numbers in this episode

    @classmethod
    def of(
        cls, env: MultiAgentEnvironment, params: PyTree, action: PyTree, raw: RawStep
    ) -> "EpisodeStep":
        state, params = without_task(env, raw.state, params)
        return cls(
            env=env,
            state=state,
            action=action,
            reward=raw.reward,
            terminated=raw.terminated,
            truncated=raw.truncated,
            active=raw.active,
            episode_done=raw.episode_done,
            info=raw.info,
            params=params,
        )

    @property
    def agents(self) -> tuple[AgentId, ...]:
        return tuple(self.env.agents)

    @property
    def actions(self) -> dict[AgentId, PyTree]:
        return self.action if isinstance(self.action, dict) else split_agents(self.env, self.action)

    @property
    def rewards(self) -> dict[AgentId, jax.Array]:
        return split_agents(self.env, self.reward)


@dataclass(frozen=True)
class Episode:
    """An episode from its reset to the step at hand."""

    agents: tuple[AgentId, ...]
    length: jax.Array  # i32[]  environment steps
    returns: jax.Array  # f32[M]  undiscounted, in the order of `agents`
    metrics: dict[str, jax.Array]  # {name: f32[]}  the sums of info["metrics"]

    @property
    def agent_returns(self) -> dict[AgentId, jax.Array]:
        return {agent: self.returns[i] for i, agent in enumerate(self.agents)}


class EpisodeCallbacks:
    """The base class of a user's computation along each episode, inside the compiled program.

    All hooks are pure functions of arrays, for one environment; whatever they return follows from
    their arguments. `data` is the callback's own pytree of arrays, whose shapes and types
    `on_episode_start` sets. A hook that is not overridden costs nothing. A class need not be
    derived from this one: any object with some of the hooks will do.
    """

    def on_episode_start(self, state: PyTree, params: PyTree) -> PyTree:
        """The data at an episode's start, from the environment's first state and its numbers."""
        return None

    def on_episode_step(self, data: PyTree, step: EpisodeStep) -> PyTree:
        """The data after a step."""
        return data

    def hist_data(self, data: PyTree, step: EpisodeStep) -> dict[str, jax.Array]:
        """{name: f32[]} of this step: a histogram in results, `env_runners/hist_stats/<name>`."""
        return {}

    def on_episode_end(self, data: PyTree, episode: Episode) -> dict[str, jax.Array]:
        """{name: f32[]} of the finished episode, in results `custom_metrics/<name>_{mean,min,max}`.

        It is computed after every step and kept where the episode ended, so an unfinished one must
        not make it fail. A name that the environment's info["metrics"] has means this number.

        Written as `on_episode_end(self, *, episode, trainer)`, as in RLlib, it is a hook of the
        host: called with whole episodes that are sampled beside training; see docs/callbacks.md.
        So are `on_episode_start` and `on_episode_step`.
        """
        return {}

    def on_postprocess_trajectory(self, policy: PolicyId, trajectory: PyTree) -> PyTree:
        """The `Trajectory` [T, E, M, ...] that `policy` learns from, perhaps with other rewards.

        Statistics of episodes keep the environment's own rewards. Further arguments are there for
        hooks that name them: `next_obs`, the observations that the steps reached, before any reset;
        `metrics_logger`, whose numbers are reported under "learners/<policy>".

        RLlib's `on_sample_end` and `on_learn_on_batch` are called after it, with the same
        arguments, and may return nothing.
        """
        return trajectory


def resolve_callbacks(entries: Iterable[Any]) -> tuple[Any, ...]:
    """The callback of each entry: an instance itself; of a class or `module:Class` a new one.

    Raises:
        UsageError: no such module or class, arguments missing, no hook at all, or one that does not
            exist.
    """
    return tuple(map(_resolve, entries))


def traced_callbacks(entries: Iterable[Any]) -> tuple[Any, ...]:
    """The callbacks with a traced hook; the same objects each time, as compiled programs need."""
    return tuple(map(_resolve_once, traced_entries(entries)))


def traced_entries(entries: Iterable[Any]) -> tuple[Any, ...]:
    """The entries that a compiled program depends on: those that have a traced hook."""
    return tuple(
        entry
        for entry in entries
        if any(has_hook(_resolve_once(entry), hook) for hook in TRACED_HOOKS)
    )


def has_hook(callback: Any, hook: str, idle: type = EpisodeCallbacks) -> bool:
    """Returns whether a hook is defined, other than the idle one of the class `idle`."""
    function = getattr(callback, hook, None)
    is_idle = getattr(function, "__func__", function) is getattr(idle, hook, None)
    if function is None or is_idle or hook not in TRACED_OR_HOST:
        return function is not None and not is_idle
    return takes_an_object(function) == (idle is not EpisodeCallbacks)


def start_data(
    callbacks: tuple, env: MultiAgentEnvironment, state: PyTree, params: PyTree
) -> tuple[PyTree, ...]:
    """Every callback's data at the start of an episode of one environment."""
    state, params = without_task(env, state, params)
    return tuple(
        _first_data(callback, state, params) if has_hook(callback, "on_episode_start") else None
        for callback in callbacks
    )


def _first_data(callback: Any, state: PyTree, params: PyTree) -> PyTree:
    first = call_traced(callback, "on_episode_start", state=state, params=params)
    return arrays(callback, "on_episode_start", first)


def call_back(
    callbacks: tuple,
    data: tuple[PyTree, ...],
    step: EpisodeStep,
    reached: EpisodeStats,
    state: PyTree,
) -> tuple[tuple[PyTree, ...], Logged, Logged]:
    """All hooks of one step of one environment.

    Args:
        reached: the episode as the step left it.
        state: that the environment goes on from, another episode's first where one ended.

    Returns:
        (data, custom, hist_data): the data to go on with; the numbers of the episode, if it ended
        now, and those of the step.
    """
    episode = Episode(step.agents, reached.length, reached.returns, reached.metrics)
    data, logged = _after_step(callbacks, data, step)
    custom = _named_numbers(callbacks, "on_episode_end", data, {"episode": episode})
    hist_data = _named_numbers(callbacks, "hist_data", data, {"step": step}, logged)
    fresh = start_data(callbacks, step.env, state, step.params)
    return restart(step.episode_done, fresh, data), custom, hist_data


def postprocess(
    callbacks: tuple, policies: tuple[PolicyId, ...], trajectories: PyTree
) -> tuple[PyTree, Logged]:
    """(trajectories, logged): a group's as its policies learn from them, [T, N, E, M, ...]."""
    hooks = _trajectory_hooks(callbacks)
    if not hooks:
        return trajectories, {}
    rewritten, logged = [], []
    for i, policy in enumerate(policies):
        trajectory = jax.tree.map(lambda leaf, i=i: leaf[:, i], trajectories)
        logged.append({})
        for callback, hook in hooks:
            trajectory, numbers = _postprocessed(callback, hook, policy, trajectory)
            logged[-1] = together(logged[-1], numbers)
        rewritten.append(trajectory)
    if len({frozenset(numbers) for numbers in logged}) > 1:
        raise UsageError(
            f"policies {', '.join(policies)} are updated together: callbacks must log the same "
            "names for all of them"
        )
    stacked = {
        name: number._replace(value=jnp.stack([numbers[name].value for numbers in logged]))
        for name, number in logged[0].items()
    }
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *rewritten), stacked


def _trajectory_hooks(callbacks: tuple) -> list[tuple[Any, str]]:
    """(callback, hook) of all hooks of the trajectory, in the order of their calls."""
    pairs = [(callback, hook) for callback in callbacks for hook in TRAJECTORY_HOOKS]
    return [(callback, hook) for callback, hook in pairs if has_hook(callback, hook)]


def _postprocessed(
    callback: Any, hook: str, policy: PolicyId, trajectory: PyTree
) -> tuple[PyTree, Logged]:
    """A policy's trajectory after a hook, [T, E, M, ...], and what the hook logged."""
    result: dict[str, Any] = {}  # of RLlib's on_learn_on_batch: a mapping to put numbers into
    batch = SampleBatch.of(trajectory)
    same = dict.fromkeys(("trajectory", "batch", "train_batch", "samples"), batch)
    values = {"policy": policy, **same, "result": result, NEXT_OBS: trajectory.next_obs}
    after, logged = _logging_call(callback, hook, **values)
    after = as_trajectory(after, trajectory)
    source = f"{hook} of {class_name(callback)}"
    put = {name: _number(source, "mean", name, value) for name, value in result.items()}
    logged = together(logged, put)
    if after is None and hook != TRAJECTORY_HOOKS[0]:
        return trajectory, logged
    return alike(callback, hook, "trajectory", trajectory, after), logged


@dataclass(frozen=True)
class TracedCallbacks(Feature):
    """Traced hooks are called. Its slice is the data of each callback, [E, ...]."""

    callbacks: tuple[Any, ...]  # in the order in which they chain
    metrics: tuple[str, ...]
    reductions: tuple[tuple[str, str], ...] = ()
    needs_next_obs: bool = False

    name = CALLBACKS_NAME

    @classmethod
    def of(cls, spec: RolloutSpec, config: Any, env_params: PyTree) -> Self | None:
        callbacks, env = traced_callbacks(config.callbacks), spec.env
        if not callbacks:
            return None

        reductions: list[tuple[str, str]] = []

        def custom_metrics(key):
            state, action, raw = any_step(env, env_params, key)
            num_agents = len(env.agents)
            episodes = no_episodes(num_agents, spec.metrics, always_active=spec.always_active)
            _, reached = episodes_after(spec, episodes, raw)
            data = start_data(callbacks, env, state, env_params)
            step = EpisodeStep.of(env, env_params, action, raw)
            _, custom, hist_data = call_back(callbacks, data, step, reached, raw.state)
            reductions[:] = _reductions(spec.metrics, custom, hist_data)
            return numbers_of(custom)

        metrics = tuple(jax.eval_shape(custom_metrics, shape_of_a_key()))
        return cls(callbacks, metrics, tuple(reductions), _ask_next_obs(callbacks, spec))

    def start(self, spec: RolloutSpec, envs: EnvBatch, begin: Begin) -> PyTree:
        start = lambda state: start_data(self.callbacks, spec.env, state, begin.env_params)
        return jax.vmap(start)(envs.state)

    def after_step(
        self, spec: RolloutSpec, data: PyTree, played: Played, after: After
    ) -> tuple[PyTree, After]:
        def call(data, reached, action, raw, state):
            step = EpisodeStep.of(spec.env, after.env_params, action, raw)
            data, custom, hist_data = call_back(self.callbacks, data, step, reached, state)
            return data, numbers_of(custom), numbers_of(hist_data)

        actions = to_env_actions(spec, played.outputs)
        reached, raw = after.reached, played.raw
        data, custom, hist_data = jax.vmap(call)(data, reached, actions, raw, after.state)
        parts = reached.in_two_parts
        lower = parts.lower.replace(metrics=without(parts.lower.metrics, custom))
        metrics = {**reached.metrics, **custom}
        reached = reached.replace(metrics=metrics, lower=lower).in_two_parts
        hist_data = {**after.hist_data, **hist_data}
        return data, after._replace(reached=reached, hist_data=hist_data)

    def learned(self, policies: tuple[PolicyId, ...], trajectory: PyTree) -> tuple[PyTree, Logged]:
        return postprocess(self.callbacks, policies, trajectory)


def numbers_of(logged: Logged) -> dict[str, jax.Array]:
    """The numbers alone."""
    return {name: number.value for name, number in logged.items()}


def _reductions(env_metrics: tuple[str, ...], custom: Logged, hist_data: Logged) -> list:
    """(name, reduction) of what is logged, which results hold by its name alone.

    Raises:
        UsageError: it would be a number of episodes as well as one of steps.
    """
    of_env = HookNumber(jnp.nan, "", 'the environment\'s info["metrics"]')
    of_episodes = {**dict.fromkeys(env_metrics, of_env), **custom}
    for name, number in hist_data.items():
        other = of_episodes.get(name)
        if other is not None and (number.reduce or other.reduce):
            raise given_twice(name, other, number)
    numbers = (*of_episodes.items(), *hist_data.items())
    return [(name, number.reduce) for name, number in numbers if number.reduce]


def _ask_next_obs(callbacks: tuple, spec: RolloutSpec) -> bool:
    """Returns whether a hook names `next_obs`.

    Raises:
        UsageError: agents wait for their turns, so a step does not lead to their next observation.
    """
    hooks = _trajectory_hooks(callbacks)
    asking = [pair for pair in hooks if names(getattr(*pair), NEXT_OBS)]
    if asking and spec.waits:
        callback, hook = asking[0]
        raise UsageError(
            f"{hook} of callbacks {class_name(callback)} asks for next_obs: agents of "
            f"{spec.env.name} wait for their turns, so a step does not reach their next observation"
        )
    return bool(asking)


def _after_step(
    callbacks: tuple, data: tuple[PyTree, ...], step: EpisodeStep
) -> tuple[tuple[PyTree, ...], Logged]:
    """All callbacks' data after a step, and what they logged."""
    after, logged, hook = [], {}, "on_episode_step"
    for callback, callback_data in zip(callbacks, data, strict=True):
        if has_hook(callback, hook):
            changed, numbers = _logging_call(callback, hook, data=callback_data, step=step)
            callback_data = alike(callback, hook, "data", callback_data, changed)
            logged = together(logged, numbers)
        after.append(callback_data)
    return tuple(after), logged


def _named_numbers(
    callbacks: tuple,
    hook: str,
    data: tuple[PyTree, ...],
    what: Mapping[str, EpisodeStep | Episode],
    logged_before: Logged | None = None,
) -> Logged:
    """The numbers that all callbacks return or log in one hook, by their names."""
    found = logged_before or {}
    for callback, callback_data in zip(callbacks, data, strict=True):
        values, logged = {}, {}
        if has_hook(callback, hook):
            values, logged = _logging_call(callback, hook, data=callback_data, **what)
        source = f"{hook} of {class_name(callback)}"
        values = {} if values is None and logged else values
        if not isinstance(values, Mapping):
            raise UsageError(f"{source} must return {{name: number}}, not {brief(values)}")
        numbers = {name: _number(source, "", name, value) for name, value in values.items()}
        found = together(found, numbers, logged)
    return found


def _number(source: str, reduce: str, name: Any, value: Any) -> HookNumber:
    """A number that a hook returns by its name."""
    return HookNumber(scalar(source, name, value), reduce, source)


def _logging_call(callback: Any, hook: str, **values: Any) -> tuple[Any, Logged]:
    """(what a traced hook returns, what it logs)."""
    if not names(getattr(callback, hook), LOGGER):
        return call_traced(callback, hook, **values), {}
    from jaxrl.rollout.traced_logger import TracedLogger

    logger = TracedLogger(f"{hook} of {class_name(callback)}")
    result = call_traced(callback, hook, **values, metrics_logger=logger)
    return result, logger.numbers()


@functools.cache
def _resolve_once(entry: Any) -> Any:
    return _resolve(entry)


def _resolve(entry: Any) -> Any:
    callback = maker(CALLBACKS, entry)()
    check_hooks(callback)
    return callback
