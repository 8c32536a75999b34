"""Environments of the interfaces stoa, gxm and Envelope, where their packages are installed."""

import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, check_env, make, make_train
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from tests.messages import refusal

pytestmark = [
    pytest.mark.usefixtures("rank_promotion"),
    pytest.mark.filterwarnings("ignore:Explicitly requested dtype"),  # stoa's spaces of int64
]
LIMIT = 5


def walk(state, action):
    """(state, reward) of a walk on a line: action 1 goes right, 0 left."""
    state = state + 2 * action - 1
    return state, jnp.float32(state)


def stoa_walk():
    """Ends at +3; after `LIMIT` steps it is cut off. At 0, action 0 is not possible."""
    stoa = pytest.importorskip("stoa", reason="the extra stoa is not installed")
    types = importlib.import_module("stoa.env_types")
    spaces = importlib.import_module("stoa.spaces")

    def timestep(place, time, reward):
        ends = jnp.where(place >= 3, 2, jnp.where(time >= LIMIT, 3, 1)).astype(jnp.int8)
        mask = jnp.stack([place != 0, jnp.array(True)]).astype(jnp.float32)
        obs = {"place": place, "time": jnp.float32(time)}
        return types.TimeStep(ends, reward, jnp.float32(place < 3), obs, {"action_mask": mask})

    class Walk(stoa.environment.Environment):
        def reset(self, rng_key, env_params=None):
            place = jnp.int32(0)
            return (place, place), timestep(place, place, jnp.float32(0))

        def step(self, state, action, env_params=None):
            place, reward = walk(state[0], action)
            return (place, state[1] + 1), timestep(place, state[1] + 1, reward)

        def observation_space(self, env_params=None):
            return spaces.DictSpace({"place": spaces.ArraySpace(()), "time": spaces.ArraySpace(())})

        def action_space(self, env_params=None):
            return spaces.DiscreteSpace(2, jnp.int32)

        def state_space(self, env_params=None):
            raise NotImplementedError

    return Walk()


def gxm_walk():
    gxm = pytest.importorskip("gxm", reason="the extra gxm is not installed")
    spaces = importlib.import_module("gxm.spaces")

    class Walk(gxm.AutoResetEnvironment):
        id, action_space, observation_space = "Walk", spaces.Discrete(2), spaces.Discrete(9)

        def _reset(self, key):
            place = jnp.int32(0)
            return (place, place), self._timestep(place, place, place, jnp.float32(0))

        def _step(self, key, state, action):
            place, reward = walk(state[0], action)
            return (place, state[1] + 1), self._timestep(place, state[1] + 1, action, reward)

        def _timestep(self, place, time, action, reward):
            ends = {"terminated": place >= 3, "truncated": (time >= LIMIT) & (place < 3)}
            action = jnp.int32(action)
            obs = place + LIMIT  # 0 to 8
            return gxm.Timestep(obs, action, {}, reward, **ends, true_next_obs=obs)

    return Walk()


def envelope_walk():
    envelope = pytest.importorskip("envelope", reason="the extra envelope is not installed")
    module = importlib.import_module("envelope.environment")
    spaces = importlib.import_module("envelope.spaces")

    class Walk(module.Environment):
        def init(self, key):
            place = jnp.int32(0)
            return (place, place), self._info(place, place, jnp.float32(0))

        def step(self, state, action):
            place, reward = walk(state[0], action)
            return (place, state[1] + 1), self._info(place, state[1] + 1, reward)

        def _info(self, place, time, reward):
            truncated = (time >= LIMIT) & (place < 3)
            return module.InfoContainer(place + LIMIT, reward, place >= 3, truncated)

        @property
        def observation_space(self):
            return spaces.Discrete(9)

        @property
        def action_space(self):
            return spaces.Discrete(2)

    assert envelope
    return Walk()


WALKS = {"stoa": stoa_walk, "gxm": gxm_walk, "envelope": envelope_walk}
interfaces = pytest.mark.parametrize("interface", WALKS)


def played(env, params, actions):
    """(rewards, terminated, truncated) of steps with the given actions."""
    _, state = env.reset_env(jax.random.key(0), params)
    rows = []
    for action in actions:
        _, state, reward, terminated, _ = env.step_env(
            jax.random.key(1), state, jnp.int32(action), params
        )
        rows.append((float(reward), bool(terminated), bool(env.is_truncated(state, params))))
    return rows


@interfaces
def test_ends_of_the_world_and_time_limits_are_told_apart(interface):
    env, params = make(WALKS[interface]())
    assert env.action_space(params) == Discrete(2)
    assert played(env, params, [1, 1, 1])[-1] == (3.0, True, False)
    left = played(env, params, [0, 1, 0, 1, 0])
    assert left == [(x, False, False) for x in (-1.0, 0.0, -1.0, 0.0)] + [(-1.0, False, True)]


@pytest.mark.long
@interfaces
def test_an_environment_is_checked_and_trains(interface):
    walk = WALKS[interface]()
    check_env(walk)
    sizes = {"num_envs": 2, "rollout_length": 8, "minibatch_size": 16, "num_epochs": 1}
    config = PPOConfig(env=walk, total_env_steps=32, fcnet_hiddens=(4,), **sizes)
    _, metrics = jax.jit(make_train(config))(jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(metrics.learners))


def test_stoas_masks_and_dicts_come_along_and_its_resets_do_not():
    walk = stoa_walk()
    stoa = importlib.import_module("stoa")
    env, params = make(stoa.AutoResetWrapper(stoa.AddRNGKey(walk)))
    _, state = env.reset(jax.random.key(0), params)
    np.testing.assert_array_equal(env.action_mask(state, params), [False, True])
    space = env.observation_space(params)
    assert set(space.spaces) == {"place", "time"} and isinstance(space, Dict)
    assert played(env, params, [1, 1, 1])[-1] == (3.0, True, False)
    limited, params = make(stoa.EpisodeStepLimitWrapper(walk, 2))
    assert played(limited, params, [1, 1])[-1] == (2.0, False, True)


def test_gxms_final_observation_is_the_one_before_its_reset():
    env, params = make(gxm_walk())
    _, state = env.reset_env(jax.random.key(0), params)
    for _ in range(3):
        obs, state, *_ = env.step_env(jax.random.key(1), state, jnp.int32(1), params)
    assert obs == 3 + LIMIT
    assert env.observation_space(params) == Discrete(9)


def test_spaces_of_each_interface_are_ours():
    from jaxrl.adapters.from_timesteps import converted

    stoa, gxm = pytest.importorskip("stoa.spaces"), pytest.importorskip("gxm.spaces")
    box = stoa.BoundedArraySpace((2,), jnp.float32, -1.0, 1.0)
    rows = [
        (stoa.DiscreteSpace(3, jnp.int32), Discrete(3)),
        (stoa.MultiDiscreteSpace(jnp.array([2, 3])), MultiDiscrete((2, 3))),
        (box, Box(-1.0, 1.0, (2,))),
        (stoa.TupleSpace((box, box)), Tuple((Box(-1.0, 1.0, (2,)),) * 2)),
        (gxm.Box(0, 1, (3,)), Box(0.0, 1.0, (3,))),
        (gxm.Tree({"a": gxm.Discrete(2)}), Dict({"a": Discrete(2)})),
    ]
    for space, expected in rows:
        assert converted(space, "action") == expected
    message = re.escape("action of x: the space ArraySpace is not supported; allowed: numbers")
    with refusal(message):
        converted(stoa.ArraySpace((2,)), "action of x")
