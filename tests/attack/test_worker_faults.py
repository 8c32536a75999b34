"""Environments that harm their process: a line for each, and training goes on."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxrl.outside.workers.python_env import make_vector_env
from tests.attack import faulty_environments as faulty
from tests.attack.faulty_environments import Harmful
from tests.outside.workers.test_pool import is_running, pids_of, play, wait_until

SEEDS = np.arange(2, dtype=np.uint32)
DIED = "its worker process died "
# The fault's line has this in it. A copy is made again, its process goes on.
DROPPED = {
    faulty.texts: "",
    faulty.objects: "",
    faulty.complex_numbers: "",
    faulty.longer: "shape",
    faulty.deeper: "shape",
    faulty.nan: "an observation holds NaN",
    faulty.beyond_float32: "an observation holds infinity",
    faulty.four_results: "step must give .*, not 4 values",
    faulty.nothing: "step must give .*, not None",
    faulty.texts_of_reward: "the reward is 'much' of type str, not a number",
    faulty.metric_that_is_text: "could not convert string to float",
    faulty.recursion: r"RecursionError: .*faulty_environments.py:\d+",
    faulty.memory: "Unable to allocate",
    faulty.exits: "SystemExit: enough",
    faulty.panic: "Panic: unwrap of None",
    faulty.long_message: "Planted: first line",
    faulty.unprintable: "Unprintable",
    faulty.unpicklable: "Planted: it holds a lock",
    faulty.end_of_file: "EOFError: no more input",
    faulty.broken_pipe: "the simulator is gone",
}
# The process is started again.
KILLED = {
    faulty.interrupt: "KeyboardInterrupt",
    faulty.ends_process: re.escape(f"{DIED}(exit code 7)"),
    faulty.segfault: re.escape(f"{DIED}(SIGSEGV)"),
    faulty.aborts: re.escape(f"{DIED}(SIGABRT)"),
    functools.partial(faulty.dies_of, signal.SIGTERM): re.escape(f"{DIED}(SIGTERM)"),
    functools.partial(faulty.dies_of, signal.SIGHUP): re.escape(f"{DIED}(SIGHUP)"),
    functools.partial(faulty.dies_of, signal.SIGUSR1): re.escape(f"{DIED}(SIGUSR1)"),
    faulty.alarm: re.escape(f"{DIED}(SIGALRM)"),
    faulty.stops_itself: "no result within",
    functools.partial(faulty.closes_descriptors, 0): DIED,
    functools.partial(faulty.closes_descriptors, 3): DIED,
    faulty.replaces_descriptors: f"{DIED}|no result within|has closed its pipe",
    faulty.frozen: "no result within",
    faulty.forks_and_waits: re.escape(f"{DIED}(exit code 4)"),
}
# Nothing happens to the episode.
HARMLESS = (
    *(faulty.info_of_threads, faulty.info_of_50_mb, functools.partial(faulty.sends, signal.SIGINT)),
    *(faulty.handles_signals, faulty.blocks_signals, faulty.closes_streams),
    *(faulty.replaces_streams, faulty.leaves_its_folder, faulty.deletes_its_temporary_folder),
    *(faulty.forgets_variables, faulty.forgets_modules, faulty.reseeds, faulty.limits_itself),
    *(faulty.floods, faulty.threads, faulty.changes_actions, faulty.forks_and_exits),
)


def name_of(harm):
    inner = getattr(harm, "func", harm)
    return "-".join([inner.__name__, *(str(each) for each in getattr(harm, "args", ()))])


def played(harm, num_workers, wait_s=0.0, **settings):
    """(the pool, closed; its steps) of an environment that does harm in some episodes."""
    make = functools.partial(Harmful, harm)
    settings = {"num_workers": num_workers, "max_consecutive_faults": 10**6, **settings}
    envs = make_vector_env(make, len(SEEDS), **settings)
    try:
        envs.reset(SEEDS)
        steps = play(envs, 20)
        if wait_s:  # for children that come back late
            time.sleep(wait_s)
            steps += play(envs, 20)
    finally:
        envs.close()
    return envs, steps


def lines_of(caplog):
    return [record.getMessage() for record in caplog.records]


def check_faults(envs, steps, reason, lines, when="in step 3, action -?[0-9]"):
    assert 1 <= len(lines) <= envs.num_faults
    for line in lines:
        assert re.search(reason, line) and "\n" not in line and len(line) < 700, line[:1000]
        assert re.search(rf"; episode seed \d+, {when}", line), line[:1000]
    assert sum(step.lost.sum() for step in steps) == envs.num_faults
    assert sum(step.episode_done.sum() for step in steps) > 0
    for step in steps:
        assert np.isfinite(step.obs["default_agent"]).all() and np.isfinite(step.reward).all()


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("harm", DROPPED, ids=name_of)
def test_what_a_step_gives_or_raises_costs_its_episode(harm, caplog):
    envs, steps = played(harm, num_workers=0)
    check_faults(envs, steps, DROPPED[harm], lines_of(caplog))


@pytest.mark.process
@pytest.mark.parametrize("harm", DROPPED, ids=name_of)
def test_the_same_in_worker_processes_which_go_on(harm, caplog):
    envs, steps = played(harm, num_workers=1)
    check_faults(envs, steps, DROPPED[harm], lines_of(caplog))
    assert envs.num_restarts == 0


@pytest.mark.process
@pytest.mark.parametrize("harm", KILLED, ids=name_of)
def test_a_process_that_is_harmed_is_started_again(harm, caplog, capfd):
    began = time.monotonic()
    envs, steps = played(harm, num_workers=1, step_timeout_s=1.5)
    when = ["in"] if "descriptors" in name_of(harm) else []  # no pipe to it: that is seen later
    check_faults(envs, steps, KILLED[harm], lines_of(caplog), *when)
    assert envs.num_restarts == len(caplog.records)
    assert time.monotonic() - began < 60
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.process
@pytest.mark.parametrize("harm", HARMLESS, ids=name_of)
def test_what_an_environment_does_to_its_process_harms_no_episode(harm, caplog):
    envs, steps = played(harm, num_workers=1, step_timeout_s=20.0)
    assert lines_of(caplog) == [] and (envs.num_faults, envs.num_restarts) == (0, 0)
    assert sum(step.episode_done.sum() for step in steps) == 8


@pytest.mark.process
@pytest.mark.parametrize("harm", [faulty.forks, faulty.forks_and_raises], ids=name_of)
def test_a_forked_child_that_comes_back_ends_and_changes_nothing(harm, caplog, capfd):
    envs, steps = played(harm, num_workers=1, wait_s=0.5)
    assert lines_of(caplog) == [] and (envs.num_faults, envs.num_restarts) == (0, 0)
    assert all((step.obs["default_agent"] < 10).all() for step in steps)
    (line,) = capfd.readouterr().err.splitlines()
    assert re.match(r"an environment forked process \d+, which came back .* was ended: let", line)


STARTERS = (faulty.in_a_group, faulty.in_a_session, faulty.orphaned, faulty.without_variables)


def started(folder):
    """The processes that environments have started."""
    return [int(name) for name in os.listdir(folder)]


@pytest.mark.process
@pytest.mark.parametrize("end", ["close", "SIGKILL of the worker"])
@pytest.mark.parametrize("harm", STARTERS, ids=name_of)
def test_what_an_environment_has_started_ends_with_its_worker(harm, end, tmp_path, caplog):
    if harm is faulty.without_variables and end != "close":
        pytest.skip("documented: an orphan with a session and variables of its own is not found")
    make = functools.partial(Harmful, functools.partial(harm, tmp_path), share=1.0)
    envs = make_vector_env(make, len(SEEDS), num_workers=1)
    envs.reset(SEEDS)
    play(envs, 4)
    wait_until(lambda: len(started(tmp_path)) == len(SEEDS))
    begun = started(tmp_path)
    assert all(map(is_running, begun))
    if end == "close":
        envs.close()
    else:
        os.kill(pids_of(envs)[0], signal.SIGKILL)
        play(envs, 1)
    wait_until(lambda: not any(map(is_running, begun)))
    envs.close()


TRAINER = """
import functools, sys, time
import numpy as np
from jaxrl.outside.workers.python_env import make_vector_env
from tests.attack import faulty_environments as faulty
harm = functools.partial(getattr(faulty, sys.argv[1]), sys.argv[2])
make = functools.partial(faulty.Harmful, harm, share=1.0)
envs = make_vector_env(make, 2, num_workers=1)
envs.reset(np.arange(2, dtype=np.uint32))
while True:
    for part in (0, 1):
        envs.send(part, {"default_agent": np.zeros(1, int)})
        envs.receive(part)
    time.sleep(0.1)
"""


@pytest.mark.process
@pytest.mark.parametrize("harm", STARTERS, ids=name_of)
def test_what_an_environment_has_started_ends_with_a_trainer_that_is_killed(harm, tmp_path):
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", TRAINER, harm.__name__, str(tmp_path)]
    with subprocess.Popen(command, cwd=root) as trainer:
        try:
            wait_until(lambda: len(started(tmp_path)) >= 4, seconds=60)
        finally:
            trainer.kill()
    wait_until(lambda: not any(map(is_running, started(tmp_path))))


TRAINING = """
import functools, os, sys
import jaxrl
from tests.attack import faulty_environments as faulty
from tests.programs import SMALL_CARTPOLE
make = functools.partial(faulty.Harmful, faulty.forks, share=float(sys.argv[2]))
config = SMALL_CARTPOLE.replace(env=make, env_args={}, total_env_steps=500)
workers = int(sys.argv[1])
with jaxrl.Trainer(config, run_dir=sys.argv[3], quiet=True, pictures=False, workers=workers) as t:
    t.fit()
print("finished", os.getpid(), t.last_result["env_runners"]["num_faulty_episodes"])
"""


@pytest.mark.process
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("share", [0.3, 1.0])  # 1: in every episode
def test_an_environment_that_forks_has_one_trainer(num_workers, share, tmp_path):
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-W", "ignore", "-c", TRAINING, str(num_workers), str(share), "run"]
    command[-1] = str(tmp_path / "run")
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as training:
        out, said = training.communicate(timeout=120)
    assert training.returncode == 0, said
    assert out.split() == ["finished", str(training.pid), "0"]
    lines = [line for line in said.splitlines() if "an environment forked process" in line]
    assert 1 <= len(lines) <= 1 + num_workers and "Traceback" not in said
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    iterations = [int(re.search(r'"training_iteration": ?(\d+)', row)[1]) for row in rows]
    assert iterations == list(range(1, len(rows) + 1))
