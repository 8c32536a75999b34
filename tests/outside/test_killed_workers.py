"""Trainings whose worker processes are killed, at any moment, again and again."""

import contextlib
import functools
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import jaxrl
from tests.outside.workers.environments import Counter
from tests.programs import SMALL_CARTPOLE


def workers() -> list[int]:
    """This process's worker processes that run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            told = (folder / "cmdline").read_bytes()
            if (
                int(status[1]) == os.getpid()
                and status[0] != "Z"
                and b"outside/workers/process.py" in told
            ):
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize(
    "num_kills",
    [pytest.param(12, marks=pytest.mark.process), pytest.param(1000, marks=pytest.mark.slow)],
)
def test_kills_of_workers_cost_a_training_episodes_and_nothing_else(num_kills):
    done, killed, random = threading.Event(), [], np.random.default_rng(0)

    def kill():
        while len(killed) < num_kills and not done.wait(random.uniform(0, 0.5)):
            if alive := [pid for pid in workers() if pid not in killed]:
                pid = int(random.choice(alive))
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        done.set()

    config = SMALL_CARTPOLE.replace(
        env=functools.partial(Counter, length=5), env_args={}, total_env_steps=10**9
    )
    killer = threading.Thread(target=kill)
    with jaxrl.Trainer(
        config, run_dir=None, quiet=True, workers=2, max_consecutive_faults=10**6
    ) as trainer:
        killer.start()  # from before the first reset on
        try:
            result = trainer.train()
            while not done.is_set():
                result = trainer.train()
            killer.join()
            results = [result, *(trainer.train() for _ in range(3))]
        finally:
            done.set()
    counts = results[-1]["env_runners"]
    assert len(killed) == num_kills == counts["num_worker_restarts"]
    assert 0 < counts["num_faulty_episodes"] <= num_kills * config.num_envs
    iterations = [result["training_iteration"] for result in results]
    assert iterations == list(range(iterations[0], iterations[0] + 4))
    # The copies of a worker, two of the four, lose the step in which it died, and perhaps the one
    # in which they begin again. Such steps are not counted.
    rows = iterations[-1] * config.train_batch_size
    lost = rows - results[-1]["num_env_steps_sampled_lifetime"]
    assert 0 <= lost <= 2 * 2 * num_kills
    learned = results[-1]["learners"]["default_policy"]
    assert all(np.isfinite(value) for value in learned.values() if isinstance(value, float))
    assert results[-1]["env_runners"]["episode_return_mean"] > 0
    assert workers() == []
