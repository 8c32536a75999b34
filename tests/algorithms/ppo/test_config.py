"""A configuration says everything about a run, and refuses in one line what cannot work."""

import jax
import numpy as np
import optax
import pytest

from jaxrl import PPOConfig, UsageError, make_train
from jaxrl.algorithms.ppo.optimizer import optimizer_of
from jaxrl.core.registry import make, register
from jaxrl.envs.arena import MultiAgentArena
from jaxrl.models.random_policy import RandomPolicy
from tests.messages import refusal, refused
from tests.probes import Leavers

ARENA = {"env": "arena"}


def test_the_defaults_are_rllibs():
    config = PPOConfig(env="arena")
    assert (config.lr, config.gamma, config.lambda_, config.clip_param) == (5e-5, 0.99, 1.0, 0.3)
    assert (config.vf_clip_param, config.vf_loss_coeff, config.entropy_coeff) == (10.0, 1.0, 0.0)
    expected = (True, 0.2, 0.01, None)
    assert (config.use_kl_loss, config.kl_coeff, config.kl_target, config.grad_clip) == expected
    assert (config.num_epochs, config.minibatch_size, config.train_batch_size) == (30, 128, 4000)
    assert (config.fcnet_hiddens, config.fcnet_activation, config.vf_share_layers) == (
        (256, 256),
        "tanh",
        False,
    )


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"num_envs": 8, "rollout_length": 16}, (8, 16, 128)),
        ({"num_envs": 8, "train_batch_size": 128}, (8, 16, 128)),
        ({"rollout_length": 16, "train_batch_size": 128}, (8, 16, 128)),
        ({"num_envs": 8}, (8, 500, 4000)),
        ({"rollout_length": 50}, (80, 50, 4000)),
        ({"train_batch_size": 800}, (8, 100, 800)),
        ({"train_batch_size": 512}, (4, 128, 512)),
        ({"train_batch_size": 64}, (1, 64, 64)),
        ({"num_envs": 48}, (48, 83, 3984)),
        ({}, (40, 100, 4000)),
    ],
)
def test_any_two_sizes_give_the_third_and_one_alone_rescales_another(given, sizes):
    for config in (PPOConfig(env="arena", **given), PPOConfig(env="arena").replace(**given)):
        assert (config.num_envs, config.rollout_length, config.train_batch_size) == sizes


def test_lists_and_dicts_freeze_so_that_a_configuration_hashes_and_survives_a_dict():
    config = PPOConfig(
        env="arena",
        env_args={"height": 4},
        policies={"pol1": ["agent1"], "pol2": ["agent2"]},
        per_policy={"pol2": {"lr": [[0, 1e-3], [1000, 1e-4]], "fcnet_hiddens": [8, 8]}},
        fcnet_hiddens=[16],
    )
    assert hash(config) == hash(PPOConfig.from_dict(config.to_dict()))
    assert config == PPOConfig.from_dict(config.to_dict())
    assert config.for_policy("pol2").fcnet_hiddens == (8, 8)
    assert config.for_policy("pol1").fcnet_hiddens == (16,)


def test_numbers_are_no_part_of_the_static_configuration_and_structure_is():
    config = PPOConfig(env="arena", per_policy={"pol1": {"lr": 1e-3}})
    other_numbers = config.replace(lr=1e-3, gamma=0.5, clip_param=0.1, seed=7, total_env_steps=8000)
    assert other_numbers.static() == config.static()
    for change in (
        {"minibatch_size": 64},
        {"fcnet_hiddens": (8,)},
        {"per_policy": {"pol1": {"num_epochs": 3}}},
    ):
        assert config.replace(**change).static() != config.static()


def test_hypers_are_arrays_by_policy_with_none_as_infinity_and_schedules_of_one_length():
    config = PPOConfig(
        env="arena", grad_clip=None, per_policy={"pol2": {"lr": [[0, 1.0], [10, 0.5], [20, 0.0]]}}
    )
    hypers = config.hypers(gamma=0.5, pol2={"clip_param": 0.1})
    assert (
        hypers["pol1"].lr.shape
        == hypers["pol2"].lr.shape
        == hypers["pol1"].entropy_coeff.shape
        == (3, 2)
    )
    assert np.isinf(hypers["pol1"].grad_clip)
    assert [float(hypers[policy].clip_param) for policy in ("pol1", "pol2")] == pytest.approx(
        [0.3, 0.1]
    )
    assert {float(hypers[policy].gamma) for policy in hypers} == {0.5}
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(hypers))


def test_a_policys_own_number_wins_over_one_for_all_and_that_is_never_silent():
    """The rule of sweeps: see `jaxrl.sweeps.trials.applied`."""
    config = PPOConfig(env="arena", per_policy={"pol1": {"lr": 0.5}})
    with pytest.warns(UserWarning, match="lr leaves pol1 as per_policy has it"):
        hypers = config.hypers(lr=0.25)
    assert [float(hypers[policy].lr[0, 1]) for policy in ("pol1", "pol2")] == [0.5, 0.25]
    hypers = config.hypers(lr=0.25, pol1={"lr": 0.125})
    assert [float(hypers[policy].lr[0, 1]) for policy in ("pol1", "pol2")] == [0.125, 0.25]
    with pytest.raises(UsageError, match=r'lr changes nothing: .*pol1=\{"lr": \.\.\.\}'):
        config.replace(policies_to_train=["pol1"]).hypers(lr=0.25)


def test_a_number_for_all_policies_reaches_those_that_a_function_chose_to_train():
    config = PPOConfig(env="arena", policies_to_train=lambda policy: policy == "pol1")
    assert float(config.hypers(lr=0.25)["pol1"].lr[0, 1]) == 0.25
    with pytest.raises(UsageError, match="lr changes nothing: per_policy gives pol1 their own lr"):
        config.replace(per_policy={"pol1": {"lr": 0.5}}).hypers(lr=0.25)


@pytest.mark.parametrize(("steps", "num_updates"), [(1, 1), (1000, 1), (4000, 1), (4001, 2)])
def test_steps_are_rounded_up_to_whole_iterations_however_few_they_are(steps, num_updates):
    assert PPOConfig(env="arena", total_env_steps=steps).num_updates == num_updates


def test_the_bounds_beyond_rllibs_are_numbers_whose_none_is_infinity():
    hypers = PPOConfig(env="arena", per_policy={"pol2": {"dual_clip": 3.0}}).hypers()
    assert [float(hypers[policy].dual_clip) for policy in ("pol1", "pol2")] == [np.inf, 3.0]
    config = PPOConfig(env="arena")
    assert config.replace(dual_clip=3.0).static() == config.static()
    assert config.replace(normalize_returns=True).static() != config.static()


def chained(lr):
    return optax.chain(optax.clip(1.0), optax.adamw(lr, weight_decay=1e-3))


@pytest.mark.parametrize("given", ["optax:adamw", chained, f"{__name__}:chained"])
def test_an_optimizer_is_a_function_of_the_learning_rate_or_its_name_which_a_file_can_hold(given):
    config = PPOConfig(env="arena", optimizer=given)
    config.setup()
    assert PPOConfig.from_dict(config.to_dict()) == config
    optimizer = optimizer_of(config.optimizer)(1e-3)
    params = {"kernel": np.ones(3, np.float32)}
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert (updates["kernel"] < 0).all()
    assert optimizer_of(None) is None


def test_the_tuned_settings_are_the_environments_own_and_yield_to_changes():
    tuned = make("arena")[0].tuned
    config = PPOConfig.tuned("arena", lr=0.5)
    assert config.lr == 0.5
    assert config.num_epochs == tuned["num_epochs"]
    assert config.train_batch_size == tuned["num_envs"] * tuned["rollout_length"]


def test_a_setting_of_the_built_in_networks_replaces_a_tuned_model():
    tuned = make("waterworld")[0].tuned
    assert PPOConfig.tuned("waterworld", lr=0.5).model == tuned["model"]
    assert PPOConfig.tuned("waterworld", use_gru=True).model is None
    assert PPOConfig.tuned("waterworld", model={"fcnet_hiddens": [32]}).model is None
    assert PPOConfig.tuned("waterworld", fcnet_hiddens=[32], model=tuned["model"]).model


def no_rate():
    return optax.sgd(0.1)


nan = float("nan")
BAD = [
    ({}, "env is missing"),
    ({"env": "aren"}, r"unknown environment 'aren'; did you mean 'arena'"),
    (
        {**ARENA, "env_args": {"hight": 3}},
        r"unknown argument 'hight' of environment 'arena'; did you mean 'height'",
    ),
    (
        {**ARENA, "env_args": {"max_steps_in_episode": nan}},
        "max_steps_in_episode must be a finite number, not nan",
    ),
    ({**ARENA, "lrr": 1}, "unknown setting 'lrr'; did you mean 'lr'"),
    ({**ARENA, "num_envs": 0}, "num_envs=0 must be an integer of at least 1"),
    ({**ARENA, "minibatch_size": -5}, "minibatch_size=-5 must be an integer of at least 1"),
    ({**ARENA, "num_epochs": 2.5}, "num_epochs=2.5 must be an integer"),
    (
        {**ARENA, "minibatch_size": 4001},
        "minibatch_size=4001 is more than the batch of policy 'pol1', 4000 rows",
    ),
    ({**ARENA, "gamma": 1.01}, r"gamma=1.01 must be a number in \[0, 1\]"),
    ({**ARENA, "lambda_": -0.1}, r"lambda_=-0.1 must be a number in \[0, 1\]"),
    ({**ARENA, "lr": nan}, "lr=nan must be a number >= 0"),
    ({**ARENA, "lr": [[0, 1e-3], [100, nan]]}, "lr: value=nan must be a number"),
    ({**ARENA, "lr": [[5, 1e-3], [100, 1e-4]]}, "lr: the steps of a schedule must begin at 0"),
    ({**ARENA, "grad_clip": 0.0}, "grad_clip=0.0 must be a number > 0 or None"),
    ({**ARENA, "kl_target": nan}, "kl_target=nan"),
    ({**ARENA, "per_policy": {"pol1": {"clip_param": nan}}}, "clip_param=nan"),
    ({**ARENA, "per_policy": {"pol3": {"lr": 1.0}}}, "unknown policy 'pol3'; did you mean 'pol2'"),
    (
        {**ARENA, "per_policy": {"pol1": {"num_envs": 3}}},
        "num_envs of policy 'pol1' is one for all",
    ),
    ({**ARENA, "policies_to_train": ["pol"]}, "unknown policy 'pol'; did you mean 'pol[12]'"),
    ({**ARENA, "policies": {"a": ["agent1"]}}, "no policy plays agent 'agent2'"),
    (
        {**ARENA, "policies": {"a": ["agent1", "agent2"], "b": ["agent2"]}},
        "agent 'agent2' is named twice",
    ),
    (
        {**ARENA, "policies": {"a": ["agent1", "agnt2"]}},
        "unknown agent 'agnt2' in policy 'a'; did you mean 'agent2'",
    ),
    ({**ARENA, "policies": "sharde"}, "policies='sharde': allowed are"),
    ({**ARENA, "policies": lambda agent, episode: agent}, "must take the agent id alone"),
    (
        {"env": Leavers(), "policies": "shared"},
        "joins agents of different observation_space: 'short' has .* 'wide' has",
    ),
    (
        {**ARENA, "num_envs": 3, "rollout_length": 5, "train_batch_size": 16},
        "train_batch_size=16 is not num_envs=3",
    ),
    (
        {**ARENA, "num_envs": 3, "train_batch_size": 4000},
        "train_batch_size=4000 is no multiple of num_envs=3",
    ),
    (
        {**ARENA, "shuffle_blocks": 3},
        "shuffle_blocks=3 must divide num_envs=40 and minibatch_size=128",
    ),
    ({**ARENA, "policies": ["pol1", 2]}, r"policies=.* must be a mapping {policy: \[agents\]}"),
    ({**ARENA, "policies": {"a", "b"}}, r"policies=\['a', 'b'\] do not say which agents they play"),
    ({**ARENA, "policies": {"pol1": 1}}, "policy 'pol1' must name a list"),
    ({**ARENA, "per_policy": {"pol1": 3}}, r"per_policy\['pol1'\]=3 must be a mapping"),
    ({**ARENA, "env_args": "height=6"}, "env_args='height=6' must be a mapping"),
    ({**ARENA, "policies_to_train": "pol1"}, "policies_to_train='pol1' must be a list of names"),
    (
        {**ARENA, "env_args": {"max_steps_in_episode": 0}},
        "max_steps_in_episode must be at least 1, not 0",
    ),
    ({**ARENA, "lr": float("inf")}, "lr=inf must be a number"),
    ({**ARENA, "seed": 2**70}, "seed=.* must be an integer"),
    ({"env": make("arena")}, "perhaps the first of what make"),
    ({"env": MultiAgentArena}, r"perhaps MultiAgentArena\(\)"),
    ({**ARENA, "free_log_std": True}, "free_log_std=True needs Box actions, not Discrete"),
    ({**ARENA, "log_std_init": -1.0}, "log_std_init=-1.0 needs Box actions of a Gaussian"),
    ({"env": "waterworld", "log_std_init": -1.0}, "log_std_init=-1.0 needs free_log_std=True"),
    (
        {"env": "waterworld", "log_std_init": -1.0, "action_distribution": "beta"},
        "log_std_init=-1.0 needs Box actions of a Gaussian",
    ),
    (
        {**ARENA, "conv_filters": [[16, 3, 1]]},
        "conv_filters=.* need images, a Box of .*, not MultiDiscrete",
    ),
    (
        {**ARENA, "conv_filters": [[16, 3]]},
        r"conv_filters=.* must be a list of layers \[filters, kernel, stride\]",
    ),
    (
        {**ARENA, "conv_filters": [[16, 3, 0]]},
        r"conv_filters: layer \[16, 3, 0\]=0 must be an integer of at least 1",
    ),
    (
        {**ARENA, "observation_filter": "MeanStdFilter"},
        "observation_filter='MeanStdFilter' needs Box observations",
    ),
    (
        {**ARENA, "observation_filter": "MeanStd"},
        "unknown observation_filter 'MeanStd'; did you mean 'MeanStdFilter'",
    ),
    ({**ARENA, "normalize_actions": 1}, "normalize_actions=1 must be True or False"),
    ({**ARENA, "value_clip": "los"}, "unknown value_clip 'los'; did you mean 'loss'"),
    (
        {**ARENA, "fcnet_activation": "tanhh"},
        "unknown fcnet_activation 'tanhh'; did you mean 'tanh'",
    ),
    ({**ARENA, "fcnet_hiddens": [64, 0]}, "layer size=0 must be an integer of at least 1"),
    ({**ARENA, "dual_clip": 1.0}, "dual_clip=1.0 must be a number > 1 or None"),
    (
        {**ARENA, "use_critic": False, "per_policy": {"pol2": {"center_values": True}}},
        "use_critic=False leaves no values for center_values=True: give one",
    ),
    ({**ARENA, "target_kl": 0}, "target_kl=0 must be a number > 0 or None"),
    ({**ARENA, "normalize_returns": "yes"}, "normalize_returns='yes' must be True or False"),
    (
        {**ARENA, "action_distribution": "bta"},
        "unknown action_distribution 'bta'; did you mean 'beta'",
    ),
    (
        {**ARENA, "optimizer": 3},
        "optimizer=3 must be a function from the learning rate to an optax transformation, "
        'module:name, {"adam_epsilon": 1e-5}, or None',
    ),
    (
        {**ARENA, "optimizer": optax.adam(1e-3)},
        r"optimizer=.* or None; perhaps lambda lr: optax.adam\(lr\)\?",
    ),
    (
        {**ARENA, "optimizer": "adamw"},
        "optimizer='adamw' must be a function .*, module:name, .*, or None",
    ),
    (
        {**ARENA, "optimizer": "optax:adamww"},
        "unknown optimizer .*'adamww' in module 'optax'; did you mean 'adamw'",
    ),
    (
        {**ARENA, "optimizer": "optaxx:adamw"},
        "unknown optimizer 'optaxx:adamw': there is no module 'optaxx'",
    ),
    (
        {**ARENA, "optimizer": "math:sqrt"},
        r"optimizer math:sqrt\(0.001\) must be an optax transformation, not a float",
    ),
    (
        {**ARENA, "optimizer": no_rate},
        r"optimizer no_rate\(0.001\) raises TypeError: .*; it takes the learning rate",
    ),
    (
        {**ARENA, "per_policy": {"pol2": {"optimizer": "math:floor"}}},
        r"optimizer math:floor\(0.001\) must be an optax transformation, not a int",
    ),
    (
        {"env": "cartpole", "model": RandomPolicy},
        "model=RandomPolicy: policy 'default_policy' has no parameters and cannot learn",
    ),
    (
        {**ARENA, "per_policy": {"pol2": {"model": RandomPolicy}}},
        r"policy 'pol2' has no parameters and cannot learn; leave it out of policies_to_train=\[",
    ),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_work_is_refused_in_one_line_before_anything_is_compiled(settings, message):
    with jax.log_compiles(False), refusal(message):
        make_train(settings)


NO_NUMBERS = r'hypers: pol1=.* must be a mapping .* pol1=\{"lr": 1e-3\}'
test_what_is_no_mapping_of_settings_is_refused = refused(
    [
        (lambda: make_train("arena"), "make_train takes a PPOConfig or a mapping"),
        (lambda: make_train(3), "make_train takes a PPOConfig or a mapping"),
        (lambda: PPOConfig({"env": "arena"}), "env must be a name or an environment object"),
        (lambda: PPOConfig(env="arena").hypers(pol1=3), NO_NUMBERS),
        (lambda: PPOConfig(env="arena").hypers(pol1=None), NO_NUMBERS),
        (lambda: PPOConfig(env="arena").hypers(pol1=[("lr", 0.5)]), NO_NUMBERS),
    ]
)


def test_a_name_registered_anew_means_the_new_environment():
    for size in (3, 4):
        register("mine-for-this-test", lambda size=size: MultiAgentArena(size, size))
        assert PPOConfig(env="mine-for-this-test").setup().env == MultiAgentArena(size, size)
