"""Rollout: T steps of E environments in one scan, and the trajectories that policies learn from."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import RawStep
from jaxrl.core.types import PyTree
from jaxrl.models.model import carried
from jaxrl.models.policy_spec import PolicyInputs, PolicyOutput, PolicyState, PolicyWeights
from jaxrl.ops.control_flow import cond_any
from jaxrl.ops.distributions import Distribution
from jaxrl.ops.packing import Packed, pack
from jaxrl.rollout.env_step import (
    EnvBatch,
    RolloutSpec,
    StepRandomness,
    advance_envs,
    informed,
    next_policy_states,
    policy_inputs,
    read_by_networks,
    step_envs,
)
from jaxrl.rollout.episode_stats import EpisodeStats
from jaxrl.rollout.feature import After, Played
from jaxrl.rollout.policy_map import Grouping, each_policy
from jaxrl.rollout.recorded_steps import RecordedSteps, recorded_alone, recorded_steps


class Trajectory(struct.PyTreeNode):
    """The steps of one group's policies: [T, N, E, M, ...]."""

    obs: PyTree
    action: PyTree  # as sampled; the environment's own is made of it by the player
    distribution: Distribution  # that the action was drawn from; `Explored` where it explores
    value: jax.Array  # f32  V(s[t])
    next_value: jax.Array  # f32  V(s'[t]), s' before any reset; unspecified where `terminated`
    reward: jax.Array  # f32
    terminated: jax.Array  # bool
    done: jax.Array  # bool  terminated or truncated
    active: jax.Array  # bool  the agent acted; rows without it count for nothing
    inputs: PolicyInputs = PolicyInputs()  # what the policy was told beside the observation
    # bool  no row of the agent: advantages pass over it; None where agents never wait (`turns`)
    waited: jax.Array | None = None
    # [C, N, E, M, ...]  the model's carry into each part that `PolicySpec.sequences` makes of T
    carry: PyTree | None = None
    # f32  of the action when it was chosen; None where that is the distribution's
    log_prob: jax.Array | None = None
    # f32  discounted, before rows that continue an episode of an earlier batch; None without those
    return_before: jax.Array | None = None
    # that the step reached, before any reset; None where the model gives no intrinsic reward
    next_obs: PyTree | None = None
    # f32  probability of the action by the policy that learns, over that by which it was drawn, at
    # most 1 (`jaxrl.algorithms.ppo.behaviour`); None where rows are not weighted
    importance: jax.Array | None = None
    # the behaviour that acted, where the policy's choice with its noise learns; None elsewhere
    noise: Distribution | None = None
    # whether it may have been played by older weights than those that learn from it
    is_stale: bool = struct.field(pytree_node=False, default=False)


class Rollout(struct.PyTreeNode):
    """T steps of all environments."""

    trajectories: tuple[Trajectory, ...]  # by group
    reached: EpisodeStats  # [T, E]  as each step left them
    episode_done: jax.Array  # bool[T, E]  whether that step ended them
    agent_steps: jax.Array  # i32[M_all]  rows in which each agent acted
    # {name: f32[T, E]}  of which results have histograms
    hist_data: dict[str, jax.Array] = struct.field(default_factory=dict)
    # by feature, [T, E, ...]  what it shows of each step
    shown: dict[str, PyTree] = struct.field(default_factory=dict)
    # [T, ...]  of the first environments, as they were played; None if none is recorded
    recorded: RecordedSteps | None = None
    num_env_steps: jax.Array | None = None  # i32[]  of episodes that were not dropped; None: all

    def as_stale(self) -> "Rollout":
        """The same, marked as played by older weights than those that will learn from it."""
        marked = tuple(trajectory.replace(is_stale=True) for trajectory in self.trajectories)
        return self.replace(trajectories=marked)


def play(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    randomness: StepRandomness,
    env_params: PyTree,
) -> tuple[EnvBatch, Rollout]:
    """Plays T steps in every environment.

    Args:
        weights: of those who act, by group, [N, ...].
        randomness: [T, ...], as of `draw_randomness`.
    """

    def step(state, randomness):
        envs, carries = state
        after, turns, ends, raw = _step(spec, weights, envs, randomness, env_params)
        carries = carries.record(envs.policy_states, turns, randomness.step)
        alone = None
        if spec.num_recorded:
            reached = spec.grouping.gather(raw.obs)
            alone = recorded_alone(spec, turns, reached, raw.all_terminated)
        return (after, carries), (*packed(turns, ends), alone)

    start = envs, Carries.zeros(spec, envs, len(randomness.step))
    (envs, carries), (turns, ends, alone) = jax.lax.scan(step, start, randomness)
    turns, ends = [turn.unpack() for turn in turns], ends.unpack()
    recorded = recorded_steps(spec, turns, ends[1], alone) if spec.num_recorded else None
    envs, rollout = rollout_of(spec, weights, envs, (turns, ends, carries), env_params)
    return envs, rollout.replace(recorded=recorded)


def packed(turns: list["Turn"], ends: tuple) -> tuple[tuple[Packed, ...], Packed]:
    """A step's results as few wide arrays: a loop on the CPU pays for each, however small."""
    return tuple(pack(turn, num_axes=3) for turn in turns), pack(ends, num_axes=1)


def rollout_of(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    steps: tuple[list["Turn"], tuple, "Carries"],
    env_params: PyTree,
) -> tuple[EnvBatch, Rollout]:
    """The rollout of steps that were played, and the environments with what is open in them.

    Args:
        envs: after the last step.
        steps: (turns [T, ...] by group, `ends_of` [T, ...], carries).
    """
    turns, ends, carries = steps
    bootstrap = _values(spec, weights, *_read(spec, envs, env_params))
    if maker := spec.row_maker:
        envs, trajectories = maker.rows(spec, envs, (turns, bootstrap, carries), env_params)
    else:
        trajectories = tuple(map(_trajectory, turns, bootstrap, carries.parts))
    agent_steps = agent_steps_of(spec.grouping, turns)
    return envs, Rollout(trajectories, *ends[:2], agent_steps, *ends[2:])


class Turn(NamedTuple):
    """The actions of one group's policies in a step, and their results: [N, E, M, ...]."""

    obs: PyTree
    action: PyTree
    distribution: Distribution
    value: jax.Array
    inputs: PolicyInputs
    final_value: jax.Array  # V(s'[t]) where the clock ended the episode
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    active: jax.Array
    # before any reset; None where the model gives no intrinsic reward
    next_obs: PyTree | None = None


class Carries(struct.PyTreeNode):
    """The carries that learning starts from, by group; empty for models without memory."""

    parts: list[PyTree]  # [C, N, E, M, ...]  into each of the parts of `PolicySpec.sequences`
    # [N, E, M, ...]  into each agent's last action; [] where steps are rows
    last_action: list[PyTree]
    lengths: tuple[int, ...] = struct.field(pytree_node=False)  # of a part, in steps

    @classmethod
    def zeros(cls, spec: RolloutSpec, envs: EnvBatch, num_steps: int) -> "Carries":
        """The carries of a rollout that begins with `envs`."""
        parts, lengths = [], []
        for policy_spec, policy_state in zip(spec.policy_specs, envs.policy_states, strict=True):
            number, length = policy_spec.sequences(num_steps)
            zeros = lambda leaf, number=number: jnp.zeros((number, *leaf.shape), leaf.dtype)
            parts.append(jax.tree.map(zeros, policy_state.carry))
            lengths.append(length)
        maker, last_action = spec.row_maker, []
        if maker is not None:
            last_action = maker.carries(envs.features[maker.name])
        return cls(parts, last_action, tuple(lengths))

    def record(
        self, policy_states: tuple[PolicyState, ...], turns: list[Turn], step: jax.Array
    ) -> "Carries":
        """The carries with those of `step`, before which the policies were in `policy_states`."""
        carries = [policy_state.carry for policy_state in policy_states]
        parts = [
            _set_where_a_part_begins(kept, carry, step, length)
            for kept, carry, length in zip(self.parts, carries, self.lengths, strict=True)
        ]
        last_action = [
            carried(turn.active, carry, kept)
            for turn, carry, kept in zip(turns, carries, self.last_action, strict=False)
        ]
        return self.replace(parts=parts, last_action=last_action)


def _set_where_a_part_begins(kept: PyTree, carry: PyTree, step: jax.Array, length: int) -> PyTree:
    """`kept` [C, ...] with `carry` where a part of `length` steps begins with this one."""
    part = step // length
    return jax.tree.map(
        lambda kept, now: kept.at[part].set(jnp.where(step % length == 0, now, kept[part])),
        kept,
        carry,
    )


def _step(
    spec: RolloutSpec,
    weights: tuple,
    envs: EnvBatch,
    randomness: StepRandomness,
    env_params: PyTree,
):
    """(envs, turns by group, ends, raw) of a step of all of them; ends as of `ends_of`."""
    gather = spec.grouping.gather
    outputs, raw = step_envs(spec, weights, envs, randomness, env_params)
    last = before_reset(spec, envs, outputs, raw, gather(raw.obs))
    final_values = values_at_the_clock(spec, weights, raw.truncated, last, env_params)
    played = Played(weights, outputs, raw, randomness.reset)
    after, known = advance_envs(spec, envs, played, env_params)
    turns = turns_of(spec, envs, outputs, raw, final_values, last.obs)
    return after, turns, ends_of(raw, known), raw


def ends_of(raw: RawStep, known: After) -> tuple:
    """The parts of a step that a rollout keeps beside its turns, in the order of `Rollout`."""
    return known.reached, raw.episode_done, known.hist_data, known.shown


def before_reset(
    spec: RolloutSpec,
    envs: EnvBatch,
    outputs: list[PolicyOutput],
    raw: RawStep,
    obs: tuple[PyTree, ...],
) -> EnvBatch:
    """The environments as a step left them, before any reset; of their episodes it knows nothing.

    Args:
        obs: by group, before any reset.
    """
    kept = next_policy_states(spec, envs.policy_states, outputs, raw)
    features = dict(envs.features)
    for feature in spec.informing:
        features[feature.name] = feature.reached(spec, features[feature.name], raw)
    return envs.replace(state=raw.state, obs=obs, policy_states=kept, features=features)


def values_at_the_clock(
    spec: RolloutSpec,
    weights: tuple,
    truncated: jax.Array,
    last: EnvBatch,
    env_params: PyTree,
) -> tuple[jax.Array, ...]:
    """V of the last observations of episodes that the clock ended, by group, f32[N, E, M].

    Unspecified elsewhere: most steps have none.

    Args:
        truncated: bool[E, M_all].
        last: the environments before any reset.
    """
    values = functools.partial(_values, spec)
    by_group = weights, *_read(spec, last, env_params)
    shapes = jax.eval_shape(values, *by_group)

    def zeros(*by_group):
        return tuple(jnp.zeros(shape.shape, shape.dtype) for shape in shapes)

    return cond_any(jnp.any(truncated), values, zeros, *by_group)


def turns_of(
    spec: RolloutSpec,
    envs: EnvBatch,
    outputs: list[PolicyOutput],
    raw: RawStep,
    final_values: tuple[jax.Array, ...],
    next_obs: tuple[PyTree, ...],
) -> list[Turn]:
    """A step of `envs`, by group.

    Args:
        next_obs: by group, before any reset.
    """
    gather = spec.grouping.gather
    rewards, actives = gather(raw.reward), gather(raw.active)
    terminated, truncated = gather(raw.terminated), gather(raw.truncated)
    return [
        Turn(
            obs=envs.obs[g],
            action=output.action,
            distribution=output.distribution,
            value=output.value,
            inputs=output.inputs,
            final_value=final_values[g],
            reward=rewards[g],
            terminated=terminated[g],
            truncated=truncated[g],
            active=actives[g],
            next_obs=next_obs[g] if spec.policy_specs[g].rewards_itself else None,
        )
        for g, output in enumerate(outputs)
    ]


def _trajectory(turn: Turn, bootstrap: jax.Array, carry: PyTree) -> Trajectory:
    """Turns [T, ...] with the values of the reached states; `bootstrap` f32[N, E, M] of the last.

    V(s'[t]) is V(s[t+1]), computed anyway, but where the clock ended the episode and s[t+1] is
    another's first.
    """
    following = jnp.concatenate([turn.value[1:], bootstrap[None]])
    return Trajectory(
        obs=turn.obs,
        action=turn.action,
        distribution=turn.distribution,
        value=turn.value,
        next_value=jnp.where(turn.truncated, turn.final_value, following),
        reward=turn.reward,
        terminated=turn.terminated,
        done=turn.terminated | turn.truncated | ~turn.active,
        active=turn.active,
        inputs=turn.inputs,
        carry=carry,
        next_obs=turn.next_obs,
    )


def _values(
    spec: RolloutSpec,
    weights: tuple,
    envs: EnvBatch,
    inputs: tuple[PolicyInputs, ...],
    env_params: PyTree,
) -> tuple[jax.Array, ...]:
    """V by group, f32[N, E, M]; of `envs` only what networks read is asked for."""
    inputs, values = informed(spec, inputs, envs, env_params), []
    for g, policy_spec in enumerate(spec.policy_specs):
        if spec.player(weights[g]):  # which does not learn, so nobody reads them
            num_envs = len(jax.tree.leaves(envs.obs[g])[0][0])
            values.append(jnp.zeros(spec.grouping.groups[g].shape(num_envs)))
            continue
        apply = each_policy(policy_spec.apply, in_axes=(0, 0, 0, 0))
        _, value, _ = apply(weights[g], envs.obs[g], envs.policy_states[g], inputs[g])
        values.append(value)
    return tuple(values)


def _read(spec: RolloutSpec, envs: EnvBatch, env_params: PyTree) -> tuple:
    """The last three arguments of `_values`."""
    inputs = policy_inputs(spec, envs.state, envs.policy_states, env_params, masks=False)
    return read_by_networks(spec, envs), inputs, env_params if spec.informing else None


def agent_steps_of(grouping: Grouping, turns: Sequence[Turn | Trajectory]) -> jax.Array:
    """The number of steps in which each agent acted, i32[M_all]."""
    counts = {}
    for group, turn in zip(grouping.groups, turns, strict=True):
        rows = jnp.sum(turn.active, axis=(0, 2), dtype=jnp.int32)  # [N, M]
        for i, agents in enumerate(group.agents):
            for j, agent in enumerate(agents):
                counts[agent] = rows[i, j]
    return jnp.stack([counts[agent] for agent in grouping.agents])
