"""Type aliases, and the letters for axes, that every other module uses.

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
