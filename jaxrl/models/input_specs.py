"""The inputs of policies' networks: the observation without its mask, and additional inputs.

An observation may hold the mask of the possible actions, as a part "action_mask".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from jaxrl.core.fields import without
from jaxrl.core.mask_parts import MASK, beside_mask
from jaxrl.core.program_spaces import action_space_inside, program_space
from jaxrl.core.spaces import Box, Dict, Discrete, Space
from jaxrl.core.types import PyTree

OBSERVATION, PRESENT = "observation", "present"


@dataclass(frozen=True)
class InputsSpec:
    """The inputs of a model besides the observation; with any, it reads a dict (`input_space`)."""

    num_agents: int = 0  # of the policy, if the agent's number is an input, else 0
    prev_action: bool = False
    prev_reward: bool = False

    def input_space(self, observation_space: Space, action_space: Space) -> Space:
        """The model's input: the observation without its mask, or {"observation": ..., ...}."""
        observation = program_space(without_mask(observation_space))
        return _joined({OBSERVATION: observation} | self.spaces(action_space))

    def spaces(self, action_space: Space) -> dict[str, Space]:
        """The program's, by name."""
        parts = {}
        if self.num_agents:
            parts["agent_id"] = Discrete(self.num_agents)
        if self.prev_action:
            parts["prev_action"] = action_space_inside(action_space)
        if self.prev_reward:
            parts["prev_reward"] = Box(-jnp.inf, jnp.inf, ())
        return parts


@dataclass(frozen=True)
class CriticSpec:
    """The input of a centralised critic, in place of its policy's observation (Yu et al. 2022).

    source: "state" or "all-agents", see `jaxrl.rollout.critic_inputs`.
    space: {"observation": what it sees; "present": which agents have not left, where some may}.
    told: beside that, as the policy is told; but the agent's number wherever the policy plays
        several agents, since they all have the same state.
    """

    source: str
    space: Dict
    inputs_spec: InputsSpec

    def input_space(self, action_space: Space) -> Space:
        """The value network's input."""
        return _joined(self.space.spaces | self.inputs_spec.spaces(action_space))


def _joined(parts: dict[str, Space]) -> Space:
    """The space of several parts; a single one is returned itself."""
    return Dict(parts) if len(parts) > 1 else one_or_all(parts)


def one_or_all(parts: dict[str, Any]) -> Any:
    """The parts; a single one is returned itself."""
    return parts if len(parts) > 1 else next(iter(parts.values()))


def has_mask(space: Space) -> bool:
    """Returns whether observations have a part "action_mask" with the possible actions."""
    return isinstance(space, Dict) and MASK in space.spaces and len(space.spaces) > 1


def without_mask(space: Space) -> Space:
    """The space without its part "action_mask"; a single remaining part is returned itself."""
    if not has_mask(space):
        return space
    return _joined(without(space.spaces, {MASK}))


def mask_apart(space: Space, obs: PyTree) -> tuple[PyTree, PyTree | None]:
    """(an observation of the space, the mask that the environment gave as a part of it or None).

    Where training read the masks apart, as of Python environments, the space has no such part.
    """
    if not isinstance(obs, Mapping) or MASK not in obs or has_mask(space):
        return obs, None
    return beside_mask(obs), obs[MASK]
