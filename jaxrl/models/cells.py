"""Recurrent cells: gated recurrent unit (GRU) and long short-term memory (LSTM)."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl.core.types import Key, PyTree
from jaxrl.models.mlp import draw_layers, row_like
from jaxrl.models.model import carried


@dataclass(frozen=True)
class GRU:
    """A gated recurrent unit (Cho et al. 2014).

        r = sigmoid(x W_r + h U_r + b_r),    z = sigmoid(x W_z + h U_z + b_z)
        n = tanh(x W_n + b_n + r (h U_n + c)),    h' = (1 - z) n + z h

    As in PyTorch and cuDNN, the reset gate r comes after the product.
    """

    num_outputs: int = 256
    initializer: str = "orthogonal"

    def init(self, key: Key, num_inputs: int) -> PyTree:
        """{"input": f32[in, 3 out], "hidden": f32[out, 3 out], "bias": f32[3 out],
        "candidate_bias": f32[out]}, in the order r, z, n.
        """
        params = _draw(key, num_inputs, self.num_outputs, 3, self.initializer)
        return {**params, "candidate_bias": jnp.zeros(self.num_outputs)}

    def initial_carry(self, batch_shape: tuple[int, ...]) -> jax.Array:
        """h f32[*batch_shape, out]."""
        return jnp.zeros((*batch_shape, self.num_outputs))

    def step(
        self, params: PyTree, inputs: jax.Array, carry: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return self._follow(params)(_project(params, inputs, 3), carry)

    def sequence(
        self, params: PyTree, inputs: jax.Array, carry: jax.Array, begins: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return _scan(self._follow(params), self, _project(params, inputs, 3), carry, begins)

    def _follow(self, params: PyTree) -> Callable:
        """The function from x W + b of each gate, f32[..., out], and carry to (outputs, carry)."""
        u_r, u_z, u_n = jnp.split(params["hidden"], 3, axis=-1)

        def follow(projected, h):
            x_r, x_z, x_n = projected
            r, z = jax.nn.sigmoid(x_r + h @ u_r), jax.nn.sigmoid(x_z + h @ u_z)
            n = jnp.tanh(x_n + r * (h @ u_n + row_like(params["candidate_bias"], h)))
            h = n + z * (h - n)
            return h, h

        return follow


@dataclass(frozen=True)
class LSTM:
    """Long short-term memory (Hochreiter and Schmidhuber 1997).

        i, f, o = sigmoid(x W + h U + b),    g = tanh(x W_g + h U_g + b_g)
        c' = f c + i g,    h' = o tanh(c')

    With the forget gate f of Gers et al. 2000; its bias starts at 1 (Jozefowicz et al. 2015).
    """

    num_outputs: int = 256
    initializer: str = "orthogonal"

    def init(self, key: Key, num_inputs: int) -> PyTree:
        """{"input": f32[in, 4 out], "hidden": f32[out, 4 out], "bias": f32[4 out]}, in the order
        i, f, g, o.
        """
        size = self.num_outputs
        params = _draw(key, num_inputs, size, 4, self.initializer)
        return {**params, "bias": params["bias"].at[size : 2 * size].add(1.0)}

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        """{"c": f32[*batch_shape, out], "h": the same}."""
        return {name: jnp.zeros((*batch_shape, self.num_outputs)) for name in ("c", "h")}

    def step(self, params: PyTree, inputs: jax.Array, carry: PyTree) -> tuple[jax.Array, PyTree]:
        return self._follow(params)(_project(params, inputs, 4), carry)

    def sequence(
        self, params: PyTree, inputs: jax.Array, carry: PyTree, begins: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        return _scan(self._follow(params), self, _project(params, inputs, 4), carry, begins)

    def _follow(self, params: PyTree) -> Callable:
        """The function from x W + b of each gate, f32[..., out], and carry to (outputs, carry)."""
        hidden = jnp.split(params["hidden"], 4, axis=-1)

        def follow(projected, carry):
            c, h = carry["c"], carry["h"]
            i, f, g, o = (x + h @ u for x, u in zip(projected, hidden, strict=True))
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return h, {"c": c, "h": h}

        return follow


def _draw(key: Key, num_inputs: int, size: int, num_gates: int, initializer: str) -> PyTree:
    """Concatenated kernels of all gates; each gate's kernel is drawn separately."""
    shapes = [(num_inputs, size)] * num_gates + [(size, size)] * num_gates
    layers = draw_layers(key, shapes, [1.0] * len(shapes), initializer)
    joined = lambda name, layers: jnp.concatenate([layer[name] for layer in layers], axis=-1)
    return {
        "input": joined("kernel", layers[:num_gates]),
        "hidden": joined("kernel", layers[num_gates:]),
        "bias": joined("bias", layers[:num_gates]),
    }


def _project(params: PyTree, inputs: jax.Array, num_gates: int) -> tuple[jax.Array, ...]:
    """x W + b of each gate, for any number of steps in one product.

    Each gate is a separate array: inside a loop XLA on the CPU would compute a part of a wider
    array number by number.
    """
    projected = inputs @ params["input"]
    return tuple(jnp.split(projected + row_like(params["bias"], projected), num_gates, axis=-1))


def _scan(
    follow: Callable,
    cell: GRU | LSTM,
    projected: tuple[jax.Array, ...],
    carry: PyTree,
    begins: jax.Array,
):
    """(outputs [L, B, out], carry) of L steps."""
    fresh = cell.initial_carry(begins.shape[1:])

    def step(carry, inputs):
        projected, begins = inputs
        outputs, carry = follow(projected, carried(begins, fresh, carry))
        return carry, outputs

    carry, outputs = jax.lax.scan(step, carry, (projected, begins))
    return outputs, carry
