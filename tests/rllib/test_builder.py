"""RLlib's `PPOConfig().environment(...).training(...)`: the same lines with another import."""

import copy
import inspect
import pickle

import pytest

import jaxrl
from jaxrl.rllib import (
    DEFAULT_CONFIG,
    PPO,
    AlgorithmConfig,
    DefaultCallbacks,
    PolicySpec,
    PPOConfig,
    PPOTrainer,
    RLlibCallback,
)
from jaxrl.rllib.translation import known_keys
from tests.messages import refused

SIZES = {"train_batch_size": 64, "minibatch_size": 32, "num_epochs": 1}
SECTIONS = [
    *("environment", "framework", "callbacks", "training", "env_runners", "learners", "rl_module"),
    *("multi_agent", "evaluation", "reporting", "checkpointing", "debugging", "fault_tolerance"),
    *("resources", "offline_data", "experimental", "api_stack", "python_environment"),
]


def chained(config_class):
    """A chain as in RLlib's guide, of its class or of ours."""
    return (
        config_class()
        .api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        .environment("CartPole-v1", env_config={"max_steps_in_episode": 100})
        .framework("torch")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=2)
        .training(lr=3e-4, lambda_=0.9, **SIZES)
        .rl_module(model_config={"fcnet_hiddens": [8], "vf_share_layers": True})
        .evaluation(evaluation_interval=2, evaluation_duration=10)
        .evaluation(evaluation_config=config_class.overrides(explore=False))
        .debugging(seed=3)
        .resources(num_gpus=0)
    )


DICT = {
    "env": "CartPole-v1",
    "env_config": {"max_steps_in_episode": 100},
    "num_env_runners": 2,
    "num_envs_per_env_runner": 2,
    "lr": 3e-4,
    "lambda_": 0.9,
    **SIZES,
    "model_config": {"fcnet_hiddens": [8], "vf_share_layers": True},
    "evaluation_interval": 2,
    "evaluation_duration": 10,
    "evaluation_config": {"explore": False},
    "seed": 3,
}


def test_a_tutorials_chain_is_the_dict_of_its_settings():
    config = chained(PPOConfig)
    assert DICT.items() <= config.to_dict().items()
    of_chain, of_dict = jaxrl.from_rllib(config), jaxrl.from_rllib(DICT)
    assert (of_chain.config, of_chain.run_settings) == (of_dict.config, of_dict.run_settings)
    assert of_chain.config.lr == 3e-4 and of_chain.config.num_envs == 4
    assert of_chain.run_settings["evaluation_explore"] is False


def test_a_chain_is_read_within_what_tune_is_given():
    config = chained(PPOConfig).training(lr=jaxrl.grid_search([1e-4, 1e-3]))
    for experiment in (
        {"trainable": "PPO", "param_space": config},
        {"run_or_experiment": PPO, "config": config},
    ):
        found = jaxrl.from_rllib(experiment)
        assert found.space == {"lr": jaxrl.grid_search([1e-4, 1e-3])}
        assert found.config == jaxrl.from_rllib(config).config


def test_the_same_section_again_changes_its_settings_and_a_copy_is_another():
    config = PPOConfig().training(lr=1e-3, model={"fcnet_hiddens": [8]})
    other = config.copy().training(lr=2e-3, model={"use_lstm": True})
    assert config == {"lr": 1e-3, "model": {"fcnet_hiddens": [8]}}
    assert other == {"lr": 2e-3, "model": {"fcnet_hiddens": [8], "use_lstm": True}}
    config.lr = 5e-3
    assert (config.lr, config["lr"], config.gamma, config["clip_param"]) == (5e-3, 5e-3, 0.99, 0.3)
    assert PPOConfig.from_dict(config.to_dict()) == config == copy.deepcopy(config)
    assert pickle.loads(pickle.dumps(config)) == config
    assert not hasattr(config, "lrr") and DEFAULT_CONFIG == {}


def test_a_copy_and_a_dict_share_containers_at_no_depth_and_objects_at_each():
    env = object()

    def filled():
        policies = {"mine": PolicySpec(config={"model": {"fcnet_hiddens": [8]}})}
        config = PPOConfig().environment(len, env_config={"env": env})
        config.multi_agent(policies=policies, policy_mapping_fn=len)
        return config.evaluation(evaluation_config=PPOConfig.overrides(model={"use_lstm": True}))

    config, before = filled(), filled()
    for made in (config.copy(), config.to_dict()):
        assert made == config and made["env_config"]["env"] is env
        made["env_config"]["env"] = None
        made["evaluation_config"]["model"]["use_lstm"] = False
        made["policies"]["mine"].config["model"]["fcnet_hiddens"].append(4)
        made["policies"].clear()
        assert config == before
    assert type(config.to_dict()) is dict
    assert type(config.copy()) is type(config.copy()["evaluation_config"]) is PPOConfig


def test_what_is_given_stays_as_it_is():
    model, spaces = {"fcnet_hiddens": [8]}, {"inner": {"a": 1}}
    config = PPOConfig().training(model=model).environment(len, env_config=spaces)
    config["model"]["fcnet_hiddens"].append(4)
    config["env_config"]["inner"]["a"] = 2
    assert (model, spaces) == ({"fcnet_hiddens": [8]}, {"inner": {"a": 1}})


def test_a_framework_that_is_not_named_leaves_the_one_before():
    config = PPOConfig().framework("torch").framework(eager_tracing=True)
    assert config == {"framework": "torch", "eager_tracing": True}


def test_callbacks_are_classes_and_functions_by_their_hooks():
    class Mine(RLlibCallback):
        pass

    assert RLlibCallback is DefaultCallbacks is jaxrl.Callbacks
    assert PPOConfig().callbacks(Mine) == {"callbacks_class": Mine}
    config = PPOConfig().environment("cartpole").callbacks(on_train_result=lambda **info: None)
    assert list(config)[1:] == ["callbacks_on_train_result"]
    assert len(jaxrl.from_rllib(config).config.callbacks) == 1


def test_policies_are_specs_with_settings_of_their_own():
    policies = {
        "mine": PolicySpec(config=AlgorithmConfig.overrides(lr=1e-3)),
        "other": PolicySpec(),
    }
    config = PPOConfig().environment("MultiAgentArena")
    config.multi_agent(
        policies=policies,
        policy_mapping_fn=lambda agent, *rest, **more: "mine" if agent == "agent1" else "other",
        policies_to_train=["mine"],
    )
    found = jaxrl.from_rllib(config).config
    assert dict(found.policies) == {"mine": ("agent1",), "other": ("agent2",)}
    assert dict(found.per_policy)["mine"] == (("lr", 1e-3),)
    assert found.policies_to_train == ("mine",)


def test_a_chain_builds_the_trainer_and_so_do_old_tutorials():
    translated = jaxrl.from_rllib(DICT).config
    quiet = {"run_dir": None, "quiet": True}
    with chained(PPOConfig).build_algo(**quiet) as algo:
        assert isinstance(algo, jaxrl.Trainer) and algo.config == translated
    with PPOTrainer(config=chained(PPOConfig), env="arena", **quiet) as trainer:
        assert trainer.config.env == "arena"
    with PPOConfig().training(**SIZES).build("CartPole-v1", **quiet) as algo:
        assert algo.config.env == "cartpole"


test_what_rllib_does_not_know_is_refused_with_the_nearest_name = refused(
    [
        (lambda: PPOConfig().trainig(lr=1e-3), "has no 'trainig'; did you mean 'training'"),
        (lambda: PPOConfig().training(lrr=1e-3), "unknown setting 'lrr' of RLlib's PPO.*'lr'"),
        (lambda: PPOConfig().training(1e-3), r"0.001 has no name: write training\(lr=3e-4\)"),
        (lambda: PPOConfig().lrr, r"jaxrl.rllib.PPOConfig has no 'lrr'; did you mean 'lr'"),
        (lambda: PPOConfig().num_env_runners, "num_env_runners was not given"),
        (lambda: PPOConfig().callbacks(on_train_resul=print), "'callbacks_on_train_result'"),
        (
            lambda: PPOConfig().training(fcnet_hiddens=[4]).build_algo("cartpole"),
            r"it is a part of model: model=\{'fcnet_hiddens': ...\}",
        ),
        (lambda: PPOConfig().build_algo(), "the configuration names no environment"),
        (lambda: jaxrl.rllib.DQNConfig, "PPOConfig, BCConfig and MARWILConfig are here"),
        (lambda: jaxrl.rllib.BCConfig, r"write jaxrl.BCConfig\(env=..., input=FOLDER\)"),
        (lambda: jaxrl.rllib.PPOConfi, "did you mean 'PPOConfig'"),
        (
            lambda: jaxrl.PPOConfig().environment("cartpole"),
            "jaxrl.rllib.PPOConfig has RLlib's methods",
        ),
    ]
)


@pytest.mark.parametrize("section", SECTIONS)
def test_rllib_has_the_same_sections_with_settings_that_are_known(section):
    rllib_config = pytest.importorskip("ray.rllib.algorithms.ppo").PPOConfig
    names = set(inspect.signature(getattr(rllib_config, section)).parameters) - {"self", "kwargs"}
    inner = {"synchronize_filter", "custom_stats_cls_lookup"}  # of its processes, and offline alone
    inner |= {"dataset_num_iters_per_offline_eval_runner"}
    known = known_keys()
    known |= {key.removeprefix("callbacks_") for key in known}
    assert names - inner <= known
    assert callable(getattr(PPOConfig(), section))


def test_rllibs_own_chain_gives_the_same_training():
    rllib_config = pytest.importorskip("ray.rllib.algorithms.ppo").PPOConfig
    expected, found = (
        jaxrl.from_rllib(chained(config_class)) for config_class in (rllib_config, PPOConfig)
    )
    assert (found.config, found.run_settings) == (expected.config, expected.run_settings)
