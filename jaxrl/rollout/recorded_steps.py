"""Steps as episodes are made of them: observations, actions, model outputs, rewards and ends."""

from typing import Any, NamedTuple

import jax

from jaxrl.core.agent_steps import AgentSteps
from jaxrl.core.types import PyTree
from jaxrl.models.policy_spec import PolicyOutput
from jaxrl.ops.distributions import dist_inputs
from jaxrl.ops.explored import policy_of
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.steps import Steps

DIST_INPUTS, ENV_ACTIONS = "action_dist_inputs", "actions_for_env"  # among a model's outputs


class RecordedSteps(NamedTuple):
    """Steps of E environments."""

    groups: tuple[AgentSteps, ...]  # [..., N, E, M, ...]
    all_terminated: jax.Array  # bool[..., E]  the episode ended for everybody, not by the clock
    episode_done: jax.Array  # bool[..., E]
    state: PyTree | None = None  # [..., E, ...]  that they reached; None where nobody asked for it


def model_outputs(step: Steps | PolicyOutput, env_action: PyTree | None) -> dict[str, PyTree]:
    """The model's outputs of a step, under RLlib's names.

    Args:
        env_action: the environment's action; None where it is the sampled one.
    """
    outputs = {
        "action_logp": step.distribution.log_prob(step.action),
        "vf_preds": step.value,
        DIST_INPUTS: dist_inputs(policy_of(step.distribution)),
    }
    if env_action is not None:
        outputs[ENV_ACTIONS] = env_action
    if step.inputs.action_mask is not None:
        outputs["action_mask"] = step.inputs.action_mask
    return outputs


def recorded_part(
    spec: RolloutSpec, steps: list[Steps], reached: tuple[PyTree, ...]
) -> tuple[Steps, ...]:
    """The part of a step that only recording needs, of the recorded environments, by group.

    Actions are those that the environment got: made afterwards, their last bits may differ. They
    are None where the sampled ones are the environment's.

    Args:
        reached: observations before any reset, by group.
    """
    found = []
    for policy_spec, group, next_obs in zip(spec.policy_specs, steps, reached, strict=True):
        _, env_action = policy_spec.action_form.recorded(group.action)
        found.append(Steps(next_obs=next_obs, env_action=env_action))
    return jax.tree.map(lambda leaf: leaf[:, : spec.num_recorded], tuple(found))


def recorded_steps(
    spec: RolloutSpec, steps: list[Steps], ends: Any, parts: tuple[Steps, ...]
) -> RecordedSteps:
    """The steps [T, ...] of the recorded environments, with the very numbers of the rollout.

    Args:
        ends: the `Ends` of the steps.
        parts: as of `recorded_part`.
    """
    groups = []
    for policy_spec, group, part in zip(spec.policy_specs, steps, parts, strict=True):
        group = jax.tree.map(lambda leaf: leaf[:, :, : spec.num_recorded], group)
        groups.append(
            AgentSteps(
                obs=group.obs,
                action=policy_spec.action_form.as_sampled(group.action),
                reward=group.reward,
                active=group.active,
                terminated=group.terminated,
                truncated=group.truncated,
                outputs=model_outputs(group, part.env_action),
                reached=part.next_obs,
            )
        )
    flags = (flag[:, : spec.num_recorded] for flag in (ends.all_terminated, ends.episode_done))
    return RecordedSteps(tuple(groups), *flags)
