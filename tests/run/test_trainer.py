"""The Trainer: results, stop criteria in the very iteration, the run's folder, Ctrl-C."""

import ipaddress
import json
import math
import os
import re
import signal
import socket
import threading
import time
from fractions import Fraction
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, UsageError
from jaxrl.run.results import flatten, lookup
from jaxrl.run.settings import RunSettings
from jaxrl.run.stopping import check_stop
from tests.messages import refusal, refused
from tests.probes import Leavers, Probe
from tests.programs import SMALL_ARENA as CONFIG
from tests.programs import SMALL_REINFORCE, lines_of


@pytest.fixture
def trainer():
    return Trainer(CONFIG, run_dir=None, quiet=True)


def test_a_result_is_rllibs_tree_and_a_return_is_absent_before_an_episode_has_ended(trainer):
    first, second = trainer.train(), trainer.train()  # 16 steps each of episodes of 20
    assert "episode_return_mean" not in first["env_runners"]
    assert first["env_runners"]["num_episodes"] == 0
    assert (second["training_iteration"], second["num_env_steps_sampled_lifetime"]) == (2, 128)
    runners = second["env_runners"]
    assert runners["num_episodes"] == runners["num_episodes_lifetime"] == 4
    assert runners["num_agent_steps_sampled"] == {"agent1": 64, "agent2": 64}
    assert {runners[f"episode_len_{kind}"] for kind in ("mean", "min", "max")} == {20}
    by_agent, by_module = (runners[f"{of}_episode_returns_mean"] for of in ("agent", "module"))
    assert runners["episode_return_mean"] == pytest.approx(sum(by_agent.values()), abs=1e-4)
    assert by_module["pol1"] == by_agent["agent1"]
    for policy in ("pol1", "pol2"):
        least, mean, most = (
            runners[f"module_episode_returns_{part}"][policy] for part in ("min", "mean", "max")
        )
        assert least <= mean <= most
    assert {"num_collisions_mean", "new_fields_discovered_max"} <= set(runners["custom_metrics"])
    learner = second["learners"]["pol1"]
    assert {"total_loss", "policy_loss", "entropy", "mean_kl_loss", "clip_fraction"} <= set(learner)
    assert {"vf_loss", "vf_loss_unclipped", "vf_explained_var"} <= set(learner)
    assert {"curr_kl_coeff", "curr_entropy_coeff"} <= set(learner)
    assert learner["num_module_steps_trained"] == 2 * 64
    assert second["perf"]["env_steps_per_s"] == pytest.approx(64 / second["time_this_iter_s"])


def test_results_are_those_of_every_iteration_with_a_log_and_without(trainer, start, resume):
    shown = [trainer.train() for _ in range(3)]
    assert trainer.results() == shown
    logged = start(CONFIG)
    assert logged.results() == []
    logged.fit({"training_iteration": 2})
    logged.stop()
    resumed = resume()
    resumed.train()
    assert [row["training_iteration"] for row in resumed.results()] == [1, 2, 3]
    learned = [lookup(row, "learners/pol1/total_loss") for row in resumed.results()]
    assert learned == [lookup(row, "learners/pol1/total_loss") for row in shown]


def test_a_trainer_plots_what_it_has_trained(trainer):
    for _ in range(3):
        last = trainer.train()
    drawn = trainer.plot()
    (line,) = [line for line in drawn.axes[0].lines if line.get_label().startswith("sum")]
    assert line.get_ydata()[-1] == pytest.approx(last["env_runners"]["episode_return_mean"])
    assert [text.get_text() for text in drawn.texts] == ["arena", "192 environment steps", "seed 0"]


def test_a_result_says_when_and_where_and_counts_over_the_run_as_rllib_does(trainer):
    before = time.time()
    rows = [trainer.train() for _ in range(3)]
    assert [row["iterations_since_restore"] for row in rows] == [1, 2, 3]
    assert [row["time_since_restore"] for row in rows] == [row["time_total_s"] for row in rows]
    assert int(before) <= rows[0]["timestamp"] <= rows[-1]["timestamp"] <= time.time()
    assert (rows[-1]["pid"], rows[-1]["hostname"]) == (os.getpid(), socket.gethostname())
    last = rows[-1]
    assert ipaddress.ip_address(last["node_ip"]).version == 4 and "trial_id" not in last
    assert time.mktime(time.strptime(last["date"], "%Y-%m-%d_%H-%M-%S")) == last["timestamp"]
    assert last["num_episodes_lifetime"] == last["env_runners"]["num_episodes_lifetime"] == 8
    assert last["num_env_steps_trained_lifetime"] == 3 * 64
    runners = last["env_runners"]
    assert runners["num_agent_steps_sampled_lifetime"] == {"agent1": 3 * 64, "agent2": 3 * 64}
    assert runners["num_module_steps_sampled"] == {"pol1": 64, "pol2": 64}
    assert runners["num_module_steps_sampled_lifetime"] == {"pol1": 3 * 64, "pol2": 3 * 64}
    losses = [last["learners"][policy]["total_loss"] for policy in ("pol1", "pol2")]
    together = last["learners"]["__all_modules__"]
    assert together["total_loss"] == sum(losses)
    trained = sum(row["learners"]["pol1"]["num_module_steps_trained"] for row in rows)
    assert trained == last["learners"]["pol1"]["num_module_steps_trained_lifetime"] > 0
    assert together["num_module_steps_trained_lifetime"] == 2 * trained


def test_a_result_says_how_busy_the_machine_is(trainer):
    pytest.importorskip("psutil", reason="psutil measures it")
    trainer.train()
    load = trainer.train()["perf"]
    assert 0 <= load["cpu_util_percent"] <= 100  # 0 where no tick of its clock lies between
    assert 0 < load["ram_util_percent"] <= 100


@pytest.mark.long
def test_the_mean_length_of_an_episode_is_reported_by_agent_also_where_one_leaves_early(trainer):
    for _ in range(2):
        runners = trainer.train()["env_runners"]
    assert runners["agent_steps"] == {"agent1": 20, "agent2": 20}
    config = SMALL_REINFORCE.replace(env=Leavers(), policies="per-agent")
    leavers = Trainer(config, run_dir=None, quiet=True)
    runners = leavers.train()["env_runners"]
    assert runners["agent_steps"] == {"short": 1, "long": 4, "wide": 4}
    assert runners["num_agent_steps_sampled_lifetime"] == {"short": 16, "long": 64, "wide": 64}
    assert leavers.evaluate()["env_runners"]["agent_steps"] == {"short": 1, "long": 4, "wide": 4}


def documented_paths():
    """Every path in docs/results.md's tables as a pattern; `...` and <names> are anything."""
    sections = {"## `env_runners/`": "env_runners/", "## `learners/`": "learners/"}
    prefix, patterns = "", []
    page = Path(__file__).parents[2] / "docs" / "results.md"
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            prefix = next((path for title, path in sections.items() if line.startswith(title)), "")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]) if line.startswith("| `") else ():
            patterns.append(re.sub(r"<\w+>|\\\.\\\.\\\.", ".+", re.escape(prefix + name)))
    return patterns


def test_every_key_of_a_result_is_in_the_docs():
    evaluated = {"evaluation_interval": 2, "evaluation_duration": 2}
    trainer = Trainer(CONFIG, run_dir=None, quiet=True, **evaluated)
    found = {path for result in (trainer.train(), trainer.train()) for path, _ in flatten(result)}
    documented = re.compile("|".join(f"(?:{pattern})" for pattern in documented_paths()))
    assert [path for path in sorted(found) if not documented.fullmatch(path)] == []
    assert not documented.fullmatch("env_runners/unheard_of")


@pytest.mark.long
def test_a_result_holds_the_last_episodes_one_by_one(trainer):
    assert "hist_stats" not in trainer.train()
    result = trainer.fit({"training_iteration": 9})
    runners, episodes = result["env_runners"], result["hist_stats"]
    assert len(episodes["episode_reward"]) == runners["num_episodes_lifetime"] == 28
    assert episodes["episode_lengths"] == [20] * 28
    assert np.mean(episodes["episode_reward"]) == pytest.approx(
        runners["episode_return_mean"], rel=1e-5
    )
    assert max(episodes["episode_reward"]) == pytest.approx(runners["episode_return_max"], rel=1e-6)
    few = Trainer(CONFIG.replace(metrics_num_episodes_for_smoothing=3), run_dir=None, quiet=True)
    few.loop.seconds_per_update = 1e-3  # as if it knew already that a chunk may be long
    # The chunk runs past it, and is computed again.
    shorter = few.fit({"env_runners/num_episodes_lifetime": 28})
    assert shorter["hist_stats"]["episode_reward"] == pytest.approx(episodes["episode_reward"][-3:])


@pytest.mark.parametrize(
    "settings", [{"stop": {"nonsense": 1}}, {"checkpoint_score_attribute": "nonsense"}]
)
def test_a_result_that_does_not_exist_is_refused_before_there_is_a_folder(settings, tmp_path):
    with pytest.raises(UsageError, match="'nonsense'"):
        Trainer(CONFIG, run_dir=tmp_path / "run", quiet=True, **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "stop", [{"nonsense": 1}, {"training_iteration": "two"}, {"done": math.nan}, 30]
)
def test_a_wrong_criterion_of_fit_leaves_no_folder(stop, tmp_path):
    trainer = Trainer(CONFIG, run_dir=tmp_path / "run", quiet=True)
    with refusal("criteri"):
        trainer.fit(stop)
    assert os.listdir(tmp_path) == []


@pytest.mark.long
def test_a_trainer_makes_its_folder_again_after_a_wrong_criterion_and_keeps_what_it_trained(
    tmp_path,
):
    folder = tmp_path / "run"
    with Trainer(CONFIG, run_dir=folder, quiet=True, pictures=False) as trainer:
        for _ in range(2):
            with refusal("unknown stop criterion 'nonsense'"):
                trainer.fit({"nonsense": 1})
            assert folder.exists() == (trainer.lifetime.training_iteration > 0)
            trainer.fit({"training_iteration": 2})
    assert [line["training_iteration"] for line in lines_of(folder)] == [1, 2]
    assert {"config.json", "checkpoints"} <= set(os.listdir(folder))


@pytest.mark.parametrize("least", [Fraction(1, 2), True, math.nan, "x"])
def test_a_criterion_that_is_no_int_or_float_is_refused_wherever_it_is_given(least):
    stop = {"training_iteration": least}
    for give in (lambda: RunSettings(stop=stop), lambda: check_stop(stop, None)):
        with pytest.raises(UsageError, match=r"^stop criterion training_iteration=.* must be a"):
            give()
    assert RunSettings(stop={"training_iteration": np.float32(2.5)}).stop is not None
    check_stop({"training_iteration": np.float32(2.5)}, None)


@pytest.mark.long
def test_criteria_may_be_any_number_of_a_row_and_one_agent_has_rllibs_singular_names(trainer):
    assert trainer.fit({"iterations_since_restore": 2})["training_iteration"] == 2
    assert trainer.fit({"num_episodes_lifetime": 5})["num_episodes_lifetime"] >= 5
    with pytest.raises(UsageError, match="unknown stop criterion 'hostname'"):
        trainer.fit({"hostname": 3})
    probe = CONFIG.replace(env=Probe(reward_for="action"), env_args=())
    alone = Trainer(probe, run_dir=None, quiet=True)
    result = alone.fit({"env_runners/agent_episode_return_mean/default_agent": -100.0})
    assert result["training_iteration"] == 1
    runners = result["env_runners"]
    assert runners["module_episode_return_mean"] == runners["module_episode_returns_mean"]


def test_the_arena_reports_what_its_rewards_say(trainer):
    """By the rules agent2's return is collisions - 0.1 (steps - collisions)."""
    for _ in range(3):
        runners = trainer.train()["env_runners"]
    collisions = runners["custom_metrics"]["num_collisions_mean"]
    expected = collisions - 0.1 * (20 - collisions)
    assert runners["agent_episode_returns_mean"]["agent2"] == pytest.approx(expected, abs=1e-4)


def test_training_ends_in_the_very_iteration_that_meets_a_criterion(trainer):
    for _ in range(3):
        trainer.train()
    state = jax.tree.map(lambda leaf: leaf, trainer.runner)
    episodes = lookup(trainer.last_result, "env_runners/num_episodes_lifetime")
    again = Trainer(CONFIG, run_dir=None, quiet=True)
    again.loop.seconds_per_update = 1e-3  # as if it knew already that a chunk may be long
    result = again.fit({"env_runners/num_episodes_lifetime": episodes})
    assert result["done"]
    assert result["training_iteration"] == again.lifetime.training_iteration == 3 - (episodes == 4)
    assert again.runner.num_updates == again.lifetime.training_iteration
    jax.tree.map(np.testing.assert_array_equal, again.runner.learners, state.learners)


@pytest.mark.parametrize(("steps", "iterations"), [(64, 1), (65, 2), (640, 10)])
def test_a_limit_of_steps_counts_whole_iterations(trainer, steps, iterations):
    result = trainer.fit({"num_env_steps_sampled_lifetime": steps})
    assert result["training_iteration"] == iterations


def test_without_criteria_the_configured_steps_are_trained_and_no_more(trainer):
    assert trainer.fit()["num_env_steps_sampled_lifetime"] == CONFIG.total_env_steps
    assert trainer.fit()["num_env_steps_sampled_lifetime"] == CONFIG.total_env_steps


@pytest.mark.long
def test_every_iteration_is_a_line_of_the_run_folder_and_the_settings_lie_beside(tmp_path):
    trainer = Trainer(CONFIG, run_dir=tmp_path / "run", quiet=True)
    trainer.fit()
    lines = lines_of(tmp_path / "run")
    assert [line["training_iteration"] for line in lines] == list(range(1, 41))
    assert dict(flatten(lines[-1]))["env_runners/num_episodes_lifetime"] == 4 * (40 * 16 // 20)
    assert [line["done"] for line in lines] == [False] * 39 + [True]
    config, metadata = (
        json.loads((tmp_path / "run" / f"{name}.json").read_text())
        for name in ("config", "metadata")
    )
    assert PPOConfig.from_dict(config) == CONFIG
    assert metadata["versions"]["jax"] == jax.__version__


def test_the_default_folder_has_a_name_for_every_file_system(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainers = [Trainer(CONFIG, quiet=True) for _ in range(2)]
    assert len({trainer.run_dir for trainer in trainers}) == 2
    for trainer in trainers:
        assert ":" not in str(trainer.run_dir) and trainer.run_dir.parts[:2] == ("runs", "arena")


def test_a_folder_that_exists_or_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UsageError, match="exists already"):
        Trainer(CONFIG, run_dir=tmp_path, quiet=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        Trainer(CONFIG, run_dir=tmp_path / "file" / "run", quiet=True)


test_what_is_no_criterion_or_no_configuration_is_refused = refused(
    [
        (
            lambda trainer: trainer.fit({"env_runners/episode_reward_mean": 30}),
            "'env_runners/episode_reward_mean'; did you mean 'env_runners/episode_re",
        ),
        (
            lambda trainer: trainer.fit({"env_runners/episode_return_mean": float("nan")}),
            "must be a number",
        ),
        (lambda trainer: Trainer({"env": "arena"}), "Trainer takes a configuration"),
    ],
    fixture="trainer",
)


@pytest.mark.long
def test_ctrl_c_ends_training_with_what_has_been_learned():
    trainer = Trainer(CONFIG.replace(total_env_steps=64 * 10**7), run_dir=None, quiet=True)
    trainer.train()
    before = signal.getsignal(signal.SIGINT)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    result = trainer.fit()
    assert 1 < result["training_iteration"] < 10**7
    assert trainer.runner.num_updates == result["training_iteration"]
    assert signal.getsignal(signal.SIGINT) is before


def test_another_learning_rate_compiles_nothing_anew():
    first = Trainer(CONFIG, run_dir=None, quiet=True)
    first.train()
    second = Trainer(CONFIG.replace(lr=1e-2, gamma=0.5, seed=5), run_dir=None, quiet=True)
    second.train()
    assert second.program is first.program
    assert second.compile_seconds == 0.0


@pytest.mark.long
def test_trainers_of_numbers_of_different_shapes_do_not_disturb_each_other():
    first = Trainer(CONFIG, run_dir=None, quiet=True)
    second = Trainer(CONFIG.replace(lr=[[0, 1e-3], [100, 0.0]]), run_dir=None, quiet=True)
    first.train()
    second.train()
    for trainer, rate in ((first, 1e-3), (second, 0.36e-3)):
        learned = trainer.train()["learners"]["pol1"]
        assert learned["default_optimizer_learning_rate"] == pytest.approx(rate)


@pytest.mark.parametrize("method", ["fit", "train", "save"])
def test_a_stopped_trainer_says_what_resumes_its_run_instead_of_training_unrecorded(
    tmp_path, method
):
    settings = {"run_dir": tmp_path / "run", "quiet": True, "pictures": False, "loggers": ()}
    with Trainer(CONFIG, **settings) as trainer:
        trainer.train()
    with refusal(rf"^{method}: this trainer was stopped; Trainer.from_checkpoint\('.*run'\)"):
        getattr(trainer, method)()
    assert trainer.lifetime.training_iteration == 1
    with Trainer.from_checkpoint(tmp_path / "run", quiet=True) as resumed:
        assert resumed.train()["training_iteration"] == 2
    assert trainer.stop() is None  # again


def test_a_block_that_fails_keeps_what_was_trained(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        Trainer(CONFIG, run_dir=tmp_path / "run", quiet=True, pictures=False) as trainer,
    ):
        trainer.train()
        _ = 1 / 0
    resumed = Trainer.from_checkpoint(tmp_path / "run", quiet=True)
    assert resumed.lifetime.training_iteration == 1
    resumed.stop()


def test_fit_trains_nothing_if_the_last_result_meets_a_criterion_already(trainer, capsys):
    trainer.progress.console.quiet = False
    for _ in range(2):
        trainer.train()
    assert trainer.fit({"env_runners/num_episodes_lifetime": 4}) is trainer.last_result
    assert trainer.lifetime.training_iteration == 2
    told = "nothing to do: env_runners/num_episodes_lifetime=4 has reached the stop criterion 4"
    assert told in capsys.readouterr().out
    trainer.fit({"training_iteration": 1})
    told = "2 of 1 iterations are trained; a larger stop criterion training_iteration"
    assert told in capsys.readouterr().out
    assert trainer.fit({"env_runners/num_episodes_lifetime": 5})["training_iteration"] == 3


def test_total_env_steps_are_rounded_up_to_whole_iterations_and_the_plan_says_so():
    config = CONFIG.replace(total_env_steps=64 * 2 + 1)
    assert config.num_updates == 3
    assert "3 iterations, 192 steps (total_env_steps=129, rounded up)" in config.describe()
    assert "rounded" not in CONFIG.describe()
    assert Trainer(config, run_dir=None, quiet=True).fit()["num_env_steps_sampled_lifetime"] == 192


def test_an_infinite_limit_is_none_and_a_limit_already_reached_trains_nothing(trainer):
    assert trainer.fit({"training_iteration": 0}) is None
    result = trainer.fit({"training_iteration": float("inf")})
    assert result["training_iteration"] == CONFIG.num_updates


@pytest.mark.long
def test_a_single_agent_environment_reports_its_return_under_the_default_names():
    config = CONFIG.replace(env=Probe(reward_for="action"), env_args=())
    result = Trainer(config, run_dir=None, quiet=True).train()
    runners = result["env_runners"]
    assert runners["num_episodes"] == 64
    alone = {"default_agent": runners["episode_return_mean"]}
    assert runners["agent_episode_returns_mean"] == alone
    assert set(result["learners"]) == {"default_policy", "__all_modules__"}
