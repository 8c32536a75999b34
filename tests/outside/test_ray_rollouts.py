"""Rollouts of Ray actors, with actors in this process; Ray's are in `test_ray_cluster`."""

import functools
import logging
import pickle
import sys
import time
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.on_policy import rollout_keys
from jaxrl.core.errors import TooManyFaults
from jaxrl.outside import ray_rollouts, rollout_actor
from jaxrl.outside.collector import rollouts_of
from jaxrl.outside.fragments import Fragment, unplayed
from jaxrl.outside.host_rollout import HostRollouts, Stopped
from jaxrl.outside.ray_rollouts import RayEnded, RayRollouts
from jaxrl.outside.rollout_actor import Start
from jaxrl.outside.workers.vector import FaultCount
from jaxrl.run.settings import RunSettings
from tests.outside.fake_ray import ActorDiedError, FakeRay
from tests.outside.test_host_rollout import assert_equal
from tests.outside.workers.environments import Counter, Nim

T, E = 6, 4
SMALL = {"num_envs": E, "rollout_length": T, "minibatch_size": 12, "fcnet_hiddens": (4,)}
SEEDS = np.arange(E, dtype=np.uint32)
HERE = {"num_workers": 0}  # steps in this process


@pytest.fixture
def cluster(monkeypatch):
    """Eight cores; `cluster.cores` and `cluster.before_call` may be set."""
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_rollouts, "POLL_S", 0.01)
    ray_rollouts._actor_class.cache_clear()
    monkeypatch.setattr(ray_rollouts, "pickle", SimpleNamespace(loads=same_start))
    monkeypatch.setattr(rollout_actor, "_Messages", lambda: said)
    said = type("Said", (), {"taken": lambda self: []})()
    yield fake
    fake.end()
    ray_rollouts._actor_class.cache_clear()


same_start = functools.cache(pickle.loads)  # so that all actors share what is compiled


@functools.cache
def counters():
    """(algorithm, its runner's weights) over `Counter`, whose episodes have four steps."""
    return built(functools.partial(Counter, length=4))


def built(env):
    algorithm = jaxrl.PPOConfig(env=env, **SMALL).build()
    runner = jax.jit(algorithm.init)(jax.random.key(0))
    return algorithm, tuple(learner.weights for learner in runner.learners)


def actors_of(algorithm, num_actors, max_consecutive=20, num_envs=E):
    spec, params = algorithm.rollout_spec, algorithm.env_params
    settings = {**HERE, "max_consecutive_faults": max_consecutive}
    start = pickle.dumps(Start(spec, (num_envs, T), params, settings, keeps_programs=False))
    faults = FaultCount(spec.env.name, max_consecutive)
    rollouts = RayRollouts(spec, start, (num_envs, num_actors), faults)
    rollouts.reset((), np.arange(num_envs, dtype=np.uint32))
    return rollouts


@pytest.fixture
def playing(cluster):
    """(two actors that have played a rollout, the weights)."""
    algorithm, weights = counters()
    actors = actors_of(algorithm, 2)
    actors.collect(weights, keys_of(1))
    return actors, weights


def keys_of(update, num_envs=E):
    return rollout_keys(jax.random.key(3), update, jnp.arange(num_envs))


def first_steps(rollout):
    """How many steps each copy's episode had when the rollout began."""
    return rollout.trajectories[0].obs[0, 0, :, 0, 1].tolist()


@pytest.mark.parametrize(
    "make",
    [counters, pytest.param(functools.partial(built, Nim), id="nim", marks=pytest.mark.long)],
)
def test_actors_collect_the_rollouts_that_one_process_collects(make, cluster):
    algorithm, weights = make()
    spec, params = algorithm.rollout_spec, algorithm.env_params
    alone = HostRollouts(spec, spec.env.vector(E, **HERE), T, params)
    alone.reset(weights, SEEDS)
    actors = actors_of(algorithm, 2)
    for update in (1, 2):
        envs, expected, _ = alone.collect(weights, keys_of(update))
        batch, rollout, seconds = actors.collect(weights, keys_of(update))
        assert_equal(expected, rollout)
        assert_equal(envs, batch)
        assert seconds.env > 0
        assert jax.tree.structure(rollout) == jax.tree.structure(expected)
    assert [actor.names for actor in cluster.actors] == [["start", "collect", "collect"]] * 2
    actors.close()
    assert not cluster.living


@pytest.mark.long
def test_the_part_of_a_lost_actor_is_played_again_in_new_episodes(cluster, playing, caplog):
    actors, weights = playing

    def lose(actor, name):
        if actor.number == 1 and name == "collect":
            raise ActorDiedError

    cluster.before_call = lose
    _, rollout, _ = actors.collect(weights, keys_of(2))
    # Six steps into episodes of four; the last two copies were those of the lost actor.
    assert first_steps(rollout) == [2, 2, 0, 0]
    assert np.asarray(rollout.trajectories[0].active).all()
    assert (actors.num_faults, actors.num_restarts) == (2, 1)
    (record,) = caplog.records
    assert record.getMessage() == (
        "environment 'Counter': 2 episodes dropped, copies 2 to 3: its Ray actor was lost "
        "(ActorDiedError)"
    )
    _, rollout, _ = actors.collect(weights, keys_of(3))
    assert first_steps(rollout) == [0, 0, 2, 2]
    drawn = rollout.trajectories[0].obs[0, 0, :, 0, 0]
    assert len(set(drawn.tolist())) == E  # no two episodes have the same seed
    assert len(cluster.living) == 2


@pytest.fixture
def ten(cluster):
    """(ten actors of a copy each that have played a rollout, the weights, the keys of another)."""
    cluster.cores = 10
    algorithm, weights = counters()
    actors = actors_of(algorithm, 10, num_envs=10)
    actors.collect(weights, keys_of(1, 10))
    return actors, weights, lambda update: keys_of(update, 10)


@pytest.mark.long
def test_many_actors_go_on_without_one_that_is_lost_until_its_successor_has_started(cluster, ten):
    actors, weights, keys = ten

    def lose(actor, name):
        if actor.number == 3 and name == "collect":
            raise ActorDiedError

    cluster.before_call = lose
    cluster.is_held = lambda actor, name: actor.number == 10  # the successor
    for update in (2, 3):
        _, rollout, _ = actors.collect(weights, keys(update))
        assert rollout.trajectories[0].active.all((0, 1, 3)).tolist() == [i != 3 for i in range(10)]
        assert not rollout.trajectories[0].active[:, :, 3].any()
        assert not rollout.episode_done[:, 3].any()
        assert (rollout.num_env_steps, rollout.agent_steps.tolist()) == (9 * T, [9 * T])
    assert (actors.num_faults, actors.num_restarts) == (1, 1)
    cluster.is_held = lambda actor, name: False
    _, rollout, _ = actors.collect(weights, keys(4))
    assert rollout.trajectories[0].active.all()
    assert first_steps(rollout) == [0 if i == 3 else 18 % 4 for i in range(10)]
    assert rollout.num_env_steps == 10 * T


@pytest.mark.long
def test_more_than_a_tenth_is_played_again(cluster, ten):
    actors, weights, keys = ten

    def lose(actor, name):
        if actor.number in (3, 4) and name == "collect":
            raise ActorDiedError

    cluster.before_call = lose
    _, rollout, _ = actors.collect(weights, keys(2))
    assert rollout.num_env_steps == 9 * T
    (left_out,) = np.flatnonzero(~rollout.trajectories[0].active.any((0, 1, 3)))
    again = 7 - left_out
    assert {left_out, again} == {3, 4}
    assert first_steps(rollout)[again] == 0
    assert actors.num_restarts == 2


@pytest.mark.long
def test_a_part_that_no_actor_can_play_ends_the_training(cluster, ten):
    actors, weights, keys = ten

    def lose(actor, name):
        if actor.number == 3 and name == "collect":
            raise ActorDiedError
        if actor.number >= 10 and name == "start":
            actor.body.start = lambda *arguments: "on node7: ModuleNotFoundError: No module 'x'"

    cluster.before_call = lose
    actors.collect(weights, keys(2))  # without it
    with pytest.raises(TooManyFaults, match=r"failed 21 times .* last: copies 3 to 3: .* on node7"):
        actors.collect(weights, keys(3))


@pytest.mark.long
def test_the_first_rollout_waits_for_all(cluster):
    cluster.cores = 10
    algorithm, weights = counters()
    actors = actors_of(algorithm, 10, num_envs=10)

    def lose(actor, name):
        if actor.number == 3 and name == "collect":
            raise ActorDiedError

    cluster.before_call = lose
    _, rollout, _ = actors.collect(weights, keys_of(1, 10))
    assert (rollout.num_env_steps, actors.num_restarts) == (10 * T, 1)


@pytest.mark.long
def test_nothing_is_learned_from_what_nobody_played(cluster, ten):
    actors, weights, keys = ten
    whole = actors.collect(weights, keys(2))[1]
    left_out = unplayed(Fragment(None, whole, None)).rollout
    assert (left_out.num_env_steps, left_out.agent_steps.tolist()) == (0, [0])
    config = jaxrl.PPOConfig(
        env=functools.partial(Counter, length=4), **{**SMALL, "num_envs": 10, "minibatch_size": 60}
    )
    algorithm = config.build()
    runner = jax.jit(algorithm.init)(jax.random.key(0))
    after, _ = jax.jit(algorithm.learn)(runner, left_out)
    before, now = (jax.tree.leaves(each.learners[0].weights) for each in (runner, after))
    for old, new in zip(before, now, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.long
def test_a_machine_may_take_all_its_actors_with_it(cluster):
    algorithm, weights = counters()
    settings = RunSettings(workers="ray:4", max_consecutive_faults=2)
    spec = algorithm.rollout_spec
    actors = rollouts_of(spec, (E, T), algorithm.env_params, settings, None)
    actors.reset((), SEEDS)

    def lose(actor, name):
        if actor.number < 4 and name == "collect":
            raise ActorDiedError

    cluster.before_call = lose
    _, rollout, _ = actors.collect(weights, keys_of(1))
    assert (actors.num_restarts, rollout.num_env_steps) == (4, E * T)


def test_an_actor_that_is_frozen_is_replaced_when_it_does_not_answer(
    cluster, playing, caplog, monkeypatch
):
    actors, weights = playing
    monkeypatch.setattr(ray_rollouts, "ANSWER_TIMEOUT_S", 0.05)
    cluster.is_held = lambda actor, name: actor.number == 1
    _, rollout, _ = actors.collect(weights, keys_of(2))
    assert first_steps(rollout) == [2, 2, 0, 0]
    assert (actors.num_faults, actors.num_restarts) == (2, 1)
    assert "copies 2 to 3: its Ray actor did not answer within 0.05 s" in caplog.text
    assert cluster.actors[1] not in cluster.living


def test_an_actor_that_answers_may_play_for_long(cluster, playing, monkeypatch):
    actors, weights = playing
    monkeypatch.setattr(ray_rollouts, "ANSWER_TIMEOUT_S", 0.05)
    long = time.monotonic() + 0.2
    cluster.is_held = lambda actor, name: name == "collect" and time.monotonic() < long
    actors.collect(weights, keys_of(2))
    assert time.monotonic() > long
    assert (actors.num_faults, actors.num_restarts) == (0, 0)
    assert "answer" in cluster.actors[0].names


def test_a_cluster_that_ends_ends_the_training_in_one_line(cluster, playing):
    actors, weights = playing

    def lose(actor, name):
        cluster.end()
        raise ActorDiedError

    cluster.before_call = lose
    message = rf"the Ray cluster has ended: its head node {cluster.address} cannot be reached"
    with pytest.raises(RayEnded, match=message):
        actors.collect(weights, keys_of(2))
    actors.close()
    assert all(actor.names[-1] != "close" for actor in cluster.actors)  # nobody is there to ask


def test_an_actor_without_a_core_shares_one_until_a_machine_joins(cluster, caplog):
    cluster.cores = 1
    algorithm, weights = counters()
    actors = actors_of(algorithm, 2)
    needed = lambda: [actor.num_cpus for actor in cluster.living]
    assert needed() == [1, 1, 0]  # the second waits for a core, the third plays in its place
    for update in (1, 2):
        actors.collect(weights, keys_of(update))
    assert needed() == [1, 1, 0]
    cluster.cores = 2
    _, rollout, _ = actors.collect(weights, keys_of(3))
    assert needed() == [1, 1]
    assert first_steps(rollout) == [0, 0, 0, 0]
    assert (actors.num_faults, actors.num_restarts) == (0, 0)
    assert "copies 2 to 3 moved to a core that is free" in caplog.text


def test_a_lost_machine_leaves_its_actors_to_the_others(cluster):
    cluster.cores = 2
    algorithm, weights = counters()
    actors = actors_of(algorithm, 2)
    actors.collect(weights, keys_of(1))

    def lose(actor, name):
        if actor.number == 0 and name == "collect":
            cluster.cores, actor.is_dead = 1, True
            raise ActorDiedError

    cluster.before_call = lose
    for update in (2, 3):
        actors.collect(weights, keys_of(update))
    assert [actor.num_cpus for actor in cluster.living] == [1, 1, 0]
    assert actors.num_restarts == 1


def test_an_actor_that_finds_no_core_in_time_shares_one(cluster, monkeypatch):
    algorithm, weights = counters()
    cluster.cores = 1
    monkeypatch.setattr(cluster, "cluster_resources", lambda: {"CPU": 8.0})  # others use the rest
    monkeypatch.setattr(ray_rollouts, "PATIENCE_S", 0)
    actors = actors_of(algorithm, 2)
    actors.collect(weights, keys_of(1))
    assert [actor.num_cpus for actor in cluster.living] == [1, 1, 0]
    assert actors.num_restarts == 0


def test_actors_that_are_lost_again_and_again_end_the_training(cluster):
    algorithm, weights = counters()
    actors = actors_of(algorithm, 2, max_consecutive=3)

    def lose(actor, name):
        if actor.number and name == "collect":
            raise ActorDiedError

    cluster.before_call = lose
    message = r"failed 4 times .* last: copies 2 to 3: its Ray actor"
    with pytest.raises(TooManyFaults, match=message):
        actors.collect(weights, keys_of(1))


def fail_to_start(actor, name):
    if actor.number >= 2 and name == "start":
        actor.body.start = lambda *arguments: "on node7: ModuleNotFoundError: No module 'x'"


def test_what_fails_at_first_fails_in_one_line_and_later_is_tried_elsewhere(cluster, playing):
    actors, weights = playing

    def before(actor, name):
        if actor.number == 1 and name == "collect":
            raise ActorDiedError
        if actor.number < 4:
            fail_to_start(actor, name)

    cluster.before_call = before
    actors.collect(weights, keys_of(2))
    assert (actors.num_faults, actors.num_restarts) == (2, 3)
    cluster.before_call = fail_to_start
    with pytest.raises(jaxrl.UsageError, match=r"actor cannot start on node7: ModuleNotFoundErr"):
        actors_of(counters()[0], 2).collect(weights, keys_of(1))


def test_an_environment_that_always_fails_ends_the_training(cluster):
    algorithm, weights = built(functools.partial(Counter, fault="raise", at=2))
    actors = actors_of(algorithm, 2, max_consecutive=4)
    with pytest.raises(TooManyFaults, match=r"failed 5 times .* the simulator is gone"):
        actors.collect(weights, keys_of(1))
    assert actors.num_restarts == 0


@pytest.mark.long
def test_faults_inside_an_actor_are_counted_and_said_here(cluster, caplog, monkeypatch):
    said = [("jaxrl.outside.workers.vector", logging.WARNING, "episode dropped, copy 1: ...")]
    messages = type("Said", (), {"taken": lambda self: said})()
    monkeypatch.setattr(rollout_actor, "_Messages", lambda: messages)
    algorithm, weights = built(functools.partial(Counter, length=4, fault="nan", share=0.5))
    spec, params = algorithm.rollout_spec, algorithm.env_params
    alone = HostRollouts(spec, spec.env.vector(E, **HERE), T, params)
    alone.reset(weights, SEEDS)
    actors = actors_of(algorithm, 2)
    for update in (1, 2):
        _, expected, _ = alone.collect(weights, keys_of(update))
        _, rollout, _ = actors.collect(weights, keys_of(update))
        np.testing.assert_array_equal(expected.agent_steps, rollout.agent_steps)
    assert actors.num_faults == alone.num_faults > 0
    said = [record.getMessage() for record in caplog.records]
    assert "copies 2 to 3: episode dropped, copy 1: ..." in said


def test_a_rollout_is_given_up_where_nobody_wants_it(cluster):
    cluster.cores = 0
    algorithm, weights = counters()
    actors = actors_of(algorithm, 1)
    actors.stopping.set()
    with pytest.raises(Stopped):
        actors.collect(weights, keys_of(1))
    actors.close()
    assert not cluster.living


@pytest.mark.long
def test_a_training_with_actors_is_the_training_in_one_process(cluster):
    config = jaxrl.PPOConfig(env=functools.partial(Counter, length=4), **SMALL)
    settings = {"run_dir": None, "quiet": True, "sync": True}
    results = []
    for workers in (0, "ray:2"):
        with jaxrl.Trainer(config, workers=workers, **settings) as trainer:
            results.append([trainer.train() for _ in range(2)])
    alone, actors = (
        [{**each["learners"], **each["env_runners"]} for each in result] for result in results
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), alone, actors)


def two_counters():
    return gymnasium.vector.SyncVectorEnv([Counter, Counter])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (two_counters(), "ray:3: SyncVectorEnv is an object, which cannot be on other machines"),
        (two_counters, "makes 2 copies in each actor: set num_envs=6"),
    ],
    ids=["an object", "another number"],
)
def test_copies_that_cannot_be_in_the_actors_are_refused_in_one_line(env, message, cluster):
    with pytest.raises(jaxrl.UsageError) as caught:
        jaxrl.Trainer(jaxrl.PPOConfig(env=env, **SMALL), run_dir=None, workers="ray:3")
    assert message in str(caught.value)


@pytest.mark.long
def test_ray_is_asked_for_before_anything_is_compiled(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(jaxrl.UsageError, match=r'ray:2 needs ray: pip install "jaxrl\[ray\]"'):
        jaxrl.Trainer(jaxrl.PPOConfig(env=Counter, **SMALL), run_dir=None, workers="ray:2")
