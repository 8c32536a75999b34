"""Damaged files of a sweep's folder.

One line that names the file, no traceback, and nothing trained.
"""

import json

import jax
import pytest

from jaxrl import UsageError, resume_sweep, sweep
from jaxrl.run.storage import run_folder
from jaxrl.sweeps import saved_sweep
from jaxrl.sweeps.options import SweepOptions
from jaxrl.sweeps.sweep_folder import SweepFolder
from jaxrl.sweeps.trials import trials_of
from tests.programs import SMALL_CARTPOLE

ROW = {
    "trial": 1,
    "settings": {"lr": 0.01},
    "seed": 0,
    "status": "terminated",
    "score": 12.5,
    "curve": [[64, 128], [None, 12.5]],
    "result": {"training_iteration": 2},
}


@pytest.fixture
def path(tmp_path):
    """A sweep of two trials that was killed before its first one was finished."""
    trials = trials_of(SMALL_CARTPOLE, [{"lr": 1e-3}, {"lr": 1e-2}], 1)
    order = SweepOptions("env_runners/episode_return_mean", {}, devices=1)
    store = SweepFolder.begin(tmp_path / "sweep", SMALL_CARTPOLE, trials, order.to_dict())
    store.close()
    return store.path


def refused(path):
    """What resuming says, in one line; the folder is free again."""
    with pytest.raises(UsageError) as error:
        resume_sweep(path, quiet=True)
    assert "\n" not in str(error.value)
    run_folder.lock(path).release()
    return str(error.value)


@pytest.fixture
def planned(monkeypatch):
    """[(order, warnings)] of sweeps that got as far as training, which is left out."""
    found = []

    def note(config, trials, order, quiet, open_store, warnings=()):
        open_store().close()
        found.append((order, list(warnings)))

    monkeypatch.setattr("jaxrl.sweeps.sweep.train", note)
    return found


def test_a_sweep_over_all_devices_is_resumed_over_all_that_there_are_then(planned, tmp_path):
    sweep(SMALL_CARTPOLE, seeds=2, quiet=True, run_dir=tmp_path / "sweep")
    assert json.loads((tmp_path / "sweep" / saved_sweep.PLAN).read_text())["devices"] == "auto"
    resume_sweep(tmp_path / "sweep", quiet=True)
    assert [(order.devices, warnings) for order, warnings in planned] == [
        (len(jax.devices()), [])
    ] * 2


def test_a_sweep_over_more_devices_than_there_are_is_resumed_over_those_and_says_so(planned, path):
    edit(path / saved_sweep.PLAN, devices=4000)
    resume_sweep(path, quiet=True)
    ((order, (warning,)),) = planned
    assert order.devices == len(jax.devices())
    assert warning.startswith(f"the sweep had devices=4000, JAX has {order.devices} here")


def edit(file, **changes):
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in values.items() if value != "gone"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "sweep.json is not JSON"),
        (b'{"config": {', "sweep.json is not JSON"),
        (b"\x00\xff\xfe\x80" * 100, "sweep.json is not JSON"),
        (b"[" * 100_000, "sweep.json is not JSON"),
        (b"[]", "sweep.json is []"),
        (b"null", "sweep.json is None"),
        (b"{}", "sweep.json has no 'config_class'"),
    ],
)
def test_a_plan_that_is_no_plan_is_refused(path, text, message):
    (path / saved_sweep.PLAN).write_bytes(text)
    assert f"sweep folder {path} is damaged: {message}" in refused(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": "gone"}, "has no 'trials'"),
        ({"trials": []}, "has no trials"),
        ({"trials": 7}, "trials in sweep.json is 7"),
        ({"trials": [7]}, "a part of trials in sweep.json is 7"),
        ({"trials": [{"settings": {"lr": 0.1}}]}, "trials in sweep.json has no 'seed'"),
        (
            {"trials": [{"settings": {"lr": 0.1}, "seed": "x"}]},
            "seed in a part of trials in sweep.json is 'x'",
        ),
        ({"config": "gone"}, "has no 'config'"),
        ({"config": []}, "config in sweep.json is []"),
        ({"config_class": 3}, "config_class in sweep.json is 3"),
        (
            {"config_class": "jaxrl.algorithms.ppo.config:Vanished"},
            "Vanished', which is not part of jaxrl",
        ),
        ({"objects": ["per_policy.nobody.lr"]}, "damaged"),
        ({"metric": None}, "metric in sweep.json is None"),
        ({"metric": "nowhere"}, "nowhere"),
        ({"mode": 3}, "mode in sweep.json is 3"),
        ({"mode": "mim"}, "unknown mode 'mim'; known: max, min"),
        ({"stop": []}, "stop in sweep.json is []"),
        ({"batch_size": "many"}, "batch_size"),
        ({"halving": {}}, "halving"),
        ({"devices": "x"}, "devices"),
    ],
)
def test_a_plan_with_a_part_missing_or_of_another_kind_is_refused(path, changes, message):
    edit(path / saved_sweep.PLAN, **changes)
    assert message in refused(path)


def test_a_folder_without_a_plan_is_no_sweeps_folder(tmp_path):
    with pytest.raises(UsageError, match=r"is not a sweep's folder: sweep\.json: No such file"):
        resume_sweep(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\x00\xff\xfe\x80", "is not JSON"),
        (b'{"trial": 1', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "it is [1, 2]"),
        (b"{}", "has no 'trial'"),
        ({"trial": 9}, "trial in it is 9; the sweep has 2"),
        ({"trial": -1}, "trial in it is -1"),
        ({"trial": "1"}, "trial in it is '1'"),
        ({"trial": 0, "settings": {"gamma": 1}}, "has other settings than trial 0 of sweep.json"),
        ({"settings": None}, "settings in it is None"),
        ({"seed": 5}, "has other settings than trial 1"),
        ({"status": "eaten"}, "status in it is 'eaten'"),
        ({"score": "high"}, "score in it is 'high'"),
        ({"curve": 3}, "curve in it is 3"),
        ({"curve": [[64], []]}, "curve in it is [[64], []]"),
        ({"curve": [["x"], [1.0]]}, "curve in it is [['x'], [1.0]]"),
        ({"result": []}, "result in it is []"),
        ({"result": {}}, "result in it is {}"),
    ],
)
def test_a_damaged_line_of_results_is_left_out_and_named_by_its_number(path, line, message, caplog):
    good = json.dumps(ROW).encode() + b"\n"
    bad = json.dumps({**ROW, **line}).encode() if isinstance(line, dict) else line
    before = good + bad + b"\n" + good
    (path / saved_sweep.RESULTS).write_bytes(before)
    store, _ = SweepFolder.again(path)
    store.close()
    assert store.over == {1: ROW}
    assert caplog.messages[0].startswith(f"{path / saved_sweep.RESULTS}: line 2 is damaged (")
    assert message in caplog.text and caplog.messages[0].endswith(" and left out")
    assert (path / saved_sweep.RESULTS).read_bytes() == before  # nothing is thrown away


@pytest.mark.parametrize("joined", [{"halving": 3}, {"scheduler": {}}])
def test_a_damaged_line_of_trials_that_depend_on_each_other_is_refused(path, joined):
    """Without it all of them would be trained again."""
    edit(path / saved_sweep.PLAN, **joined)
    (path / saved_sweep.RESULTS).write_bytes(b"{\n")
    assert f"sweep folder {path} is damaged: results.jsonl: line 1 is damaged" in refused(path)
    assert (path / saved_sweep.RESULTS).read_bytes() == b"{\n"


def test_whole_lines_count_and_what_a_kill_cut_off_goes(path):
    good = json.dumps(ROW).encode() + b"\n"
    (path / saved_sweep.RESULTS).write_bytes(good + good[:40])
    store, plan = SweepFolder.again(path)
    store.close()
    assert store.over == {1: ROW}
    assert [trial["settings"] for trial in plan["trials"]] == [{"lr": 1e-3}, {"lr": 1e-2}]
    assert (path / saved_sweep.RESULTS).read_bytes() == good
