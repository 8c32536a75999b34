"""glibc's memory: no more arenas than cores, and what is free is given back."""

import contextlib
import ctypes
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from jaxrl.core import machine
from jaxrl.core.machine import process_memory
from jaxrl.run.devices.compiled import StartAndChunk
from jaxrl.run.storage import array_storage

pytestmark = pytest.mark.skipif(machine._of_glibc("mallopt") is None, reason="mallopt is glibc's")
SIZE = 64 * 2**20

# Threads that all wait with memory of their own, and then glibc's account of its arenas.
COUNT_ARENAS = """\
import ctypes, os, threading
from jaxrl.core import machine

machine.limit_arenas()
libc, count = ctypes.CDLL(None), os.cpu_count() + 3
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
all_have = threading.Barrier(count + 1)

def take():
    libc.malloc(1000)
    all_have.wait()

for _ in range(count):
    threading.Thread(target=take).start()
all_have.wait()
file = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, file)
libc.fflush(file)
"""


def arenas(**variables: str) -> int:
    """How many arenas a process has whose threads outnumber its cores."""
    limits = machine.VARIABLE, machine.TUNABLES
    environ = {name: value for name, value in os.environ.items() if name not in limits}
    process = subprocess.run(
        [sys.executable, "-c", COUNT_ARENAS],
        env={**environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return len(re.findall("<heap nr=", process.stdout))


@pytest.mark.long
def test_threads_share_an_arena_a_core_unless_the_user_says_otherwise():
    cores = os.cpu_count()
    assert 1 <= arenas() <= cores
    assert arenas(MALLOC_ARENA_MAX=str(cores + 2)) == cores + 2
    assert arenas(GLIBC_TUNABLES=f"glibc.malloc.arena_max={cores + 2}") == cores + 2


@contextlib.contextmanager
def freed_memory(size):
    """Memory that glibc holds free, below a block in use that keeps the heap from shrinking."""
    libc, block_size = ctypes.CDLL(None), 64 * 1024
    libc.malloc.restype = ctypes.c_void_p
    *blocks, last = [ctypes.c_void_p(libc.malloc(block_size)) for _ in range(size // block_size)]
    for block in blocks:
        ctypes.memset(block, 1, block_size)
        libc.free(block)
    yield
    libc.free(last)


def test_a_checkpoint_gives_back_what_glibc_holds_free(tmp_path):
    arrays = {"part": np.zeros(2, np.float32)}
    array_storage.write(tmp_path / "first", arrays)  # what is imported for it stays
    with freed_memory(SIZE):
        held = process_memory()
        array_storage.write(tmp_path / "second", arrays)
        assert process_memory() < held - SIZE / 2


def test_programs_that_are_compiled_give_back_what_glibc_holds_free():
    double = jax.jit(lambda x: 2 * x).lower(1.0)
    programs = StartAndChunk({}, double, double, capacity=1)
    with freed_memory(SIZE):
        held = process_memory()
        programs.compile(start=True)
        assert process_memory() < held - SIZE / 2
