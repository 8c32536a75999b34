"""Low limits of processes and open files: one line, no flood and no traceback."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

import jaxrl
from jaxrl.workers import pool
from jaxrl.workers.python_env import make_vector_env
from tests.attack.test_full_disks import WITHOUT_CACHE

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of a process")
LIMITED = """
import resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
from jaxrl.cli.main import main
main(sys.argv[2:])
"""
SIZES = [*("--num-envs", 8, "--rollout-length", 16, "--minibatch-size", 64)]
SIZES += ["--total-env-steps", 640]


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


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("most", [16, 32])
@pytest.mark.parametrize("env", ["cartpole", "gym:CartPole-v1"])
def test_a_training_with_few_descriptors_goes_on_or_says_one_line(env, most, tmp_path):
    run = ["--run-dir", tmp_path / "run", "--pictures", "False"]
    more = ["--workers", 2] if ":" in env else ["--output", tmp_path / "episodes"]
    flags = ["train", "--env", env, *SIZES, *more]
    words = [sys.executable, "-c", LIMITED, most, *flags, *run]
    done = subprocess.run(
        list(map(str, words)), env=WITHOUT_CACHE, capture_output=True, text=True, check=False
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) in ((0, 0), (1, 1)), done.stderr
