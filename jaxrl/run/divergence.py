"""Source of the first NaN of a training: the failing rollout, played again and watched.

The rollout is compiled again for this, with the environment's state in view; a healthy training
never pays for it.
"""

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.core.types import PyTree
from jaxrl.rollout.episode_callbacks import EpisodeStep, TracedCallbacks
from jaxrl.rollout.grouping import Grouping
from jaxrl.rollout.rollout import Rollout
from jaxrl.run.health import LARGE

MARK = (
    "first bad number: "  # in front of the names that the watch reports by, which no callback uses
)
# The order in which the numbers of one step follow from each other.
OBSERVATION, ACTION, STATE, REWARD, METRIC, FINAL = range(6)


class Found(NamedTuple):
    """A number that is NaN, infinite or too large; the least of these tuples came first."""

    step: int  # of the rollout, from 0
    rank: int
    env: int
    what: str


@dataclass(frozen=True)
class StateWatch:
    """Traced callback: whether state, rewards and metrics of a step hold a bad number, as 1.0."""

    def hist_data(self, data: PyTree, step: EpisodeStep) -> dict[str, jax.Array]:
        flags = {}
        for path, leaf in jax.tree.leaves_with_path(step.state):
            # In a state infinity may be a value like any other, so NaN alone counts.
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                flags[f"{STATE}state{jax.tree_util.keystr(path)}"] = jnp.any(jnp.isnan(leaf))
        for agent, reward in step.rewards.items():
            flags[f"{REWARD}the reward of agent {agent!r}"] = ~(jnp.abs(reward) <= LARGE)
        for name, value in step.info.get("metrics", {}).items():
            flags[f"{METRIC}info['metrics'][{name!r}]"] = ~jnp.isfinite(value)
        return {MARK + name: jnp.float32(flag) for name, flag in flags.items()}


WATCH = StateWatch()


def with_operation(text: str, trainer: Any) -> str:
    """`text`, with what is known of a bad number in the iteration after a trainer's state."""
    if jax.process_count() == 1 and not trainer.config.is_offline:
        text = with_source(text, trainer.config, trainer.runner, trainer.env_params)
    if not trainer.settings.debug:
        return f"{text}; --debug names the operation"
    trainer.progress.say("running the iteration again, uncompiled, to find the operation ...")
    runner = trainer.processes.gather(trainer.runner)
    numbers = trainer.hypers, trainer.env_params, trainer.data
    return f"{text}\n{find_nan(trainer.algorithm, runner, *numbers)}"


def with_source(text: str, config: Any, runner: RunnerState, env_params: PyTree) -> str:
    """`text` and what `find_source` finds; no failure of the search may hide what is known."""
    with contextlib.suppress(Exception):
        text += f"; {find_source(config, runner, env_params)}"
    return text


def find_source(config: Any, runner: RunnerState, env_params: PyTree) -> str:
    """Plays the iteration after `runner` again; names its first bad number in a few words.

    Args:
        config: the run's configuration.
        runner: the last good state, whole and on any device.
    """
    collect, grouping, data = _watched(config.static())
    features = runner.envs.features
    name, callbacks = TracedCallbacks.name, features.get(TracedCallbacks.name, ())
    features = {**features, name: (*callbacks, *data)}
    runner = jax.device_put(runner, jax.devices()[0])
    before = runner.envs
    after, rollout = collect(runner.replace(envs=before.replace(features=features)), env_params)
    nan_paths = {path for path, leaf in jax.tree.leaves_with_path(before.state) if _has_nan(leaf)}
    found = [*_in_flags(rollout, nan_paths), *_in_trajectories(grouping, rollout)]
    steps = rollout.episode_done.shape[0]
    for group, obs in zip(grouping.groups, after.envs.obs, strict=True):
        found += _of_agents(
            group.agents, _bad(obs, 3)[None], steps, OBSERVATION, "the observation of agent"
        )
    if not found:
        return "observations, states, rewards and metrics are finite there, so it arose in learning"
    first, num_envs = min(found), rollout.episode_done.shape[1]
    when = f"after step {first.step}" if first.rank == OBSERVATION else f"in step {first.step + 1}"
    where = (
        f"{first.what}, {when} of {steps}, environment {first.env} of {num_envs} (counted from 0)"
    )
    return f"the first number that is NaN, infinite or beyond {LARGE:g} is {where}"


@functools.lru_cache(maxsize=4)
def _watched(static_config: Any) -> tuple[Callable, Grouping, tuple]:
    """(collect(runner, env_params), grouping, the watch's data) of the algorithm with the watch."""
    algorithm = static_config.replace(callbacks=(*static_config.callbacks, WATCH)).build()
    collect = jax.jit(lambda runner, env_params: algorithm.collect(runner, env_params=env_params))
    return collect, algorithm.grouping, (None,)


def _in_flags(rollout: Rollout, nan_paths: set) -> Iterator[Found]:
    """The watch's findings, without the parts of the state that held NaN in a healthy training."""
    nan_names = {f"{STATE}state{jax.tree_util.keystr(path)}" for path in nan_paths}
    for name, flags in rollout.hist_data.items():
        if name.startswith(MARK) and (name := name.removeprefix(MARK)) not in nan_names:
            for step, env in _first(np.asarray(flags) > 0):
                yield Found(step, int(name[0]), env, name[1:])


def _in_trajectories(grouping: Grouping, rollout: Rollout) -> Iterator[Found]:
    """Observations, actions, and episodes' last observations, by the network's value of them."""
    done = np.asarray(rollout.episode_done)[:, None, :, None]
    for group, trajectory in zip(grouping.groups, rollout.trajectories, strict=True):
        obs, action = _bad(trajectory.obs, 4), _bad(trajectory.action, 4)
        last = (
            done
            & _bad(trajectory.next_value, 4)
            & np.asarray(trajectory.active & ~trajectory.terminated)
            & ~_bad(trajectory.value, 4)
        )
        yield from _of_agents(group.agents, obs, 0, OBSERVATION, "the observation of agent")
        yield from _of_agents(group.agents, action, 0, ACTION, "the action of agent")
        yield from _of_agents(group.agents, last, 0, FINAL, "the last observation of agent")


def _of_agents(agents: tuple, bad: np.ndarray, step: int, rank: int, what: str) -> Iterator[Found]:
    """The first of `bad`, bool[T, N, E, M], by agent; step 0 of it is `step` of the rollout."""
    for i, policy_agents in enumerate(agents):
        for j, agent in enumerate(policy_agents):
            for t, env in _first(bad[:, i, :, j]):
                yield Found(step + t, rank, env, f"{what} {agent!r}")


def _first(bad: np.ndarray) -> list[tuple[int, int]]:
    """[(step, environment)] of the first entry that is set in bool[T, E], or []."""
    return [tuple(map(int, np.argwhere(bad)[0]))] if bad.any() else []


def _bad(tree: PyTree, num_axes: int) -> np.ndarray:
    """bool, the first `num_axes` axes: whether any number there is NaN, infinite or too large."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    flat = [leaf.reshape(*leaf.shape[:num_axes], -1) for leaf in leaves]
    flags = [np.any(~(np.abs(leaf.astype(np.float32)) <= LARGE), axis=-1) for leaf in flat]
    return np.any(flags, axis=0)


def _has_nan(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating) and bool(jnp.any(jnp.isnan(leaf)))


def find_nan(algorithm: Algorithm, runner: RunnerState, *numbers: PyTree) -> str:
    """The place of the first NaN in the update after `runner`, which is run uncompiled for it.

    Slow: seconds to minutes.

    Args:
        numbers: hypers, env_params and data.
    """
    try:
        with jax.disable_jit(), jax.debug_nans(True), jax.debug_infs(False):
            algorithm.update(jax.device_put(runner), *numbers)
    except FloatingPointError as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if "site-packages" not in frame.filename
        ]
        lines = [
            f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames
        ]
        return "\n".join(
            [f"uncompiled, the first one arises here ({str(error).splitlines()[0]}):", *lines[-6:]]
        )
    return (
        "uncompiled, the same update met no NaN: the number overflowed, or compiling reordered the "
        "arithmetic"
    )
