"""Worker processes: the same steps as in one process, whatever happens to them."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.core.errors import TooManyFaults
from jaxrl.core.types import DEFAULT_AGENT
from jaxrl.outside.workers.pool import halves, shares
from jaxrl.outside.workers.python_env import make_vector_env
from tests.outside.workers.environments import Brief, Counter, Ended, Leavers, Modules, Nim, arena

SEEDS = np.array([7, 2**32 - 1, 0, 5, 9], np.uint32)
CASES = {
    "counter": functools.partial(Counter, fault="raise", share=0.3),
    "leavers": Leavers,
    "nim": Nim,
    "ended": Ended,
    "cartpole": "gym:CartPole-v1",
}


def drawn_actions(spec, num_envs, step):
    """Actions of all agents for all copies, the same for the same step."""
    random = np.random.default_rng(step)
    return {
        agent: random.integers(0, space.n, num_envs)
        if hasattr(space, "n")
        else random.uniform(-1, 1, (num_envs, *space.shape)).astype(np.float32)
        for agent, space in spec.action_spaces.items()
    }


def play(envs, num_steps, first_step=0):
    """[OutsideSteps] with the parts joined; they step in turn."""
    actions = [drawn_actions(envs.spec, envs.num_envs, first_step + i) for i in range(num_steps)]
    chosen = lambda i, part: jax.tree.map(lambda leaf: leaf[part], actions[i])
    played = []
    for number, part in enumerate(envs.parts):
        envs.send(number, chosen(0, part))
    for i in range(num_steps):
        steps = []
        for number, part in enumerate(envs.parts):
            steps.append(jax.tree.map(np.copy, envs.receive(number)))
            if i + 1 < num_steps:
                envs.send(number, chosen(i + 1, part))
        played.append(jax.tree.map(lambda *leaves: np.concatenate(leaves), *steps))
    return played


def pids_of(envs):
    return [worker._popen.pid for worker in envs._workers]


def is_running(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(holds, seconds=10):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    "name",
    [
        *("counter", "leavers", "nim"),
        *(pytest.param(name, marks=pytest.mark.process) for name in ("ended", "cartpole")),
    ],
)
def test_worker_processes_give_the_steps_that_one_process_gives(name):
    alone = make_vector_env(CASES[name], len(SEEDS), num_workers=0)
    pool = make_vector_env(CASES[name], len(SEEDS), num_workers=2)
    try:
        jax.tree.map(np.testing.assert_array_equal, alone.reset(SEEDS), pool.reset(SEEDS))
        expected, played = play(alone, 30), play(pool, 30)
    finally:
        pool.close()
    jax.tree.map(np.testing.assert_array_equal, expected, played)
    assert pool.num_faults == alone.num_faults and pool.num_restarts == 0


@pytest.mark.parametrize(
    ("num_envs", "num_workers", "rows"),
    [
        (4, 2, [([0], [2]), ([1], [3])]),
        (5, 2, [([0], [2]), ([1], [3, 4])]),
        (4, 3, [([0], []), ([1], []), ([], [2, 3])]),
        (3, 2, [([0], []), ([], [1, 2])]),
        (1, 1, [([0],)]),
    ],
)
def test_every_worker_has_copies_of_both_halves_if_there_are_enough(num_envs, num_workers, rows):
    found = shares(halves(num_envs), num_workers)
    assert [tuple(map(list, parts)) for parts in found] == rows


@pytest.mark.long
def test_a_killed_worker_costs_the_episodes_of_its_copies_and_no_others():
    make = functools.partial(Counter, length=1000)
    pool, alone = (make_vector_env(make, 4, num_workers=workers) for workers in (2, 0))
    pool.reset(SEEDS[:4]), alone.reset(SEEDS[:4])
    num_steps = 0
    for kill in range(3):
        victim, kept = kill % 2, [1 - kill % 2, 3 - kill % 2]
        os.kill(pids_of(pool)[victim], signal.SIGKILL)
        played, expected = play(pool, 5, num_steps), play(alone, 5, num_steps)
        num_steps += 5
        lost = np.array([step.lost for step in played])
        assert lost.sum(0).tolist() == [1 - victim, victim] * 2
        if kill == 0:  # the second worker's copies play their first episodes still
            for step, wanted in zip(played, expected, strict=True):
                seen = [each.obs[DEFAULT_AGENT][kept] for each in (step, wanted)]
                np.testing.assert_array_equal(*seen)
        for step in played:
            begun = step.obs[DEFAULT_AGENT][step.lost]
            assert (begun[:, 1] == 0).all() and (begun[:, 0] != 0).all()
    assert pool.num_restarts == 3 and pool.num_faults == 6
    pool.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("hang", "no result within 0.3 s"), ("exit", r"worker process died \(exit code 3\)")],
)
def test_a_copy_that_hangs_or_dies_is_named_with_seed_step_and_action(fault, reason, caplog):
    make = functools.partial(Counter, length=5, fault=fault, at=3, share=0.2)
    pool = make_vector_env(make, 4, num_workers=2, step_timeout_s=0.3)
    pool.reset(SEEDS[:4])
    played = play(pool, 40)
    pool.close()
    assert pool.num_restarts >= 1
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == pool.num_restarts
    pattern = rf"environment 'Counter': 2 episodes dropped, copy \d: .*{reason}; episode seed "
    for message in said:
        assert re.match(pattern + r"\d+, in step 3, action -?\d$", message), message
    assert sum(step.episode_done.sum() for step in played) > 10


@pytest.mark.process
@pytest.mark.parametrize("fault", ["hang", "exit"])
def test_a_first_reset_that_hangs_or_dies_is_left_for_the_next_episode(fault, caplog):
    make = functools.partial(Counter, fault=fault, at=0, share=0.3)  # of the seed 2**32 - 1 alone
    pool = make_vector_env(make, 2, num_workers=1, step_timeout_s=0.3)
    first = pool.reset(SEEDS[:2])
    pool.close()
    (record,) = caplog.records
    assert re.search(r"copy 1: .*; episode seed \d+, in the reset$", record.getMessage())
    assert (pool.num_restarts, pool.num_faults) == (1, 0)  # no episode had begun
    assert (first.obs[DEFAULT_AGENT][:, 0] > 0.3).all()


@pytest.mark.process
def test_an_environment_that_always_kills_its_worker_ends_the_training():
    make = functools.partial(Counter, fault="exit", at=2)
    pool = make_vector_env(make, 2, num_workers=1, max_consecutive_faults=2)
    pool.reset(SEEDS[:2])
    with pytest.raises(TooManyFaults, match=r"failed 3 times.*exit code 3"):
        play(pool, 10)
    pool.close()


@pytest.mark.process
def test_a_worker_that_cannot_start_at_first_ends_the_training_at_once(tmp_path):
    make = functools.partial(Brief, str(tmp_path / "made"), 2)  # here, and one copy of two
    pool = make_vector_env(make, 2, num_workers=1)
    line = r"^environment 'Brief' cannot be made: RuntimeError: no licence left \(.*\)$"
    with pytest.raises(TooManyFaults, match=line):
        pool.reset(SEEDS[:2])
    assert pool.num_restarts == 0
    pool.close()


@pytest.mark.process
def test_a_worker_that_cannot_start_again_says_why(tmp_path):
    make = functools.partial(Brief, str(tmp_path / "made"), 3)  # here, and two copies
    pool = make_vector_env(make, 2, num_workers=1, max_consecutive_faults=2)
    pool.reset(SEEDS[:2])
    os.kill(pids_of(pool)[0], signal.SIGKILL)
    with pytest.raises(TooManyFaults, match=r"failed 3 times.*RuntimeError: no licence left"):
        play(pool, 1)
    pool.close()


def test_workers_do_not_import_jax_and_leave_nothing_behind():
    memory, descriptors = os.listdir("/dev/shm"), os.listdir("/proc/self/fd")
    pool = make_vector_env(functools.partial(Modules, length=50), 4, num_workers=2)
    pids = pids_of(pool)
    pool.reset(SEEDS[:4])
    (step,) = play(pool, 1)
    assert step.obs[DEFAULT_AGENT][:, 2].tolist() == [0.0] * 4
    assert step.metrics["pid"].tolist() == [*pids, *pids]
    pool.close()
    pool.close()  # twice does no harm
    del pool
    assert not any(map(is_running, pids))
    assert os.listdir("/dev/shm") == memory
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


@pytest.mark.process
def test_a_worker_imports_all_of_jaxrl_where_an_environment_needs_it():
    pool, alone = (make_vector_env(arena, 2, num_workers=workers) for workers in (1, 0))
    jax.tree.map(np.testing.assert_array_equal, pool.reset(SEEDS[:2]), alone.reset(SEEDS[:2]))
    jax.tree.map(np.testing.assert_array_equal, play(pool, 3), play(alone, 3))
    pool.close()


def test_an_object_that_cannot_be_sent_is_refused_in_one_line():
    env = Counter()
    env.file = sys.stdout
    with pytest.raises(jaxrl.UsageError, match=r"cannot be made: .*|cannot be sent to worker"):
        make_vector_env(env, 2, num_workers=2)


PARENT = """
import functools, signal, sys
import numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
from jaxrl.outside.workers.python_env import make_vector_env
from tests.outside.workers.environments import Counter
pool = make_vector_env(functools.partial(Counter, length=9, fault=sys.argv[1],
                                         at=int(sys.argv[2]), share=0.6), 4, num_workers=2)
print(*(worker._popen.pid for worker in pool._workers), flush=True)
pool.reset(np.arange(4, dtype=np.uint32))
while True:
    for part in (0, 1):
        pool.send(part, {"default_agent": np.zeros(2, int)})
        pool.receive(part)
"""


@pytest.mark.process
@pytest.mark.parametrize(("fault", "at"), [("none", 0), ("hang", 2), ("hang", 0), ("exit", 1)])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_their_parent_however_it_ends(fault, at, how):
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, fault, str(at)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=root,
        text=True,
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_running, pids))
        time.sleep(1)  # they begin their first episodes
        parent.send_signal(how)
        try:
            parent.wait(20)
        finally:
            parent.kill()
        wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.slow
def test_a_thousand_kills_stop_nothing():
    pool = make_vector_env(functools.partial(Counter, length=20), 4, num_workers=2)
    pool.reset(SEEDS[:4])
    random, finished, descriptors = np.random.default_rng(0), 0, len(os.listdir("/proc/self/fd"))
    for kill in range(1000):
        os.kill(pids_of(pool)[random.integers(2)], signal.SIGKILL)
        finished += sum(int(step.episode_done.sum()) for step in play(pool, 25, kill))
    assert pool.num_restarts == 1000 and pool.num_faults == 2000
    assert finished > 1000 and len(os.listdir("/proc/self/fd")) == descriptors
    pool.close()
