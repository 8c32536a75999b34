"""Cells that carry a state from step to step: the gated recurrent unit and long short-term memory."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl.core.types import Key, PyTree
from jaxrl.models.mlp import draw_layer
from jaxrl.models.model import carried


@dataclass(frozen=True)
class GRU:
    """A gated recurrent unit (Cho et al. 2014), its reset gate after the product (as PyTorch's and cuDNN's).

    r = sigmoid(x W_r + h U_r + b_r),    z = sigmoid(x W_z + h U_z + b_z)
    n = tanh(x W_n + b_n + r (h U_n + c)),    h' = (1 - z) n + z h
    """

    num_outputs: int = 256
    initializer: str = "orthogonal"

    def init(self, key: Key, num_inputs: int) -> PyTree:
        """{"input": f32[in, 3 out], "hidden": f32[out, 3 out], "bias": f32[3 out], "candidate_bias": f32[out]}."""
        return {
            **_draw(key, num_inputs, self.num_outputs, 3, self.initializer),
            "candidate_bias": jnp.zeros(self.num_outputs),
        }

    def initial_carry(self, batch_shape: tuple[int, ...]) -> jax.Array:
        """h f32[*batch_shape, out]."""
        return jnp.zeros((*batch_shape, self.num_outputs))

    def step(self, params: PyTree, inputs: jax.Array, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._follow(params, _project(params, inputs), carry)

    def sequence(
        self, params: PyTree, inputs: jax.Array, carry: jax.Array, begins: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return _scan(functools.partial(self._follow, params), self, _project(params, inputs), carry, begins)

    def _follow(self, params: PyTree, projected: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`projected`: x W + b, f32[..., 3 out]."""
        size = self.num_outputs
        hidden = h @ params["hidden"]
        r, z = jnp.split(jax.nn.sigmoid(projected[..., : 2 * size] + hidden[..., : 2 * size]), 2, axis=-1)
        candidate = hidden[..., 2 * size :] + _wide(params["candidate_bias"], h)
        n = jnp.tanh(projected[..., 2 * size :] + r * candidate)
        h = n + z * (h - n)
        return h, h


@dataclass(frozen=True)
class LSTM:
    """Long short-term memory (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

        i, f, o = sigmoid(x W + h U + b),    g = tanh(x W_g + h U_g + b_g)
        c' = f c + i g,    h' = o tanh(c')

    The forget gate's bias starts at 1 (Jozefowicz et al. 2015).
    """

    num_outputs: int = 256
    initializer: str = "orthogonal"

    def init(self, key: Key, num_inputs: int) -> PyTree:
        """{"input": f32[in, 4 out], "hidden": f32[out, 4 out], "bias": f32[4 out]}, in the order i, f, g, o."""
        params, size = _draw(key, num_inputs, self.num_outputs, 4, self.initializer), self.num_outputs
        return {**params, "bias": params["bias"].at[size : 2 * size].add(1.0)}

    def initial_carry(self, batch_shape: tuple[int, ...]) -> jax.Array:
        """c and h side by side, f32[*batch_shape, 2 out]: one array is less to carry than two."""
        return jnp.zeros((*batch_shape, 2 * self.num_outputs))

    def step(self, params: PyTree, inputs: jax.Array, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._follow(params, _project(params, inputs), carry)

    def sequence(
        self, params: PyTree, inputs: jax.Array, carry: jax.Array, begins: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return _scan(functools.partial(self._follow, params), self, _project(params, inputs), carry, begins)

    def _follow(self, params: PyTree, projected: jax.Array, carry: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`projected`: x W + b, f32[..., 4 out]."""
        c, h = jnp.split(carry, 2, axis=-1)
        i, f, g, o = jnp.split(projected + h @ params["hidden"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h, jnp.concatenate([c, h], axis=-1)


def _draw(key: Key, num_inputs: int, size: int, num_gates: int, initializer: str) -> PyTree:
    """Kernels of all gates side by side, each gate's drawn by itself."""

    def gates(key, num_inputs):
        draw = jax.random.normal if initializer == "orthogonal" else functools.partial(jax.random.uniform, minval=-1.0)
        noise = draw(key, (num_gates, (num_inputs + 1) * size))
        layers = jax.vmap(lambda noise: draw_layer(noise, (num_inputs, size), 1.0, initializer))(noise)
        return jnp.moveaxis(layers["kernel"], 0, 1).reshape(num_inputs, -1), layers["bias"].reshape(-1)

    input_key, hidden_key = jax.random.split(key)
    kernel, bias = gates(input_key, num_inputs)
    return {"input": kernel, "hidden": gates(hidden_key, size)[0], "bias": bias}


def _project(params: PyTree, inputs: jax.Array) -> jax.Array:
    """x W + b of all gates, of as many steps as there are: one product."""
    projected = inputs @ params["input"]
    return projected + _wide(params["bias"], projected)


def _scan(follow: Callable, cell: GRU | LSTM, projected: jax.Array, carry: jax.Array, begins: jax.Array):
    """(outputs [L, B, out], carry) of L steps."""
    fresh = cell.initial_carry(begins.shape[1:])

    def one_step(carry, inputs):
        projected, begins = inputs
        outputs, carry = follow(projected, carried(begins, fresh, carry))
        return carry, outputs

    carry, outputs = jax.lax.scan(one_step, carry, (projected, begins))
    return outputs, carry


def _wide(row: jax.Array, like: jax.Array) -> jax.Array:
    """A row [n] with as many axes as `like`."""
    return row.reshape((1,) * (like.ndim - 1) + (-1,))
