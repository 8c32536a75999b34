"""Rollouts of an environment whose observation says the episode's number and the time in it."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.core.env import StackedEnvironment, raw_reset, raw_step
from jaxrl.core.spaces import Box, Dict, Discrete
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.ops.distributions import Categorical
from jaxrl.rollout.env_step import auto_reset, draw_randomness, reset_envs
from jaxrl.rollout.first_step import make_rollout_spec
from jaxrl.rollout.grouping import group_policies
from jaxrl.rollout.policy_map import resolve_policies
from jaxrl.rollout.rollout import play
from tests.probes import OneAgent, SeveralAgents

KEY = jax.random.key(0)
E, T = 3, 10
NEVER = 10**6
GARBAGE = -77.0  # what an agent that left is shown and paid


class Params(struct.PyTreeNode):
    max_steps_in_episode: int = NEVER  # the clock
    world_ends_after: int = NEVER  # steps
    b_leaves_after: int = NEVER  # steps


class State(struct.PyTreeNode):
    episode: jax.Array  # f32[], drawn at the reset
    time: jax.Array  # i32[]


@dataclass(frozen=True)
class Clocks(SeveralAgents, StackedEnvironment):
    """Agents "a" and "b" observe (episode, time + 10 for b).

    The reward is noise plus the action.
    """

    agents: tuple = ("a", "b")
    observes = Box(-100.0, 100.0, (2,))
    acts = Discrete(4)
    default_params = Params()

    def reset_stacked(self, key, params):
        state = State(jax.random.uniform(key), jnp.int32(0))
        return self._observe(state, params), state

    def step_stacked(self, key, state, action, params):
        b_is_here = state.time < params.b_leaves_after
        state = state.replace(time=state.time + 1)
        world_ends = state.time >= params.world_ends_after
        reward = jax.random.uniform(key, (2,)) + action
        info = {
            "active": jnp.stack([jnp.array(True), b_is_here]),
            "metrics": {"steps": 1, "time": state.time},
        }
        terminated = jnp.stack([world_ends, world_ends | (state.time >= params.b_leaves_after)])
        return (
            self._observe(state, params),
            state,
            jnp.where(info["active"], reward, GARBAGE),
            terminated,
            info,
        )

    def _observe(self, state, params):
        obs = jnp.stack([jnp.stack([state.episode, state.time + 10.0 * agent]) for agent in (0, 1)])
        b_left = (state.time > params.b_leaves_after) & (jnp.arange(2) == 1)
        return jnp.where(b_left[:, None], GARBAGE, obs)


@dataclass(frozen=True)
class ClocksInDicts(SeveralAgents):
    """The same through dicts by agent id."""

    clocks: Clocks = Clocks()
    agents: tuple = Clocks.agents
    observes, acts, default_params = Clocks.observes, Clocks.acts, Clocks.default_params

    def reset_env(self, key, params):
        return self.clocks.reset_env(key, params)

    def step_env(self, key, state, action, params):
        return self.clocks.step_env(key, state, action, params)


@dataclass(frozen=True)
class Reader:
    """The value is weight * (episode + time); the actions' logits depend on the episode."""

    def init(self, key):
        return jax.random.uniform(key, minval=1.0, maxval=2.0)

    def apply(self, params, obs):
        episode, time = obs[..., 0], obs[..., 1]
        return Categorical(self.logits(episode, time)), params * (episode + time)

    def logits(self, episode, time):
        return jnp.stack([jnp.sin(action * episode) for action in range(1, 5)], axis=-1)


class Decided(Reader):
    """Always action time % 4: for b, whose time is shown 10 later, two actions further."""

    def logits(self, episode, time):
        return 1e9 * jax.nn.one_hot(time.astype(int) % 4, 4)


CLOCKS, READER, DECIDED = Clocks(), Reader(), Decided()
REVERSED = (("second", ("b",)), ("first", ("a",)))  # policies in another order than the agents


class Played(NamedTuple):
    """A rollout of one group, of both agents."""

    params: np.ndarray  # [N]
    steps: dict  # {field of Trajectory: [T, E, 2, ...]}, agents in the policies' order
    rollout: object
    envs: object  # at the end


@functools.cache
def policy_spec(env, policies, model, num_envs):
    """Compiled.

    (key, env_params) -> envs, and (key, envs, env_params) -> (params, (envs, rollout)).
    """
    policies = resolve_policies(env, policies if isinstance(policies, str) else dict(policies))
    grouping = group_policies(env, env.default_params, policies, lambda *_: None)
    policy_specs = (PolicySpec(model, CLOCKS.observation_space("a"), Discrete(4)),)
    spec = make_rollout_spec(env, env.default_params, grouping, policy_specs)
    index = jnp.arange(num_envs)

    @jax.jit
    def run(key, envs, env_params):
        params = (jax.vmap(model.init)(jax.random.split(jax.random.key(7), len(policies))),)
        env_keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(index)
        weights = tuple(map(PolicyWeights, params))
        randomness = draw_randomness(spec, env_keys, T)
        return params, play(spec, weights, envs, randomness, env_params)

    return jax.jit(lambda key, env_params: reset_envs(spec, key, index, env_params)), run


def played(
    env_params, env=CLOCKS, policies="per-agent", model=READER, num_envs=E, key=KEY, envs=None
):
    open_all, run = policy_spec(env, policies, model, num_envs)
    envs = open_all(jax.random.fold_in(key, 0), env_params) if envs is None else envs
    params, (envs, rollout) = run(jax.random.fold_in(key, 1), envs, env_params)
    (trajectory,) = rollout.trajectories

    def by_agent(leaf):  # [T, N, E, M, ...] -> [T, E, N * M, ...]
        leaf = np.moveaxis(np.asarray(leaf), 1, 2)
        return leaf.reshape(*leaf.shape[:2], -1, *leaf.shape[4:])

    fields = ("obs", "action", "value", "next_value", "reward", "terminated", "done", "active")
    steps = {name: by_agent(getattr(trajectory, name)) for name in fields}
    return Played(np.asarray(params[0]), steps, rollout, envs)


def params_of(**numbers):
    """Traced numbers, so that one compiled rollout serves them all."""
    return jax.tree.map(jnp.int32, Params(**numbers))


@pytest.fixture(scope="module", params=["per-agent", "shared"])
def cut(request):
    """The clock ends every episode after 4 steps: of 10 steps, after rows 3 and 7."""
    return played(params_of(max_steps_in_episode=4), policies=request.param)


def values_of(run, episode, time):
    """What the model says of observations [..., 2 agents] of an episode at a time of its own."""
    return run.params * (
        episode[..., None] + np.asarray(time, np.float32)[..., None] + np.float32([0, 10])
    )


@pytest.mark.long
def test_the_value_after_a_time_limit_is_that_of_the_episodes_own_last_state(cut):
    over = np.asarray(cut.rollout.episode_done)
    assert np.argwhere(over[:, 0]).ravel().tolist() == [3, 7]
    episode = cut.steps["obs"][..., 0, 0]  # [T, E]
    for t in (3, 7):
        np.testing.assert_allclose(
            cut.steps["next_value"][t], values_of(cut, episode[t], np.full(E, 4)), rtol=1e-6
        )
        reset = values_of(cut, episode[t + 1], np.zeros(E))
        np.testing.assert_allclose(cut.steps["value"][t + 1], reset, rtol=1e-6)
        assert np.all(np.abs(cut.steps["next_value"][t] - reset) > 1)
    assert not cut.steps["terminated"].any()
    np.testing.assert_array_equal(cut.steps["done"], np.repeat(over[..., None], 2, axis=2))


def test_everywhere_else_the_next_value_is_the_value_that_follows(cut):
    value, next_value = cut.steps["value"], cut.steps["next_value"]
    going_on = ~np.asarray(cut.rollout.episode_done)[:-1]
    np.testing.assert_array_equal(next_value[:-1][going_on], value[1:][going_on])
    reached = np.tile([[1], [2], [3], [4]], (3, E))[:T]
    np.testing.assert_allclose(
        next_value, values_of(cut, cut.steps["obs"][..., 0, 0], reached), rtol=1e-6
    )


def test_a_rollout_that_ends_on_a_time_limit_bootstraps_from_the_last_state_too():
    run = played(params_of(max_steps_in_episode=5))
    assert np.all(run.rollout.episode_done[-1])
    expected = values_of(run, run.steps["obs"][-1, :, 0, 0], np.full(E, 5))
    np.testing.assert_allclose(run.steps["next_value"][-1], expected, rtol=1e-6)
    assert np.all(run.envs.state.time == 0)


def test_the_first_observation_after_an_end_is_the_new_episodes(cut):
    obs, over = cut.steps["obs"], np.asarray(cut.rollout.episode_done)
    np.testing.assert_array_equal(obs[..., 0, 1], np.tile([[0], [1], [2], [3]], (3, E))[:T])
    same_episode = obs[1:, :, :, 0] == obs[:-1, :, :, 0]
    np.testing.assert_array_equal(same_episode, ~np.repeat(over[:-1, :, None], 2, axis=2))
    assert len(np.unique(obs[..., 0])) == 3 * E  # every episode of every environment is its own


def test_the_first_episodes_of_environments_differ_and_another_key_plays_others(cut):
    other = played(params_of(max_steps_in_episode=4), key=jax.random.key(1))
    assert not np.any(np.isin(other.steps["obs"][..., 0], cut.steps["obs"][..., 0]))


def test_a_world_that_ends_terminates_everybody_whatever_the_clock_says():
    run = played(params_of(world_ends_after=4, max_steps_in_episode=4))
    over = np.repeat(np.asarray(run.rollout.episode_done)[..., None], 2, axis=2)
    assert np.argwhere(over[:, 0, 0]).ravel().tolist() == [3, 7]
    np.testing.assert_array_equal(run.steps["terminated"], over)
    np.testing.assert_array_equal(run.steps["done"], over)


def test_the_rows_of_an_agent_that_left_are_inactive_until_the_reset():
    """b leaves after 2 of 5 steps: rows 2, 3, 4 and 7, 8, 9 are not its own."""
    run = played(params_of(b_leaves_after=2, max_steps_in_episode=5))
    a, b = ({name: array[:, :, agent] for name, array in run.steps.items()} for agent in (0, 1))
    assert a["active"].all()
    here = np.repeat([[1], [1], [0], [0], [0]] * 2, E, axis=1).astype(bool)
    np.testing.assert_array_equal(b["active"], here)
    np.testing.assert_array_equal(
        b["terminated"], np.repeat([[0], [1], [0], [0], [0]] * 2, E, axis=1)
    )
    np.testing.assert_array_equal(b["done"], b["terminated"] | ~here)
    np.testing.assert_array_equal(a["done"], np.repeat([[0], [0], [0], [0], [1]] * 2, E, axis=1))
    assert not a["terminated"].any()
    assert np.all(b["reward"][~here] == 0)
    assert np.all(b["reward"][here] > 0)
    assert run.rollout.agent_steps.tolist() == [T * E, 4 * E]


def test_the_garbage_paid_to_an_agent_that_left_is_not_in_the_returns():
    run = played(params_of(b_leaves_after=2, max_steps_in_episode=5))
    returns, over = np.asarray(run.rollout.reached.returns), np.asarray(run.rollout.episode_done)
    assert over[4].all()
    np.testing.assert_allclose(returns[4], run.steps["reward"][:5].sum(axis=0), rtol=1e-6)
    np.testing.assert_allclose(returns[9], run.steps["reward"][5:].sum(axis=0), rtol=1e-6)


def test_episodes_are_counted_from_their_own_reset_with_their_metrics(cut):
    reached = cut.rollout.reached
    np.testing.assert_array_equal(reached.length, np.tile([[1], [2], [3], [4]], (3, E))[:T])
    np.testing.assert_array_equal(reached.metrics["steps"], reached.length)
    np.testing.assert_array_equal(
        reached.metrics["time"], np.tile([[1], [3], [6], [10]], (3, E))[:T]
    )
    np.testing.assert_array_equal(cut.envs.episodes.length, np.full(E, 2))


def test_the_next_rollout_goes_on_where_the_last_one_stopped(cut):
    first = played(params_of(max_steps_in_episode=4))
    second = played(params_of(max_steps_in_episode=4), key=jax.random.key(5), envs=first.envs)
    np.testing.assert_array_equal(second.steps["obs"][0, :, :, 0], first.steps["obs"][-1, :, :, 0])
    assert second.steps["obs"][:, 0, 0, 1].tolist() == [2, 3, 0, 1, 2, 3, 0, 1, 2, 3]
    assert second.rollout.reached.length[:, 0].tolist() == [3, 4, 1, 2, 3, 4, 1, 2, 3, 4]
    np.testing.assert_array_equal(second.steps["value"][0], first.steps["next_value"][-1])


def test_the_reward_of_a_row_is_that_of_the_rows_own_action(cut):
    noise = cut.steps["reward"] - cut.steps["action"]
    assert np.all((noise >= 0) & (noise < 1))
    # And every step of every environment has noise of its own
    assert len(np.unique(noise)) > 0.99 * noise.size
    assert set(np.unique(cut.steps["action"])) == {0, 1, 2, 3}


@pytest.mark.long
def test_the_numbers_of_an_environment_do_not_depend_on_how_many_there_are():
    """Clock, leaving and reset all happen.

    Of a model without products, which may round otherwise in another batch.
    """
    numbers = params_of(b_leaves_after=2, max_steps_in_episode=4)
    few, many = (played(numbers, num_envs=num_envs) for num_envs in (E, E + 2))
    for name, array in few.steps.items():
        np.testing.assert_array_equal(many.steps[name][:, :E], array, err_msg=name)
    assert not np.any(many.steps["reward"][:, E:, 0] == few.steps["reward"][:, :2, 0])
    np.testing.assert_array_equal(many.rollout.reached.returns[:, :E], few.rollout.reached.returns)
    np.testing.assert_array_equal(many.envs.state.episode[:E], few.envs.state.episode)


@pytest.mark.long
@pytest.mark.parametrize("env", [CLOCKS, ClocksInDicts()], ids=["stacked", "dicts"])
def test_every_agent_plays_its_own_policys_action_whatever_the_order_of_the_policies(env):
    run = played(params_of(), env=env, policies=REVERSED, model=DECIDED)
    times = np.arange(T).reshape(T, 1)
    b, a = ({name: array[:, :, n] for name, array in run.steps.items()} for n in (0, 1))
    np.testing.assert_array_equal(a["obs"][..., 1], np.tile(times, E))
    np.testing.assert_array_equal(b["obs"][..., 1], np.tile(times + 10, E))
    np.testing.assert_array_equal(a["action"], np.tile(times % 4, E))
    np.testing.assert_array_equal(b["action"], np.tile((times + 2) % 4, E))
    for agent in (a, b):
        np.testing.assert_array_equal(np.floor(agent["reward"]), agent["action"])
    np.testing.assert_allclose(
        run.rollout.reached.returns[-1, :, 0], a["reward"].sum(axis=0), rtol=1e-6
    )
    weights = run.params.reshape(2, 1)  # of the policies, in their order
    assert weights[0] != weights[1]
    np.testing.assert_allclose(b["value"][0], weights[0] * b["obs"][0].sum(axis=-1), rtol=1e-6)
    np.testing.assert_allclose(a["value"][0], weights[1] * a["obs"][0].sum(axis=-1), rtol=1e-6)


def test_dicts_and_stacked_arrays_play_the_same_game():
    numbers = params_of(b_leaves_after=2, max_steps_in_episode=4)
    stacked, dicts = (played(numbers, env, REVERSED, DECIDED) for env in (CLOCKS, ClocksInDicts()))
    for name, array in stacked.steps.items():
        np.testing.assert_array_equal(dicts.steps[name], array, err_msg=name)
    np.testing.assert_array_equal(dicts.rollout.reached.returns, stacked.rollout.reached.returns)
    assert dicts.rollout.agent_steps.tolist() == stacked.rollout.agent_steps.tolist()


@jax.jit
def restarted_fresh_and_reached(keys, over):
    """(what `auto_reset` gives, new episodes, the step before) of 40 environments."""
    params = CLOCKS.default_params
    _, state = jax.vmap(lambda key: raw_reset(CLOCKS, key, params))(
        jax.random.split(jax.random.key(1), 40)
    )
    action = jnp.zeros((40, 2), jnp.int32)
    raw = jax.vmap(lambda key, state, action: raw_step(CLOCKS, key, state, action, params))(
        keys, state, action
    )
    raw = raw._replace(episode_done=over)
    fresh = jax.vmap(lambda key: raw_reset(CLOCKS, jax.random.fold_in(key, 3), params))(keys)
    return auto_reset(CLOCKS, keys, jnp.int32(3), raw, params), fresh, (raw.obs, raw.state)


of_two_members = jax.jit(jax.vmap(restarted_fresh_and_reached, in_axes=(0, None)))


@pytest.mark.long
@pytest.mark.parametrize("num_ended", [0, 1, 8, 9, 40])
def test_those_that_ended_start_again_with_their_own_keys_however_many_they_are(num_ended):
    keys, over = jax.random.split(KEY, 40), np.zeros(40, bool)
    over[np.random.default_rng(0).permutation(40)[:num_ended]] = True
    restarted, fresh, reached = restarted_fresh_and_reached(keys, over)
    members = of_two_members(jnp.stack([keys, keys]), over)[0]
    jax.tree.map(
        lambda leaf, single: np.testing.assert_array_equal(leaf[1], single), members, restarted
    )
    for leaf, new, old in zip(*map(jax.tree.leaves, (restarted, fresh, reached)), strict=True):
        mask = over.reshape(-1, *[1] * (old.ndim - 1))
        np.testing.assert_array_equal(leaf, np.where(mask, new, old))


@dataclass(frozen=True)
class Compact(OneAgent):
    """Observes the time in compact types; `board` is wider than what a rollout packs."""

    observes = Dict(
        {
            "board": Box(0, 255, (6, 7), "uint8"),
            "bytes": Box(0, 255, (2,), "uint8"),
            "count": Discrete(10_000),
            "flags": Box(0, 1, (3,), "bool"),
            "place": Box(0.0, 1e4, (1,)),
        }
    )
    time_limit = 4

    def reset_env(self, key, params):
        return shown(jnp.int32(0)), State(jax.random.uniform(key), jnp.int32(0))

    def step_env(self, key, state, action, params):
        state = state.replace(time=state.time + 1)
        return shown(state.time), state, jnp.float32(1), jnp.array(False), {}


def shown(time):
    """The observation of `Compact` at a time i32[]."""
    return {
        "board": (200 + time + jnp.arange(42).reshape(6, 7)).astype(jnp.uint8),
        "bytes": jnp.stack([time, 255 - time]).astype(jnp.uint8),
        "count": 1000 * time,
        "flags": time % 3 == jnp.arange(3),
        "place": time.astype(jnp.float32)[None],
    }


@pytest.mark.parametrize("observation_filter", [None, "MeanStdFilter"])
def test_observations_are_stored_in_the_environments_types(observation_filter):
    """Of bytes, bools and integers nothing is widened, in the rollout and after it."""
    sizes = {"num_envs": 2, "rollout_length": 6, "minibatch_size": 12, "fcnet_hiddens": (4,)}
    algorithm = PPOConfig(env=Compact(), observation_filter=observation_filter, **sizes).build()
    runner, rollout = jax.jit(lambda key: algorithm.collect(algorithm.init(key)))(KEY)
    (trajectory,), (open_obs,) = rollout.trajectories, runner.envs.obs
    types = {"board": "uint8", "bytes": "uint8", "count": "int32", "flags": "bool"}
    types["place"] = "float32"
    expected = jax.vmap(shown)(jnp.array([0, 1, 2, 3, 0, 1]))
    for name, dtype in types.items():
        assert trajectory.obs[name].dtype == open_obs[name].dtype == dtype
        for env in range(2):
            np.testing.assert_array_equal(trajectory.obs[name][:, 0, env, 0], expected[name])
