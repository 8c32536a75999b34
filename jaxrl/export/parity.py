"""Parity check: an exported file against the policy, on observations of its environment."""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import action_space_inside, action_to_program, mask_length
from jaxrl.core.spaces import Space, tree_of
from jaxrl.core.types import PolicyId, PyTree
from jaxrl.export.policy_step import (
    AGENT,
    DIST_INPUTS,
    MASK_INPUT,
    NOISE,
    PREV_REWARD,
    STATE_IN,
    STATE_OUT,
    PolicyStep,
    Run,
)
from jaxrl.ops.distributions import noise_size, num_logits
from jaxrl.play.whole_episodes import Game, make_game, step_chance
from jaxrl.rollout.env_step import RolloutSpec, advance_envs, reset_envs, step_envs
from jaxrl.rollout.feature import Played

TOLERANCE = 1e-5
MAX_SIZE = 1e30  # of a number that is not the logit of an impossible action
NUM_STEPS, NUM_ENVS, MAX_ROWS = 32, 4, 8
SEED = 0
# The inputs beside the observation as fields of `PolicyInputs`; the last action is a state.
OTHER_INPUTS = {MASK_INPUT: "action_mask", AGENT: "agent_id", PREV_REWARD: "prev_reward"}


class Steps(NamedTuple):
    """Inputs of a policy in T steps of B episodes side by side, without state and noise."""

    inputs: dict[str, np.ndarray]  # [T, B, ...]
    begins: np.ndarray  # bool[T, B]  where an episode begins
    source: str  # "recorded", or "drawn" for random members of the space

    @property
    def size(self) -> int:
        """The number of observations."""
        return self.begins.size


class Parity(NamedTuple):
    """The result of a check."""

    # The largest difference of a number, relative to its row's largest where that is above 1.
    error: float
    num_observations: int
    source: str

    def __str__(self):
        return (
            f"largest difference {self.error:.1e} over {self.num_observations} {self.source} "
            "observations"
        )


def recorded_steps(players: Any, policy: PolicyId, step: PolicyStep) -> Steps:
    """A few steps of a policy's environment, in which all policies sample their actions.

    Args:
        players: has `algorithm`, `weights` by group and `env_params`.
    """
    spec = players.algorithm.rollout_spec
    group, index = spec.grouping.locate(policy)
    game = make_game(players.weights, players.env_params, SEED)
    obs, inputs, begins = jax.tree.map(np.asarray, _play(spec, group, game))

    def of_policy(values):
        """The policy's rows, [T, B, ...]; finite, for those of ended agents may be anything."""
        values = values[:, index].reshape(len(values), -1, *values.shape[4:])[:, :MAX_ROWS]
        if values.dtype.kind != "f":
            return values
        return np.nan_to_num(values, posinf=0.0, neginf=0.0)

    others = {}
    for name, field in OTHER_INPUTS.items():
        if (values := getattr(inputs, field)) is not None:
            others[name] = of_policy(values)
    named = step.named(jax.tree.map(of_policy, obs), others)
    num_agents = len(spec.grouping.groups[group].agents[index])
    return Steps(named, np.repeat(begins, num_agents, axis=1)[:, :MAX_ROWS], "recorded")


@functools.partial(jax.jit, static_argnums=(0, 1))
def _play(spec: RolloutSpec, group: int, game: Game) -> PyTree:
    """(observations, inputs) of a group, [T, N, E, M, ...], and where episodes begin, [T, E]."""
    index = jnp.arange(NUM_ENVS, dtype=jnp.int32)
    envs = reset_envs(spec, game.reset_key, index, game.env_params, game.weights)

    def step(carry, time):
        envs, begins = carry
        randomness = step_chance(spec, game.play_key, index, time)
        outputs, raw = step_envs(spec, game.weights, envs, randomness, game.env_params)
        recorded = envs.obs[group], outputs[group].inputs, begins
        played = Played(game.weights, outputs, raw, randomness.reset)
        envs, _ = advance_envs(spec, envs, played, game.env_params)
        return (envs, raw.episode_done), recorded

    start = (envs, jnp.ones(NUM_ENVS, bool))
    return jax.lax.scan(step, start, jnp.arange(NUM_STEPS, dtype=jnp.int32))[1]


def drawn_steps(step: PolicyStep) -> Steps:
    """Random members of the observation space, in two episodes one after the other."""
    shape = (NUM_STEPS, NUM_ENVS)
    space = step.policy_spec.observation_space
    keys = jax.random.split(jax.random.key(SEED), math.prod(shape))
    rng = np.random.default_rng(SEED)
    parts = jax.tree.map(
        lambda part: np.asarray(jax.vmap(part.sample)(keys)).reshape(*shape, *part.shape),
        tree_of(space),
    )
    inputs = {}
    for tensor in step.inputs:
        if tensor.name == MASK_INPUT:
            inputs[tensor.name] = rng.random((*shape, *tensor.shape)) < 0.7
        elif tensor.name == AGENT:
            inputs[tensor.name] = rng.integers(step.policy_spec.inputs_spec.num_agents, size=shape)
        elif tensor.name == PREV_REWARD:
            inputs[tensor.name] = rng.normal(size=shape)
    begins = np.zeros(shape, bool)
    begins[:: NUM_STEPS // 2] = True
    return Steps(step.named(parts, inputs), begins, "drawn")


def check_parity(step: PolicyStep, run: Run, steps: Steps, what: str) -> Parity:
    """Compares every output, with each side's state fed back to it.

    Raises:
        UsageError: a difference above `TOLERANCE`, or outputs of another shape.
    """
    reference = jax.jit(step)
    num_steps, batch = steps.begins.shape
    noise = _noise(step, (num_steps, batch))
    fresh = step.initial_state(batch)
    state, exported_state, errors = fresh, fresh, {}
    first = functools.partial(jax.tree.map, lambda values: values[:1])
    for time in range(num_steps):
        inputs = {name: values[time] for name, values in (steps.inputs | noise).items()}
        state = _restarted(state, fresh, steps.begins[time])
        exported_state = _restarted(exported_state, fresh, steps.begins[time])
        expected = jax.tree.map(np.asarray, reference({**inputs, **state}))
        found = dict(run({**inputs, **exported_state}))
        pairs = [(inputs, expected, found)]
        if time == 0:  # a batch of another size
            pairs.append((first(inputs), first(expected), dict(run(first({**inputs, **state})))))
        for pair in pairs:
            for name, error in _errors(step, *pair).items():
                errors[name] = max(errors.get(name, 0.0), error)
        state, exported_state = _next_state(expected), _next_state(found)
    worst = max(errors, key=errors.__getitem__)
    if not errors[worst] <= TOLERANCE:
        raise UsageError(
            f"{what} is not written: its {worst} differs by {errors[worst]:.1e} from the policy's, "
            f"more than {TOLERANCE:.0e}, over {steps.size} {steps.source} observations"
        )
    return Parity(errors[worst], steps.size, steps.source)


def _noise(step: PolicyStep, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    if not step.explore:
        return {}
    return {NOISE: np.asarray(step.policy_spec.noise(jax.random.key(SEED), shape))}


def _restarted(
    state: Mapping[str, np.ndarray], fresh: Mapping[str, np.ndarray], begins: np.ndarray
) -> dict[str, np.ndarray]:
    wide = lambda leaf: begins.reshape(-1, *[1] * (leaf.ndim - 1))
    return {name: np.where(wide(leaf), leaf, state[name]) for name, leaf in fresh.items()}


def _next_state(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    state = {}
    for name, values in outputs.items():
        if name.startswith(STATE_OUT):
            state[STATE_IN + name.removeprefix(STATE_OUT)] = np.asarray(values)
    return state


def _errors(
    step: PolicyStep,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
) -> dict[str, float]:
    """The largest difference of each output; infinity for NaN and for another shape."""
    errors, choices = {}, _choices(step)
    for name, values in expected.items():
        output = np.asarray(found[name])
        if output.shape != values.shape or output.dtype != values.dtype:
            errors[name] = math.inf
        elif name in choices:
            choice = choices[name]
            scores = expected[DIST_INPUTS][:, choice.logits]
            if NOISE in inputs:
                scores = scores + inputs[NOISE][:, choice.noise]
            scores = scores / _scale(scores)
            errors[name] = _lost_score(choice.space, scores, values, output)
        else:
            away = np.max(np.abs(output - values.astype(np.float64)) / _scale(values), initial=0.0)
            errors[name] = float(away) if np.isfinite(away) else math.inf
    return errors


class _Choice(NamedTuple):
    """The integers of an action, or of a part of one."""

    space: Space  # the environment's
    logits: slice  # among the action's distribution inputs
    noise: slice


def _choices(step: PolicyStep) -> dict[str, _Choice]:
    """The choices of integers by the names of outputs."""
    spec, found, logits, noise = step.policy_spec, {}, 0, 0
    spaces = jax.tree.leaves(tree_of(spec.action_space))
    for name, space in zip(step.action_names, spaces, strict=True):
        is_choice = mask_length(space) > 0
        kind = "gaussian" if is_choice else spec.action_distribution
        wide = num_logits(space, kind)
        drawn = noise_size(space, kind)
        if is_choice:
            places = slice(logits, logits + wide), slice(noise, noise + drawn)
            found[name] = _Choice(space, *places)
        logits, noise = logits + wide, noise + drawn
    return found


def _scale(values: np.ndarray) -> np.ndarray:
    """The size of the numbers of each row, at least 1; f64[..., n], or f64[B] of single numbers.

    The logits of impossible actions are as large as floats can be, and only their own scale.
    """
    sizes = np.maximum(1.0, np.abs(values.astype(np.float64)))
    if sizes.ndim < 2:
        return sizes
    usual = np.where(sizes < MAX_SIZE, sizes, 1.0)
    return np.maximum(sizes * (sizes >= MAX_SIZE), usual.max(axis=-1, keepdims=True))


def _lost_score(space: Space, scores: np.ndarray, best: np.ndarray, actions: np.ndarray) -> float:
    """The best score less that of the given integers, which is 0 in a tie."""
    sizes = action_space_inside(space).counts
    best = action_to_program(space, best).reshape(len(best), -1)
    actions = action_to_program(space, actions).reshape(len(actions), -1)
    lost = 0.0
    for i, entry in enumerate(np.split(scores, np.cumsum(sizes)[:-1], axis=-1)):
        if np.any((actions[:, i] < 0) | (actions[:, i] >= sizes[i])):
            return math.inf
        of = lambda index, entry=entry: np.take_along_axis(entry, index[:, None], axis=-1)
        lost = max(lost, float(np.max(of(best[:, i]) - of(actions[:, i]))))
    return lost
