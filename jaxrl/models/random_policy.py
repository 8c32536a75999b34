"""A policy without parameters, whose actions are random: all possible ones are equally likely."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import action_space_inside
from jaxrl.core.spaces import Box, Space, tree_of
from jaxrl.core.types import Key, PyTree
from jaxrl.ops.distributions import num_logits


@dataclass(frozen=True)
class RandomPolicy:
    """The setting `model` of a policy that plays integer actions at random and never learns.

        per_policy={"random": {"model": RandomPolicy}}, policies_to_train=["learner"]

    It is random wherever actions are sampled: in training, and in evaluations with
    `evaluation_explore=True`.
    """

    action_space: Space

    def __post_init__(self):
        parts = jax.tree.leaves(tree_of(action_space_inside(self.action_space)))
        if any(isinstance(part, Box) for part in parts):
            raise UsageError(
                f"RandomPolicy plays integer actions, not {self.action_space}: "
                "exploration_config={'type': 'Random'} draws those at random in training"
            )

    def init(self, key: Key) -> PyTree:
        """No parameters."""
        return {}

    def apply(self, params: PyTree, obs: PyTree) -> tuple[jax.Array, jax.Array]:
        """(logits, values) of a batch, all 0."""
        rows = len(jax.tree.leaves(obs)[0])
        return jnp.zeros((rows, num_logits(self.action_space))), jnp.zeros(rows)
