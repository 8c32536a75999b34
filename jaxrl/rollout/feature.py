"""The protocol of a feature: something that a rollout does beside playing, with its own state.

`RolloutSpec.features` are the features of an algorithm, in the order of
`jaxrl.algorithms.features.ORDER`, and `EnvBatch.features` has the slice of each by its name. Loops
over them run while a program is traced: without features there is nothing of them in it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import jax

from jaxrl.core.env import RawStep
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.policy_spec import PolicyInputs, PolicyOutput, PolicySpec
from jaxrl.rollout.episode_stats import EpisodeStats


class Begin(NamedTuple):
    """The start of the first episodes of E environments."""

    keys: Key  # [E]  of the resets
    weights: tuple[PyTree, ...]  # of those who act, by group; may be empty
    env_params: PyTree


class Played(NamedTuple):
    """A step of E environments, before any reset."""

    weights: tuple[PyTree, ...]  # of those who acted, by group
    outputs: list[PolicyOutput]  # by group
    raw: RawStep  # [E]
    # (keys [E], step i32[]), as of `auto_reset`; None where episodes are reset outside JAX
    reset: tuple[Key, jax.Array] | None = None


class After(NamedTuple):
    """A step after its resets."""

    state: PyTree  # [E, ...]  that the environments go on from
    reached: EpisodeStats  # [E]  as the step left them
    env_params: PyTree
    hist_data: dict[str, jax.Array]  # {name: f32[E]}  of which results have histograms
    shown: dict[str, PyTree]  # by feature, [E, ...]  what a rollout keeps of the step


class Feature:
    """Something that a rollout does beside playing.

    Static and hashable: a compiled program depends on it. Its methods are traced. `held` is its
    slice of `EnvBatch.features`, None if it needs none.
    """

    name: ClassVar[str]  # of its slice, in checkpoints as well
    env_axis: ClassVar[int] = 0  # of the slice's arrays; 1 where they lie by group, [N, E, M, ...]
    informs: ClassVar[bool] = False  # networks are told what it knows
    is_for_learning: ClassVar[bool] = False  # evaluation goes without it
    is_learned: ClassVar[bool] = False  # `Algorithm.learn` renews its slice, and nothing else does
    makes_rows: ClassVar[bool] = False  # it makes the trajectories, by `rows`
    metrics: tuple[str, ...] = ()  # the names that it adds to an episode's metrics
    # (name, reduction) of those of its numbers that results hold by their names alone
    reductions: tuple[tuple[str, str], ...] = ()
    needs_next_obs: bool = False  # whether `learned` reads the trajectory's `next_obs`

    @classmethod
    def of(cls, spec: Any, config: Any, env_params: PyTree) -> Self | None:
        """The feature of an algorithm; None if it does without.

        Args:
            spec: a `RolloutSpec` without features.
            config: an `AlgorithmConfig`.
        """
        raise NotImplementedError

    def start(self, spec: Any, envs: Any, begin: Begin) -> PyTree:
        """The slice as episodes begin; `envs` has those of the features before it."""
        return None

    def inputs(
        self, spec: Any, inputs: tuple[PolicyInputs, ...], envs: Any, env_params: PyTree
    ) -> tuple[PolicyInputs, ...]:
        """The inputs of networks beside observations, by group; `envs` as of `read_by_networks`."""
        return inputs

    def plays(self, weights: PyTree) -> bool:
        """Returns whether it acts in a policy's place, by these weights of a group."""
        return False

    def apply(self, policy_spec: PolicySpec, weights: PyTree, envs: Any, arguments: tuple) -> tuple:
        """`PolicySpec.apply` where it plays, on what a group sees: (obs, policy_state, inputs)."""
        raise NotImplementedError

    def actions(
        self, spec: Any, weights: PyTree, envs: Any, chosen: tuple[int, PolicyOutput], keys: Key
    ) -> PolicyOutput:
        """The output where it plays, of a group and what `apply` chose for it, (group, output)."""
        return chosen[1]

    def reached(self, spec: Any, held: PyTree, raw: RawStep) -> PyTree:
        """The slice after a step and before any reset; asked of features that inform."""
        return held

    def after_step(
        self, spec: Any, held: PyTree, played: Played, after: After | None
    ) -> tuple[PyTree, After | None]:
        """The slice after a step and its resets, and what is known of the step.

        Args:
            after: None for features that inform.
        """
        return held, after

    def without(self, held: PyTree, lost: jax.Array) -> PyTree:
        """The slice without what belongs to lost episodes, bool[E]; at a rollout's end."""
        return held

    def learned(
        self, policies: tuple[PolicyId, ...], trajectory: PyTree
    ) -> tuple[PyTree, Mapping[str, Any]]:
        """The trajectory of a group, [T, N, E, M, ...], as its policies learn from it.

        And what is reported of it beside the algorithm's metrics, {name: `HookNumber`} of f32[N].
        """
        return trajectory, {}
