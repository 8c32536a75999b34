"""Episode callbacks: the contract of traced hooks, how they are found, and their feature."""

import functools
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxrl.core.env import MultiAgentEnvironment, RawStep, restart, split_agents, strongly_typed
from jaxrl.core.errors import UsageError, brief, reason_of, unknown_name
from jaxrl.core.fields import FLOAT32
from jaxrl.core.frozen import is_array
from jaxrl.core.tasks import without_task
from jaxrl.core.trust import Kind, maker
from jaxrl.core.types import AgentId, PolicyId, PyTree, other_form
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec, episodes_after, to_env_actions
from jaxrl.rollout.episode_stats import EpisodeStats, no_episodes
from jaxrl.rollout.feature import After, Begin, Feature, Played
from jaxrl.rollout.first_step import any_step, shape_of_a_key

TRACED_HOOKS = (
    "on_episode_start",
    "on_episode_step",
    "hist_data",
    "on_episode_end",
    "on_postprocess_trajectory",
)
ARGUMENTS = {
    "on_episode_start": ("state", "params"),
    "on_episode_step": ("data", "step"),
    "hist_data": ("data", "step"),
    "on_episode_end": ("data", "episode"),
    "on_postprocess_trajectory": ("policy", "trajectory"),
}
# of the run, between its chunks
HOST_HOOKS = ("on_train_result", "on_evaluate_end", "on_checkpoint", "on_train_end")
# Traced, but on the host where it is written as in RLlib, with `episode` as a keyword alone.
EPISODE_HOOK, EPISODE_ARGUMENTS = "on_episode_end", ("episode", "trainer")


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
        not make it fail.

        Written as `on_episode_end(self, *, episode, trainer)`, as in RLlib, it is a hook of the
        host: called with whole episodes that are sampled beside training; see docs/callbacks.md.
        """
        return {}

    def on_postprocess_trajectory(self, policy: PolicyId, trajectory: PyTree) -> PyTree:
        """The `Trajectory` [T, E, M, ...] that `policy` learns from, perhaps with other rewards.

        Statistics of episodes keep the environment's own rewards.
        """
        return trajectory


def _is_callbacks(found: Any) -> bool:
    """A class or an object with some of the hooks."""
    return any(callable(getattr(found, hook, None)) for hook in (*TRACED_HOOKS, *HOST_HOOKS))


CALLBACKS = Kind(
    "callbacks", "jaxrl.callbacks", "a class derived from jaxrl.Callbacks", _is_callbacks
)


def resolve_callbacks(entries: Iterable[Any]) -> tuple[Any, ...]:
    """The callback of each entry: an instance itself; of a class or `module:Class` a new one.

    Raises:
        UsageError: no such module or class, arguments missing, no hook at all, or one that does not
            exist.
    """
    return tuple(map(_resolve, entries))


def traced_callbacks(entries: Iterable[Any]) -> tuple[Any, ...]:
    """The callbacks with a traced hook; the same objects each time, as compiled programs need."""
    return tuple(map(_resolve_once, traced(entries)))


def traced(entries: Iterable[Any]) -> tuple[Any, ...]:
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
    if function is None or is_idle or hook != EPISODE_HOOK:
        return function is not None and not is_idle
    return takes_an_object(function) == (idle is not EpisodeCallbacks)


def takes_an_object(on_episode_end: Any) -> bool:
    """Returns whether it is the host's, called with keywords: (*, episode, ...)."""
    try:
        parameters = inspect.signature(on_episode_end).parameters
    except (TypeError, ValueError):  # none at all, or a built-in without a signature
        return False
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    kinds = [parameter.kind for parameter in parameters.values()]
    return "episode" in parameters and all(kind in by_keyword for kind in kinds)


def episode_arguments(on_episode_end: Any, *values: Any) -> dict[str, Any]:
    """The arguments among EPISODE_ARGUMENTS that it takes, with their values."""
    parameters = inspect.signature(on_episode_end).parameters
    takes_any = any(param.kind is inspect.Parameter.VAR_KEYWORD for param in parameters.values())
    return {
        name: value
        for name, value in zip(EPISODE_ARGUMENTS, values, strict=True)
        if takes_any or name in parameters
    }


def start_data(
    callbacks: tuple, env: MultiAgentEnvironment, state: PyTree, params: PyTree
) -> tuple[PyTree, ...]:
    """Every callback's data at the start of an episode of one environment."""
    state, params = without_task(env, state, params)
    return tuple(
        _arrays(callback, "on_episode_start", _call(callback, "on_episode_start", state, params))
        if has_hook(callback, "on_episode_start")
        else None
        for callback in callbacks
    )


def call_back(
    callbacks: tuple,
    data: tuple[PyTree, ...],
    step: EpisodeStep,
    reached: EpisodeStats,
    state: PyTree,
) -> tuple[tuple[PyTree, ...], dict[str, jax.Array], dict[str, jax.Array]]:
    """All hooks of one step of one environment.

    Args:
        reached: the episode as the step left it.
        state: that the environment goes on from, another episode's first where one ended.

    Returns:
        (data, custom, hist_data): the data to go on with; {name: f32[]} of `on_episode_end` and of
        `hist_data`.
    """
    episode = Episode(step.agents, reached.length, reached.returns, reached.metrics)
    data = tuple(map(functools.partial(_after_step, step), callbacks, data))
    custom = _named_scalars(callbacks, "on_episode_end", data, episode, taken=reached.metrics)
    hist_data = _named_scalars(callbacks, "hist_data", data, step)
    fresh = start_data(callbacks, step.env, state, step.params)
    return restart(step.episode_done, fresh, data), custom, hist_data


def postprocess(callbacks: tuple, policies: tuple[PolicyId, ...], trajectories: PyTree) -> PyTree:
    """The stacked trajectories of a group as its policies learn from them, [T, N, E, M, ...]."""
    rewriting = [
        callback for callback in callbacks if has_hook(callback, "on_postprocess_trajectory")
    ]
    if not rewriting:
        return trajectories
    rewritten = []
    for i, policy in enumerate(policies):
        trajectory = jax.tree.map(lambda leaf, i=i: leaf[:, i], trajectories)
        for callback in rewriting:
            after = _call(callback, "on_postprocess_trajectory", policy, trajectory)
            trajectory = _alike(
                callback, "on_postprocess_trajectory", "trajectory", trajectory, after
            )
        rewritten.append(trajectory)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *rewritten)


@dataclass(frozen=True)
class TracedCallbacks(Feature):
    """Traced hooks are called. Its slice is the data of each callback, [E, ...]."""

    callbacks: tuple[Any, ...]  # in the order in which they chain
    metrics: tuple[str, ...]

    name = "callbacks"

    @classmethod
    def of(cls, spec: RolloutSpec, config: Any, env_params: PyTree) -> Self | None:
        """The feature of the configuration's callbacks.

        Raises:
            UsageError: callbacks that break their contract, or clash with each other or with the
                environment.
        """
        callbacks, env = traced_callbacks(config.callbacks), spec.env
        if not callbacks:
            return None

        def custom_metrics(key):
            state, action, raw = any_step(env, env_params, key)
            num_agents = len(env.agents)
            episodes = no_episodes(num_agents, spec.metrics, always_active=spec.always_active)
            _, reached = episodes_after(spec, episodes, raw)
            data = start_data(callbacks, env, state, env_params)
            step = EpisodeStep.of(env, env_params, action, raw)
            return call_back(callbacks, data, step, reached, raw.state)[1]

        return cls(callbacks, tuple(jax.eval_shape(custom_metrics, shape_of_a_key())))

    def start(self, spec: RolloutSpec, envs: EnvBatch, begin: Begin) -> PyTree:
        start = lambda state: start_data(self.callbacks, spec.env, state, begin.env_params)
        return jax.vmap(start)(envs.state)

    def after_step(
        self, spec: RolloutSpec, data: PyTree, played: Played, after: After
    ) -> tuple[PyTree, After]:
        def call(data, reached, action, raw, state):
            step = EpisodeStep.of(spec.env, after.env_params, action, raw)
            return call_back(self.callbacks, data, step, reached, state)

        actions = to_env_actions(spec, played.outputs)
        reached, raw = after.reached, played.raw
        data, custom, hist_data = jax.vmap(call)(data, reached, actions, raw, after.state)
        reached = reached.replace(metrics={**reached.metrics, **custom}).in_two_parts
        hist_data = {**after.hist_data, **hist_data}
        return data, after._replace(reached=reached, hist_data=hist_data)

    def learned(self, policies: tuple[PolicyId, ...], trajectory: PyTree) -> PyTree:
        return postprocess(self.callbacks, policies, trajectory)


def _after_step(step: EpisodeStep, callback: Any, data: PyTree) -> PyTree:
    """A callback's data after a step."""
    if not has_hook(callback, "on_episode_step"):
        return data
    after = _call(callback, "on_episode_step", data, step)
    return _alike(callback, "on_episode_step", "data", data, after)


@functools.cache
def _resolve_once(entry: Any) -> Any:
    return _resolve(entry)


def _resolve(entry: Any) -> Any:
    return _checked(maker(CALLBACKS, entry)())


def _checked(callback: Any) -> Any:
    """The callback, if it has a hook and none that nobody would call."""
    for name in dir(callback):
        if name.startswith("on_") and name not in (*TRACED_HOOKS, *HOST_HOOKS):
            raise unknown_name(
                "hook",
                name,
                (*TRACED_HOOKS, *HOST_HOOKS),
                f"of callbacks {class_name(callback)}",
            )
    if not any(hasattr(callback, hook) for hook in (*TRACED_HOOKS, *HOST_HOOKS)):
        hooks = ", ".join((*TRACED_HOOKS, *HOST_HOOKS))
        raise UsageError(f"callbacks {brief(callback)} have none of the hooks {hooks}")
    for hook in (*TRACED_HOOKS, *HOST_HOOKS):
        if getattr(callback, hook, None) is not None:
            _check_signature(callback, hook)
    return callback


def _call(callback: Any, hook: str, *arguments: Any) -> Any:
    """The result of a traced hook; where it fails, one line that names it."""
    try:
        return getattr(callback, hook)(*arguments)
    except (UsageError, FloatingPointError):  # of jax_debug_nans, which `find_nan` waits for
        raise
    except Exception as error:
        raise UsageError(
            f"{hook} of callbacks {class_name(callback)} fails as it is traced: {reason_of(error)}"
        ) from error


def _check_signature(callback: Any, hook: str) -> None:
    """Every hook takes two arguments, beside the object itself."""
    meant = ARGUMENTS.get(hook, ("trainer", "path" if hook == "on_checkpoint" else "result"))
    function = getattr(callback, hook)
    if not callable(function):
        raise UsageError(
            f"{hook} of callbacks {class_name(callback)} must be a method, not {brief(function)}"
        )
    keywords: dict[str, Any] = {}
    if hook == EPISODE_HOOK and takes_an_object(function):
        keywords = episode_arguments(function, *EPISODE_ARGUMENTS)
        meant = ("*", *EPISODE_ARGUMENTS)
    try:
        inspect.signature(function).bind(*(() if keywords else meant), **keywords)
    except ValueError:  # a built-in without a signature
        pass
    except TypeError as error:
        raise UsageError(
            f"{hook} of callbacks {class_name(callback)} must take ({', '.join(meant)}): {error}"
        ) from None


def _named_scalars(
    callbacks: tuple,
    hook: str,
    data: tuple[PyTree, ...],
    what: EpisodeStep | Episode,
    taken: Iterable[str] = (),
) -> dict[str, jax.Array]:
    """{name: f32[]} of all callbacks by one hook; `taken`: names of info["metrics"], reserved."""
    owner = dict.fromkeys(taken, "the environment's info['metrics']")
    scalars = {}
    for callback, callback_data in zip(callbacks, data, strict=True):
        values = _call(callback, hook, callback_data, what) if has_hook(callback, hook) else {}
        source = f"{hook} of {class_name(callback)}"
        if not isinstance(values, Mapping):
            raise UsageError(f"{source} must return {{name: number}}, not {brief(values)}")
        for name, value in values.items():
            if name in owner:
                raise UsageError(f"{name!r} is given twice: by {owner[name]} and by {source}")
            owner[name], scalars[name] = source, _scalar(source, name, value)
    return scalars


def _scalar(source: str, name: Any, value: Any) -> jax.Array:
    """A number that a hook gives by its name, f32[]."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"{source}: a number's name must be a text, not {brief(name)}")
    dtype = value.dtype if is_array(value) else type(value)
    is_real = dtype in (int, float, bool) or any(
        jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer)
    )
    shown = f"of shape {list(value.shape)}" if is_array(value) and value.shape else brief(value)
    if not is_real or jnp.shape(value) or (dtype is int and abs(value) > FLOAT32):
        raise UsageError(f"{source}: {name!r} must be one number, not {shown}")
    return jnp.asarray(value, jnp.float32)


def _alike(callback: Any, hook: str, what: str, before: PyTree, after: PyTree) -> PyTree:
    """`after`, once its structure, shapes and types are those of `before`."""
    after = _arrays(callback, hook, after)
    if difference := other_form(before, after, what):
        raise UsageError(
            f"{hook} of {class_name(callback)} must return the {what} in the form it was given: "
            f"{difference}"
        )
    return after


def _arrays(callback: Any, hook: str, value: Any) -> PyTree:
    """The value of a hook, as arrays of types that do not change with what they meet."""
    try:
        return strongly_typed(value)
    except Exception:  # of many kinds, the last ones where a value holds itself
        raise UsageError(
            f"{hook} of {class_name(callback)} must return arrays of numbers, alone or in tuples, "
            f"lists and dicts, not {brief(value)}"
        ) from None


def class_name(callback: Any) -> str:
    """The name of its class."""
    return type(callback).__qualname__
