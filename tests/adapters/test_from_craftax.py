"""Craftax's games: the library's own steps, with its clock taken out and ours put in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.messages import refused_by

pytest.importorskip("craftax", reason="the extra craftax is not installed")

from craftax.craftax_env import make_craftax_env_from_name

from jaxrl.adapters.from_craftax import constructor
from jaxrl.core.env_checker import check_env
from jaxrl.core.registry import make
from jaxrl.core.spaces import Box, Discrete
from tests.oracles.same_steps import Player, adapter_player, assert_same_steps

pytestmark = pytest.mark.usefixtures("rank_promotion")
CLASSIC = "Craftax-Classic-Symbolic-v1"


def library_player(name, max_timesteps):
    """The library without automatic reset; its clock says which ends are by the clock."""
    env = make_craftax_env_from_name(name, auto_reset=False)
    params = env.default_params.replace(max_timesteps=max_timesteps)
    unlimited = params.replace(max_timesteps=2**31 - 1)

    def reset(key):
        return env.reset_env(jax.random.key_data(key), params)

    def step(key, state, action):
        key = jax.random.key_data(key)
        obs, state, reward, done, _ = env.step_env(key, state, action, params)
        died, clock = env.is_terminal(state, unlimited), state.timestep >= max_timesteps
        return obs, state, reward, done & died, done & clock

    return Player(reset, step)


def test_the_same_keys_and_actions_give_the_librarys_observations_rewards_and_ends():
    env, params = make(f"craftax:{CLASSIC}", max_timesteps=200)
    actions = np.random.default_rng(0).integers(17, size=3000, dtype=np.int32)
    library = library_player(CLASSIC, 200)
    assert assert_same_steps(library, adapter_player(env, params), actions) > 15


def test_the_contract_holds():
    check_env(constructor(CLASSIC)())


def test_an_episodes_metrics_are_the_librarys_achievements():
    env, params = make(f"craftax:{CLASSIC}")
    step = jax.jit(env.step_env)

    def play(state, inputs):
        key, action = inputs
        _, state, _, _, info = step(key, state, action, params)
        return state, info["metrics"]

    keys = jax.random.split(jax.random.key(0), 150)
    actions = jax.random.randint(jax.random.key(1), (150,), 0, 17)
    _, state = env.reset_env(jax.random.key(2), params)
    state, metrics = jax.lax.scan(play, state, (keys, actions))
    unlocked = {name for name, found in metrics.items() if found.sum() == 1}
    assert len(unlocked) == state.inner.achievements.sum() > 0
    assert len(metrics) == 22 and max(found.sum() for found in metrics.values()) == 1


def test_the_time_limit_is_the_librarys():
    assert constructor(CLASSIC)().default_params.max_steps_in_episode == 10_000
    assert constructor(CLASSIC)(max_timesteps=7).default_params.max_steps_in_episode == 7


def test_spaces_are_the_librarys():
    pixels = constructor("Craftax-Classic-Pixels-v1")()
    assert pixels.observation_space() == Box(0.0, 1.0, (63, 63, 3))
    assert constructor(CLASSIC)().observation_space() == Box(0.0, 1.0, (1345,))
    assert constructor("Craftax-Symbolic-v1")().action_space() == Discrete(43)


def test_it_draws_itself_within_a_compiled_program():
    env, params = make(f"craftax:{CLASSIC}")
    _, state = env.reset_env(jax.random.key(0), params)
    picture = jax.jit(env.render)(state, params)
    assert picture.shape == (144, 144, 3) and picture.dtype == jnp.uint8
    assert len(np.unique(picture)) > 20


test_wrong_names_and_arguments_are_told_in_one_line = refused_by(
    lambda name, args: make(f"craftax:{name}", **args),
    [
        ("Craftax-Clasic-Symbolic-v1", {}, f"did you mean '{CLASSIC}'"),
        (CLASSIC, {"max_timestep": 5}, "unknown argument 'max_timestep'.*did you mean 'max_times"),
        (CLASSIC, {"max_timesteps": 0}, "max_timesteps must be an integer of at least 1, not 0"),
    ],
)


def test_an_object_is_the_game_of_its_name_whether_it_resets_by_itself_or_not():
    by_name, limit = make("craftax:Craftax-Classic-Symbolic-v1")
    for auto_reset in (False, True):
        env, params = make(make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset))
        assert env.observation_space(params) == by_name.observation_space(limit)
        assert (params, env._classic) == (limit, True)
