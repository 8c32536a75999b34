"""EnvPool's environments: the library's own steps, and what follows from episodes in its pool."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.messages import refusal, refused_by

pytest.importorskip("envpool", reason="the extra envpool is not installed")

import envpool

from jaxrl import PPOConfig, Trainer, make_train, replay_episode, sweep
from jaxrl.adapters.from_envpool import EnvPool, constructor
from jaxrl.algorithms.sharding import check_devices, devices_worth_using
from jaxrl.core.env import lift, reset_all, restart_all, step_all
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make
from jaxrl.core.spaces import Box, Dict, Discrete

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's, of spaces


def played(env, actions):
    """{name: [T, E, ...]} of a program that steps and restarts all copies, as training does."""
    env, params = lift(env), env.default_params
    keys = jax.random.split(jax.random.key(0), actions.shape[1])

    def step(carry, action):
        obs, state = carry
        raw = step_all(env, keys, state, action[:, None], params)
        after = restart_all(env, keys, raw, params)
        flags = raw.reward, raw.terminated, raw.truncated
        return after, jax.tree.map(lambda leaf: leaf[:, 0], (obs, raw.obs, *flags))

    program = jax.jit(lambda: jax.lax.scan(step, reset_all(env, keys, params), actions)[1])
    names = ("obs", "final", "reward", "terminated", "truncated")
    return dict(zip(names, map(np.asarray, program()), strict=True))


def assert_as_the_library(name, actions, seed=3, **args):
    """Row by row: EnvPool's own loop has one more call for each end, the one that resets."""
    found = played(EnvPool(name, seed=seed, **args), jnp.asarray(actions))
    num_envs = actions.shape[1]
    pool = envpool.make_gymnasium(name, num_envs=num_envs, seed=seed, **args)
    obs, _ = pool.reset()
    action_type = pool.action_space.dtype if actions.dtype.kind == "f" else np.int32
    resets = 0
    for t, action in enumerate(actions.astype(action_type)):
        np.testing.assert_array_equal(found["obs"][t], obs.astype(np.float32))
        obs, reward, terminated, truncated, _ = pool.step(action)
        np.testing.assert_array_equal(found["final"][t], obs.astype(np.float32))
        np.testing.assert_array_equal(found["reward"][t], reward)
        np.testing.assert_array_equal(found["terminated"][t], terminated)
        np.testing.assert_array_equal(found["truncated"][t], truncated)
        if len(ended := np.flatnonzero(terminated | truncated).astype(np.int32)):
            obs[ended] = pool.step(action[ended], ended)[
                0
            ]  # the call that resets: no action counts
            resets += len(ended)
    return found, resets


def test_the_same_actions_and_seed_give_the_librarys_observations_rewards_and_ends():
    actions = np.random.default_rng(0).integers(2, size=(3000, 6), dtype=np.int32)
    found, resets = assert_as_the_library("CartPole-v1", actions, max_episode_steps=40)
    assert resets > 500 and found["truncated"].sum() > 10 and found["terminated"].sum() > 500
    assert not (found["terminated"] & found["truncated"]).any()


def test_numbers_in_float64_are_the_librarys_too():
    actions = np.random.default_rng(0).uniform(-3, 3, size=(400, 4, 1)).astype(np.float32)
    _, resets = assert_as_the_library("InvertedPendulum-v4", actions)
    assert resets > 50


@pytest.mark.parametrize("name", ["CartPole-v1", "InvertedPendulum-v4"])
def test_calls_by_python_give_the_same_as_calls_by_xla(name):
    shape = (300, 3) if name == "CartPole-v1" else (300, 3, 1)
    actions = jnp.asarray(np.random.default_rng(1).integers(2, size=shape, dtype=np.int32))
    direct, called = (played(EnvPool(name, direct=direct), actions) for direct in (True, False))
    jax.tree.map(np.testing.assert_array_equal, direct, called)
    assert direct["terminated"].any()


def test_seeds_and_evaluation_have_episodes_of_their_own():
    actions, env = jnp.zeros((1, 4), jnp.int32), EnvPool("CartPole-v1")
    kinds = (env.separate(0), env.separate(1), env.separate(0).twin)
    first = np.concatenate([played(each, actions)["obs"][0] for each in kinds])
    again = played(env.separate(0), actions)["obs"][0]
    np.testing.assert_array_equal(first[:4], again)
    assert len(np.unique(first, axis=0)) == 12


def test_spaces_are_converted_and_images_have_their_channels_last():
    pong, cartpole = EnvPool("Pong-v5"), EnvPool("CartPole-v1")
    assert pong.observation_space() == Box(0, 255, (84, 84, 4), "uint8")
    assert pong.action_space() == Discrete(6)
    obs, _ = pong.reset(jax.random.key(0))
    pool = envpool.make_gymnasium("Pong-v5", num_envs=1, seed=0)
    np.testing.assert_array_equal(obs, np.moveaxis(pool.reset()[0][0], 0, -1))
    assert cartpole.action_space() == Discrete(2)
    assert cartpole.observation_space().shape == (4,)
    assert isinstance(EnvPool("MiniGrid-Empty-5x5-v0").observation_space(), Dict)
    assert EnvPool("FrozenLake-v1").observation_space() == Discrete(16)
    assert EnvPool("HalfCheetah-v4").action_space() == Box(-1.0, 1.0, (6,))


def test_one_copy_can_be_stepped_by_hand():
    env, params = make("envpool:CartPole-v1")
    obs, state = env.reset(jax.random.key(0), params)
    for _ in range(30):
        obs, state, _, terminated, truncated, info = env.step(jax.random.key(1), state, 1, params)
        if terminated:
            break
    assert terminated and not truncated
    assert (
        abs(info["final_observation"][2]) > 0.2 and abs(obs[2]) < 0.06
    )  # it fell, and stands again


def test_time_limits_end_the_world_if_asked_to():
    actions = jnp.zeros((8, 1), jnp.int32)
    kinds = [
        played(constructor("CartPole-v1")(max_episode_steps=5, time_limit=kind), actions)
        for kind in ("truncates", "terminates")
    ]
    assert [kind["truncated"][4, 0] for kind in kinds] == [True, False]
    assert [kind["terminated"][4, 0] for kind in kinds] == [False, True]


test_what_cannot_work_is_refused_in_one_line = refused_by(
    lambda name, args: make(f"envpool:{name}", **args),
    [
        ("CartPole-v2", {}, "unknown envpool environment 'CartPole-v2'; did you mean 'CartPole-v"),
        ("CartPole-v1", {"max_steps": 7}, r"unknown argument 'max_steps'.*max_episode_steps"),
        ("CartPole-v1", {"num_threads": "many"}, "num_threads must be a finite number"),
        (
            "CartPole-v1",
            {"num_threads": 2**31},
            "num_threads must be an integer .* to 1,024, not 2147",
        ),
        ("CartPole-v1", {"num_threads": -1}, "num_threads must be an integer .* to 1,024, not -1"),
        (
            "CartPole-v1",
            {"time_limit": "x"},
            "unknown time_limit 'x'.*known: terminates, truncates",
        ),
        ("Go9x9-v1", {}, "environment envpool:Go9x9-v1 has several players"),
    ],
)


SMALL = {"env": "envpool:CartPole-v1", "num_envs": 8, "rollout_length": 16, "num_epochs": 2}
SMALL |= {"minibatch_size": 64, "fcnet_hiddens": (16,), "total_env_steps": 6 * 8 * 16}


def ran(tmp_path, name="run", **settings):
    trainer = Trainer(PPOConfig(**{**SMALL, **settings}), run_dir=tmp_path / name, quiet=True)
    with trainer:
        trainer.fit()
    return trainer


def test_two_trainings_of_one_seed_are_equal_and_those_of_two_are_not(tmp_path):
    runs = [ran(tmp_path, name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    returns = [run.last_result["env_runners"]["episode_return_mean"] for run in runs]
    weights = [jax.tree.leaves(run.runner.learners[0].weights) for run in runs]
    jax.tree.map(np.testing.assert_array_equal, weights[0], weights[1])
    assert returns[0] == returns[1] != returns[2]


def test_evaluation_between_iterations_changes_nothing(tmp_path):
    plain = ran(tmp_path, "plain")
    trainer = Trainer(
        PPOConfig(**SMALL), run_dir=None, quiet=True, evaluation_interval=2, evaluation_duration=8
    )
    trainer.fit()
    leaves = [jax.tree.leaves(run.runner.learners[0].weights) for run in (plain, trainer)]
    jax.tree.map(np.testing.assert_array_equal, *leaves)
    evaluated = trainer.last_result["evaluation"]["env_runners"]
    assert evaluated["num_episodes"] == 8 and evaluated["episode_len_mean"] > 5
    episodes = trainer.sample(2)
    assert all(episode.is_terminated for episode in episodes)
    with pytest.raises(UsageError, match="cannot be replayed"):
        replay_episode(episodes[0], "envpool:CartPole-v1")
    with refusal("profile: episodes of envpool:CartPole-v1 are played once"):
        trainer.profile()


def test_a_resumed_run_begins_new_episodes_and_says_so(tmp_path, capsys):
    ran(tmp_path)
    trainer = Trainer.from_checkpoint(tmp_path / "run")
    lines = capsys.readouterr().out
    assert "checkpoints do not hold the episodes of envpool:CartPole-v1: new episodes" in lines
    assert trainer.lifetime.training_iteration == 6
    first = np.asarray(trainer.runner.envs.obs[0])
    assert np.abs(first).max() <= 0.05  # as CartPole's reset draws them
    with trainer:
        result = trainer.fit({"training_iteration": 8})
    assert result["training_iteration"] == 8


def test_the_trials_of_a_sweep_are_separate_runs(tmp_path):
    run = ran(tmp_path, seed=2)
    alone = run.last_result["env_runners"]["episode_return_mean"]
    config = PPOConfig(**SMALL, seed=1)
    done = sweep(config, seeds=2, run_dir=None, quiet=True)
    assert [outcome.trial.config.seed for outcome in done.outcomes] == [1, 2]
    assert done.outcomes[1].result["env_runners"]["episode_return_mean"] == alone
    with refusal("halving=.* needs trials that train together: those over envpool:CartPole-v1"):
        sweep(config, seeds=2, halving=2, run_dir=None, quiet=True)


def test_vmap_and_several_devices_are_refused_before_compiling():
    config = PPOConfig(**SMALL)
    with pytest.raises(UsageError, match="cannot be vmapped"):
        jax.jit(jax.vmap(make_train(config))).lower(jax.random.split(jax.random.key(0)))
    with pytest.raises(UsageError, match="devices=2: envpool:CartPole-v1 trains on one device"):
        check_devices(config, 2)
    assert devices_worth_using(config.replace(num_envs=4096), 8) == 1


def test_one_program_trains_again_and_another_in_its_pool_ends_its_episodes():
    algorithm = PPOConfig(**SMALL).build()
    init, collect = jax.jit(algorithm.init), jax.jit(algorithm.collect)
    runner, _ = collect(init(jax.random.key(0)))
    init(jax.random.key(1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="another one reset the same pool"):
        jax.block_until_ready(collect(runner)[0])
