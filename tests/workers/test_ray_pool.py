"""Ray actors: the same steps as in one process, and a lost actor is replaced.

Ray is not among the packages for tests; `pip install "jaxrl[ray]"` brings it.
"""

import functools
import os
import signal

import jax
import numpy as np
import pytest

from jaxrl.workers.python_env import make_vector_env
from tests.workers.environments import Counter, Leavers, Modules
from tests.workers.test_pool import SEEDS, play

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]  # Ray's own


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.parametrize(
    "make", [functools.partial(Counter, fault="raise", share=0.3), Leavers, "gym:CartPole-v1"]
)
def test_ray_actors_give_the_steps_that_one_process_gives(make):
    alone = make_vector_env(make, len(SEEDS), num_workers=0)
    pool = make_vector_env(make, len(SEEDS), num_workers="ray:2")
    jax.tree.map(np.testing.assert_array_equal, alone.reset(SEEDS), pool.reset(SEEDS))
    expected, played = play(alone, 12), play(pool, 12)
    pool.close()
    jax.tree.map(np.testing.assert_array_equal, expected, played)
    assert pool.num_faults == alone.num_faults and pool.num_restarts == 0


def test_a_lost_actor_is_replaced_and_costs_the_episodes_of_its_copies():
    pool = make_vector_env(functools.partial(Modules, length=1000), 4, num_workers="ray:2")
    pool.reset(SEEDS[:4])
    (step,) = play(pool, 1)
    assert step.obs["default_agent"][:, 2].tolist() == [0.0] * 4  # no JAX there
    pids = step.metrics["pid"].astype(int)
    for kill in range(2):
        os.kill(int(pids[kill]), signal.SIGKILL)
        played = play(pool, 4)
        lost = np.array([step.lost for step in played])
        assert lost.sum(0).tolist() == [1 - kill, kill] * 2
    assert pool.num_restarts == 2 and pool.num_faults == 4
    assert set(played[-1].metrics["pid"].astype(int)).isdisjoint(pids)
    pool.close()


def test_an_actor_that_hangs_is_replaced():
    make = functools.partial(Counter, length=5, fault="hang", at=3, share=0.5)
    pool = make_vector_env(make, 4, num_workers="ray:2", step_timeout_s=1.0)
    pool.reset(SEEDS[:4])
    played = play(pool, 12)
    assert pool.num_restarts >= 1
    assert sum(step.episode_done.sum() for step in played) > 2
    pool.close()
