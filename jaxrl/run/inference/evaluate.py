"""Whole episodes with frozen policies, exactly as many as asked: a program of its own.

Episode i of a seed has keys of its own, whichever episodes are played beside it, and of every
environment just the first episode counts: so neither the batch nor an episode's length decides what
is counted.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.core.env import restart, strongly_typed
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import UINT32, count, flag, freeze, pairs
from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.rollout.env_step import (
    EnvBatch,
    RolloutSpec,
    StepRandomness,
    advance_envs,
    draw_randomness,
    reset_envs,
    step_envs,
)
from jaxrl.rollout.episode_stats import EpisodeStats, no_episodes, summarise
from jaxrl.run.devices.mesh import on_first_device
from jaxrl.run.results import Result, episode_results

EVALUATION = 0x6576616C  # folded into the seed's key: evaluation never shares numbers with training
AT_ONCE = 128  # episodes side by side, at most
STEPS_PER_CALL = 1000  # between two looks at the host: a Ctrl-C that breaks off is heard there
MAX_STEPS = 1_000_000  # of one episode; more means that the environment has no clock


class EvaluationState(struct.PyTreeNode):
    """E episodes under way."""

    envs: EnvBatch  # [E]
    index: jax.Array  # i32[E]  the episodes' numbers
    num_steps: jax.Array  # i32[]
    done: jax.Array  # bool[E]
    finished: EpisodeStats  # [E]  as they ended


def evaluate(
    algorithm: Algorithm,
    weights: tuple[PolicyWeights, ...],
    env_params: PyTree = None,
    *,
    episodes: int = 10,
    explore: bool = False,
    seed: int = 0,
) -> Result:
    """Plays `episodes` whole episodes.

    Args:
        weights: of every policy, by group, [N, ...].
        env_params: default: the algorithm's.
        explore: whether actions are sampled; else each is its distribution's mode.

    Returns:
        RLlib's tree as under `env_runners`, with `episode_return_std` and `episode_len_std` (of the
        episodes, ddof 0).
    """
    params = strongly_typed(algorithm.env_params if env_params is None else env_params)
    weights, together = on_first_device(weights), min(episodes, AT_ONCE)
    batches = []
    for first in range(0, episodes, together):
        finished = _play_batch(
            algorithm.rollout_spec, explore, weights, params, seed, first + np.arange(together)
        )
        count = min(together, episodes - first)  # of the last batch what is beyond is dropped
        batches.append(jax.tree.map(lambda leaf, count=count: np.asarray(leaf)[:count], finished))
    played = jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
    summary = jax.tree.map(np.asarray, summarise(played, jnp.ones(episodes, bool)))
    returns, lengths = played.returns.sum(axis=-1), played.length
    return {
        **episode_results(algorithm, summary),
        "episode_return_std": float(returns.std()),
        "episode_len_std": float(lengths.std()),
        "num_episodes": episodes,
        "num_env_steps_sampled": int(lengths.sum()),
    }


def episode_keys(seed: int) -> tuple[Key, Key]:
    """(reset_key, play_key) of a seed's episodes.

    Episode i is reset with fold_in(reset_key, i); its step t has the random numbers of
    `step_chance`.
    """
    return tuple(
        jax.random.split(jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), EVALUATION))
    )


def step_chance(
    spec: RolloutSpec, play_key: Key, index: jax.Array, step: jax.Array
) -> StepRandomness:
    """The random numbers of a step of the episodes `index`, i32[E], whatever else is played."""
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(play_key, i), step))(index)
    return jax.tree.map(lambda leaf: leaf[0], draw_randomness(spec, keys, 1))


class Evaluation:
    """A run's evaluation by its settings, over its environment or one with other arguments.

    Raises:
        UsageError: other arguments for an environment that is no name, or such as change agents or
            spaces.
    """

    def __init__(self, config: Any, algorithm: Algorithm, settings: Any):
        self.config, self.settings, self.trained = config, settings, algorithm
        self._algorithms: dict[Any, Algorithm] = {}  # by the arguments that differ
        self._over(settings.evaluation_env_args)

    def due(self, iteration: int, *, at_the_end: bool = False) -> bool:
        """Whether an evaluation is due: at the interval, and at the end of training."""
        interval = self.settings.evaluation_interval
        return interval is not None and (at_the_end or iteration % interval == 0)

    def __call__(self, runner: RunnerState, env_params: PyTree, **changes: Any) -> Result:
        """{"env_runners": ...} of the policies in `runner`.

        Args:
            env_params: the environment's numbers, used unless it is made with other arguments than
                training's.
            **changes: episodes, explore, seed or env_args in place of the settings', where they are
                not None.
        """
        wanted = {
            "episodes": self.settings.evaluation_duration,
            "explore": self.settings.evaluation_explore,
            "seed": self.settings.evaluation_seed,
            "env_args": self.settings.evaluation_env_args,
            **{name: value for name, value in changes.items() if value is not None},
        }
        check_wanted(wanted)
        env_args = wanted.pop("env_args")
        algorithm = self._over(env_args)
        weights = tuple(learner.weights for learner in runner.learners)
        return {
            "env_runners": evaluate(
                algorithm, weights, algorithm.env_params if env_args else env_params, **wanted
            )
        }

    def _over(self, env_args: Any) -> Algorithm:
        """Training's algorithm, or one over an environment with other arguments, compiled once."""
        if not env_args:
            return self.trained
        known = freeze(env_args)
        if known not in self._algorithms:
            self._algorithms[known] = with_arguments(self.config, dict(env_args), self.trained)
        return self._algorithms[known]


def check_wanted(wanted: Mapping[str, Any]) -> None:
    """Refuses episodes, a seed, `explore` or `env_args` that are not of their kind."""
    count()("episodes", wanted["episodes"])
    flag("explore", wanted["explore"])
    count(0, UINT32)("seed", wanted["seed"])
    pairs("{name: value}")("env_args", freeze(wanted["env_args"]))


def with_arguments(config: Any, env_args: dict[str, Any], trained: Algorithm) -> Algorithm:
    """The algorithm over the configuration's environment made with some other arguments."""
    if not isinstance(config.env, str):
        raise UsageError(
            f"env_args={env_args} need an environment by name; {config.env_name} is made already"
        )
    others = config.replace(env_args={**dict(config.env_args), **env_args}).build()
    if others.grouping != trained.grouping:
        raise UsageError(
            f"env_args={env_args} change the agents or their spaces: the policies were trained for "
            "others"
        )
    return others


def _play_batch(
    spec: RolloutSpec, explore: bool, weights: tuple, env_params: PyTree, seed: int, index: Any
) -> EpisodeStats:
    keys = episode_keys(seed)
    playing = _start(spec, keys[0], jnp.asarray(index, jnp.int32), env_params)
    while not bool(jnp.all(playing.done)):
        if int(playing.num_steps) > MAX_STEPS:
            raise UsageError(
                f"evaluation: an episode of {spec.env.name} did not end within {MAX_STEPS:,} steps"
            )
        playing = _go_on(spec, explore, weights, env_params, keys[1], playing)
    return playing.finished


@functools.partial(jax.jit, static_argnums=0)
def _start(spec: RolloutSpec, key: Key, index: jax.Array, env_params: PyTree) -> EvaluationState:
    envs = reset_envs(spec, key, index, env_params)
    metrics = (*spec.metrics, *spec.custom_metrics)
    num_agents, always_active = len(spec.grouping.agents), spec.always_active
    finished = no_episodes(num_agents, metrics, len(index), always_active=always_active)
    return EvaluationState(envs, index, jnp.int32(0), jnp.zeros(index.shape, bool), finished)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _go_on(
    spec: RolloutSpec,
    explore: bool,
    weights: tuple,
    env_params: PyTree,
    key: Key,
    playing: EvaluationState,
) -> EvaluationState:
    """Plays on until all episodes are over, `STEPS_PER_CALL` steps at most."""
    last = playing.num_steps + STEPS_PER_CALL

    def goes_on(playing):
        return ~jnp.all(playing.done) & (playing.num_steps < last)

    def step(playing):
        randomness = step_chance(spec, key, playing.index, playing.num_steps)
        acted, raw = step_envs(spec, weights, playing.envs, randomness, env_params, explore=explore)
        envs, reached, _ = advance_envs(spec, playing.envs, acted, raw, randomness, env_params)
        first_end = raw.episode_done & ~playing.done
        return EvaluationState(
            envs=envs,
            index=playing.index,
            num_steps=playing.num_steps + 1,
            done=playing.done | raw.episode_done,
            finished=jax.vmap(restart)(first_end, reached, playing.finished),
        )

    return jax.lax.while_loop(goes_on, step, playing)
