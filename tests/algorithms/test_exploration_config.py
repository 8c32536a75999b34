"""`explore` and `exploration_config`: who acts in training, and what is recorded of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, UsageError
from jaxrl.cli.flags import given_flags, read_flags
from jaxrl.cli.train import train_flags
from jaxrl.ops.distributions import Categorical
from jaxrl.ops.exploration import EpsilonGreedy, Random
from jaxrl.ops.explored import policy_of
from jaxrl.run.storage import checkpoint
from jaxrl.run.storage.config_file import config_facts, read_config
from tests.messages import refused_by
from tests.probes import Turns
from tests.programs import SMALL_ARENA, SMALL_CARTPOLE, TINY, first_rollout, updated

HALF = np.log(0.5)


def flattened(distribution, env_steps):
    """A user's own: the policy at twice its temperature."""
    return Categorical(distribution.logits / 2)


def collected(config):
    """The trajectories of each group in a first iteration."""
    return first_rollout(config)[2].trajectories


@pytest.mark.long
def test_random_timesteps_are_environment_steps_of_all_environments_together():
    config = SMALL_CARTPOLE.replace(
        exploration_config={"type": "StochasticSampling", "random_timesteps": 32}
    )
    (trajectory,) = collected(config)  # 4 environments: the first 8 of 16 steps are random
    recorded = trajectory.distribution.log_prob(trajectory.action)
    by_policy = policy_of(trajectory.distribution).log_prob(trajectory.action)
    np.testing.assert_allclose(recorded[:8], HALF, rtol=1e-6)
    np.testing.assert_array_equal(recorded[8:], by_policy[8:])
    assert not np.allclose(by_policy[:8], HALF, atol=1e-5)
    (plain,) = collected(SMALL_CARTPOLE)
    assert isinstance(plain.distribution, Categorical)


@pytest.mark.long
def test_a_resumed_run_goes_on_with_its_schedule_to_the_bit(tmp_path):
    config = SMALL_CARTPOLE.replace(
        exploration_config={"type": "EpsilonGreedy", "epsilon_timesteps": 64 * 3},
        total_env_steps=64 * 4,
    )
    runners = []
    for path, stops in ((tmp_path / "whole", (4,)), (tmp_path / "cut", (2, 4))):
        for stop in stops:
            settings = {"quiet": True, "loggers": (), "pictures": False}
            with (
                Trainer.from_checkpoint(path, **settings)
                if path.exists()
                else Trainer(config, run_dir=path, **settings)
            ) as trainer:
                trainer.fit({"training_iteration": stop})
                trainer.save()
        runners.append(checkpoint.read(checkpoint.find(path)).arrays)
    assert runners[0].keys() == runners[1].keys()
    for name, array in runners[0].items():
        np.testing.assert_array_equal(array, runners[1][name], err_msg=name)


@pytest.mark.long
def test_one_policy_explores_and_another_that_does_not_learn_acts_greedily():
    config = SMALL_ARENA.replace(
        policies_to_train=("pol1",),
        per_policy={"pol1": {"exploration_config": {"type": "Random"}}, "pol2": {"explore": False}},
    )
    groups = config.build().grouping.groups
    by_policy = dict(zip((group.policies[0] for group in groups), collected(config), strict=True))
    random, greedy = by_policy["pol1"], by_policy["pol2"]
    np.testing.assert_allclose(random.distribution.log_prob(random.action), np.log(0.25), rtol=1e-5)
    np.testing.assert_array_equal(greedy.action, greedy.distribution.mode())
    with pytest.raises(UsageError, match="explore=False: policy 'pol2' learns"):
        config.replace(policies_to_train=None).build()


@pytest.mark.long
def test_agents_that_wait_keep_the_probability_of_an_action_whose_outcome_is_open():
    exploration = {"policies": "shared", "exploration_config": {"type": "Random"}}
    _, metrics = updated(PPOConfig(env=Turns(), **TINY, **exploration))
    assert all(jnp.all(jnp.isfinite(value)) for value in jax.tree.leaves(metrics.learners))


@pytest.mark.long
def test_a_users_by_function_and_those_by_name_are_stored_by_name():
    by_function = SMALL_CARTPOLE.replace(exploration_config=flattened)
    (trajectory,) = collected(by_function)
    logits = trajectory.distribution.policy.logits
    np.testing.assert_allclose(trajectory.distribution.behaviour.logits, logits / 2)
    named = SMALL_CARTPOLE.replace(exploration_config=EpsilonGreedy(final_epsilon=0.1))
    by_policy = SMALL_CARTPOLE.replace(
        per_policy={"default_policy": {"exploration_config": Random()}}
    )
    for config in (by_function, named, by_policy):
        facts = config_facts(config, config.setup().policies)
        assert facts["objects"] == []
        again = read_config(facts, "load", trust=True)
        assert again.build().policy_specs == config.build().policy_specs
        played = read_config(facts, "load", to_play=True)
        assert played.build().policy_specs[0].exploration is None


@pytest.mark.long
def test_evaluation_does_not_explore():
    config = SMALL_CARTPOLE.replace(exploration_config={"type": "Random"})
    with Trainer(config, run_dir=None, quiet=True) as trainer:
        trainer.train()
        twice = [trainer.evaluate(episodes=2, explore=False) for _ in range(2)]
        (episode, *_) = trainer.sample(num_episodes=1)
    assert twice[0] == twice[1]
    logits = episode.get_extra_model_outputs("action_dist_inputs")
    log_probs = jax.nn.log_softmax(jnp.asarray(logits))
    actions = np.asarray(episode.get_actions())
    expected = np.take_along_axis(np.asarray(log_probs), actions[:, None], 1)[:, 0]
    recorded = episode.get_extra_model_outputs("action_logp")
    np.testing.assert_allclose(recorded, expected, rtol=1e-4)


def test_the_command_line_gives_a_type_with_its_arguments_or_a_name():
    words = [
        "--exploration-config",
        "type=EpsilonGreedy",
        "final_epsilon=0.1",
        "--explore",
        "False",
    ]
    flags = train_flags(SMALL_CARTPOLE)
    read = read_flags(given_flags(words, flags), flags)
    expected = {"type": "EpsilonGreedy", "final_epsilon": 0.1}
    assert read == {"exploration_config": expected, "explore": False}
    name = "jaxrl.ops.exploration:EpsilonGreedy(final_epsilon=0.1)"
    for word, value in ((name, name), ("None", None)):
        found = read_flags({"exploration_config": [word]}, flags)
        assert found == {"exploration_config": value}
    words = ["a.exploration_config=type=EpsilonGreedy,final_epsilon=0.1"]
    words += ["b.exploration_config=mine:Heated(steps=1,low=0.5)"]
    by_policy = read_flags({"per_policy": words}, flags)["per_policy"]
    assert by_policy["a"] == {"exploration_config": expected}
    assert by_policy["b"] == {"exploration_config": "mine:Heated(steps=1,low=0.5)"}
    by_name = SMALL_CARTPOLE.replace(exploration_config=name).build().policy_specs[0]
    assert by_name.exploration == EpsilonGreedy(final_epsilon=0.1)


test_what_cannot_work_is_refused_before_compiling = refused_by(
    lambda settings: SMALL_CARTPOLE.replace(**settings).build(),
    [
        ({"exploration_config": {"type": "GaussianNoise"}}, "GaussianNoise is for Box actions"),
        ({"exploration_config": 0.1}, "exploration_config=0.1 must be a mapping with a type of"),
        ({"exploration_config": "Random"}, 'did you mean {"type": "Random"}'),
        ({"exploration_config": {"epsilon_timesteps": 9}}, "={'epsilon_timesteps': 9} must be a"),
        (
            {"exploration_config": lambda obs: obs},
            "fails as it is traced: TypeError: .*1 positional",
        ),
        (
            {"exploration_config": lambda distribution, env_steps: env_steps},
            "must return the distribution to act by, with sample and log_prob, not float32",
        ),
        ({"explore": 1}, "explore=1 must be True or False"),
        ({"explore": False}, "explore=False: policy 'default_policy' learns"),
        (
            {"explore": False, "exploration_config": {"type": "Random"}},
            "explore=False and exploration_config",
        ),
    ],
)
