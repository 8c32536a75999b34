"""Soaks: a training, one with workers and a server keep their memory, descriptors and threads.

Each runs as a user would start it, for `JAXRL_SOAK_SECONDS` after it has begun (20 by default; an
hour is 3600), and is looked at from outside. `JAXRL_SOAK_FOLDER` keeps what they leave: a table of
samples, `soak.csv`, beside each run's folder.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import jaxrl
from tests.attack import processes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc"),
]
ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("JAXRL_SOAK_SECONDS", 20))
MEGABYTES = 8  # by which the last third of a soak may be above the middle one, which warms up
TRAIN = (
    *("scripts/train_ppo.py", "--total-env-steps", 10**12, "--stop-return", "None"),
    *("--checkpoint-interval-s", 5),
)


@pytest.fixture
def folder(tmp_path, request):
    """Where a soak writes."""
    kept = os.environ.get("JAXRL_SOAK_FOLDER")
    found = Path(kept) / request.node.name if kept else tmp_path
    found.mkdir(parents=True, exist_ok=True)
    return found


def start(folder, *words):
    """A program of the checkout, which writes what it says to `lines.txt`."""
    paths = (str(ROOT), str(ROOT / "client" / "python"), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    with (folder / "lines.txt").open("w") as lines:
        words = [sys.executable, *map(str, words)]
        return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=lines, stderr=lines)


def wait_until(process, is_true, seconds=300):
    end = time.monotonic() + seconds
    while not is_true():
        assert process.poll() is None and time.monotonic() < end, f"{process.args}: not ready"
        time.sleep(0.2)


def soak(process, folder):
    """The samples of a soak, with their figures on stdout."""
    samples = processes.watch(process, SECONDS, folder / "soak.csv", max(0.25, SECONDS / 1200))
    print(processes.summary(samples))
    return samples


def assert_flat(samples):
    assert processes.growth(samples, "main_megabytes") < MEGABYTES
    assert processes.growth(samples, "megabytes") < MEGABYTES
    for field in processes.COUNTS:
        middle, last = processes.thirds(samples, field)
        assert min(last) <= min(middle), f"{field}: {min(middle)}, then {min(last)}"


def end(process):
    """Stops a program as Ctrl-C does; its children end with it."""
    children = processes.descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) in (0, 130)
    assert [child for child in children if child in processes.parents()] == []


def train(folder, *flags):
    """A soak of a training, from its first evaluation and checkpoint on: its samples."""
    shared = set(os.listdir("/dev/shm"))
    run = folder / "run"
    process = start(folder, *TRAIN, "--run-dir", run, *flags)
    try:
        wait_until(process, lambda: any(run.glob("checkpoints/*/checkpoint.json")))
        samples = soak(process, folder)
        end(process)
    finally:
        process.kill()
    assert set(os.listdir("/dev/shm")) <= shared
    assert len(list(run.glob("checkpoints/*"))) <= 3 + 1  # --keep, and the best one
    rows = [row["training_iteration"] for row in jaxrl.load_run(run).results()]
    assert rows == list(range(1, len(rows) + 1))
    print(f"{len(rows)} iterations")
    return samples


def test_a_training_stays_as_large_as_it_is(folder):
    assert_flat(train(folder, "--env", "cartpole", "--evaluation-interval", 50))


def test_a_training_with_workers_stays_as_large_as_it_is(folder):
    pytest.importorskip("gymnasium")
    workers = ("--env", "gym:CartPole-v1", "--workers", 2, "--evaluation-interval", 20)
    samples = train(folder, *workers, "--num-envs", 8)
    assert_flat(samples)
    assert samples[-1].processes == 2 + 2  # evaluations have workers of their own


def test_a_server_stays_as_large_as_it_is_while_clients_come_and_go(folder):
    pytest.importorskip("websockets")
    pytest.importorskip("msgspec")
    config = jaxrl.PPOConfig.tuned("cartpole", total_env_steps=1)
    with jaxrl.Trainer(config, run_dir=folder / "run", quiet=True, pictures=False) as trainer:
        trainer.fit()
    process = start(folder, "-m", "jaxrl", "serve", folder / "run", "--port", 0)
    lines = folder / "lines.txt"
    visitors = None
    try:
        wait_until(process, lambda: "connect to" in lines.read_text())
        address = lines.read_text().partition("connect to   ")[2].split()[0]
        time.sleep(1)
        before = processes.sample(process.pid, 0.0)
        (folder / "visitors").mkdir(exist_ok=True)
        words = ("-m", "tests.attack.visitors", address, SECONDS)
        visitors = start(folder / "visitors", *words)
        samples = soak(process, folder)
        assert visitors.wait(60) == 0, (folder / "visitors" / "lines.txt").read_text()
        time.sleep(6)  # a connection that has said nothing goes after five seconds
        after = processes.sample(process.pid, 0.0)
        end(process)
    finally:
        process.kill()
        if visitors is not None:
            visitors.kill()
    print((folder / "visitors" / "lines.txt").read_text())
    assert processes.growth(samples, "main_megabytes") < MEGABYTES
    assert after.main_descriptors <= before.main_descriptors
    assert after.main_threads <= max(row.main_threads for row in samples[: len(samples) // 3])
    assert len(lines.read_text()) < 20_000
