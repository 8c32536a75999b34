"""Trackers in their local modes: what training logs is in files on disk, and nothing is sent."""

import socket

import pytest

from jaxrl import Trainer, sweep
from jaxrl.run.logging.loggers import Logs, RunStart
from tests.programs import SMALL_ARENA
from tests.run.logging.test_loggers import CONFIG, histogram, red, result

RETURN = "env_runners/custom_metrics/hits_mean"  # in each result of `result`


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No connection leaves this machine; W&B's has one to a process of its own."""
    connect = socket.socket.connect

    def local_alone(connection, address):
        is_local = isinstance(address, str) or address[0] in ("127.0.0.1", "localhost", "::1")
        # Results have this machine's address, which a datagram's socket knows and sends nothing.
        is_silent = connection.type == socket.SOCK_DGRAM
        assert is_local or is_silent, f"a connection to {address}"
        return connect(connection, address)

    monkeypatch.setattr(socket.socket, "connect", local_alone)


def logged(folder, loggers, iterations, **start):
    folder.mkdir(exist_ok=True)
    lost = []
    written = Logs(loggers, RunStart(folder, CONFIG, say=lost.append, **start))
    written.write([result(i, frame=red(8, 8), **histogram([1, 0, 3])) for i in iterations])
    written.close()
    assert lost == []


def resumed_after(iteration):
    return {"iteration": iteration, "env_steps": 64 * iteration}


# Weights & Biases


@pytest.mark.process
def test_wandb_offline_holds_a_run_in_the_runs_folder(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra `wandb`")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged(tmp_path / "run", ["wandb"], (1, 2))
    run_id = (tmp_path / "run/wandb_run_id").read_text()
    (file,) = (tmp_path / "run/wandb").glob(f"offline-run-*-{run_id}/run-{run_id}.wandb")
    written = file.read_bytes()
    assert b"learners/pol1/total_loss" in written and b"grad_clip" in written
    assert len([*file.parent.glob("files/media/images/env_runners/frame*.png")]) == 2


# Trackio


@pytest.fixture
def trackio_runs(tmp_path, monkeypatch):
    """A function that gives {run: {step: its numbers}} of the project's file."""
    trackio = pytest.importorskip("trackio", reason="the extra `trackio`")
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    folder = tmp_path / "trackio"
    for module in ("trackio.utils", "trackio.sqlite_storage"):  # read from TRACKIO_DIR on import
        monkeypatch.setattr(f"{module}.TRACKIO_DIR", folder)
    monkeypatch.delenv("TRACKIO_PROJECT", raising=False)
    assert trackio.__version__

    def read(project="jaxrl"):
        found = {}
        for name in storage.get_runs(project):
            rows = storage.get_logs(project, name)
            found[name] = [(row["step"], row) for row in rows]
        return found

    return read


def test_trackio_holds_curves_and_histograms_over_environment_steps(tmp_path, trackio_runs):
    logged(tmp_path / "run", ["trackio"], (1, 2))
    ((name, rows),) = trackio_runs().items()
    assert name == (tmp_path / "run/trackio_run_id").read_text()
    assert name.startswith("run-")
    assert [step for step, _ in rows] == [64, 128]
    assert [row["learners/pol1/total_loss"] for _, row in rows] == [0.25, 0.5]
    shown = rows[0][1]["env_runners/hist_stats/speed"]
    assert shown["values"] == [1, 0, 3]
    assert shown["bins"] == pytest.approx([-1.0, 0.0, 1.0, 2.0])
    assert rows[0][1]["env_runners/frame"]["_type"] == "trackio.image"


def test_trackio_resumes_a_run_under_its_name_and_begins_a_new_one(tmp_path, trackio_runs):
    logged(tmp_path / "run", ["trackio"], (1, 2))
    logged(tmp_path / "run", ["trackio"], (3,), **resumed_after(2))
    assert [[step for step, _ in rows] for rows in trackio_runs().values()] == [[64, 128, 192]]
    logged(tmp_path / "run", ["trackio"], (1,))
    assert sorted(len(rows) for rows in trackio_runs().values()) == [1, 3]


def test_trackio_takes_another_project(tmp_path, trackio_runs, monkeypatch):
    monkeypatch.setenv("TRACKIO_PROJECT", "robots")
    logged(tmp_path / "run", ["trackio"], (1,))
    assert len(trackio_runs("robots")) == 1


# MLflow

# MLflow's own calls of SQLAlchemy and of other libraries.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def client(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the extra `mlflow`")
    pytest.importorskip("sqlalchemy", reason="the extra `mlflow`")
    monkeypatch.chdir(tmp_path)  # pictures are below it
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return mlflow.MlflowClient()


def runs_of(client, experiment="jaxrl"):
    found = client.get_experiment_by_name(experiment)
    return client.search_runs([found.experiment_id])


def history(client, run, path):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run, path)]


def test_mlflow_holds_settings_and_curves_over_environment_steps(tmp_path, client):
    logged(tmp_path / "run", ["mlflow"], (1, 2))
    (run,) = runs_of(client)
    assert run.info.run_id == (tmp_path / "run/mlflow_run_id").read_text()
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["gamma"] == "0.9"
    pictures = [file.path for file in client.list_artifacts(run.info.run_id, "images")]
    assert len([path for path in pictures if path.endswith(".png")]) == 2
    curve = history(client, run.info.run_id, "learners/pol1/total_loss")
    assert curve == [(64, 0.25), (128, 0.5)]


def test_mlflow_resumes_a_run_under_its_id_and_begins_a_new_one(tmp_path, client):
    logged(tmp_path / "run", ["mlflow"], (1, 2))
    logged(tmp_path / "run", ["mlflow"], (3,), **resumed_after(2))
    (run,) = runs_of(client)
    steps = [step for step, _ in history(client, run.info.run_id, RETURN)]
    assert steps == [64, 128, 192]
    logged(tmp_path / "run", ["mlflow"], (1,))
    assert len(runs_of(client)) == 2


def test_mlflow_takes_names_that_it_does_not_allow_and_many_settings(tmp_path, client):
    folder, lost = tmp_path / "run", []
    folder.mkdir()
    config = {f"setting{i}": i for i in range(250)} | {"a*b": "x" * 7000}
    written = Logs(["mlflow"], RunStart(folder, config, say=lost.append))
    agents = {f"agent#{i}": float(i) for i in range(1500)}
    written.write([{**result(1), "agents": agents}])
    written.close()
    (run,) = runs_of(client)
    assert lost == []
    assert len(run.data.params) == 251
    assert run.data.params["a_b"] == "x" * 500
    assert run.data.metrics["agents/agent_1499"] == 1499.0


def test_mlflow_that_does_not_know_a_resumed_run_is_one_line(tmp_path, client):
    folder, lost = tmp_path / "run", []
    folder.mkdir()
    (folder / "mlflow_run_id").write_text("a" * 32)
    Logs(["mlflow"], RunStart(folder, CONFIG, say=lost.append, **resumed_after(1))).close()
    (line,) = lost
    assert line.startswith("the mlflow log ends here, training continues without it: ")
    assert "a" * 32 in line


# Whole trainings


def test_a_training_and_its_resumption_are_one_run_at_each_tracker(tmp_path, client, trackio_runs):
    settings = {"quiet": True, "pictures": False}
    loggers = ["jsonl", "trackio", "mlflow"]
    with Trainer(SMALL_ARENA, run_dir=tmp_path / "run", loggers=loggers, **settings) as trainer:
        trainer.train()
        trainer.save()
    with Trainer.from_checkpoint(tmp_path / "run", **settings) as trainer:
        trainer.train()
        lasts = trainer.last_result
    steps = lasts["num_env_steps_sampled_lifetime"]
    (run,) = runs_of(client)
    path = "num_env_steps_sampled_lifetime"
    assert history(client, run.info.run_id, path) == [(steps // 2, steps / 2), (steps, steps)]
    (rows,) = trackio_runs().values()
    assert [(step, row[path]) for step, row in rows] == [(steps // 2, steps / 2), (steps, steps)]


def test_each_trial_of_a_sweep_is_a_run_of_its_own(tmp_path, client):
    settings = {"quiet": True, "loggers": ["mlflow"], "run_dir": tmp_path / "sweep"}
    sweep(SMALL_ARENA.replace(total_env_steps=64), **settings, seeds=2)
    names = [run.info.run_name for run in runs_of(client)]
    assert sorted(names) == ["0000", "0001"]
