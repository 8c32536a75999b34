"""Offline algorithms: all that surrounds the update of one policy on recorded episodes.

`offline` makes an `Algorithm` as `on_policy` does, of the same two functions. Its rollouts are
steps drawn from the data with replacement: uniformly, or by its sources' shares. Behaviour cloning
is made of it (`jaxrl.algorithms.bc.bc`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.offline_data import PolicyData, Steps, read_recording
from jaxrl.algorithms.on_policy import (
    HypersByPolicy,
    Iteration,
    LearnerSpec,
    Loop,
    parts_of,
    shared_settings,
    update_keys,
)
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.running_stats import RunningMeanStd
from jaxrl.rollout.env_step import EnvBatch
from jaxrl.rollout.episode_stats import no_episodes, report
from jaxrl.rollout.grouping import each_policy


class Drawn(struct.PyTreeNode):
    """The data of one group's policies in an iteration: T minibatches of B steps."""

    steps: Steps  # [N, T, B, ...]
    ends: Steps | None  # [N, F, ...], as of `PolicyData`
    filter: RunningMeanStd | None  # [N]

    @property
    def num_steps(self) -> int:
        """T x B, of one policy alone: without N."""
        num_minibatches, size, *_ = jax.tree.leaves(self.steps.obs)[0].shape
        return num_minibatches * size


def offline(
    config: AlgorithmConfig,
    init_learner: Callable[[LearnerSpec, PyTree, Key], PyTree],
    update_policy: Callable[..., tuple[PyTree, dict[str, jax.Array]]],
    *,
    learner_spec: Callable[[PolicyId, PolicySpec, bool], LearnerSpec] = shared_settings,
    gamma: float | None = None,
    **shown: Any,
) -> Algorithm:
    """The algorithm that updates each policy on minibatches of recorded steps.

    Args:
        config: has `input`, and `minibatch_size`, which divides `train_batch_size`.
        init_learner: as of `on_policy`.
        update_policy: (spec, learner, drawn, iteration) -> (learner, {metric: f32[]}), of a `Drawn`
            without N.
        learner_spec: as of `on_policy`.
        **shown: as of `on_policy`.
        gamma: the discount of the returns that the data get; None: none.
    """
    parts, trained = parts_of(config, learner_spec)

    def learn_policy(spec, learner, drawn, iteration):
        learner, metrics = update_policy(spec, learner, drawn, iteration)
        return learner, None, metrics

    loop = _OfflineLoop(*parts, init_learner, learn_policy, gamma)
    return loop.algorithm(trained, data=loop.data, **shown)


@dataclasses.dataclass(frozen=True)
class _OfflineLoop(Loop):
    """The functions of an offline `Algorithm`."""

    gamma: float | None

    def data(self) -> tuple[PolicyData | None, ...]:
        return read_recording(self.config, self.rollout_spec, self.gamma).groups

    def init(
        self, key: Key, hypers: HypersByPolicy = None, env_params: PyTree = None
    ) -> RunnerState:
        _, init_key = update_keys(key, 0)
        learners = self.init_learners(init_key, hypers)
        nothing = {feature.name: None for feature in self.rollout_spec.features}
        nowhere = EnvBatch(state=None, obs=(), episodes=None, features=nothing)
        return RunnerState(key, jnp.int32(0), learners, nowhere, self.empty_window())

    def collect(
        self,
        runner: RunnerState,
        weights: PyTree = None,
        env_params: PyTree = None,
        data: PyTree = None,
    ) -> tuple[RunnerState, tuple[Drawn | None, ...]]:
        draw_key, _ = update_keys(runner.key, runner.num_updates + 1)
        data = self.data() if data is None else data
        size = self.config.minibatch_size
        shape = self.config.train_batch_size // size, size
        draw = jax.vmap(functools.partial(_draw, shape))
        keys = self.keys_by_group(draw_key)
        pairs = zip(keys, data, strict=True)
        return runner, tuple(None if of is None else draw(key, of) for key, of in pairs)

    def learn(
        self,
        runner: RunnerState,
        rollout: tuple[Drawn | None, ...],
        hypers: HypersByPolicy = None,
    ) -> tuple[RunnerState, Metrics]:
        _, learn_key = update_keys(runner.key, runner.num_updates + 1)
        env_steps = self.env_steps(runner)
        learners, metrics = list(runner.learners), [{} for _ in runner.learners]
        for g, (spec, numbers, keys) in enumerate(self.by_group(hypers, learn_key)):
            if spec.trained:
                iteration = Iteration(numbers, jnp.broadcast_to(env_steps, len(keys)), keys)
                update = each_policy(functools.partial(self.learn_policy, spec), (0, 0, 0))
                learners[g], _, metrics[g] = update(learners[g], rollout[g], iteration)
        played = self._nothing_played()
        places = self.rollout_spec.grouping.places
        window, episodes = report(runner.window, played, jnp.zeros((1, 1), bool), places=places)
        runner = RunnerState(
            runner.key, runner.num_updates + 1, tuple(learners), runner.envs, window
        )
        agent_steps = jnp.zeros(len(self.rollout_spec.grouping.agents), jnp.int32)
        return runner, Metrics(episodes, agent_steps, tuple(metrics))

    def _nothing_played(self):
        """A step of one environment, [1, 1], in which no episode ends."""
        spec = self.rollout_spec
        names, num_agents = (*spec.metrics, *spec.custom_metrics), len(spec.grouping.agents)
        return no_episodes(num_agents, names, 1, 1, always_active=spec.always_active)


def _draw(shape: tuple[int, int], key: Key, data: PolicyData) -> Drawn:
    """Steps [T, B, ...] of one policy."""
    first, count = 0, data.count
    if (sources := data.sources) is not None:
        key, source_key = jax.random.split(key)
        source = jax.random.choice(source_key, len(sources.share), shape, p=sources.share)
        first, count = sources.first[source], sources.count[source]
    index = first + jax.random.randint(key, shape, 0, count)
    return Drawn(jax.tree.map(lambda leaf: leaf[index], data.steps), data.ends, data.filter)
