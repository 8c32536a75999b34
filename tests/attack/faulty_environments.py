"""Environments of Python that harm the process in which they play, each in its own way."""

import ctypes
import locale
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
from gymnasium import spaces

from tests.outside.workers.environments import Counter

QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]


class Harmful(Counter):
    """Does something in step 3 of the episodes whose drawn number is below `share`.

    Args:
        harm: called with the environment and the step's results; it gives others.
    """

    def __init__(self, harm, share=0.5, length=5):
        super().__init__(length=length, share=share)
        self.harm = harm

    def step(self, action):
        results = super().step(action)
        is_due = self.steps == 3 and self.drawn < self.share
        return self.harm(self, list(results)) if is_due else tuple(results)


class Planted(RuntimeError):
    pass


class Panic(BaseException):
    """As a library in Rust panics."""


# What a step gives.


def texts(env, results):
    return [np.array(["a", "b", "c"]), *results[1:]]


def objects(env, results):
    return [np.array([None, {}, []], object), *results[1:]]


def complex_numbers(env, results):
    return [results[0] + 1j, *results[1:]]


def longer(env, results):
    return [np.zeros(5, np.float32), *results[1:]]


def deeper(env, results):
    return [np.zeros((3, 1), np.float32), *results[1:]]


def nan(env, results):
    results[0][1] = np.nan
    return results


def beyond_float32(env, results):
    return [np.array([1e300, 0, 0]), *results[1:]]


def four_results(env, results):
    return results[:4]


def nothing(env, results):
    return None


def texts_of_reward(env, results):
    return [results[0], "much", *results[2:]]


def info_of_threads(env, results):
    return [*results[:4], {"lock": threading.Lock(), "call": lambda: 0}]


def info_of_50_mb(env, results):
    return [*results[:4], {"pictures": np.zeros(50_000_000, np.uint8), "text": "x" * 10_000_000}]


def metric_that_is_text(env, results):
    return [*results[:4], {"metrics": {"actions": "several"}}]


# What it raises.


def recursion(env, results):
    return recursion(env, results)


def memory(env, results):
    return np.zeros(10**15)


def exits(env, results):
    sys.exit("enough")


def panic(env, results):
    raise Panic("unwrap of None")


def long_message(env, results):
    raise Planted("first line\n" + "x" * 10_000_000)


def unprintable(env, results):
    class Unprintable(Exception):
        def __str__(self):
            raise Planted

    raise Unprintable


def unpicklable(env, results):
    error = Planted("it holds a lock")
    error.lock = threading.Lock()
    raise error


def end_of_file(env, results):
    raise EOFError("no more input")


def broken_pipe(env, results):
    raise BrokenPipeError("the simulator is gone")


def interrupt(env, results):
    raise KeyboardInterrupt


# What it does to its process.


def ends_process(env, results):
    os._exit(7)


def segfault(env, results):
    ctypes.string_at(0)


def aborts(env, results):
    os.abort()


def sends(number, env, results):
    os.kill(os.getpid(), number)
    time.sleep(0.05)
    return results


def dies_of(number, env, results):
    signal.signal(number, signal.SIG_DFL)  # a shell may have it ignored, as nohup does SIGHUP
    return sends(number, env, results)


def alarm(env, results):
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(0.2)
    return results


def stops_itself(env, results):
    os.kill(os.getpid(), signal.SIGSTOP)
    return results


def handles_signals(env, results):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return results


def blocks_signals(env, results):
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    return results


def closes_descriptors(first, env, results):
    os.closerange(first, 256)
    return results


def replaces_descriptors(env, results):
    for descriptor in range(3, 64):
        other = os.open("/dev/zero", os.O_RDWR)
        os.dup2(other, descriptor)
    return results


def closes_streams(env, results):
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()
    return results


def replaces_streams(env, results):
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None
    return results


def leaves_its_folder(env, results):
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)
    return results


def deletes_its_temporary_folder(env, results):
    tempfile.tempdir = None
    tempfile.tempdir = tempfile.mkdtemp()
    os.rmdir(tempfile.tempdir)
    return results


def forgets_variables(env, results):
    os.environ.clear()
    os.environ["LC_ALL"] = os.environ["LANG"] = "no_SUCH"
    locale.setlocale(locale.LC_ALL, "C")
    return results


def forgets_modules(env, results):
    sys.path.clear()
    for name in [name for name in sys.modules if name.startswith("jaxrl")]:
        del sys.modules[name]
    return results


def reseeds(env, results):
    random.seed(0)
    np.random.seed(0)
    np.random.set_state(np.random.RandomState(3).get_state())
    return results


def limits_itself(env, results):
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return results


def floods(env, results):
    for _ in range(20_000):
        print("x" * 100)
    return results


def threads(env, results):
    def fails():
        print("from a thread", flush=True)
        raise Planted("in a thread")

    def stays():
        time.sleep(1000)

    for target in (fails, stays):
        threading.Thread(target=target).start()
    time.sleep(0.05)
    return results


def frozen(env, results):
    """Holds the interpreter's lock, so that no other thread of it does anything."""
    pickle.dumps(0)
    return 7 ** (7**12)


def changes_actions(env, results):
    env.action_space = spaces.Box(-1, 1, (2,))
    env.observation_space = None
    return results


# Processes that it starts.


def forks(env, results):
    """The child comes back too, later and with other results."""
    if os.fork() == 0:
        time.sleep(0.1)
        return [np.full(3, 77, np.float32), 77.0, *results[2:]]
    return results


def forks_and_raises(env, results):
    if os.fork() == 0:
        raise Planted("in a child")
    return results


def forks_and_exits(env, results):
    pid = os.fork()
    if pid == 0:
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    return results


def forks_and_waits(env, results):
    """The child holds the worker's pipes, when the worker is gone."""
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(4)


def keep(folder, pid):
    with open(os.path.join(folder, str(pid)), "w"):
        pass


def in_a_group(folder, env, results):
    keep(folder, subprocess.Popen(SLEEP, process_group=0, **QUIET).pid)
    return results


def in_a_session(folder, env, results):
    keep(folder, subprocess.Popen(SLEEP, start_new_session=True, **QUIET).pid)
    return results


def orphaned(folder, env, results):
    """A child of a child that has ended, in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            keep(folder, os.getpid())
            time.sleep(1000)
        os._exit(0)
    os.wait()
    return results


def without_variables(folder, env, results):
    child = subprocess.Popen(SLEEP, start_new_session=True, env={}, **QUIET)
    keep(folder, child.pid)
    return results
