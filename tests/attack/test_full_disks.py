"""Full disks: the exit is 1, the last line says what is missing, and few lines come before it."""

import os
import subprocess
import sys

import pytest

import jaxrl
from tests.programs import SMALL_CARTPOLE

pytestmark = [
    pytest.mark.process,
    pytest.mark.long,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of a process"),
]
LIMITED = """
import resource, sys
most_bytes = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
from jaxrl.cli.main import main
main(sys.argv[2:])
"""
TRAIN = (
    *("train", "--env", "cartpole", "--num-envs", "8", "--rollout-length", "16"),
    *("--minibatch-size", "64", "--total-env-steps", "12800"),
)
# Whoever may write the beginning of a file alone must not write into a cache that others read.
WITHOUT_CACHE = {
    **{name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"},
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}


def train(most_bytes, *flags):
    """A training that may write files of so many bytes: (exit status, lines on stderr)."""
    words = [sys.executable, "-c", LIMITED, most_bytes, *TRAIN, *flags]
    done = subprocess.run(
        list(map(str, words)), env=WITHOUT_CACHE, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr.splitlines()


def test_a_log_that_is_cut_short_is_named_in_the_last_line(tmp_path):
    """Checkpoints of this training are smaller than 60 kB, its log of 100 iterations is not."""
    status, lines = train(100_000, "--run-dir", tmp_path / "run", "--pictures", "False")
    assert status == 1 and len(lines) == 1
    assert "the end of the jsonl log could not be written: File too large" in lines[-1]
    assert len(jaxrl.load_run(tmp_path / "run").results()) < 100


def test_checkpoints_that_do_not_fit_are_one_line_in_all(tmp_path):
    status, lines = train(4_000, "--run-dir", tmp_path / "run", "--checkpoint-frequency", 10)
    assert status == 1 and len(lines) == 1
    assert "the checkpoint of iteration 100 could not be written" in lines[-1]
    assert "checkpoints in all could not be written" in lines[-1]


def test_episodes_that_cannot_be_written_are_named_in_the_last_line(tmp_path):
    status, lines = train(
        100_000, "--run-dir", tmp_path / "two", "--loggers", "csv", "--output", tmp_path / "out"
    )
    assert status == 1 and len(lines) == 1
    assert "episodes cannot be written" in lines[-1]


def test_a_trainer_with_a_cut_log_says_so_when_it_stops(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    trainer = jaxrl.Trainer(SMALL_CARTPOLE, run_dir=tmp_path / "run", quiet=True, pictures=False)
    trainer.train()
    trainer.keeping.recorder.wait()
    monkeypatch.setattr("jaxrl.run.logging.text_logs.append", full)
    trainer.train()
    missing = trainer.stop()
    assert "the end of the jsonl log could not be written: No space left on device" in missing
    assert trainer.keeping.failed is None  # the checkpoint is there: `with` would not raise
