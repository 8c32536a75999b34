"""RLlib's and Tune's files on the command lines."""

import json
from pathlib import Path

import pytest

from jaxrl import MARWILConfig, PPOConfig
from jaxrl.cli.rllib_file import check_is_of
from jaxrl.cli.sweep import run_sweep
from jaxrl.cli.train import parse
from jaxrl.core.errors import UsageError
from jaxrl.run.storage import runs
from jaxrl.run.storage.config_file import config_facts
from tests.messages import refused_by

EXPERIMENT = {
    "cartpole-grid": {
        "run": "PPO",
        "env": "CartPole-v1",
        "stop": {"training_iteration": 2},
        "config": {
            **{"num_workers": 2, "train_batch_size": 64, "sgd_minibatch_size": 32},
            **{"num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}},
            "lr": {"grid_search": [1e-2, 1e-3]},
        },
    }
}


@pytest.fixture
def experiment(tmp_path):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(EXPERIMENT))
    return path


@pytest.mark.long
def test_a_file_that_tries_several_values_is_swept(experiment, tmp_path, capsys):
    folder = tmp_path / "sweep"
    run_sweep(["--rllib-config", str(experiment), "--run-dir", str(folder), "--devices", "1"])
    printed = capsys.readouterr().out
    assert "the first of several, which jaxrl.sweep" in " ".join(printed.split())
    assert "2 trials" in printed
    for trial, lr in (("0000", 1e-2), ("0001", 1e-3)):
        trial_folder = runs.resolve(folder / "trials" / trial)
        assert trial_folder.name == f"{trial}_lr={lr}"
        rows = (trial_folder / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(row)["training_iteration"] for row in rows] == [1, 2]
        config = json.loads((trial_folder / "config.json").read_text())
        assert config["lr"] == lr


def test_a_training_says_which_command_tries_several_values(experiment):
    with pytest.raises(UsageError, match="several values of lr: jaxrl sweep --rllib-config"):
        parse(["--rllib-config", str(experiment)])


@pytest.mark.parametrize(
    "change", [{"num_samples": 4}, {"config": {"seed": {"grid_search": [1, 2]}}}]
)
def test_a_training_of_several_seeds_is_a_sweep(change, tmp_path):
    path = tmp_path / "seeds.json"
    path.write_text(json.dumps({"run": "PPO", "env": "CartPole-v1", **change}))
    with pytest.raises(UsageError, match=r"several seeds: jaxrl sweep .* trains them all"):
        parse(["--rllib-config", str(path)])


def test_a_file_that_only_repeats_seeds_does_not_drop_its_output(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a short path, which the message gives whole
    settings = {"num_workers": 2, "output": "episodes"}
    Path("seeds.json").write_text(
        json.dumps({"run": "PPO", "env": "CartPole-v1", "num_samples": 2, "config": settings})
    )
    asked = ["--rllib-config", "seeds.json", "--run-dir", "sweep", "--quiet", "True"]
    with pytest.raises(SystemExit):
        run_sweep(asked)
    (line,) = capsys.readouterr().err.splitlines()
    assert "output='episodes' is a setting of one run, which no sweep takes" in line
    assert not Path("sweep").exists()
    swept = []
    monkeypatch.setattr("jaxrl.cli.sweep.sweep", lambda *_, **settings: swept.append(settings))
    run_sweep([*asked, "--ignore", "output"])
    assert [settings["seeds"] for settings in swept] == [2] and "output" not in swept[0]


def test_a_sweep_takes_rllibs_names_beside_its_own_flag_and_beside_a_file(
    experiment, tmp_path, capsys, monkeypatch
):
    swept = []
    take = lambda config, *_, stop, **settings: swept.append((config.env_args, stop))
    monkeypatch.setattr("jaxrl.cli.sweep.sweep", take)
    monkeypatch.setattr("jaxrl.cli.sweep.summary", lambda done: "")
    for begin in (["--run", "PPO", "--seeds", "2"], ["-f", str(experiment)]):
        words = ["--env", "CartPole-v0", "--stop", '{"episode_reward_mean": 9}']
        run_sweep([*begin, *words, "--run-dir", str(tmp_path / "sweep")])
    of_v0 = (("max_steps_in_episode", 200),)
    assert swept == [(of_v0, {"env_runners/episode_return_mean": 9})] * 2
    first, *table = capsys.readouterr().out.splitlines()
    assert first.startswith("CartPole-v0 of RLlib is env='cartpole', env_args=")
    assert any("env='CartPole-v0'" in line for line in table)


CARTPOLE = config_facts(PPOConfig(env="cartpole"), {})
SHORT = config_facts(PPOConfig(env="cartpole", env_args={"max_steps_in_episode": 200}), {})


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (CARTPOLE, ("PPO", "CartPole-v1", {})),
        (CARTPOLE, ("ppo", "cartpole", {})),
        (CARTPOLE, (None, "CartPole-v0", {"max_steps_in_episode": 200})),
        (SHORT, (None, "CartPole-v0", {})),
        (config_facts(PPOConfig(env="gym:CartPole-v1"), {}), (None, "CartPole-v1", {})),
        (config_facts(MARWILConfig(env="arena"), {}), ("MARWIL", None, {})),
    ],
)
def test_a_run_is_what_rllibs_words_beside_it_say(facts, words):
    assert check_is_of(facts, *words) is None


test_a_run_that_is_another_is_refused_in_one_line = refused_by(
    check_is_of,
    [
        (CARTPOLE, "BC", None, {}, "--algorithm 'BC': the run is of ppo; leave it out"),
        (CARTPOLE, None, "Pendulum-v1", {}, "--env 'Pendulum-v1': the run is in cartpole"),
        (CARTPOLE, None, "CartPole-v0", {}, "or give --env-args max_steps_in_episode=N"),
        (SHORT, None, "CartPole-v1", {}, "CartPole-v1 of RLlib is env='cartpole'; the run has an"),
        (SHORT, None, "CartPole-v0", {"max_steps_in_episode": 9}, "has another max_steps_in_ep"),
    ],
)


def test_a_flag_wins_over_the_values_that_a_file_tries(experiment, capsys):
    assert parse(["--rllib-config", str(experiment), "--lr", "5e-4"]).config.lr == 5e-4
    with pytest.raises(SystemExit):
        run_sweep(["--rllib-config", str(experiment), "--lr", "5e-4"])
    assert "nothing to sweep, this is one trial" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ignore", "lr"], "--ignore goes with --rllib-config FILE"),
        (["--rllib-config", "FILE", "--algorithm", "bc"], "leave out --algorithm"),
        (["--rllib-config", "missing.json"], "'missing.json' cannot be read"),
    ],
    ids=["ignore", "algorithm", "missing"],
)
def test_what_cannot_work_is_refused_by_a_sweep_too(argv, message, experiment, capsys):
    argv = [str(experiment) if word == "FILE" else word for word in argv]
    with pytest.raises(SystemExit) as ended:
        run_sweep([*argv, "--seeds", "2"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
