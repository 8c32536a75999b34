"""The thread that collects rollouts, without environments."""

import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxrl.outside.collector import Collector


class Rollouts:
    """Rollouts that are their own numbers, each done when `may_end` is set."""

    num_faults = num_restarts = 0

    def __init__(self):
        self.stopping, self.may_end, self.begun = threading.Event(), threading.Event(), 0

    def reset(self, weights, seeds):
        pass

    def collect(self, weights, env_keys, env_steps):
        self.begun += 1
        number = self.begun
        assert self.may_end.wait(20)
        return f"envs {number}", f"rollout {number}", None

    def close(self):
        pass


def test_a_rollout_whose_wait_was_interrupted_is_taken_by_the_next_update(monkeypatch):
    rollouts = Rollouts()
    collector = Collector(rollouts, np.zeros(2, np.uint32), num_env_steps=2)
    runner = SimpleNamespace(num_updates=0, learners=(), key=jax.random.key(0))
    collector.begin(runner, 1)

    def interrupted(thread, timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(threading.Thread, "join", interrupted)
        collector.take()
    assert collector.has_begun
    rollouts.may_end.set()
    assert collector.take().rollout == "rollout 1"
    assert not collector.has_begun and rollouts.begun == 1
    collector.close()
