"""RLlib's configurations read as ours: the settings, the table of every key, what is refused."""

import dataclasses
import json
import re
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import jaxrl
from jaxrl import PPOConfig, UsageError, from_rllib
from jaxrl.export.checkpoint_files import ExportCheckpoints
from jaxrl.rllib import form
from jaxrl.rllib.rows import CHANGES, HARMLESS, TAKEN
from jaxrl.rllib.searches import KEYS
from jaxrl.rllib.translation import RULES, is_part, rllib_names
from jaxrl.rollout.episode_callbacks import resolve_callbacks
from jaxrl.sweeps.space import settings_of
from tests.messages import refused_by

RLLIB = rllib_names()
CARTPOLE = {"env": "CartPole-v1"}
ARENA = {"env": "MultiAgentArena"}
TURNS = {"env": "tests.probes:Turns"}  # of two agents, one of which waits
# What RLlib trains with where a configuration says nothing: 2 workers, PyTorch's first weights.
LAYOUT = {"num_envs": 2, "rollout_length": 2000}
NEW = {**LAYOUT, "fcnet_kernel_initializer": "uniform"}


def refused(config, **settings):
    with pytest.raises(UsageError) as error:
        from_rllib(config, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def rows_of(translation):
    """{key: (kind, text)}."""
    return {key: (row.kind, row.text) for row in translation.rows for key in row.entries}


class MultiAgentArena(gymnasium.Env):
    """No arena. Has RLlib's form of a constructor, and refuses a configuration in another form."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config=None):
        assert (config or {}).get("sizes", [1, {"deep": [2]}]) == [1, {"deep": [2]}]

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 1.0, True, False, {}


# Configurations as users have them


def test_a_dict_of_old_names():
    translation = from_rllib(
        {
            "env": "CartPole-v1",
            "framework": "torch",
            "num_gpus": 0,
            "num_workers": 3,
            "num_envs_per_worker": 4,
            "rollout_fragment_length": 50,
            "train_batch_size": 2400,
            "sgd_minibatch_size": 200,
            "num_sgd_iter": 8,
            "lambda": 0.95,
            "gamma": 0.98,
            "clip_param": 0.2,
            "vf_clip_param": 100.0,
            "vf_loss_coeff": 0.5,
            "entropy_coeff": 0.01,
            "kl_coeff": 0.3,
            "kl_target": 0.02,
            "lr": 1e-3,
            "lr_schedule": [[0, 1e-3], [500_000, 0.0]],
            "grad_clip": 0.5,
            "observation_filter": "MeanStdFilter",
            "batch_mode": "truncate_episodes",
            "seed": 7,
            "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"},
        }
    )
    assert translation.config == PPOConfig(
        env="cartpole",
        num_envs=12,
        rollout_length=200,
        minibatch_size=200,
        num_epochs=8,
        lambda_=0.95,
        gamma=0.98,
        clip_param=0.2,
        vf_clip_param=100.0,
        vf_loss_coeff=0.5,
        entropy_coeff=0.01,
        kl_coeff=0.3,
        kl_target=0.02,
        lr=[[0, 1e-3], [500_000, 0.0]],
        grad_clip=0.5,
        observation_filter="MeanStdFilter",
        seed=7,
        fcnet_hiddens=[64, 64],
        fcnet_activation="relu",
    )
    assert translation.run_settings == {}


def test_a_dict_of_new_names():
    translation = from_rllib(
        {
            "env": "Pendulum-v1",
            "enable_rl_module_and_learner": True,
            "num_env_runners": 2,
            "num_envs_per_env_runner": 10,
            "rollout_fragment_length": "auto",
            "train_batch_size_per_learner": 2000,
            "num_learners": 2,
            "minibatch_size": 64,
            "num_epochs": 6,
            "lambda_": 0.1,
            "lr": [[0, 3e-4], [1_000_000, 1e-5]],
            "entropy_coeff": [[0, 0.01], [1_000_000, 0.0]],
            "model_config": {"fcnet_activation": "swish", "vf_share_layers": True},
            "metrics_num_episodes_for_smoothing": 20,
        }
    )
    assert translation.config == PPOConfig(
        env="gymnax:Pendulum-v1",
        num_envs=20,
        rollout_length=200,
        minibatch_size=128,
        num_epochs=6,
        lambda_=0.1,
        lr=[[0, 3e-4], [1_000_000, 1e-5]],
        entropy_coeff=[[0, 0.01], [1_000_000, 0.0]],
        fcnet_activation="silu",
        fcnet_kernel_initializer="uniform",
        vf_share_layers=True,
        metrics_num_episodes_for_smoothing=20,
    )


YAML = """
cartpole-ppo:
    env: CartPole-v1
    run: PPO
    stop:
        episode_reward_mean: 150
        timesteps_total: 100000
    config:
        framework: tf
        lr: 0.0003
        num_workers: 1
        observation_filter: MeanStdFilter
        num_sgd_iter: 6
        model:
            fcnet_hiddens: [32]
            fcnet_activation: linear
            vf_share_layers: true
        enable_connectors: true
"""


def test_an_experiment_of_tune_in_a_yaml_file(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "cartpole.yaml"
    path.write_text(YAML)
    translation = from_rllib(path)
    assert translation.config == PPOConfig(
        env="cartpole",
        total_env_steps=100_000,
        num_envs=1,
        rollout_length=4000,
        lr=3e-4,
        num_epochs=6,
        observation_filter="MeanStdFilter",
        fcnet_hiddens=[32],
        fcnet_activation="linear",
        vf_share_layers=True,
    )
    assert translation.run_settings == {"stop": {"env_runners/episode_return_mean": 150}}


# A params.json has every key, code as text, and -1 where RLlib no longer reads a key.
PARAMS = {
    "_disable_preprocessor_api": False,
    "_model_config": "DefaultModelConfig(fcnet_hiddens=[64], fcnet_activation='tanh', "
    "fcnet_kernel_initializer=None, head_fcnet_hiddens=[], vf_share_layers=True, use_lstm=True)",
    "_train_batch_size_per_learner": 1000,
    "algorithm_config_overrides_per_module": {"hunter": {"lr": 1e-3}},
    "batch_mode": "truncate_episodes",
    "callbacks": "<class 'ray.rllib.callbacks.callbacks.RLlibCallback'>",
    "callbacks_on_episode_end": None,
    "count_steps_by": "env_steps",
    "enable_env_runner_and_connector_v2": True,
    "enable_rl_module_and_learner": True,
    "env": "pursuit_v4",
    "env_config": {"n_evaders": 10, "max_cycles": 100},
    "evaluation_config": {"explore": False},
    "evaluation_duration": 20,
    "evaluation_duration_unit": "episodes",
    "evaluation_interval": 5,
    "exploration_config": {},
    "framework": "torch",
    "gamma": 0.99,
    "grad_clip": None,
    "grad_clip_by": "global_norm",
    "lambda": 0.95,
    "lr": 5e-05,
    "lr_schedule": None,
    "model": {"fcnet_hiddens": [256, 256], "vf_share_layers": False, "use_lstm": False},
    "num_env_runners": 4,
    "num_envs_per_env_runner": 5,
    "num_learners": 0,
    "optimizer": {},
    "policies": {"hunter": [None, None, None, None]},
    "policies_to_train": None,
    "policy_mapping_fn": "<function <lambda> at 0x7f1e610d84a0>",
    "rollout_fragment_length": "auto",
    "seed": None,
    "sgd_minibatch_size": -1,
    "train_batch_size": 4000,
    "use_gae": True,
    "worker_cls": -1,
}


def test_the_params_json_of_a_result(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(PARAMS))
    translation = from_rllib(tmp_path)
    assert translation.config == PPOConfig(
        env="pursuit",
        env_args={"n_evaders": 10, "max_cycles": 100},
        num_envs=20,
        rollout_length=50,
        lambda_=0.95,
        policies={"hunter": [f"pursuer_{n}" for n in range(8)]},
        per_policy={"hunter": {"lr": 1e-3}},
        fcnet_hiddens=[64],
        fcnet_kernel_initializer="uniform",
        vf_share_layers=True,
        use_lstm=True,
    )
    assert translation.run_settings == {
        "evaluation_interval": 5,
        "evaluation_duration": 20,
        "evaluation_explore": False,
    }


def test_the_real_ppo_config_of_rllib_is_read_as_its_dict():
    ppo = pytest.importorskip("ray.rllib.algorithms.ppo")
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.utils.util import SafeFallbackEncoder

    config = (
        ppo.PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, num_envs_per_env_runner=8)
        .training(lr=3e-4, train_batch_size_per_learner=1024, num_epochs=5)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32]))
        .evaluation(evaluation_interval=2, evaluation_config={"explore": False})
    )
    translation = from_rllib(config)
    assert translation.config == PPOConfig(
        env="cartpole",
        num_envs=8,
        rollout_length=128,
        lr=3e-4,
        num_epochs=5,
        fcnet_hiddens=[32],
        fcnet_kernel_initializer="uniform",
        vf_share_layers=True,  # DefaultModelConfig's
    )
    assert translation.run_settings == {
        "evaluation_interval": 2,
        "evaluation_duration": 10,
        "evaluation_explore": False,
    }
    assert from_rllib(config.to_dict()) == translation
    saved = json.loads(json.dumps(config.to_dict(), cls=SafeFallbackEncoder))
    assert from_rllib(saved).config == translation.config


def test_the_defaults_of_the_real_ppo_config_are_those_assumed_here():
    ppo = pytest.importorskip("ray.rllib.algorithms.ppo")
    assert from_rllib(ppo.PPOConfig().environment("CartPole-v1")).config == PPOConfig(
        env="cartpole", **NEW
    )
    assert from_rllib(CARTPOLE).config == PPOConfig(env="cartpole", **NEW)


# Sizes


@pytest.mark.parametrize(
    ("given", "num_envs", "length"),
    [
        ({}, 2, 2000),
        ({"num_workers": 0, "num_envs_per_worker": 20, "train_batch_size": 512}, 20, 26),
        ({"num_env_runners": 4, "rollout_fragment_length": 100}, 4, 1000),
        # 10 x 200 steps are a fragment of each; two of them are less than 5,000, three are more
        ({"num_workers": 10, "rollout_fragment_length": 200, "train_batch_size": 5000}, 10, 600),
        ({"num_workers": 10, "sample_batch_size": 200, "train_batch_size": 500}, 10, 200),
        ({"num_learners": 2, "train_batch_size_per_learner": 1000}, 2, 1000),
        ({"num_learners": 0, "_train_batch_size_per_learner": 1000}, 2, 500),
        ({"num_env_runners": 1, "train_batch_size": 1e3}, 1, 1000),
    ],
)
def test_the_batch_is_what_rllibs_workers_would_collect(given, num_envs, length):
    config = from_rllib({**CARTPOLE, **given}).config
    assert (config.num_envs, config.rollout_length) == (num_envs, length)
    assert config.train_batch_size == num_envs * length


# Several agents


def test_policies_as_tuples_and_as_objects_with_settings_of_their_own():
    spec = SimpleNamespace(
        policy_class=None,
        observation_space=None,
        action_space=None,
        config={"lr": 1e-3, "model": {"fcnet_hiddens": [32]}, "gamma": 0.99},
    )
    multiagent = {
        "policies": {"pol1": (None, None, None, {"lambda": 0.9}), "pol2": spec, "idle": None},
        "policy_mapping_fn": lambda agent, episode, worker, **kwargs: "pol" + agent[-1],
        "policies_to_train": ["pol1"],
    }
    translation = from_rllib({**ARENA, "multiagent": multiagent, "model": {"fcnet_hiddens": [64]}})
    assert translation.config == PPOConfig(
        env="arena",
        **LAYOUT,
        policies={"pol1": ["agent1"], "pol2": ["agent2"], "idle": []},
        policies_to_train=["pol1"],
        per_policy={"pol1": {"lambda_": 0.9}, "pol2": {"lr": 1e-3, "fcnet_hiddens": (32,)}},
        fcnet_hiddens=[64],
    )
    rows = rows_of(translation)
    assert rows["policies/idle"] == (HARMLESS, "it plays no agent")
    assert rows["policies/pol2/model/fcnet_hiddens"][0] == TAKEN


@pytest.mark.parametrize(
    "ask",
    [
        lambda agent: "a" if agent == "agent1" else "b",
        lambda agent, episode: "a" if agent == "agent1" else "b",
        lambda agent, *args, **kwargs: "a" if agent == "agent1" else "b",
        lambda agent, episode, worker=None: "a" if agent == "agent1" else "b",
    ],
)
def test_a_mapping_function_is_asked_for_each_agent(ask):
    config = from_rllib({**ARENA, "policies": {"a", "b"}, "policy_mapping_fn": ask}).config
    assert config.setup().policies == {"a": ("agent1",), "b": ("agent2",)}


def test_without_policies_all_agents_share_the_default_policy():
    config = from_rllib(ARENA).config
    assert config.setup().policies == {"default_policy": ("agent1", "agent2")}


def test_modules_of_a_specification_have_models_of_their_own():
    module = SimpleNamespace(module_class=None, model_config={"fcnet_hiddens": [8]})
    spec = SimpleNamespace(rl_module_specs={"a": module})
    config = {**ARENA, "policies": ["a"], "_rl_module_spec": spec}
    assert dict(from_rllib(config).config.per_policy)["a"] == (("fcnet_hiddens", (8,)),)


def test_mappings_that_no_file_holds_or_that_change_are_refused():
    two = {**ARENA, "policies": {"a": None, "b": None}}
    saved = {**two, "policy_mapping_fn": "<function <lambda> at 0x7f>"}
    assert 'give policies={"pol1": ["agent1"], ...} beside it (--policies FILE' in refused(saved)
    given = from_rllib(saved, policies={"a": ["agent2"], "b": ["agent1"]}).config
    assert given.setup().policies == {"a": ("agent2",), "b": ("agent1",)}
    assert "policy_mapping_fn is missing" in refused(two)
    looks = {**two, "policy_mapping_fn": lambda agent, episode, **_: episode.id_}
    assert "for agent 'agent1' and no episode: here one mapping holds" in refused(looks)
    draws = {**two, "policy_mapping_fn": lambda agent, *_: next(turns)}
    turns = iter("ab" * 20)
    assert "draws the policy of agent 'agent1'" in refused(draws)
    unknown = {**two, "policy_mapping_fn": lambda agent, *_: "c"}
    assert "unknown policy 'c' of policy_mapping_fn" in refused(unknown)
    assert "policies=3 must be policies by name" in refused({**ARENA, "policies": 3})
    overrides = {**two, "policy_mapping_fn": lambda agent, *_: "a"}
    overrides["algorithm_config_overrides_per_module"] = {"bb": {"lr": 1.0}}
    assert "unknown policy 'bb'" in refused(overrides)


def test_who_learns_is_a_list_or_a_function():
    two = {**ARENA, "policies": ["a", "b", "idle"]}
    two["policy_mapping_fn"] = lambda agent, *_: "a" if agent == "agent1" else "b"
    for chosen in (
        ["b", "idle"],
        lambda policy, batch: policy == "b",
        lambda policy: policy == "b",
    ):
        config = from_rllib({**two, "policies_to_train": chosen}).config
        assert config.policies_to_train == ("b",)
    given = from_rllib({**two, "policies_to_train": ["b"]}, policies={"b": ["agent1", "agent2"]})
    assert given.config.policies_to_train == ("b",)
    said = refused({**two, "policies_to_train": ["bb"]})
    assert said.startswith("unknown policy 'bb' of policies_to_train")
    saved = refused({**two, "policies_to_train": "<function train at 0x7f>"})
    assert "give policies_to_train=[...]" in saved
    assert "must be policies' names, or a function" in refused({**two, "policies_to_train": 3})


def test_steps_of_agents_are_another_count_for_several_agents_alone():
    by_agent = {"count_steps_by": "agent_steps"}
    assert from_rllib({**CARTPOLE, **by_agent}).config == from_rllib(CARTPOLE).config
    several = {**ARENA, **by_agent, "train_batch_size": 2000, "num_workers": 2}
    config = from_rllib(several).config
    assert (config.num_envs, config.rollout_length, config.train_batch_size) == (2, 500, 1000)
    # Fragments of 25 steps of one agent or the other are 13 of both: 77 of them are 1,001 steps.
    fragments = from_rllib({**several, "num_workers": 1, "rollout_fragment_length": 25})
    assert fragments.config.rollout_length == 1001
    steps = {"timesteps_total": 9001, "num_env_steps_sampled_lifetime": 4600}
    assert from_rllib(several, stop=steps).config.total_env_steps == 4501
    kind, text = rows_of(fragments)["count_steps_by"]
    assert (kind, text.partition(",")[0]) == (
        TAKEN,
        "2 agents act in every step of the environment",
    )


def test_steps_of_agents_are_refused_where_agents_may_wait_or_the_unit_is_unknown():
    said = refused({**TURNS, "count_steps_by": "agent_steps"})
    assert "how many agents act in each is not known: say train_batch_size in those" in said
    assert "it is env_steps or agent_steps" in refused({**ARENA, "count_steps_by": "steps"})


def test_settings_that_are_one_for_all_policies_are_not_taken_from_one():
    spec = (None, None, None, {"num_workers": 7, "train_batch_size": 10, "lr": 1e-3})
    translation = from_rllib({**ARENA, "policies": {"a": spec}})
    assert dict(translation.config.per_policy) == {"a": (("lr", 1e-3),)}
    assert rows_of(translation)["policies/a/num_workers"] == (HARMLESS, "one for all policies")


def test_a_policy_class_of_your_own_is_refused():
    class RandomPolicy: ...

    config = {**ARENA, "policies": {"a": (RandomPolicy, None, None, {})}}
    assert "policies/a/policy_class=" in refused(config)
    assert from_rllib(config, ignore=["policy_class"]).config.setup().policies == {
        "a": ("agent1", "agent2")
    }


def test_the_specification_of_one_module_is_the_model_of_all():
    spec = SimpleNamespace(module_class=None, model_config={"fcnet_hiddens": [8]})
    config = {**CARTPOLE, "_rl_module_spec": spec}
    assert from_rllib(config).config.fcnet_hiddens == (8,)
    spec.module_class = type("MyModule", (), {})
    assert "_rl_module_spec=namespace(" in refused(config)
    assert from_rllib(config, ignore=["_rl_module_spec"])


def test_the_model_of_rllib_2_9_to_2_37_wins_over_the_older_one():
    # As `PPOConfig().rl_module(model_config_dict=...)` of RLlib 2.35 keeps it beside its defaults.
    config = {
        **CARTPOLE,
        "enable_rl_module_and_learner": True,
        "model": {"fcnet_hiddens": [256, 256], "vf_share_layers": False},
        "_model_config_dict": {"fcnet_hiddens": [64], "vf_share_layers": True},
    }
    translated = from_rllib(config).config
    assert (translated.fcnet_hiddens, translated.vf_share_layers) == ((64,), True)
    of_module = SimpleNamespace(module_class=None, model_config_dict={"fcnet_hiddens": [32]})
    assert from_rllib({**config, "_rl_module_spec": of_module}).config.fcnet_hiddens == (32,)
    several = SimpleNamespace(module_specs={"default_policy": of_module})
    policies = from_rllib({**config, "_rl_module_spec": several}).config.per_policy
    assert dict(dict(policies)["default_policy"])["fcnet_hiddens"] == (32,)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        SimpleNamespace(module_class=None, observation_space=None, model_config=None),
        SimpleNamespace(module_class=None, model_config_dict={}, inference_only=False),
        "RLModuleSpec(module_class=None, inference_only=False, model_config=None)",
    ],
    ids=["none", "new", "old", "saved"],
)
def test_a_specification_that_says_nothing_asks_for_nothing(spec):
    config = {**CARTPOLE, "_model_config": {"fcnet_hiddens": [8]}}
    assert from_rllib({**config, "_rl_module_spec": spec}).config == from_rllib(config).config


@pytest.mark.parametrize(
    "spec",
    [
        SimpleNamespace(module_class=None, model_config=None, load_state_path="weights"),
        "RLModuleSpec(module_class=<class 'my.Net'>, model_config=None)",
        SimpleNamespace(module_class=None, model_config=None, catalog_class=dict),
    ],
    ids=["weights", "saved", "catalog"],
)
def test_a_specification_that_says_more_than_sizes_is_refused(spec):
    assert "_rl_module_spec=" in refused({**CARTPOLE, "_rl_module_spec": spec})


def test_unknown_private_keys_are_refused_as_public_ones_are():
    for key in ("_loss_scale", "loss_scale"):
        said = refused({**CARTPOLE, key: 2.0})
        assert f"{key}=2.0 (no setting of RLlib's PPO that is known" in said
    known = {"_fake_gpus": True, "_is_atari": None, "_use_msgpack_checkpoints": True}
    rows = rows_of(from_rllib({**CARTPOLE, **known}))
    assert {rows[key][0] for key in known} == {HARMLESS}
    with pytest.raises(UsageError, match="unknown setting '_fake_gpu'"):
        PPOConfig(env="cartpole").replace(_fake_gpu=True)


def test_iterations_longer_than_a_batch_are_refused():
    for key in ("min_sample_timesteps_per_iteration", "timesteps_per_iteration"):
        for steps in (0, None, 4000):
            assert from_rllib({**CARTPOLE, key: steps}).config == from_rllib(CARTPOLE).config
        assert f"{key}=4001 (an iteration is one batch of 4000 steps here, and of at least" in (
            refused({**CARTPOLE, key: 4001})
        )


@pytest.mark.parametrize("key", ["lr", "gamma", "num_epochs", "train_batch_size", "lambda_"])
def test_minus_one_is_a_wrong_number_of_what_rllib_reads_and_no_mark(key):
    assert refused({**CARTPOLE, key: -1}).startswith(f"{key}=-1 must be ")
    unread = {"sgd_minibatch_size": -1, "simple_optimizer": -1}  # as in RLlib's own defaults
    assert from_rllib({**CARTPOLE, **unread}).config == from_rllib(CARTPOLE).config


def test_what_rllib_would_load_or_call_is_refused_with_the_way_here():
    assert "jaxrl.Trainer.from_checkpoint(path)" in refused({**CARTPOLE, "restore": "a/b"})
    assert "a function of (algorithm, eval_workers), not 3" in (
        refused({**CARTPOLE, "custom_evaluation_function": 3})
    )
    assert "must take (trainer)" in refused({**CARTPOLE, "custom_eval_function": lambda: {}})
    assert from_rllib({**CARTPOLE, "restore": None, "custom_eval_function": None})


# Environments


def test_environments_go_by_their_names_elsewhere():
    for name, here in (
        ("CartPole-v1", "cartpole"),
        ("cartpole", "cartpole"),
        ("MountainCar-v0", "gymnax:MountainCar-v0"),
        ("MinAtar/Breakout-v1", "gymnax:Breakout-MinAtar"),
        ("waterworld_v4", "waterworld"),
        ("MultiAgentArena", "arena"),
        ("FrozenLake-v1", "gym:FrozenLake-v1"),
    ):
        assert from_rllib({"env": name}).config.env == here
    short = from_rllib({"env": "CartPole-v0"}).config
    assert short.env_args == (("max_steps_in_episode", 200),)
    assert "unknown Gymnasium environment 'Nope-v3'" in refused({"env": "Nope-v3"})
    said = refused({"env": "my_game"})
    assert "env='my_game' has no counterpart here: env=NAME gives a compiled one" in said
    assert "names no environment" in refused({"lr": 1e-3})
    assert from_rllib({"env": "my_env"}, env="arena").config.env == "arena"


def test_a_class_is_itself_whatever_it_is_called():
    sizes = {"sizes": [1, {"deep": [2]}]}
    config = from_rllib({"env": MultiAgentArena, "env_config": sizes}).config
    assert config.env == f"{__name__}:MultiAgentArena"
    assert config.to_dict()["env_args"] == sizes
    not_importable = type("Pendulum", (MultiAgentArena,), {})
    assert from_rllib({"env": not_importable}).config.env is not_importable
    said = refused({"env": type("MultiAgentArena", (), {})})
    assert "MultiAgentArena'> is no environment that can be read: env=NAME gives one" in said


def test_arguments_and_the_time_limit_of_an_environment():
    config = {**ARENA, "env_config": {"width": 6}, "horizon": 40}
    assert dict(from_rllib(config).config.env_args) == {"width": 6, "max_steps_in_episode": 40}
    pool = {"env": "waterworld_v4", "horizon": 60}
    assert dict(from_rllib(pool).config.env_args) == {"max_cycles": 60}
    unknown = {**ARENA, "env_config": {"width": 6, "colour": "red"}}
    assert "env_config/colour='red' (unknown argument 'colour'" in refused(unknown)
    config = from_rllib(unknown, ignore=["colour"], env_args={"height": 5}).config
    assert dict(config.env_args) == {"width": 6, "height": 5}


def test_arguments_within_config_are_those_of_the_arena_by_the_tutorials_names():
    here = {"width": 8, "height": 7, "max_steps_in_episode": 100}
    tutorials = {"width": 8, "height": 7, "ts": 100}
    for arguments in (tutorials, {"config": tutorials}, {"config": here}):
        found = from_rllib({**ARENA, "env_config": arguments})
        assert dict(found.config.env_args) == here
        evaluated = {"evaluation_interval": 1, "evaluation_config": {"env_config": arguments}}
        found = from_rllib({**ARENA, **evaluated})
        assert dict(found.run_settings["evaluation_env_args"]) == here
    assert from_rllib({**ARENA, "env_config": {"config": {}}}).config.env_args == ()
    grid = from_rllib({**ARENA, "env_config": {"ts": {"grid_search": [50, 100]}}})
    assert grid.space == {"env_args.max_steps_in_episode": jaxrl.grid_search([50, 100])}


def test_arguments_within_config_are_refused_by_their_path():
    deep = {**ARENA, "env_config": {"config": {"width": 6, "colour": "red"}}}
    assert "env_config/config/colour='red' (unknown argument 'colour'" in refused(deep)
    assert dict(from_rllib(deep, ignore=["colour"]).config.env_args) == {"width": 6}
    for arguments in ({"config": 3}, {"config": {"width": 6}, "height": 5}):
        said = refused({**ARENA, "env_config": arguments})
        assert "(unknown argument 'config' of environment 'arena'" in said
    assert "ts=5 (unknown argument 'ts'" in refused({**CARTPOLE, "env_config": {"ts": 5}})


# Networks


def test_convolutions_are_used_for_images_alone_and_layers_above_them():
    filters = [[16, [3, 3], 1], [32, [3, 3], 2]]
    model = {"conv_filters": filters, "fcnet_hiddens": [256], "post_fcnet_hiddens": [64]}
    config = from_rllib({"env": "pursuit_v4", "model": model}).config
    assert config.conv_filters == ((16, 3, 1), (32, 3, 2))
    assert (config.fcnet_hiddens, config.fcnet_activation) == ((64,), "relu")
    config = from_rllib({**CARTPOLE, "model": model}).config
    assert (config.conv_filters, config.fcnet_hiddens) == (None, (256, 64))
    default = from_rllib({"env": "MinAtar/Breakout-v1"}).config
    assert (default.conv_filters, default.fcnet_hiddens) == (((16, 5, 2), (32, 5, 2)), ())


class Pictures(gymnasium.Env):
    """Noise of a shape."""

    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, shape):
        self.observation_space = gymnasium.spaces.Box(0, 255, tuple(shape), np.uint8)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize("shape", [(84, 84, 3), (4, 84, 84)])
def test_images_of_atari_have_rllibs_convolutions_where_none_are_given(shape):
    """Its last one, 256 of 11 x 11 over the 11 x 11 that are left, is a layer of 256."""
    images = from_rllib({"env": Pictures, "env_config": {"shape": list(shape)}})
    assert images.config.conv_filters == ((16, 8, 4), (32, 4, 2))
    assert (images.config.fcnet_hiddens, images.config.fcnet_activation) == ((256,), "relu")
    assert "84 x 84" in " ".join(str(images).split())
    others = from_rllib({"env": Pictures, "env_config": {"shape": [50, 50, 3]}}).config
    assert others.conv_filters is None


def test_layers_of_the_heads_are_those_of_the_new_stack():
    model = {"head_fcnet_hiddens": [32], "head_fcnet_activation": "tanh"}
    new = {**CARTPOLE, "enable_rl_module_and_learner": True}
    for more in ({}, {"vf_share_layers": True}, {"use_lstm": True}, {"fcnet_hiddens": [64]}):
        config = from_rllib({**new, "model_config": {**model, **more}}).config
        assert config.fcnet_hiddens == tuple(more.get("fcnet_hiddens", (256, 256)))
        assert (config.head_fcnet_hiddens, config.fcnet_activation) == ((32,), "tanh")
    image = {**new, "env": "pursuit_v4"}
    model["conv_filters"] = [[16, [3, 3], 1]]
    config = from_rllib({**image, "model_config": {**model, "vf_share_layers": True}}).config
    assert (config.fcnet_hiddens, config.head_fcnet_hiddens) == ((), (32,))
    other = {**new, "model_config": {"head_fcnet_hiddens": [32]}}
    assert "model/head_fcnet_activation='relu' (all layers have the same" in refused(other)


def test_layers_of_the_heads_are_taken_beside_old_names_and_by_the_older_one():
    sizes = {"fcnet_hiddens": [8], "fcnet_activation": "relu"}
    head, post = {"head_fcnet_hiddens": [4]}, {"post_fcnet_hiddens": [2]}
    layers = {
        ("num_workers", "head"): ((8,), (4,)),
        ("num_workers", "both"): ((8, 2), (4,)),
        ("num_env_runners", "post"): ((8,), (2,)),  # of RLModules up to RLlib 2.37
        ("num_env_runners", "both"): ((8,), (4,)),
    }
    models = {"head": head, "post": post, "both": {**head, **post}}
    for (workers, model), expected in layers.items():
        config = {**CARTPOLE, workers: 1, "model_config": {**sizes, **models[model]}}
        config = from_rllib(config).config
        assert (config.fcnet_hiddens, config.head_fcnet_hiddens) == expected
    old = {**CARTPOLE, "num_workers": 1, "model": head}
    assert "model/head_fcnet_activation='relu' (all layers have the same" in refused(old)


def test_a_memory_of_the_old_stack_is_shared_and_one_of_the_new_as_it_says():
    old = {**CARTPOLE, "model": {"use_lstm": True, "lstm_use_prev_action_reward": True}}
    config = from_rllib(old).config
    assert config.use_lstm and config.vf_share_layers
    assert config.lstm_use_prev_action and config.lstm_use_prev_reward
    new = {**CARTPOLE, "_model_config": {"use_lstm": True}}
    assert not from_rllib(new).config.vf_share_layers
    new["_model_config"] |= {"lstm_use_prev_action_reward": False, "lstm_use_prev_action": True}
    assert from_rllib(new).config.lstm_use_prev_action


def test_old_versions_share_layers_by_a_setting_beside_the_model():
    model = {"vf_share_layers": True}
    assert not from_rllib(
        {**CARTPOLE, "vf_share_layers": False, "model": model}
    ).config.vf_share_layers
    assert from_rllib({**CARTPOLE, "vf_share_layers": -1, "model": model}).config.vf_share_layers


def test_layers_begin_by_the_initializer_and_arguments_that_rllib_names():
    new = {**CARTPOLE, "enable_rl_module_and_learner": True}
    model = {
        "fcnet_kernel_initializer": "Xavier_Uniform_",
        "fcnet_kernel_initializer_kwargs": {"gain": 2.0},
        "fcnet_bias_initializer": "zeros_",
    }
    named = from_rllib({**new, "_model_config": model}).config
    assert (
        named == from_rllib(new, **model | {"fcnet_kernel_initializer": "xavier_uniform_"}).config
    )
    older = {"fcnet_weights_initializer": "orthogonal_", "fcnet_weights_initializer_config": None}
    config = from_rllib({**new, "_model_config": older}).config
    assert config.fcnet_kernel_initializer == "orthogonal_"
    assert "did you mean 'xavier_normal_'" in refused(
        {**new, "_model_config": {"fcnet_kernel_initializer": "xavier_norml_"}}
    )


def test_initializers_that_rllibs_networks_do_not_read_are_harmless():
    new = {**CARTPOLE, "enable_rl_module_and_learner": True}
    unread = {
        "head_fcnet_kernel_initializer": "orthogonal_",
        "head_fcnet_kernel_initializer_kwargs": {"gain": 0.01},
        "fcnet_kernel_initializer_kwargs": {"gain": 0.5},  # of none
    }
    assert from_rllib({**new, "_model_config": unread}).config == from_rllib(new).config
    older = {"fcnet_weights_initializer": "orthogonal_", "fcnet_bias_initializer": "ones_"}
    plain = from_rllib({**CARTPOLE, "model": {}})
    assert from_rllib({**CARTPOLE, "model": older}).config == plain.config


def test_the_epsilon_of_adam_is_what_its_options_may_hold():
    epsilon = {"adam_epsilon": 1e-5}
    assert from_rllib({**CARTPOLE, "optimizer": epsilon}).config.adam_epsilon == 1e-5
    assert from_rllib({**CARTPOLE, "optimizer": {}}).config == from_rllib(CARTPOLE).config
    assert "optimizer=... takes a function" in refused(
        {**CARTPOLE, "optimizer": {**epsilon, "momentum": 0.9}}
    )


def test_actions_are_sampled_at_the_temperature_of_softq():
    softq = {"type": "SoftQ", "temperature": 0.5}
    config = from_rllib({**CARTPOLE, "exploration_config": softq}).config
    assert config == from_rllib(CARTPOLE, exploration_config=softq).config
    assert config.exploration_config.temperature == 0.5
    plain = from_rllib({**CARTPOLE, "exploration_config": {"type": "SoftQ", "temperature": 1.0}})
    assert plain.config == from_rllib(CARTPOLE).config


def test_rewards_are_clipped_as_rllib_says():
    for setting, clip in ((True, "sign"), (0.5, 0.5), (False, None), (None, None)):
        assert from_rllib({**CARTPOLE, "clip_rewards": setting}).config.clip_rewards == clip
    of_agent1 = {"agent1": {"clip_rewards": 0.5}}
    settings = {"clip_rewards": True, "algorithm_config_overrides_per_module": of_agent1}
    config = from_rllib({**ARENA, **settings}, policies="per-agent").config
    assert config.for_policy("agent1").clip_rewards == 0.5
    assert config.for_policy("agent2").clip_rewards == "sign"


def test_attention_is_trained_over_the_memory_that_it_acts_with_whatever_rllib_is_told():
    model = {"use_attention": True, "attention_memory_inference": 9, "attention_memory_training": 5}
    translation = from_rllib({**CARTPOLE, "model": model})
    assert translation.config.attention_memory_inference == 9
    kind, why = rows_of(translation)["model/attention_memory_training"]
    assert (kind, why.partition(" as ")[0]) == (
        HARMLESS,
        "training looks attention_memory_inference steps back,",
    )


# Keys read together


def test_without_generalised_advantages_lambda_is_one():
    assert from_rllib({**CARTPOLE, "use_gae": False, "lambda": 0.9}).config.lambda_ == 1.0
    assert from_rllib({**CARTPOLE, "use_gae": True, "lambda": 0.9}).config.lambda_ == 0.9


def test_without_a_critic_nothing_is_read_of_its_advantages():
    for beside in ({}, {"use_gae": False}, {"lambda": 0.9}):
        config = from_rllib({**CARTPOLE, "use_critic": False, **beside}).config
        assert (config.use_critic, config.lambda_) == (False, 1.0)
    found = from_rllib({**CARTPOLE, "use_critic": True, "lambda": 0.9})
    assert (found.config.use_critic, found.config.lambda_) == (True, 0.9)
    assert rows_of(found)["use_critic"][1] == "use_critic=True"
    assert "use_critic=0 must be True or False" in refused({**CARTPOLE, "use_critic": 0})


def test_gradients_are_clipped_by_what_rllib_says():
    for by in ("global_norm", "norm", "value"):
        config = from_rllib({**CARTPOLE, "grad_clip": 0.5, "grad_clip_by": by}).config
        assert (config.grad_clip, config.grad_clip_by) == (0.5, by)
    beside = from_rllib({**CARTPOLE, "grad_clip_by": "value"}, grad_clip=0.5).config
    assert (beside.grad_clip, beside.grad_clip_by) == (0.5, "value")
    said = refused({**CARTPOLE, "grad_clip": 0.5, "grad_clip_by": "values"})
    assert "unknown grad_clip_by 'values'; did you mean 'value'" in said


def test_actions_that_are_not_stretched_are_clipped_only_if_that_is_said():
    ways = {
        (): (True, True),
        (("clip_actions", False),): (True, True),  # RLlib's default, which then says nothing
        (("normalize_actions", False),): (False, False),
        (("normalize_actions", False), ("clip_actions", True)): (False, True),
    }
    for settings, expected in ways.items():
        config = from_rllib({"env": "Pendulum-v1", **dict(settings)}).config
        assert (config.normalize_actions, config.clip_actions) == expected


def test_evaluation_samples_its_actions_unless_it_says_otherwise():
    config = {**CARTPOLE, "evaluation_interval": 2, "evaluation_num_episodes": 5}
    assert from_rllib(config).run_settings == {
        "evaluation_interval": 2,
        "evaluation_duration": 5,
        "evaluation_explore": True,
    }
    inner = {"explore": False, "env_config": {"max_steps_in_episode": 9}, "num_workers": 1}
    settings = from_rllib({**config, "evaluation_config": inner}).run_settings
    assert settings["evaluation_explore"] is False
    assert settings["evaluation_env_args"] == {"max_steps_in_episode": 9}
    auto = from_rllib({**config, "evaluation_num_episodes": "auto"})
    assert "evaluation_duration" not in auto.run_settings
    assert from_rllib({**CARTPOLE, "evaluation_interval": 0}).run_settings == {}


def test_an_evaluation_of_so_many_steps_is_taken_over():
    config = {**CARTPOLE, "evaluation_duration_unit": "timesteps", "evaluation_duration": 400}
    assert from_rllib(config).run_settings == {}  # there is no evaluation
    settings = from_rllib({**config, "evaluation_interval": 2}).run_settings
    assert settings["evaluation_duration"] == 400
    assert settings["evaluation_duration_unit"] == "timesteps"
    given = from_rllib({**config, "evaluation_interval": 2}, evaluation_duration=20)
    assert given.run_settings == {**settings, "evaluation_duration": 20}


def test_criteria_of_tune_are_steps_or_results():
    arguments = {"run_or_experiment": "PPO", "config": CARTPOLE}
    stop = {"sampler_results/episode_reward_mean": -300, "training_iteration": 10}
    translation = from_rllib({**arguments, "stop": {**stop, "timesteps_total": 1e6}})
    assert translation.config.total_env_steps == 40_000
    assert translation.run_settings == {"stop": {"env_runners/episode_return_mean": -300}}
    translation = from_rllib(CARTPOLE, stop={"timesteps_total": 9000, "time_total_s": 60})
    assert translation.config.total_env_steps == 9000
    assert translation.run_settings == {"stop": {"time_total_s": 60}}
    old = from_rllib(CARTPOLE, stop={"episode_len_mean": 20, "info/num_steps_trained": 100})
    assert old.run_settings == {
        "stop": {"env_runners/episode_len_mean": 20, "num_env_steps_trained_lifetime": 100}
    }
    assert "total_env_steps=1000000; RLlib trains until it is stopped" in {
        row.text for row in from_rllib(CARTPOLE).rows
    }
    agents = {"stop": {"agent_timesteps_total": 1001}}
    assert from_rllib({**ARENA, **agents}).config.total_env_steps == 501  # of two agents
    said = refused({**TURNS, **agents})
    assert "stop/agent_timesteps_total=1001 (steps of the environment" in said
    assert "must be a number" in refused(CARTPOLE, stop={"episode_reward_mean": "150"})
    assert "stop=<function" in refused({**arguments, "stop": lambda trial, result: True})


def test_the_arguments_of_a_tuner():
    @dataclasses.dataclass
    class RunConfig:  # as Ray's
        name: str | None = None
        stop: dict | None = None
        checkpoint_config: object = None

    run = RunConfig(stop={"episodes_total": 60}, checkpoint_config={"checkpoint_frequency": 10})
    translation = from_rllib({"param_space": {**CARTPOLE, "num_workers": 1}, "run_config": run})
    assert translation.config == from_rllib({**CARTPOLE, "num_workers": 1}).config
    assert translation.run_settings == {
        "stop": {"env_runners/num_episodes_lifetime": 60},
        "checkpoint_frequency": 10,
    }


def test_checkpoints_of_tune():
    arguments = {
        **{"config": CARTPOLE, "checkpoint_freq": 5, "keep_checkpoints_num": 2},
        **{"checkpoint_score_attr": "episode_reward_mean", "num_samples": 4},
    }
    assert from_rllib(arguments).run_settings == {
        "checkpoint_frequency": 5,
        "keep": 2,
        "checkpoint_score_attribute": "env_runners/episode_return_mean",
    }
    nothing = {"config": CARTPOLE, "checkpoint_config": {"checkpoint_frequency": 0}}
    assert from_rllib(nothing).run_settings == {}


def test_folders_of_tune_are_answered_with_ours_of_a_run_and_of_a_sweep():
    folders = {"storage_path": "results", "name": "first", "local_dir": "results"}
    for lr in (1e-3, {"grid_search": [1e-3, 1e-4]}):
        rows = rows_of(from_rllib({"config": {**CARTPOLE, "lr": lr}, **folders}))
        why = "run_dir=FOLDER names the folder of a run, or of a whole sweep"
        assert {rows[key] for key in folders} == {(HARMLESS, why)}


@pytest.mark.parametrize(
    ("asking", "nothing", "message"),
    [
        ({"time_budget_s": 60}, None, "time_budget_s=60 (stop={'time_total_s': SECONDS} ends each"),
        ({"stopper": len}, None, "criteria are {result: least value}: stop={...}"),
        ({"search_alg": "bayesopt"}, None, "draws at random, or has OptunaSearch as search='tpe'"),
        ({"resume": "AUTO"}, False, "jaxrl sweep --resume FOLDER continues a sweep"),
        ({"checkpoint_score_order": "min"}, "max", "the highest score is best: by the return"),
    ],
)
def test_what_of_tune_changes_results_is_refused_where_it_asks_for_anything(
    asking, nothing, message
):
    assert message in refused({"config": CARTPOLE, **asking})
    (key,) = asking
    assert rows_of(from_rllib({"config": CARTPOLE, key: nothing}))[key][0] == HARMLESS


def test_played_episodes_are_written_where_rllib_would():
    assert from_rllib({**CARTPOLE, "output": "data"}).run_settings == {"output": "data"}
    assert from_rllib({**CARTPOLE, "output": None}).run_settings == {}
    assert "output='logdir' (output=FOLDER writes the played" in refused(
        {**CARTPOLE, "output": "logdir"}
    )


# Every key


def is_read(key):
    """Whether a rule reads it, or it is copied, or it holds other keys."""
    found = RLLIB[key]
    return (
        found.here in form.copied()
        or any(is_part(path, *rule.keys) for rule in RULES for path in (key, f"model/{key}"))
        or key in ("env_config", "horizon", "max_episode_steps", "multiagent", "multi_agent")
        or key in ("run", "algo", *KEYS)
        or key in ("policy_mapping_fn", "evaluation_config", "_rl_module_spec", "rl_module_spec")
        or key.startswith(("model_config", "_model_config", "algorithm_config_ov", "_per_module"))
    )


LEFT = [key for key in RLLIB if not is_read(key)]


def test_every_key_of_the_table_that_is_not_read_is_harmless_or_refused():
    asking = {key: object() for key in LEFT}
    said = refused({**CARTPOLE, **asking})
    changing = [key for key in LEFT if RLLIB[key].harmless is not None]
    for key in changing:
        assert f"{key}=<object" in said, key
    rows = rows_of(from_rllib({**CARTPOLE, **asking}, ignore=changing))
    for key in LEFT:
        kind, why = rows[key]
        assert (kind, bool(why)) == (CHANGES if key in changing else HARMLESS, True), key


def test_no_key_is_refused_at_a_value_that_asks_for_nothing():
    changing = [key for key in LEFT if RLLIB[key].harmless is not None]
    usual = {key: RLLIB[key].harmless[-1] for key in changing}
    assert from_rllib({**CARTPOLE, **usual}).config == from_rllib(CARTPOLE).config
    nothing = {"callbacks": "<class 'ray.rllib.algorithms.callbacks.DefaultCallbacks'>"}
    nothing |= {"input": "sampler", "optimizer": {}, "explore": True, "worker_cls": -1}
    assert from_rllib({**CARTPOLE, **nothing}).config == from_rllib(CARTPOLE).config


def test_refused_keys_say_why_and_are_left_out_by_name():
    config = {**CARTPOLE, "batch_mode": "complete_episodes", "model": {"custom_model": "mine"}}
    config |= {"num_workers": 10}
    said = refused(config)
    assert "batch_mode='complete_episodes' (rollouts of 400 steps cut episodes of up to 500" in said
    assert "model/custom_model='mine' (a model of your own is a Flax module" in said
    assert said.endswith("or --ignore model/custom_model batch_mode")
    assert "batch_mode" not in refused(config, ignore="batch_mode")
    translation = from_rllib(config, ignore=["batch_mode", "custom_model"])
    assert translation.config == PPOConfig(env="cartpole", num_envs=10, rollout_length=400)
    assert "unknown key to ignore 'batch_mod'; did you mean 'batch_mode'?" in refused(
        config, ignore=["batch_mod"]
    )


def test_native_model_files_are_policies_exported_with_each_checkpoint():
    class Count(jaxrl.Callbacks): ...

    config = jaxrl.rllib.PPOConfig().environment("CartPole-v1").callbacks(Count)
    keys = {"export_native_model_files": True, "checkpoint_trainable_policies_only": True}
    found = from_rllib(config.copy().checkpointing(**keys)).config.callbacks
    assert found == (Count, "jaxrl.export.checkpoint_files:ExportCheckpoints")
    assert isinstance(resolve_callbacks(found)[1], ExportCheckpoints)
    without_files = config.checkpointing(export_native_model_files=False)
    assert from_rllib(without_files).config.callbacks == (Count,)


def test_a_setting_beside_the_configuration_wins_and_answers_a_refused_key():
    class Count(jaxrl.Callbacks): ...

    class OfRLlib: ...

    config = {**CARTPOLE, "lr": 1e-3, "callbacks": OfRLlib}
    assert "callbacks=" in refused(config)
    translation = from_rllib(config, callbacks=Count, lr=1e-2, num_envs=8, keep=1)
    assert translation.config.lr == 1e-2
    assert translation.config.callbacks == (Count,)
    assert (translation.config.num_envs, translation.config.train_batch_size) == (8, 4000)
    assert translation.run_settings == {"keep": 1}
    assert rows_of(translation)["callbacks"][1].endswith("given beside it, and wins")
    assert "unknown setting 'learning_rate'" in refused(config, learning_rate=1.0)
    assert "env_task_fn must take (result, task), not (obj, /)" in refused(
        {**CARTPOLE, "env_task_fn": len}
    )


def test_unknown_keys_are_refused_with_the_nearest_one():
    said = refused({**CARTPOLE, "num_sgd_iters": 3})
    assert "num_sgd_iters=3 (no setting of RLlib's PPO that is known; did you mean" in said
    assert "'num_sgd_iter'" in said
    assert from_rllib({**CARTPOLE, "num_sgd_iters": 3}, ignore=["num_sgd_iters"])


# Tune's experiments


def tunes(name, folder="search", **attributes):
    """An object as Tune has it: it is told by its module and by the name of its class."""
    cls = type(name, (), {"__module__": f"ray.tune.{folder}.module"})
    made = cls()
    vars(made).update(attributes)
    return made


def drawn(domain, sampler, lower, upper):
    return tunes(domain, lower=lower, upper=upper, get_sampler=lambda: type(sampler, (), {})())


def quantised(domain, sampler, lower, upper, q):
    """As `tune.quniform` makes it."""
    quantised = tunes("Quantized", sampler=type(sampler, (), {})(), q=q)
    return tunes(domain, lower=lower, upper=upper, get_sampler=lambda: quantised)


def test_a_grid_becomes_the_space_of_a_sweep_and_the_configuration_takes_its_first_values():
    translation = from_rllib(
        {
            **CARTPOLE,
            "lr": {"grid_search": [1e-3, 1e-4]},
            "num_sgd_iter": {"grid_search": [1, 2]},
            "model": {"fcnet_hiddens": {"grid_search": [[64, 64], [32]]}},
            "train_batch_size": {"grid_search": [400, 800]},
            "env_config": {"max_steps_in_episode": {"grid_search": [10, 20]}},
            "framework": {"grid_search": ["tf", "torch"]},
        }
    )
    assert translation.space == {
        "lr": jaxrl.grid_search([1e-3, 1e-4]),
        "num_epochs": jaxrl.grid_search([1, 2]),
        "fcnet_hiddens": jaxrl.grid_search([(64, 64), (32,)]),
        "num_envs": jaxrl.grid_search([2]),
        "rollout_length": jaxrl.grid_search([200, 400]),
        "env_args.max_steps_in_episode": jaxrl.grid_search([10, 20]),
    }
    config = translation.config
    assert (config.lr, config.num_epochs, config.fcnet_hiddens) == (1e-3, 1, (64, 64))
    assert (config.train_batch_size, dict(config.env_args)) == (400, {"max_steps_in_episode": 10})
    assert "the first of several, which jaxrl.sweep" in " ".join(str(translation).split())


def test_draws_of_tune_are_draws_here():
    translation = from_rllib(
        {
            **CARTPOLE,
            "num_samples": 3,
            "lr": drawn("Float", "_LogUniform", 1e-5, 1e-2),
            "gamma": drawn("Float", "_Uniform", 0.9, 0.99),
            "num_epochs": drawn("Integer", "_Uniform", 1, 5),
            "minibatch_size": drawn("Integer", "_LogUniform", 32, 256),
            "entropy_coeff": quantised("Float", "_Uniform", 0.0, 0.1, 0.02),
            "clip_param": tunes("Categorical", categories=[0.1, 0.2]),
        }
    )
    found = {name: (kind.kind, kind.arguments) for name, kind in translation.space.items()}
    assert found == {
        "lr": ("loguniform", (1e-5, 1e-2)),
        "gamma": ("uniform", (0.9, 0.99)),
        "num_epochs": ("randint", (1, 5)),
        "minibatch_size": ("lograndint", (32, 256)),
        "entropy_coeff": ("quniform", (0.0, 0.1, 0.02)),
        "clip_param": ("choice", ((0.1, 0.2),)),
    }
    assert translation.sweep_settings == {"num_samples": 3}
    said = refused({**CARTPOLE, "num_epochs": quantised("Integer", "_Uniform", 2, 8, 2)})
    assert "lograndint are known" in said
    said = refused({**CARTPOLE, "lr": drawn("Float", "_Normal", 0, 1)})
    assert (
        "grid_search, choice, uniform, quniform, loguniform, randint and lograndint are known"
        in said
    )
    workers = {"rollout_fragment_length": 1000, "num_workers": {"grid_search": [1, 3]}}
    said = refused({**CARTPOLE, **workers})
    assert "num_workers: its values differ here in num_envs, rollout_length" in said


@pytest.mark.parametrize(
    ("path", "values", "beside", "names"),
    [
        ("train_batch_size", [400, 800], {}, {"num_envs", "rollout_length"}),
        ("train_batch_size", [400, 800], {"rollout_length": 50}, {"train_batch_size"}),
        ("num_workers", [1, 2], {}, {"num_envs"}),
        ("grad_clip", [None, 0.5], {}, {"grad_clip"}),
        ("grad_clip", [0.5, None], {}, {"grad_clip"}),
        ("grad_clip_by", ["norm", "value"], {"grad_clip": 0.5}, {"grad_clip_by"}),
        ("use_gae", [True, False], {}, {"lambda_"}),
        ("framework", ["tf", "torch"], {}, set()),
        ("lr", [1e-3, 1e-4], {"lr": 5e-4}, set()),
    ],
)
def test_a_sweep_trains_as_the_translation_of_each_value_alone(path, values, beside, names):
    settings = {**CARTPOLE, "lambda": 0.9, path: {"grid_search": values}}
    found = from_rllib(settings, **beside)
    assert set(found.space) == names
    tried = settings_of(found.space)
    alone = [from_rllib({**settings, path: value}, **beside).config for value in values]
    assert [found.config.replace(**chosen) for chosen in tried] == (alone if names else alone[:1])


@pytest.mark.parametrize(
    ("settings", "limits", "iterations"),
    [
        ({"train_batch_size": {"grid_search": [1000, 2000, 4000]}}, {}, [3, 3, 3]),
        ({"train_batch_size": {"grid_search": [4000, 1000]}}, {}, [3, 3]),
        ({"num_workers": 3, "train_batch_size": {"grid_search": [300, 900]}}, {}, [3, 3]),
        ({"rollout_fragment_length": {"grid_search": [300, 500]}}, {}, [3, 3]),
        # 4,500 steps are 5 batches of 1,000, 3 of 2,000 and 2 of 4,000.
        (
            {"train_batch_size": {"grid_search": [1000, 2000, 4000]}},
            {"timesteps_total": 4500},
            [3, 3, 2],
        ),
    ],
)
def test_trials_of_other_batches_train_for_the_same_iterations(settings, limits, iterations):
    config = {**CARTPOLE, "num_workers": 1, "train_batch_size": 1000, **settings}
    found = from_rllib(config, stop={"training_iteration": 3, **limits})
    assert found.sweep_settings == {"stop": {"training_iteration": 3}}
    trials = [found.config.replace(**chosen) for chosen in settings_of(found.space)]
    assert [min(trial.num_updates, 3) for trial in trials] == iterations
    assert "each trial by its own batch" in " ".join(str(found).split())


def test_iterations_are_steps_where_all_trials_have_one_batch():
    config = {**CARTPOLE, "train_batch_size": 1000, "lr": {"grid_search": [1e-3, 1e-4]}}
    found = from_rllib(config, stop={"training_iteration": 3})
    assert (found.config.total_env_steps, found.sweep_settings) == (3000, {})
    several = {**config, "train_batch_size": {"grid_search": [1000, 2000]}}
    beside = from_rllib(several, stop={"training_iteration": 3}, total_env_steps=8000)
    assert (beside.config.total_env_steps, beside.sweep_settings) == (8000, {})


def test_policies_of_one_map_keep_their_settings_in_a_sweep_or_it_is_refused():
    policies = {name: (None, None, None, {"lr": 1e-3}) for name in ("a", "b")}
    config = {**ARENA, "policies": policies, "policy_mapping_fn": lambda agent, *_: "a"}
    said = refused({**config, "lr": {"grid_search": [1e-3, 1e-4]}})
    assert "lr: its values differ here in per_policy, lr" in said


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": {"grid_search": ["CartPole-v1", "Pendulum-v1"]}}, "env: a sweep has one env"),
        ({"env_config": {"grid_search": [{}, {"a": 1}]}}, "env_config: a sweep has one env"),
        ({"horizon": {"grid_search": [10, 20]}}, "horizon: a sweep has one environment"),
        (
            {"policies": {"a": (None, None, None, {"lr": {"grid_search": [1, 2]}})}},
            "policies: a sweep has one environment and one set of policies",
        ),
        ({"evaluation_interval": {"grid_search": [5, 10]}}, "in evaluation_interval, which all"),
        ({"evaluation_config": {"grid_search": [{}]}}, "evaluation_config: a search is read where"),
        (
            {"evaluation_interval": 1, "evaluation_config": {"env": "Pendulum-v1"}},
            "an evaluation plays the training's environment",
        ),
        ({"model": {"grid_search": [{}]}}, "model: a search is read where it stands"),
        (
            {
                "exploration_config": {
                    "grid_search": [{"type": "StochasticSampling"}, {"type": "X"}]
                }
            },
            "exploration_config has the types",
        ),
        (
            {"grad_clip": 0.5, "grad_clip_by": {"grid_search": ["global_norm", "values"]}},
            "unknown grad_clip_by 'values'",
        ),
        (
            {"env_config": {"game": {"size": {"grid_search": [1, 2]}}}},
            "env_config/game: a search is read where it stands",
        ),
        (
            {
                "stop": {"training_iteration": {"grid_search": [2, 3]}},
                "train_batch_size": {"grid_search": [400, 800]},
            },
            "differ here in total_env_steps, rollout_length, train_batch_size",
        ),
        (
            {"use_gae": {"grid_search": [True, False]}, "lambda": {"grid_search": [0.9, 0.8]}},
            "another search changes lambda_, too",
        ),
        (
            {
                "train_batch_size": {"grid_search": [400, 800]},
                "num_workers": {"grid_search": [1, 2]},
            },
            "train_batch_size, num_workers: their values change each other's settings",
        ),
        ({"minibatch_size": drawn("Integer", "_Uniform", 8, 64), "num_learners": 2}, "are others"),
        ({"seed": drawn("Integer", "_Uniform", 1, 9)}, "seed: a sweep draws no seeds"),
    ],
)
def test_a_search_that_a_sweep_cannot_try_is_refused(settings, message):
    said = refused({**CARTPOLE, **settings})
    assert message in said


def test_what_changes_the_result_is_refused_of_every_value_that_is_tried():
    counting = {"count_steps_by": {"grid_search": ["env_steps", "agent_steps"]}}
    assert from_rllib({**CARTPOLE, **counting}).space == {}
    assert "count_steps_by='agent_steps'" in refused({**TURNS, **counting})
    found = from_rllib({**ARENA, **counting, "num_workers": 1})
    assert found.space == {"train_batch_size": jaxrl.grid_search([4000, 2000])}
    unknown = {**CARTPOLE, "not_a_setting": {"grid_search": [1, 2]}}
    assert "which jaxrl.sweep tries" not in refused(unknown)


def test_what_tune_draws_by_a_function_is_refused_once_in_the_environment_too():
    settings = {"max_steps_in_episode": drawn("Function", "_CallSampler", 1, 10)}
    said = refused({**CARTPOLE, "env_config": settings})
    assert (
        said.count(
            "grid_search, choice, uniform, quniform, loguniform, randint and lograndint are known"
        )
        == 1
    )
    assert said.count("env_config/max_steps_in_episode=") == 1


def test_a_grid_of_seeds_is_the_seeds_of_a_sweep():
    config = {**CARTPOLE, "seed": {"grid_search": [1, 2]}}
    translation = from_rllib({**config, "num_samples": 2})
    assert (translation.space, translation.sweep_settings) == ({}, {"seeds": [1, 2]})
    assert translation.config.seed == 1
    assert from_rllib(config, seed=3).sweep_settings == {}


def test_an_environment_beside_the_configuration_may_have_rllibs_name():
    for config in ({}, {"env": "Pendulum-v1"}, {"env": {"grid_search": ["A-v1", "B-v1"]}}):
        translation = from_rllib(config, env="CartPole-v0")
        args = {"max_steps_in_episode": 200}
        assert (translation.config.env, dict(translation.config.env_args)) == ("cartpole", args)
        assert rows_of(translation)["env"] == (TAKEN, f"env='cartpole', env_args={args}")
    shorter = from_rllib({}, env="CartPole-v0", env_args={"max_steps_in_episode": 9}).config
    assert dict(shorter.env_args) == {"max_steps_in_episode": 9}
    for env in ("arena", "gym:CartPole-v1", "gymnax:CartPole-v1"):
        assert from_rllib({}, env=env).config.env == from_rllib({"env": env}).config.env == env
    with pytest.raises(UsageError, match="unknown environment 'aren'; did you mean 'arena'"):
        from_rllib({}, env="aren")


def test_an_argument_or_environment_given_beside_wins_over_a_search():
    size = {"max_steps_in_episode": {"grid_search": [10, 20]}}
    config = {**CARTPOLE, "env_config": size}
    found = from_rllib(config, env_args={"max_steps_in_episode": 30})
    assert (found.space, dict(found.config.env_args)) == ({}, {"max_steps_in_episode": 30})
    several = {"env": {"grid_search": ["Unknown-v1", "Unknown-v2"]}}
    assert from_rllib(several, env="cartpole").space == {}


@pytest.mark.parametrize(
    "tuner",
    [
        {"trainable": "PPO", "param_space": None},
        {"run_or_experiment": "PPO", "config": None},
        {"run": "PPO", "config": None},
    ],
    ids=["Tuner", "tune.run", "file"],
)
@pytest.mark.parametrize("is_object", [False, True])
def test_experiments_hold_a_configuration_as_a_mapping_or_an_object(tuner, is_object):
    settings = {**CARTPOLE, "lr": 1e-3, "enable_rl_module_and_learner": False}
    held = SimpleNamespace(to_dict=lambda: settings) if is_object else settings
    tuner = {key: value or held for key, value in tuner.items()}
    run = {"stop": {"training_iteration": 3, "episode_reward_mean": 20}}
    translation = from_rllib({**tuner, "run_config": run, "tune_config": {"num_samples": 4}})
    assert translation.config.replace(total_env_steps=1) == from_rllib(settings).config.replace(
        total_env_steps=1
    )
    assert translation.config.total_env_steps == 3 * 4000
    goal = {"env_runners/episode_return_mean": 20}
    assert dict(translation.run_settings["stop"]) == goal
    assert translation.sweep_settings == {"seeds": 4, "stop": goal}


BY_ITERATION = {"_time_attr": "training_iteration"}


def searched_by(searcher, number=8):
    return {**CARTPOLE, "lr": SPACE["lr"], "search_alg": searcher, "num_samples": number}


SPACE = {"lr": jaxrl.loguniform(1e-5, 1e-3)}
TPE = {"search": "tpe", "trials": 8}


@pytest.mark.parametrize(
    "searcher",
    [
        "optuna",
        tunes("OptunaSearch"),
        tunes("OptunaSearch", _sampler=type("TPESampler", (), {})()),
        tunes("ConcurrencyLimiter", searcher=tunes("OptunaSearch")),
    ],
)
def test_a_search_by_optuna_is_a_search_of_a_sweep(searcher):
    found = from_rllib(searched_by(searcher))
    assert (found.space, found.sweep_settings) == (SPACE, TPE)


def test_where_nothing_is_searched_the_samples_are_trainings_with_other_seeds():
    searched = searched_by(tunes("OptunaSearch"))
    fixed = {**searched, "lr": 1e-3}
    for found in (from_rllib(fixed), from_rllib(searched, lr=1e-3)):
        assert (found.space, found.sweep_settings) == ({}, {"seeds": 8})
        assert rows_of(found)["search_alg"] == (HARMLESS, "no setting is searched")
    assert from_rllib({**fixed, "num_samples": 1}).sweep_settings == {}
    seeds = from_rllib({**fixed, "seed": {"grid_search": [1, 2]}})
    assert seeds.sweep_settings == {"seeds": [1, 2]}


def test_a_searchers_metric_ranks_the_trials():
    ask = {"_metric": "env_runners/episode_return_mean", "_mode": "max"}
    found = from_rllib(searched_by(tunes("OptunaSearch", **ask)))
    assert found.sweep_settings == {**TPE, "metric": ask["_metric"]}


def test_tunes_own_draws_are_no_search():
    found = from_rllib(searched_by(tunes("BasicVariantGenerator")))
    assert found.sweep_settings == {"num_samples": 8}


@pytest.mark.parametrize(
    ("searcher", "number", "message"),
    [
        (tunes("HyperOptSearch"), 8, "has OptunaSearch as search='tpe'"),
        (tunes("OptunaSearch"), 1, "num_samples says how many settings it tries, 2 or more"),
        (
            tunes("OptunaSearch", _sampler=type("CmaEsSampler", (), {})()),
            8,
            "of Optuna's samplers TPESampler is here, not CmaEsSampler",
        ),
        (tunes("OptunaSearch", _space={"lr": 1}), 8, "its space is in param_space"),
    ],
)
def test_other_searches_are_refused(searcher, number, message):
    assert message in refused(searched_by(searcher, number))


def test_rllibs_own_search_is_read():
    optuna = pytest.importorskip("ray.tune.search.optuna")
    pytest.importorskip("optuna")
    searcher = optuna.OptunaSearch(metric="env_runners/episode_return_mean", mode="max")
    found = from_rllib(searched_by(searcher)).sweep_settings
    assert found == {**TPE, "metric": "env_runners/episode_return_mean"}


def test_schedulers_that_drop_trials_halve_and_populations_are_populations():
    def trained_by(name, **attributes):
        scheduler = tunes(name, "schedulers", **attributes)
        return {**CARTPOLE, "lr": {"grid_search": [1e-3, 1e-4]}, "scheduler": scheduler}

    ask = {"metric": "episode_reward_mean", "mode": "max"}
    asha = from_rllib({**trained_by("AsyncHyperBandScheduler", _reduction_factor=4), **ask})
    assert asha.sweep_settings == {"metric": "env_runners/episode_return_mean", "halving": 4}
    band = trained_by("HyperBandScheduler", _eta=3.0)
    assert from_rllib(band).sweep_settings == {"halving": 3}
    assert from_rllib(trained_by("FIFOScheduler")).sweep_settings == {}
    limited = trained_by("ASHAScheduler", _reduction_factor=4, _max_t=7, **BY_ITERATION)
    assert from_rllib(limited).config.total_env_steps == 7 * 4000
    fewer = {**limited, "stop": {"training_iteration": 5}}
    assert from_rllib(fewer).config.total_env_steps == 5 * 4000
    timed = from_rllib(limited, stop={"time_total_s": 9})
    assert timed.config.total_env_steps == 7 * 4000
    assert timed.run_settings == {"stop": {"time_total_s": 9}}
    assert from_rllib(fewer, stop={"training_iteration": 9}).config.total_env_steps == 7 * 4000
    by_time = trained_by("HyperBandScheduler", _eta=3, _max_t_attr=60, _time_attr="time_total_s")
    assert from_rllib(by_time).run_settings == {"stop": {"time_total_s": 60}}
    named = trained_by("HyperBandScheduler", _eta=3, _metric="episode_reward_mean", _mode="max")
    assert from_rllib(named).sweep_settings == {
        "metric": "env_runners/episode_return_mean",
        "halving": 3,
    }
    least = trained_by("HyperBandScheduler", _eta=3, _metric="episode_len_mean", _mode="min")
    shortest = {"metric": "env_runners/episode_len_mean", "mode": "min"}
    assert from_rllib(least).sweep_settings == {**shortest, "halving": 3}
    settings = {
        **{**BY_ITERATION, "_perturbation_interval": 5, "_burn_in_period": 2},
        **{"_quantile_fraction": 0.5, "_resample_probability": 0.1},
        "_hyperparam_mutations": {"lr": [1e-3, 1e-4], "lambda": drawn("Float", "_Uniform", 0, 1)},
    }
    population = trained_by("PopulationBasedTraining", **settings)
    scheduler = from_rllib(population).sweep_settings["scheduler"]
    assert (scheduler.perturbation_interval, scheduler.burn_in_period) == (5, 2)
    assert (scheduler.quantile_fraction, scheduler.resample_probability) == (0.5, 0.1)
    assert scheduler.hyperparam_mutations["lr"] == jaxrl.grid_search([1e-3, 1e-4])
    assert scheduler.hyperparam_mutations["lambda_"].arguments == (0, 1)
    beside = from_rllib(population, lr=5e-4).sweep_settings["scheduler"]
    assert set(beside.hyperparam_mutations) == {"lambda_"}
    by_time = trained_by("PopulationBasedTraining", **{**settings, "_time_attr": "time_total_s"})
    assert "its time is 'time_total_s'; here it is training_iteration" in refused(by_time)
    called = {**settings, "_hyperparam_mutations": {"lr": lambda: 1e-3}}
    assert "must be a list, or Tune's choice" in refused(
        trained_by("PopulationBasedTraining", **called)
    )
    assert "the schedulers are FIFOScheduler" in refused(trained_by("MedianStoppingRule"))
    lowest = from_rllib({**CARTPOLE, "metric": "episode_len_mean", "mode": "min"})
    assert lowest.sweep_settings == shortest


@pytest.mark.long
def test_what_tune_would_try_is_swept():
    translation = from_rllib(
        {
            "run_or_experiment": "PPO",
            "config": {
                **{**CARTPOLE, "num_workers": 2, "train_batch_size": 64, "sgd_minibatch_size": 32},
                **{"num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}},
                "lr": {"grid_search": [1e-3, 1e-4]},
            },
            "stop": {"training_iteration": 2},
        }
    )
    done = jaxrl.sweep(
        translation.config,
        translation.space,
        run_dir=None,
        quiet=True,
        devices=1,
        **translation.sweep_settings,
    )
    assert [outcome.trial.settings["lr"] for outcome in done.outcomes] == [1e-3, 1e-4]
    assert {outcome.result["training_iteration"] for outcome in done.outcomes} == {2}


@pytest.mark.long
def test_a_grid_of_batches_is_swept_for_as_many_iterations_each():
    config = {
        **{**CARTPOLE, "num_workers": 2, "train_batch_size": {"grid_search": [32, 64]}},
        **{"sgd_minibatch_size": 32, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}},
    }
    translation = from_rllib({"config": config, "stop": {"training_iteration": 2}})
    done = translation.sweep(run_dir=None, quiet=True, devices=1)
    results = [outcome.result for outcome in done.outcomes]
    assert [result["training_iteration"] for result in results] == [2, 2]
    assert [result["num_env_steps_sampled_lifetime"] for result in results] == [64, 128]


# Bad input


test_a_mistake_is_one_line = refused_by(
    lambda config: from_rllib(config),
    [
        (type("Tuner", (), {})(), "of a Tuner its arguments are read: {'trainable': 'PPO', "),
        (3, "from_rllib takes RLlib's PPOConfig, a dict of its settings or a file's path, not 3"),
        ({"run": "DQN", **CARTPOLE}, "PPO alone is read; PPO, BC and MARWIL are here"),
        ({"env": "PingNoFrameskip-v4"}, "Atari's games of today are ALE/NAME-v5: ALE/Ping-v5"),
        ({"env": None}, "'external' is one whose programs connect to a server"),
        ("tuned.py", "tuned.py is a program, which is not run: in Python, jaxrl.from_rllib"),
        ({"run": "BC", **CARTPOLE}, r"PPO alone is read; write jaxrl.BCConfig\(env"),
        ({**CARTPOLE, "model": 3}, "model=3 must be a mapping of settings"),
        ({**CARTPOLE, "multiagent": [1]}, r"multiagent=\[1\] must be a mapping of settings"),
        ({**CARTPOLE, "env_config": 3}, "env_config=3 must be a mapping"),
        ({**CARTPOLE, "num_workers": "two"}, "num_workers='two' must be an integer"),
        ({**CARTPOLE, "rollout_fragment_length": 0}, "rollout_fragment_length=0 must be"),
        ({**CARTPOLE, "lr": "fast"}, "lr='fast' must be a number"),
        ({**CARTPOLE, "model": {"fcnet_hiddens": 64}}, "fcnet_hiddens=64 must be a list"),
        ({**CARTPOLE, "gamma": 2}, "gamma=2 must be a number"),
        ({**ARENA, "policies": {"a": (None, None, None, 3)}}, "policies/a/config=3 must be"),
        (
            {"a": {"run": "PPO"}, "b": {"run": "PPO"}},
            "there are 2 experiments, a, b: choose one, of a file as FILE#a",
        ),
    ],
)


@pytest.mark.parametrize("value", [np.array([1, 2]), {1: 2}], ids=["array", "mapping"])
def test_a_value_of_the_wrong_form_is_at_most_one_line(value):
    """Of every key that a rule reads: whoever reads it must not stumble."""
    for path in {path for rule in RULES for path in rule.keys}:
        group, _, key = path.rpartition("/")
        try:
            from_rllib({**CARTPOLE, **({group: {key: value}} if group else {key: value})})
        except UsageError as error:
            assert "\n" not in str(error), path


# Nine aliases of nine aliases ...: 9 ** 20 values; and as many by merging.
LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 20)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 20)
)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", None, "cannot be read: No such file"),
        ("a.json", "env: CartPole-v1", "is not JSON"),
        ("a.json", "", "must hold RLlib's settings by name, and holds nothing"),
        ("a.json", "[1, 2]", "must hold RLlib's settings by name, and holds [1, 2]"),
        ("a.yaml", "a: [1", "is not YAML"),
        ("a.yaml", "a: !!python/object/apply:os.getcwd []", "is not YAML"),
        ("a.yaml", LAUGHS, "is not YAML: an alias holds itself, or stands for over 100,000 values"),
        ("a.yaml", "a: &a [*a]", "is not YAML: an alias holds itself"),
        ("a.yaml", MERGES, "is not YAML: an alias holds itself, or stands for over 100,000 values"),
        ("a.yaml", "a: " + "[" * 100_000, "is nested too deeply"),
        ("a.json", "[" * 100_000, "is not JSON: it is nested more than 100 deep"),
        ("params.pkl", "x", "is a pickle, which may run any code: give the params.json beside it"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, name, text, message):
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    if text is not None:
        (tmp_path / name).write_text(text)
    assert message in refused(str(tmp_path / name))


def test_one_of_several_experiments_of_a_file_is_named_behind_it(tmp_path):
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps({name: {"run": "PPO", **CARTPOLE} for name in ("slow", "fast")}))
    assert "there are 2 experiments, slow, fast: choose one, of a file as FILE#slow" in refused(
        file
    )
    assert from_rllib(f"{file}#fast").config.env == "cartpole"
    assert "unknown experiment 'fst' of " in refused(f"{file}#fst")
    assert "did you mean 'fast'?" in refused(f"{file}#fst")
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(CARTPOLE))
    assert "alone.json holds one configuration: leave out #fast" in refused(f"{alone}#fast")
    odd = tmp_path / "a#b.json"
    odd.write_text(json.dumps(CARTPOLE))
    assert from_rllib(odd).config.env == "cartpole"


def test_numbers_of_yaml_need_no_dot_before_the_exponent(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("env: CartPole-v1\nlr: 1e-3\ntrain_batch_size: 4e3\n")
    config = from_rllib(path).config
    assert (config.lr, config.train_batch_size) == (1e-3, 4000)


def test_reading_yaml_needs_pyyaml_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text(YAML)
    monkeypatch.setitem(sys.modules, "yaml", None)
    said = refused(tmp_path / "a.yaml")
    assert said.endswith("needs pyyaml, which is not installed: pip install pyyaml")


# The table


def test_the_table_says_what_became_of_each_key():
    config = {
        **CARTPOLE,
        **{"num_workers": 1, "num_sgd_iter": 6, "gamma": 0.99, "framework": "tf"},
        **{"clip_rewards": True, "soft_horizon": True, "batch_mode": None},
    }
    text = str(from_rllib(config, ignore=["soft_horizon"], seed=3))
    assert [re.split("  +", line.strip()) for line in text.splitlines()] == [
        ["taken over"],
        ["env='CartPole-v1'", "env='cartpole'"],
        ["clip_rewards=True", "clip_rewards=True"],
        ["num_workers=1", "num_envs=1, rollout_length=4000"],
        ["num_sgd_iter=6", "num_epochs=6"],
        ["RLlib's default", "total_env_steps=1000000; RLlib trains until"],
        ["it is stopped"],
        ["seed=3", "seed=3; given beside it, and wins"],
        ["gamma", "the default here, too"],
        ["no counterpart, harmless"],
        ["framework", "jaxrl is JAX alone, without worker processes"],
        ["1 key", "not set, or ask for nothing"],
        ["no counterpart, changes the result (ignored)"],
        ["soft_horizon=True", "an episode that reaches its time limit ends,"],
        ["and bootstraps"],
    ]


def test_the_table_of_a_whole_configuration_is_no_wider_than_a_terminal():
    text = str(from_rllib(PARAMS))
    assert max(map(len, text.splitlines())) <= 100
    assert len(text.splitlines()) < 50
