"""Networks that remember: features of the observation, a core that carries something on, a policy and a value."""

from dataclasses import dataclass
from typing import Protocol

import jax

from jaxrl.core.types import Key, PyTree
from jaxrl.models.cnn import CNN
from jaxrl.models.mlp import MLP
from jaxrl.ops.distributions import Distribution


class Core(Protocol):
    """What remembers, hashable: features f32[..., num_inputs] to others f32[..., num_outputs], with a carry."""

    num_outputs: int

    def init(self, key: Key, num_inputs: int) -> PyTree:
        """The parameters."""

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        """At the start of an episode."""

    def step(self, params: PyTree, inputs: jax.Array, carry: PyTree) -> tuple[jax.Array, PyTree]:
        """(outputs, carry) of one step, [...]."""

    def sequence(self, params: PyTree, inputs: jax.Array, carry: PyTree, begins: jax.Array) -> tuple[jax.Array, PyTree]:
        """As `step`, of L steps [L, B, ...]; the carry starts again where `begins`, bool[L, B], is set."""


@dataclass(frozen=True)
class MemoryNetwork:
    """Observations through the shared layers of `torso`, then `core`, then linear `heads` (RLlib's `use_lstm`).

    torso: its shared layers alone are used.
    heads: no hidden layer, over the core's outputs.
    """

    torso: MLP | CNN
    core: Core
    heads: MLP

    def init(self, key: Key) -> PyTree:
        torso_key, core_key, heads_key = jax.random.split(key, 3)
        return {
            "torso": self.torso.init_features(torso_key),
            "core": self.core.init(core_key, self.torso.num_features),
            "heads": self.heads.init(heads_key),
        }

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        return self.core.initial_carry(batch_shape)

    def apply(self, params: PyTree, obs: PyTree, carry: PyTree) -> tuple[Distribution, jax.Array, PyTree]:
        features = self.torso.features(params["torso"], obs)
        outputs, carry = self.core.step(params["core"], features, carry)
        return *self.heads.apply(params["heads"], outputs), carry

    def apply_sequence(
        self, params: PyTree, obs: PyTree, carry: PyTree, begins: jax.Array
    ) -> tuple[Distribution, jax.Array, PyTree]:
        features = self.torso.features(params["torso"], obs)
        outputs, carry = self.core.sequence(params["core"], features, carry, begins)
        return *self.heads.apply(params["heads"], outputs), carry
