"""Attention over recent steps: the gated transformer GTrXL (Parisotto et al. 2019)."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import Key, PyTree
from jaxrl.models.mlp import dense, draw_layers, row_like

MASKED_SCORE = -1e30  # its softmax is 0


@dataclass(frozen=True)
class Attention:
    """`num_units` attention blocks, each over its inputs of this step and the last `memory` steps.

        x = gate(x, relu(attention(norm(past x), norm(x)))),    x = gate(x, relu(mlp(norm(x))))

    Positions are relative (Dai et al. 2019, section 3.3). The gates are like a GRU's; a high
    `gate_bias` makes each block close to the identity at first (Parisotto et al. 2019, section 3.2
    and equation 9). The carry holds the past inputs of every block. In training a step attends to
    the steps of its sequence and to the carry at the sequence's start, without a gradient through
    the carry.

    num_outputs: the width of all blocks, RLlib's `attention_dim`.
    """

    num_outputs: int = 64
    num_units: int = 1
    num_heads: int = 1
    head_dim: int = 32
    memory: int = 50
    mlp_dim: int = 32
    gate_bias: float = 2.0
    initializer: str = "orthogonal"

    def init(self, key: Key, num_inputs: int) -> PyTree:
        """{"embedding": layer, "units": [{"query", "key_value", "output", ...}, ...]}."""
        unit_shapes = self._unit_shapes()
        shapes = [(num_inputs, self.num_outputs), *list(unit_shapes.values()) * self.num_units]
        layers = iter(draw_layers(key, shapes, [1.0] * len(shapes), self.initializer))
        embedding, units = next(layers), []
        for _ in range(self.num_units):
            unit = {name: next(layers) for name in unit_shapes}
            unit["position"] = unit["position"]["kernel"]
            for name in ("content_bias", "position_bias"):
                unit[name] = jnp.zeros((self.num_heads, self.head_dim))
            for name in ("attention_norm", "mlp_norm"):
                unit[name] = jnp.ones(self.num_outputs)
            units.append(unit)
        return {"embedding": embedding, "units": units}

    def initial_carry(self, batch_shape: tuple[int, ...]) -> PyTree:
        """{"past": f32[..., memory, units, out], latest last, "count": i32[...], steps so far}."""
        past = jnp.zeros((*batch_shape, self.memory, self.num_units, self.num_outputs))
        return {"past": past, "count": jnp.zeros(batch_shape, jnp.int32)}

    def step(self, params: PyTree, inputs: jax.Array, carry: PyTree) -> tuple[jax.Array, PyTree]:
        batch_shape = inputs.shape[:-1]
        flatten = lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch_shape) :])
        inputs, carry = jax.tree.map(flatten, (inputs, carry))
        begins = jnp.zeros((1, math.prod(batch_shape)), bool)
        outputs, carry = self.sequence(params, inputs[None], carry, begins)
        unflatten = lambda leaf: leaf.reshape(*batch_shape, *leaf.shape[1:])
        return jax.tree.map(unflatten, (outputs[0], carry))

    def sequence(
        self, params: PyTree, inputs: jax.Array, carry: PyTree, begins: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        x = dense(params["embedding"], inputs)
        episode = jnp.cumsum(begins, axis=0)  # i32[L, B], 0 for the episode of the carry
        visible = self._visible(episode, carry["count"])
        past = []
        for i, unit in enumerate(params["units"]):
            before = jnp.moveaxis(carry["past"][:, :, i], 1, 0)
            keys = jnp.concatenate([before, x])  # [memory + L, B, out]
            past.append(keys[keys.shape[0] - self.memory :])
            x = self._unit(unit, x, keys, visible)
        length = begins.shape[0]
        since = length - jnp.max(jnp.where(begins, jnp.arange(length)[:, None], 0), axis=0)
        count = jnp.where(episode[-1] == 0, carry["count"] + length, since)
        past = jnp.moveaxis(jnp.stack(past, axis=2), 0, 1)
        return x, {"past": past, "count": jnp.minimum(count, self.memory).astype(jnp.int32)}

    def _visible(self, episode: jax.Array, count: jax.Array) -> jax.Array:
        """The mask of the steps j that step i attends to, bool[B, 1, L, memory + L].

        The steps j are the `memory` steps of the carry and the L steps of the sequence.
        """
        length = episode.shape[0]
        back = self.memory + np.arange(length)[:, None] - np.arange(self.memory + length)[None]
        near = jnp.asarray((back >= 0) & (back <= self.memory))
        # The episode of each j: 0 for the steps of the carry, -1 where it has none.
        is_kept = jnp.arange(self.memory)[:, None] >= self.memory - count[None]
        carried = jnp.where(is_kept, 0, -1).astype(episode.dtype)
        key_episode = jnp.concatenate([carried, episode])
        same = key_episode.T[:, None, :] == episode.T[:, :, None]
        return (same & near[None])[:, None]

    def _unit(self, unit: PyTree, x: jax.Array, keys: jax.Array, visible: jax.Array) -> jax.Array:
        """One block: x f32[L, B, out], keys f32[memory + L, B, out]."""
        normed = _norm(keys, unit["attention_norm"])
        attended = self._attend(unit, normed[self.memory :], normed, visible)
        gates, candidate = unit["attention_gate"], unit["attention_gate_candidate"]
        x = self._gate(gates, candidate, x, jax.nn.relu(attended))
        inner = jax.nn.relu(dense(unit["mlp_in"], _norm(x, unit["mlp_norm"])))
        outer = jax.nn.relu(dense(unit["mlp_out"], inner))
        return self._gate(unit["mlp_gate"], unit["mlp_gate_candidate"], x, outer)

    def _attend(
        self, unit: PyTree, queries: jax.Array, keys: jax.Array, visible: jax.Array
    ) -> jax.Array:
        heads = (self.num_heads, self.head_dim)
        query = dense(unit["query"], queries).reshape(*queries.shape[:2], *heads)
        key_value = dense(unit["key_value"], keys)
        key_value = key_value.reshape(*keys.shape[:2], 2 * self.num_heads, self.head_dim)
        key, value = jnp.split(key_value, 2, axis=2)
        position = _sinusoids(self.memory + 1, self.num_outputs) @ unit["position"]
        by_content = query + unit["content_bias"][None, None]
        by_position = query + unit["position_bias"][None, None]
        scores = jnp.einsum("ibhd,jbhd->bhij", by_content, key)
        by_distance = jnp.einsum("ibhd,rhd->bhir", by_position, position.reshape(-1, *heads))
        scores = scores + _by_key(by_distance)
        scores = jnp.where(visible, scores / math.sqrt(self.head_dim), MASKED_SCORE)
        mixed = jnp.einsum("bhij,jbhd->ibhd", jax.nn.softmax(scores), value)
        return dense(unit["output"], mixed.reshape(*mixed.shape[:2], -1))

    def _gate(self, gates: PyTree, candidate: PyTree, x: jax.Array, y: jax.Array) -> jax.Array:
        """The gate of a GRU: r, z from x and y; h = tanh(W_g y + U_g (r x)); (1 - z) x + z h."""
        r, z = jnp.split(dense(gates, jnp.concatenate([y, x], axis=-1)), 2, axis=-1)
        r, z = jax.nn.sigmoid(r), jax.nn.sigmoid(z - self.gate_bias)
        h = jnp.tanh(dense(candidate, jnp.concatenate([y, r * x], axis=-1)))
        return x + z * (h - x)

    def _unit_shapes(self) -> dict[str, tuple[int, int]]:
        """(in, out) of each layer of a block."""
        size, heads = self.num_outputs, self.num_heads * self.head_dim
        return {
            "query": (size, heads),
            "key_value": (size, 2 * heads),
            "position": (size, heads),
            "output": (heads, size),
            "attention_gate": (2 * size, 2 * size),
            "attention_gate_candidate": (2 * size, size),
            "mlp_in": (size, self.mlp_dim),
            "mlp_out": (self.mlp_dim, size),
            "mlp_gate": (2 * size, 2 * size),
            "mlp_gate_candidate": (2 * size, size),
        }


def _by_key(scores: jax.Array) -> jax.Array:
    """Scores by key from scores by distance, [..., L, R - 1 + L].

        out[..., i, j] = scores[..., i, R - 1 + i - j]

    Where there is no such distance the result means nothing. There is no gather: reading rows that
    are one number too wide as a single row shifts each by one (Dai et al. 2019, appendix B).
    """
    *batch, length, distances = scores.shape
    wide = jnp.pad(jnp.flip(scores, -1), [(0, 0)] * (len(batch) + 1) + [(0, length)])
    width = distances + length - 1
    return wide.reshape(*batch, -1)[..., : length * width].reshape(*batch, length, width)


def _sinusoids(number: int, size: int) -> np.ndarray:
    """Encodings of distances 0, 1, ..., f32[number, size] (Vaswani et al. 2017, section 3.5)."""
    rates = 1 / 10_000 ** (np.arange(0, size, 2) / size)
    angles = np.arange(number)[:, None] * rates[None]
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :size].astype(np.float32)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Layer normalisation without a shift (Ba et al. 2016)."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    inverse_std = jax.lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
    return centred * inverse_std * row_like(scale, x)
