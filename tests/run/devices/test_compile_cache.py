"""The compile cache: loaded programs give the same numbers, and no damaged file changes a run."""

import os
import shutil
import subprocess
import sys
import warnings

import jax
import numpy as np
import pytest

from jaxrl import Trainer, UsageError, use_compile_cache
from jaxrl.core.machine import num_cores
from jaxrl.run.devices import compile_cache
from jaxrl.run.devices.compiled import program_of
from tests.programs import SMALL_ARENA

pytestmark = pytest.mark.usefixtures("jax_as_it_was")


def entries(folder):
    return sorted(folder.glob("*-cache"))


def trained():
    """Losses and weights after three iterations, and whether the program came from a cache."""
    trainer = Trainer(SMALL_ARENA, run_dir=None, quiet=True)
    losses = [trainer.train()["learners"]["pol1"]["total_loss"] for _ in range(3)]
    return [
        *losses,
        *jax.tree.leaves(trainer.runner.learners[0].weights),
    ], trainer.executable.loaded


@pytest.mark.process
def test_training_is_equal_to_the_bit_without_a_cache_before_it_is_filled_and_loaded_from_it(
    tmp_path, monkeypatch
):
    every_time = program_of.__wrapped__  # each trainer compiles again, or loads
    monkeypatch.setattr("jaxrl.run.devices.compiled.program_of", every_time)
    jax.config.update("jax_enable_compilation_cache", False)
    plain, _ = trained()
    jax.config.update("jax_enable_compilation_cache", True)
    compile_cache.use(str(tmp_path), lambda line: None)
    compiled, from_cache = trained()
    assert not from_cache
    loaded, from_cache = trained()
    assert from_cache
    for leaf, compiled_leaf, loaded_leaf in zip(plain, compiled, loaded, strict=True):
        np.testing.assert_array_equal(leaf, compiled_leaf)
        np.testing.assert_array_equal(leaf, loaded_leaf)


def test_a_folder_is_tested_once_and_says_so(tmp_path, said):
    folder = compile_cache.use(str(tmp_path), said.append)
    assert folder == tmp_path / compile_cache.machine()
    assert len(said) == 1 and str(folder) in said[0] and "this once" in said[0]
    assert (folder / compile_cache.TESTED).read_text() == compile_cache.SOUND
    assert jax.config.jax_compilation_cache_dir == str(folder)
    jax.config.update("jax_compilation_cache_dir", None)
    assert compile_cache.use(str(tmp_path), said.append) == folder
    assert len(said) == 1


def test_a_loaded_program_must_give_the_same_numbers_or_the_folder_is_never_used(
    tmp_path, said, monkeypatch
):
    results, hits = iter([b"1", b"2"]), iter([0, 1])
    monkeypatch.setattr(compile_cache, "_sample", lambda: next(results))
    monkeypatch.setattr(compile_cache, "num_hits", lambda: next(hits))
    assert compile_cache.use(str(tmp_path), said.append) is None
    assert len(said) == 1 and "other numbers" in said[0]
    monkeypatch.undo()
    assert compile_cache.use(str(tmp_path), said.append) is None
    assert len(said) == 1
    assert jax.config.jax_compilation_cache_dir is None


def test_what_was_not_kept_is_said_and_tested_again_the_next_time(tmp_path, said, monkeypatch):
    monkeypatch.setattr(compile_cache, "num_hits", lambda: 0)
    assert compile_cache.use(str(tmp_path), said.append) is None
    assert len(said) == 1 and "not found again" in said[0]
    monkeypatch.undo()
    assert compile_cache.use(str(tmp_path), said.append) is not None


def test_another_processor_has_a_folder_of_its_own(monkeypatch):
    here = compile_cache.machine()
    assert here == compile_cache.machine()
    assert len(compile_cache._processor()) > 0
    monkeypatch.setattr(compile_cache, "_processor", lambda: ["flags : sse2"])
    assert compile_cache.machine() != here


def test_a_cache_that_jax_was_given_and_off_change_nothing(tmp_path, said):
    assert compile_cache.use("off", said.append) is compile_cache.use(None, said.append) is None
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    assert compile_cache.use(str(tmp_path / "ours"), said.append) is None
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    assert compile_cache.use(str(tmp_path / "ours"), said.append) is None
    assert said == [] and not (tmp_path / "ours").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere auto is off")
def test_auto_lies_in_the_users_cache_folder(tmp_path, said, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compile_cache.use("auto", said.append).parent == tmp_path / "jaxrl" / "compile"


@pytest.mark.parametrize(
    "damage", [lambda entry: entry[: len(entry) // 2], lambda entry: b"", lambda entry: b"x" * 99]
)
def test_a_damaged_entry_is_warned_of_and_changes_nothing(cache, damage):
    before = compile_cache._sample()
    for entry in entries(cache):
        entry.write_bytes(damage(entry.read_bytes()))
    hits = compile_cache.num_hits()
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache entry"):
        assert compile_cache._sample() == before
    assert compile_cache.num_hits() == hits


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_an_entry_that_was_cut_short_is_removed_by_whoever_uses_the_folder_next(
    length, cache, said
):
    before = compile_cache._sample()
    cut, *others = entries(cache)
    cut.write_bytes(cut.read_bytes()[:length])
    compile_cache.remove_cut_entries(cache)
    assert entries(cache) == others
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compile_cache._sample() == before
    assert entries(cache) == sorted([cut, *others])
    compile_cache.remove_cut_entries(cache)
    assert entries(cache) == sorted([cut, *others]) and not said


def test_entries_that_were_found_whole_are_not_looked_at_again(cache, monkeypatch):
    compile_cache._sample()
    compile_cache.remove_cut_entries(cache)
    monkeypatch.setattr(compile_cache, "_is_whole", None)
    compile_cache.remove_cut_entries(cache)


@pytest.mark.parametrize("trouble", ["it cannot be written to", "its disk is full"])
def test_a_folder_that_takes_no_entries_is_read_and_says_so_once(trouble, cache, said, monkeypatch):
    if "disk" in trouble:
        monkeypatch.setattr(compile_cache, "LEAST_FREE_BYTES", 2**80)
    else:
        monkeypatch.setattr("os.access", lambda *_: False)
    jax.config.update("jax_compilation_cache_dir", None)
    assert compile_cache.use(str(cache.parent), said.append) == cache
    assert said == [f"warning: compile cache {cache} is only read: {trouble}"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_cache._sample()
    assert not entries(cache)


@pytest.mark.parametrize("home", ["", "somewhere"])
def test_a_home_that_is_no_absolute_folder_holds_no_cache(home, tmp_path, said, monkeypatch):
    """Its entries are code, and would be those of whatever folder the program runs in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    monkeypatch.setenv("HOME", home)
    assert compile_cache.use("auto", said.append) is None
    assert said == ["warning: no compile cache: HOME is no folder; --compile-cache names one"]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, said):
    (tmp_path / "file").write_text("")
    assert compile_cache.use(str(tmp_path / "file"), said.append) is None
    assert len(said) == 1 and said[0].startswith("warning: no compile cache: ")
    assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_that_can_no_longer_be_written_is_warned_of_and_changes_nothing(cache):
    before = compile_cache._sample()
    shutil.rmtree(cache)
    cache.write_text("no folder any more: as on a full disk, no entry can be written")
    with pytest.warns(UserWarning, match="Error writing persistent compilation cache entry"):
        assert compile_cache._sample() == before


def test_the_entries_that_were_not_read_for_longest_go_first(tmp_path):
    for age, name in enumerate(("new", "old", "older")):
        folder = tmp_path / f"machine-{age}"
        folder.mkdir()
        (folder / f"{name}-cache").write_bytes(b"0" * 100)
        os.utime(folder / f"{name}-cache", (1e9 - age, 1e9))
    compile_cache.trim(tmp_path, 250)
    assert sorted(entry.name for entry in tmp_path.glob("*/*")) == ["new-cache", "old-cache"]


COMMAND = """
import sys
from jaxrl.run.devices import compile_cache
compile_cache.use(sys.argv[1])
hits = compile_cache.num_hits()
print(compile_cache._sample().hex(), compile_cache.num_hits() - hits)
"""


@pytest.mark.process
def test_two_processes_at_once_fill_one_cache_and_a_third_loads_from_it(tmp_path):
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "true"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "cache")]
    settings = {
        "env": environment,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }

    def answer(process):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert err.count("warning") <= 1, err
        return out.split()

    (first, _), (second, _) = (
        answer(process) for process in [subprocess.Popen(command, **settings) for _ in range(2)]
    )
    third, hits = answer(subprocess.Popen(command, **settings))
    assert first == second == third
    assert int(hits) == 1


NOTEBOOK = """
import sys
import jax, jaxrl
folder = jaxrl.use_compile_cache(sys.argv[1])
from jaxrl.run.devices import compile_cache
hits = compile_cache.num_hits()
print(jax.jit(lambda x: jax.numpy.sin(x).sum())(jax.numpy.arange(7.0)), folder)
print(compile_cache.num_hits() - hits, len(jax.devices()))
"""


@pytest.mark.process
def test_one_call_lets_a_notebook_load_what_an_earlier_one_compiled(tmp_path):
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "true"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-c", NOTEBOOK, str(tmp_path / "cache")]
    done = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        for _ in range(2)
    ]
    assert [each.returncode for each in done] == [0, 0], done[0].stderr
    (first, *facts), (second, *again) = (each.stdout.splitlines() for each in done)
    assert first == second
    assert str(tmp_path / "cache") in first
    (none, devices), (hits, _) = facts[0].split(), again[0].split()
    assert (int(none), int(devices)) == (0, num_cores())
    assert int(hits) >= 1


@pytest.mark.parametrize("folder", [None, 5, ""])
def test_a_cache_folder_that_is_no_path_is_refused(folder):
    with pytest.raises(UsageError, match="must be 'auto', a path, or 'off'"):
        use_compile_cache(folder)
