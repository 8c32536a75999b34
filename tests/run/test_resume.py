"""Exact resume.

Training N and then N more is training 2N, in every array, every log and every count.
"""

import csv
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import LevelsBySuccess, Trainer, UsageError, make
from jaxrl.core.env import strongly_typed
from jaxrl.run.results import Lifetime, Snapshot, flatten
from jaxrl.run.storage import checkpoint
from jaxrl.run.storage.checkpoint import Checkpoint, named_arrays
from jaxrl.run.storage.run_state import facts_of, restore, state_tree
from tests.messages import refusal
from tests.probes import Leavers
from tests.programs import SMALL_CARTPOLE, lines_of

CARTPOLE = SMALL_CARTPOLE.replace(
    lr=[[0, 1e-3], [2000, 1e-4]], observation_filter="MeanStdFilter", total_env_steps=64 * 40
)
TIMES = ("time_", "timers/", "perf/", "date", "timestamp", "iterations_since_restore")
CHUNK = ("hist_stats/",)  # which the last result of each chunk holds


def assert_equal_to_the_bit(first, second):
    arrays, expected = named_arrays(first), named_arrays(second)
    assert list(arrays) == list(expected)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name, strict=True)


def without_times(result):
    return {name: value for name, value in flatten(result) if not name.startswith((*TIMES, *CHUNK))}


@pytest.mark.long
@pytest.mark.parametrize("which", ["arena", "cartpole", "randomised", "levels"])
def test_training_on_after_a_stop_gives_every_array_of_uninterrupted_training(
    which, small, start, stopped_after, resume, tmp_path
):
    randomised = CARTPOLE.replace(env_args={"gravity": "uniform:8:12"})
    levels = LevelsBySuccess([{"gravity": 1.0}, {"gravity": 5.0}, {}], window=2, solved_at=12.0)
    levelled = CARTPOLE.replace(curriculum=levels)
    configs = {"arena": small, "cartpole": CARTPOLE, "randomised": randomised, "levels": levelled}
    config = configs[which]
    whole = start(config, tmp_path / "whole")
    whole.fit({"training_iteration": 14})
    stopped_after(7, config)
    rest = resume()
    assert rest.lifetime.training_iteration == 7
    rest.fit({"training_iteration": 14})
    assert_equal_to_the_bit(rest.runner, whole.runner)
    lines, expected = lines_of(tmp_path / "run"), lines_of(tmp_path / "whole")
    assert [line["training_iteration"] for line in lines] == list(range(1, 15))
    assert [without_times(line) for line in lines if not line["done"]] == [
        without_times(line) for i, line in enumerate(expected, start=1) if i not in (7, 14)
    ]
    with (tmp_path / "run" / "progress.csv").open() as file:
        assert [row["training_iteration"] for row in csv.DictReader(file)] == [
            str(i) for i in range(1, 15)
        ]


@pytest.mark.long
def test_what_was_logged_after_the_checkpoint_is_computed_and_logged_again(
    stopped_after, resume, tmp_path
):
    stopped_after(6, checkpoint_frequency=4, checkpoint_at_end=False)
    before = lines_of(tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"training_iteration": 7, "env_run')  # what a kill may leave
    rest = resume()
    assert rest.lifetime.training_iteration == 4
    rest.fit({"training_iteration": 6})
    assert [without_times(line) for line in lines_of(tmp_path / "run")] == [
        without_times(line) for line in before
    ]


@pytest.mark.long
def test_what_a_kill_left_half_written_is_removed_on_resuming_and_nothing_else(
    stopped_after, resume
):
    def only(name):
        return f".{name}.{'0f' * 8}.png"

    run = stopped_after(2).run_dir
    others = (only("mine"), ".curves.png", ".curves.short.png")
    for name in (only("curves"), *others):
        (run / name).touch()
    (run / "checkpoints" / ".unfinished-000003").mkdir()
    resume().fit({"training_iteration": 3})
    assert not (run / only("curves")).exists()
    assert not (run / "checkpoints" / ".unfinished-000003").exists()
    assert all((run / name).exists() for name in others)


@pytest.mark.long
def test_a_run_with_a_checkpoint_that_a_kill_met_while_it_was_replaced_goes_on_from_it(
    stopped_after, resume
):
    trainer = stopped_after(3)
    folder = trainer.run_dir / "checkpoints"
    (folder / "000003").rename(folder / ".replaced-000003")
    again = resume()
    assert again.lifetime.training_iteration == 3
    assert_equal_to_the_bit(again.runner, trainer.runner)
    again.fit({"training_iteration": 4})
    assert list(checkpoint.iterations(folder).values()) == [folder / "000003", folder / "000004"]


def test_a_run_killed_before_its_first_checkpoint_begins_anew_in_its_folder(
    stopped_after, resume, tmp_path
):
    trainer = stopped_after(3, checkpoint_at_end=False)
    again = resume()
    assert again.lifetime.training_iteration == 0
    again.fit({"training_iteration": 3})
    assert [line["training_iteration"] for line in lines_of(tmp_path / "run")] == [1, 2, 3]
    assert_equal_to_the_bit(again.runner, trainer.runner)


@pytest.mark.long
def test_a_resumed_run_goes_on_to_its_own_end_and_beyond_it_with_more_steps(small, run, resume):
    rest = resume()
    assert rest.fit()["training_iteration"] == 40
    rest.stop()
    more = resume(config=small.replace(total_env_steps=64 * 42))
    assert more.fit()["training_iteration"] == 42


def test_a_schedule_that_ends_before_the_training_that_goes_on_is_said(tmp_path, capsys):
    short, ended = CARTPOLE.replace(total_env_steps=64), {"run_dir": tmp_path / "run"}
    with Trainer(short, pictures=False, **ended) as trainer:
        trainer.fit()
    said = "lr is 0.0001 from 2,000 steps on, where its schedule ends"
    assert said not in capsys.readouterr().out
    for total, count in ((128, 0), (64 * 40, 1)):
        more = short.replace(total_env_steps=total)
        Trainer.from_checkpoint(tmp_path / "run", config=more, run_dir=None, pictures=False).stop()
        assert capsys.readouterr().out.count(said) == count


@pytest.mark.long
def test_numbers_may_change_on_resuming_and_those_set_by_hand_stay(small, start, resume):
    trainer = start()
    trainer.hypers = small.hypers(lr=5e-3)
    trainer.fit({"training_iteration": 2})
    trainer.stop()
    kept = resume()
    assert float(kept.hypers["pol1"].lr[0, 1]) == pytest.approx(5e-3)
    kept.stop()
    changed = resume(config=small.replace(lr=2e-3))
    assert changed.train()["learners"]["pol1"]["default_optimizer_learning_rate"] == pytest.approx(
        2e-3
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"env": "cartpole", "env_args": ()},
            "env_name: the checkpoint has 'arena', this configuration needs 'cartpole'",
        ),
        (
            {"fcnet_hiddens": (16,)},
            r"runner\.learners\.0\.params.*float32\[.*\], this configuration needs float32\[.*\]",
        ),
        (
            {"seed": 3},
            "seed: the checkpoint has 0, this configuration needs 3; a run keeps its random keys",
        ),
        ({"env_args": {"height": 5, "width": 4}}, "observation_space of policy 'pol1': the check"),
        (
            {"policies": "shared"},
            r"policies: the checkpoint has \['pol1', 'pol2'\], this configuration needs "
            r"\['default_policy'\]",
        ),
        ({"observation_filter": None, "vf_share_layers": True}, "does not fit"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_what_differs(
    small, run, resume, changes, message
):
    def files():
        return sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file())

    before = files()
    with pytest.raises(UsageError, match=message):
        resume(config=small.replace(**changes))
    assert before == files()


@pytest.mark.long
def test_an_older_checkpoint_goes_on_in_a_folder_of_its_own(checkpoints, resume, tmp_path):
    with pytest.raises(UsageError, match="is not the last one of its run: give a new --run-dir"):
        resume(checkpoint=4)
    branch = resume(checkpoint=4, run_dir=tmp_path / "branch")
    branch.fit({"training_iteration": 5})
    assert [line["training_iteration"] for line in lines_of(tmp_path / "branch")] == [1, 2, 3, 4, 5]
    assert len(lines_of(checkpoints)) == 6


def test_a_folder_in_use_is_refused(run, resume):
    resume()
    with pytest.raises(UsageError, match=r"is in use by another .*, or give run_dir=None"):
        resume()
    assert resume(run_dir=None).run_dir is None


def test_what_no_file_holds_is_asked_for_again(small, start, resume):
    config = small.replace(optimizer=lambda lr: optax.sgd(lr))
    start(config).stop()
    with refusal(r"optimizer was an object.*from_checkpoint\(RUN, config=\.\.\.\)"):
        resume()
    assert resume(config=config).config == config


def test_a_mapping_function_is_saved_as_what_it_answered(small, start, resume):
    start(small.replace(policies=lambda agent: f"of {agent}")).stop()
    expected = {"of agent1": ("agent1",), "of agent2": ("agent2",)}
    assert resume().config.setup().policies == expected


def test_the_environment_numbers_in_use_are_saved(stopped_after, resume):
    _, params = make("arena", height=4, width=4, max_steps_in_episode=7)
    stopped_after(1, env_params=params)
    again = resume()
    assert again.train()["env_runners"]["episode_len_mean"] == 7
    assert jax.tree.map(int, again.env_params) == params


def test_a_branch_stands_by_itself_from_the_first_moment(checkpoints, resume, tmp_path):
    branch = resume(checkpoint=4, run_dir=tmp_path / "branch", checkpoint_at_end=False)
    branch.stop()  # as if killed before it had trained
    again = resume(tmp_path / "branch")
    assert again.lifetime.training_iteration == 4
    assert_equal_to_the_bit(again.runner, branch.runner)


def test_naming_the_runs_own_folder_does_not_pass_over_its_later_checkpoints(
    checkpoints, resume, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for same in (tmp_path / "run", "run"):
        with pytest.raises(UsageError, match="is not the last one of its run"):
            resume(checkpoint=2, run_dir=same)
    monkeypatch.chdir(checkpoints / "checkpoints")
    assert resume("000006").lifetime.training_iteration == 6


class Steps:
    """A callback with data: the steps of the episode, counted."""

    def on_episode_start(self, state, params):
        return jax.numpy.int32(0)

    def on_episode_step(self, data, step):
        return data + 1

    def on_episode_end(self, data, episode):
        return {"counted": data.astype(float)}


def observations_of(trainer):
    """{policy: [E, M, ...]} of the environments as they stand, however policies are stacked."""
    groups = zip(trainer.algorithm.grouping.groups, trainer.runner.envs.obs, strict=True)
    return {policy: obs[i] for group, obs in groups for i, policy in enumerate(group.policies)}


KEPT = "weights, optimiser states, filters and counts are kept"
OTHER_ENVS = {"num_envs": 8, "rollout_length": 8}
OTHER_BATCH = {"num_envs": 8, "rollout_length": 16}
OTHER_WINDOW = {"metrics_num_episodes_for_smoothing": 3}
EXCHANGED = {"pol1": ["agent2"], "pol2": ["agent1"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (OTHER_ENVS, r"runner\.envs\..*4.*, this configuration needs .*8.*"),
        (OTHER_BATCH, r"runner\.envs\."),
        (OTHER_WINDOW, r"runner\.window\..*\[100.*\], this configuration needs .*\[3.*\]"),
        (
            {"callbacks": Steps},
            r"callbacks: the checkpoint has \[\], this configuration needs "
            r"\['tests.run.test_resume:Steps'\]",
        ),
        ({"policies": EXCHANGED}, "agents of policy 'pol1': the checkpoint has"),
        (
            {"num_envs": 4, "rollout_length": 32},
            "num_env_steps: the checkpoint has 64, this configuration needs 128",
        ),
    ],
)
def test_a_strict_resume_refuses_what_would_start_afresh(small, run, resume, changes, message):
    with pytest.raises(UsageError, match=f"does not fit: {message}"):
        resume(config=small.replace(**changes), strict=True)


@pytest.mark.long
def test_a_strict_resume_with_the_same_configuration_trains_on(run, resume):
    assert resume(strict=True).train()["training_iteration"] == 4


@pytest.mark.parametrize(
    ("changes", "fresh"),
    [
        (OTHER_ENVS, {"envs"}),
        (OTHER_BATCH, {"envs", "key", "num_updates"}),
        (OTHER_WINDOW, {"window"}),
        ({"callbacks": Steps}, {"envs", "window"}),
        ({"policies": EXCHANGED}, {"envs", "window"}),
    ],
)
def test_what_a_changed_configuration_does_not_touch_is_kept(
    small, trained, run, capsys, changes, fresh
):
    with Trainer.from_checkpoint(run, config=small.replace(**changes)) as resumed:
        said = capsys.readouterr().out
        assert f"resumed with other {next(iter(changes))}" in said
        assert f" start from scratch; {KEPT}" in said
        for part in {"learners", "envs", "window", "key", "num_updates"} - fresh:
            assert_equal_to_the_bit(getattr(resumed.runner, part), getattr(trained.runner, part))


@pytest.mark.long
def test_after_a_resume_with_another_configuration_it_counts_on_and_the_next_one_is_exact_again(
    stopped_after, resume, tmp_path
):
    others = {**OTHER_BATCH, **OTHER_WINDOW, "callbacks": Steps}
    trainer, other = stopped_after(3, CARTPOLE), CARTPOLE.replace(**others)
    whole = resume(config=other, run_dir=tmp_path / "whole")
    whole.fit({"training_iteration": 5})
    half = resume(config=other)
    result = half.train()
    half.stop()
    assert result["training_iteration"] == 4
    assert result["num_env_steps_sampled_lifetime"] == 3 * 64 + 128
    assert result["env_runners"]["num_episodes_lifetime"] >= trainer.lifetime.num_episodes
    assert [line["training_iteration"] for line in lines_of(tmp_path / "run")] == [1, 2, 3, 4]
    rest = resume(strict=True, trust=True)
    rest.fit({"training_iteration": 5})
    assert_equal_to_the_bit(rest.runner, whole.runner)


@pytest.mark.long
def test_with_another_batch_size_schedules_and_limits_still_count_environment_steps(
    stopped_after, resume
):
    config = CARTPOLE.replace(lr=[[0, 1e-3], [1280, 0.0]], total_env_steps=64 * 20)
    stopped_after(10, config)
    resumed = resume(config=config.replace(**OTHER_BATCH, **OTHER_WINDOW, callbacks=Steps))
    rate = resumed.train()["learners"]["default_policy"]["default_optimizer_learning_rate"]
    assert rate == pytest.approx(1e-3 * (1 - 640 / 1280))
    last = resumed.fit()
    assert (last["training_iteration"], last["num_env_steps_sampled_lifetime"]) == (15, 1280)


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [(None, ("pol1",)), (("pol1",), None)])
def test_policies_keep_their_names_where_others_are_trained(
    stopped_after, resume, small, before, after
):
    config = small.replace(policies_to_train=before)
    trainer = stopped_after(1, config)
    resumed = resume(config=config.replace(policies_to_train=after), strict=True)
    assert_equal_to_the_bit(resumed.get_weights(), trainer.get_weights())
    runners = resumed.runner, trainer.runner
    parts = [(each.envs.replace(obs=None), each.window, each.key) for each in runners]
    assert_equal_to_the_bit(*parts)
    assert_equal_to_the_bit(observations_of(resumed), observations_of(trainer))
    learners = resumed.train()["learners"]
    assert {"pol1", "pol2"} & set(learners) == set(after or ("pol1", "pol2"))
    for policy in {"pol1", "pol2"} - set(learners):
        assert_equal_to_the_bit(resumed.get_weights()[policy], trainer.get_weights()[policy])


def test_the_trained_rows_of_a_policy_that_rests_are_not_forgotten():
    learner = {"num_module_steps_trained_lifetime": 192}
    result = {
        **{"training_iteration": 3, "num_env_steps_sampled_lifetime": 192},
        **{"num_episodes_lifetime": 8, "time_total_s": 1.0},
        "learners": {"pol1": learner, "__all_modules__": learner},
    }
    before = Lifetime(num_module_steps_trained={"pol1": 128, "pol2": 64})
    after = Lifetime.after(result, before)
    assert after.num_module_steps_trained == {"pol1": 192, "pol2": 64}
    assert Lifetime.after(result, Lifetime()).num_module_steps_trained is None


@pytest.mark.long
def test_trained_rows_count_over_sessions_in_which_a_policy_rests(stopped_after, resume, small):
    stopped_after(1, small)
    rests = resume(config=small.replace(policies_to_train=("pol1",)))
    rests.fit({"training_iteration": 2})
    rests.stop()
    learners = resume(config=small).train()["learners"]
    per_iteration = learners["pol1"]["num_module_steps_trained"]
    counts = [learners[name]["num_module_steps_trained_lifetime"] for name in ("pol1", "pol2")]
    assert counts == [3 * per_iteration, 2 * per_iteration]


def test_stop_saves_what_train_reached(start, resume):
    trainer = start()
    for _ in range(3):
        trainer.train()
    trainer.stop()  # without fit
    assert resume().lifetime.training_iteration == 3


def saved_state_of(config):
    """(a checkpoint of zeros, facts, algorithm, start) as `restore` takes them.

    Nothing is compiled.
    """
    algorithm = config.build()
    key = jax.random.key(0, impl="threefry2x32")
    start = key, config.hypers(), strongly_typed(algorithm.env_params)

    def zeros(leaf):
        is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return key if is_key else jnp.zeros(leaf.shape, leaf.dtype)

    runner = jax.tree.map(zeros, jax.eval_shape(algorithm.init, *start))
    lifetime = {"training_iteration": 3, "num_env_steps": 192}
    facts = facts_of(config, algorithm, {}) | {"lifetime": lifetime}
    arrays = named_arrays(state_tree(algorithm, Snapshot(runner, *start[1:], None, None, {})))
    return Checkpoint(Path("000003"), arrays, facts), facts, algorithm, start


LEAVERS = CARTPOLE.replace(env=Leavers(), observation_filter="NoFilter")


@pytest.mark.long
def test_a_checkpoint_from_before_the_steps_of_agents_were_counted_resumes_whole():
    saved, facts, algorithm, start = saved_state_of(LEAVERS)
    older = {
        name: array for name, array in saved.arrays.items() if not name.endswith(".agent_steps")
    }
    assert len(older) == len(saved.arrays) - 2
    restored = restore(saved._replace(arrays=older), facts, LEAVERS, algorithm, start)
    assert restored.fresh == ()
    assert not restored.runner.envs.episodes.agent_steps.any()


def test_objects_of_one_class_are_not_taken_for_one_environment():
    saved, facts, algorithm, start = saved_state_of(LEAVERS)
    other = {**facts, "env_name": "Other"}
    restore(saved, other, LEAVERS, algorithm, start)  # made by the same name
    with refusal("env_name: the checkpoint has 'Leavers', this configuration needs 'Other'"):
        restore(saved, {**other, "objects": ["env"]}, LEAVERS, algorithm, start)
    unnamed = {"config": {**facts["config"], "env": None}}
    saved = saved._replace(facts=facts | unnamed)
    with pytest.raises(UsageError, match="env_name"):
        restore(saved, other | unnamed, LEAVERS, algorithm, start)


def test_the_numbers_of_a_new_environment_win_over_those_of_a_saved_object():
    config = CARTPOLE.replace(env_args={"max_steps_in_episode": 7})
    saved, facts, algorithm, start = saved_state_of(config)
    facts_of_object = {**facts, "objects": ["env"], "config": {**facts["config"], "env_args": {}}}
    arrays = {**saved.arrays, "env_params.max_steps_in_episode": np.int32(9)}
    saved = saved._replace(facts=facts_of_object, arrays=arrays)
    assert restore(saved, facts, config, algorithm, start).env_params.max_steps_in_episode == 7


def test_settings_that_a_file_names_and_no_run_has_are_left_out(start, resume, tmp_path):
    start().stop()
    path = tmp_path / "run" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["run_settings"] |= {"quiet": False, "env_params": 3, "_saved": 4, "keep": 7}
    path.write_text(json.dumps(metadata))
    assert resume().settings.keep == 7


def test_a_run_resumed_by_a_relative_path_is_named_from_here(run, resume, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, shown in (
        ("run", Path("run")),
        ("latest", Path("run")),
        (tmp_path / "run", tmp_path / "run"),
    ):
        again = resume(path)
        assert again.run_dir == shown
        again.stop()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resume("../run").run_dir == tmp_path / "run"
