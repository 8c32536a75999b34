"""A first step of an environment, traced for what it returns; nothing is computed."""

import jax

from jaxrl.core.env import (
    MultiAgentEnvironment,
    RawStep,
    agents_may_wait,
    is_stacked,
    raw_reset,
    raw_step,
    stack_agents,
)
from jaxrl.core.types import Key, PyTree


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
