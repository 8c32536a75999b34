"""Several processes train what one does, and end together when one of them is lost."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl.cluster import hosts
from jaxrl.cluster.hosts import check
from jaxrl.run.storage import checkpoint
from tests.messages import refused_by

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_ppo.py"
SMALL = {  # the flags of `tests.programs.SMALL_ARENA`
    **{
        "env": "arena",
        "num-envs": 4,
        "rollout-length": 16,
        "minibatch-size": 32,
        "num-epochs": 2,
        "fcnet-hiddens": 8,
    },
    **{"tuned": False, "lr": 1e-3, "pictures": False, "loggers": "jsonl"},
}
OF_THREE = {"num-envs": 6, "minibatch-size": 48, "shuffle-blocks": 3}


def small_flags(**changed):
    words = [word for name, value in {**SMALL, **changed}.items() for word in (f"--{name}", value)]
    return [*words, "--env-args", "height=4", "width=4", "max_steps_in_episode=20"]


USER = """
import json, sys
import jax, jaxrl
from tests.programs import SMALL_ARENA

class Noted(jaxrl.Callbacks):
    def on_train_result(self, trainer, result):
        returns = trainer.evaluate()["env_runners"]["agent_episode_returns_mean"]
        result["noted"] = float(sum(map(len, returns)))
        if result["training_iteration"] == 2:
            trainer.save()
        if result["training_iteration"] == 4:
            raise KeyError("of a callback")

where, index, folder = sys.argv[1:]
jaxrl.join(where, 2, int(index))
config = SMALL_ARENA.replace(callbacks=Noted())
trainer = jaxrl.Trainer(config, run_dir=folder, quiet=True, pictures=False)
results = [trainer.train() for _ in range(3)]
evaluation = trainer.evaluate()
trainer.stop()
weights = [leaf.tolist() for leaf in jax.tree.leaves(trainer.get_weights())]
trainer = jaxrl.Trainer.from_checkpoint(folder, run_dir=None, config=trainer.config, quiet=True)
try:
    trainer.train()
except (KeyError, RuntimeError) as error:
    print(json.dumps([results, evaluation, weights, repr(error)]))
"""


STARTED = []


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    for process in STARTED:
        process.kill()
        process.communicate()
    STARTED.clear()


def free_port():
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


def started(number, command):
    """Processes of a run; `command` is a function of the coordinator's address and the process."""
    where = f"localhost:{free_port()}"
    settings = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": settings}
    commands = [[sys.executable, *map(str, command(where, i))] for i in range(number)]
    processes = [subprocess.Popen(command, **pipes) for command in commands]
    STARTED.extend(processes)
    return processes


def train_ppo(*flags, number=2, program=(SCRIPT,)):
    def command(where, i):
        several = "--coordinator", where, "--num-processes", number, "--process-id", i
        return *program, *flags, *several

    return started(number, command)


def ended(processes, seconds=300):
    """[(exit status, stdout, stderr)]"""
    answers = [process.communicate(timeout=seconds) for process in processes]
    return [
        (process.returncode, *answer) for process, answer in zip(processes, answers, strict=True)
    ]


def assert_well(answers):
    for status, _, err in answers:
        assert status == 0, err


def said(out):
    """Whether a process printed anything that gloo did not."""
    return any(line and not line.startswith("[Gloo]") for line in out.splitlines())


def wait_for(path, processes, seconds=240):
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path} after {seconds} s"
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def assert_close(actual, expected, atol=2e-5):
    for leaf, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(leaf), np.asarray(other), rtol=atol, atol=atol)


def saved(folder, iteration):
    return checkpoint.read(checkpoint.find(folder, iteration)).arrays


@pytest.mark.process
def test_two_processes_learn_report_and_save_what_one_does_and_one_goes_on(
    start, resume, small, tmp_path
):
    both = started(2, lambda where, i: ("-c", USER, where, i, tmp_path / "two"))
    trainer = start(small)
    expected = [trainer.train() for _ in range(3)]
    answers = ended(both)
    assert_well(answers)
    first, second = (json.loads(out.splitlines()[-1]) for _, out, _ in answers)
    errors = first.pop(), second.pop()
    assert errors == (
        "KeyError('of a callback')",
        "RuntimeError(\"process 0: KeyError: 'of a callback'\")",
    )
    assert second == first  # what process 0 says, all say
    results, evaluation, weights = first
    assert checkpoint.iterations(tmp_path / "two" / "checkpoints").keys() >= {2, 3}
    for result, wanted in zip(results, expected, strict=True):
        assert result.pop("noted") > 0
        for name in ("env_runners", "learners"):
            assert_close(result[name], wanted[name])
    assert_close(evaluation, trainer.evaluate())
    assert_close(
        [np.asarray(leaf) for leaf in weights], jax.tree.leaves(trainer.get_weights()), atol=1e-4
    )
    trainer.save()
    arrays, expected_arrays = saved(tmp_path / "two", 3), saved(tmp_path / "run", 3)
    assert arrays.keys() == expected_arrays.keys()
    assert_close(arrays, expected_arrays)
    alone = resume(tmp_path / "two", run_dir=None, config=small)
    assert alone.settings.devices == 1
    assert_close(alone.train()["learners"], trainer.train()["learners"])


@pytest.mark.process
@pytest.mark.slow
def test_four_processes_go_on_with_what_one_began(start, small, tmp_path):
    trainer = start(small)
    trainer.fit({"training_iteration": 2})
    trainer.stop()
    whole = start(small, run_dir=tmp_path / "whole")
    processes = train_ppo("--resume", tmp_path / "run", "--total-env-steps", 4 * 64, number=4)
    whole.fit({"training_iteration": 4})
    answers = ended(processes)
    assert_well(answers)
    assert "of 4 processes" in answers[0][1] and "resumed      after iteration 2" in answers[0][1]
    assert [said(out) for _, out, _ in answers] == [True, False, False, False]  # one process speaks
    whole.save()
    assert_close(saved(tmp_path / "run", 4), saved(tmp_path / "whole", 4))
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 4


IMPATIENT = """
import sys
from jaxrl.cli import train_ppo
from jaxrl.cluster import hosts

hosts.BEAT_SECONDS, hosts.SILENCE_SECONDS = 1.0, float(sys.argv.pop(1))
train_ppo()
"""
KILLED, SILENT, SECONDS = signal.SIGKILL, signal.SIGSTOP, hosts.SILENCE_SECONDS
slow = pytest.mark.slow
LOSSES = [
    (0, KILLED, "trains", 3, 10.0),
    (1, SILENT, "compiles", 2, 10.0),
    # With the seconds that users wait for a sign of life.
    pytest.param(0, KILLED, "trains", 3, SECONDS, marks=slow),
    pytest.param(1, KILLED, "trains", 3, SECONDS, marks=slow),
    pytest.param(0, SILENT, "trains", 3, SECONDS, marks=slow),
    pytest.param(0, KILLED, "compiles", 3, SECONDS, marks=slow),
    pytest.param(1, SILENT, "compiles", 3, SECONDS, marks=slow),
]


@pytest.mark.process
@pytest.mark.parametrize("lost, number, meanwhile, of, silence", LOSSES)
def test_a_lost_process_ends_the_others_in_one_line_and_the_run_goes_on(
    resume, tmp_path, lost, number, meanwhile, of, silence
):
    run = tmp_path / "run"
    flags = ("--total-env-steps", 10**9, "--checkpoint-frequency", 1, "--run-dir", run)
    program = (SCRIPT,) if silence == SECONDS else ("-c", IMPATIENT, silence)
    small = small_flags(**OF_THREE if of == 3 else {})
    processes = train_ppo(*small, *flags, number=of, program=program)
    if meanwhile == "trains":
        wait_for(run / "checkpoints" / "000003", processes)
    else:
        while "compiling" not in processes[0].stdout.readline():
            assert processes[0].poll() is None
    processes[lost].send_signal(number)
    begin = time.monotonic()
    left = [process for process in processes if process is not processes[lost]]
    for status, _, err in ended(left, 60):
        assert status == 3, err
        [line] = [line for line in err.splitlines() if line and not line.startswith("[Gloo]")]
        assert line.startswith(f"jaxrl: process {lost} of {of} (")
        assert f"was lost: nothing was heard of it for {silence:.0f} s" in line
        assert f"--resume {run}" in line
    assert time.monotonic() - begin + SECONDS - silence < 60
    processes[lost].kill()  # one that is only stopped still holds the run's folder
    processes[lost].wait()
    if meanwhile == "trains":
        alone = resume()
        assert alone.lifetime.training_iteration >= 3
        alone.train()


@pytest.mark.process
@pytest.mark.slow
def test_a_process_that_is_asked_to_stop_stops_all_and_what_was_learned_is_kept(tmp_path):
    flags = (
        "--total-env-steps",
        10**9,
        "--checkpoint-interval-s",
        0,
        "--run-dir",
        tmp_path / "run",
    )
    processes = train_ppo(*small_flags(), *flags)
    wait_for(tmp_path / "run" / "checkpoints" / "000001", processes)
    processes[1].terminate()
    answers = ended(processes)
    assert_well(answers)
    assert "process 1: SIGTERM" in answers[0][1]
    assert "stopped; what has been learned is kept" in answers[0][1]


@pytest.mark.process
def test_processes_with_other_settings_are_refused_by_all(tmp_path):
    def command(where, i):
        flags = "--gamma", 0.9 + i / 100, "--run-dir", tmp_path / "run"
        return (
            SCRIPT,
            *small_flags(),
            *flags,
            "--coordinator",
            where,
            "--num-processes",
            2,
            "--process-id",
            i,
        )

    message = "process 1 was started with gamma=0.91, process 0 with gamma=0.9"
    for status, _, err in ended(started(2, command)):
        assert (status, err) == (2, f"train_ppo.py: {message}\n")


@pytest.mark.process
def test_a_coordinator_that_does_not_answer_is_one_line(tmp_path):
    flags = "--run-dir", tmp_path / "run", "--join-seconds", 0.5
    command = lambda where, i: (
        SCRIPT,
        *flags,
        "--coordinator",
        where,
        "--num-processes",
        2,
        "--process-id",
        1,
    )
    [(status, out, err)] = ended(started(1, command))
    assert (status, out) == (2, "")
    assert re.fullmatch(
        r"train_ppo.py: coordinator=localhost:\d+ does not answer within 0.5 s: .*\n", err
    )
    assert not (tmp_path / "run").exists()


JOIN = "import sys, jaxrl; jaxrl.join(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), seconds=20)"


@pytest.mark.process
def test_processes_that_count_differently_are_all_told_so():
    answers = ended(started(2, lambda where, i: ("-c", JOIN, where, 2 + i, i)))
    for _, _, err in answers:
        message = "UsageError: process 1 has num_processes=3, process 0 num_processes=2"
        assert err.splitlines()[-1].endswith(message)


ALONE = """
import sys, jaxrl
try:
    jaxrl.join()
except jaxrl.UsageError as error:
    print(error)
jaxrl.join(sys.argv[1], 2, 0, seconds=2)
"""


@pytest.mark.process
def test_no_cluster_is_said_and_processes_that_do_not_all_come_are_told_so():
    [(_, out, err)] = ended(started(1, lambda where, i: ("-c", ALONE, where)))
    assert out.startswith("coordinator=auto: JAX finds no cluster here")
    assert "the 2 processes did not come together within 2 s; start each" in err.splitlines()[-1]


@pytest.mark.long
def test_slurm_is_found_as_jax_finds_it(monkeypatch):
    auto = "import jaxrl; jaxrl.join(); import jax; print(jax.process_index(), jax.process_count())"
    here = {"JOB_ID": os.getpid(), "STEP_NODELIST": "localhost", "NTASKS": 2, "LOCALID": 0}
    for name, value in here.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    processes = []
    for i in range(2):
        monkeypatch.setenv("SLURM_PROCID", str(i))
        processes += started(1, lambda where, i: ("-c", auto))
    answers = ended(processes)
    assert_well(answers)
    assert [out.split()[-2:] for _, out, _ in answers] == [["0", "2"], ["1", "2"]]


test_values_that_cannot_be_are_refused = refused_by(
    lambda values: check(*values),
    [
        (
            ("localhost:1234", None, 0),
            "num_processes is missing with coordinator='localhost:1234', process_id=0",
        ),
        ((None, 2, 0), "coordinator is missing"),
        (("localhost:1234", 2, 2), "process_id=2 must be below num_processes=2"),
        (("localhost:1234", 0, 0), "num_processes=0 must be"),
        (("localhost:1234", 2, -1), "process_id=-1 must be"),
        (("localhost", 2, 0), "must be HOST:PORT"),
        (("localhost:70000", 2, 0), "must be HOST:PORT"),
        (("auto", 2, None), "leave num_processes=2 out"),
        (("localhost:1234", 2, 0, -1), "join_seconds=-1 must be"),
    ],
    literal=True,
)
