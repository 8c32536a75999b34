"""Loggers: what each holds reads back strictly, survives a resume and cannot stop training."""

import csv
import dataclasses
import errno
import io
import json
import math
import os
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from jaxrl import Trainer, sweep
from jaxrl.cli import plot, render
from jaxrl.core.errors import UsageError
from jaxrl.run import advice
from jaxrl.run.logging.loggers import LOGGERS, Logger, Logs, RunStart
from jaxrl.run.logging.scalars import MOMENT, Downsampler, charts
from jaxrl.run.logging.text_logs import leaves
from jaxrl.run.results import flatten
from jaxrl.run.settings import RunSettings
from jaxrl.run.storage.json_lines import plain
from tests.messages import refused_by
from tests.programs import SMALL_ARENA, SMALL_REINFORCE

CONFIG = {
    "env": "arena",
    "lr": ((0, 1e-3), (100, 0.0)),
    "gamma": 0.9,
    "grad_clip": None,
    "use_kl_loss": True,
}
FILES = ("jsonl", "csv", "tensorboard")
TRACKERS = ("wandb", "trackio", "mlflow")


def result(i, seconds=1.0, **more):
    """Iteration i of a small run, 64 environment steps each."""
    return {
        "training_iteration": i,
        "num_env_steps_sampled_lifetime": 64 * i,
        "time_total_s": i * seconds,
        "done": False,
        "env_runners": {"num_episodes": i, "custom_metrics": {"hits_mean": 0.5}, **more},
        "learners": {
            "pol1": {"total_loss": 0.25 * i},
            "__all_modules__": {"num_module_steps_trained": 64},
        },
    }


def histogram(counts):
    return {"hist_stats": {"speed": {"min": -1.0, "max": 2.0, "mean": 0.5, "counts": counts}}}


def fails(text):
    raise AssertionError(f"no warning was due: {text}")


def logs(folder, names=FILES, warn=fails, config=CONFIG, **start):
    return Logs(names, RunStart(folder, config, say=warn, **start))


def write(folder, iterations, names=FILES, **start):
    written = logs(folder, names, **start)
    written.write([result(i) for i in iterations])
    written.close()


def strict_lines(folder):
    text = (folder / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=fails) for line in text.splitlines()]


def strict_rows(folder):
    """The rows of progress.csv, which must all be as long as the header."""
    with (folder / "progress.csv").open(newline="") as file:
        header, *rows = csv.reader(file, strict=True)
    assert len(set(header)) == len(header)
    assert {len(row) for row in rows} <= {len(header)}
    return [dict(zip(header, row, strict=True)) for row in rows]


def events(folder):
    """Every event as TensorBoard reads them: files by name, restarts purge what came before."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.record_writer import masked_crc32c

    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            record = data[12 : 12 + length]
            assert struct.unpack("<I", data[8:12])[0] == masked_crc32c(data[:8])
            assert struct.unpack("<I", data[12 + length : 16 + length])[0] == masked_crc32c(record)
            event = Event.FromString(record)
            if event.session_log.status == SessionLog.START:
                found = [earlier for earlier in found if earlier.step < event.step]
            found.append(event)
            data = data[16 + length :]
    return found


def curve(folder, tag):
    """[(step, value)] of a scalar."""
    values = [(event.step, value) for event in events(folder) for value in event.summary.value]
    return [(step, value.simple_value) for step, value in values if value.tag == tag]


# What the files hold


def test_every_result_is_a_line_of_json_and_a_row_of_csv(tmp_path):
    write(tmp_path, range(1, 4))
    assert strict_lines(tmp_path) == [result(i) for i in range(1, 4)]
    rows = strict_rows(tmp_path)
    assert [int(row["training_iteration"]) for row in rows] == [1, 2, 3]
    assert rows[2]["learners/pol1/total_loss"] == "0.75"
    assert rows[0]["done"] == "False"


def test_what_is_no_number_is_null_in_json_and_empty_in_csv(tmp_path):
    bad = result(1, nan=math.nan, infinite=-math.inf, none=None)
    written = logs(tmp_path)
    written.write([bad, result(2)])
    written.close()
    assert [
        strict_lines(tmp_path)[0]["env_runners"][name] for name in ("nan", "infinite", "none")
    ] == [None] * 3
    assert [
        row[f"env_runners/{name}"] for row in strict_rows(tmp_path) for name in ("nan", "none")
    ] == [""] * 4


def test_what_hooks_add_of_other_types_is_written_as_plain_values(tmp_path):
    added = {
        "f": np.float32(1.5),
        "nan": np.float32("nan"),
        "n": np.int64(3),
        "a": np.arange(2),
        "text": 'a,"b"\nc',
    }
    written = logs(tmp_path)
    written.write([result(1, **added)])
    written.close()
    (line,), (row,) = strict_lines(tmp_path), strict_rows(tmp_path)
    expected = {"f": 1.5, "nan": None, "n": 3, "a": [0, 1], "text": 'a,"b"\nc'}
    assert {name: line["env_runners"][name] for name in added} == expected == plain(added)
    assert (row["env_runners/f"], row["env_runners/n"], row["env_runners/nan"]) == ("1.5", "3", "")
    assert row["env_runners/text"] == 'a,"b" c'
    assert "env_runners/a" not in row


def test_paths_that_a_run_may_have_later_are_columns_from_the_first_row_on(tmp_path):
    returns = "env_runners/episode_return_mean"
    written = logs(tmp_path, ["csv"], result_names=("done", returns))
    written.write([result(1), result(2)])
    header = (tmp_path / "progress.csv").read_bytes().splitlines()[0]
    written.write([result(3, episode_return_mean=7.0)])
    written.write([result(4)])
    rows = strict_rows(tmp_path)
    assert [row[returns] for row in rows] == ["", "", "7.0", ""]
    assert list(rows[0])[-1] == returns
    assert (tmp_path / "progress.csv").read_bytes().splitlines()[0] == header
    assert [path.name for path in tmp_path.iterdir()] == ["progress.csv"]


def test_a_path_that_nobody_announced_has_no_column_which_is_said_once(tmp_path):
    said = []
    written = logs(tmp_path, ["csv"], warn=said.append)
    written.write([result(1), result(2)])
    written.write([result(3, late=7.0, later=1.0), result(4, late=[1, 2])])
    written.write([result(5, latest=8.0)])
    assert [int(row["training_iteration"]) for row in strict_rows(tmp_path)] == [1, 2, 3, 4, 5]
    assert "env_runners/late" not in strict_rows(tmp_path)[0]
    assert said == [
        "progress.csv has no column for env_runners/late and 1 more, which came after its first "
        "row; the jsonl log has all numbers"
    ]


@pytest.mark.long
def test_every_number_of_a_run_with_evaluations_has_its_column(tmp_path, capsys):
    config = SMALL_ARENA.replace(total_env_steps=640)  # whose first episodes end after 20 steps
    path, settings = tmp_path / "run", {"pictures": False, "evaluation_interval": 3}
    with Trainer(config, run_dir=path, **settings) as trainer:
        trainer.fit()
    assert "no column" not in capsys.readouterr().out
    rows, lines = strict_rows(path), strict_lines(path)
    assert "env_runners" not in lines[0].get("evaluation", {}) and "evaluation" in lines[2]
    for row, line in zip(rows, lines, strict=True):
        numbers = {name: value for name, value in leaves(line).items() if type(value) is float}
        assert {name: float(row[name]) for name in numbers} == numbers
    with Trainer.from_checkpoint(path, config=config.replace(total_env_steps=704)) as trainer:
        trainer.fit()
    assert "no column" not in capsys.readouterr().out
    assert len(strict_rows(path)) == 11


# Killed and resumed


@pytest.mark.parametrize(
    "half", [b"", b'{"training_iteration": 6, "ti', b"6,38"], ids=["whole", "json", "csv"]
)
def test_a_resumed_run_goes_on_without_a_gap_or_a_double_line(tmp_path, half):
    write(tmp_path, range(1, 6))
    for name in ("metrics.jsonl", "progress.csv"):
        with (tmp_path / name).open("ab") as file:
            file.write(half)
    write(tmp_path, range(4, 8), iteration=3, env_steps=3 * 64)
    assert [line["training_iteration"] for line in strict_lines(tmp_path)] == list(range(1, 8))
    assert [int(row["training_iteration"]) for row in strict_rows(tmp_path)] == list(range(1, 8))
    assert [step for step, _ in curve(tmp_path, "learners/pol1/total_loss")] == [
        64 * i for i in range(1, 8)
    ]
    assert curve(tmp_path, "learners/pol1/total_loss")[-1] == (7 * 64, 1.75)


def test_columns_of_before_the_kill_are_kept_when_resumed(tmp_path):
    write(tmp_path, [1, 2], ["csv"], result_names=("env_runners/episode_return_mean",))
    said, later = [], {"iteration": 1, "env_steps": 64, "result_names": ("env_runners/other",)}
    resumed = logs(tmp_path, ["csv"], warn=said.append, **later)
    resumed.write([result(2, other=1.0, episode_return_mean=3.0)])
    rows = strict_rows(tmp_path)
    assert [row["env_runners/episode_return_mean"] for row in rows] == ["", "3.0"]
    assert len(said) == 1 and "no column for env_runners/other" in said[0]


def test_a_run_that_starts_at_the_beginning_keeps_nothing_of_an_earlier_one(tmp_path):
    write(tmp_path, range(1, 6))
    write(tmp_path, range(1, 3))
    assert [line["training_iteration"] for line in strict_lines(tmp_path)] == [1, 2]
    assert [int(row["training_iteration"]) for row in strict_rows(tmp_path)] == [1, 2]
    assert [step for step, _ in curve(tmp_path, "training_iteration")] == [64, 128]


@pytest.mark.parametrize("left", [None, b"", b"\n", b"\x00" * 100, b"training_it", b"a,b\n1,2\n"])
def test_a_log_that_is_missing_or_broken_begins_anew(tmp_path, left):
    if left is not None:
        for name in ("metrics.jsonl", "progress.csv"):
            (tmp_path / name).write_bytes(left)
    write(tmp_path, [4], iteration=3, env_steps=3 * 64)
    assert len(strict_lines(tmp_path)) == len(strict_rows(tmp_path)) == 1


# Sinks that fail


def full_disk(descriptor, data):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_warns_once_for_each_log_and_leaves_whole_lines(tmp_path, monkeypatch):
    warnings, real = [], os.write
    written = logs(tmp_path, warn=warnings.append)
    written.write([result(1)])

    def half(descriptor, data):
        """The disk takes 10 bytes more, then nothing."""
        monkeypatch.setattr(os, "write", full_disk)
        return real(descriptor, data[:10])

    monkeypatch.setattr(os, "write", half)
    for i in (2, 3):
        written.write([result(i)])
    monkeypatch.undo()
    written.write([result(4)])
    written.close()
    assert len(warnings) == 3
    assert all("No space left on device" in text and "\n" not in text for text in warnings)
    assert [text.split()[1] for text in warnings] == list(FILES)
    assert strict_lines(tmp_path) == [result(1)]
    assert len(strict_rows(tmp_path)) == 1
    assert [step for step, _ in curve(tmp_path, "training_iteration")] == [64]


def test_one_failing_log_leaves_the_others_going(tmp_path):
    warnings = []
    written = logs(tmp_path, warn=warnings.append)
    written.write([result(1)])
    (tmp_path / "progress.csv").unlink()
    for i in (2, 3):
        written.write([result(i)])
    written.flush()
    assert len(warnings) == 1
    assert warnings[0].startswith("the csv log ends here, training continues without it: ")
    assert len(strict_lines(tmp_path)) == len(curve(tmp_path, "training_iteration")) == 3


def test_a_folder_that_is_gone_or_never_was_is_a_warning(tmp_path):
    warnings = []
    written = logs(tmp_path / "none", warn=warnings.append)
    assert len(warnings) == 3
    written.write([result(1)])
    written.close()
    assert len(warnings) == 3


def test_an_unknown_log_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(UsageError, match="unknown log 'tensorbord'; did you mean 'tensorboard'"):
        logs(tmp_path, ["jsonl", "tensorbord"])
    assert list(tmp_path.iterdir()) == []
    assert set(LOGGERS) == {*FILES, *TRACKERS}


# Loggers of a user's own


class Kept(Logger):
    """Keeps what it is told; `Kept(fails_at="write")` fails there."""

    def __init__(self, fails_at=""):
        self.fails_at, self.told = fails_at, []

    def _tell(self, method, *what):
        self.told.append((method, *what))
        if method == self.fails_at:
            raise RuntimeError("out of\npaper")

    def open(self, run):
        self._tell("open", run.folder, run.iteration, run.env_steps, run.config["gamma"])

    def write(self, results):
        self._tell("write", [result["training_iteration"] for result in results])

    def flush(self):
        self._tell("flush")

    def close(self):
        self._tell("close")


@dataclasses.dataclass(frozen=True)
class Lines(Logger):
    """Appends iterations to a file of the run's folder; its arguments can be saved."""

    name: str = "iterations.txt"

    def open(self, run):
        object.__setattr__(self, "path", run.folder / self.name)

    def write(self, results):
        with self.path.open("a") as file:
            file.writelines(f"{result['training_iteration']}\n" for result in results)


HERE = "tests.run.logging.test_loggers"


def test_an_object_is_told_of_the_run_and_of_its_results_in_order(tmp_path):
    kept = Kept()
    written = logs(tmp_path, ["jsonl", kept], iteration=3, env_steps=192)
    written.write([result(4), result(5)])
    written.flush()
    written.close()
    assert kept.told == [
        ("open", tmp_path, 3, 192, 0.9),
        ("write", [4, 5]),
        ("flush",),
        ("close",),
    ]
    assert len(strict_lines(tmp_path)) == 2


@pytest.mark.parametrize("entry", [Lines, f"{HERE}:Lines", Lines()])
def test_a_class_its_name_and_an_object_of_it_mean_the_same(tmp_path, entry):
    write(tmp_path, [1, 2], [entry])
    assert (tmp_path / "iterations.txt").read_text() == "1\n2\n"


def test_a_name_may_have_arguments(tmp_path):
    write(tmp_path, [1], [f"{HERE}:Lines(name='a.txt')", f"{HERE}:Lines(name='b.txt')"])
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "b.txt"}


@pytest.mark.parametrize("method", ["open", "write", "flush", "close"])
def test_a_logger_that_fails_ends_alone_in_one_line(tmp_path, method):
    warnings, failing, other = [], Kept(fails_at=method), Kept()
    written = logs(tmp_path, [failing, other], warn=warnings.append)
    written.write([result(1)])
    written.flush()
    written.write([result(2)])
    written.close()
    assert warnings == ["the Kept log ends here, training continues without it: out of paper"]
    assert failing.told[-1][0] == method
    assert [told[0] for told in other.told] == ["open", "write", "flush", "write", "close"]


test_what_is_no_logger_is_refused_in_one_line_before_anything_is_written = refused_by(
    lambda loggers: RunSettings(loggers=loggers),
    [
        (["jsnl"], "unknown log 'jsnl'; did you mean 'jsonl'"),
        ([f"{HERE}:Line"], "unknown logger 'Line' in module '.*'; did you mean 'Lines'"),
        (["no_such_module:Lines"], "unknown logger .* there is no module 'no_such_module'"),
        (["os:sep"], "logger 'os:sep' is '/', a str, not a class derived from jaxrl.Logger"),
        ([f"{HERE}:Lines(nam=1)"], "logger class Lines: got an unexpected keyword argument 'nam'"),
        ([dict], "must be a list of names .* derived from jaxrl.Logger"),
        ([result], "must be a list of names .* derived from jaxrl.Logger"),
        (7, "loggers=7 must be a list of names"),
    ],
)


@pytest.mark.long
def test_a_run_is_resumed_with_the_loggers_that_a_file_can_name_and_asks_for_the_others(tmp_path):
    path, settings = tmp_path / "run", {"quiet": True, "pictures": False}
    with Trainer(SMALL_ARENA, run_dir=path, loggers=["jsonl", Lines()], **settings) as trainer:
        trainer.fit({"training_iteration": 2})
    with pytest.raises(UsageError, match=r"run's logger is .*:Lines'.*--trust"):
        Trainer.from_checkpoint(path, quiet=True)
    with Trainer.from_checkpoint(path, quiet=True, trust=True) as trainer:
        trainer.fit({"training_iteration": 3})
    assert (path / "iterations.txt").read_text() == "1\n2\n3\n"
    kept = Kept()
    with Trainer.from_checkpoint(path, quiet=True, loggers=kept) as trainer:
        trainer.fit({"training_iteration": 4})
    assert [told[0] for told in kept.told] == ["open", "write", "flush", "close"]
    with pytest.raises(UsageError, match=r"loggers hold an object, .*:Kept, which no file can"):
        Trainer.from_checkpoint(path, quiet=True, trust=True)
    assert "loggers=[...]" in advice.to_resume(path, trainer.facts)


@pytest.mark.long
def test_each_trial_of_a_sweep_has_a_logger_of_its_own(tmp_path):
    with pytest.raises(UsageError, match="is an object, but each trial of a sweep has loggers of"):
        sweep(SMALL_REINFORCE, {"lr": [1e-3, 2e-3]}, loggers=Lines(), run_dir=None)
    asked = {"run_dir": tmp_path / "sweep", "quiet": True, "stop": {"training_iteration": 2}}
    sweep(SMALL_REINFORCE, {"lr": [1e-3, 2e-3]}, loggers=f"{HERE}:Lines", **asked)
    found = sorted((tmp_path / "sweep").glob("trials/*/iterations.txt"))
    assert [path.read_text() for path in found] == ["1\n2\n"] * 2


# TensorBoard


def test_an_event_holds_all_numbers_of_a_result_over_environment_steps(tmp_path):
    write(tmp_path, [1, 2], ["tensorboard"])
    drawn = [event for event in events(tmp_path) if event.step > 0]
    assert [event.step for event in drawn] == [64, 128]
    assert [value.tag for value in drawn[0].summary.value] == [
        "training_iteration",
        "num_env_steps_sampled_lifetime",
        "time_total_s",
        "env_runners/num_episodes",
        "env_runners/custom_metrics/hits_mean",
        "learners/pol1/total_loss",
        "learners/__all_modules__/num_module_steps_trained",
    ]
    assert drawn[1].wall_time - drawn[0].wall_time == pytest.approx(
        1.0, abs=0.2
    )  # as far apart as in training


def test_a_histogram_has_its_bins_and_its_mean_is_a_curve(tmp_path):
    written = logs(tmp_path, ["tensorboard"])
    written.write(
        [
            result(1, **histogram([1, 0, 3])),
            result(2, hist_stats={"speed": {"min": None, "counts": [0, 0]}}),
        ]
    )
    values = {value.tag: value for event in events(tmp_path) for value in event.summary.value}
    histo = values["env_runners/hist_stats/speed"].histo
    assert (histo.min, histo.max, histo.num) == (-1.0, 2.0, 4.0)
    assert list(histo.bucket_limit) == pytest.approx([0.0, 1.0, 2.0])
    assert list(histo.bucket) == [1, 0, 3]
    assert histo.sum == pytest.approx(-0.5 + 3 * 1.5)
    assert values["env_runners/hist_stats/speed/mean"].simple_value == 0.5
    assert "env_runners/hist_stats/speed/min" not in values


def red(height=2, width=3):
    """A picture u8[height, width, 3]."""
    return np.broadcast_to(np.uint8([255, 0, 0]), (height, width, 3))


def test_a_picture_is_an_image_of_tensorboard_and_its_shape_in_text_logs(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    written = logs(tmp_path)
    written.write([result(1, frame=red(), frames=[red(), 2 * red()])])
    written.close()
    shown, *series = [
        (value.tag, value.image)
        for event in events(tmp_path)
        for value in event.summary.value
        if value.HasField("image")
    ]
    assert shown[0] == "env_runners/frame"
    assert (shown[1].height, shown[1].width, shown[1].colorspace) == (2, 3, 3)
    np.testing.assert_array_equal(image.open(io.BytesIO(shown[1].encoded_image_string)), red())
    assert [tag for tag, _ in series] == ["env_runners/frames/0", "env_runners/frames/1"]
    assert strict_lines(tmp_path)[0]["env_runners"]["frame"] == "uint8(2, 3, 3)"
    assert strict_lines(tmp_path)[0]["env_runners"]["frames"] == ["uint8(2, 3, 3)"] * 2
    assert strict_rows(tmp_path)[0]["env_runners/frame"] == "uint8(2, 3, 3)"


def test_all_settings_are_hyperparameters_beside_the_final_return(tmp_path):
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    write(tmp_path, [1], ["tensorboard"])
    contents = {
        value.tag: HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in events(tmp_path)
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    }
    settings = contents["_hparams_/session_start_info"].session_start_info.hparams
    assert set(settings) == set(CONFIG)
    assert settings["gamma"].number_value == 0.9
    assert settings["lr"].string_value == "((0, 0.001), (100, 0.0))"
    assert settings["grad_clip"].string_value == "None"
    assert settings["use_kl_loss"].bool_value is True
    metrics = contents["_hparams_/experiment"].experiment.metric_infos
    assert metrics[0].name.tag == "env_runners/episode_return_mean"
    assert "_hparams_/session_end_info" in contents


def test_episodes_one_by_one_are_histograms_those_of_an_evaluation_too():
    episodes = {"hist_stats": {"episode_reward": [0.0, 1.0, 3.0], "episode_lengths": [5, 5, 8]}}
    episodes["hist_stats"]["collisions"] = [2.0, None]
    _, histograms = charts({**episodes, "evaluation": {"env_runners": episodes}})
    for above in ("", "evaluation/env_runners/"):
        edges, counts = histograms[f"{above}hist_stats/episode_reward"]
        assert (edges[0], edges[-1], sum(counts)) == (0.0, 3.0, 3)
        assert sum(histograms[f"{above}hist_stats/episode_lengths"][1]) == 3
        assert sum(histograms[f"{above}hist_stats/collisions"][1]) == 1


def test_the_charts_of_a_result_are_called_by_its_paths():
    shown = result(1, agent_episode_returns_mean={"a": 1.0}, this_iteration={"episode_len_max": 2})
    shown["evaluation"] = {"env_runners": {"episode_return_mean": 3.0}}
    scalars, histograms = charts(shown)
    numbers = {path for path, value in flatten(shown) if not isinstance(value, bool | list | str)}
    assert set(scalars) == numbers and not histograms
    assert {"learners/pol1/total_loss", "evaluation/env_runners/episode_return_mean"} <= numbers


def test_quick_iterations_are_thinned_but_not_evaluations_nor_the_last_before_a_flush(tmp_path):
    rapid = [result(i, seconds=MOMENT / 10) for i in range(1, 101)]
    rapid[4]["evaluation"] = {"env_runners": {"episode_return_mean": 3.0}}
    written = logs(tmp_path, result_names=("evaluation/env_runners/episode_return_mean",))
    written.write(rapid[:50])
    written.write(rapid[50:])
    steps = [step for step, _ in curve(tmp_path, "training_iteration")]
    assert 10 <= len(steps) <= 12
    assert curve(tmp_path, "evaluation/env_runners/episode_return_mean") == [(5 * 64, 3.0)]
    assert steps[-1] < 6400
    written.flush()
    written.close()
    assert [step for step, _ in curve(tmp_path, "training_iteration")] == [*steps, 6400]
    assert len(strict_lines(tmp_path)) == len(strict_rows(tmp_path)) == 100


def test_slow_iterations_are_all_drawn():
    thin = Downsampler()
    assert thin.due([result(i) for i in range(5)]) == [result(i) for i in range(5)]
    assert thin.held() == []


def test_a_hooks_list_of_numbers_is_a_histogram():
    series = {"lengths": [1, 2], "texts": ["a", "b"], "pairs": [[1, 2], [3, 4]]}
    scalars, histograms = charts({**series, "deep": {"counts": [1], "max": 2.0}})
    assert scalars == {"deep/max": 2.0} and list(histograms) == ["lengths"]
    assert sum(histograms["lengths"][1]) == 2


# Weights & Biases


class FakeRun:
    def __init__(self, **given):
        self.given, self.logged, self.finished = given, [], False

    def define_metric(self, name, step_metric):
        self.axis = step_metric

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.finished = True


@pytest.fixture
def runs(monkeypatch):
    """The runs that were begun at a stand-in for Weights & Biases."""
    begun = []

    def init(**given):
        begun.append(FakeRun(**given))
        return begun[-1]

    objects = {"Histogram": lambda np_histogram: np_histogram, "Image": np.shape}
    fake = SimpleNamespace(init=init, **objects)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return begun


def test_wandb_gets_the_settings_and_the_curves_over_environment_steps(tmp_path, runs):
    written = logs(tmp_path, ["wandb"])
    written.write([result(1, frame=red(), **histogram([1, 0, 3]))])
    written.close()
    (run,) = runs
    assert run.given["project"] == "jaxrl"
    assert run.given["config"]["gamma"] == 0.9
    ((step, values),) = run.logged
    assert step == 1
    assert values[run.axis] == 64
    assert values["learners/pol1/total_loss"] == 0.25
    assert values["env_runners/hist_stats/speed"] == (
        [1, 0, 3],
        pytest.approx([-1.0, 0.0, 1.0, 2.0]),
    )
    assert values["env_runners/frame"] == (2, 3, 3)
    assert run.finished


def test_a_resumed_run_goes_on_under_its_id_and_a_new_one_gets_a_new_id(tmp_path, runs):
    for iteration in (0, 3, 0):
        logs(tmp_path, ["wandb"], iteration=iteration, env_steps=64 * iteration).close()
    first, resumed, anew = (run.given["id"] for run in runs)
    assert first == resumed != anew


def test_no_network_is_a_warning(tmp_path, monkeypatch):
    warnings = []

    def unreachable(**given):
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=unreachable))
    written = logs(tmp_path, ["wandb", "jsonl"], warn=warnings.append)
    written.write([result(1)])
    assert warnings == ["the wandb log ends here, training continues without it: no route to host"]
    assert len(strict_lines(tmp_path)) == 1


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracker_without_its_package_is_a_line_before_anything_else(
    tmp_path, monkeypatch, tracker
):
    monkeypatch.setitem(sys.modules, tracker, None)
    with pytest.raises(UsageError, match=rf'pip install "jaxrl\[{tracker}\]"'):
        logs(tmp_path, [tracker])


# Without the packages that draw


@pytest.fixture
def undrawn(monkeypatch):
    """As where matplotlib, Pillow and tensorboardX are not installed."""
    for package in ("matplotlib", "PIL", "tensorboardX"):
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.long
def test_training_without_the_packages_that_draw_says_what_is_left_out(tmp_path, capsys, undrawn):
    path = tmp_path / "run"
    with Trainer(SMALL_ARENA, run_dir=path) as trainer:
        trainer.fit({"training_iteration": 2})
    printed = capsys.readouterr().out.splitlines()
    for line in (
        "the tensorboard log ends here, training continues without it: it needs tensorboardX, "
        "which is not installed: pip install tensorboardX",
        "curves.png is left out: it needs matplotlib, which is not installed",
        "episode.gif could not be written: episode.gif needs pillow, which is not installed: pip "
        "install pillow",
    ):
        assert printed.count(line) == 1, printed
    assert len(strict_lines(path)) == len(strict_rows(path)) == 2
    assert not [*path.glob("*.png"), *path.glob("*.gif"), *path.glob("events*")]
    assert (path / "episode.html").exists()  # for which nothing is needed


@pytest.mark.long
def test_a_run_of_an_environment_that_nothing_draws_says_why_it_has_no_picture(tmp_path, capsys):
    config = SMALL_REINFORCE.replace(env="tests.probes:Leavers")
    with Trainer(config, run_dir=tmp_path / "run", loggers=("jsonl",)) as trainer:
        trainer.fit({"training_iteration": 1})
    said = "no episode.gif: tests.probes:Leavers has nothing that draws it (render(state, params)"
    assert sum(line.startswith(said) for line in capsys.readouterr().out.splitlines()) == 1
    assert not (tmp_path / "run" / "episode.gif").exists()


def test_commands_that_draw_ask_for_the_package_in_one_line(tmp_path, capsys, undrawn):
    with Trainer(SMALL_ARENA, run_dir=tmp_path / "run", quiet=True, pictures=False) as trainer:
        trainer.fit({"training_iteration": 1})
    for command, words, package in (
        (plot, ["--out", str(tmp_path / "a.png")], "matplotlib"),
        (render, ["--out", str(tmp_path / "a.gif"), "--compile-cache", "off"], "pillow"),
    ):
        with pytest.raises(SystemExit):
            command([str(tmp_path / "run"), *words])
        (line,) = capsys.readouterr().err.splitlines()
        assert f"needs {package}, which is not installed: pip install {package}" in line


@pytest.mark.long
def test_a_sweep_without_matplotlib_says_so(tmp_path, capsys, undrawn):
    asked = {"run_dir": tmp_path / "sweep", "stop": {"training_iteration": 1}}
    sweep(SMALL_REINFORCE, {"lr": [1e-3, 2e-3]}, **asked)
    assert "curves.png is left out: it needs matplotlib" in capsys.readouterr().out
