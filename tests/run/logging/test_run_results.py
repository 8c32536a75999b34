"""Results of a run's folder as a list, a DataFrame and a figure."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import jaxrl
from jaxrl import UsageError
from jaxrl.run.logging.curves import Curves
from jaxrl.run.logging.figures import figure
from jaxrl.run.logging.history import MAX_POINTS
from jaxrl.run.logging.panels import panels_of
from jaxrl.run.logging.run_results import TrainerResults
from jaxrl.run.results import ENV_STEPS

RETURN = "env_runners/episode_return_mean"


def result(iteration):
    return {
        ENV_STEPS: 100 * iteration,
        "env_runners": {"episode_return_mean": float(iteration)},
        "learners": {
            "p": {"mean_kl_loss": 0.01, "entropy": 1.0, "vf_loss": 1.0, "policy_loss": 0.0}
        },
    }


LINES = [f"{json.dumps(result(i))}\n" for i in (1, 2, 3)]


def make_run(folder, lines=LINES, **settings):
    """A run's folder as far as its results need it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"seed": 1, "kl_target": 0.01}))
    facts = {"objects": [], "config_class": "", "env_name": "probe", "commit": "0123456789"}
    facts |= {"policies": {}, "run_settings": settings, "versions": {}}
    (folder / "metadata.json").write_text(json.dumps(facts))
    if lines is not None:
        (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def test_a_runs_results_are_the_whole_lines_of_its_log(tmp_path):
    run = jaxrl.load_run(make_run(tmp_path / "run", (json.dumps(result(1)) + "\n", '{"train')))
    assert run.results() == [result(1)]
    assert repr(run) == f"<Run {tmp_path / 'run'}: probe>"


def test_latest_is_the_newest_run(tmp_path):
    for name in ("20260101-000000-s0", "20260301-000000-s0", "20260201-000000-s0"):
        make_run(tmp_path / name)
    assert jaxrl.load_run(tmp_path / "latest").run_dir.name == "20260301-000000-s0"


def test_a_run_has_no_results_before_its_first_iteration(tmp_path):
    assert jaxrl.load_run(make_run(tmp_path / "run", lines=None)).results() == []


def test_a_run_without_the_log_says_which_it_has(tmp_path):
    run = jaxrl.load_run(make_run(tmp_path / "run", lines=None, loggers=["csv"]))
    with pytest.raises(UsageError, match=r"run has no metrics\.jsonl: its loggers are \['csv'\]"):
        run.dataframe()


def test_a_folder_that_is_no_run_is_refused_with_what_it_holds(tmp_path):
    make_run(tmp_path / "runs" / "mine")
    with pytest.raises(UsageError, match=r"runs holds 1 run: mine"):
        jaxrl.load_run(tmp_path / "runs")
    with pytest.raises(UsageError, match="is not a run's folder"):
        jaxrl.load_run(tmp_path)


def test_a_dataframe_has_a_row_for_each_iteration_and_a_column_for_each_path(tmp_path):
    pytest.importorskip("pandas")
    frame = jaxrl.load_run(make_run(tmp_path / "run")).dataframe("all")
    assert frame[ENV_STEPS].tolist() == [100, 200, 300]
    assert frame[RETURN].tolist() == [1.0, 2.0, 3.0]
    assert frame["learners/p/mean_kl_loss"].dtype == np.float64


def test_a_dataframe_is_narrow_unless_it_is_told_otherwise(tmp_path):
    pytest.importorskip("pandas")
    run = jaxrl.load_run(make_run(tmp_path / "run"))
    every = run.dataframe("all")
    narrow = [ENV_STEPS, RETURN, *(f"learners/p/{panel.name}" for panel in panels_of(run.facts))]
    assert list(run.dataframe().columns) == narrow
    assert run.dataframe().equals(every[narrow]) and len(every.columns) > len(narrow)
    assert run.dataframe(RETURN).equals(every[[RETURN]])
    learners = run.dataframe(["learners/*", ENV_STEPS])
    assert set(learners.columns) == {name for name in every if name.startswith("learners/")} | {
        ENV_STEPS
    }
    with pytest.raises(UsageError, match="unknown column 'learners/q/entropy'"):
        run.dataframe("learners/q/entropy")


def test_without_pandas_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"needs pandas: pip install pandas; results\(\) gives"):
        jaxrl.load_run(make_run(tmp_path / "run")).dataframe()


def test_without_matplotlib_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxrl.core.errors.is_installed", lambda package: False)
    with pytest.raises(UsageError, match=r"plot\(\) needs matplotlib, which is not installed: pip"):
        jaxrl.load_run(make_run(tmp_path / "run")).plot()


def texts_and_lines(drawn):
    return [text.get_text() for text in drawn.texts], [
        (line.get_label(), *(list(values) for values in line.get_data()))
        for axis in drawn.axes
        for line in axis.lines
    ]


def test_a_plot_is_the_figure_of_curves_png(tmp_path):
    folder = make_run(tmp_path / "run")
    run = jaxrl.load_run(folder)
    curves = Curves.from_jsonl(folder / "metrics.jsonl", panels_of(run.facts))
    same = figure(curves.series(), curves.panels, "probe", "seed 1, commit 0123456")
    assert texts_and_lines(run.plot()) == texts_and_lines(same)
    assert len(texts_and_lines(same)[1]) > 3


def test_a_notebook_shows_a_plot_as_a_picture(tmp_path):
    shown = jaxrl.load_run(make_run(tmp_path / "run")).plot()._repr_png_()
    assert shown.startswith(b"\x89PNG") and len(shown) < 100_000


def test_a_trainer_without_a_log_remembers_a_long_training_evenly():
    trainer = TrainerResults()
    trainer.run_dir = None
    trainer.keep_results([result(i) for i in range(1, 5001)])
    kept = [kept[ENV_STEPS] // 100 for kept in trainer.results()]
    assert kept[0] == 1 and kept[-1] == 5000 and len(kept) <= MAX_POINTS
    assert set(np.diff(kept)[:-1]) == {4}


def test_a_trainer_with_a_log_keeps_no_results_in_memory(tmp_path):
    trainer = TrainerResults()
    trainer.run_dir = make_run(tmp_path / "run")
    trainer.settings = SimpleNamespace(loggers=("jsonl",))
    trainer.keeping = SimpleNamespace(hurry=lambda: None)
    trainer.keep_results([result(i) for i in range(1, 4)])
    assert "_kept" not in vars(trainer)
    assert trainer.results() == [result(i) for i in range(1, 4)]
