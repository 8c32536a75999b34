"""Many small arrays as one wide one: what a compiled loop writes, gathers or updates costs by the array."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.types import PyTree

WIDEST = 32  # numbers of a row; a wider leaf gains nothing by company, and would be copied for it


class Layout(NamedTuple):
    """Where each leaf is; hashable."""

    structure: jax.tree_util.PyTreeDef
    shapes: tuple[tuple[int, ...], ...]  # of the leaves, without the leading axes
    dtypes: tuple[str, ...]
    alone: tuple[bool, ...]  # whether the leaf is as it was


class Packed(struct.PyTreeNode):
    """A pytree of arrays [..., *shape] as `wide` arrays [..., K], one for each type, and some leaves as they were.

    Leading axes may come and go: by `vmap`, by a scan that stacks, by an index.
    """

    wide: dict[str, jax.Array]
    alone: tuple[jax.Array, ...]
    layout: Layout = struct.field(pytree_node=False)

    def unpack(self) -> PyTree:
        alone, begin, leaves = iter(self.alone), dict.fromkeys(self.wide, 0), []
        for shape, dtype, is_alone in zip(
            self.layout.shapes, self.layout.dtypes, self.layout.alone, strict=True
        ):
            if is_alone:
                leaves.append(next(alone))
                continue
            wide, size = self.wide[dtype], math.prod(shape)
            part = jax.lax.slice_in_dim(wide, begin[dtype], begin[dtype] + size, axis=wide.ndim - 1)
            leaves.append(part.reshape(*wide.shape[:-1], *shape))
            begin[dtype] += size
        return jax.tree.unflatten(self.layout.structure, leaves)


def pack(tree: PyTree, num_axes: int, widest: int | None = WIDEST) -> Packed:
    """Leaves [..., *shape] that share `num_axes` leading axes, side by side.

    Args:
        widest: leaves of more numbers than that stay alone; None: of any size they are packed.
    """
    leaves, structure = jax.tree.flatten(tree)
    shapes = tuple(leaf.shape[num_axes:] for leaf in leaves)
    dtypes = tuple(str(leaf.dtype) for leaf in leaves)
    counts = {dtype: dtypes.count(dtype) for dtype in dtypes}
    alone = tuple(
        counts[dtype] == 1 or (widest is not None and math.prod(shape) > widest)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )
    rows: dict[str, list[jax.Array]] = {}
    for leaf, dtype, is_alone in zip(leaves, dtypes, alone, strict=True):
        if not is_alone:
            rows.setdefault(dtype, []).append(leaf.reshape(*leaf.shape[:num_axes], -1))
    wide = {dtype: jnp.concatenate(parts, axis=-1) for dtype, parts in rows.items()}
    return Packed(
        wide,
        tuple(leaf for leaf, is_alone in zip(leaves, alone, strict=True) if is_alone),
        Layout(structure, shapes, dtypes, alone),
    )
