"""Rollout: T steps of E environments in one scan, and the trajectories that policies learn from."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl.core.env import RawStep
from jaxrl.core.types import PyTree
from jaxrl.models.model import carried
from jaxrl.models.policy_spec import PolicyInputs, PolicyOutput, PolicyState, PolicyWeights
from jaxrl.ops.control_flow import any_true, cond_any
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
from jaxrl.rollout.grouping import Grouping, each_policy
from jaxrl.rollout.steps import Steps, Trajectory

if TYPE_CHECKING:
    from jaxrl.rollout.recorded_steps import RecordedSteps


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
    recorded: "RecordedSteps | None" = None
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
    if spec.num_recorded:
        from jaxrl.rollout.recorded_steps import recorded_part, recorded_steps

    def step(state, randomness):
        envs, carries = state
        after, steps, ends, raw = _step(spec, weights, envs, randomness, env_params)
        carries = carries.record(envs.policy_states, steps, randomness.step)
        recorded = None
        if spec.num_recorded:
            ends = ends._replace(all_terminated=raw.all_terminated)
            recorded = recorded_part(spec, steps, spec.grouping.gather(raw.obs))
        return (after, carries), (*packed(steps, ends), recorded)

    start = envs, Carries.zeros(spec, envs, len(randomness.step))
    (envs, carries), (steps, ends, recorded) = jax.lax.scan(step, start, randomness)
    steps, ends = [group.unpack() for group in steps], ends.unpack()
    if spec.num_recorded:
        recorded = recorded_steps(spec, steps, ends, recorded)
    envs, rollout = rollout_of(spec, weights, envs, (steps, ends, carries), env_params)
    return envs, rollout.replace(recorded=recorded)


def packed(steps: list[Steps], ends: "Ends") -> tuple[tuple[Packed, ...], Packed]:
    """A step's results as few wide arrays: a loop on the CPU pays for each, however small."""
    return tuple(pack(group, num_axes=3) for group in steps), pack(ends, num_axes=1)


class Ends(NamedTuple):
    """The parts of a step that a rollout keeps beside what agents did, [..., E]."""

    reached: EpisodeStats
    episode_done: jax.Array
    hist_data: dict[str, jax.Array]
    shown: dict[str, PyTree]
    all_terminated: jax.Array | None = None  # bool  of steps that are recorded
    lost: jax.Array | None = None  # bool  outside JAX: a fault took the episode

    @classmethod
    def of(cls, raw: RawStep, facts: After) -> "Ends":
        return cls(facts.reached, raw.episode_done, facts.hist_data, facts.shown)


def rollout_of(
    spec: RolloutSpec,
    weights: tuple[PolicyWeights, ...],
    envs: EnvBatch,
    played: tuple[list[Steps], Ends, "Carries"],
    env_params: PyTree,
) -> tuple[EnvBatch, Rollout]:
    """The rollout of steps that were played, and the environments with what is open in them.

    Args:
        envs: after the last step.
        played: (steps [T, ...] by group, ends [T, ...], carries).
    """
    steps, ends, carries = played
    bootstrap = _values(spec, weights, *_read(spec, envs, env_params))
    if maker := spec.row_maker:
        envs, trajectories = maker.rows(spec, envs, (steps, bootstrap, carries), env_params)
    else:
        trajectories = tuple(map(_trajectory, steps, bootstrap, carries.parts))
    agent_steps = agent_steps_of(spec.grouping, steps)
    fields = ends.reached, ends.episode_done, agent_steps, ends.hist_data, ends.shown
    return envs, Rollout(trajectories, *fields)


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
        self, policy_states: tuple[PolicyState, ...], steps: list[Steps], step: jax.Array
    ) -> "Carries":
        """The carries with those of `step`, before which the policies were in `policy_states`."""
        carries = [policy_state.carry for policy_state in policy_states]
        parts = [
            _set_where_a_part_begins(part_carries, carry, step, length)
            for part_carries, carry, length in zip(self.parts, carries, self.lengths, strict=True)
        ]
        last_action = [
            carried(group.active, carry, previous)
            for group, carry, previous in zip(steps, carries, self.last_action, strict=False)
        ]
        return self.replace(parts=parts, last_action=last_action)


def _set_where_a_part_begins(parts: PyTree, carry: PyTree, step: jax.Array, length: int) -> PyTree:
    """`parts` [C, ...] with `carry` where a part of `length` steps begins with this one."""
    part = step // length
    return jax.tree.map(
        lambda leaf, now: leaf.at[part].set(jnp.where(step % length == 0, now, leaf[part])),
        parts,
        carry,
    )


def _step(
    spec: RolloutSpec,
    weights: tuple,
    envs: EnvBatch,
    randomness: StepRandomness,
    env_params: PyTree,
):
    """(envs, steps by group, ends, raw) of a step of all of them."""
    gather = spec.grouping.gather
    outputs, raw = step_envs(spec, weights, envs, randomness, env_params)
    last = before_reset(spec, envs, outputs, raw, gather(raw.obs))
    final_values = values_at_the_clock(spec, weights, raw.truncated, last, env_params)
    played = Played(weights, outputs, raw, randomness.reset)
    after, facts = advance_envs(spec, envs, played, env_params)
    steps = steps_of(spec, envs, outputs, raw, final_values, last.obs)
    return after, steps, Ends.of(raw, facts), raw


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
    policy_states = next_policy_states(spec, envs.policy_states, outputs, raw)
    features = dict(envs.features)
    for feature in spec.informing:
        features[feature.name] = feature.reached(spec, features[feature.name], raw)
    return envs.replace(state=raw.state, obs=obs, policy_states=policy_states, features=features)


def values_at_the_clock(
    spec: RolloutSpec, weights: tuple, truncated: jax.Array, last: EnvBatch, env_params: PyTree
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

    return cond_any(any_true(truncated), values, zeros, *by_group)


def steps_of(
    spec: RolloutSpec,
    envs: EnvBatch,
    outputs: list[PolicyOutput],
    raw: RawStep,
    final_values: tuple[jax.Array, ...],
    next_obs: tuple[PyTree, ...],
) -> list[Steps]:
    """A step of `envs`, by group.

    Args:
        next_obs: by group, before any reset.
    """
    gather = spec.grouping.gather
    rewards, actives = gather(raw.reward), gather(raw.active)
    terminated, truncated = gather(raw.terminated), gather(raw.truncated)
    return [
        Steps(
            obs=envs.obs[g],
            action=output.action,
            distribution=output.distribution,
            value=output.value,
            inputs=output.inputs,
            next_value=final_values[g],
            reward=rewards[g],
            terminated=terminated[g],
            truncated=truncated[g],
            active=actives[g],
            next_obs=next_obs[g] if _needs_next_obs(spec, g) else None,
        )
        for g, output in enumerate(outputs)
    ]


def _needs_next_obs(spec: RolloutSpec, group: int) -> bool:
    return spec.needs_next_obs or spec.policy_specs[group].rewards_itself


def _trajectory(steps: Steps, bootstrap: jax.Array, carry: PyTree) -> Trajectory:
    """Steps [T, ...] with the values of the reached states; `bootstrap` f32[N, E, M] of the last.

    V(s'[t]) is V(s[t+1]), computed anyway, but where the clock ended the episode and s[t+1] is
    another's first.
    """
    following = jnp.concatenate([steps.value[1:], bootstrap[None]])
    fields = {
        "next_value": jnp.where(steps.truncated, steps.next_value, following),
        "truncated": None,
        "done": steps.terminated | steps.truncated | ~steps.active,
        "carry": carry,
    }
    return Trajectory(**vars(steps) | fields)


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


def agent_steps_of(grouping: Grouping, steps: Sequence[Steps]) -> jax.Array:
    """The number of steps in which each agent acted, i32[M_all]."""
    counts = {}
    for group, by_policy in zip(grouping.groups, steps, strict=True):
        rows = jnp.sum(by_policy.active, axis=(0, 2), dtype=jnp.int32)  # [N, M]
        for i, agents in enumerate(group.agents):
            for j, agent in enumerate(agents):
                counts[agent] = rows[i, j]
    return jnp.stack([counts[agent] for agent in grouping.agents])
