"""Steps of episodes that are played for themselves: sampled, or to be looked at."""

import jax
import jax.numpy as jnp

from jaxrl.core.agent_steps import AgentSteps
from jaxrl.core.env import RawStep
from jaxrl.core.program_spaces import mask_length
from jaxrl.models.policy_spec import PolicyOutput, PolicySpec
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.recorded_steps import RecordedSteps, model_outputs

# Among a model's outputs, in steps that are played to be looked at.
PROBABILITIES = "action_probabilities"  # f32[..., A] of integers, those of all concatenated
# (mean - std, mean, mean + std) of a Box's actions, [..., 3, *action_space.shape], or of all Boxes
# of an action in parts, f32[..., 3, d]
SPREAD = "action_spread"


def played_steps(
    spec: RolloutSpec, outputs: list[PolicyOutput], raw: RawStep, *, to_look_at: bool = False
) -> RecordedSteps:
    """A step of episodes that are played, [E, N, M, ...], without the observations before it.

    Args:
        to_look_at: whether the states belong to it, and `distribution_shown`.
    """
    results = raw.obs, raw.reward, raw.active, raw.terminated, raw.truncated
    by_group = zip(spec.policy_specs, outputs, *map(spec.grouping.gather, results), strict=True)
    groups = []
    for policy_spec, output, reached, *rest in by_group:
        sampled, env_action = policy_spec.action_form.recorded(output.action)
        named_outputs = model_outputs(output, env_action)
        if to_look_at:
            named_outputs |= distribution_shown(policy_spec, output)
        groups.append(AgentSteps(None, sampled, *rest, named_outputs, reached))
    by_env = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), tuple(groups))
    reached_state = raw.state if to_look_at else None
    return RecordedSteps(by_env, raw.all_terminated, raw.episode_done, reached_state)


def distribution_shown(policy_spec: PolicySpec, output: PolicyOutput) -> dict[str, jax.Array]:
    """The numbers of a group's distributions that pictures show, [N, E, M, ...], by name."""
    shown = {}
    if mask_length(policy_spec.action_space):
        shown[PROBABILITIES] = output.distribution.probabilities()
    spread = policy_spec.action_form.spread(output.distribution)
    if spread is not None:
        shown[SPREAD] = jnp.stack(spread, axis=3)
    return shown
