"""Flags mean what the same keywords mean in Python, also where a value equals a default."""

import json

import pytest
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st

import jaxrl.cli.sweep as sweep_command
from jaxrl import BCConfig, PPOConfig, Trainer, UsageError, from_rllib
from jaxrl.cli.algorithms import config_of
from jaxrl.cli.flags import flag_name
from jaxrl.cli.train import parse

# Among the values are the tuned ones of CartPole (64 x 32) and RLlib's defaults (40 x 100).
VALUES = {
    "num_envs": [16, 32, 40, 64],
    "rollout_length": [16, 32, 64, 100],
    "train_batch_size": [512, 1024, 2048, 4000],
    "minibatch_size": [32, 128, 256, 512],
    "num_epochs": [1, 4, 30],
    "total_env_steps": [4096, 1_000_000],
    "lr": [5e-5, 1e-3],
    "gamma": [0.9, 0.99],
    "fcnet_hiddens": [(256, 256), (64, 64)],
    "use_gru": [True, False],
    "normalize_returns": [True, False],
    "seed": [0, 1],
}
GIVEN = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}
)
FEW = tries(max_examples=25)
SPACES = {"observation_space": "Box(-1, 1, 3)", "action_space": "Discrete(2)"}


def words_of(settings):
    words = []
    for name, value in settings.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [flag_name(name), *map(str, values)]
    return words


def outcome(make):
    """The configuration, or the line that refuses it."""
    try:
        return make()
    except UsageError as error:
        return str(error)


def by_flags(*words):
    return outcome(lambda: parse([*words]).config)


def test_sizes_that_equal_tuned_ones_count_as_given():
    config = by_flags("--env", "cartpole", "--num-envs", "16", "--rollout-length", "32")
    assert config == PPOConfig.tuned("cartpole", num_envs=16, rollout_length=32)
    assert (config.num_envs, config.rollout_length) == (16, 32)


@FEW
@given(GIVEN)
def test_a_training_has_the_configuration_of_the_same_keywords(settings):
    expected = outcome(lambda: PPOConfig.tuned("cartpole", **settings))
    assert by_flags("--env", "cartpole", *words_of(settings)) == expected
    expected = outcome(lambda: PPOConfig(env="cartpole", **settings))
    assert by_flags("--env", "cartpole", "--tuned", "False", *words_of(settings)) == expected


@pytest.mark.long
@FEW
@given(GIVEN)
def test_so_has_one_whose_experience_comes_from_clients(settings):
    expected = outcome(lambda: PPOConfig.tuned("external", SPACES, **settings))
    assert by_flags("--env", "external", *words_of(SPACES), *words_of(settings)) == expected


@FEW
@given(GIVEN)
def test_so_has_one_that_begins_with_rllibs_configuration(tmp_path_factory, settings):
    path = tmp_path_factory.getbasetemp() / "params.json"
    path.write_text(json.dumps({"env": "CartPole-v1", "train_batch_size": 2048, "lr": 1e-3}))
    rllib = {"env": "cartpole", **settings}
    expected = outcome(lambda: from_rllib(str(path), **rllib).config)
    assert by_flags("--rllib-config", str(path), *words_of(rllib)) == expected


@pytest.mark.long
@FEW
@given(GIVEN)
def test_so_has_cloning(settings):
    cloning = ["--algorithm", "bc", "--input", "data", "--env", "cartpole"]
    settings = {name: settings[name] for name in settings if name in BCConfig.__dataclass_fields__}
    expected = outcome(lambda: BCConfig(env="cartpole", input="data", **settings))
    assert by_flags(*cloning, "--tuned", "False", *words_of(settings)) == expected
    base = config_of({"env": "cartpole", "input": ("data",)}, True, "bc")[0]
    expected = outcome(lambda: base.replace(**settings))
    if not isinstance(expected, str):
        assert by_flags(*cloning, *words_of(settings)) == expected


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was stopped before it began, of CartPole's tuned sizes."""
    config, path = PPOConfig.tuned("cartpole"), tmp_path_factory.mktemp("saved") / "run"
    Trainer(config, run_dir=path, quiet=True, pictures=False, loggers=()).stop()
    return config, path


@FEW
@given(GIVEN)
def test_so_has_a_run_that_is_resumed(run, settings):
    saved, path = run
    expected = outcome(lambda: saved.replace(**settings))
    assert by_flags("--resume", str(path), *words_of(settings)) == expected


@FEW
@given(GIVEN)
def test_so_has_every_trial_of_a_sweep(settings):
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_command, "sweep", lambda config, *_, **__: found.append(config))
        patch.setattr(sweep_command, "settled_devices", lambda *_, **__: None)
        patch.setattr(sweep_command.compile_cache, "use", lambda *_, **__: None)
        patch.setattr(sweep_command, "print_answer", lambda *_: None)
        patch.setattr(sweep_command, "summary", lambda *_: None)
        words = ["--env", "cartpole", "--seeds", "2", *words_of(settings)]
        found.append(outcome(lambda: sweep_command._sweep(words)))
    expected = outcome(lambda: PPOConfig.tuned("cartpole", **settings))
    assert found[0] == expected
