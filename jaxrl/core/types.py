"""Type aliases, and the letters for axes, that every other module uses; the forms of trees.

Shapes in comments and docstrings use these letters, always in this order, `[S, T, E, M, ...]`:

    S   members of a sweep (seeds x settings)
    N   policies of one group (equal in shape, stacked)
    T   steps of a rollout
    E   environments
    M   agents of one policy
    A   logits of a distribution
    B   rows of a batch, B = T * E * M
"""

from typing import Any

import jax

PyTree = Any
Key = jax.Array  # a typed PRNG key, key<threefry>[]
AgentId = str
PolicyId = str

DEFAULT_AGENT: AgentId = "default_agent"
DEFAULT_POLICY: PolicyId = "default_policy"
ALL = "__all__"  # the entry of `terminated` and `truncated` that ends everybody


def other_form(before: PyTree, after: PyTree, what: str = "") -> str | None:
    """The first difference of `after` from `before` in structure, shape or type; None if there is
    none.

    Args:
        what: the name of both, which begins the path of a leaf.
    """
    structures = [jax.tree.structure(tree) for tree in (before, after)]
    if structures[0] != structures[1]:
        return f"{structures[0]!s:.80}, not {structures[1]!s:.80}"
    for (path, old), new in zip(
        jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            where = f"{what}{jax.tree_util.keystr(path)}"
            return f"{where} is {old.dtype}{list(old.shape)}, not {new.dtype}{list(new.shape)}"
    return None
