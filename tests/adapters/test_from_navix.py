"""Navix's grid worlds: the library's own steps, with the two kinds of ends told apart."""

import jax
import numpy as np
import pytest

from tests.messages import refused_by

pytest.importorskip("navix", reason="the extra navix is not installed")

import navix

from jaxrl import PPOConfig
from jaxrl.adapters.from_navix import constructor
from jaxrl.core.env_checker import check_env
from jaxrl.core.registry import make
from jaxrl.core.spaces import Box, Discrete
from tests.oracles.same_steps import Player, adapter_player, assert_same_steps

pytestmark = pytest.mark.usefixtures("rank_promotion")


def library_player(name, **args):
    """The library with its own reading of ends; a reset follows each, before its automatic one."""
    env = navix.make(name, **args)

    def reset(key):
        timestep = env.reset(jax.random.key_data(key))
        return timestep.observation, timestep

    def step(key, timestep, action):
        timestep = env.step(timestep, action)
        clock = timestep.t >= env.max_steps  # also where the world ends in that step
        ends = timestep.is_termination(), timestep.is_truncation() | clock
        return timestep.observation, timestep, timestep.reward, *ends

    return Player(reset, step)


def test_the_same_keys_and_actions_give_the_librarys_observations_rewards_and_ends():
    actions = np.random.default_rng(0).integers(7, size=4000, dtype=np.int32)
    name = "Navix-LavaGapS5-v0"
    env, params = make(f"navix:{name}", max_steps=30)
    library = library_player(name, max_steps=30)
    assert assert_same_steps(library, adapter_player(env, params), actions) > 130


@pytest.mark.parametrize(
    ("name", "observation"),
    [
        ("Navix-Empty-Random-6x6-v0", "symbolic"),
        ("Navix-DoorKey-5x5-v0", "symbolic_first_person"),
        ("Navix-Dynamic-Obstacles-5x5-v0", "categorical"),
        ("Navix-GoToDoor-5x5-v0", "categorical_first_person"),
    ],
)
def test_the_contract_holds(name, observation):
    check_env(constructor(name)(observation=observation))


def test_arguments_set_the_time_limit_and_what_is_seen():
    env, params = make("navix:Navix-FourRooms-v0", observation="rgb_first_person", max_steps=7)
    assert params.max_steps_in_episode == 7
    assert env.observation_space(params) == Box(0, 255, (56, 56, 3), "uint8")
    assert constructor("Navix-FourRooms-v0")().default_params.max_steps_in_episode == 100


def test_its_spaces_may_be_asked_for_while_a_program_is_traced():
    env = constructor("Navix-Empty-5x5-v0")()
    drawn = jax.eval_shape(lambda key: env.action_space().sample(key), jax.random.key(0))
    assert drawn.shape == () and env.action_space() == Discrete(7)


def test_it_draws_itself_within_a_compiled_program():
    env, params = make("navix:Navix-DoorKey-5x5-v0")
    _, state = env.reset_env(jax.random.key(0), params)
    picture = np.asarray(jax.jit(env.render)(state, params))
    assert picture.shape == (40, 40, 3) and picture.dtype == np.uint8
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 5


test_wrong_names_and_arguments_are_told_in_one_line = refused_by(
    lambda name, args: make(f"navix:{name}", **args),
    [
        ("Navix-Emty-5x5-v0", {}, "unknown navix environment.*did you mean 'Navix-Empty-5x5-v0'"),
        ("Navix-Empty-5x5-v0", {"observation": "simbolic"}, "did you mean 'symbolic'"),
        ("Navix-Empty-5x5-v0", {"max_step": 5}, "unknown argument 'max_step'.*'max_steps'"),
        ("Navix-Empty-5x5-v0", {"max_steps": 0}, "max_steps must be an integer of at least 1"),
    ],
)


def test_an_object_steps_like_its_name_though_it_cannot_be_hashed():
    room = navix.make("Navix-Empty-5x5-v0", max_steps=30)
    env, params = make(room)
    assert params == make("navix:Navix-Empty-5x5-v0", max_steps=30)[1]
    assert env == make(room)[0] != make(navix.make("Navix-Empty-5x5-v0", max_steps=30))[0]
    assert env.observation_space() == constructor("Navix-Empty-5x5-v0")().observation_space()
    assert PPOConfig(env=room).setup().env.env == env
    check_env(room, steps=8)


def test_an_observation_of_a_users_own_is_a_box_of_its_shape():
    blank = navix.make("Navix-Empty-5x5-v0", observation_fn=navix.observations.symbolic)
    blank = blank.replace(observation_fn=lambda state: jax.numpy.zeros(3))
    assert make(blank)[0].observation_space() == Box(-np.inf, np.inf, (3,))
