"""Recorded actions under a policy: its log-probabilities beside those of who recorded them.

The policy reads each agent's observations from the episode's start, so that its memory is what it
would have been.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.core.program_spaces import action_to_program, countable, mask_length, sampled_space
from jaxrl.core.spaces import Box, Space, is_tree, parts_of, tree_of
from jaxrl.core.types import AgentId, PyTree
from jaxrl.episodes.values import Nested, check_fits, leaves, map_space, one_hot
from jaxrl.models.policy_spec import PolicyInputs, PolicySpec, PolicyWeights
from jaxrl.ops.distributions import Distribution, from_logits, num_logits

ROWS_AT_ONCE = 2**14  # steps that a policy reads in one call
LOGP_TOLERANCE = 0.02  # nats; and the share of steps that may be further off
MIN_LOG_CHANCE = -20.0  # that every action was the likeliest: less is no chance


class AgentRows(NamedTuple):
    """All steps of an agent, one episode after the other: R rows of n episodes."""

    obs: Nested  # [R, ...]
    action: Nested  # [R, ...]
    reward: np.ndarray  # f32[R]
    lengths: np.ndarray  # i64[n]
    action_logp: Any  # f64[R] of the behaviour; None if it was not recorded
    action_mask: Any = None  # bool[R, A]
    dist_inputs: Any = None  # f32[R, K] of the behaviour


class JudgedActions(NamedTuple):
    """A policy's view of the recorded actions.

    g(a) is one-hot for integers; for a Box the action and its square. Its expectation is exact.
    """

    log_ratio: np.ndarray  # f64[R]  log pi(a | o) - log b(a | o)
    taken: np.ndarray  # f32[R, G]  g(a) of the recorded action
    expected: np.ndarray  # f32[R, G]  E[g(a)] under the policy


class _Read(NamedTuple):
    """The results of one call of the policy, [R, ...]."""

    log_prob: jax.Array  # f32[R]
    expected: jax.Array  # f32[R, G]
    behaviour_logp: jax.Array | None  # f32[R]  as its recorded distribution has it
    is_mode: jax.Array | None  # bool[R]  the likeliest action of that distribution


def judge_actions(policy: Any, agent: AgentId, rows: AgentRows) -> JudgedActions:
    """The ratios of an agent's actions.

    Args:
        policy: a `jaxrl.Policy`.

    Raises:
        UsageError: rows that do not fit the policy, or that lack what the ratio needs.
    """
    who = f"policy {policy.name!r}, agent {agent!r}"
    _check_rows(policy, who, rows)
    spec: PolicySpec = policy.policy_spec
    obs = map_space(
        lambda space, leaf: np.asarray(leaf, space.dtype), spec.observation_space, rows.obs
    )
    has_inputs = rows.dist_inputs is not None and rows.dist_inputs.shape[1:] == (_num_inputs(spec),)
    dist_inputs = np.asarray(rows.dist_inputs, np.float32) if has_inputs else None
    tree = (obs, _as_sampled(spec, rows.action), _inputs(policy, agent, rows), dist_inputs)
    read_all = _in_sequences if spec.has_memory else _in_chunks
    read = read_all(spec, policy.weights, tree, rows.lengths)
    _check_behaviour(who, rows, read, _has_numbers(spec.action_space))
    taken = action_features(spec.action_space, rows.action)
    if read.expected.shape != taken.shape:  # a distribution whose moments are not known
        taken = np.zeros_like(read.expected)
    return JudgedActions(read.log_prob.astype(np.float64) - rows.action_logp, taken, read.expected)


def action_features(space: Any, action: np.ndarray) -> np.ndarray:
    """g(a), f32[R, G]."""
    if is_tree(space):  # all numbers after all integers, in the order of a distribution's moments
        integers, numbers, squares = [], [], []
        for _, part, values in parts_of(space, action):
            features = action_features(part, values)
            if mask_length(part):
                integers.append(features)
            else:
                values, squared = np.split(features, 2, axis=1)
                numbers.append(values)
                squares.append(squared)
        return np.concatenate(integers + numbers + squares, axis=1)
    space = countable(space)
    if isinstance(space, Box):
        flat = np.asarray(action, np.float32).reshape(len(action), -1)
        return np.concatenate([flat, flat**2], axis=1)
    return one_hot(space, action)


def expected_features(distribution: Distribution, batch_shape: tuple[int, ...]) -> jax.Array:
    """E[g(a)], f32[..., G]; G is 0 for distributions whose moments are not known."""
    if hasattr(distribution, "probabilities"):
        choices = distribution.probabilities()
        return jnp.concatenate([choices, *_moments(distribution, batch_shape)], axis=-1)
    if not hasattr(distribution, "spread"):
        return jnp.zeros((*batch_shape, 0))
    return jnp.concatenate(_moments(distribution, batch_shape), axis=-1)


def _moments(distribution: Distribution, batch_shape: tuple[int, ...]) -> list[jax.Array]:
    """[mean, mean of squares] of a Box's numbers, f32[..., d] each; [] where there are none."""
    if not hasattr(distribution, "spread"):
        return []
    low, mean, high = (leaf.reshape(*batch_shape, -1) for leaf in distribution.spread())
    return [mean, mean**2 + (0.5 * (high - low)) ** 2]


# What the policy reads


def _inputs(policy: Any, agent: AgentId, rows: AgentRows) -> PolicyInputs:
    inputs_spec, inputs = policy.policy_spec.inputs_spec, {}
    if rows.action_mask is not None and mask_length(policy.action_space):
        inputs["action_mask"] = np.asarray(rows.action_mask, bool)
    if inputs_spec.num_agents:
        if agent not in policy.agents:
            raise unknown_name("agent", agent, policy.agents, f"of policy {policy.name!r}")
        inputs["agent_id"] = np.full(len(rows.reward), policy.agents.index(agent), np.int32)
    if inputs_spec.prev_action:
        action = _as_sampled(policy.policy_spec, rows.action)
        inputs["prev_action"] = _previous(action, rows.lengths)
    if inputs_spec.prev_reward:
        inputs["prev_reward"] = _previous(rows.reward, rows.lengths)
    return PolicyInputs(**inputs)


def _previous(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The values of the steps before, [R, ...]; 0 in the first step of each episode."""
    before = np.roll(values, 1, axis=0)
    before[np.cumsum(lengths) - lengths] = 0
    return before


def _as_sampled(spec: PolicySpec, action: PyTree) -> np.ndarray:
    """Recorded actions as the policy's distribution has them: f32 for a Box of any type."""
    spaces = tree_of(sampled_space(spec.action_space))
    typed = jax.tree.map(lambda part, leaf: np.asarray(leaf, part.dtype), spaces, action)
    return action_to_program(spec.action_space, typed)


def _has_numbers(space: Space) -> bool:
    """Returns whether parts of an action are numbers of a Box, which are sampled with a density."""
    return any(not mask_length(part) for part in jax.tree.leaves(tree_of(space)))


def _num_inputs(spec: PolicySpec) -> int:
    return num_logits(spec.action_space, spec.action_distribution)


# The policy's calls: of fixed sizes, since each size is compiled


def _in_chunks(
    spec: PolicySpec, weights: PolicyWeights, tree: PyTree, lengths: np.ndarray
) -> _Read:
    """A policy without memory reads rows, a number of them at once."""
    count = int(lengths.sum())
    size = min(ROWS_AT_ONCE, _power_of_two(count))
    parts = []
    for begin in range(0, count, size):
        rows = slice(begin, begin + size)
        chunk = jax.tree.map(lambda leaf, rows=rows: _padded(leaf[rows], size), tree)
        parts.append(jax.tree.map(np.asarray, _read(spec, weights, *chunk)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *parts)


def _in_sequences(
    spec: PolicySpec, weights: PolicyWeights, tree: PyTree, lengths: np.ndarray
) -> _Read:
    """A policy with memory reads whole episodes [L, B], a number of them at once."""
    longest = _power_of_two(int(lengths.max()))
    size = min(max(1, ROWS_AT_ONCE // longest), _power_of_two(len(lengths)))
    ends = np.cumsum(lengths)
    parts = []
    for begin in range(0, len(lengths), size):
        chosen = lengths[begin : begin + size]
        rows = slice(ends[begin] - lengths[begin], ends[begin] - lengths[begin] + chosen.sum())
        time = np.concatenate([np.arange(length) for length in chosen])
        places = time, np.repeat(np.arange(len(chosen)), chosen)

        def spread_out(leaf, rows=rows, places=places):
            sequences = np.zeros((longest, size, *leaf.shape[1:]), leaf.dtype)
            sequences[places] = leaf[rows]
            return sequences

        read = _read(spec, weights, *jax.tree.map(spread_out, tree))
        parts.append(jax.tree.map(lambda leaf, places=places: np.asarray(leaf)[places], read))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


@functools.partial(jax.jit, static_argnums=0)
def _read(
    spec: PolicySpec,
    weights: PolicyWeights,
    obs: PyTree,
    action: jax.Array,
    inputs: PolicyInputs,
    dist_inputs: jax.Array | None,
) -> _Read:
    """Rows [R, ...], or with memory sequences [L, B, ...] that begin with their episode."""
    batch_shape = action.shape[: action.ndim - len(spec.zero_action(()).shape)]
    carry = begins = None
    if spec.has_memory:
        carry = spec.model.initial_carry(batch_shape[1:])
        begins = jnp.broadcast_to(jnp.arange(batch_shape[0])[:, None] == 0, batch_shape)
    distribution, _ = spec.evaluate_actions(
        weights.params,
        spec.read(weights.filter, obs, inputs),
        spec.action_mask(obs, inputs),
        carry,
        begins,
    )
    log_prob = distribution.log_prob(action)
    expected = expected_features(distribution, batch_shape)
    if dist_inputs is None:
        return _Read(log_prob, expected, None, None)
    behaviour = from_logits(spec.action_space, dist_inputs, spec.action_distribution)
    axes = tuple(range(len(batch_shape), action.ndim))
    is_mode = jnp.all(behaviour.mode() == action, axis=axes)
    return _Read(log_prob, expected, behaviour.log_prob(action), is_mode)


def _power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()


def _padded(leaf: np.ndarray, size: int) -> np.ndarray:
    rest = np.zeros((size - len(leaf), *leaf.shape[1:]), leaf.dtype)
    return np.concatenate([leaf, rest]) if len(rest) else leaf


# Refusals


def _check_rows(policy: Any, who: str, rows: AgentRows) -> None:
    for name, space, values in (
        ("an observation", policy.observation_space, rows.obs),
        ("an action", policy.action_space, rows.action),
    ):
        check_fits(space, values, f"{who}: {name}", batch_axes=1)
        for leaf in leaves(values):
            if np.asarray(leaf).dtype.kind == "f" and not np.isfinite(leaf).all():
                raise UsageError(f"{who}: {name} holds NaN or infinity")
    if rows.action_logp is None:
        raise UsageError(
            f"{who}: no action_logp was recorded, the log-probability of each action under the "
            "policy that took it; trainer.sample() and jaxrl evaluate --explore --output record it"
        )
    if rows.action_logp.shape != (len(rows.reward),) or not np.isfinite(rows.action_logp).all():
        raise UsageError(f"{who}: action_logp must be a finite number for each action")
    length = mask_length(policy.action_space)
    if not length or (rows.action_mask is None and not policy.masked):
        return
    needed = len(rows.reward), length
    if rows.action_mask is None:
        raise UsageError(
            f"{who}: no action_mask was recorded, the possible actions, which it reads"
        )
    if rows.action_mask.shape != needed:
        raise UsageError(
            f"{who}: action_mask must be bool{list(needed)}, the possible actions, not of shape "
            f"{list(rows.action_mask.shape)}"
        )


def _check_behaviour(who: str, rows: AgentRows, read: _Read, is_box: bool) -> None:
    """Refuses log-probabilities that cannot be those of the recorded actions."""
    if read.is_mode is None:
        return
    distance = np.abs(read.behaviour_logp - rows.action_logp)
    if np.mean(distance > LOGP_TOLERANCE * (1 + np.abs(rows.action_logp))) > LOGP_TOLERANCE:
        raise UsageError(
            f"{who}: action_logp is not the log-probability of the recorded actions by their "
            "action_dist_inputs; actions must be as sampled, not in the environment's units, and "
            "of the policy's kind of distribution"
        )
    chance = -np.inf if is_box else rows.action_logp.sum()
    if read.is_mode.all() and chance < MIN_LOG_CHANCE:
        raise UsageError(
            f"{who}: each recorded action is the likeliest one, which sampling does not give; "
            "record with explore=True"
        )
