"""Algorithms of users and of installed packages, by their names on the command line."""

import json
import pickle
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from jaxrl import PPOConfig, UsageError
from jaxrl.algorithms.config import algorithm_config
from jaxrl.algorithms.validators import schedule
from jaxrl.cli import algorithms
from jaxrl.cli.evaluate import evaluate
from jaxrl.cli.sweep import run_sweep
from jaxrl.cli.train import parse, train_ppo
from jaxrl.core import trust
from jaxrl.core.fields import number, setting
from tests.algorithms.reinforce import ReinforceConfig

REINFORCE = f"{ReinforceConfig.__module__}:ReinforceConfig"
SIZES = {"num-envs": 2, "rollout-length": 8, "total-env-steps": 32}
SMALL = ["--env", "cartpole", *(word for name in SIZES for word in (f"--{name}", str(SIZES[name])))]
NO_CACHE = ("--compile-cache", "off")


@algorithm_config
class WeightedPPO(PPOConfig):
    """PPO with a coefficient of its own."""

    my_coeff: float = setting(0.5, "weight of a term", number(0), traced=True)
    my_schedule: Any = setting(0.0, "weight of another term", schedule(), traced=True)


WEIGHTED = f"{__name__}:WeightedPPO"


def test_a_module_and_class_name_an_algorithm_whose_settings_are_flags():
    config = parse(["--algorithm", REINFORCE, "--env", "cartpole", "--lr", "0.5"]).config
    assert config == ReinforceConfig(env="cartpole", lr=0.5)


def test_a_subclass_of_ppo_begins_with_the_tuned_settings_and_has_its_own_beside_them():
    order = parse(["--algorithm", WEIGHTED, "--env", "cartpole", "--my-coeff", "2"])
    assert order.config == WeightedPPO.tuned("cartpole", my_coeff=2)
    assert order.source == "tuned for cartpole, but my_coeff=2"
    plain = parse(["--algorithm", WEIGHTED, "--env", "cartpole", "--tuned", "False"])
    assert (plain.config, plain.source) == (WeightedPPO(env="cartpole"), "the defaults")


def test_a_flag_of_an_own_algorithm_is_read_as_its_setting_is_declared():
    line = ["--algorithm", WEIGHTED, "--env", "cartpole", "--my-schedule", "0:1", "100:0"]
    assert parse(line).config.my_schedule == ((0, 1), (100, 0))
    words = [*line[:-3], "--per-policy", "default_policy.my_schedule=0:1,100:0"]
    (_, settings), *_ = parse(words).config.per_policy
    assert dict(settings) == {"my_schedule": ((0, 1), (100, 0))}
    with pytest.raises(UsageError, match="--lr takes one value, and '1:0' is a second one"):
        parse(["--algorithm", REINFORCE, "--env", "cartpole", "--lr", "0:1", "1:0"])


def test_a_coefficient_of_a_subclass_is_among_its_numbers():
    numbers = WeightedPPO(env="cartpole").hypers(my_coeff=3.0)["default_policy"]
    assert (numbers.my_coeff, numbers.gamma) == (3.0, PPOConfig.gamma)
    assert numbers.at(0.0).my_coeff == 3.0
    assert pickle.loads(pickle.dumps(numbers)).my_coeff == 3.0


def test_an_algorithm_that_is_added_to_the_table_is_the_one_that_trains(monkeypatch):
    monkeypatch.setitem(algorithms.ALGORITHMS, "reinforce", ReinforceConfig)
    assert type(parse(["--algorithm", "reinforce", "--env", "cartpole"]).config) is ReinforceConfig


def test_an_installed_package_announces_an_algorithm_by_a_name(monkeypatch):
    point = EntryPoint("williams", REINFORCE, "jaxrl.algorithms")
    announced = lambda group: {"williams": point} if group == "jaxrl.algorithms" else {}
    monkeypatch.setattr(algorithms, "points_of", announced)
    config = parse(["--algorithm", "williams", "--gamma", "0.5"]).config
    assert config == ReinforceConfig(env="arena", gamma=0.5)
    with pytest.raises(UsageError, match="unknown algorithm 'wiliams'; did you mean 'williams'"):
        parse(["--algorithm", "wiliams"])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["no_module:X"], "unknown configuration class 'no_module:X': there is no module"),
        ([f"{ReinforceConfig.__module__}:Reinforce"], "did you mean 'ReinforceConfig'"),
        ([f"{ReinforceConfig.__module__}:make_reinforce"], "not a configuration such as PPOConfig"),
        (["broken_algorithm:X"], "cannot be imported: ZeroDivisionError"),
        ([f"{REINFORCE}(lr=1)"], "unknown algorithm"),
        ([REINFORCE, "--clip-param", "0.1"], "--clip-param is a setting of PPOConfig"),
        (["ppo", "--my-coeff", "1"], "unknown flag '--my-coeff'"),
    ],
)
def test_what_is_no_algorithm_is_refused_in_a_line(words, error, tmp_path, monkeypatch):
    (tmp_path / "broken_algorithm.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^[^\n]*$") as refused:
        parse(["--algorithm", *words])
    assert error in str(refused.value)


@pytest.mark.parametrize(("command", "flag"), [(train_ppo, "--resume"), (run_sweep, "--grid")])
def test_help_shows_the_flags_of_an_own_algorithm(command, flag, capsys):
    with pytest.raises(SystemExit):
        command(["--algorithm", WEIGHTED, "--help-all"])
    shown = capsys.readouterr().out
    assert "weight of a term (default: 0.5)" in shown
    assert flag in shown


@pytest.mark.slow
@pytest.mark.long
def test_an_own_algorithm_trains_resumes_sweeps_and_is_evaluated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trust, "_is_defined_here", lambda kind, named: False)  # as elsewhere
    train_ppo(["--algorithm", REINFORCE, *SMALL, *NO_CACHE, "--run-dir", "run"])
    with pytest.raises(SystemExit) as ended:
        train_ppo(["--resume", "run", "--total-env-steps", "64"])
    assert ended.value.code == 2
    assert f"{REINFORCE!r}, which is not part of jaxrl" in capsys.readouterr().err
    longer = ["--total-env-steps", "64", "--lr", "0.5"]
    train_ppo(["--resume", "run", "--trust", *longer, *NO_CACHE])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["training_iteration"] for line in lines] == [1, 2, 3, 4]
    evaluate(["run", "--trust", "--episodes", "2", *NO_CACHE])
    assert "2 episodes of run" in capsys.readouterr().out
    grid = ["--grid", "my_coeff=0.1,0.2", "--num-epochs", "1", "--minibatch-size", "16"]
    run_sweep(["--algorithm", WEIGHTED, *SMALL, *grid, *NO_CACHE, "--run-dir", "sweep"])
    assert "my_coeff" in capsys.readouterr().out
