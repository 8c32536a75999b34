"""Checkpoints.

Written whole or not at all, read only as they were written, the best one the state that was scored.
"""

import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Trainer, UsageError, load_policy
from jaxrl.run.callbacks import Callbacks
from jaxrl.run.storage import array_storage, checkpoint

TREE = {
    "key": jax.random.key(3),
    "x": jnp.arange(6.0).reshape(2, 3),
    "none": (),
    "empty": jnp.zeros((0, 2)),
}
FACTS = {"lifetime": {"training_iteration": 12}}


@pytest.fixture
def saved(tmp_path):
    return checkpoint.write(tmp_path, {"state": TREE}, FACTS)


def test_what_is_written_is_read_back_keys_and_empty_arrays_included(saved):
    assert saved.name == "000012"
    read = checkpoint.read(saved)
    assert read.facts["lifetime"] == {"training_iteration": 12}
    tree = checkpoint.filled(jax.eval_shape(lambda: TREE), read.arrays, "state", "it")
    assert jax.tree.structure(tree) == jax.tree.structure(TREE)
    np.testing.assert_array_equal(
        jax.random.key_data(tree["key"]), jax.random.key_data(TREE["key"])
    )
    assert tree["key"].dtype == TREE["key"].dtype
    np.testing.assert_array_equal(tree["x"], TREE["x"], strict=True)
    assert tree["empty"].shape == (0, 2)


def largest_file(path):
    return max(
        (file for file in (path / "arrays").rglob("*") if file.is_file()),
        key=lambda file: file.stat().st_size,
    )


def truncate(path):
    os.truncate(largest_file(path), 3)


def edit(path):
    file = path / "checkpoint.json"
    file.write_text(
        file.read_text().replace('"training_iteration": 12', '"training_iteration": 13')
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "is not as it was written"),
        (lambda path: largest_file(path).unlink(), "is missing"),
        (lambda path: shutil.rmtree(path / "arrays"), "is missing"),
        (edit, "checkpoint.json was changed after it was written"),
        (lambda path: (path / "checkpoint.json").write_text("{}"), "is not that of a checkpoint"),
        (
            lambda path: (path / "checkpoint.json").write_text('{"format'),
            "is not that of a checkpoint",
        ),
        (lambda path: (path / "checkpoint.json").unlink(), "it has no checkpoint.json"),
        (
            lambda path: (path / "checkpoint.json").write_text('{"format": 99, "digest": ""}'),
            "has format 99",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused_in_one_line_that_names_it(saved, damage, message):
    damage(saved)
    with pytest.raises(UsageError, match=message) as refused:
        checkpoint.read(saved)
    assert str(saved) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("000013", "was renamed: it is of iteration 12"),
        ("best-000012", "was renamed: it is not a best one"),
    ],
)
def test_a_checkpoint_under_the_name_of_another_is_refused(saved, name, message):
    renamed = saved.rename(saved.with_name(name))
    with pytest.raises(UsageError, match=message):
        checkpoint.read(renamed)
    other = renamed.rename(
        saved.with_name("my-favourite")
    )  # a name that says nothing is anybody's own
    assert checkpoint.read(other).facts["lifetime"] == {"training_iteration": 12}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            {**TREE, "x": jnp.zeros((2, 4))},
            r"state\.x: the checkpoint has float32\[2, 3\], "
            r"this configuration needs float32\[2, 4\]",
        ),
        (
            {**TREE, "x": jnp.zeros((2, 3), jnp.int32)},
            r"float32\[2, 3\], this configuration needs int32\[2, 3\]",
        ),
        ({**TREE, "y": jnp.zeros(1)}, r"it has no state\.y, this configuration needs float32\[1\]"),
        ({"key": TREE["key"]}, r"state\.x, float32\[2, 3\] there, is nothing here"),
    ],
)
def test_arrays_that_do_not_fit_are_named_with_both_forms(saved, template, message):
    with pytest.raises(UsageError, match=message):
        checkpoint.filled(template, checkpoint.read(saved).arrays, "state", "it")


def test_an_unfinished_checkpoint_is_no_checkpoint_and_goes_at_the_next_cleaning(tmp_path, saved):
    unfinished = tmp_path / ".unfinished-000013"
    shutil.copytree(saved, unfinished)
    assert list(checkpoint.iterations(tmp_path)) == [12]
    checkpoint.clean(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000012"]


@pytest.mark.long
def test_the_newest_are_kept_and_the_best_besides(start, tmp_path):
    trainer = start(checkpoint_frequency=2, keep=2)
    trainer.fit({"training_iteration": 11})
    folder = tmp_path / "run" / "checkpoints"
    assert list(checkpoint.iterations(folder)) == [10, 11]
    assert len(checkpoint.iterations(folder, best=True)) == 1


@pytest.mark.long
def test_the_best_state_is_the_one_that_was_measured_not_its_successor(small, start, tmp_path):
    """Iteration 4 scores highest, so the best state is that of iteration 3, which played it."""

    class Scores(Callbacks):
        def on_train_result(self, trainer, result):
            result["score"] = {4: 9.0}.get(result["training_iteration"], 0.0)

    settings = {"checkpoint_score_attribute": "score", "checkpoint_frequency": 1, "keep": 9}
    trainer = start(small.replace(callbacks=(Scores(),)), **settings)
    trainer.fit({"training_iteration": 6})
    best = checkpoint.read(checkpoint.find(tmp_path / "run", "best"))
    assert best.path.name == "best-000003"
    assert best.facts["score"] == {"metric": "score", "value": 9.0}
    third = checkpoint.read(checkpoint.find(tmp_path / "run", 3))
    assert all(np.array_equal(array, third.arrays[name]) for name, array in best.arrays.items())


@pytest.mark.long
def test_an_evaluated_state_is_itself_the_best(start, tmp_path):
    trainer = start(evaluation_interval=2, evaluation_duration=3)
    trainer.fit({"training_iteration": 5})
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    scores = {
        line["training_iteration"]: line["evaluation"]["env_runners"]["episode_return_mean"]
        for line in lines
        if "evaluation" in line
    }
    assert list(scores) == [2, 4, 5]  # the state that training ends in is evaluated too
    best = checkpoint.read_facts(checkpoint.find(tmp_path / "run", "best"))
    assert best["score"]["value"] == max(scores.values())
    assert scores[best["lifetime"]["training_iteration"]] == best["score"]["value"]


def test_a_best_score_is_to_be_beaten_after_a_resume_too(start, resume):
    trainer = start(evaluation_interval=2, evaluation_duration=3)
    trainer.fit({"training_iteration": 4})
    value = trainer.best.value
    trainer.stop()
    assert resume().best.value == value > float("-inf")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_checkpoint_that_cannot_be_written_is_said_and_training_goes_on(
    start, tmp_path, monkeypatch, capsys, quiet
):
    trainer = start(checkpoint_frequency=2, checkpoint_interval_s=None, quiet=quiet)
    trainer.fit({"training_iteration": 2})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(array_storage, "_checkpointer", full)
    assert trainer.fit({"training_iteration": 5})["training_iteration"] == 5
    printed = capsys.readouterr()
    told = printed.err if quiet else printed.out
    assert "could not be written" in told and "No space left on device" in told
    assert not (quiet and printed.out)
    assert list(checkpoint.iterations(tmp_path / "run" / "checkpoints")) == [2]
    assert "iteration 5" in trainer.stop()


@pytest.mark.long
def test_a_damaged_last_checkpoint_is_refused_with_what_can_be_gone_on_from(
    checkpoints, resume, tmp_path
):
    last = checkpoint.find(checkpoints, "last")
    truncate(last)
    with pytest.raises(
        UsageError,
        match=r"000006 is damaged.*000004 is intact: resume from it with a new --run-dir",
    ):
        resume()
    intact = last.with_name("000004")
    assert resume(intact, run_dir=tmp_path / "new").lifetime.training_iteration == 4


def test_the_clock_makes_checkpoints_too(start, tmp_path):
    trainer = start(checkpoint_interval_s=0.0, checkpoint_at_end=False, keep=100)
    for _ in range(3):
        trainer.train()
    trainer.stop()
    assert list(checkpoint.iterations(tmp_path / "run" / "checkpoints")) == [1, 2, 3]


def test_save_returns_the_folder_that_it_wrote(start):
    trainer = start()
    trainer.train()
    path = trainer.save()
    assert path.name == "000001"
    assert checkpoint.read(path).facts["result"]["training_iteration"] == 1


@pytest.mark.long
def test_a_checkpoint_of_the_first_version_stays_loadable():
    """Written by version 0.1.0 and format 1, after 3 iterations of the small arena.

    Its values noted then.
    """
    path = Path(__file__).parents[2] / "reference" / "checkpoint_v1" / "000003"
    assert checkpoint.read_facts(path)["format"] == 1
    values = [load_policy(path, "pol1").value([i, 0]) for i in (0, 4, 8, 12)]
    np.testing.assert_allclose(values, [-0.686586, -0.660088, -0.425075, -0.476452], rtol=1e-4)
    trainer = Trainer.from_checkpoint(path, run_dir=None, quiet=True)
    assert trainer.lifetime.training_iteration == 3
    form = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    state = trainer.runner, trainer.hypers, trainer.env_params
    after, _ = jax.eval_shape(trainer.algorithm.update, *state)  # it can be trained further
    assert form(after) == form(trainer.runner)


def test_a_kill_between_taking_the_old_one_away_and_putting_the_new_one_there_loses_nothing(
    tmp_path, saved
):
    saved.rename(tmp_path / ".replaced-000012")
    (between,) = checkpoint.iterations(tmp_path).values()  # found before anything is cleaned
    assert checkpoint.read(between).facts["lifetime"] == {"training_iteration": 12}
    checkpoint.clean(tmp_path)
    assert checkpoint.read(checkpoint.find(saved)).facts["lifetime"] == {"training_iteration": 12}
    saved.with_name(".replaced-000012").mkdir()
    assert checkpoint.iterations(tmp_path) == {12: saved}


def test_what_a_caller_does_with_a_result_does_not_reach_the_logs(start, tmp_path):
    trainer = start()
    trainer.train().clear()
    trainer.train()["env_runners"] = object()
    trainer.stop()
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["env_runners"]["num_env_steps_sampled_lifetime"] for line in lines] == [64, 128]


def test_a_score_that_a_callback_reports_may_be_an_array_and_a_text_is_none(small, start, tmp_path):
    class Scores(Callbacks):
        def on_train_result(self, trainer, result):
            result["score"] = (
                jnp.float32(result["training_iteration"])
                if result["training_iteration"] > 2
                else "?"
            )

    trainer = start(
        small.replace(callbacks=(Scores(),)),
        checkpoint_score_attribute="score",
        checkpoint_frequency=1,
    )
    trainer.fit({"training_iteration": 4})
    assert checkpoint.read_facts(checkpoint.find(tmp_path / "run", "best"))["score"]["value"] == 4.0
