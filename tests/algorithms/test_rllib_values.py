"""RLlib's and NumPy's forms of values mean the same as ours; what no memory holds is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import PPOConfig, RunSettings, Trainer, UsageError, make_train
from jaxrl.core import machine
from jaxrl.run.stopping import criteria_of
from jaxrl.run.storage.config_file import config_facts, read_config
from tests.messages import refused_by

ARENA = {"env": "arena"}


class PolicySpec:
    """As RLlib's, which is no tuple."""

    def __init__(self, config=None, policy_class=None):
        self.policy_class, self.config = policy_class, config
        self.observation_space = self.action_space = None


@pytest.mark.parametrize(
    ("foreign", "here"),
    [
        ({"observation_filter": "NoFilter"}, {"observation_filter": None}),
        (
            {"conv_filters": [[16, [3, 3], 2], [8, [2, 2], [1, 1]]]},
            {"conv_filters": [[16, 3, 2], [8, 2, 1]]},
        ),
        ({"fcnet_activation": "swish"}, {"fcnet_activation": "silu"}),
        ({"conv_activation": "swish"}, {"conv_activation": "silu"}),
        ({"fcnet_activation": None}, {"fcnet_activation": "linear"}),
        ({"optimizer": {}}, {"optimizer": None}),
        ({"optimizer": {"adam_epsilon": 1e-5}}, {"adam_epsilon": 1e-5}),
        (
            {"per_policy": {"pol1": {"optimizer": {"adam_epsilon": 1e-5}}}},
            {"per_policy": {"pol1": {"optimizer": None, "adam_epsilon": 1e-5}}},
        ),
        (
            {"model": {"fcnet_hiddens": [64], "use_lstm": True}},
            {"fcnet_hiddens": (64,), "use_lstm": True},
        ),
        ({"model": {}}, {"model": None}),
        ({"policies_to_train": {"pol2", "pol1"}}, {"policies_to_train": ("pol1", "pol2")}),
        (
            {"per_policy": {"pol1": {"model": {"fcnet_hiddens": [8]}}}},
            {"per_policy": {"pol1": {"fcnet_hiddens": (8,)}}},
        ),
        ({"total_env_steps": 1e6, "num_envs": 8.0}, {"total_env_steps": 1_000_000, "num_envs": 8}),
        ({"lr": np.float32(0.5), "gamma": jnp.float32(0.5)}, {"lr": 0.5, "gamma": 0.5}),
        ({"num_epochs": np.int64(3), "num_envs": np.array([8])}, {"num_epochs": 3, "num_envs": 8}),
        ({"use_kl_loss": np.bool_(False)}, {"use_kl_loss": False}),
        ({"fcnet_hiddens": np.array([64, 32])}, {"fcnet_hiddens": (64, 32)}),
        ({"lr": np.array([[0, 0.5], [100, 0.25]])}, {"lr": ((0, 0.5), (100, 0.25))}),
    ],
)
def test_a_value_in_rllibs_or_numpys_form_is_the_same_configuration(foreign, here):
    assert PPOConfig(**ARENA, **foreign) == PPOConfig(**ARENA, **here)
    assert PPOConfig(**ARENA).replace(**foreign) == PPOConfig(**ARENA).replace(**here)
    assert PPOConfig.from_dict(PPOConfig(**ARENA, **foreign).to_dict()) == PPOConfig(
        **ARENA, **here
    )


def test_policies_may_be_names_or_specs_where_the_environment_says_who_plays_whom():
    default = PPOConfig(**ARENA).setup().policies
    specs = {
        "pol1": (None, None, None, {"lr": 0.5, "model": {"fcnet_hiddens": [8]}}),
        "pol2": PolicySpec({}),
    }
    for policies in (
        {"pol1", "pol2"},
        ["pol2", "pol1"],
        specs,
        {"pol1": None, "pol2": PolicySpec()},
    ):
        config = PPOConfig(**ARENA, policies=policies)
        assert config.setup().policies == default
        assert PPOConfig.from_dict(config.to_dict()) == config
    assert PPOConfig(**ARENA, policies=specs).for_policy("pol1").fcnet_hiddens == (8,)
    assert PPOConfig(**ARENA, policies=specs).for_policy("pol1").lr == 0.5
    assert (
        PPOConfig(**ARENA, policies=specs, per_policy={"pol1": {"lr": 0.1}}).for_policy("pol1").lr
        == 0.1
    )
    assert PPOConfig(**ARENA, policies={"agent1", "agent2"}).setup().policies == {
        "agent1": ("agent1",),
        "agent2": ("agent2",),
    }
    assert PPOConfig(**ARENA, policies={"all"}).setup().policies == {"all": ("agent1", "agent2")}


def test_policies_as_names_leave_per_policy_as_it_is_and_a_specs_own_settings_add_to_it():
    config = PPOConfig(**ARENA, per_policy={"pol1": {"lr": 0.25, "gamma": 0.5}})
    assert config.replace(policies={"pol1": None, "pol2": None}).per_policy == config.per_policy
    specs = {"pol1": PolicySpec({"lr": 0.5}), "pol2": PolicySpec({"gamma": 0.75})}
    expected = {"pol1": {"lr": 0.5, "gamma": 0.5}, "pol2": {"gamma": 0.75}}
    assert config.replace(policies=specs).to_dict()["per_policy"] == expected


@pytest.mark.parametrize(
    "function", [lambda policy: policy == "pol1", lambda policy, batch: policy == "pol1"]
)
def test_policies_to_train_may_be_a_function_which_is_stored_as_what_it_answered(function):
    config = PPOConfig(**ARENA, policies_to_train=function)
    assert config.setup().trained == ("pol1",)
    assert config.build().trained == ("pol1",)
    facts = config_facts(config, config.setup().policies)
    assert facts["objects"] == []
    assert read_config(facts, "a_test").policies_to_train == ("pol1",)


def test_a_seed_of_none_is_drawn_and_recorded():
    first, second = PPOConfig(**ARENA, seed=None), PPOConfig(**ARENA, seed=None)
    assert first.seed != second.seed  # by chance once in two billion
    assert first.replace(lr=0.5).seed == first.seed == PPOConfig.from_dict(first.to_dict()).seed
    assert first.replace(seed=None).seed != first.seed


BAD = [
    (
        {"model": {"fcnet_hiden": [64]}},
        "unknown setting 'fcnet_hiden' of model; did you mean 'fcnet_hiddens'",
    ),
    (
        {"model": {"custom_model": "mine"}},
        "unknown setting 'custom_model' of model: RLlib's name for model",
    ),
    ({"model": {"fcnet_hiddens": [64]}, "fcnet_hiddens": [32]}, "fcnet_hiddens is given twice"),
    (
        {"conv_filters": [[16, [3, 5], 2]]},
        r"conv_filters: the kernel \[3, 5\] of layer .* must be square",
    ),
    (
        {"policies": {"pol1": PolicySpec({"lr": 1.0})}, "per_policy": 3},
        "per_policy=3 must be a mapping",
    ),
    ({"policies": {"pol1": (PolicySpec, None, None, {})}}, r"policies\['pol1'\] names a class"),
    (
        {"policies": {"pol1": (None, None, None, 3)}},
        r"policies\['pol1'\]: the configuration 3 must be a mapping",
    ),
    (
        {"policies": {"pol1": PolicySpec({"learning_rate": 1})}},
        "'learning_rate' of policy 'pol1': SB3's name for lr",
    ),
    ({"policies": lambda agent: 1 / 0}, "the mapping function raises ZeroDivisionError"),
    (
        {"policies": lambda agent: None},
        "the mapping function gives None for agent 'agent1', not a name",
    ),
    (
        {"policies_to_train": lambda policy: 1 / 0},
        "policies_to_train: the function raises ZeroDivisionError",
    ),
    ({"policies_to_train": {1, 2}}, r"policies_to_train=\{1, 2\} must hold names"),
    (
        {"optimizer": {"adam_epsilon": 1e-5}, "adam_epsilon": 1e-6},
        r"adam_epsilon is given twice: in optimizer=\{\.\.\.\} and beside it",
    ),
    ({"optimizer": {"type": "adam"}}, "optimizer=.* must be a function from the learning rate"),
    (
        {"train_batch_size": 4001},
        "train_batch_size=4001 is no product .* give num_envs or rollout_length",
    ),
    ({"fcnet_hiddens": {64, 32}}, "fcnet_hiddens=.* is a set: give a list"),
    ({"env_args": {"width": {1, 2}}}, r"arena with height=10 and width=\{1, 2\}: both must be"),
    ({"lr": bytearray(b"x")}, "lr=.* is a bytearray: a setting must be hashable"),
    (
        {"num_envs": 2**31, "rollout_length": 1},
        "num_envs=2147483648 must be an integer of at most 2147483647",
    ),
    ({"seed": 2**32}, "seed=4294967296 must be an integer of at most 4294967295"),
    ({"total_env_steps": 2**62}, "are .* iterations of train_batch_size=4000; at most"),
    ({"lr": 10**400}, "lr=1000.* is more than float32 holds"),
    ({"vf_clip_param": 1e300}, r"vf_clip_param=1e\+300 is more than float32 holds"),
    ({"grad_clip": 1e-60}, "grad_clip=1e-60 is 0 in float32, and must be above it"),
    ({"gamma": np.ones(1000)}, r"gamma=\(1.0, 1.0, .*\.\.\. must be a number"),
    ({"fcnet_hiddens": (2**31,)}, "layer size=2147483648 must be an integer of at most"),
    ({"num_envs": 2**15, "rollout_length": 2**15}, "a rollout needs at least .* GiB; there are"),
    (
        {"fcnet_hiddens": (2**20, 2**20)},
        "fcnet_hiddens=.* of policy 'pol1': learning its .* needs at least",
    ),
    (
        {"metrics_num_episodes_for_smoothing": 2**31 - 1},
        "metrics_num_episodes_for_smoothing=.* needs at least",
    ),
    (
        {
            "use_attention": True,
            "attention_num_heads": 1024,
            "attention_head_dim": 2048,
            "attention_dim": 256,
        },
        "attention_num_heads=1024 x attention_head_dim=2048 of policy 'pol1': learning its .* "
        "needs at least",
    ),
    (
        {
            "use_attention": True,
            "attention_dim": 1024,
            "num_envs": 2000,
            "attention_memory_inference": 2**16,
        },
        "what the network of policy 'pol1' remembers needs at least",
    ),
]


@pytest.mark.parametrize(("settings", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_work_is_refused_in_one_line_that_names_the_setting(
    settings, message, monkeypatch
):
    monkeypatch.setattr(machine, "host_memory", lambda: 16 * machine.GIB)
    steps = {"total_env_steps": 2**40} | settings if "rollout_length" in settings else settings
    with pytest.raises(UsageError, match=message) as refused:
        make_train({**ARENA, **steps})
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_traced_number_is_refused_by_name():
    with pytest.raises(UsageError, match=r"lr=.* is no plain value"):
        jax.jit(lambda lr: PPOConfig(**ARENA, lr=lr).lr)(0.5)


def test_memory_of_an_accelerator_counts_where_it_is_more_than_the_hosts(monkeypatch):
    monkeypatch.setattr(machine, "host_memory", lambda: machine.GIB)
    monkeypatch.setattr(machine, "most_memory", lambda: 1000 * machine.GIB)
    make_train({**ARENA, "num_envs": 2**15, "rollout_length": 2**10, "total_env_steps": 2**40})


def test_several_cpu_processes_have_the_memory_of_as_many_machines(monkeypatch):
    monkeypatch.setattr(machine, "host_memory", lambda: machine.GIB)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    assert machine.most_memory() == 3 * machine.GIB


def test_what_is_too_large_to_be_trained_here_may_still_be_played_and_described(monkeypatch):
    monkeypatch.setattr(machine, "host_memory", lambda: machine.MIB)
    config = PPOConfig(**ARENA, fcnet_hiddens=(2**14,))
    assert config.build().policy_specs
    assert "network 16384 tanh" in config.describe()
    with pytest.raises(UsageError, match=r"needs at least .* there are 1 MiB"):
        Trainer(config, run_dir=None, quiet=True)
    with pytest.raises(UsageError, match=r"needs at least .* there are 1 MiB"):
        jaxrl.sweep(config, run_dir=None, quiet=True, seeds=2)


test_a_runs_settings_are_refused_by_name = refused_by(
    lambda settings: RunSettings(**settings),
    [
        (
            {"stop": {"training_iteration": "ten"}},
            "stop criterion training_iteration='ten' must be a number",
        ),
        ({"stop": 5}, "stop=5 must be a mapping"),
        ({"init_from": {"pol1": 3}}, "init_from: policy 'pol1' must name a run's path, not 3"),
        ({"loggers": 0}, "loggers=0 must be a list of names"),
        ({"keep": 2**40}, "keep=1099511627776 must be an integer of at most"),
        ({"evaluation_seed": 2**32}, "evaluation_seed=4294967296 must be an integer of at most"),
        ({"devices": {1}}, r"devices=\{1\} is a set"),
    ],
)


@pytest.mark.parametrize("wrong", [5, "training_iteration", [("training_iteration", 3)]])
def test_fit_refuses_what_is_no_criteria(wrong):
    with pytest.raises(UsageError, match="fit takes criteria such as"):
        criteria_of(wrong)


def test_a_runs_settings_take_numpys_numbers():
    assert (
        RunSettings(keep=np.int64(3), evaluation_duration=1e1, pictures=np.bool_(True))
        == RunSettings()
    )
