"""Programs that a later process finds untraced: the same numbers, and never another's program."""

import csv
import os
import pickle
import subprocess
import sys
import zlib
from dataclasses import dataclass

import jax
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer
from jaxrl.envs.arena import MultiAgentArena
from jaxrl.envs.cartpole import CartPole
from jaxrl.run.devices import kept_programs
from jaxrl.run.devices.compiled import Program, program_of
from jaxrl.run.devices.kept_programs import described, has_only_installed_code
from tests.programs import SMALL_CARTPOLE


def trained():
    """Losses and weights after two iterations, and whether the programs came from a cache."""
    trainer = Trainer(SMALL_CARTPOLE, run_dir=None, quiet=True)
    losses = [trainer.train()["learners"]["default_policy"]["total_loss"] for _ in range(2)]
    weights = jax.tree.leaves(trainer.runner.learners[0].weights)
    return [*losses, *map(np.asarray, weights)], trainer.executable.loaded


@pytest.fixture
def kept(cache, monkeypatch):
    """The entry of a program that was trained with, in a cache of its own, and its results.

    The process counts as one whose code is all installed, and compiles anew for each trainer.
    """
    monkeypatch.setattr("jaxrl.run.devices.compiled.program_of", program_of.__wrapped__)
    monkeypatch.setattr(kept_programs, "has_only_installed_code", lambda: True)
    results, loaded = trained()
    assert not loaded
    (entry,) = cache.glob("jaxrl-*-cache")
    return entry, results


def refuse_to_trace(monkeypatch):
    def trace(*_):
        raise AssertionError("it is traced")

    monkeypatch.setattr(Program, "trace", trace)


@pytest.mark.long
def test_a_kept_program_is_not_traced_and_gives_the_same_numbers(kept, monkeypatch):
    _, results = kept
    refuse_to_trace(monkeypatch)
    again, loaded = trained()
    assert loaded
    for leaf, leaf_again in zip(results, again, strict=True):
        np.testing.assert_array_equal(leaf, leaf_again)


def broken_parts(data):
    metrics, start, chunk, capacity = pickle.loads(zlib.decompress(data))
    parts = (chunk[0][:500], *chunk[1:])
    return zlib.compress(pickle.dumps((metrics, start, parts, capacity)))


@pytest.mark.long
@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: b"", broken_parts])
def test_an_entry_that_cannot_be_loaded_is_traced_again(damage, kept):
    entry, results = kept
    entry.write_bytes(damage(entry.read_bytes()))
    again, _ = trained()
    for leaf, leaf_again in zip(results, again, strict=True):
        np.testing.assert_array_equal(leaf, leaf_again)


@pytest.mark.long
def test_a_program_out_of_jaxs_own_cache_is_not_kept(kept):
    """Its bytes would lack kernels."""
    entry, _ = kept
    entry.unlink()
    _, loaded = trained()
    assert loaded and not entry.exists()


@pytest.mark.long
def test_another_version_another_flag_and_another_size_are_other_entries(kept, monkeypatch):
    entry, _ = kept
    identity, folder = (SMALL_CARTPOLE.static(), CartPole()), entry.parent

    def file(identity=identity, devices=1, shapes="1"):
        return kept_programs.entry_of(identity, devices, shapes)

    first = file()
    others = [file(devices=2), file(shapes="2")]
    others.append(file((SMALL_CARTPOLE.static().replace(num_envs=8), CartPole())))
    monkeypatch.setattr(kept_programs, "_code", lambda: "another version")
    others.append(file())
    monkeypatch.undo()
    monkeypatch.setattr(kept_programs, "has_only_installed_code", lambda: True)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    others.append(file())
    monkeypatch.undo()
    monkeypatch.setattr(kept_programs, "has_only_installed_code", lambda: True)
    with jax.enable_x64(True):
        others.append(file())
    assert len({first, *others}) == 1 + len(others)
    assert first == file() and first.parent == folder


def test_no_program_is_kept_without_a_folder_that_was_tested(jax_as_it_was, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_programs, "has_only_installed_code", lambda: True)
    assert kept_programs.entry_of((), 1, "") is None
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert kept_programs.entry_of((), 1, "") is None
    (tmp_path / kept_programs.TESTED).touch()
    assert kept_programs.entry_of((), 1, "").parent == tmp_path
    jax.config.update("jax_enable_compilation_cache", False)
    assert kept_programs.entry_of((), 1, "") is None


def test_a_process_with_code_of_the_users_own_keeps_nothing():
    """As this one: the module of this test is not installed."""
    assert not has_only_installed_code()


def test_values_are_told_apart():
    values = [None, True, 1, 1.0, "1", b"1", (1,), [1], {"a": 1}, {1: "a"}, {}, (), 2.0, (1, 2)]
    values += [MultiAgentArena(), MultiAgentArena(width=9), CartPole(), np.float32(1), ((1,), 2)]
    assert len({repr(described(value)) for value in values}) == len(values)
    assert described(MultiAgentArena()) == described(MultiAgentArena(10, 10))


@dataclass(frozen=True)
class OfTheUser:
    size: int = 1


@pytest.mark.parametrize(
    "value",
    [OfTheUser(), described, lambda: 0, OfTheUser, object(), {1, 2}, np.ones(2), [OfTheUser()]],
)
def test_other_values_are_not_described(value):
    with pytest.raises(TypeError, match="is not of plain values"):
        described(value)


@pytest.mark.parametrize("name", ["my_module:Net", "gymnax:Acrobot-v1", "gym:CartPole-v1"])
def test_what_names_other_code_is_not_described(name):
    with pytest.raises(TypeError):
        described(PPOConfig(env="cartpole").replace(model=name) if "my" in name else name)


@pytest.mark.process
@pytest.mark.parametrize("extra", [(), ("--devices", "2")])
def test_the_second_command_loads_the_program_and_the_third_resumes_with_it(tmp_path, extra):
    variables = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "true"}
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)

    def run(*flags):
        command = [sys.executable, "-m", "jaxrl", "train", *flags]
        command += ["--compile-cache", str(tmp_path / "cache")]
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(name):
        with (tmp_path / name / "progress.csv").open() as file:
            return [row["learners/default_policy/total_loss"] for row in csv.DictReader(file)]

    sizes = "--env cartpole --num-envs 8 --rollout-length 8 --minibatch-size 32 --tuned False"
    sizes += " --fcnet-hiddens 8 --total-env-steps 256 --num-epochs 1"
    flags = [*sizes.split(), *extra]
    run(*flags, "--run-dir", str(tmp_path / "first"))
    (entry,) = (tmp_path / "cache").glob("*/jaxrl-*-cache")
    written = entry.stat().st_mtime_ns
    printed = run(*flags, "--run-dir", str(tmp_path / "second"))
    assert "out of the compile cache" in printed
    assert rows("first") == rows("second") and len(rows("first")) == 4
    resumed = run("--resume", str(tmp_path / "second"), "--total-env-steps", "512")
    assert "out of the compile cache" in resumed
    assert len(rows("second")) == 8
    assert entry.stat().st_mtime_ns == written
    assert len(list((tmp_path / "cache").glob("*/jaxrl-*-cache"))) == 1
