"""What training needs, said beforehand, against what is known of arrays and of the process."""

import jax
import jax.numpy as jnp
import pytest

from jaxrl import Trainer
from jaxrl.core import machine
from jaxrl.core.machine import MIB, in_units
from jaxrl.run.devices.compiled import memory_line, peak_of
from tests.programs import SMALL_ARENA


def test_a_programs_peak_is_its_arguments_results_and_what_lies_between():
    def work(rows):  # [1024, 256]: sorted twice over, so that the middle cannot be left out
        return jnp.sort(jnp.sort(rows, axis=0), axis=1)[:, :128]

    peak = peak_of(jax.jit(work).lower(jnp.zeros((1024, 256), jnp.float32)).compile())
    assert 1.5 * MIB <= peak <= 6 * MIB  # 1 MiB in, 1/2 MiB out


@pytest.mark.parametrize(("devices", "mib"), [(1, "512 MiB"), (2, "1.0 GiB")])
def test_devices_of_a_cpu_share_its_memory(devices, mib, monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 2**31)
    line = memory_line(512 * MIB, devices)
    assert line.startswith(f"memory: {mib} at the peak of training")
    assert line.endswith("2.0 GiB are free")


def test_more_than_there_is_brings_a_warning(monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 2**30)
    line = memory_line(2**33, 1)
    assert line.startswith("warning: memory: 8.0 GiB")
    assert "only 1.0 GiB are free" in line


def test_where_nothing_is_known_it_says_so(monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: None)
    monkeypatch.setattr(machine, "process_memory", lambda: None)
    assert memory_line(5 * MIB, 1) == "memory: 5 MiB at the peak of training"
    assert "does not tell" in memory_line(None, 1)


def test_units():
    expected = [*("1 MiB", "3 MiB", "1,023 MiB"), "1.5 GiB"]
    assert [in_units(number) for number in (0, 3 * MIB, 1023 * MIB, 3 * 2**29)] == expected


@pytest.mark.long
def test_a_training_says_what_it_will_take_before_its_first_result(capsys):
    config = SMALL_ARENA.replace(
        total_env_steps=64, fcnet_hiddens=(5,)
    )  # compiled by no other test
    Trainer(config, run_dir=None).fit()
    lines = capsys.readouterr().out.splitlines()
    said, first = (
        next(i for i, line in enumerate(lines) if line.startswith(start))
        for start in ("memory:", "iter")
    )
    assert said < first
