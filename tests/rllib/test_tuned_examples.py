"""Fifteen of RLlib's tuned examples of PPO: at least twelve go through as they are."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import jaxrl
from jaxrl import UsageError, from_rllib
from jaxrl.core.errors import is_installed
from jaxrl.outside.workers.python_env import make_vector_env
from jaxrl.sweeps.space import settings_of

ROOT = Path(__file__).resolve().parents[2]
FOUND = importlib.util.spec_from_file_location(
    "rllib_examples", ROOT / "benchmarks" / "rllib_examples.py"
)
MODULE = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(MODULE)
EXAMPLES, RETURN = MODULE.EXAMPLES, MODULE.RETURN

OF_RAY = {"pendulum-transformed-actions-ppo", "repeatafterme-ppo-lstm"}
OF_RAY |= {"stateless_cartpole_ppo.py", "multi_agent_cartpole_ppo.py"}
OF_MUJOCO = {"halfcheetah-ppo", "hopper-ppo", "humanoid-ppo-gae"}
REFUSED = {"atari-ppo", "unity3d-soccer-strikers-vs-goalie-ppo"}
OF_JAXRL = EXAMPLES.keys() - OF_RAY - OF_MUJOCO - REFUSED
GRID = {
    "num_epochs": jaxrl.grid_search([1, 4]),
    "minibatch_size": jaxrl.grid_search([128, 256, 512]),
}


def answer(name):
    """The translation, or the line that says why there is none."""
    try:
        return from_rllib(EXAMPLES[name])
    except UsageError as error:
        assert "\n" not in str(error)
        return str(error)


def test_there_are_fifteen_and_the_table_says_of_each_what_becomes_of_it():
    assert len(EXAMPLES) == 15
    page = (ROOT / "docs" / "rllib-tuned-examples.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `([^`]+)` \| (yes|no) \| ([^|]*)\|", page, re.MULTILINE)
    assert {name for name, _, _ in found} == EXAMPLES.keys()
    assert {name for name, through, _ in found if through == "no"} == REFUSED
    assert {name for name, _, trained in found if not trained} == REFUSED


@pytest.mark.parametrize("name", sorted(OF_JAXRL))
def test_an_example_in_an_environment_of_jaxrl_goes_through_as_it_is(name):
    translation = answer(name)
    config = translation.config
    sizes = (config.env, config.num_envs, config.rollout_length, config.num_epochs)
    stop = dict(translation.run_settings["stop"])
    small = ((32,), "linear", True)
    network = (config.fcnet_hiddens, config.fcnet_activation, config.vf_share_layers)
    if name in ("cartpole-ppo", "cartpole-ppo-with-rl-module"):
        assert sizes == ("cartpole", 1, 4000, 6)
        assert (stop, config.total_env_steps, network) == ({RETURN: 150}, 100_000, small)
        assert config.observation_filter == "MeanStdFilter"
    elif name == "cartpole-ppo-hyperband":
        assert sizes == ("cartpole", 1, 4000, 1)
        assert dict(config.env_args) == {"max_steps_in_episode": 200}
        assert (translation.space, translation.sweep_settings["seeds"]) == (GRID, 3)
        assert stop == {RETURN: 200, "time_total_s": 180}
    elif name == "cartpole-ppo-grid-search-example":
        assert sizes == ("cartpole", 2, 2000, 1)
        assert translation.space == GRID
    elif name == "pendulum-ppo":
        assert sizes == ("gymnax:Pendulum-v1", 20, 26, 6)
        assert (stop, config.total_env_steps) == ({RETURN: -500}, 400_000)
        assert (config.lambda_, config.gamma, config.minibatch_size) == (0.1, 0.95, 64)
    else:
        assert sizes == ("gymnax:Pendulum-v1", 20, 200, 6)
        assert network == ((256, 256), "relu", False)
        assert (stop, config.total_env_steps) == ({RETURN: -300}, 400_000)


@pytest.mark.parametrize("name", sorted(OF_RAY))
def test_an_example_in_an_environment_of_rllibs_goes_through_or_names_ray(name):
    if not is_installed("ray"):
        assert 'pip install "ray[rllib]"' in answer(name)
        return
    config = answer(name).config
    sizes = (config.num_envs, config.rollout_length, config.num_epochs)
    if name == "repeatafterme-ppo-lstm":
        assert sizes == (20, 200, 5)
        assert (config.use_lstm, config.lstm_cell_size, config.max_seq_len) == (True, 64, 20)
    elif name == "stateless_cartpole_ppo.py":
        assert sizes == (3, 1334, 6)
        assert (config.observation_filter, config.use_lstm) == ("MeanStdFilter", True)
    elif name == "multi_agent_cartpole_ppo.py":
        assert sizes == (2, 2000, 6)
        assert dict(config.policies) == {"p0": ("0",), "p1": ("1",)}
    else:
        assert sizes == (40, 13, 6)
        assert config.to_dict()["env_args"] == {"config": {"low": 300.0, "high": 500.0}}


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")  # Gymnasium's, of v4
@pytest.mark.parametrize("name", sorted(OF_MUJOCO))
def test_an_example_in_mujoco_goes_through_or_names_it(name):
    if not is_installed("mujoco"):
        assert "MuJoCo is not installed" in answer(name)
        return
    translation = answer(name)
    config = translation.config
    sizes = (config.env, config.num_envs, config.rollout_length, config.minibatch_size)
    if name == "hopper-ppo":
        assert sizes == ("gym:Hopper-v4", 64, 2500, 32_768)
    elif name == "humanoid-ppo-gae":
        assert sizes == ("gym:Humanoid-v4", 64, 5000, 32_768)
        assert dict(config.env_args) == {"max_episode_steps": 5000}
    else:
        assert sizes == ("gym:HalfCheetah-v4", 256, 256, 4096)
        assert translation.space == {"num_envs": jaxrl.grid_search([256, 512])}


def test_the_others_say_why_in_one_line():
    assert answer("atari-ppo").startswith("env: a sweep has one environment")
    said = answer("unity3d-soccer-strikers-vs-goalie-ppo")
    assert "no module 'ray.rllib.env.wrappers.unity3d_env'" in said or "ray[rllib]" in said


def test_rllibs_own_objects_of_the_examples_are_read_alike():
    ppo = pytest.importorskip("ray.rllib.algorithms.ppo")
    from ray.rllib.connectors.env_to_module import MeanStdFilter
    from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole
    from ray.rllib.examples.envs.classes.stateless_cartpole import StatelessCartPole
    from ray.tune.registry import register_env

    register_env("multi_agent_cartpole", lambda cfg: MultiAgentCartPole(config=cfg))
    small = {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True}
    objects = {
        "pendulum_ppo.py": ppo.PPOConfig()
        .environment("Pendulum-v1")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=10)
        .training(lr=3e-4, lambda_=0.1, vf_clip_param=10.0, num_epochs=6)
        .rl_module(model_config={"fcnet_activation": "relu"}),
        "stateless_cartpole_ppo.py": ppo.PPOConfig()
        .environment(StatelessCartPole)
        .env_runners(num_env_runners=3, env_to_module_connector=lambda env: MeanStdFilter())
        .training(lr=3e-4, gamma=0.99, num_epochs=6, vf_loss_coeff=0.05)
        .rl_module(model_config={"vf_share_layers": True, "use_lstm": True, "max_seq_len": 50}),
        "multi_agent_cartpole_ppo.py": ppo.PPOConfig()
        .environment("multi_agent_cartpole", env_config={"num_agents": 2})
        .training(lr=3e-4, gamma=0.99, num_epochs=6, vf_loss_coeff=0.01)
        .rl_module(model_config=small)
        .multi_agent(
            policies={"p0", "p1"}, policy_mapping_fn=lambda agent, *args, **kwargs: f"p{agent}"
        ),
    }
    for name, config in objects.items():
        tuner, stop = {"trainable": "PPO", "param_space": config}, EXAMPLES[name]["stop"]
        of_object, of_settings = from_rllib(tuner, stop=stop), answer(name)
        is_registered = name.startswith("multi")  # as a function, which only equals itself
        env = {"env": of_settings.config.env} if is_registered else {}
        assert of_object.config.replace(**env) == of_settings.config
        assert of_object.run_settings == of_settings.run_settings


def test_a_sweep_tries_what_tune_would():
    variants = pytest.importorskip("ray.tune.search.variant_generator")
    example = EXAMPLES["cartpole-ppo-grid-search-example"]
    tried = [config for _, config in variants.generate_variants(example["config"])]
    trials = settings_of(answer("cartpole-ppo-grid-search-example").space)
    assert sorted((trial["num_epochs"], trial["minibatch_size"]) for trial in trials) == sorted(
        (config["num_sgd_iter"], config["sgd_minibatch_size"]) for config in tried
    )


STRETCHED = {"config": {"low": 300.0, "high": 500.0}}


@pytest.mark.parametrize(
    ("name", "args"),
    [("MultiAgentCartPole", {"num_agents": 2}), ("TransformedActionPendulum", STRETCHED)],
)
def test_an_environment_of_rllibs_plays_here_as_it_does_there(name, args):
    pytest.importorskip("ray.rllib")
    config = from_rllib({"env": name, "env_config": args}).config
    args = config.to_dict()["env_args"]
    module, _, attribute = config.env.partition(":")
    make = getattr(importlib.import_module(module), attribute)
    made_by_rllib = make(dict(args.get("config", args)))
    envs = make_vector_env(config.env, 1, env_args=args, num_workers=0)
    agents, is_alone = envs.spec.agents, envs.spec.agents == ("default_agent",)
    obs, expected = envs.reset(np.asarray([5], np.uint32)).obs, made_by_rllib.reset(seed=5)[0]
    for _ in range(4):
        for number, agent in enumerate(agents):
            np.testing.assert_allclose(obs[agent][0], expected if is_alone else expected[number])
        envs.send(0, {agent: np.full((1, 1) if is_alone else 1, 1) for agent in agents})
        step, action = envs.receive(0), np.full(1, 1.0) if is_alone else {0: 1, 1: 1}
        expected, reward, *_ = made_by_rllib.step(action)
        obs, reward = step.obs, [reward] if is_alone else [reward[0], reward[1]]
        np.testing.assert_allclose(step.reward[0], reward, rtol=1e-6)
    envs.close()


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")
def test_at_least_twelve_go_through_where_all_is_installed():
    for package in ("ray", "mujoco", "ale_py"):
        pytest.importorskip(package)
    through = [name for name in EXAMPLES if not isinstance(answer(name), str)]
    assert set(through) == EXAMPLES.keys() - REFUSED
    assert len(through) >= 12
