"""MuJoCo Playground's environments: the library's own steps, by MJX's physics in JAX."""

import jax
import numpy as np
import pytest

from tests.messages import refused_by

pytest.importorskip("mujoco_playground", reason="the extra playground is not installed")

from mujoco_playground import registry, wrapper

from jaxrl.adapters.from_playground import MENAGERIE_PATH, constructor
from jaxrl.core.env_checker import check_env
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make
from jaxrl.core.spaces import Box
from tests.oracles.same_steps import Player, adapter_player, assert_same_steps

pytestmark = [
    pytest.mark.usefixtures("rank_promotion"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of JAX and MJX, about the library
]


def library_player(name, limit):
    """The library's bare steps, and a clock."""
    env = registry.load(name, config_overrides={"impl": "jax"})

    def reset(key):
        state = env.reset(jax.random.key_data(key))
        return state.obs, (state, 0)

    def step(key, clocked, action):
        state, time = clocked
        state, time = env.step(state, action), time + 1
        return state.obs, (state, time), state.reward, state.done > 0, time >= limit

    return Player(reset, step)


def test_the_same_keys_and_actions_give_the_librarys_observations_rewards_and_ends():
    env, params = make("playground:CartpoleBalance", max_steps_in_episode=60)
    actions = np.random.default_rng(0).uniform(-1, 1, (600, 1)).astype(np.float32)
    library = library_player("CartpoleBalance", 60)
    assert assert_same_steps(library, adapter_player(env, params), actions) == 10


def test_the_contract_holds():
    check_env(constructor("PendulumSwingup")())


def test_arguments_are_the_entries_of_the_librarys_configuration():
    env = constructor("CartpoleBalance")(episode_length=250, sim_dt=0.005)
    assert env.default_params.max_steps_in_episode == 250
    assert env._env.n_substeps == 2
    assert "noise_config__scales__gyro" in constructor("Go1Getup").__signature__.parameters


def test_physics_is_in_jax_unless_asked_for_otherwise():
    assert constructor("CartpoleBalance")()._env.mjx_model.impl.value == "jax"
    assert constructor("CartpoleBalance").__signature__.parameters["impl"].default == "jax"


def test_spaces_are_those_of_the_librarys_observations_and_actions():
    env = constructor("CartpoleBalance")()
    assert env.observation_space() == Box(-np.inf, np.inf, (5,))
    assert env.action_space() == Box(-1.0, 1.0, (1,))


test_wrong_names_and_arguments_are_told_in_one_line = refused_by(
    lambda name, args: make(f"playground:{name}", **args),
    [
        ("CartpolBalance", {}, "unknown playground environment.*did you mean 'CartpoleBalance'"),
        ("CartpoleBalance", {"impl": "wrap"}, "unknown impl 'wrap'.*did you mean 'warp'"),
        ("CartpoleBalance", {"vision": True}, "unknown argument 'vision'"),
        ("CartpoleBalance", {"sim_dt": "x"}, "CartpoleBalance': sim_dt must be a finite"),
    ],
)


@pytest.mark.skipif(MENAGERIE_PATH.exists(), reason="the models of robots are here")
def test_models_that_are_not_there_are_asked_for_and_not_downloaded():
    with pytest.raises(UsageError, match="needs models of robots, which the library downloads"):
        make("playground:Go1JoystickFlatTerrain")


def test_an_object_in_the_librarys_wrappers_steps_like_its_name():
    config = registry.get_default_config("CartpoleBalance")
    config.impl = "jax"
    inner = registry.load("CartpoleBalance", config)
    wrapped = wrapper.wrap_for_brax_training(inner, episode_length=7)
    for each, limit in ((inner, 1000), (wrapped, 7)):
        env, params = make(each)
        assert (env._env, params.max_steps_in_episode) == (inner, limit)
        assert env.action_space(params) == Box(-1.0, 1.0, (1,))
