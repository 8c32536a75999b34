"""Mixed precision: a built-in network whose matrix products have bfloat16 operands.

Everything else stays float32: parameters, sums, activations, gradients. Autodiff keeps the
precision for the products of the backward pass.
"""

import dataclasses
from contextlib import AbstractContextManager
from dataclasses import dataclass

import jax

from jaxrl.core.types import Key, PyTree
from jaxrl.models.model import Model, RecurrentModel, has_memory
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.distributions import Distribution

PRECISION = "BF16_BF16_F32"  # of a `jax.lax.DotAlgorithmPreset`: operands, and what adds them up


@dataclass(frozen=True)
class MixedPrecision:
    """A network with products of operands that are rounded to bfloat16, and added up in float32.

    JAX's CPU backend multiplies in float32 all the same.
    """

    network: Model | RecurrentModel

    def init(self, key: Key) -> PyTree:
        """Not rounded: orthogonal kernels would no longer be orthogonal."""
        return self.network.init(key)

    def apply(self, params: PyTree, obs: PyTree) -> tuple[Distribution, jax.Array]:
        with _rounded_products():
            return self.network.apply(params, obs)


@dataclass(frozen=True)
class MixedPrecisionRecurrent(MixedPrecision):
    """The same for a network with memory, whose carry stays float32."""

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        return self.network.initial_carry(batch_shape)

    def apply(
        self, params: PyTree, obs: PyTree, carry: PyTree
    ) -> tuple[Distribution, jax.Array, PyTree]:
        with _rounded_products():
            return self.network.apply(params, obs, carry)

    def apply_sequence(
        self, params: PyTree, obs: PyTree, carry: PyTree, begins: jax.Array
    ) -> tuple[Distribution, jax.Array, PyTree]:
        with _rounded_products():
            return self.network.apply_sequence(params, obs, carry, begins)


def mixed_precision(network: Model | RecurrentModel) -> MixedPrecision:
    return (MixedPrecisionRecurrent if has_memory(network) else MixedPrecision)(network)


def in_float32(policy_spec: PolicySpec) -> PolicySpec:
    """The policy with its network as it is without mixed precision; the parameters fit both."""
    if not isinstance(policy_spec.model, MixedPrecision):
        return policy_spec
    return dataclasses.replace(policy_spec, model=policy_spec.model.network)


def _rounded_products() -> AbstractContextManager:
    return jax.default_matmul_precision(PRECISION)
