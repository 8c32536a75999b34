"""Packing of many small arrays into a wide one: the cost of a compiled loop is per array."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.types import PyTree

MAX_PACKED_SIZE = 32  # numbers per row; packing a wider leaf gains nothing and copies it


class Layout(NamedTuple):
    """The positions of the leaves; hashable."""

    structure: jax.tree_util.PyTreeDef
    shapes: tuple[tuple[int, ...], ...]  # of the leaves, without the leading axes
    dtypes: tuple[str, ...]
    alone: tuple[bool, ...]  # whether the leaf is not packed


class Packed(struct.PyTreeNode):
    """A pytree of arrays [..., *shape] as one `wide` array [..., K] per dtype, and unpacked leaves.

    Leading axes may change: by `vmap`, by a scan that stacks, by an index.
    """

    wide: dict[str, jax.Array]
    alone: tuple[jax.Array, ...]
    layout: Layout = struct.field(pytree_node=False)

    def unpack(self) -> PyTree:
        layout, leaves = self.layout, []
        alone, begin = iter(self.alone), dict.fromkeys(self.wide, 0)
        for shape, dtype, is_alone in zip(layout.shapes, layout.dtypes, layout.alone, strict=True):
            if is_alone:
                leaves.append(next(alone))
                continue
            wide, size = self.wide[dtype], math.prod(shape)
            # An index takes NumPy arrays too: the host unpacks metrics.
            part = wide[..., begin[dtype] : begin[dtype] + size]
            leaves.append(part.reshape(*wide.shape[:-1], *shape))
            begin[dtype] += size
        return jax.tree.unflatten(layout.structure, leaves)


def pack(tree: PyTree, num_axes: int, widest: int | None = MAX_PACKED_SIZE) -> Packed:
    """Packs leaves [..., *shape] that share `num_axes` leading axes.

    Args:
        widest: leaves with more numbers are not packed; None: leaves of any size are.
    """
    leaves, structure = jax.tree.flatten(tree)
    shapes = tuple(leaf.shape[num_axes:] for leaf in leaves)
    dtypes = tuple(str(leaf.dtype) for leaf in leaves)
    rows: dict[str, list[jax.Array]] = {}
    alone, unpacked = [], []
    for leaf, shape, dtype in zip(leaves, shapes, dtypes, strict=True):
        too_wide = widest is not None and math.prod(shape) > widest
        alone.append(dtypes.count(dtype) == 1 or too_wide)
        if alone[-1]:
            unpacked.append(leaf)
        else:
            rows.setdefault(dtype, []).append(leaf.reshape(*leaf.shape[:num_axes], -1))
    wide = {dtype: jnp.concatenate(parts, axis=-1) for dtype, parts in rows.items()}
    return Packed(wide, tuple(unpacked), Layout(structure, shapes, dtypes, tuple(alone)))
