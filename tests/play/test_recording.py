"""A recording is the episode that an independent loop plays, and that evaluation counts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxrl import PPOConfig, UsageError
from jaxrl.core.env import Solo
from jaxrl.core.frozen import freeze
from jaxrl.play import recording
from jaxrl.play.evaluate import evaluate_and_record
from jaxrl.play.host_episodes import EpisodeRange, Players
from jaxrl.play.recording import check_can_render, episodes_to_show, frames, record_episodes
from jaxrl.play.whole_episodes import episode_keys
from jaxrl.rollout.env_step import draw_randomness
from tests.messages import refusal
from tests.probes import Leavers, OneAgent, Probe
from tests.programs import TINY


def untrained(env, **settings):
    """(algorithm, weights, env_params) of policies that know nothing."""
    return untrained_once(env, freeze(settings))


@functools.cache
def untrained_once(env, settings):
    algorithm = PPOConfig(env=env, **TINY, **dict(settings)).build()
    runner = jax.jit(algorithm.init)(jax.random.key(1, impl="threefry2x32"))
    return algorithm, tuple(learner.weights for learner in runner.learners), algorithm.env_params


def recorded(played, **shown):
    """The recordings of episodes, as of `episodes_to_show`; `played` as of `untrained`."""
    return tuple(record_episodes(Players(*played), episodes_to_show(**shown)))


def recorded_alone(played, **shown):
    (recording,) = recorded(played, **shown)
    return recording


def counted(played, **wanted):
    """The statistics of whole episodes, as of `EpisodeRange`; `played` as of `untrained`."""
    return evaluate_and_record(Players(*played), EpisodeRange(**wanted))["env_runners"]


@pytest.fixture(scope="module")
def arena():
    return untrained("arena", env_args={"height": 4, "width": 5, "max_steps_in_episode": 30})


def by_hand(algorithm, weights, params, *, seed, episode, explore):
    """Rewards [T, M] of a plain loop over the dict interface, with the documented keys."""
    env, (reset_key, play_key) = algorithm.rollout_spec.env, episode_keys(seed)
    obs, state = jax.jit(env.reset_env)(jax.random.fold_in(reset_key, episode), params)
    step, rewards, done = jax.jit(env.step_env), [], False
    draw = jax.jit(lambda key: draw_randomness(algorithm.rollout_spec, key[None], 1))

    @functools.partial(jax.jit, static_argnums=0)
    def act(policy_spec, weights, obs, noise):
        distribution, *_ = policy_spec.apply(weights, obs)
        return distribution.sample(noise) if explore else distribution.mode()

    while not done:
        key = jax.random.fold_in(jax.random.fold_in(play_key, episode), len(rewards))
        chance = draw(key)
        actions = {}
        for policy, agents in (("pol1", ("agent1",)), ("pol2", ("agent2",))):
            group, index = algorithm.grouping.locate(policy)
            policy_weights = jax.tree.map(lambda leaf, i=index: np.asarray(leaf)[i], weights[group])
            for agent in agents:
                noise = np.asarray(chance.noise[group])[0, index, 0, agents.index(agent)]
                policy_spec = algorithm.policy_specs[group]
                actions[agent] = act(policy_spec, policy_weights, obs[agent], noise)
        obs, state, reward, terminated, _ = step(chance.step_key[0, 0], state, actions, params)
        rewards.append([float(reward[agent]) for agent in env.agents])
        done = bool(terminated["__all__"] | env.is_truncated(state, params))
    return np.array(rewards), state


@pytest.mark.long
@pytest.mark.parametrize("explore", [False, True])
def test_a_replay_is_what_a_plain_loop_plays(arena, explore):
    replay = recorded_alone(arena, seed=3, first=2, explore=explore)
    rewards, last = by_hand(*arena, seed=3, episode=2, explore=explore)
    np.testing.assert_allclose(replay.rewards, rewards, atol=1e-6)
    np.testing.assert_allclose(replay.running_returns[-1], rewards.sum(0), atol=1e-5)
    jax.tree.map(
        lambda states, expected: np.testing.assert_array_equal(states[-1], expected),
        replay.states,
        last,
    )
    assert (replay.num_steps, replay.end, replay.agents) == (30, "truncated", ("agent1", "agent2"))


def test_the_states_begin_with_the_reset_and_there_is_one_more_than_steps(arena):
    replay = recorded_alone(arena)
    np.testing.assert_array_equal(replay.states.time, np.arange(31))
    np.testing.assert_array_equal(replay.running_returns[0], [0, 0])
    assert replay.running_returns.shape == (31, 2) and replay.active.all()


@pytest.mark.long
def test_a_policy_with_memory_remembers_the_same_in_replays_and_evaluations():
    """Weights are enlarged until what is remembered decides.

    With the carry's products gone the episodes are others.
    """
    algorithm, weights, params = untrained("cartpole", use_gru=True, lstm_cell_size=8)
    large = jax.tree.map(lambda leaf: 20 * np.asarray(leaf), weights)

    def lengths_of(weights):
        played = algorithm, weights, params
        return [each.num_steps for each in recorded(played, number=16, explore=True)]

    lengths = lengths_of(large)
    reported = counted((algorithm, large, params), number=16, explore=True)
    expected = (reported["num_env_steps_sampled"], reported["episode_len_max"])
    assert (sum(lengths), max(lengths)) == expected
    is_hidden = lambda path: any(getattr(part, "key", None) == "hidden" for part in path)
    forgetful = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * (not is_hidden(path)), large
    )
    assert lengths_of(forgetful) != lengths


def test_episodes_and_seeds_differ_and_the_same_one_is_the_same_again(arena):
    states = [
        recorded_alone(arena, explore=True, **which).states.positions
        for which in ({}, {"first": 1}, {"seed": 1}, {"seed": 0, "first": 0})
    ]
    np.testing.assert_array_equal(states[0], states[3])
    assert not np.array_equal(states[0], states[1]) and not np.array_equal(states[0], states[2])


@pytest.mark.long
def test_how_an_episode_ended_is_told_apart(arena):
    assert recorded_alone(untrained(Probe(num_steps=3))).end == "terminated"
    cut = recorded_alone(arena, max_steps=12)
    assert (cut.end, cut.num_steps, len(cut.states.time)) == ("cut", 12, 13)


@pytest.mark.long
def test_agents_that_left_are_paid_nothing_more():
    replay = recorded_alone(untrained(Leavers()), explore=True)
    np.testing.assert_array_equal(replay.active[:, 0], [True, False, False, False])
    np.testing.assert_array_equal(replay.rewards[1:, 0], 0)


class Keyed(struct.PyTreeNode):
    time: jax.Array
    key: jax.Array  # a typed key: NumPy has no such type


class WithKey(OneAgent):
    def reset_env(self, key, params):
        return jnp.zeros(1), Keyed(jnp.int32(0), key)

    def step_env(self, key, state, action, params):
        return jnp.zeros(1), Keyed(state.time + 1, key), jnp.float32(1), state.time == 4, {}

    def render(self, state, params):
        return jnp.full(
            (4, 6, 3), jax.random.bits(state.key, dtype=jnp.uint8)
        ) * 0 + state.time.astype(jnp.uint8)


@pytest.mark.long
def test_a_state_may_hold_random_keys():
    replay = recorded_alone(untrained(WithKey()))
    assert [int(frame[0, 0, 0]) for frame in frames(replay, [5, 0, 2])] == [5, 0, 2]


def test_frames_are_the_pictures_of_the_states_asked_for(arena):
    algorithm, _, params = arena
    env = algorithm.rollout_spec.env
    replay = recorded_alone(arena, explore=True)
    steps = [0, 3, 4, 9, 10, 15, 20, 25, 30]
    shown = list(frames(replay, steps))
    assert len(shown) == len(steps) > recording.PICTURES_AT_ONCE
    render = jax.jit(env.render)
    for step, frame in zip(steps, shown, strict=True):
        alone = render(jax.tree.map(lambda leaf, step=step: leaf[step], replay.states), params)
        assert frame.dtype == np.uint8
        np.testing.assert_allclose(np.int32(frame), np.int32(alone), atol=1)


def test_an_environment_without_pictures_is_named_in_one_line(arena):
    with refusal("Probe has no render"):
        check_can_render(Solo(Probe()))
    with pytest.raises(UsageError, match="Probe"):
        next(frames(dataclasses.replace(recorded_alone(arena), env=Probe()), [0]))
