"""Tests of `transform`: Gymnasium's wrappers as oracles, and agents that see each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.wrappers import TransformAction, TransformObservation, TransformReward

import jaxrl
from jaxrl.core.spaces import Box, Discrete
from tests.messages import refused_by

INF = float("inf")
halved = lambda obs: obs / 2
turned = lambda action: 1 - action
shifted = lambda reward: 3 * reward - 1


def test_episodes_are_those_of_gymnasiums_wrappers():
    cartpole, params = jaxrl.make("cartpole", max_steps_in_episode=9)
    transformed = jaxrl.transform(cartpole, observation=halved, action=turned, reward=shifted)
    transformed, wrapped = (
        jaxrl.to_gymnasium(transformed, params),
        jaxrl.to_gymnasium(cartpole, params),
    )
    wrapped = TransformObservation(wrapped, lambda obs: obs / np.float32(2), None)
    wrapped = TransformReward(TransformAction(wrapped, turned, None), shifted)
    (obs, _), (expected, _) = transformed.reset(seed=1), wrapped.reset(seed=1)
    is_over, lengths = False, 0
    while not is_over:
        np.testing.assert_array_equal(obs, expected)
        obs, *step, _ = transformed.step(0)
        expected, *expected_step, _ = wrapped.step(0)
        assert step == expected_step
        is_over, lengths = any(step[1:]), lengths + 1
    np.testing.assert_array_equal(obs, expected)  # as the step reached it
    assert 1 < lengths <= 9


class Pair(jaxrl.MultiAgentEnvironment):
    """Two agents with dicts by agent, who see the time, and each gets what it did."""

    agents = ("a", "b")
    default_params = None
    observation_space = lambda self, agent=None, params=None: Box(0.0, 9.0, (2,))
    action_space = lambda self, agent=None, params=None: Discrete(3)
    is_truncated = lambda self, state, params: state >= 4

    def _by_agent(self, time):
        return {"a": jnp.array([time, 1.0]), "b": jnp.array([time, 2.0])}

    def reset_env(self, key, params):
        return self._by_agent(0.0), jnp.float32(0)

    def step_env(self, key, state, action, params):
        rewards = {agent: jnp.float32(number) for agent, number in action.items()}
        ends = dict.fromkeys((*self.agents, "__all__"), jnp.bool_(False))
        return self._by_agent(state + 1), state + 1, rewards, ends, {}


class Row(jaxrl.StackedEnvironment):
    """The same pair as arrays [2, ...]."""

    agents, default_params = Pair.agents, None
    observation_space, action_space = Pair.observation_space, Pair.action_space
    is_truncated = Pair.is_truncated

    def _stacked(self, time):
        return jnp.array([[time, 1.0], [time, 2.0]])

    def reset_stacked(self, key, params):
        return self._stacked(0.0), jnp.float32(0)

    def step_stacked(self, key, state, action, params):
        ends = jnp.zeros(2, bool)
        return self._stacked(state + 1), state + 1, action.astype(jnp.float32), ends, {}


def of_both(obs):
    both = jnp.concatenate([obs["a"], obs["b"]])
    return {"a": both, "b": both[:3]}


def test_an_agent_may_see_what_another_sees_and_share_its_reward():
    def shared(rewards):
        return dict.fromkeys(rewards, rewards["a"] + rewards["b"])

    env = jaxrl.transform(Pair(), observation=of_both, reward=shared)
    assert env.observation_space("a") == Box(-INF, INF, (4,))
    assert env.observation_space("b") == Box(-INF, INF, (3,))
    key = jax.random.key(0)
    obs, state = env.reset(key)
    np.testing.assert_array_equal(obs["a"], [0, 1, 0, 2])
    obs, _, reward, *_ = env.step(key, state, {"a": jnp.int32(2), "b": jnp.int32(1)})
    np.testing.assert_array_equal(obs["b"], [1, 1, 1])
    assert reward == {"a": 3.0, "b": 3.0}


def test_stacked_agents_are_transformed_as_arrays_and_stay_stacked():
    env = jaxrl.transform(
        Row(), observation=lambda obs: obs[::-1], action=lambda action: action + 1
    )
    assert isinstance(env, jaxrl.StackedEnvironment)
    assert env.observation_space("b") == Box(-INF, INF, (2,))
    obs, state = env.reset_stacked(jax.random.key(0), None)
    np.testing.assert_array_equal(obs, [[0, 2], [0, 1]])
    _, _, reward, *_ = env.step_stacked(jax.random.key(0), state, jnp.array([0, 1]), None)
    np.testing.assert_array_equal(reward, [1, 2])


@pytest.mark.long
def test_spaces_that_are_given_are_those_of_every_agent_or_of_each():
    wide, narrow = Box(0.0, 9.0, (4,)), Box(0.0, 9.0, (3,))
    env = jaxrl.transform(
        Pair(),
        observation=of_both,
        observation_space={"a": wide, "b": narrow},
        action=lambda actions: {agent: 2 - action for agent, action in actions.items()},
        action_space=Discrete(2),
    )
    assert (env.observation_space("a"), env.observation_space("b")) == (wide, narrow)
    assert env.action_space("a") == env.action_space("b") == Discrete(2)
    jaxrl.check_env(env)


@pytest.mark.long
def test_training_sees_what_the_functions_return():
    env = jaxrl.transform(
        "cartpole", observation=lambda obs: obs[:2], reward=lambda reward: -reward
    )
    sizes = {"num_envs": 2, "train_batch_size": 32, "minibatch_size": 32, "num_epochs": 1}
    config = jaxrl.PPOConfig(env=env, total_env_steps=32, fcnet_hiddens=(4,), **sizes)
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        trainer.train()
        (episode,) = trainer.sample()
        assert trainer.get_policy().observation_space == Box(-INF, INF, (2,))
    assert episode.get_observations().shape == (len(episode) + 1, 2)
    assert set(episode.get_rewards()) == {-1.0}


test_what_cannot_be_is_refused_in_a_line = refused_by(
    lambda env, arguments: jaxrl.transform(env, **arguments),
    [
        ("cartpole", {}, "transform: give a function, such as observation=lambda obs: obs / 10"),
        ("cartpole", {"observation": 3}, "observation=3 must be a function, or None"),
        (
            "cartpole",
            {"reward": shifted, "observations": len},
            "did you mean 'observation' or 'observation_space'?",
        ),
        (
            "cartpole",
            {"observation": lambda obs: obs["a"]},
            "transform of CartPole: observation fails as it is traced: ",
        ),
        (
            "cartpole",
            {"action": turned, "action_space": 2},
            "transform: action_space=2 must be a space of jaxrl.core.spaces",
        ),
        ("cartpole", {"action": turned, "action_space": {"a": Discrete(2)}}, "not a dict"),
        ("cartpole", {"observation": lambda obs: None}, "must return an array, or a dict or tuple"),
        (
            "cartpole",
            {"observation": lambda obs: [obs]},
            "must return an array, or a dict or tuple",
        ),
        ("cartpole", {"observation": str}, "observation must return arrays: "),
        (
            "arena",
            {"observation": lambda obs: obs[::-1]},
            "returns integers int32[2]: give observation_space, such as MultiDiscrete((100, 100))",
        ),
        (
            Pair(),
            {"observation": of_both, "observation_space": {"a": Discrete(2)}},
            "must be a space for each of ('a', 'b')",
        ),
    ],
    literal=True,
)
