"""Training with Ray's own actors on a local cluster of several nodes, one of which is killed.

Ray is not among the packages for tests; `pip install "jaxrl[ray]"` brings it.
"""

import functools
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.outside import ray_rollouts
from tests.outside.workers.environments import Counter, Leavers, Licensed, Modules

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]  # Ray's own

SMALL = {"num_envs": 4, "rollout_length": 8, "minibatch_size": 16, "fcnet_hiddens": (4,)}
QUIET = {"run_dir": None, "quiet": True, "pictures": False}


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one core each."""
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, logging_level="error", log_to_driver=False)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


def config_of(env, **settings):
    return jaxrl.PPOConfig(env=env, **{**SMALL, **settings})


def living():
    """(node, process) of each actor that runs."""
    actors = ray._private.state.actors().values()
    return [
        (actor["Address"]["NodeID"], actor["Pid"]) for actor in actors if actor["State"] == "ALIVE"
    ]


def num_nodes():
    return len({node for node, _ in living()})


def counts(result):
    names = "num_faulty_episodes", "num_worker_restarts", "weights_seq_no"
    return [result["env_runners"][name] for name in names]


@pytest.mark.parametrize("env", ["gym:CartPole-v1", Leavers], ids=["one agent", "several agents"])
def test_a_training_with_ray_actors_is_the_training_in_one_process(env, cluster):
    results = []
    for workers in (0, "ray:2"):
        with jaxrl.Trainer(config_of(env), **QUIET, workers=workers, sync=True) as trainer:
            results.append([trainer.train() for _ in range(3)])
    alone, actors = (
        [{**each["learners"], **each["env_runners"]} for each in result] for result in results
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), alone, actors)


def test_a_killed_node_and_a_killed_actor_cost_episodes_and_nothing_that_was_learned(
    cluster, tmp_path, caplog
):
    config = config_of(functools.partial(Modules, length=7))
    with jaxrl.Trainer(
        config, **{**QUIET, "run_dir": tmp_path / "run"}, workers="ray:2"
    ) as trainer:
        for _ in range(3):
            trainer.train()
        assert num_nodes() == 2
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
        results = [trainer.train() for _ in range(3)]
        assert [result["training_iteration"] for result in results] == [4, 5, 6]
        faults, restarts, weights_seq_no = counts(results[-1])
        assert (faults, weights_seq_no) == (2, 4)
        assert restarts >= 1  # until Ray knows it, an actor may be put on the node that is gone
        assert "copies" in caplog.text and "its Ray actor was lost" in caplog.text
        assert num_nodes() == 1  # both on the node that is left
        cluster.add_node(num_cpus=1)
        deadline = time.monotonic() + 60
        while "moved to a core that is free" not in caplog.text:
            assert time.monotonic() < deadline
            trainer.train()
        assert num_nodes() == 2
        os.kill(living()[0][1], signal.SIGKILL)
        result = [trainer.train() for _ in range(2)][-1]
        assert counts(result)[:2] == [4, restarts + 1]
        trainer.save()
    again = jaxrl.Trainer.from_checkpoint(tmp_path / "run", config=config, quiet=True)
    assert again.lifetime.training_iteration == result["training_iteration"] > 7
    again.stop()


def test_a_frozen_actor_is_ended_and_replaced(cluster, caplog, monkeypatch):
    monkeypatch.setattr(ray_rollouts, "ANSWER_TIMEOUT_S", 5.0)
    config = config_of(functools.partial(Modules, length=7))
    with jaxrl.Trainer(config, **QUIET, workers="ray:2") as trainer:
        trainer.train()
        _, frozen = living()[0]
        os.kill(frozen, signal.SIGSTOP)
        result = [trainer.train() for _ in range(3)][-1]
        assert counts(result)[:2] == [2, 1]
        assert "its Ray actor did not answer within 5 s" in caplog.text
        assert frozen not in [process for _, process in living()]


def test_faults_in_an_actor_are_dropped_there_and_said_here(cluster, caplog):
    make = functools.partial(Counter, length=6, fault="hang", at=3, share=0.3)
    settings = {"workers": "ray:2", "env_step_timeout_s": 0.5}
    with jaxrl.Trainer(config_of(make), **QUIET, **settings) as trainer:
        results = [trainer.train() for _ in range(3)]
    faults, restarts, _ = counts(results[-1])
    assert faults > 0 and restarts > 0
    said = [record.getMessage() for record in caplog.records]
    assert any("copies 2 to 3: environment 'Counter'" in text for text in said)
    assert any("no result within 0.5 s; episode seed" in text for text in said)


def test_an_environment_that_cannot_be_made_ends_the_training_in_one_line(cluster):
    make = functools.partial(Licensed, os.getpid())
    with jaxrl.Trainer(config_of(make), **QUIET, workers="ray:1") as trainer:
        with pytest.raises(RuntimeError) as caught:
            trainer.train()
        assert str(caught.value).startswith(
            "environment 'Licensed' cannot be made: RuntimeError: no"
        )
        assert "\n" not in str(caught.value)


# From the command line


def begun(run, address):
    """The process of a training on a cluster, when it has some results."""
    words = ["--env", "gym:CartPole-v1", "--workers", "ray:2", "--run-dir", run]
    for name, value in {**SMALL, "fcnet_hiddens": 4, "pictures": False}.items():
        words += [f"--{name.replace('_', '-')}", value]
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxrl", "train", *map(str, words)],
        env={**os.environ, "RAY_ADDRESS": address},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while last_iteration(run) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    return process


def last_iteration(run):
    log = run / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def test_ctrl_c_ends_the_actors_with_a_checkpoint_and_leaves_the_cluster(cluster, tmp_path):
    run = tmp_path / "run"
    process = begun(run, cluster.address)
    assert len(living()) == 2
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) == 0
    assert (run / "checkpoints" / f"{last_iteration(run):06d}").exists()
    deadline = time.monotonic() + 10
    while living():
        assert time.monotonic() < deadline
    assert any(node["Alive"] for node in ray.nodes())
    last = last_iteration(run)  # before training adds to the log
    with jaxrl.Trainer.from_checkpoint(run, quiet=True) as trainer:
        assert trainer.train()["training_iteration"] == last + 1
