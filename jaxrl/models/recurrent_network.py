"""Recurrent networks: torso, core with memory (GRU, LSTM, attention), policy and value heads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax

from jaxrl.core.types import Key, PyTree
from jaxrl.models.cnn import CNN
from jaxrl.models.mlp import MLP
from jaxrl.ops.distributions import Distribution


class RecurrentCore(Protocol):
    """A core with memory, hashable: f32[..., num_inputs] to f32[..., num_outputs], with a carry."""

    num_outputs: int

    def init(self, key: Key, num_inputs: int) -> PyTree:
        """The parameters."""

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        """The carry at the start of an episode."""

    def step(self, params: PyTree, inputs: jax.Array, carry: PyTree) -> tuple[jax.Array, PyTree]:
        """(outputs, carry) of one step, [...]."""

    def sequence(
        self, params: PyTree, inputs: jax.Array, carry: PyTree, begins: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        """As `step`, for L steps [L, B, ...]; the carry is reset where `begins`, bool[L, B]."""


@dataclass(frozen=True)
class RecurrentNetwork:
    """The shared layers of `torso`, then `core`, then linear `heads` (RLlib's `use_lstm`).

    torso: only its shared layers are used.
    heads: without hidden layers, over the core's outputs.
    shared: whether policy and value share torso, core and carry; else these are separate.
    """

    torso: MLP | CNN
    core: RecurrentCore
    heads: MLP
    shared: bool = False

    def init(self, key: Key) -> PyTree:
        """{"policy": {"torso", "core"}, "value": ..., "heads": ...}.

        With `shared`, "shared" replaces "policy" and "value".
        """
        heads_key, *keys = jax.random.split(key, 1 + len(self._parts))
        parts = map(self._init_part, keys)
        heads = self.heads.init(heads_key)
        return {**dict(zip(self._parts, parts, strict=True)), "heads": heads}

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
        self, run_core: Callable, params: PyTree, obs: PyTree, carry: PyTree, *begins: jax.Array
    ) -> tuple:
        outputs, after = [], {}
        for part in self._parts:
            features = self.torso.features(params[part]["torso"], obs)
            output, after[part] = run_core(params[part]["core"], features, carry[part], *begins)
            outputs.append(output)
        return *self.heads.apply_apart(params["heads"], outputs[0], outputs[-1]), after
