"""Trees of arrays as rows of bytes: a compiled call pays for each array that it takes or gives.

The host sees the bytes as NumPy arrays, a compiled program as JAX's, without a conversion.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import PyTree

ALIGNMENT = 16  # bytes, of each array in a row


class ByteLayout(NamedTuple):
    """The places of a tree's arrays in a row of bytes; hashable.

    Attributes:
        size: the bytes of a row.
    """

    structure: jax.tree_util.PyTreeDef
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    starts: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, tree: PyTree) -> "ByteLayout":
        """The layout of a tree of arrays, or of what says their shapes and types."""
        leaves, structure = jax.tree.flatten(tree)
        shapes = tuple(tuple(leaf.shape) for leaf in leaves)
        dtypes = tuple(str(leaf.dtype) for leaf in leaves)
        starts, size = [], 0
        for shape, dtype in zip(shapes, dtypes, strict=True):
            starts.append(size)
            size += -(-_num_bytes(shape, dtype) // ALIGNMENT) * ALIGNMENT
        return cls(structure, shapes, dtypes, tuple(starts), size)

    def views(self, rows: np.ndarray) -> PyTree:
        """The arrays [..., *shape] in rows u8[..., size], to read or to write."""
        leaves = [
            part.view(jnp.dtype(dtype)).reshape((*rows.shape[:-1], *shape))
            for part, shape, dtype in self._parts(rows)
        ]
        return jax.tree.unflatten(self.structure, leaves)

    def pack(self, tree: PyTree) -> jax.Array:
        """A row u8[size], traced."""
        row = []
        for leaf, dtype, start, end in zip(
            jax.tree.leaves(tree), self.dtypes, self.starts, self._ends, strict=True
        ):
            is_flag = dtype == "bool"
            typed = leaf.astype(jnp.uint8) if is_flag else jnp.asarray(leaf, dtype)
            row.append(jax.lax.bitcast_convert_type(typed, jnp.uint8).ravel())
            row.append(jnp.zeros(end - start - row[-1].size, jnp.uint8))
        return jnp.concatenate(row) if row else jnp.zeros(0, jnp.uint8)

    def unpack(self, row: jax.Array) -> PyTree:
        """The arrays of a row u8[size], traced."""
        leaves = []
        for part, shape, dtype in self._parts(row):
            if dtype == "bool":
                leaves.append(part.reshape(shape) != 0)
                continue
            width = jnp.dtype(dtype).itemsize
            split = part.reshape((*shape, width)) if width > 1 else part.reshape(shape)
            leaves.append(jax.lax.bitcast_convert_type(split, jnp.dtype(dtype)))
        return jax.tree.unflatten(self.structure, leaves)

    @property
    def _ends(self) -> tuple[int, ...]:
        return (*self.starts, self.size)[1:]

    def _parts(self, rows: Any) -> list[tuple[Any, tuple[int, ...], str]]:
        """(its bytes, shape, type) of each array."""
        places = zip(self.starts, self.shapes, self.dtypes, strict=True)
        return [
            (rows[..., start : start + _num_bytes(shape, dtype)], shape, dtype)
            for start, shape, dtype in places
        ]


def _num_bytes(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * jnp.dtype(dtype).itemsize
