"""An environment's masks of impossible actions."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env import MultiAgentEnvironment, Solo, raw_reset
from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.types import PyTree
from jaxrl.rollout.policy_map import Grouping


def raw_action_mask(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> PyTree:
    """The environment's `action_mask`, bool[A] by agent: [M, A] if it is stacked, else a dict."""
    mask = jax.tree.map(lambda leaf: jnp.asarray(leaf, bool), env.action_mask(state, params))
    return mask[None] if isinstance(env, Solo) else mask


def check_masks(env: MultiAgentEnvironment, grouping: Grouping, params: PyTree) -> None:
    """Refuses an `action_mask` that does not fit the actions, naming both shapes."""
    if not hasattr(env, "action_mask"):
        return
    shapes = jax.eval_shape(
        lambda: raw_action_mask(env, raw_reset(env, jax.random.key(0), params)[1], params)
    )
    masks = grouping.gather(jax.tree.map(lambda shape: np.zeros((1, *shape.shape), bool), shapes))
    for group, mask in zip(grouping.groups, masks, strict=True):
        space, given = group.action_space, list(mask.shape[3:])
        what = f"action_mask of {env.name}, {given} for agent {group.agents[0][0]!r}"
        if not mask_length(space):
            raise UsageError(f"{what}: a mask needs discrete actions, not {space}")
        if given != [mask_length(space)]:
            raise UsageError(f"{what}: {space} needs {[mask_length(space)]}")
