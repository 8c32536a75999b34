"""Training by models of the user's own and what a policy is told.

The path through rollout, update and file.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, load_policy
from jaxrl.core.errors import UsageError
from jaxrl.run.storage.config_file import config_facts
from tests.messages import refusal, refused_by
from tests.probes import Probe, Target, Twins
from tests.programs import SMALL_ARENA, SMALL_CARTPOLE


class Net(nn.Module):
    outputs: int = 2

    @nn.compact
    def __call__(self, obs):
        hidden = nn.tanh(nn.Dense(16)(jax.nn.one_hot(obs, 2)))
        return nn.Dense(self.outputs)(hidden), nn.Dense(1)(hidden)


class WithLoss(Net):
    """Beside PPO it learns to give no logit any size, and is paid for nothing but action 0."""

    def loss(self, params, batch):
        logits, _ = self.apply(params, batch.obs)
        return jnp.mean(logits**2), {"logit_size": jnp.mean(jnp.abs(logits))}

    def intrinsic_reward(self, params, trajectory):
        return (trajectory.action == 0).astype(jnp.float32)


@pytest.mark.long
def test_a_model_of_ones_own_learns_is_saved_and_loaded(fitted, tmp_path):
    cue = Probe(reward_for="cue").default_params
    trainer, result = fitted(30, tmp_path / "run", env_params=cue, env=Probe(), model=Net())
    assert result["env_runners"]["episode_return_mean"] > 0.9
    trainer.stop()
    policy = load_policy(tmp_path / "run", config=trainer.config)
    np.testing.assert_array_equal(policy.act(np.array([0, 1])), [0, 1])


def table_init(key, obs):
    return jnp.zeros((2, 3))


def table_apply(params, obs):
    """A row of one array for each observation: two logits and the value."""
    row = jax.nn.one_hot(obs, 2) @ params
    return row[:, :2], row[:, 2]


@pytest.mark.long
def test_parameters_that_are_one_bare_array_learn_are_saved_and_loaded(fitted, tmp_path):
    env, model = Probe(reward_for="cue"), (table_init, table_apply)
    trainer, result = fitted(20, tmp_path / "run", env=env, model=model, lr=5e-2)
    assert result["env_runners"]["episode_return_mean"] > 0.9
    trainer.stop()
    policy = load_policy(tmp_path / "run", config=trainer.config)
    np.testing.assert_array_equal(policy.act(np.array([0, 1])), [0, 1])


class CartPoleNet(nn.Module):
    @nn.compact
    def __call__(self, obs):
        hidden = nn.tanh(nn.Dense(8)(obs))
        return nn.Dense(2)(hidden), nn.Dense(1)(hidden)


@pytest.mark.long
def test_a_model_by_its_name_is_held_by_the_file(tmp_path):
    name = "tests.algorithms.ppo.test_models:CartPoleNet"
    config = SMALL_CARTPOLE.replace(model=name, total_env_steps=64)
    trainer = Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False)
    trainer.fit()
    trainer.stop()
    policy, obs = load_policy(tmp_path / "run", trust=True), np.full(4, 0.1)
    assert policy.act(obs) in range(2)
    assert config_facts(config.replace(model=CartPoleNet), {})["config"]["model"] == name
    twin = Trainer(
        config.replace(model=CartPoleNet()), run_dir=tmp_path / "object", quiet=True, pictures=False
    )
    twin.fit()
    twin.stop()
    with pytest.raises(UsageError, match=rf"model is '{name}', which is not part of jaxrl"):
        load_policy(tmp_path / "object")
    for again in ({"model": CartPoleNet()}, {"trust": True}):
        loaded = load_policy(tmp_path / "object", **again)
        np.testing.assert_array_equal(loaded.value(obs), policy.value(obs))


class ArenaNet(nn.Module):
    activation: Any = nn.tanh

    @nn.compact
    def __call__(self, obs):
        hidden = self.activation(nn.Dense(8)(obs.astype(jnp.float32)))
        return nn.Dense(4)(hidden), nn.Dense(1)(hidden)


@pytest.mark.long
def test_policies_may_have_models_of_their_own(tmp_path):
    config = SMALL_ARENA.replace(
        per_policy={
            "pol1": {"model": ArenaNet(nn.relu)},
            "pol2": {"use_gru": True, "vf_share_layers": True},
        },
        total_env_steps=64,
    )
    trainer = Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False)
    trainer.fit()
    trainer.stop()
    policy = trainer.get_policy("pol1")
    np.testing.assert_array_equal(
        load_policy(tmp_path / "run", "pol1", model=ArenaNet(nn.relu)).value([3, 4]),
        policy.value([3, 4]),
    )
    assert load_policy(tmp_path / "run", "pol2").remembers
    with refusal(r"model was an object.*again in Python, .*\(RUN, model=\.\.\.\)"):
        load_policy(tmp_path / "run", "pol1")
    specs = trainer.algorithm.policy_specs
    assert [policy_spec.has_memory for policy_spec in specs] == [False, True]
    learners = trainer.last_result["learners"]
    assert [learners[policy]["parameters_finite"] for policy in ("pol1", "pol2")] == [1.0, 1.0]


@pytest.mark.long
def test_a_models_own_loss_and_reward_are_learned_and_reported(fitted):
    _, result = fitted(30, env=Probe(), model=WithLoss(), entropy_coeff=0.0)
    learned = result["learners"]["default_policy"]
    assert learned["model_loss"] > 0
    # The mean of |x| is no more than its r.m.s.
    assert learned["logit_size"] < np.sqrt(learned["model_loss"]) * 1.001
    trainer, _ = fitted(30, env=Probe(), model=WithLoss())
    assert (
        np.asarray(jax.nn.softmax(trainer.get_policy("default_policy").distribution(0).logits))[0]
        > 0.6
    )
    _, without = fitted(2, env=Probe(), model=Net())
    assert "model_loss" not in without["learners"]["default_policy"]


@pytest.mark.long
def test_agents_of_one_policy_learn_different_things_once_they_are_told_apart(fitted):
    apart, result = fitted(40, env=Twins(), policies="shared", agent_id_obs=True)
    assert result["env_runners"]["episode_return_mean"] > 3.8  # two agents, two steps
    policy = apart.get_policy("default_policy")
    assert [int(policy.act(np.ones(1), agent=agent)) for agent in ("first", "second")] == [0, 1]
    with pytest.raises(UsageError, match="unknown agent 'third'"):
        policy.act(np.ones(1), agent="third")
    alike = apart.config.replace(agent_id_obs=False).build()
    for algorithm, num_inputs in ((alike, 1), (apart.algorithm, 1 + 2)):
        params = jax.eval_shape(algorithm.policy_specs[0].model.init, jax.random.key(0))
        assert num_inputs in {leaf.shape[0] for leaf in jax.tree.leaves(params)}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["beta", "squashed_gaussian"])
def test_a_place_is_learned_by_a_bounded_distribution(fitted, kind):
    settings = {"rollout_length": 4, "num_envs": 64, "lr": 5e-3, "num_epochs": 8}
    trainer, result = fitted(80, env=Target(), action_distribution=kind, **settings)
    assert result["env_runners"]["episode_return_mean"] > -1.2
    policy = trainer.get_policy("default_policy")
    np.testing.assert_allclose(policy.act(np.array([[-0.8], [0.5]])), [[2.6], [6.5]], atol=0.7)


@pytest.mark.long
def test_target_kl_ends_an_iterations_steps():
    far = SMALL_CARTPOLE.replace(lr=0.1, kl_coeff=0.0)
    moved = {}
    for name, config in {"far": far, "near": far.replace(target_kl=1e-12)}.items():
        trainer = Trainer(config, run_dir=None, quiet=True)
        start = trainer.get_weights()["default_policy"].params
        trainer.fit({"training_iteration": 4})
        now = trainer.get_weights()["default_policy"].params
        moves = jax.tree.leaves(jax.tree.map(lambda x, y: float(np.abs(x - y).max()), start, now))
        moved[name] = max(moves)
    # The first step of an iteration is at KL 0; the second has moved and is not made.
    assert 0.0 < moved["near"] <= 4 * 0.1 * 1.001
    assert moved["far"] > moved["near"]


@pytest.mark.long
def test_rewards_of_any_size_are_learned_alike_once_they_are_scaled(fitted):
    class Rich(Probe):
        def step_env(self, key, state, action, params):
            obs, state, reward, last, info = super().step_env(key, state, action, params)
            return obs, state, 1000.0 * reward, last, info

    scaled, result = fitted(30, env=Rich(num_steps=2, reward_for="action"), normalize_returns=True)
    assert result["env_runners"]["episode_return_mean"] > 1800
    values = scaled.get_policy("default_policy").value(np.array([0, 1]))
    assert (np.abs(values) < 20).all()  # in deviations of the return, which are hundreds
    assert result["learners"]["default_policy"]["vf_loss_unclipped"] < 5


test_settings_of_networks_that_exclude_each_other_are_refused = refused_by(
    lambda settings: PPOConfig(env=Probe(), **settings),
    [
        ({"use_lstm": True, "use_gru": True}, "use_lstm=True and use_gru=True"),
        ({"use_lstm": True, "fcnet_hiddens": ()}, "needs a layer below it"),
        ({"model": Net(), "use_lstm": True}, "use_lstm=True and model=Net"),
    ],
    literal=True,
)


def test_a_model_that_does_not_fit_the_actions_is_refused_before_training():
    with refusal(r"logits over Discrete\(n=2\) must have the shape \[3, 2\].* not \[3, 5\]"):
        PPOConfig(env=Probe(), model=Net(5)).build()
