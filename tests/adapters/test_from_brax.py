"""Brax's environments: the library's own steps, whose `done` leaves the time limit to us."""

import jax
import numpy as np
import pytest

from tests.messages import refused_by

pytest.importorskip("brax", reason="the extra brax is not installed")

from jaxrl.adapters.from_brax import constructor, envs
from jaxrl.adapters.wrapping_bodies import first_pose
from jaxrl.core.env_checker import check_env
from jaxrl.core.registry import make
from jaxrl.core.spaces import Box, Dict
from tests.oracles.same_steps import Player, adapter_player, assert_same_steps

pytestmark = [
    pytest.mark.filterwarnings("ignore:Brax System"),  # is not maintained, it says
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of JAX and MJX, about Brax
    pytest.mark.usefixtures("rank_promotion"),
]


def library_player(name, episode_length, **args):
    """The library with its wrapper for time limits, which tells truncation apart."""
    env = envs.create(name, episode_length=episode_length, auto_reset=False, **args)

    def reset(key):
        state = env.reset(key)
        return state.obs, state

    def step(key, state, action):
        state = env.step(state, action)
        terminated = (state.done > 0) & (state.info["truncation"] == 0)
        return state.obs, state, state.reward, terminated, state.info["steps"] >= episode_length

    return Player(reset, step)


@pytest.mark.parametrize(
    ("name", "backend", "limit", "steps", "ends"),
    [("inverted_pendulum", "generalized", 12, 2000, 100), ("reacher", "spring", 50, 300, 5)],
)
def test_the_same_keys_and_actions_give_the_librarys_observations_rewards_and_ends(
    name, backend, limit, steps, ends
):
    env, params = make(f"brax:{name}", backend=backend, max_steps_in_episode=limit)
    size = (steps, *env.action_space(params).shape)
    actions = np.random.default_rng(0).uniform(-1, 1, size).astype(np.float32)
    library = library_player(name, limit, backend=backend)
    assert assert_same_steps(library, adapter_player(env, params), actions) > ends


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("fast", {"obs_mode": "dict_pixels_state"}),
        ("inverted_pendulum", {"backend": "mjx"}),
        ("reacher", {"backend": "positional"}),
    ],
)
def test_the_contract_holds(name, args):
    check_env(constructor(name)(**args))


def test_the_time_limit_is_that_of_brax_training_and_truncates_unless_asked_not_to():
    env, params = make("brax:fast")
    assert params.max_steps_in_episode == 1000
    _, params = make("brax:fast", max_steps_in_episode=3)
    as_an_end = constructor("fast")(time_limit="terminates")
    for each, ends in ((env, (False, True)), (as_an_end, (True, True))):
        _, state = each.reset_env(jax.random.key(0), params)
        for _ in range(3):
            _, state, _, terminated, _ = each.step_env(None, state, np.ones(1), params)
        assert (bool(terminated), bool(each.is_truncated(state, params))) == ends


def test_spaces_are_those_of_the_librarys_observations_and_actions():
    env = constructor("ant")(backend="spring")
    assert env.observation_space() == Box(-np.inf, np.inf, (27,))
    assert env.action_space() == Box(-1.0, 1.0, (8,))
    assert constructor("fast")(obs_mode="dict_state").observation_space() == Dict(
        {"state": Box(-np.inf, np.inf, (2,))}
    )


def test_pictures_are_drawn_of_the_poses_that_mujoco_finds():
    import mujoco

    env, params = make("brax:reacher")
    model = env._env.unwrapped.sys.mj_model
    _, state = env.reset_env(jax.random.key(0), params)
    data = mujoco.MjData(model)
    for q, (places, turns) in (
        (np.array(state.inner.pipeline_state.q), env.poses(state.inner)),
        (model.qpos0, first_pose(model)),
    ):
        data.qpos[:] = q
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(places, data.xpos, atol=1e-5)
        signs = np.sign((np.asarray(turns) * data.xquat).sum(-1, keepdims=True))
        np.testing.assert_allclose(turns * signs, data.xquat, atol=1e-5)
    picture = np.asarray(jax.jit(env.render)(state, params))
    assert picture.shape == (240, 320, 3) and picture.dtype == np.uint8
    assert not hasattr(constructor("fast")(), "render")


def test_what_the_library_calls_metrics_is_reported():
    env, params = make("brax:reacher", backend="spring")
    _, state = env.reset_env(jax.random.key(0), params)
    *_, info = jax.eval_shape(env.step_env, None, state, np.zeros(2), params)
    assert set(info["metrics"]) == {"reward_dist", "reward_ctrl"}


test_wrong_names_and_arguments_are_told_in_one_line = refused_by(
    lambda name, args: make(f"brax:{name}", **args),
    [
        ("antt", {}, "unknown brax environment 'antt'; did you mean 'ant'"),
        ("ant", {"backend": "sprin"}, "unknown backend 'sprin' of environment 'brax:ant'; did"),
        ("ant", {"bakend": "spring"}, "unknown argument 'bakend' of environment 'brax:ant'; did"),
        (
            "swimmer",
            {"backend": "spring"},
            r"swimmer: \{'backend': 'spring'\} are refused: ValueError: Unsupp",
        ),
        ("fast", {"obs_mode": "pictures"}, "'pictures' is not a valid ObservationMode"),
    ],
)


class Cart(envs.get_environment("fast").__class__.__bases__[0]):
    """A user's own environment, without a system of bodies: it ends past 2."""

    def __init__(self):
        pass

    observation_size = action_size = 1
    backend = "none"

    def reset(self, rng):
        return envs.State(None, np.zeros(1, np.float32), np.float32(0), np.float32(0))

    def step(self, state, action):
        obs = state.obs + action
        return state.replace(obs=obs, reward=obs[0], done=(obs[0] > 2).astype("float32"))


@pytest.mark.parametrize(
    ("wrapped", "limit"),
    [
        (lambda env: env, 1000),
        (lambda env: envs.training.wrap(env, episode_length=4), 4),
        (lambda env: envs.training.EpisodeWrapper(env, 8, action_repeat=2), 4),
    ],
)
def test_a_users_object_trains_by_its_own_steps_within_any_of_braxs_wrappers(wrapped, limit):
    env, params = make(wrapped(Cart()))
    assert (env.name, params.max_steps_in_episode) == ("Cart", limit)
    check_env(wrapped(Cart()), steps=8)
    for push, ends in ((1.0, (True, limit == 4)), (0.0, (False, limit == 4))):
        _, state = env.reset_env(jax.random.key(0), params)
        for _ in range(4):
            action = np.full(1, push, np.float32)
            _, state, _, terminated, _ = env.step_env(None, state, action, params)
        assert (bool(terminated), bool(env.is_truncated(state, params))) == ends
