"""Low limits of processes and open files: one line, no flood and no traceback."""

import errno
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

import jaxrl
from jaxrl.outside.workers import pool
from jaxrl.outside.workers.python_env import make_vector_env
from tests.attack.test_full_disks import WITHOUT_CACHE
from tests.by_hand import by_hand

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of a process")
LIMITED = """
import resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
from jaxrl.cli.main import main
main(sys.argv[2:])
"""
SIZES = [*("--num-envs", 8, "--rollout-length", 16, "--minibatch-size", 64)]
SIZES += [*("--total-env-steps", 640, "--num-epochs", 1, "--fcnet-hiddens", 4)]


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.process
@pytest.mark.parametrize("what", ["Popen", "pipe", "memfd_create"])
def test_workers_that_cannot_be_started_are_one_line_and_nothing_stays_open(what, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    make = lambda: make_vector_env("gym:CartPole-v1", 2, num_workers=2)
    make().close()
    monkeypatch.setattr(pool.subprocess if what == "Popen" else pool.os, what, refused)
    before = descriptors()
    with pytest.raises(jaxrl.UsageError, match=r"cannot be started: Resource .* \(ulimit -u, -n\)"):
        make().reset(np.arange(2, dtype=np.uint32))
    assert len(descriptors()) <= len(before) + (what != "memfd_create")  # the pool's memory


def start(most, command, *flags):
    """A command that may open so many files."""
    words = map(str, [sys.executable, "-c", LIMITED, most, command, *SIZES, *flags])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(list(words), env=WITHOUT_CACHE, **pipes)


def assert_goes_on_or_says_one_line(process, before=0):
    """A last line with a status, after so many others; or none of them."""
    _, said = process.communicate(timeout=500)
    lines = said.splitlines()
    if process.returncode:
        assert process.returncode in (1, 2) and len(lines) in (1, before + 1), said
        assert lines[-1].startswith(("jaxrl train: ", "jaxrl sweep: ")), said
    else:
        assert not lines, said


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("most", [16, *by_hand(12, 32)])
@pytest.mark.parametrize("env", ["cartpole", "gym:CartPole-v1"])
def test_a_training_with_few_descriptors_goes_on_or_says_one_line(env, most, tmp_path):
    more = ["--workers", 2] if ":" in env else ["--output", tmp_path / "episodes"]
    flags = ["--env", env, *more, "--run-dir", tmp_path / "run", "--pictures", "False"]
    assert_goes_on_or_says_one_line(start(most, "train", *flags))


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("most", [24, *by_hand(12, 64)])
@pytest.mark.parametrize("env", ["cartpole", "gym:CartPole-v1"])
def test_a_sweep_with_few_descriptors_goes_on_or_says_one_line(env, most, tmp_path):
    flags = ["--env", env, "--grid", "lr=1e-3,1e-4", "--run-dir", tmp_path / "sweep"]
    before = ":" in env  # the first checkpoint of a separate run
    assert_goes_on_or_says_one_line(start(most, "sweep", *flags), before)


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("most", [16, *by_hand(12, 24, 64)])
def test_two_processes_with_few_descriptors_go_on_or_say_one_line_each(most, tmp_path):
    with socket.create_server(("localhost", 0)) as server:
        where = f"localhost:{server.getsockname()[1]}"
    flags = ["--env", "cartpole", "--run-dir", tmp_path / "run", "--pictures", "False"]
    several = ["--coordinator", where, "--num-processes", 2, "--process-id"]
    for process in [start(most, "train", *flags, *several, index) for index in (0, 1)]:
        assert_goes_on_or_says_one_line(process)
