"""Ctrl-C reaches a command whatever Python is doing."""

import gc
import signal
import subprocess
import sys
import time

import pytest

from jaxrl.cli.ending import ends_in_one_line, hear_ctrl_c
from jaxrl.run.signals import StopSignal, break_off


@pytest.fixture
def former_handler():
    """Python's; a shell has it ignored where it runs the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def collector(former_handler):
    """Sends Ctrl-C's signal at the end of a collection, where JAX has a callback too."""

    sent = []

    def interrupt(phase, info):
        if phase == "stop" and not sent:
            sent.append(phase)
            signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(interrupt)
    yield gc.collect
    gc.callbacks.remove(interrupt)


def collect_and_wait(collect):
    collect()
    for _ in range(1000):
        time.sleep(0.01)


def test_ctrl_c_during_a_collection_breaks_off_soon_after(collector):
    hear_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        collect_and_wait(collector)


def test_the_second_ctrl_c_of_a_training_counts_during_a_collection_too(collector):
    said = []
    with pytest.raises(KeyboardInterrupt), StopSignal(said.append).listening():
        signal.raise_signal(signal.SIGINT)
        collect_and_wait(collector)
    assert len(said) == 1


@pytest.mark.parametrize("where_ignored", [False, True])
def test_a_command_in_the_background_stays_deaf_unless_it_is_a_server(
    former_handler, where_ignored
):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hear_ctrl_c(where_ignored=where_ignored)
    heard = break_off if where_ignored else signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) == heard


def test_a_handler_of_the_caller_stays(former_handler):
    def theirs(number, frame):
        raise AssertionError

    signal.signal(signal.SIGINT, theirs)
    hear_ctrl_c(where_ignored=True)
    assert signal.getsignal(signal.SIGINT) == theirs


COMPILING = """
import os, signal, sys, threading, time
from jaxrl.cli.ending import ends_in_one_line
from jaxrl.run.devices.compiled import compile_all

sys.argv = ["jaxrl"]
signal.signal(signal.SIGINT, signal.default_int_handler)

class Endless:
    def compile(self):
        time.sleep(3600)

with ends_in_one_line("evaluate", "stopped"):
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    compile_all([Endless(), Endless()])
"""


@pytest.mark.long
def test_a_command_waits_for_no_compiler_after_ctrl_c():
    done = subprocess.run(
        [sys.executable, "-c", COMPILING], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "jaxrl evaluate: stopped\n", 1)


def test_after_a_command_its_caller_has_the_former_handler(former_handler):
    with ends_in_one_line("evaluate"):
        assert signal.getsignal(signal.SIGINT) == break_off
    assert signal.getsignal(signal.SIGINT) == former_handler
