"""Steps as episodes are made of them: observations, actions, model outputs, rewards and ends."""

from typing import Any, NamedTuple

import jax

from jaxrl.core.agent_steps import AgentSteps
from jaxrl.core.types import PyTree
from jaxrl.ops.distributions import dist_inputs
from jaxrl.ops.exploration import policy_of
from jaxrl.rollout.env_step import RolloutSpec

DIST_INPUTS, ENV_ACTIONS = "action_dist_inputs", "actions_for_env"  # among a model's outputs


class RecordedSteps(NamedTuple):
    """Steps of E environments."""

    groups: tuple[AgentSteps, ...]  # [..., N, E, M, ...]
    all_terminated: jax.Array  # bool[..., E]  the episode ended for everybody, not by the clock
    episode_done: jax.Array  # bool[..., E]
    state: PyTree | None = None  # [..., E, ...]  that they reached; None where nobody asked for it


def model_outputs(step: Any, env_action: PyTree | None) -> dict[str, PyTree]:
    """The model's outputs of a step, under RLlib's names.

    Args:
        step: with `action`, `distribution`, `value` and `inputs`, as of a `PolicyOutput`.
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


def recorded_alone(
    spec: RolloutSpec,
    turns: list[Any],
    reached: tuple[PyTree, ...],
    all_terminated: jax.Array,
) -> RecordedSteps:
    """The part of the recorded environments' step that no turn has; the rest of it is None.

    Args:
        reached: by group, observations before any reset.
    """
    groups = []
    for policy_spec, turn, observed in zip(spec.policy_specs, turns, reached, strict=True):
        # As the environment got it: made afterwards, its last bits may differ.
        env_action = policy_spec.recorded(turn.action)[1]
        outputs = {} if env_action is None else {ENV_ACTIONS: env_action}
        groups.append(AgentSteps(*[None] * 6, outputs, observed))
    groups = jax.tree.map(lambda leaf: leaf[:, : spec.num_recorded], tuple(groups))
    return RecordedSteps(groups, all_terminated[: spec.num_recorded], None)


def recorded_steps(
    spec: RolloutSpec, turns: list[Any], episode_done: jax.Array, alone: RecordedSteps
) -> RecordedSteps:
    """The steps [T, ...] of the recorded environments, with the very numbers of the rollout."""
    groups = []
    for policy_spec, turn, group in zip(spec.policy_specs, turns, alone.groups, strict=True):
        turn = jax.tree.map(lambda leaf: leaf[:, :, : spec.num_recorded], turn)
        groups.append(
            group._replace(
                obs=turn.obs,
                action=policy_spec.as_sampled(turn.action),
                reward=turn.reward,
                active=turn.active,
                terminated=turn.terminated,
                truncated=turn.truncated,
                outputs=model_outputs(turn, group.outputs.get(ENV_ACTIONS)),
            )
        )
    episode_done = episode_done[:, : spec.num_recorded]
    return alone._replace(groups=tuple(groups), episode_done=episode_done)
