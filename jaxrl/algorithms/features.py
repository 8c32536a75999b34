"""The features of rollouts, in their order; a new one is entered here and nowhere else.

The order is a part of a training's numbers: each feature begins after those before it.
"""

import dataclasses
from typing import Any, Self

import jax

from jaxrl.core.types import PyTree
from jaxrl.rollout.callbacks_setting import CallbacksFeature
from jaxrl.rollout.critic_inputs import CriticInputs
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec
from jaxrl.rollout.feature import Begin, Feature
from jaxrl.rollout.opponents import SelfPlay
from jaxrl.rollout.turns import Waits


@dataclasses.dataclass(frozen=True)
class ReturnScaling(Feature):
    """Rewards are divided by the deviation of their returns, which `LearnerSpec.no_returns` begins.

    Its slice is the discounted returns so far, by group f32[N, E, M].
    """

    name = "returns"
    env_axis = 1
    is_for_learning = True
    is_learned = True

    @classmethod
    def of(cls, spec: RolloutSpec, config: Any, env_params: PyTree) -> Self | None:
        begin = jax.eval_shape(lambda: cls._begin(spec, 1))
        return cls() if jax.tree.leaves(begin) else None

    def start(self, spec: RolloutSpec, envs: EnvBatch, begin: Begin) -> tuple[PyTree, ...]:
        return self._begin(spec, len(begin.keys))

    @staticmethod
    def _begin(spec: RolloutSpec, num_envs: int) -> tuple[PyTree, ...]:
        groups = spec.grouping.groups
        return tuple(group.structure.no_returns(group.shape(num_envs)) for group in groups)


ORDER: tuple[type[Feature], ...] = (CallbacksFeature, SelfPlay, CriticInputs, ReturnScaling, Waits)


def with_features(spec: RolloutSpec, config: Any, env_params: PyTree) -> RolloutSpec:
    """A specification with the features of an `AlgorithmConfig`.

    Raises:
        UsageError: a feature that cannot work.
    """
    found = (kind.of(spec, config, env_params) for kind in ORDER)
    return spec._replace(features=tuple(feature for feature in found if feature is not None))
