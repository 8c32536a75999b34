"""Programs that a later process finds untraced: the same numbers, and never another's program."""

import csv
import os
import pickle
import subprocess
import sys
import zlib
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import jaxrl.run
from jaxrl import Trainer
from jaxrl.envs.arena import MultiAgentArena
from jaxrl.envs.cartpole import CartPole
from jaxrl.run.devices import kept_programs
from jaxrl.run.devices.compiled import Program, program_of
from jaxrl.run.devices.kept_programs import described
from tests.programs import SMALL_CARTPOLE


def trained(config=SMALL_CARTPOLE):
    """Losses and weights after two iterations, and whether the programs came from a cache."""
    trainer = Trainer(config, run_dir=None, quiet=True)
    losses = [trainer.train()["learners"]["default_policy"]["total_loss"] for _ in range(2)]
    weights = jax.tree.leaves(trainer.runner.learners[0].weights)
    return [*losses, *map(np.asarray, weights)], trainer.executable.loaded


@pytest.fixture
def command(monkeypatch):
    """The process counts as a command of jaxrl's that began after the sources were saved."""
    monkeypatch.setattr(kept_programs, "is_command_of_ours", lambda: True)
    monkeypatch.setattr(kept_programs, "_changed_since_the_start", lambda folders: False)


@pytest.fixture
def kept(cache, command, monkeypatch):
    """The files of a program that was trained with, in a cache of its own, and its results.

    Each trainer compiles anew.
    """
    monkeypatch.setattr("jaxrl.run.devices.compiled.program_of", program_of.__wrapped__)
    results, loaded = trained()
    assert not loaded
    return files_in(cache), results


def files_in(folder):
    return sorted(folder.glob(f"*{kept_programs.ENDING}"))


def assert_equal(results, again):
    for leaf, leaf_again in zip(results, again, strict=True):
        np.testing.assert_array_equal(leaf, leaf_again)


@pytest.mark.long
def test_a_kept_program_is_not_traced_and_gives_the_same_numbers(kept, monkeypatch):
    files, results = kept
    assert len(files) == 2  # the start and the updates

    def trace(*_):
        raise AssertionError("it is traced")

    monkeypatch.setattr(Program, "trace", trace)
    again, loaded = trained()
    assert loaded
    assert_equal(results, again)


def with_broken_parts(data):
    facts, program, *others = pickle.loads(zlib.decompress(data))
    return zlib.compress(pickle.dumps((facts, program[:500], *others)))


@pytest.mark.long
@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: b"", with_broken_parts])
def test_a_file_that_cannot_be_loaded_is_traced_again(damage, kept):
    files, results = kept
    for file in files:
        file.write_bytes(damage(file.read_bytes()))
    again, _ = trained()
    assert_equal(results, again)


@pytest.mark.long
def test_a_program_out_of_jaxs_own_cache_is_not_kept_and_the_other_is(kept):
    """Its bytes would lack kernels; the same start belongs to other numbers of epochs as well."""
    (_, start), _ = kept
    start.unlink()
    _, loaded = trained()
    assert loaded and not start.exists()
    trained(SMALL_CARTPOLE.replace(num_epochs=SMALL_CARTPOLE.num_epochs + 1))
    folder = start.parent
    new = set(files_in(folder)) - {kept[0][0]}
    assert len(new) == 1 and not new.pop().stem.endswith("-start")


def test_another_version_another_flag_and_another_size_are_other_files(cache, command, monkeypatch):
    identity = (SMALL_CARTPOLE.static(), CartPole())

    def file(identity=identity, devices=1, shapes="1"):
        return kept_programs.file_of(identity, devices, shapes)

    first = file()
    others = [file(devices=2), file(shapes="2")]
    others.append(file((SMALL_CARTPOLE.static().replace(num_envs=8), CartPole())))
    with jax.enable_x64(True):
        others.append(file())
    with monkeypatch.context() as patched:
        patched.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        others.append(file())
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 2**62)  # a folder that is read
    assert first == file()
    monkeypatch.setattr(kept_programs, "_code", lambda folders: "another version")
    others.append(file())
    assert None not in others and len({first, *others}) == 1 + len(others)
    assert first.parent == cache


def test_no_program_is_kept_without_a_folder_that_was_tested(jax_as_it_was, command, tmp_path):
    identity = SMALL_CARTPOLE.static(), CartPole()
    assert kept_programs.file_of(identity, 1, "") is None
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert kept_programs.file_of(identity, 1, "") is None
    (tmp_path / kept_programs.TESTED).touch()
    assert kept_programs.file_of(identity, 1, "").parent == tmp_path
    jax.config.update("jax_enable_compilation_cache", False)
    assert kept_programs.file_of(identity, 1, "") is None


def test_a_program_that_depends_on_more_than_its_settings_is_not_kept(cache, command):
    assert kept_programs.file_of((SMALL_CARTPOLE.static(), CartPole()), 1, "") is not None
    assert kept_programs.file_of(None, 1, "") is None
    outside = SMALL_CARTPOLE.replace(env="gym:CartPole-v1")
    assert program_of(outside.static(), outside.setup().env).identity is None


def test_sources_that_were_saved_since_the_process_began_keep_nothing(tmp_path):
    source = tmp_path / "source.py"
    source.touch()
    assert kept_programs._changed_since_the_start([str(tmp_path)])
    os.utime(source, (0, 0))
    assert kept_programs._changed_since_the_start([str(tmp_path)]) == (sys.platform != "linux")


def test_a_process_with_code_of_the_users_own_keeps_nothing():
    """As this one, in which pytest and the modules of tests run."""
    assert not kept_programs.is_command_of_ours()


def test_a_command_counts_until_a_module_of_the_users_own_is_loaded(monkeypatch):
    main = SimpleNamespace(__file__=str(kept_programs.HOME / "__main__.py"))
    installed = {"__main__": main, "os": os, "jax": jax, "jaxrl.run": jaxrl.run, "none": object()}
    monkeypatch.setattr(kept_programs, "sys", SimpleNamespace(modules=installed))
    assert kept_programs.is_command_of_ours()
    of_the_user = SimpleNamespace(__file__=__file__)
    monkeypatch.setitem(installed, "mine", of_the_user)
    assert not kept_programs.is_command_of_ours()
    monkeypatch.delitem(installed, "mine")
    monkeypatch.setitem(installed, "__main__", of_the_user)
    assert not kept_programs.is_command_of_ours()
    monkeypatch.setitem(installed, "__main__", SimpleNamespace())  # a notebook
    assert not kept_programs.is_command_of_ours()


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
    with pytest.raises(TypeError, match="is not of plain values"):
        described(SMALL_CARTPOLE.replace(model=name))


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
    files = sorted((tmp_path / "cache").glob("*/*.program"))
    written = [file.stat().st_mtime_ns for file in files]
    assert len(files) == 2
    printed = run(*flags, "--run-dir", str(tmp_path / "second"))
    assert "(out of the compile cache)" in printed
    assert rows("first") == rows("second") and len(rows("first")) == 4
    resumed = run("--resume", str(tmp_path / "second"), "--total-env-steps", "512")
    assert "(out of the compile cache)" in resumed
    assert len(rows("second")) == 8
    assert sorted((tmp_path / "cache").glob("*/*.program")) == files
    assert [file.stat().st_mtime_ns for file in files] == written
