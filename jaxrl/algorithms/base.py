"""The resumable state of training, and what an algorithm has to give for a run."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
from flax import struct

from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec
from jaxrl.rollout.episode_stats import EpisodeMetrics, Window
from jaxrl.rollout.policy_map import Grouping
from jaxrl.rollout.rollout import Rollout

# A number of `Metrics.learners`: waits of agents, in an environment that does not say who acts.
UNDECLARED_WAITS = "num_undeclared_waits"


class RunnerState(struct.PyTreeNode):
    """Everything that training needs to go on, arrays only."""

    key: Key  # the run's key; each update folds its own number in
    num_updates: jax.Array  # i32[]  updates done
    learners: tuple[
        PyTree, ...
    ]  # by group: the algorithm's own, with `weights` and `with_weights`, [N, ...]
    envs: EnvBatch
    window: Window  # the last finished episodes


class Metrics(struct.PyTreeNode):
    """What one update reports; all of it on the device."""

    episodes: EpisodeMetrics
    agent_steps: jax.Array  # i32[M_all]  steps in which each agent acted
    learners: tuple[dict[str, jax.Array], ...]  # by group: {name: f32[N]}


@dataclass(frozen=True)
class Algorithm:
    """An algorithm over one environment: an initial state and an update made of two halves, all pure.

    init(key, hypers=None, env_params=None) -> RunnerState
    collect(runner, weights=None, env_params=None) -> (runner, rollout); weights: who acts, by group
    learn(runner, rollout, hypers=None) -> (runner, Metrics)

    The keys of both halves follow from the number of updates done, which `learn` alone moves on:
    collecting twice before learning plays the same random numbers twice. `hypers` is {policy:
    numbers}, and None stands for the configuration's own.
    """

    init: Callable[..., RunnerState]
    collect: Callable[..., tuple[RunnerState, Rollout]]
    learn: Callable[..., tuple[RunnerState, Metrics]]
    rollout_spec: RolloutSpec  # who plays where
    env_params: PyTree
    num_env_steps: int  # environment steps of one update
    trained: tuple[PolicyId, ...]

    @property
    def grouping(self) -> Grouping:
        return self.rollout_spec.grouping

    @property
    def policy_specs(self) -> tuple[PolicySpec, ...]:
        """By group."""
        return self.rollout_spec.policy_specs

    def update(
        self, runner: RunnerState, hypers: PyTree = None, env_params: PyTree = None
    ) -> tuple[RunnerState, Metrics]:
        runner, rollout = self.collect(runner, env_params=env_params)
        return self.learn(runner, rollout, hypers)

    def policy_weights(self, runner: RunnerState, policy: PolicyId) -> PolicyWeights:
        """What one policy acts by, without the stack."""
        group, index = self.grouping.locate(policy)
        return jax.tree.map(lambda leaf: leaf[index], runner.learners[group].weights)

    def with_policy_weights(
        self, runner: RunnerState, policy: PolicyId, weights: PolicyWeights
    ) -> RunnerState:
        """`runner` with one policy's weights replaced."""
        group, index = self.grouping.locate(policy)
        learners = list(runner.learners)
        stacked = jax.tree.map(
            lambda all, own: all.at[index].set(own), learners[group].weights, weights
        )
        learners[group] = learners[group].with_weights(stacked)
        return runner.replace(learners=tuple(learners))
