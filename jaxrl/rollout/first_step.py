"""A first step of an environment, traced for what it returns, and the `RolloutSpec` made of it."""

import jax
import numpy as np

from jaxrl.core.env import (
    MultiAgentEnvironment,
    RawStep,
    agents_may_wait,
    is_stacked,
    raw_action_mask,
    raw_reset,
    raw_step,
    stack_agents,
)
from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.grouping import Grouping


def make_rollout_spec(
    env: MultiAgentEnvironment,
    params: PyTree,
    grouping: Grouping,
    policy_specs: tuple[PolicySpec, ...],
) -> RolloutSpec:
    """The specification without features, found without computing anything."""
    info = info_of_a_step(env, params)
    check_masks(env, grouping, params)
    metrics = tuple(info.get("metrics", {}))
    return RolloutSpec(
        env, grouping, policy_specs, metrics, always_active=is_always_active(env, info)
    )


def info_of_a_step(env: MultiAgentEnvironment, params: PyTree) -> dict:
    """The types of what is known of a step's `info`."""

    def kept(key):
        info = any_step(env, params, key)[2].info
        return {name: info[name] for name in ("active", "metrics") if name in info}

    return jax.eval_shape(kept, shape_of_a_key())


def is_always_active(env: MultiAgentEnvironment, info: dict) -> bool:
    """Returns whether every agent acts in every step, by the `info` of one."""
    return "active" not in info and not agents_may_wait(env)


def any_step(
    env: MultiAgentEnvironment, params: PyTree, key: Key
) -> tuple[PyTree, PyTree, RawStep]:
    """(state, action, what it led to), to be traced for its shapes."""
    _, state = raw_reset(env, key, params)
    action = {agent: env.action_space(agent, params).sample(key) for agent in env.agents}
    action = stack_agents(env, action) if is_stacked(env) else action
    return state, action, raw_step(env, key, state, action, params)


def shape_of_a_key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def check_masks(env: MultiAgentEnvironment, grouping: Grouping, params: PyTree) -> None:
    """Refuses an `action_mask` that does not fit the actions, naming both shapes."""
    if not hasattr(env, "action_mask"):
        return
    shapes = jax.eval_shape(
        lambda: raw_action_mask(env, raw_reset(env, jax.random.key(0), params)[1], params)
    )
    masks = grouping.gather(jax.tree.map(lambda shape: np.zeros((1, *shape.shape), bool), shapes))
    for group, mask in zip(grouping.groups, masks, strict=True):
        space, shape = group.action_space, list(mask.shape[3:])
        what = f"action_mask of {env.name}, {shape} for agent {group.agents[0][0]!r}"
        if not mask_length(space):
            raise UsageError(f"{what}: a mask needs discrete actions, not {space}")
        if shape != [mask_length(space)]:
            raise UsageError(f"{what}: {space} needs {[mask_length(space)]}")
