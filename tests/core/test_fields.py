"""Tests of settings: the errors for wrong names, and the generated help."""

import dataclasses
import inspect
import math
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxrl
from jaxrl import BCConfig, PPOConfig, RunSettings, Trainer, UsageError
from jaxrl.cli.flags import Flag, flag_name, flags_of, given_flags
from jaxrl.core import foreign_names
from jaxrl.core.errors import nearest, unknown_name, unknown_result
from jaxrl.core.fields import least_count, unknown_setting
from jaxrl.core.frozen import freeze_arguments, thawed

OURS = {
    field.name for cls in (PPOConfig, BCConfig, RunSettings) for field in dataclasses.fields(cls)
} | {"run_dir"}

# RLlib's names in the migration guide, old and new, and what must stand in the answer.
RLLIB = {
    "env_config": "env_args",
    "num_workers": "num_envs",
    "num_rollout_workers": "num_envs",
    "num_env_runners": "num_envs",
    "num_envs_per_worker": "num_envs",
    "num_envs_per_env_runner": "num_envs",
    "rollout_fragment_length": "rollout_length",
    "train_batch_size_per_learner": "train_batch_size",
    "sgd_minibatch_size": "minibatch_size",
    "num_sgd_iter": "num_epochs",
    "lambda": "lambda_",
    "lr_schedule": "lr",
    "entropy_coeff_schedule": "entropy_coeff",
    "custom_model": "model",
    "custom_model_config": "model",
    "custom_action_dist": "model",
    "fcnet_weights_initializer": "fcnet_kernel_initializer",
    "policy_mapping_fn": "policies",
    "algorithm_config_overrides_per_module": "per_policy",
    "evaluation_num_episodes": "evaluation_duration",
    "horizon": "env_args",
    "checkpoint_freq": "checkpoint_frequency",
    "keep_checkpoints_num": "keep",
    "local_dir": "run_dir",
    "logger_config": "loggers",
    "num_gpus": "devices",
    "num_learners": "devices",
    "callbacks_class": "callbacks",
    "metrics_smoothing_episodes": "metrics_num_episodes_for_smoothing",
    "post_fcnet_hiddens": "fcnet_hiddens",
}
WITHOUT_COUNTERPART = [
    "use_gae",
    "evaluation_config",
    "custom_eval_function",
    "framework",
    "eager_tracing",
    "num_cpus_per_worker",
    "num_cpus_for_driver",
    "placement_strategy",
    "compress_observations",
    "recreate_failed_workers",
    "restart_failed_env_runners",
    "torch_compile_learner",
    "torch_compile_worker",
    "output_config",
    "input_config",
    "log_level",
    "observation_fn",
    "batch_mode",
    "count_steps_by",
    "keep_per_episode_custom_metrics",
    "evaluation_parallel_to_training",
    "checkpoint_trainable_policies_only",
    "log_sys_usage",
    "min_time_s_per_iteration",
    "render_env",
    "shuffle_sequences",
    "attention_use_n_prev_actions",
    "encoder_latent_dim",
    "no_final_linear",
    "episode_lookback_horizon",
    "framestack",
    "grayscale",
    "custom_preprocessor",
    "policy_map_capacity",
    "multiagent",
    "off_policy_estimation_methods",
    "_disable_preprocessor_api",
    "_enable_new_api_stack",
]
OTHERS = {
    "learning_rate": "lr",
    "n_steps": "rollout_length",
    "n_epochs": "num_epochs",
    "ent_coef": "entropy_coeff",
    "vf_coef": "vf_loss_coeff",
    "max_grad_norm": "grad_clip",
    "clip_range": "clip_param",
    "gae_lambda": "lambda_",
    "total_timesteps": "total_env_steps",
    "num_steps": "rollout_length",
    "update_epochs": "num_epochs",
    "clip_coef": "clip_param",
    "anneal_lr": "lr",
    "norm_adv": "normalize_advantages",
}


def refused(call):
    with pytest.raises(UsageError) as found:
        call()
    text = str(found.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


@pytest.mark.parametrize(("foreign", "here"), [*RLLIB.items(), *OTHERS.items()])
def test_another_librarys_name_is_answered_with_ours(foreign, here):
    for call in (
        lambda: PPOConfig(env="arena", **{foreign: 1}),
        lambda: PPOConfig.from_dict({"env": "arena", foreign: 1}),
        lambda: PPOConfig(env="arena").replace(**{foreign: 1}),
        lambda: RunSettings(**{foreign: 1}),
    ):
        assert f"'s name for {here}" in refused(call)
    words = [f"--{foreign.replace('_', '-')}", "1"]
    if foreign == "checkpoint_freq":  # another spelling of the flag
        assert given_flags(words, both()) == {here: ["1"]}
        return
    text = refused(lambda: given_flags(words, both()))
    assert f"'s name for --{here.rstrip('_').replace('_', '-')}" in text


@pytest.mark.parametrize("name", ["quiet", "env_params"])
def test_an_argument_of_trainer_that_is_no_flag_is_called_so(name):
    text = refused(lambda: given_flags([flag_name(name), "1"], both()))
    assert text.endswith(f"{name} is an argument of Trainer in Python, not a flag")


def both():
    """Every flag of a training but --lambda, which is spelled as RLlib's old setting is."""
    flags = flags_of(PPOConfig(env="arena")) | flags_of(RunSettings())
    flags |= {"run_dir": Flag("", None)}
    return {name if name != "lambda_" else "other_": flag for name, flag in flags.items()}


@pytest.mark.parametrize("foreign", WITHOUT_COUNTERPART)
def test_a_name_without_counterpart_is_answered_with_what_to_do_and_no_wrong_name(foreign):
    text = refused(lambda: PPOConfig(env="arena", **{foreign: 1}))
    assert "RLlib's name; " in text
    assert "did you mean" not in text


def test_every_counterpart_is_a_setting_and_no_foreign_name_is_one_of_ours():
    for library in foreign_names.LIBRARIES:
        for foreign, found in foreign_names.names_of(library, foreign_names.SETTINGS).items():
            assert found.here in OURS or (found.here == "" and found.note), foreign
            assert foreign not in OURS


def test_the_configuration_and_the_trainer_know_each_others_settings():
    text = refused(lambda: PPOConfig(env="arena", evaluation_interval=5))
    assert "Trainer has it: Trainer(config, evaluation_interval=...)" in text
    text = refused(lambda: Trainer(PPOConfig(env="arena"), num_sgd_iter=5))
    assert "RLlib's name for num_epochs; PPOConfig has it: config.replace(num_epochs=...)" in text
    text = refused(lambda: PPOConfig.tuned("arena", run_dir="here"))
    assert "Trainer has it: Trainer(config, run_dir=...)" in text
    text = refused(lambda: PPOConfig(env="arena", per_policy={"pol1": {"train_batch_size": 80}}))
    assert "train_batch_size of policy 'pol1' is one for all" in text
    text = refused(lambda: PPOConfig(env="arena", per_policy={"pol1": {"learning_rate": 80}}))
    assert "of policy 'pol1': SB3's name for lr" in text


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("lrr", "lr"),
        ("gama", "gamma"),
        ("num_env", "num_envs"),
        ("clipParam", "clip_param"),
        ("hiddens_fcnet", "fcnet_hiddens"),
        ("entropy", "entropy_coeff"),
        ("evaluation_durations", "evaluation_duration"),
    ],
)
def test_a_slip_is_answered_with_the_nearest_name(slip, meant):
    assert nearest(slip, OURS)[0] == meant


@pytest.mark.parametrize(
    "name", ["use_gae", "foo", "verbosity", "learning", "temperature", "target_entropy"]
)
def test_likeness_by_chance_proposes_nothing(name):
    assert nearest(name, OURS) == []


def test_many_known_names_are_not_listed_but_where_they_are_read_is_said():
    number = len(dataclasses.fields(PPOConfig))
    assert refused(lambda: PPOConfig(env="arena", foo=1)).endswith(
        f"'foo'; help(jaxrl.PPOConfig) explains all {number}, and --help on the command line"
    )
    few, many = ["a", "b"], map(str, range(500))
    assert str(unknown_name("thing", "x", few)) == "unknown thing 'x'; known: a, b"
    names = "unknown thing 'x'; known: 500 names, such as 0, 1, 10"
    assert str(unknown_name("thing", "x", many)) == names


PATHS = [
    "training_iteration",
    "env_runners/episode_return_mean",
    "env_runners/episode_return_max",
    "evaluation/env_runners/episode_return_mean",
    "num_env_steps_sampled_lifetime",
    "learners/pol1/mean_kl_loss",
    "env_runners/module_episode_returns_mean/pol1",
    "env_runners/agent_episode_returns_mean/agent1",
    "env_runners/custom_metrics/room/left",
    "num_env_steps_trained_lifetime",
]


@pytest.mark.parametrize(
    ("foreign", "here"),
    [
        ("episode_reward_mean", "env_runners/episode_return_mean"),
        ("episode_reward_max", "env_runners/episode_return_max"),
        ("episode_return_mean", "env_runners/episode_return_mean"),
        ("evaluation/episode_reward_mean", "evaluation/env_runners/episode_return_mean"),
        ("timesteps_total", "num_env_steps_sampled_lifetime"),
        ("policy_reward_mean/pol1", "env_runners/module_episode_returns_mean/pol1"),
        ("info/learner/pol1/learner_stats/kl", "learners/pol1/mean_kl_loss"),
        (
            "env_runners/agent_episode_return_mean/agent1",
            "env_runners/agent_episode_returns_mean/agent1",
        ),
        ("rollout/ep_rew_mean", "env_runners/episode_return_mean"),
        ("charts/episodic_return", "env_runners/episode_return_mean"),
        ("training_iterations", "training_iteration"),
        ("episode_return_men", "env_runners/episode_return_mean"),
        ("custom_metrics/room/left", "env_runners/custom_metrics/room/left"),
        ("num_env_steps_trained", "num_env_steps_trained_lifetime"),
    ],
)
def test_another_librarys_result_is_answered_with_ours(foreign, here):
    assert f"'{foreign}'; did you mean '{here}'?" in str(
        unknown_result("stop criterion", foreign, PATHS)
    )


def test_what_differs_from_another_librarys_result_is_said():
    said = str(unknown_result("stop criterion", "timesteps_since_restore", PATHS))
    hint = "did you mean 'num_env_steps_sampled_lifetime'? counted from the start of the run"
    assert hint in said
    assert foreign_names.counterpart("episode_reward_mean/left", foreign_names.RESULTS) is None


def test_help_explains_every_setting():
    for cls, settings in ((PPOConfig,) * 2, (RunSettings,) * 2, (Trainer, RunSettings)):
        shown = " ".join(inspect.getdoc(cls).split())
        for field in dataclasses.fields(settings):
            assert field.name in shown
            assert " ".join(field.metadata["help"].split()) in shown, (cls, field.name)


def test_the_trainers_keywords_can_be_found_from_python():
    parameters = inspect.signature(Trainer).parameters
    for field in dataclasses.fields(RunSettings):
        assert parameters[field.name].default == field.default
    assert not any(name.startswith("_") for name in parameters)
    assert jaxrl.RunSettings is RunSettings


def test_a_flag_of_another_command_says_so():
    flags = dict.fromkeys(["seed"])
    assert str(unknown_setting("--evaluation-interval", flags, kind="flag")).endswith(
        "is a flag of jaxrl train"
    )


@given(share=st.integers(1, 1000), number=st.integers(1, 10**6))
def test_a_share_of_a_number_is_counted_as_if_nothing_were_rounded(share, number):
    assert least_count(share / 1000, number) == math.ceil(Fraction(share, 1000) * number)


def test_a_share_of_a_number_that_rounds_up_is_no_more_than_it_is():
    assert 3**-5 * 729 > 3 and 0.55 * 100 > 55
    assert (least_count(3**-5, 729), least_count(0.55, 100)) == (3, 55)


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
NESTED = st.recursive(
    LEAVES,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), parts, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.long
@given(NESTED)
def test_an_argument_that_is_frozen_can_be_hashed_and_thaws_to_what_it_was(value):
    frozen = freeze_arguments({"level": value})
    hash(frozen)
    assert repr(thawed(frozen)) == repr({"level": value})
    assert repr(thawed(freeze_arguments(frozen))) == repr({"level": value})


def test_a_list_a_tuple_and_a_mapping_are_three_arguments():
    given_forms = [(1, 2), [1, 2], (("a", 1),), [("a", 1)], {"a": 1}, (), [], {}]
    assert len({freeze_arguments({"x": form}) for form in given_forms}) == len(given_forms)


def test_arguments_of_python_environments_arrive_as_they_were_written():
    arguments = {"level": {"walls": [[1, 2]], "name": "a"}, "pair": (1, 2)}
    config = PPOConfig(env=f"{__name__}:Written", env_args=arguments)
    made.clear()
    config.setup()
    assert repr(made[-1]) == repr(arguments)
    assert PPOConfig.from_dict(config.to_dict()) == config
    assert PPOConfig(env=f"{__name__}:written", env_args=arguments).setup()
    assert repr(made[-1]) == repr(arguments)


@pytest.mark.parametrize("env", ["Written", "written"])
def test_a_python_environment_with_lists_is_made_no_more_often_than_without(env):
    def number_of(level):
        made.clear()
        PPOConfig(env=f"{__name__}:{env}", env_args={"level": level, "pair": 3}).setup()
        jaxrl.make(globals()[env], level=level, pair=4)
        return len(made)

    assert number_of([[1, 2]]) == number_of({"a": 1}) == number_of("easy") == 2


@pytest.mark.parametrize("env", ["Written", "written"])
def test_objects_and_arrays_reach_a_python_environment_as_they_are(env):
    walls, space = np.array([1.5, 2.5]), gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(2))
    for level in (walls, [walls], {"walls": walls}, space, {0: space}, {"spaces": [space]}):
        config = PPOConfig(env=f"{__name__}:{env}", env_args={"level": level, "pair": 3})
        assert config == config.replace(env_args=config.env_args)
        assert config == PPOConfig.from_dict(config.to_dict()) and hash(config) is not None
        made.clear()
        config.setup()
        jaxrl.make(f"{__name__}:{env}", level=level, pair=3)
        leaves = [_innermost(arguments["level"]) for arguments in made]
        assert len(leaves) >= 2 and all(leaf is _innermost(level) for leaf in leaves)
        assert repr(made[0]["level"]) == repr(level)
    config = PPOConfig(env=f"{__name__}:{env}", env_args={"level": np.float32(2), "pair": 3})
    assert dict(config.env_args) == {"level": 2.0, "pair": 3}
    with pytest.raises(UsageError, match=r"evaluation_env_args: level holds .*, which a run's"):
        Trainer(config, run_dir=None, quiet=True, evaluation_env_args={"level": walls})


def _innermost(value):
    while type(value) in (dict, list):
        (value,) = value.values() if isinstance(value, dict) else value
    return value


def test_arguments_of_environments_in_jax_are_tuples_that_can_be_hashed():
    for name in ("Walls", "walled"):
        env, _ = jaxrl.make(f"{__name__}:{name}", walls=[[1, 2]])
        hash(env)
        assert repr(env.walls) == "((1, 2),)"
        hash(PPOConfig(env=f"{__name__}:{name}", env_args={"walls": [[1, 2]]}).setup().env)


made = []


class Written(gymnasium.Env):
    """Keeps the arguments that it was made with."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, level, pair):
        made.append({"level": level, "pair": pair})

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 1.0, True, False, {}


def written(level, pair):
    return Written(level, pair)


@dataclasses.dataclass(frozen=True)
class Walls(type(jaxrl.make("cartpole")[0])):
    walls: tuple = ()


def walled(walls):
    return Walls(walls=walls)
