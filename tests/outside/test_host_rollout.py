"""Host rollouts, compared value by value with what one compiled program plays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.algorithms.on_policy import rollout_keys
from jaxrl.outside import host_part
from jaxrl.outside.host_rollout import HostRollouts, rows_of_lost_episodes
from tests.outside.jax_vector import JaxVector, outside_twin
from tests.probes import Forbidden, Leavers, Turns
from tests.programs import SMALL_ARENA, SMALL_CARTPOLE, SMALL_CURIOUS

T, E = 12, 4
SMALL = {"num_envs": E, "rollout_length": T, "minibatch_size": 16, "fcnet_hiddens": (8,)}
SHORT = {"env_args": {"max_steps_in_episode": 5}}
CONFIGS = {
    "an agent, cut by the clock": SMALL_CARTPOLE.replace(**SMALL, **SHORT),
    "agents of two policies": SMALL_ARENA.replace(**SMALL),
    "agents that leave": PPOConfig(env=Leavers(), **SMALL),
    "a critic that sees all": PPOConfig(env=Leavers(), **SMALL, critic_observation="all-agents"),
    "masks": PPOConfig(env=Forbidden(), **SMALL),
    "turns": PPOConfig(env=Turns(), policies="shared", **SMALL, use_gru=True, max_seq_len=5),
    "next observations": SMALL_CURIOUS.replace(**SMALL, **SHORT),
    "memory": SMALL_CARTPOLE.replace(**SMALL, **SHORT, use_gru=True, max_seq_len=5),
    "exploration": SMALL_CARTPOLE.replace(
        **SMALL,
        exploration_config={
            "type": "EpsilonGreedy",
            "warmup_timesteps": T * E // 2,
            "epsilon_timesteps": T * E,
        },
    ),
}


class ArraysOfJax(JaxVector):
    """Copies whose steps are on the device."""

    gives_jax_arrays = True

    def receive(self, part):
        return jax.tree.map(jnp.asarray, super().receive(part))


def both(config, num_parts, kind=JaxVector):
    """The rollouts of the compiled program and of the host, two after another."""
    algorithm = config.build()
    spec, params = algorithm.rollout_spec, algorithm.env_params
    runner = jax.jit(algorithm.init)(jax.random.key(3))
    weights = tuple(learner.weights for learner in runner.learners)
    twin = config.replace(env=outside_twin(spec.env, params, spec), env_args={}).build()
    vector = kind(spec, params, num_parts)
    host = HostRollouts(twin.rollout_spec, vector, T, twin.env_params)
    index = jnp.arange(E)
    vector.begin(runner.envs, rollout_keys(runner.key, 1, index), T)
    host.reset(weights, np.arange(E, dtype=np.uint32))
    collect = jax.jit(algorithm.collect)
    for _ in range(2):
        keys = rollout_keys(runner.key, runner.num_updates + 1, index)
        vector.begin(runner.envs, keys, T)
        runner, expected = collect(runner)
        env_steps = int(runner.num_updates) * T * E
        envs, rollout, _ = host.collect(weights, keys, env_steps)
        assert rollout.num_env_steps == T * E
        yield (runner.envs, expected), (envs, rollout.replace(num_env_steps=None))
        runner = runner.replace(num_updates=runner.num_updates + 1)


def assert_equal(expected, actual):
    for (path, leaf), other in zip(
        jax.tree.leaves_with_path(expected), jax.tree.leaves(actual), strict=True
    ):
        where = jax.tree_util.keystr(path)
        np.testing.assert_allclose(leaf, other, rtol=2e-5, atol=2e-6, err_msg=where)


QUICK = "agents of two policies", "turns"
CASES = [  # with how many steps are recorded at once: 5, 5 and 2, or all
    pytest.param(
        *(name, 1 + i % 2, 5 if i % 3 == 1 else T), marks=() if name in QUICK else pytest.mark.long
    )
    for i, name in enumerate(CONFIGS)
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "num_parts", "steps_at_once"), CASES)
def test_a_host_rollout_is_the_compiled_rollout(name, num_parts, steps_at_once, monkeypatch):
    monkeypatch.setattr(host_part, "STEPS_AT_ONCE", steps_at_once)
    for (envs, expected), (envs_outside, rollout) in both(CONFIGS[name], num_parts):
        assert_equal(expected, rollout)
        for part in ("obs", "episodes", "policy_states", "features"):
            assert_equal(getattr(envs, part), getattr(envs_outside, part))


@pytest.mark.long
@pytest.mark.parametrize(("name", "num_parts"), [case.values[:2] for case in CASES[:3]])
def test_steps_that_are_on_the_device_make_the_same_rollout(name, num_parts):
    rollouts = both(CONFIGS[name], num_parts, ArraysOfJax)
    for (envs, expected), (envs_outside, rollout) in rollouts:
        assert_equal(expected, rollout)
        for part in ("obs", "episodes", "policy_states", "features"):
            assert_equal(getattr(envs, part), getattr(envs_outside, part))


@pytest.mark.long
def test_an_error_while_recording_ends_the_rollout(monkeypatch):
    def fail(*args):
        raise MemoryError("no room for the rows")

    monkeypatch.setattr(host_part, "_record", fail)
    with pytest.raises(MemoryError, match="no room for the rows"):
        next(both(CONFIGS["agents of two policies"], 2))


def test_the_rows_of_a_lost_episode_end_where_it_began():
    #                  ended        lost
    lost = [False, False, False, False, True, False]
    done = [False, True, False, False, False, False]
    lost, done = (jnp.array(flags)[:, None] for flags in (lost, done))
    gone = rows_of_lost_episodes(lost, done)[:, 0]
    assert gone.tolist() == [False, False, True, True, True, False]


@pytest.mark.long
def test_nothing_is_learned_from_a_lost_episode_nor_is_it_counted():
    config = CONFIGS["an agent, cut by the clock"]
    algorithm = config.build()
    spec, params = algorithm.rollout_spec, algorithm.env_params
    twin = config.replace(env=outside_twin(spec.env, params, spec), env_args={}).build()
    runner = jax.jit(algorithm.init)(jax.random.key(3))
    vector, index = JaxVector(spec, params), jnp.arange(E)
    keys = rollout_keys(runner.key, 1, index)
    vector.begin(runner.envs, keys, T)
    vector.lose = {(7, 2)}  # in the third copy's second episode, which began at step 5
    host = HostRollouts(twin.rollout_spec, vector, T, twin.env_params)
    weights = tuple(learner.weights for learner in runner.learners)
    host.reset(weights, np.arange(E, dtype=np.uint32))
    _, rollout, _ = host.collect(weights, keys)
    (rows,) = rollout.trajectories
    active = np.asarray(rows.active[:, 0, :, 0])
    assert np.flatnonzero(~active[:, 2]).tolist() == [5, 6, 7]
    assert active[:, [0, 1, 3]].all()
    assert rollout.agent_steps.tolist() == [T * E - 3]
    # The clock of 5 steps ends all episodes in steps 4 and 9, of which the third has two left.
    assert np.flatnonzero(rollout.episode_done[:, 2]).tolist() == [4, 9]
    assert rollout.reached.length[9].tolist() == [5, 5, 2, 5]
