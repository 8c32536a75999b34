"""`scripts/sweep.py`: its flags, its mistakes in one line, and a sweep a person can follow."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl.cli.algorithms import config_of
from jaxrl.cli.flags import given_flags, read_flags
from jaxrl.cli.sweep import (
    lineage_lines,
    run_sweep,
    scheduler_of,
    sweep_flags,
    tried_of,
)
from jaxrl.sweeps.lineage import Lineage, Takeover
from jaxrl.sweeps.outcomes import TrialResult
from jaxrl.sweeps.results import Sweep
from jaxrl.sweeps.space import Grid, draws_of, grid_of, settings_of
from jaxrl.sweeps.trials import Trial, applied
from tests.messages import refused
from tests.programs import SMALL_CARTPOLE

HUGE = ("--num-envs", "2e6", "--rollout-length", "1000", "--total-env-steps", "2e9")
MUTATED = ("--hyperparam-mutations", "lr=loguniform:1e-5:1e-2", "gamma=0.9,0.99")
SCRIPT = Path(__file__).parents[2] / "scripts" / "sweep.py"


def options_of(words):
    return read_flags(given_flags(words, sweep_flags()), sweep_flags())


def test_a_grid_is_values_between_commas():
    words = ["lr=1e-4,3e-4", "fcnet_hiddens=[64,64],[256,256]", "pol1.gamma=0.9", "lambda=0.9,1"]
    found = grid_of("grid", words)
    assert found == {
        "lr": Grid((1e-4, 3e-4)),
        "fcnet_hiddens": Grid(((64, 64), (256, 256))),
        "pol1.gamma": Grid((0.9,)),
        "lambda_": Grid((0.9, 1)),
    }


def test_a_distribution_is_named_with_its_bounds():
    found = draws_of("random", ["lr=loguniform:1e-5:1e-2", "clip_param=choice:0.1:0.2:0.3"])
    found |= draws_of("random", ["gamma=quniform:0.9:1:0.05", "num_epochs=lograndint:1:9"])
    for settings in settings_of(found, 20):
        assert 1e-5 <= settings["lr"] <= 1e-2
        assert settings["clip_param"] in (0.1, 0.2, 0.3)
        assert np.isclose(settings["gamma"], [0.9, 0.95, 1]).any()
        assert settings["num_epochs"] in range(1, 9)


def test_population_based_training_has_a_flag_for_each_of_its_settings():
    words = ["--pbt", "--perturbation-interval", "5", "--perturbation-factors", "2", "0.5"]
    options = options_of([*words, *MUTATED])
    assert options.keys() > {"pbt", "perturbation_interval", "perturbation_factors"}
    found = scheduler_of(options)
    assert options == {}
    assert (found.perturbation_interval, found.perturbation_factors) == (5, (2, 0.5))
    assert found.to_dict()["hyperparam_mutations"] == {
        "gamma": {"grid_search": [[0.9, 0.99]]},
        "lr": {"loguniform": [1e-5, 1e-2]},
    }
    assert scheduler_of({}) is None


def test_a_population_ends_with_the_way_of_its_best_policy():
    trials = [Trial(i, {"lr": 2.0}, SMALL_CARTPOLE) for i in range(2)]
    result = {"training_iteration": 90}
    outcomes = [TrialResult(trial, "terminated", result, None) for trial in trials]
    copies = [Takeover(10 * i, i % 2, (i + 1) % 2, {"lr": i + 0.5}) for i in range(1, 9)]
    lineage = Lineage([{"lr": 0.1}, {"lr": 0.2}], copies)
    lines = lineage_lines(Sweep(outcomes, "m", None, lineage=lineage), outcomes[1])
    assert lines[0] == "lineage      of its policy, by iterations (8 copies in all):"
    assert lines[1] == "  1 to 10, trial 0001: lr=0.2"
    assert lines[2] == "  ... 2 more, see lineage_of(best_trial())"
    assert lines[-1] == "  81 to 90, trial 0001: lr=8.5"
    assert len(lines) == 9


test_what_it_does_not_understand_it_says = refused(
    [
        (lambda: grid_of("grid", ["lr"]), "--grid takes SETTING="),
        (lambda: grid_of("grid", ["lr="]), "--grid takes SETTING=VALUES, not 'lr'"),
        (lambda: grid_of("grid", ["lr=1", "lr=2"]), "names 'lr' twice"),
        (lambda: grid_of("grid", ["lambda=0.9", "lambda=0.8"]), "names 'lambda' twice"),
        (
            lambda: tried_of(options_of(["--grid", "lr=1,2", "--random", "lr=uniform:1:2"])),
            "lr is in --grid and in --random",
        ),
        (lambda: draws_of("random", ["num_epochs=randint:1.5:3"]), "both bounds must be integers"),
        (lambda: draws_of("random", ["lr=lognormal:1:2"]), "unknown distribution 'lognormal'"),
        (lambda: draws_of("random", ["lr=uniform:1"]), "takes two bounds"),
        (lambda: draws_of("random", ["lr=quniform:0:1"]), "bounds and Q, quniform:LOW:HIGH:Q"),
        (lambda: draws_of("random", ["lr=uniform:2:1"]), "low < high"),
    ]
)


@pytest.mark.parametrize(
    ("env", "tried", "has_model"),
    [
        ("arena", "lr", True),
        ("arena", "pol2.fcnet_hiddens", True),
        ("arena", "fcnet_hiddens", False),
        ("arena", "pol1.use_gru", False),
        ("arena", "model", False),
        ("waterworld", "fcnet_hiddens", False),
        ("waterworld", "default_policy.use_gru", False),
    ],
)
def test_a_tuned_model_makes_room_where_networks_are_tried(env, tried, has_model):
    options = {"env": env, "policies": "shared"} if env == "waterworld" else {"env": env}
    config, source = config_of(dict(options), True, "ppo", {tried})
    first = next(iter(config.setup().policies))
    assert (config.for_policy(first).model is not None) == has_model
    assert source == f"tuned for {env}"
    cloning, _ = config_of({**options, "input": "data"}, True, "bc", {tried})
    if not has_model:
        assert cloning.for_policy(first).model is None
    if "." in tried or tried == "fcnet_hiddens":
        values = {"use_gru": True, "fcnet_hiddens": (8,)}
        applied(config, {tried: values[tried.rpartition(".")[2]]}).build()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--env", "cartpole", "--grid", "lrr=1,2"),
            "sweep.py: unknown setting 'lrr'; did you mean 'lr'?",
        ),
        (("--env", "cartpole", "--grid", "lr="), "sweep.py: --grid takes SETTING=VALUES"),
        (("--env", "cartpole", "--grid"), "sweep.py: --grid takes values"),
        (
            ("--env", "cartpole", "--devices", "4000", "--seeds", "2"),
            "sweep.py: devices=4000: JAX has",
        ),
        (
            ("--env", "cartpole", "--seeds", "2", *HUGE),
            "fewer environments or shorter rollouts need less",
        ),
        (
            ("--env", "cartpole", "--lr", "1e-3"),
            "sweep.py: nothing to sweep, this is one trial: give several values",
        ),
        (
            ("--env", "cartpole", "--grid", "lr=3e-4"),
            "sweep.py: nothing to sweep, this is one trial: give several",
        ),
        (("--env", "cartpole", "--seed5", "2"), "sweep.py: unknown flag '--seed5'"),
        (("--resume", "nowhere"), "sweep.py: nowhere is not a sweep's folder"),
        (("--resume", "nowhere", "--seeds", "3"), "it takes no seeds"),
        (("--resume", "nowhere", "--grid", "lr=1,2"), "it takes no grid"),
        (
            ("--env", "cartpole", "--seeds", "4", "--quantile-fraction", "0.5"),
            "sweep.py: --quantile-fraction goes with --pbt",
        ),
        (
            ("--env", "cartpole", "--seeds", "2", "--pbt", *MUTATED),
            "sweep.py: a population of 2 is too small",
        ),
        (
            ("--env", "cartpole", "--seeds", "4", "--pbt"),
            "sweep.py: population-based training has no number to change",
        ),
    ],
)
def test_a_mistake_is_one_line_and_status_two(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_sweep(words)
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_the_script_itself_ends_with_that_line_and_status(tmp_path):
    command = [sys.executable, str(SCRIPT), "--env", "cartpole", "--grid", "lrr=1,2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.startswith("sweep.py: unknown setting 'lrr'; did you mean 'lr'?")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_sweep_says_its_plan_its_table_and_where_the_best_lies(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    small = "--env cartpole --tuned False --num-envs 4 --rollout-length 16 --minibatch-size 32"
    small += " --num-epochs 1"
    more = (
        "--fcnet-hiddens 8 --total-env-steps 256 --grid lr=1e-3,1e-2 --seeds 2 --compile-cache off"
    )
    run_sweep([*small.split(), *more.split(), "--run-dir", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    parts = (
        "4 trials in one program, 1,024 environment steps",
        "interquartile mean",
        "(range)",
        "best setting lr=",
    )
    for part in (*parts, "best trial ", "4 of 4 finished"):
        assert part in shown
    best = next(line.split()[-1] for line in shown.splitlines() if line.startswith("evaluate"))
    assert (Path(best) / "checkpoints").is_dir()
    assert (tmp_path / "out" / "curves.png").exists()
    run_sweep(["--resume", str(tmp_path / "out"), "--compile-cache", "off"])
    assert "interquartile mean" in capsys.readouterr().out
