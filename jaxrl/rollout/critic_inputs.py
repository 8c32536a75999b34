"""Centralised critics: what value networks see that see more than their policies (MAPPO).

After Yu et al. 2022. A policy's setting `critic_observation` says where it comes from:

    own          the policy's observation: no centralised critic
    state        the environment's `global_state(state, params)`
    all-agents   the observations of all agents, in the environment's order; of one that has left,
                 zeros. Where agents may leave, "present" says which have not.
"""

import dataclasses
import itertools
import math
from typing import Any, Self

import jax
import jax.numpy as jnp

from jaxrl.core.env import MultiAgentEnvironment, RawStep, raw_reset
from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import program_space, to_program
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Space, box_of, space_of
from jaxrl.core.types import AgentId, PolicyId, PyTree
from jaxrl.models.model import carried
from jaxrl.models.network_inputs import (
    ALL_AGENTS,
    OBSERVATION,
    OWN,
    PRESENT,
    STATE,
    is_image,
    layout_of,
    without_mask,
)
from jaxrl.models.policy_spec import PolicyInputs
from jaxrl.rollout.feature import After, Begin, Feature, Played
from jaxrl.rollout.first_step import info_of_a_step, is_always_active, shape_of_a_key


def critic_space(source: str, env: MultiAgentEnvironment, params: PyTree) -> Dict | None:
    """The space of what a critic sees, as in `CriticSpec`; None if that is the own observation.

    Raises:
        UsageError: an environment without a global state.
    """
    if source == STATE:
        return Dict({OBSERVATION: program_space(global_state_space(env, params))})
    if source == OWN or len(env.agents) == 1:
        return None
    parts = {OBSERVATION: _space_of_all(_observation_spaces(env, params))}
    if not is_always_active(env, info_of_a_step(env, params)):
        parts[PRESENT] = Box(0, 1, (len(env.agents),))
    return Dict(parts)


def critic_spaces(config: Any, setup: Any) -> dict[PolicyId, Dict | None]:
    """The `critic_space` of every policy.

    Args:
        config, setup: an `AlgorithmConfig`, and what its `setup` gives.
    """
    sources = {policy: config.for_policy(policy).critic_observation for policy in setup.policies}
    return {
        policy: critic_space(source, setup.env, setup.env_params)
        for policy, source in sources.items()
    }


def global_state_space(env: MultiAgentEnvironment, params: PyTree) -> Space:
    """The space of `global_state`: `global_state_space(params)`, else made of the traced shapes."""
    if not callable(getattr(env, "global_state", None)):
        instead = "define it as docs/centralised-critic.md does"
        if len(env.agents) > 1:
            instead = "with 'all-agents' the critic sees what all agents observe"
        raise UsageError(
            f"critic_observation='state': environment {env.name} has no global_state(state, "
            f"params); {instead}"
        )
    if hasattr(env, "global_state_space"):
        return env.global_state_space(params)

    def first_state(key):
        return env.global_state(raw_reset(env, key, params)[1], params)

    shapes = jax.eval_shape(first_state, shape_of_a_key())
    return space_of(jax.tree.map(box_of, shapes))


@dataclasses.dataclass(frozen=True)
class CriticInputs(Feature):
    """Value networks see what `critic_observation` says; some are told which agents have not left.

    Its slice is bool[E, M_all], the agents that have not left; None where no critic is told.
    """

    tells_present: bool

    name = "present"
    informs = True

    @classmethod
    def of(cls, spec: Any, config: Any, env_params: PyTree) -> Self | None:
        critics = [
            policy_spec.critic
            for policy_spec in spec.policy_specs
            if policy_spec.critic is not None
        ]
        tells_present = any(PRESENT in critic.space.spaces for critic in critics)
        return cls(tells_present) if critics else None

    def start(self, spec: Any, envs: Any, begin: Begin) -> jax.Array | None:
        shape = len(begin.keys), len(spec.grouping.agents)
        return jnp.ones(shape, bool) if self.tells_present else None

    def reached(self, spec: Any, present: jax.Array | None, raw: RawStep) -> jax.Array | None:
        if not self.tells_present:
            return None
        present = present & ~raw.terminated
        # Where agents do not wait, one that does not act has left.
        return present if spec.waits else present & raw.active

    def after_step(
        self, spec: Any, present: jax.Array | None, played: Played, after: After | None
    ) -> tuple[jax.Array | None, After | None]:
        present = self.reached(spec, present, played.raw)
        if self.tells_present:
            present = present | played.raw.episode_done[:, None]
        return present, after

    def inputs(
        self, spec: Any, inputs: tuple[PolicyInputs, ...], envs: Any, env_params: PyTree
    ) -> tuple[PolicyInputs, ...]:
        critics = [policy_spec.critic for policy_spec in spec.policy_specs]
        sources = {critic.source for critic in critics if critic is not None}
        found = {}
        if STATE in sources:
            global_state = lambda state: spec.env.global_state(state, env_params)
            space = global_state_space(spec.env, env_params)
            found[STATE] = {OBSERVATION: to_program(space, jax.vmap(global_state)(envs.state), jnp)}
        if ALL_AGENTS in sources:
            found[ALL_AGENTS] = _seen_of_all(spec, envs.obs, envs.features[self.name], env_params)
        completed = []
        for group, critic, group_inputs in zip(spec.grouping.groups, critics, inputs, strict=True):
            if critic is not None:
                num_policies, _, num_agents = group.shape(0)
                repeat = lambda leaf, shape=(num_policies, num_agents): _for_each(leaf, *shape)
                group_inputs = group_inputs.replace(
                    critic=jax.tree.map(repeat, found[critic.source])
                )
            completed.append(group_inputs)
        return tuple(completed)


def _for_each(leaf: jax.Array, num_policies: int, num_agents: int) -> jax.Array:
    """[E, ...] as [N, E, M, ...]."""
    shape = num_policies, leaf.shape[0], num_agents, *leaf.shape[1:]
    return jnp.broadcast_to(leaf[None, :, None], shape)


def _seen_of_all(
    spec: Any, obs: tuple[PyTree, ...], present: jax.Array | None, env_params: PyTree
) -> dict[str, PyTree]:
    """The observations of all agents, [E, ...]."""
    grouping, policy_specs = spec.grouping, spec.policy_specs
    by_group = [
        policy_spec.observed(group) for policy_spec, group in zip(policy_specs, obs, strict=True)
    ]
    by_place = grouping.scatter(tuple(by_group))
    by_agent = {}
    for i, agent in enumerate(grouping.agents):
        if grouping.stacked:
            values = jax.tree.map(lambda leaf, i=i: leaf[:, i], by_place)
        else:
            values = by_place[agent]
        if present is not None:
            values = carried(present[:, i], values, jax.tree.map(jnp.zeros_like, values))
        by_agent[agent] = values
    parts = {OBSERVATION: _values_of_all(_observation_spaces(spec.env, env_params), by_agent)}
    return parts if present is None else {**parts, PRESENT: present.astype(jnp.float32)}


def _observation_spaces(env: MultiAgentEnvironment, params: PyTree) -> dict[AgentId, Space]:
    """The program's."""
    spaces = {agent: env.observation_space(agent, params) for agent in env.agents}
    return {agent: program_space(without_mask(space)) for agent, space in spaces.items()}


def _space_of_all(spaces: dict[AgentId, Space]) -> Space:
    """The space of all agents' observations: images of one size stacked by channel, else in a row.

    Joined images have their channels last.
    """
    agent_spaces = list(spaces.values())
    if _are_alike_images(agent_spaces):
        channels = sum(layout_of(space).channels for space in agent_spaces)
        return Box(-math.inf, math.inf, (*layout_of(agent_spaces[0]).size, channels))
    if all(isinstance(space, Box) for space in agent_spaces):
        return Box(-math.inf, math.inf, (sum(space.size for space in agent_spaces),))
    if all(isinstance(space, Discrete | MultiDiscrete) for space in agent_spaces):
        return MultiDiscrete(tuple(itertools.chain(*(space.counts for space in agent_spaces))))
    return Dict(spaces)


def _values_of_all(spaces: dict[AgentId, Space], by_agent: dict[AgentId, PyTree]) -> PyTree:
    """Observations [E, ...] by agent, in the form of `_space_of_all`."""
    agent_spaces = list(spaces.values())
    if isinstance(_space_of_all(spaces), Dict):
        return by_agent
    is_box = isinstance(agent_spaces[0], Box)
    values = [by_agent[agent].astype(jnp.float32 if is_box else jnp.int32) for agent in spaces]
    if _are_alike_images(agent_spaces):
        layouts = map(layout_of, agent_spaces)
        images = [layout.to_last(value) for layout, value in zip(layouts, values, strict=True)]
        return jnp.concatenate(images, axis=-1)
    return jnp.concatenate([value.reshape(value.shape[0], -1) for value in values], axis=-1)


def _are_alike_images(spaces: list[Space]) -> bool:
    return all(map(is_image, spaces)) and len({layout_of(space).size for space in spaces}) == 1
