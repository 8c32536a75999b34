"""Policy specification: observation filter, model, action distribution and action conversion."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.errors import UsageError
from jaxrl.core.fields import field_values, without
from jaxrl.core.ignored_parts import values_without
from jaxrl.core.mask_parts import MASK
from jaxrl.core.program_spaces import (
    is_action_of_program,
    is_program,
    to_program,
    type_inside,
    unpacked,
)
from jaxrl.core.spaces import Space, is_tree
from jaxrl.core.types import Key, PyTree
from jaxrl.models.model import ActorCritic, Model, RecurrentModel, carried, has_memory
from jaxrl.models.network_inputs import (
    OBSERVATION,
    CriticSpec,
    InputsSpec,
    ObservationFilter,
    has_mask,
    has_numbers,
    mask_apart,
    one_or_all,
    without_mask,
)
from jaxrl.ops.distributions import Distribution, num_log_stds, sampling_noise
from jaxrl.ops.environment_actions import ActionForm
from jaxrl.ops.explored import Behaviour, Explored
from jaxrl.ops.running_stats import RunningMeanStd


class PolicyWeights(struct.PyTreeNode):
    """All numbers that determine a policy's actions."""

    params: PyTree  # of the model, trained
    # Of the observations, with a centralised critic an `ActorCritic` of two; None without a filter.
    filter: RunningMeanStd | ActorCritic | None = None


class PolicyState(struct.PyTreeNode):
    """The memory of a policy within an episode, [...]; None for what the policy does not use."""

    carry: PyTree | None = None  # of the model
    prev_action: PyTree | None = None  # as the model's distribution has it; zeros at first
    prev_reward: jax.Array | None = None  # f32; 0 at first


class PolicyInputs(struct.PyTreeNode):
    """Inputs of a policy besides the observation, [...]; None for what the policy does not use."""

    action_mask: jax.Array | None = None  # bool[..., A]  the possible actions
    agent_id: jax.Array | None = None  # i32  the number of the agent among the policy's, from 0
    prev_action: PyTree | None = None
    prev_reward: jax.Array | None = None
    critic: PyTree | None = None  # what a centralised critic sees, as `CriticSpec.space` has it


# What a `PolicySpec` does without.
DECISIONS = ("has_memory", "has_state", "is_masked", "acts_as_sampled", "reads_as_given")
NOTHING_KEPT, NOTHING_TOLD = PolicyState(), PolicyInputs()


class PolicyOutput(NamedTuple):
    """A policy's action and the model's outputs in a step, [...]."""

    action: PyTree  # as the policy has it
    distribution: Distribution  # that it was chosen from
    value: jax.Array
    carry: PyTree  # of the model, after it
    inputs: PolicyInputs  # what it was told

    @property
    def log_prob(self) -> jax.Array:
        return self.distribution.log_prob(self.action)


@dataclass(frozen=True)
class PolicySpec:
    """The static part of a policy; hashable.

    Its spaces are the environment's, and so is what enters (`read`) and what leaves it
    (`to_env_action`). Inside, for the model and its distribution, integers count from 0 and lie in
    a row, as `program_space` has them.

    model: reads `inputs_spec.input_space(observation_space, action_space)`.
    observation_filter, normalize_images: see `ObservationFilter`. "MeanStdFilter" does not change
        the numbers of the first iteration, as in RLlib.
    normalize_actions, clip_actions: see `ActionForm`; training always uses the action as sampled.
    action_distribution: of a Box's actions, from ACTION_DISTRIBUTIONS.
    max_seq_len: the length of training sequences of a model with memory.
    critic: of a centralised critic; then the model reads an `ActorCritic`. Whoever acts without
        `PolicyInputs.critic` gets values of 0.
    exploration: what acts in training, see `jaxrl.ops.exploration`; None: samples of the policy.
    ignored: parts of the environment's observations that `observation_space` is without; they may
        be given from outside, see `given_observation`.
    """

    model: Model | RecurrentModel
    observation_space: Space
    action_space: Space
    observation_filter: str | None = None
    normalize_actions: bool = True
    clip_actions: bool = False
    action_distribution: str = "gaussian"
    inputs_spec: InputsSpec = InputsSpec()
    max_seq_len: int = 20
    critic: CriticSpec | None = None
    exploration: Behaviour | None = None
    normalize_images: bool = False
    ignored: tuple[str, ...] = ()

    def __post_init__(self):
        self._check_filter()
        for decision in DECISIONS:
            getattr(self, decision)  # now, so that a step asks nothing of spaces

    def _check_filter(self) -> None:
        if self.observation_filter is None:
            return
        named = f"observation_filter={self.observation_filter!r} needs"
        if not has_numbers(space := without_mask(self.observation_space)):
            raise UsageError(f"{named} Box observations, alone or in a Dict, not {space}")
        if self.critic is not None and not has_numbers(space := self.critic.space[OBSERVATION]):
            raise UsageError(
                f"{named} a Box, but with critic_observation={self.critic.source!r} the critic "
                f"sees {space}; observation_filter=None reads all as it is"
            )

    def __reduce__(self) -> tuple:
        """The form for pickle: the fields, without what is derived from them."""
        return type(self), tuple(field_values(self).values())

    @functools.cached_property
    def has_memory(self) -> bool:
        """True if the model has a carry."""
        return has_memory(self.model)

    @functools.cached_property
    def has_state(self) -> bool:
        """True if there is anything in a `PolicyState` of this policy."""
        inputs_spec = self.inputs_spec
        return self.has_memory or inputs_spec.prev_action or inputs_spec.prev_reward

    @functools.cached_property
    def is_masked(self) -> bool:
        """True if the mask of the possible actions is a part of the observation."""
        return has_mask(self.observation_space)

    @functools.cached_property
    def acts_as_sampled(self) -> bool:
        """True if the environment takes the distribution's actions as they are."""
        return not num_log_stds(self.action_space) and is_action_of_program(self.action_space)

    @functools.cached_property
    def reads_as_given(self) -> bool:
        """True if the model reads the environment's observation as it is, and nothing beside it."""
        is_changed = self.observation_filter is not None or self.normalize_images or self.is_masked
        is_told_more = self.critic is not None or self.inputs_spec != InputsSpec()
        return not (is_changed or is_told_more) and is_program(self.observation_space)

    @property
    def rewards_itself(self) -> bool:
        """True if the model gives an intrinsic reward."""
        return hasattr(self.model, "intrinsic_reward")

    def sequences(self, num_steps: int) -> tuple[int, int]:
        """(number, length) of the nearly equal sequences in `num_steps` steps; 1 without memory."""
        if not self.has_memory:
            return num_steps, 1
        number = -(-num_steps // self.max_seq_len)
        return number, -(-num_steps // number)

    @functools.cached_property
    def filters(self) -> ActorCritic:
        """The `ObservationFilter` of the policy, and with a centralised critic that of its own."""
        settings = self.observation_filter, self.normalize_images
        policy = ObservationFilter(without_mask(self.observation_space), *settings)
        if self.critic is None:
            return ActorCritic(policy)
        return ActorCritic(policy, ObservationFilter(self.critic.space[OBSERVATION], *settings))

    def initial_filter(self) -> RunningMeanStd | ActorCritic | None:
        if self.observation_filter is None:
            return None
        policy = self.filters.policy.initial()
        if self.critic is None:
            return policy
        return ActorCritic(policy, self.filters.value.initial())

    def next_filter(
        self,
        moments: RunningMeanStd | ActorCritic | None,
        obs: PyTree,
        inputs: PolicyInputs,
        with_rows: Callable[[RunningMeanStd, PyTree], RunningMeanStd],
    ) -> RunningMeanStd | ActorCritic | None:
        """The statistics with those of more observations.

        Args:
            with_rows: a filter's statistics, with the numbers of the observations as more rows.
        """

        def updated(moments, observation_filter, obs):
            if moments is None:
                return None
            return with_rows(moments, observation_filter.numbers(obs))

        if moments is None:
            return None
        obs = self.observed(obs)
        if not isinstance(moments, ActorCritic):
            return updated(moments, self.filters.policy, obs)
        return ActorCritic(
            updated(moments.policy, self.filters.policy, obs),
            updated(moments.value, self.filters.value, inputs.critic[OBSERVATION]),
        )

    def seen_numbers(self, obs: PyTree, xp: Any = jnp) -> PyTree:
        """The numbers of the policy's observations that are normalised, [..., *shape]."""
        return self.filters.policy.numbers(self.observed(obs, xp))

    def initial_state(self, batch_shape: tuple[int, ...]) -> PolicyState:
        """The policy's state at the start of an episode."""
        if not self.has_state:
            return NOTHING_KEPT
        return PolicyState(
            carry=self.model.initial_carry(batch_shape) if self.has_memory else None,
            prev_action=self.zero_action(batch_shape) if self.inputs_spec.prev_action else None,
            prev_reward=jnp.zeros(batch_shape) if self.inputs_spec.prev_reward else None,
        )

    def next_state(self, output: PolicyOutput, reward: jax.Array | None = None) -> PolicyState:
        """The policy's state after a step that brought `reward`, [...]; None: it is told later."""
        inputs_spec = self.inputs_spec
        if inputs_spec.prev_reward and reward is None:
            reward = jnp.zeros(output.value.shape)
        return PolicyState(
            output.carry,
            output.action if inputs_spec.prev_action else None,
            reward if inputs_spec.prev_reward else None,
        )

    def wait(
        self, active: jax.Array, after: PolicyState, before: PolicyState, reward: jax.Array
    ) -> PolicyState:
        """`after` where the agent was active, bool[...]; else `before`, with `reward` added."""
        if self.inputs_spec.prev_reward:
            before = before.replace(prev_reward=before.prev_reward + reward)
        return carried(active, after, before)

    def reset_where(self, begins: jax.Array, policy_state: PolicyState) -> PolicyState:
        """`policy_state` [...], with the state of a new episode where `begins`, bool[...]."""
        if not self.has_state:
            return policy_state
        return carried(begins, self.initial_state(begins.shape), policy_state)

    def inputs(
        self, policy_state: PolicyState, action_mask: PyTree = None, agent_id: PyTree = None
    ) -> PolicyInputs:
        """The inputs that the policy uses, of those available."""
        critic = self.critic
        needs_id = self.inputs_spec.num_agents or (critic and critic.inputs_spec.num_agents)
        return PolicyInputs(
            action_mask,
            agent_id if needs_id else None,
            policy_state.prev_action,
            policy_state.prev_reward,
        )

    def zero_action(self, batch_shape: tuple[int, ...]) -> PyTree:
        """An action [*batch_shape, ...] of zeros, as the model's distribution has it."""
        inside = type_inside(self.action_space)
        return jnp.zeros((*batch_shape, *inside.shape), inside.dtype)

    def observed(self, obs: PyTree, xp: Any = jnp) -> PyTree:
        """An observation for the model, of the environment's: without a part "action_mask"."""
        if self.is_masked:
            rest = without(obs, {MASK})
            obs = one_or_all(rest)
        return to_program(without_mask(self.observation_space), obs, xp)

    def given_observation(self, obs: PyTree) -> tuple[PyTree, PyTree | None]:
        """Splits an environment's observation into (the policy's input, the mask of actions or
        None).

        Parts that are ignored are left out.
        """
        return mask_apart(
            self.observation_space, values_without(self.ignored, self.observation_space, obs)
        )

    def read(
        self, moments: RunningMeanStd | ActorCritic | None, obs: PyTree, inputs: PolicyInputs
    ) -> PyTree:
        """The model's input for observations `[..., *observation_space.shape]`."""
        if self.reads_as_given:
            return obs
        apart = isinstance(moments, ActorCritic)
        parts = {OBSERVATION: self.observed(obs)}
        filters = self.filters
        of_policy = moments.policy if apart else moments
        read = self._read(filters.policy, of_policy, parts, self.inputs_spec, inputs)
        if self.critic is None:
            return read
        if inputs.critic is None:
            return ActorCritic(read)
        of_critic = moments.value if apart else moments
        critic_spec = self.critic.inputs_spec
        critic = self._read(filters.value, of_critic, inputs.critic, critic_spec, inputs)
        return ActorCritic(read, critic)

    def read_alone(self, moments: RunningMeanStd | ActorCritic | None, obs: PyTree) -> PyTree:
        """Observations as the model reads them, without what else it is told."""
        of_policy = moments.policy if isinstance(moments, ActorCritic) else moments
        parts = {OBSERVATION: self.observed(obs)}
        return self._read(self.filters.policy, of_policy, parts, InputsSpec(), NOTHING_TOLD)

    def _read(
        self,
        observation_filter: ObservationFilter,
        moments: RunningMeanStd | None,
        parts: dict[str, PyTree],
        inputs_spec: InputsSpec,
        inputs: PolicyInputs,
    ) -> PyTree:
        """A network's input: the filtered observation, other parts, and what else it is told."""
        if self.observation_filter is not None or self.normalize_images:
            parts = {**parts, OBSERVATION: observation_filter.read(moments, parts[OBSERVATION])}
        spaces = inputs_spec.spaces(self.action_space)
        used = {name: getattr(inputs, name) for name in spaces}
        if inputs_spec.prev_action and is_tree(self.action_space):
            used["prev_action"] = unpacked(spaces["prev_action"], used["prev_action"])
        return one_or_all({**parts, **used})

    def action_mask(self, obs: PyTree, inputs: PolicyInputs) -> jax.Array | None:
        """The possible actions, bool[..., A], from the observation or `inputs`; else None."""
        if not self.is_masked:
            return inputs.action_mask
        mask, axes = obs[MASK], len(self.observation_space[MASK].shape)
        return mask.reshape(*mask.shape[: mask.ndim - axes], -1).astype(bool)

    def apply(
        self,
        weights: PolicyWeights,
        obs: PyTree,
        policy_state: PolicyState = NOTHING_KEPT,
        inputs: PolicyInputs = NOTHING_TOLD,
    ) -> tuple[Distribution, jax.Array, PyTree]:
        """(distribution over actions, value f32[...], the model's carry after it) of one step."""
        read = weights.params, self.read(weights.filter, obs, inputs)
        if self.has_memory:
            distribution, value, carry = self.model.apply(*read, policy_state.carry)
        else:
            (distribution, value), carry = self.model.apply(*read), None
        return _masked(distribution, self.action_mask(obs, inputs)), value, carry

    def act(
        self,
        weights: PolicyWeights,
        obs: PyTree,
        policy_state: PolicyState = NOTHING_KEPT,
        inputs: PolicyInputs = NOTHING_TOLD,
        **choice: Any,
    ) -> PolicyOutput:
        """One step, its action chosen as of `choose`."""
        applied = self.apply(weights, obs, policy_state, inputs)
        return self.choose(applied, inputs, **choice)

    def choose(
        self,
        applied: tuple[Distribution, jax.Array, PyTree],
        inputs: PolicyInputs,
        *,
        noise: jax.Array | None = None,
        env_steps: jax.Array | None = None,
        is_drawn: jax.Array | None = None,
    ) -> PolicyOutput:
        """The step's output, with an action for what `apply` gave.

        Args:
            noise: the random numbers that an action is sampled from, as of `noise`; None: the
                distribution's mode.
            env_steps: f32[], of training so far: the exploration acts, if there is one; None: the
                policy by itself.
            is_drawn: bool[...], where the action is sampled, and the mode elsewhere; None:
                everywhere.
        """
        distribution, value, carry = applied
        if env_steps is not None and self.exploration is not None:
            distribution = Explored(distribution, self.exploration(distribution, env_steps))
        action = distribution.mode() if noise is None else distribution.sample(noise)
        if is_drawn is not None:
            where = is_drawn.reshape(*is_drawn.shape, *[1] * (action.ndim - is_drawn.ndim))
            action = jnp.where(where, action, distribution.mode())
        return PolicyOutput(action, distribution, value, carry, inputs)

    def evaluate_actions(
        self,
        params: PyTree,
        inputs: PyTree,
        action_mask: jax.Array | None,
        carry: PyTree | None = None,
        begins: jax.Array | None = None,
        waited: jax.Array | None = None,
    ) -> tuple[Distribution, jax.Array]:
        """(distribution, value) of model inputs: rows [B, ...], with memory sequences [L, B, ...].

        Args:
            carry: [B, ...], into the first step of each sequence.
            begins: bool[L, B], set at the first step of an episode.
            waited: bool[L, B], set where the agent waits and its carry does not change; None
                if agents never wait.
        """
        if waited is not None:
            distribution, value = self._step_by_step(params, inputs, carry, begins, waited)
        elif self.has_memory:
            distribution, value, _ = self.model.apply_sequence(params, inputs, carry, begins)
        else:
            distribution, value = self.model.apply(params, inputs)
        return _masked(distribution, action_mask), value

    def _step_by_step(
        self, params: PyTree, inputs: PyTree, carry: PyTree, begins: jax.Array, waited: jax.Array
    ) -> tuple[Distribution, jax.Array]:
        """Applies the model like `apply_sequence`; the carry stays the same where agents wait."""
        fresh = self.model.initial_carry(begins.shape[1:])

        def step(carry, row):
            inputs, begins, waited = row
            carry = carried(begins, fresh, carry)
            distribution, value, after = self.model.apply(params, inputs, carry)
            return carried(waited, carry, after), (distribution, value)

        return jax.lax.scan(step, carry, (inputs, begins, waited))[1]

    def noise(self, key: Key, shape: tuple[int, ...]) -> jax.Array:
        """The random numbers to sample actions from, f32[*shape, D]."""
        return sampling_noise(self.action_space, key, shape, self.action_distribution)

    @functools.cached_property
    def action_form(self) -> ActionForm:
        """The forms of its actions: the distribution's, and the environment's."""
        clipped = self.normalize_actions, self.clip_actions
        return ActionForm(self.action_space, *clipped, self.action_distribution)

    def to_env_action(self, action: PyTree) -> PyTree:
        """The distribution's actions as the environment's, `[..., *action_space.shape]`."""
        return action if self.acts_as_sampled else self.action_form.to_env(action)


def _masked(distribution: Distribution, action_mask: jax.Array | None) -> Distribution:
    return distribution if action_mask is None else distribution.masked(action_mask)
