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


class RecordedAlone(NamedTuple):
    """The part of a step that only recording needs."""

    reached: tuple[PyTree, ...]  # by group, observations before any reset
    # By group, as the environment got them: made afterwards, their last bits may differ. None where
    # the sampled ones are the environment's.
    env_actions: tuple[PyTree | None, ...]
    all_terminated: jax.Array

    @classmethod
    def of(
        cls,
        spec: RolloutSpec,
        turns: list[Any],
        reached: tuple[PyTree, ...],
        all_terminated: jax.Array,
    ) -> "RecordedAlone":
        """The recorded environments' part of a step."""
        env_actions = []
        for policy_spec, turn in zip(spec.policy_specs, turns, strict=True):
            env_actions.append(policy_spec.recorded(turn.action)[1])
        by_group = reached, tuple(env_actions)
        first = lambda leaf: leaf[:, : spec.num_recorded]
        return cls(*jax.tree.map(first, by_group), all_terminated[: spec.num_recorded])


def recorded_steps(
    spec: RolloutSpec, turns: list[Any], episode_done: jax.Array, alone: RecordedAlone
) -> RecordedSteps:
    """The steps [T, ...] of the recorded environments, with the very numbers of the rollout."""
    groups = []
    by_group = zip(spec.policy_specs, turns, alone.reached, alone.env_actions, strict=True)
    for policy_spec, turn, reached, env_action in by_group:
        turn = jax.tree.map(lambda leaf: leaf[:, :, : spec.num_recorded], turn)
        groups.append(
            AgentSteps(
                obs=turn.obs,
                action=policy_spec.as_sampled(turn.action),
                reward=turn.reward,
                active=turn.active,
                terminated=turn.terminated,
                truncated=turn.truncated,
                outputs=model_outputs(turn, env_action),
                reached=reached,
            )
        )
    episode_done = episode_done[:, : spec.num_recorded]
    return RecordedSteps(tuple(groups), alone.all_terminated, episode_done)
