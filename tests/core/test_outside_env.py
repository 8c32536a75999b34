"""Environments outside JAX as training sees them, before anything steps them."""

import jax
import pytest

import jaxrl
from jaxrl.core.outside_env import is_outside, outside_environment
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import DEFAULT_AGENT
from jaxrl.outside.workers.vector import VectorSpec

KEY = jax.random.key(0)
BOX = Box(-1.0, 1.0, (3,))


def declared(agents=(DEFAULT_AGENT,), **more):
    told = {"masked": False, "always_active": True, "waits": False, **more}
    spaces = dict.fromkeys(agents, BOX), dict.fromkeys(agents, Discrete(2))
    return outside_environment(VectorSpec("mine", agents, *spaces, (), **told), None)


def test_what_is_declared_is_what_training_reads():
    algorithm = jaxrl.PPOConfig(env=declared(("a", "b"), masked=True), num_envs=4).build()
    assert is_outside(algorithm.rollout_spec.env)
    assert algorithm.rollout_spec.masked and not algorithm.rollout_spec.waits
    runner = jax.eval_shape(algorithm.init, jax.random.key(0))
    assert [obs.shape for obs in runner.envs.obs] == [(2, 4, 1, 3)]


def test_one_line_refuses_a_compiled_loop():
    config = jaxrl.PPOConfig(env=declared())
    with pytest.raises(jaxrl.UsageError, match=r"make_train: mine runs outside JAX .*Trainer"):
        jaxrl.make_train(config)
    algorithm = config.build()
    with pytest.raises(jaxrl.UsageError, match=r"Algorithm\.collect"):
        jax.eval_shape(lambda key: algorithm.collect(algorithm.init(key)), jax.random.key(0))


def test_nobody_mistakes_the_declared_zeros_for_an_episode():
    for call in (lambda env: env.reset(KEY), lambda env: env.step(KEY, None, 0)):
        with pytest.raises(jaxrl.UsageError, match="mine runs outside JAX"):
            call(declared())
    for adapter in (jaxrl.to_gymnasium, jaxrl.to_gymnax):
        with pytest.raises(jaxrl.UsageError, match="env: mine runs outside JAX"):
            adapter(declared())
