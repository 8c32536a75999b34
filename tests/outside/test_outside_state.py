"""Episodes that are held outside the compiled program: what training does differently there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.experimental import io_callback

import jaxrl
from jaxrl.algorithms.sharding import check_devices, devices_worth_using
from jaxrl.core.batched_env import BatchedEnvironment
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete

LENGTH = 5  # of an episode
SMALL = {"env": "counters", "num_envs": 4, "rollout_length": 6, "num_epochs": 1, "lr": 1e-3}
SMALL |= {"minibatch_size": 24, "fcnet_hiddens": (4,)}


class Nothing(struct.PyTreeNode):
    pass


class Counters(BatchedEnvironment):
    """Copies that count their steps in NumPy. An observation is (the steps so far, the number)."""

    state_outside = True
    default_params = Nothing()

    def __init__(self):
        self.number, self.calls, self.steps = 0, 0, None

    def separate(self, number):
        other = Counters()
        other.number = number
        return other

    def observation_space(self, params=None):
        return Box(0.0, 2.0**32, (2,))

    def action_space(self, params=None):
        return Discrete(2)

    def is_truncated(self, state, params):
        return jnp.bool_(False)

    def reset_batch(self, keys, params):
        return self._asked(self._reset, np.zeros(len(keys), np.int32))

    def step_batch(self, keys, state, action, params):
        obs, state = self._asked(self._step, state)
        return obs, state, jnp.ones(len(keys)), obs[:, 0] >= LENGTH, {}

    def restart_batch(self, keys, ended, reached, params):
        return self._asked(self._restart, reached[1], ended)

    def _asked(self, function, ticket, *arguments):
        types = jax.ShapeDtypeStruct((len(ticket), 2), np.float32), jax.typeof(jnp.asarray(ticket))
        return io_callback(function, types, ticket, *arguments)

    def _seen(self, ticket):
        obs = np.stack([self.steps, np.full_like(self.steps, self.number % 1000)], axis=1)
        return obs.astype(np.float32), np.asarray(ticket)

    def _reset(self, ticket):
        self.steps = np.zeros(len(ticket))
        return self._seen(ticket)

    def _step(self, ticket):
        self.calls += 1
        self.steps = self.steps + 1
        return self._seen(ticket)

    def _restart(self, ticket, ended):
        self.steps = np.where(ended, 0, self.steps)
        return self._seen(ticket)


@pytest.fixture(autouse=True)
def counters():
    jaxrl.register("counters", Counters)


def trainer_of(run_dir=None, **settings):
    return jaxrl.Trainer(jaxrl.PPOConfig(**SMALL), run_dir=run_dir, quiet=True, **settings)


@pytest.mark.long
def test_each_step_is_played_once_though_a_criterion_ends_training_and_evaluation_plays():
    trainer = trainer_of(evaluation_interval=2, evaluation_duration=4)
    result = trainer.fit({"env_runners/num_episodes_lifetime": 30})
    iterations = result["training_iteration"]
    pool = trainer.algorithm.rollout_spec.env.env
    assert iterations == 7 and pool.calls == iterations * SMALL["rollout_length"]
    assert result["env_runners"]["episode_return_mean"] == LENGTH  # no step is spent on a reset
    assert result["env_runners"]["num_episodes_lifetime"] == 7 * 6 // LENGTH * 4
    assert result["evaluation"]["env_runners"]["episode_len_mean"] == LENGTH
    assert pool.twin.calls > 0 and pool.twin.number != pool.number
    with pytest.raises(UsageError, match="of Counters cannot be replayed"):
        jaxrl.replay_episode(trainer.sample(1)[0])


@pytest.mark.long
def test_trainings_of_one_configuration_share_no_copies():
    first, second = trainer_of(), trainer_of()
    first.train(), second.train(), first.train()
    pools = [trainer.algorithm.rollout_spec.env.env for trainer in (first, second)]
    assert [pool.calls for pool in pools] == [12, 6]
    assert first.last_result["env_runners"]["episode_return_mean"] == LENGTH


@pytest.mark.long
def test_a_resumed_run_begins_new_episodes_and_says_so(tmp_path, capsys):
    with trainer_of(tmp_path / "run") as before:
        before.train()  # every copy is in the second step of an episode
    resumed = jaxrl.Trainer.from_checkpoint(tmp_path / "run")
    assert "checkpoints do not hold the episodes of counters: new" in capsys.readouterr().out
    (now,) = resumed.runner.envs.obs
    (then,) = before.runner.envs.obs
    assert np.ravel(then[..., 0]).tolist() == [1] * 4 and np.ravel(now[..., 0]).tolist() == [0] * 4
    assert not np.array_equal(now[..., 1], then[..., 1])  # not the first episodes again
    weights = [run.runner.learners[0].params for run in (before, resumed)]
    jax.tree.map(np.testing.assert_array_equal, *weights)
    assert resumed.train()["training_iteration"] == 2
    with pytest.raises(UsageError, match="it does not hold the episodes of counters"):
        jaxrl.Trainer.from_checkpoint(tmp_path / "run", run_dir=tmp_path / "new", strict=True)


def test_what_cannot_be_played_twice_is_refused():
    config, trainer = jaxrl.PPOConfig(**SMALL), trainer_of()
    with pytest.raises(UsageError, match="over counters are separate runs"):
        jaxrl.sweep(config, seeds=2, halving=2)
    with pytest.raises(UsageError, match="devices=2: counters trains on one device"):
        check_devices(config, 2)
    assert devices_worth_using(config.replace(num_envs=40_000, minibatch_size=40_000), 8) == 1
    with pytest.raises(UsageError, match="profile: episodes of counters are played once"):
        trainer.profile()
