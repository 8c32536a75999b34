"""gymnax's spaces as ours, its observations as they declare them, and users' environments."""

import json
import os
import subprocess
import sys
from urllib.error import URLError

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax import wrappers
from gymnax.environments import spaces

import jaxrl
import tests.core.environments
from jaxrl import PPOConfig, to_gymnax
from jaxrl.adapters.from_gymnax import GymnaxEnvironment, UsersEnvironment, convert_space, typed
from jaxrl.core.env_checker import check_env
from jaxrl.core.env_contract import require_trainable
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make
from jaxrl.core.spaces import Box, Dict, Discrete, Tuple
from jaxrl.core.spaces import MultiDiscrete as MultiDiscreteOfOurs
from tests.adapters import gymnax_environments as environments
from tests.adapters.gymnax_environments import LIMIT, SizedWalk, Walk
from tests.messages import refusal

THEIRS = spaces.Dict(
    {
        "map": spaces.Box(0.0, 1.0, (2, 2)),
        "bag": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 9, (1,), jnp.int32))),
    }
)


def test_dicts_and_tuples_of_gymnax_are_ours_part_by_part():
    expected = Dict(
        {"map": Box(0.0, 1.0, (2, 2)), "bag": Tuple((Discrete(3), Box(0, 9, (1,), "int32")))}
    )
    assert convert_space(THEIRS, "observation") == expected


def test_every_part_of_an_observation_gets_the_type_that_its_space_declares():
    obs = typed(THEIRS, {"bag": (jnp.int32(2), jnp.array([4.0])), "map": jnp.eye(2, dtype=bool)})
    assert convert_space(THEIRS, "observation").contains(obs)
    assert (obs["map"].dtype, obs["bag"][1].dtype) == (np.float32, np.int32)


def test_a_part_that_is_no_known_space_is_named():
    class Graph(spaces.Space):
        pass

    with refusal(r"observation\['net'\]: gymnax's Graph space is not supported"):
        convert_space(spaces.Dict({"net": Graph()}), "observation")


@pytest.mark.parametrize("name", ["PointRobot-misc", "Reacher-misc", "Swimmer-misc"])
def test_spaces_whose_bounds_are_made_as_arrays_are_read_while_a_program_is_traced(name):
    env, params = make(f"gymnax:{name}")
    with jax.numpy_rank_promotion("allow"):  # which gymnax's own code needs
        require_trainable(env, params)
    for which in ("observation_space", "action_space"):
        seen = []
        jax.eval_shape(
            lambda _, which=which, seen=seen: seen.append(getattr(env, which)(params)), 0
        )
        assert seen == [getattr(env, which)(params)]


def test_data_that_cannot_be_loaded_is_said_in_one_line(monkeypatch):
    def offline(name, **args):
        raise URLError("no route to host")

    monkeypatch.setattr(gymnax, "make", offline)
    with refusal(r"environment gymnax:MNISTBandit-bsuite cannot be made: URLError: .*no route"):
        make("gymnax:MNISTBandit-bsuite")


@pytest.mark.long
def test_without_gymnax_its_names_are_refused_in_one_line_and_ours_are_made(tmp_path):
    (tmp_path / "gymnax.py").write_text("raise ImportError('no module gymnax here')\n")
    code = (
        "import jaxrl\n"
        "jaxrl.make('cartpole')\n"
        "for _ in range(2):\n    try:\n        jaxrl.make('gymnax:CartPole-v1')\n"
        "    except jaxrl.UsageError as error:\n        print(error)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.count("\n")) == (0, 2), done.stderr
    assert done.stdout.startswith(
        "environments gymnax:NAME: gymnax cannot be imported (ImportError: no module gymnax here"
    )


def play(env, params, action, steps):
    """The flags (terminated, truncated) of `steps` steps of one action, without a reset."""
    step = jax.jit(lambda state: env.step_env(jax.random.key(1), state, action, params)[1:4:2])
    _, state = env.reset_env(jax.random.key(0), params)
    flags = []
    for _ in range(steps):
        state, terminated = step(state)
        flags.append((bool(terminated), bool(env.is_truncated(state, params))))
    return flags


@pytest.mark.parametrize("kind", environments.ALL)
def test_a_users_environment_terminates_at_its_goal_and_its_time_limit_truncates(kind):
    env, params = make(kind())
    going_on = (False, False)
    assert play(env, params, 1, 3) == [going_on, going_on, (True, False)]
    assert play(env, params, 0, 6) == [going_on] * 5 + [(False, True)]


@pytest.mark.long
@pytest.mark.parametrize("kind", environments.ALL)
def test_a_users_environment_keeps_the_contract_as_an_object(kind):
    check_env(kind(), steps=16)
    env, _ = make(kind())
    spaces = env.observation_space(), env.action_space()
    assert spaces == (Box(-np.inf, np.inf, (2,)), Discrete(2))


def test_a_users_environment_is_an_object_a_class_a_function_or_a_name():
    module = environments.__name__
    for env in (Walk(), Walk, environments.make_walk, f"{module}:Walk", f"{module}:make_walk"):
        made = PPOConfig(env=env).setup().env.env
        assert (type(made), made.default_params) == (UsersEnvironment, environments.WalkParams())
    _, params = make(f"{module}:Walk", goal=2, max_steps_in_episode=4)
    assert params == environments.WalkParams(goal=2, max_steps_in_episode=4)
    assert make(SizedWalk, max_steps=9)[0].env.max_steps == 9
    assert PPOConfig(env=SizedWalk, env_args={"max_steps": 9}).setup().env.env.env.max_steps == 9


def test_equal_ways_of_making_an_environment_share_compiled_programs():
    walk = Walk()
    assert make(walk)[0] == make(walk)[0] != make(Walk())[0]
    assert make(Walk)[0] == make(Walk)[0]
    assert make(SizedWalk, max_steps=4)[0] == make(SizedWalk, max_steps=4)[0]
    assert make(SizedWalk, max_steps=4)[0] != make(SizedWalk, max_steps=5)[0]
    assert hash(make(Walk)[0]) == hash(make(Walk)[0])


def test_the_arguments_of_an_object_are_refused():
    with pytest.raises(UsageError, match=r"env_args=.*'goal': 2.* need an environment by name"):
        make(Walk(), goal=2)
    with pytest.raises(UsageError, match="'Walk' cannot be made: TypeError: Walk"):
        make(Walk, speed=2)


def test_gymnaxs_own_objects_and_wrappers_are_taken_too():
    cartpole = gymnax.make("CartPole-v1")[0]
    assert (type(make(cartpole)[0]), make(cartpole)[0].name) == (GymnaxEnvironment, "CartPole-v1")
    wrapped = wrappers.LogWrapper(wrappers.FlattenObservationWrapper(Walk()))
    assert play(*make(wrapped), 0, 6)[-1] == (False, True)


def test_a_wrapper_that_training_would_pass_by_is_refused():
    class ClipReward(wrappers.purerl.GymnaxWrapper):
        def step(self, key, state, action, params=None):
            obs, state, reward, *rest = self._env.step(key, state, action, params)
            return obs, state, jnp.clip(reward, -1, 1), *rest

    with pytest.raises(UsageError, match=r"ClipReward changes `step`, .* calls `step_env`"):
        make(ClipReward(Walk()))


def test_what_is_made_for_gymnax_comes_back():
    for legacy in (False, True):
        env, params = make(to_gymnax(tests.core.environments.Corridor(), legacy=legacy))
        assert play(env, params, 0, 8)[-1] == (False, True)


def test_an_environment_on_gymnaxs_base_class_with_our_spaces_is_unchanged():
    class Ours(Walk):
        def observation_space(self, params=None):
            return Box(-9.0, 9.0, (2,))

        def action_space(self, params=None):
            return Discrete(2)

    env = Ours()
    assert make(env)[0] is env


def test_masks_and_metrics_of_a_users_environment_are_used():
    class Masked(Walk):
        def step_env(self, *args):
            return *super().step_env(*args)[:4], {"metrics": {"steps": 1.0}}

        def action_mask(self, state, params):
            return jnp.array([state.position >= 0, True])

    env, params = make(Masked())
    _, state = env.reset_env(jax.random.key(0), params)
    assert env.action_mask(state, params).tolist() == [True, True]
    *_, info = env.step_env(jax.random.key(0), state, 0, params)
    assert info == {"metrics": {"steps": 1.0}}


def test_a_users_copy_of_gymnaxs_spaces_is_read_by_the_names_of_its_classes():
    class MultiDiscrete(spaces.Space):
        def __init__(self, nvec):
            self.nvec, self.shape, self.dtype = nvec, (len(nvec),), jnp.int32

    box = type("Box", (), {"low": 0, "high": 5, "shape": 3, "dtype": jnp.uint8})()
    assert convert_space(box, "obs") == Box(0, 5, (3,), "uint8")
    assert convert_space(MultiDiscrete([2, 3]), "action") == MultiDiscreteOfOurs((2, 3))


@pytest.mark.long
def test_a_users_environment_trains_is_saved_by_its_name_and_swept(tmp_path):
    sizes = {"num_envs": 4, "rollout_length": 16, "minibatch_size": 32, "num_epochs": 6}
    config = PPOConfig(env=Walk(), lr=2e-2, fcnet_hiddens=[8], total_env_steps=64 * 60, **sizes)
    with jaxrl.Trainer(config, run_dir=tmp_path / "run", quiet=True) as trainer:
        result = trainer.fit()
        played = trainer.evaluate(episodes=8)
    assert result["env_runners"]["episode_len_max"] <= LIMIT
    assert played["env_runners"]["episode_len_mean"] == 3
    assert json.loads((tmp_path / "run" / "config.json").read_text())["env"] == (
        f"{environments.__name__}:Walk"
    )
    loaded = jaxrl.load_policy(tmp_path / "run", trust=True)
    assert loaded.act(np.array([0.0, 0.0], np.float32)) == 1
    short = config.replace(total_env_steps=64)
    with jaxrl.Trainer(short.replace(env=SizedWalk()), run_dir=None, quiet=True) as trainer:
        assert trainer.fit()["env_runners"]["episode_len_max"] <= LIMIT
    swept = jaxrl.sweep(short, {"lr": [1e-3, 1e-2]}, run_dir=None, quiet=True)
    assert len(swept.outcomes) == 2
