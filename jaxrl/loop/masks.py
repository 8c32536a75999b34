"""An environment's masks of impossible actions, held against the actions before anything is compiled."""

import jax
import numpy as np

from jaxrl.core.env import MultiAgentEnvironment, raw_action_mask, raw_reset
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box
from jaxrl.core.types import PyTree
from jaxrl.loop.policies import Grouping
from jaxrl.ops.distributions import num_logits


def check_masks(env: MultiAgentEnvironment, grouping: Grouping, params: PyTree) -> None:
    """Refuses an `action_mask` that does not fit the actions, with both shapes; computes nothing."""
    if not hasattr(env, "action_mask"):
        return
    shapes = jax.eval_shape(lambda: raw_action_mask(env, raw_reset(env, jax.random.key(0), params)[1], params))
    masks = grouping.gather(jax.tree.map(lambda shape: np.zeros((1, *shape.shape), bool), shapes))
    for group, mask in zip(grouping.groups, masks, strict=True):
        space, given = group.action_space, list(mask.shape[3:])
        what = f"action_mask of {env.name}, {given} for agent {group.agents[0][0]!r}"
        if isinstance(space, Box):
            raise UsageError(f"{what}: a mask needs discrete actions, not {space}")
        if given != [num_logits(space)]:
            raise UsageError(f"{what}: {space} needs {[num_logits(space)]}")
