"""Networks that remember: features of the observation, a core that carries something on, a policy and a value."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax

from jaxrl.core.types import Key, PyTree
from jaxrl.models.cnn import CNN
from jaxrl.models.mlp import MLP
from jaxrl.ops.distributions import Distribution


class RecurrentCore(Protocol):
    """What remembers, hashable: features f32[..., num_inputs] to others f32[..., num_outputs], with a carry."""

    num_outputs: int

    def init(self, key: Key, num_inputs: int) -> PyTree:
        """The parameters."""

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        """At the start of an episode."""

    def step(self, params: PyTree, inputs: jax.Array, carry: PyTree) -> tuple[jax.Array, PyTree]:
        """(outputs, carry) of one step, [...]."""

    def sequence(
        self, params: PyTree, inputs: jax.Array, carry: PyTree, begins: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        """As `step`, of L steps [L, B, ...]; the carry starts again where `begins`, bool[L, B], is set."""


@dataclass(frozen=True)
class RecurrentNetwork:
    """Observations through the shared layers of `torso`, then `core`, then linear `heads` (RLlib's `use_lstm`).

    torso: its shared layers alone are used.
    heads: no hidden layer, over the core's outputs.
    shared: whether policy and value share torso and core; else each has its own, and a carry of its
    own.
    """

    torso: MLP | CNN
    core: RecurrentCore
    heads: MLP
    shared: bool = False

    def init(self, key: Key) -> PyTree:
        """{"policy": {"torso", "core"}, "value": ..., "heads": ...}, or "shared" in place of the first two."""
        heads_key, *keys = jax.random.split(key, 1 + len(self._parts))
        parts = {part: self._init_part(own) for part, own in zip(self._parts, keys, strict=True)}
        return {**parts, "heads": self.heads.init(heads_key)}

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        return {part: self.core.initial_carry(batch_shape) for part in self._parts}

    def apply(
        self, params: PyTree, obs: PyTree, carry: PyTree
    ) -> tuple[Distribution, jax.Array, PyTree]:
        return self._each(self.core.step, params, obs, carry)

    def apply_sequence(
        self, params: PyTree, obs: PyTree, carry: PyTree, begins: jax.Array
    ) -> tuple[Distribution, jax.Array, PyTree]:
        return self._each(self.core.sequence, params, obs, carry, begins)

    @property
    def _parts(self) -> tuple[str, ...]:
        return ("shared",) if self.shared else ("policy", "value")

    def _init_part(self, key: Key) -> PyTree:
        torso_key, core_key = jax.random.split(key)
        torso = self.torso.init_features(torso_key)
        return {"torso": torso, "core": self.core.init(core_key, self.torso.num_features)}

    def _each(
        self, remember: Callable, params: PyTree, obs: PyTree, carry: PyTree, *begins: jax.Array
    ) -> tuple:
        outputs, after = [], {}
        for part in self._parts:
            own = params[part]
            features = self.torso.features(own["torso"], obs)
            output, after[part] = remember(own["core"], features, carry[part], *begins)
            outputs.append(output)
        return *self.heads.apply_apart(params["heads"], outputs[0], outputs[-1]), after
