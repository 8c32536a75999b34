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
        """Runs `step` for L steps [L, B, ...]; the carry is reset where `begins`, bool[L, B]."""


@dataclass(frozen=True)
class RecurrentNetwork:
    """The shared layers of `torso`, then `core`, then `heads` (RLlib's `use_lstm`).

    torso: only its shared layers are used.
    heads: over the core's outputs, linear or with hidden layers, none of them shared.
    shared: whether policy and value share torso, core and carry; else these are separate.
    value_torso: the value network's, if that reads other observations than the policy's; then
        `apply` takes an `ActorCritic` of both. Without an input for the value it is 0, and its
        carry stays as it is.
    """

    torso: MLP | CNN
    core: RecurrentCore
    heads: MLP
    shared: bool = False
    value_torso: MLP | CNN | None = None

    def init(self, key: Key) -> PyTree:
        """{"policy": {"torso", "core"}, "value": ..., "heads": ...}.

        With `shared`, "shared" replaces "policy" and "value".
        """
        heads_key, *keys = jax.random.split(key, 1 + len(self._parts))
        parts = map(self._init_part, keys, self._parts.values())
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
    def _parts(self) -> dict[str, MLP | CNN]:
        """The torso of each part."""
        if self.shared:
            return {"shared": self.torso}
        return {"policy": self.torso, "value": self.value_torso or self.torso}

    def _init_part(self, key: Key, torso: MLP | CNN) -> PyTree:
        torso_key, core_key = jax.random.split(key)
        core = self.core.init(core_key, torso.num_features)
        return {"torso": torso.init_features(torso_key), "core": core}

    def _each(
        self, run_core: Callable, params: PyTree, obs: PyTree, carry: PyTree, *begins: jax.Array
    ) -> tuple:
        outputs, after = [], {}
        for part, torso in self._parts.items():
            part_obs = obs if self.value_torso is None else getattr(obs, part)
            if part_obs is None:
                outputs.append(None)
                after[part] = carry[part]
                continue
            features = torso.features(params[part]["torso"], part_obs)
            output, after[part] = run_core(params[part]["core"], features, carry[part], *begins)
            outputs.append(output)
        return *self.heads.apply_apart(params["heads"], outputs[0], outputs[-1]), after
