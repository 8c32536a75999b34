"""Rows of agents that wait.

Whole long histories cut into rollouts, against rows found by looking ahead in NumPy.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import PPOConfig
from jaxrl.core.env import Solo
from jaxrl.ops.advantages import gae
from jaxrl.rollout.steps import Steps
from jaxrl.rollout.turns import Unfinished, as_chosen, brought_over, left_open, outcomes
from tests.messages import refusal
from tests.probes import Endless, Joining, Turns

STEPS = 24  # of a history, cut into rollouts of 1, 2, 3, 4, 6, 8, 12 or 24 steps
GAMMA, LAMBDA = 0.9, 0.7


class History(NamedTuple):
    """What one agent went through, [STEPS]."""

    active: np.ndarray
    reward: np.ndarray
    value: np.ndarray
    terminated: np.ndarray  # also while it waits
    truncated: np.ndarray
    final_value: np.ndarray


class Learned(NamedTuple):
    reward: float
    next_value: float
    terminated: bool
    ended: bool
    advantage: float


def history(seed, act, end):
    """A random one: it acts with probability `act`, and with `end` something ends for it."""
    rng = np.random.default_rng(seed)
    ends = rng.random(STEPS) < end
    terminated = ends & (rng.random(STEPS) < 0.5)
    reward, value, final_value = rng.normal(size=(3, STEPS))
    active = rng.random(STEPS) < act
    gone = False
    for t in range(
        STEPS
    ):  # who has terminated stays away for a while, unpaid, until an episode begins
        if gone:
            active[t], reward[t], gone = False, 0.0, rng.random() < 0.5
            ends[t] |= not gone
            terminated[t] |= ends[t]
        gone = gone or (terminated[t] and rng.random() < 0.5)
    return History(active, reward, value, terminated, ends & ~terminated, final_value)


def by_looking_ahead(past, length):
    """{step.

    Learned} of every action whose outcome is known within the history, in rollouts of `length`
    steps.
    """
    found, rollout = {}, {}
    for t in np.flatnonzero(past.active):
        ends = past.terminated | past.truncated
        reward = 0.0
        for n in range(t, STEPS):
            reward += past.reward[n]
            if ends[n]:
                found[t] = Learned(reward, past.final_value[n], past.terminated[n], True, 0.0)
            elif n + 1 < STEPS and past.active[n + 1]:
                found[t] = Learned(reward, past.value[n + 1], False, False, 0.0)
            else:
                continue
            # At the edge the state that the last step reached says who acts: so what is known at
            # step n + 1 is known.
            rollout[t] = n // length
            break
    for t in sorted(found, reverse=True):
        row = found[t]
        later = min((n for n in found if n > t), default=None)
        goes_on = not row.ended and later is not None and rollout[later] == rollout[t]
        delta = row.reward + GAMMA * (0.0 if row.terminated else row.next_value) - past.value[t]
        found[t] = row._replace(
            advantage=delta + GAMMA * LAMBDA * (found[later].advantage if goes_on else 0.0)
        )
    return found


def by_rollouts(past, length):
    """The same from rollouts of `length` steps, each with what the one before left open."""
    shape = (1, 1, 1)  # [N, E, M]
    zeros = np.zeros(shape, np.float32)
    row = steps_of(History(*[zeros] * 6), np.zeros(shape, np.int32))
    unfinished = Unfinished(np.zeros(shape, bool), as_chosen(row, zeros), zeros, ())
    found = {}
    for begin in range(0, STEPS, length):
        part = History(*(leaf[begin : begin + length].reshape(-1, *shape) for leaf in past))
        part = jax.tree.map(
            lambda leaf: leaf.astype(bool if leaf.dtype == bool else np.float32), part
        )
        times = np.arange(begin, begin + length, dtype=np.int32).reshape(-1, *shape)
        following = begin + length
        acting = following < STEPS and past.active[following]
        bootstrap = past.value[following] if following < STEPS else 0.0
        unfinished, times, outcome, active, advantages = one_rollout(
            unfinished, part, times, np.full(shape, bootstrap, np.float32), np.full(shape, acting)
        )
        outcome, advantages, times = jax.device_get((outcome[:4], advantages, times))
        for i in np.flatnonzero(np.asarray(active)):
            t = int(times[i, 0, 0, 0])
            assert t not in found, "learned from twice"
            found[t] = Learned(*(leaf[i].item() for leaf in (*outcome, advantages)))
    return found


def steps_of(past, times):
    """Steps whose choices are their values, at these times."""
    return Steps(
        obs=past.value,
        action=past.value,
        distribution=past.value,
        value=past.value,
        inputs=times,
        next_value=past.final_value,
        reward=past.reward,
        terminated=past.terminated,
        truncated=past.truncated,
        active=past.active,
    )


@jax.jit
def one_rollout(unfinished, part, times, bootstrap, acting):
    steps, acted = brought_over(unfinished, steps_of(part, times))
    outcome = outcomes(steps, acted, bootstrap, acting)
    active = acted & outcome.is_known
    ended = part.terminated | part.truncated | (active & outcome.done)
    advantages, _ = gae(
        outcome.reward,
        steps.value,
        outcome.next_value,
        outcome.terminated,
        ended,
        gamma=GAMMA,
        lambda_=LAMBDA,
        waited=~active,
    )
    return left_open(steps, outcome, acted, None), steps.inputs, outcome, active, advantages


@pytest.mark.long
@settings(max_examples=60, database=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    act=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    end=st.sampled_from([0.0, 0.1, 0.3]),
    length=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]),
)
def test_every_action_is_learned_from_once_with_what_came_until_the_next(seed, act, end, length):
    past = history(seed, act, end)
    expected, found = by_looking_ahead(past, length), by_rollouts(past, length)
    assert found.keys() == expected.keys()
    for t, row in found.items():
        wanted = expected[t]
        assert (row.terminated, row.ended) == (wanted.terminated, wanted.ended), t
        np.testing.assert_allclose(row.reward, wanted.reward, atol=1e-5)
        np.testing.assert_allclose(row.advantage, wanted.advantage, atol=1e-4)
        if not row.terminated:
            np.testing.assert_allclose(row.next_value, wanted.next_value, atol=1e-5)


def rollouts_of(config, number):
    """Trajectories of a few rollouts, {policy: [Trajectory [T, E, M]]}, and the last rollout."""
    algorithm = config.build()
    runner = jax.jit(algorithm.init)(jax.random.key(0))
    collect, found = jax.jit(algorithm.collect), {name: [] for name in algorithm.grouping.policies}
    for k in range(number):
        runner, rollout = collect(runner.replace(num_updates=jnp.int32(k)))
        for policy in found:
            group, place = algorithm.grouping.locate(policy)
            path = jax.tree.map(np.asarray, rollout.trajectories[group])
            found[policy].append(jax.tree.map(lambda leaf, i=place: leaf[:, i], path))
    return found, rollout


SMALL = {"num_envs": 2, "minibatch_size": 2, "num_epochs": 1, "fcnet_hiddens": (4,)}


@functools.cache
def three_steps_of_turns():
    """The trajectories of two rollouts, and the second rollout itself."""
    return rollouts_of(PPOConfig(env=Turns(), rollout_length=3, **SMALL), 2)


@pytest.mark.long
def test_a_game_of_turns_pays_a_for_the_move_before_b_moved():
    """Rollouts of 3 steps: a b a | b a b.

    The second one's last move of a is paid by b's move in the third.
    """
    found, _ = three_steps_of_turns()
    for policy, active, reward in (
        ("a", [[1, 0, 0], [1, 1, 0]], [[1, 0, 0], [1, 1, 0]]),
        ("b", [[0, 1, 0], [1, 0, 1]], [[0, 2, 0], [2, 0, 2]]),
    ):
        for k, path in enumerate(found[policy]):
            np.testing.assert_array_equal(path.active[:, 0, 0], np.array(active[k], bool))
            np.testing.assert_array_equal(path.reward[:, 0, 0], reward[k])
            np.testing.assert_array_equal(path.terminated[:, 0, 0], np.array(active[k], bool))
            np.testing.assert_array_equal(
                path.obs[:, 0, 0][np.array(active[k], bool)], 0 if policy == "a" else 1
            )


def test_steps_in_which_an_agent_acted_are_counted_not_its_rows():
    _, rollout = three_steps_of_turns()
    np.testing.assert_array_equal(rollout.agent_steps, [2, 4])  # of 2 environments: b a b


def test_one_agent_cannot_wait():
    class Alone(Endless):
        def acting_agents(self, state, params):
            return jnp.array(True)

    with refusal("Alone has one agent, which cannot wait: remove `acting_agents`"):
        Solo(Alone())


def test_flags_that_do_not_fit_the_agents_are_refused_before_anything_compiles():
    class Odd(Turns):
        def acting_agents(self, state, params):
            return {"a": jnp.array(True)}

    with refusal(r"Odd: acting_agents\(state, params\)\['b'\] must be bool\[\]"):
        PPOConfig(env=Odd(), rollout_length=3, **SMALL).build()


@pytest.mark.long
def test_the_clock_reaches_an_agent_that_waits():
    """`late` pauses in the fifth step, the clock's last.

    Its row before bootstraps from its last observation.
    """
    config = PPOConfig(env=Joining(), rollout_length=5, **SMALL)
    algorithm = config.build()
    params = algorithm.env_params.replace(max_steps_in_episode=5)
    runner = jax.jit(algorithm.init)(jax.random.key(0), None, params)
    _, rollout = jax.jit(algorithm.collect)(runner, None, params)
    group, place = algorithm.grouping.locate("late")
    path = jax.tree.map(lambda leaf: np.asarray(leaf)[:, place, 0, 0], rollout.trajectories[group])
    np.testing.assert_array_equal(path.active, [False, False, True, True, False])
    np.testing.assert_array_equal(path.reward, [0, 0, 1, 11, 0])
    np.testing.assert_array_equal(path.done, [False, False, False, True, True])
    assert not path.terminated.any()
    apply = jax.jit(algorithm.policy_specs[group].apply)
    last = apply(algorithm.policy_weights(runner, "late"), jnp.ones(1))[1]
    np.testing.assert_allclose(path.next_value[3], last, rtol=1e-5)
    np.testing.assert_allclose(path.next_value[2], path.value[3], rtol=1e-6)
