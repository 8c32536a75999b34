"""XLand-MiniGrid's environments: the library's own steps, with the two kinds of ends told apart."""

import jax
import numpy as np
import pytest

pytest.importorskip("xminigrid", reason="the extra xminigrid is not installed")

import xminigrid
from xminigrid.wrappers import DirectionObservationWrapper, GymAutoResetWrapper

from jaxrl.adapters.from_xminigrid import LARGEST_CODE, constructor
from jaxrl.core.env_checker import check_env
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make
from jaxrl.core.spaces import Box, Dict
from tests.oracles.same_steps import Player, adapter_player, assert_same_steps

NAMES = [
    "MiniGrid-DoorKey-5x5",
    "MiniGrid-FourRooms",
    "MiniGrid-MemoryS8",
    "XLand-MiniGrid-R4-13x13",
]


def library_player(name, **args):
    """The library, by its own reading: a last step is by the goal where its discount is 0."""
    env, params = xminigrid.make(name, **args)

    def reset(key):
        timestep = env.reset(params, jax.random.key_data(key))
        return timestep.observation, timestep

    def step(key, timestep, action):
        timestep = env.step(params, timestep, action)
        last, goal = timestep.last(), timestep.discount == 0.0
        return timestep.observation, timestep, timestep.reward, last & goal, last & ~goal

    return Player(reset, step)


def test_the_same_keys_and_actions_give_the_librarys_observations_rewards_and_ends():
    actions = np.random.default_rng(0).integers(6, size=4000, dtype=np.int32)
    adapter = adapter_player(constructor("MiniGrid-Empty-5x5")())
    assert assert_same_steps(library_player("MiniGrid-Empty-5x5"), adapter, actions) > 40


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_holds(name):
    check_env(constructor(name)())


def test_time_limits_truncate_and_end_the_world_only_if_asked_to():
    env, params = make("xminigrid:MiniGrid-DoorKey-8x8", max_steps=7)
    assert params.max_steps_in_episode == 7
    as_library = constructor("MiniGrid-DoorKey-8x8")(max_steps=7, time_limit="terminates")
    for each, ends in ((env, (False, True)), (as_library, (True, True))):
        _, state = each.reset_env(jax.random.key(0), params)
        for _ in range(7):
            _, state, _, terminated, _ = each.step_env(jax.random.key(0), state, 0, params)
        assert (bool(terminated), bool(each.is_truncated(state, params))) == ends


def test_it_draws_itself_within_a_compiled_program():
    env, params = make("xminigrid:MiniGrid-Empty-5x5")
    _, state = env.reset_env(jax.random.key(0), params)
    picture = np.asarray(jax.jit(env.render)(state, params))
    np.testing.assert_array_equal(picture, env._env.render(env._params, state.inner))
    assert picture.dtype == np.uint8 and picture.ndim == 3


def test_an_unknown_name_has_the_nearest_one_beside_it():
    with pytest.raises(UsageError, match="did you mean 'MiniGrid-FourRooms'"):
        make("xminigrid:MiniGrid-FourRoom")


def test_an_unknown_argument_is_named():
    with pytest.raises(UsageError, match=r"unknown argument 'hight'.*did you mean 'height'"):
        make("xminigrid:MiniGrid-Empty-5x5", hight=7)


class Small(type(xminigrid.make("MiniGrid-Empty-5x5")[0])):
    """A user's world, with parameters of its own."""

    def default_params(self, **given):
        return super().default_params(**{"height": 5, "width": 5, **given})


def test_an_object_in_wrappers_has_its_observations_and_resets_in_training_alone():
    env, limit = make(DirectionObservationWrapper(GymAutoResetWrapper(Small())))
    params = Small().default_params()
    assert (params.height, limit.max_steps_in_episode) == (5, params.max_steps)
    image = Box(0, LARGEST_CODE, (params.view_size, params.view_size, 2), "uint8")
    direction = Box(-np.inf, np.inf, (4,))
    assert env.observation_space() == Dict({"direction": direction, "img": image})
    assert type(make(GymAutoResetWrapper(Small()))[0]._env) is Small
    check_env(Small, steps=8)


def test_the_librarys_own_object_says_that_it_has_default_parameters():
    with pytest.warns(UserWarning, match="Empty does not hold the parameters .* of 9 x 9"):
        make(xminigrid.make("MiniGrid-Empty-5x5")[0])
