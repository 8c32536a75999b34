"""`Algorithm`: the pure functions that train, and what a run shows; `RunnerState`: their state."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from flax import struct

from jaxrl.core.env import has_outside_state
from jaxrl.core.errors import AnswersOtherWords, UsageError, brief, counted
from jaxrl.core.plan import Line
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.model import model_table, num_parameters
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec
from jaxrl.rollout.episode_stats import EpisodeMetrics, Window
from jaxrl.rollout.grouping import Grouping
from jaxrl.rollout.rollout import Rollout

if TYPE_CHECKING:
    from jaxrl.algorithms.opponents import Pool, PoolMetrics, PoolState
    from jaxrl.rollout.recorded_steps import RecordedSteps


class RunnerState(struct.PyTreeNode):
    """Everything that training needs to go on, arrays only."""

    key: Key  # the run's key; each update folds its own number in
    num_updates: jax.Array  # i32[]  updates done
    # By group, [N, ...]: the algorithm's own pytree, with `weights` and `with_weights(weights)`.
    learners: tuple[PyTree, ...]
    envs: EnvBatch
    window: Window  # the last finished episodes
    opponents: "PoolState | None" = None  # where the configuration has a pool


class Metrics(struct.PyTreeNode):
    """The metrics of one update; all of it on the device."""

    episodes: EpisodeMetrics
    agent_steps: jax.Array  # i32[M_all]  steps in which each agent acted
    learners: tuple[dict[str, jax.Array], ...]  # by group: {name: f32[N]}
    opponents: "PoolMetrics | None" = None  # where the configuration has a pool


class HeadlineMetric(NamedTuple):
    """A number of `Metrics.learners` that people follow, on the console and as curves."""

    name: str  # its key in `Metrics.learners`, and so in the results: learners/<policy>/<name>
    title: str  # of its panel
    label: str = ""  # on the console; "": it is not shown there
    form: str = ".4f"  # of its value on the console
    target: str = ""  # the setting that it should come near to, drawn as a line
    linear: bool = False  # whether its panel stays linear where values span decades


# (kind, text) of everything in an iteration's result tree that deserves a warning should it last.
Diagnostics = Callable[[Any, Mapping[str, Any]], list[tuple[str, str]]]


def no_diagnostics(config: Any, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    return []


def no_data() -> None:
    """The recorded steps of an algorithm that plays."""


def describe(config: Any) -> list[Line]:
    """The plan of any algorithm: environment, sizes, and the policies that play."""
    algorithm = config.build()
    lines = [environment_line(config), batch_line(config), *policy_lines(algorithm)]
    return [*lines, *idle_lines(config)]


def environment_line(config: Any) -> Line:
    """The environment and its arguments."""
    env_args = "".join(f"  {name}={value}" for name, value in config.env_args)
    return "environment", f"{config.env_name}{env_args}"


def batch_line(config: Any) -> Line:
    """The sizes of an iteration, and how much is played in all."""
    return "batch", (
        f"{counted(config.num_envs, 'environment')} x {counted(config.rollout_length, 'step')} = "
        f"{counted(config.train_batch_size, 'environment step')} an iteration; "
        f"{counted(config.num_updates, 'iteration')}, "
        f"{counted(config.num_updates * config.train_batch_size, 'step')}"
    )


def idle_lines(config: Any) -> list[Line]:
    """Lines on the policies that play nobody."""
    return [("policy", f"{policy} plays nobody") for policy in config.setup().idle]


def policy_lines(algorithm: "Algorithm", of_trained: str = "") -> list[Line]:
    """Lines on who plays whom with how many parameters; `of_trained` ends those of learners."""
    lines = []
    for group, policy_spec in zip(algorithm.grouping.groups, algorithm.policy_specs, strict=True):
        size = f"{num_parameters(policy_spec.model):,} parameters"
        for policy, agents in zip(group.policies, group.agents, strict=True):
            what = of_trained if policy in algorithm.trained else ", not trained"
            if algorithm.opponents is not None and group.structure.drawn:
                what = f", played by {algorithm.opponents.describe()}"
            lines.append(("policy", f"{policy} plays {', '.join(agents)}: {size}{what}"))
    return lines


@dataclass(frozen=True)
class Algorithm(AnswersOtherWords):
    """An algorithm over one environment: an initial state and an update of two halves, all pure.

    init(key, hypers=None, env_params=None) -> RunnerState
    collect(runner, weights=None, env_params=None) -> (runner, rollout); weights: who acts, by group
    learn(runner, rollout, hypers=None) -> (runner, Metrics)

    An algorithm that learns from recorded steps has `data`, and its `collect` takes what that
    returns as `data=`, so that a compiled program does not have to hold it; None reads it.

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
    headline_metrics: tuple[HeadlineMetric, ...] = ()  # the most important one first
    # Keys of `Metrics.learners`, those first where NaN comes from rather than spreads to.
    root_cause_metrics: tuple[str, ...] = ()
    diagnostics: Diagnostics = no_diagnostics  # of (configuration, result)
    describe: Callable[[Any], list[Line]] = describe  # the plan of a configuration
    data: Callable[[], PyTree] = no_data  # reads the recorded steps; None where it plays
    opponents: "Pool | None" = None  # who plays for one of the policies, drawn for each episode

    @property
    def grouping(self) -> Grouping:
        return self.rollout_spec.grouping

    @property
    def policy_specs(self) -> tuple[PolicySpec, ...]:
        """The specifications of the policies, by group."""
        return self.rollout_spec.policy_specs

    @property
    def plays(self) -> bool:
        """True if training steps environments; otherwise it learns from recorded steps."""
        return self.data is no_data

    @property
    def plays_outside(self) -> bool:
        """True if training steps environments whose episodes no compiled program holds."""
        return self.plays and has_outside_state(self.rollout_spec.env)

    def update(
        self,
        runner: RunnerState,
        hypers: PyTree = None,
        env_params: PyTree = None,
        data: PyTree | None = None,
    ) -> tuple[RunnerState, Metrics]:
        return self.recorded_update(runner, hypers, env_params, data)[:2]

    def recorded_update(
        self,
        runner: RunnerState,
        hypers: PyTree = None,
        env_params: PyTree = None,
        data: PyTree | None = None,
    ) -> "tuple[RunnerState, Metrics, RecordedSteps | None]":
        """`update`, with the steps that a `recording` algorithm keeps; None of any other."""
        keywords = {} if data is None else {"data": data}
        runner, rollout = self.collect(runner, env_params=env_params, **keywords)
        runner, metrics = self.learn(runner, rollout, hypers)
        return runner, metrics, rollout.recorded if self.plays else None

    def recording(self, num_envs: int) -> "Algorithm":
        """This algorithm, whose rollouts hold the steps of the first environments as well."""
        collect = functools.partial(self.collect, num_recorded=num_envs)
        return dataclasses.replace(self, collect=collect)

    def networks(self) -> str:
        """Every network's layers, shapes and parameters; one alike for several policies once."""
        tables: dict[Any, list[PolicyId]] = {}
        for group, policy_spec in zip(self.grouping.groups, self.policy_specs, strict=True):
            tables.setdefault(policy_spec.model, []).extend(group.policies)
        return "\n\n".join(
            f"{', '.join(policies)}\n{model_table(model)}" for model, policies in tables.items()
        )

    def policy_weights(self, runner: RunnerState, policy: PolicyId) -> PolicyWeights:
        """The weights by which one policy acts, without the stack."""
        group, index = self.grouping.locate(policy)
        return jax.tree.map(lambda leaf: leaf[index], runner.learners[group].weights)

    def acting_weights(
        self, runner: RunnerState, opponent: str | None = None
    ) -> tuple[PyTree, ...]:
        """The weights of those who act outside of training, by group.

        Args:
            opponent: who plays for the policy of the pool: a member's name, or "pool" for all of
                them; None: the newest copy.

        Raises:
            UsageError: there is no pool, or no such member.
        """
        weights = [learner.weights for learner in runner.learners]
        if opponent is not None:
            if self.opponents is None:
                raise UsageError(f"opponent={brief(opponent)}: the configuration has no opponents")
            weights[self.opponents.group] = self.opponents.player(runner.opponents, opponent)
        return tuple(weights)

    def with_policy_weights(
        self, runner: RunnerState, policy: PolicyId, weights: PolicyWeights
    ) -> RunnerState:
        """`runner` with one policy's weights replaced."""
        group, index = self.grouping.locate(policy)
        learners = list(runner.learners)
        stacked = _with_row(learners[group].weights, weights, index)
        learners[group] = learners[group].with_weights(stacked)
        runner = runner.replace(learners=tuple(learners))
        pool = self.opponents
        if pool is None or pool.policy != policy:
            return runner
        newest = pool.newest(runner.opponents)
        state = pool.with_weights(runner.opponents, newest, weights, runner.num_updates)
        return runner.replace(opponents=state)


@jax.jit
def _with_row(stacked: PolicyWeights, row: PolicyWeights, index: jax.Array) -> PolicyWeights:
    """One program for all arrays, and for every index."""
    return jax.tree.map(lambda rows, new: rows.at[index].set(new), stacked, row)
