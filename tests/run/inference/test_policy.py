"""A policy by itself.

The same actions as the trainer's, from NumPy to NumPy, with clear refusals.
"""

import pickle

import jax
import numpy as np
import pytest

from jaxrl import PPOConfig, UsageError, load_policy
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy, acting_key
from jaxrl.run.inference.weights import initial_weights
from tests.programs import SMALL_REINFORCE

OBSERVATIONS = np.random.default_rng(0).integers(0, 16, (50, 2))


def test_a_loaded_policy_acts_as_the_trainers(trained):
    for agent, name in (("agent1", "pol1"), ("agent2", "pol2")):
        loaded, policy = load_policy(trained.run_dir, name), trained.get_policy(name)
        np.testing.assert_array_equal(loaded.act(OBSERVATIONS), policy.act(OBSERVATIONS))
        np.testing.assert_array_equal(
            loaded.act(OBSERVATIONS), trained.compute_actions({agent: OBSERVATIONS})[agent]
        )
        np.testing.assert_array_equal(loaded.value(OBSERVATIONS), policy.value(OBSERVATIONS))
        jax.tree.map(
            np.testing.assert_array_equal, loaded.params, trained.get_weights()[name].params
        )


def test_a_batch_and_its_rows_one_by_one_get_the_same_actions(trained):
    policy = trained.get_policy("pol1")
    np.testing.assert_array_equal(
        policy.act(OBSERVATIONS), [policy.act(row) for row in OBSERVATIONS]
    )
    assert policy.act(OBSERVATIONS.reshape(5, 10, 2)).shape == (5, 10)
    assert policy.act([3, 4]).shape == ()


def test_the_greedy_action_is_the_likeliest_and_exploring_draws_from_the_distribution(trained):
    policy = trained.get_policy("pol1")
    logits = policy.distribution([3, 4]).logits
    assert policy.act([3, 4]) == logits.argmax()
    draws = policy.act(np.tile([3, 4], (20_000, 1)), explore=True)
    shares = np.bincount(draws, minlength=4) / len(draws)
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(shares, expected, atol=0.02)  # six standard errors
    assert not np.array_equal(
        policy.act(OBSERVATIONS, explore=True), policy.act(OBSERVATIONS, explore=True)
    )
    key = jax.random.key(7)
    drawn = [policy.act(OBSERVATIONS, explore=True, key=key) for _ in range(2)]
    np.testing.assert_array_equal(*drawn)


def test_whoever_acts_draws_its_own_actions_and_the_same_ones_for_the_same_seed(trained):
    def draws(policy):
        return [policy.act(OBSERVATIONS, explore=True).tolist() for _ in range(2)]

    drawn = draws(trained.get_policy("pol1"))
    assert draws(load_policy(trained.run_dir, "pol1")) == drawn
    assert draws(load_policy(trained.run_dir, "pol1", seed=1)) != drawn
    policy = trained.get_policy("pol1")
    assert draws(Policy(policy.policy_spec, policy.weights, name="another")) != drawn
    several = [
        trained.compute_actions({"agent1": OBSERVATIONS}, explore=True)["agent1"].tolist()
        for _ in range(2)
    ]
    assert several[0] != several[1] and not set(map(tuple, several)) & set(map(tuple, drawn))


def test_acting_shares_no_key_with_training():
    """Training's keys are fold_in(key(seed), n)."""
    trainings = jax.vmap(lambda n: jax.random.key_data(jax.random.fold_in(jax.random.key(0), n)))(
        np.arange(1000)
    )
    for name in ("", "pol1", "default_policy"):
        acting = jax.random.fold_in(acting_key(0, name), 1)
        assert (
            not (np.asarray(trainings) == np.asarray(jax.random.key_data(acting))).all(axis=1).any()
        )


def test_training_on_does_not_change_a_policy_taken_out_of_it(start):
    trainer = start(run_dir=None)
    trainer.train()
    policy = trainer.get_policy("pol1")
    before = policy.value(OBSERVATIONS)
    trainer.train()
    np.testing.assert_array_equal(policy.value(OBSERVATIONS), before)
    assert not np.array_equal(trainer.get_policy("pol1").value(OBSERVATIONS), before)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda path: load_policy(path, "pol3"), "unknown policy 'pol3'"),
        (lambda path: load_policy(path), "holds 2 policies; name one of them: pol1, pol2"),
        (lambda path: load_policy(path / "nowhere", "pol1"), "nowhere does not exist"),
        (
            lambda path: load_policy(path, "pol1", checkpoint=77),
            "no checkpoint 77; allowed are best, last",
        ),
        (
            lambda path: load_policy(path, "pol1").act([1, 2, 3]),
            r"takes observations of shape \[2\].* not \[3\]",
        ),
        (
            lambda path: load_policy(path, "pol1").act([0, 16]),
            r"from 0 to below \[16, 16\], not \[ 0 16\]",
        ),
        (
            lambda path: load_policy(path, "pol1").act([0.5, 2.0]),
            "takes observations of int32, not float64",
        ),
        (
            lambda path: load_policy(path, "pol1").act([3, 4], agent="agent2"),
            "unknown agent 'agent2' of policy 'pol1'",
        ),
        (lambda path: load_policy(None), "None is not the path of a run's folder"),
        (lambda path: load_policy(True), "True is not the path of a run's folder"),
        (lambda path: load_policy(""), "'' is not the path of a run's folder"),
        (lambda path: load_policy("a\0b"), "is not the path of a run's folder"),
        (
            lambda path: load_policy("/"),
            "is not a run's folder: it holds no config.json and no checkpoints",
        ),
        (lambda path: load_policy("a" * 5000), "cannot be read: File name too long"),
    ],
)
def test_what_cannot_be_is_refused(trained, act, message):
    with pytest.raises(UsageError, match=message):
        act(trained.run_dir)


@pytest.mark.long
def test_one_policy_alone_needs_no_name_and_its_agent_has_any_and_of_several_all_are_named(
    trained, start
):
    trainer = start(SMALL_REINFORCE, run_dir=None)
    assert trainer.get_policy().name == trainer.get_policy("default_policy").name
    with pytest.raises(UsageError, match="holds 2 policies; name one of them: pol1, pol2"):
        trained.get_policy()
    observations = [[0.0, 0.1, 0.2, 0.3], [0.1, -2.0, -0.2, 3.0]]
    found = trainer.compute_actions(dict(enumerate(observations)))
    assert list(found.values()) == trainer.get_policy().act(np.array(observations)).tolist()
    assert list(found) == [0, 1]
    with pytest.raises(UsageError, match="unknown agent '0'"):
        trained.compute_actions({0: OBSERVATIONS})


def test_weights_are_read_and_set_by_policy_and_the_optimiser_stays(trained, start, tmp_path):
    other = start(run_dir=tmp_path / "other")
    other.train()
    moments = other.runner.learners[0].opt_state
    before = other.get_weights()
    other.set_weights({"pol2": trained.get_weights()["pol1"]})
    after = other.get_weights()
    jax.tree.map(np.testing.assert_array_equal, after["pol2"], trained.get_weights()["pol1"])
    jax.tree.map(np.testing.assert_array_equal, after["pol1"], before["pol1"])
    jax.tree.map(np.testing.assert_array_equal, other.runner.learners[0].opt_state, moments)
    with pytest.raises(UsageError, match=r"weights of policy 'pol1': \[3\] where"):
        other.set_weights({"pol1": jax.tree.map(lambda leaf: np.zeros(3), before["pol1"])})
    with pytest.raises(UsageError, match="unknown policy 'pol9'"):
        other.set_weights({"pol9": before["pol1"]})


@pytest.mark.long
def test_one_policy_of_many_begins_with_anothers_weights_and_may_stay_frozen(
    trained, small, start, tmp_path
):
    """pol2 plays what pol1 had learned, and stays so; pol1 begins as it would have anyway."""
    source = f"{trained.run_dir}#pol1"
    config = small.replace(policies_to_train=["pol1"])
    trainer = start(config, run_dir=tmp_path / "next", init_from={"pol2": source})
    plain = start(config, run_dir=tmp_path / "plain")
    jax.tree.map(
        np.testing.assert_array_equal, trainer.get_weights()["pol2"], trained.get_weights()["pol1"]
    )
    jax.tree.map(
        np.testing.assert_array_equal, trainer.get_weights()["pol1"], plain.get_weights()["pol1"]
    )
    trainer.fit({"training_iteration": 2})
    jax.tree.map(
        np.testing.assert_array_equal, trainer.get_weights()["pol2"], trained.get_weights()["pol1"]
    )


def test_a_folder_with_a_sharp_in_its_name_gives_weights_too(run, small, tmp_path):
    there = run.rename(tmp_path / "run #2")
    for source, name in ((f"{there}", "pol1"), (f"{there}#pol2", "pol2"), (f"{there}#", "pol1")):
        weights = initial_weights(small.build(), {"pol1": source})["pol1"]
        jax.tree.map(np.testing.assert_array_equal, weights.params, load_policy(there, name).params)


def test_init_from_refuses_other_shapes_and_unknown_policies_before_compiling(trained, small):
    algorithm = small.build()
    with pytest.raises(UsageError, match="unknown policy 'pol7'"):
        initial_weights(algorithm, {"pol7": str(trained.run_dir)})
    with pytest.raises(UsageError, match=r"unknown policy 'pol7'.*in .*000003"):
        initial_weights(algorithm, {"pol1": f"{trained.run_dir}#pol7"})
    with pytest.raises(UsageError, match=r"does not fit: weights\.pol1\.params"):
        initial_weights(small.replace(fcnet_hiddens=(16,)).build(), {"pol1": str(trained.run_dir)})


@pytest.mark.long
def test_continuous_actions_come_in_the_environments_units_with_the_filter_that_was_trained(start):
    config = PPOConfig(
        env="gymnax:Pendulum-v1",
        num_envs=4,
        rollout_length=16,
        minibatch_size=32,
        num_epochs=1,
        fcnet_hiddens=(8,),
        observation_filter="MeanStdFilter",
        total_env_steps=640,
    )
    trainer = start(config)
    trainer.fit({"training_iteration": 2})
    policy = load_policy(trainer.run_dir)
    obs = np.random.default_rng(0).normal(size=(9, 3))
    actions = policy.act(obs)
    assert actions.shape == (9, 1)
    low, high = policy.action_space.low, policy.action_space.high
    normal = np.clip(policy.distribution(obs).mean, -1, 1)
    np.testing.assert_allclose(
        actions, low + (normal + 1) / 2 * (np.subtract(high, low)), rtol=1e-5
    )
    assert float(policy.weights.filter.count) == 2 * 64


def test_a_distribution_is_sampled_with_a_key_as_acting_is_and_takes_plain_actions(trained):
    policy, key = trained.get_policy("pol1"), jax.random.key(3)
    distribution = policy.distribution(OBSERVATIONS)
    np.testing.assert_array_equal(
        distribution.sample(key), policy.act(OBSERVATIONS, explore=True, key=key)
    )
    assert float(policy.distribution([3, 4]).log_prob(1)) == pytest.approx(
        float(jax.nn.log_softmax(policy.distribution([3, 4]).logits)[1])
    )


def test_a_policy_is_pickled_and_acts_on_without_a_trainer(trained, tmp_path):
    policy = load_policy(trained.run_dir, "pol1")
    first = policy.act(OBSERVATIONS, explore=True)
    data = pickle.dumps(policy)
    actions = [policy.act(OBSERVATIONS, explore=True) for _ in range(2)]
    again = pickle.loads(data)
    np.testing.assert_array_equal(
        [again.act(OBSERVATIONS, explore=True) for _ in range(2)], actions
    )
    np.testing.assert_array_equal(again.value(OBSERVATIONS), policy.value(OBSERVATIONS))
    assert (again.name, again.agents, len(first)) == (policy.name, policy.agents, len(OBSERVATIONS))


def test_a_policy_that_remembers_several_agents_and_none_is_pickled():
    config = PPOConfig(env="cartpole", fcnet_hiddens=(8,))
    group = config.build().grouping.groups[0]
    policy_spec = config.policy_spec("default_policy", group.observation_space, group.action_space)
    policy = Policy(policy_spec, PolicyWeights((), None), name="p")
    policy._memory = {None: {"carry": np.ones(2)}, "a": {"carry": np.zeros(2)}}
    again = pickle.loads(pickle.dumps(policy))
    np.testing.assert_equal(again._memory, policy._memory)


def untrained(**settings):
    """A policy of CartPole that knows nothing."""
    config = PPOConfig(env="cartpole", fcnet_hiddens=(8,), **settings)
    group = config.build().grouping.groups[0]
    policy_spec = config.policy_spec("default_policy", group.observation_space, group.action_space)
    params = jax.jit(policy_spec.model.init)(jax.random.key(0))
    weights = PolicyWeights(params, policy_spec.initial_filter())
    return Policy(policy_spec, weights, name="p")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_observation_that_is_not_finite_is_refused(bad):
    policy = untrained()
    assert policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    with pytest.raises(UsageError, match="an observation must be finite numbers; it holds"):
        policy.act([0.0, bad, 0.0, 0.0])
    with pytest.raises(UsageError, match="an observation must be finite numbers; it holds"):
        policy.value([[0.0, bad, 0.0, 0.0]])


@pytest.fixture(scope="module")
def remembering():
    """The spec and the weights of a policy with a memory."""
    policy = untrained(use_lstm=True, lstm_use_prev_reward=True)
    return policy.policy_spec, policy.weights


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (
            {"begins": [True, False]},
            r"begins must be a single value, or one for .* batch, \[3\], not .* \[2\]",
        ),
        (
            {"begins": [[True], [True, False]]},
            r"begins must be an array, not \[\[True\], \[True, False\]\]",
        ),
        ({"begins": None}, "begins must be bools or numbers, not None"),
        ({"begins": 0.5}, "begins must be True or False, not 0.5"),
        (
            {"prev_reward": [1.0]},
            r"prev_reward must be a single value, or one .*, \[3\], not of shape \[1\]",
        ),
        ({"prev_reward": "high"}, "prev_reward must be bools or numbers, not 'high'"),
        ({"prev_reward": np.nan}, "prev_reward must be finite, not nan"),
        (
            {"action_mask": [True, False]},
            r"action_mask must be bool\[3, 2\], the actions that are possible, not \[2\]",
        ),
        (
            {"action_mask": [[0.5, 0.2]] * 3},
            r"action_mask must be True or False, not \[\[0.5, 0.2\]",
        ),
        ({"agent": ["a"]}, r"agent must be the name of one, not \['a'\]"),
        ({"key": 5, "explore": True}, r"key must be one jax.random.key\(seed\), not 5"),
        (
            {"key": jax.random.split(jax.random.key(0), 3), "explore": True},
            r"key must be one jax.random.key\(seed\)",
        ),
    ],
)
def test_what_acting_is_told_is_refused_in_one_line_where_it_does_not_fit(
    remembering, told, message
):
    policy = Policy(*remembering, name="p")
    policy.act(np.zeros((3, 4)))
    with pytest.raises(UsageError, match=f"^policy 'p': {message}"):
        policy.act(np.zeros((3, 4)), **told)
    with pytest.raises(UsageError, match="an observation must be an array"):
        policy.act([[0.0, 0.0], [0.0]])
    assert policy.act(
        np.zeros((3, 4)), begins=np.array([1.0, 0.0, 1.0]), prev_reward=[1, 2, 3]
    ).shape == (3,)


def test_weights_that_cannot_be_are_refused(trained):
    before = trained.get_weights()
    for wrong, message in (
        (3, "set_weights takes {policy: weights}"),
        (
            {"pol1": jax.tree.map(lambda leaf: leaf * np.nan, before["pol1"])},
            "must be finite numbers",
        ),
        (
            {"pol1": jax.tree.map(lambda leaf: np.full_like(leaf, 1e39, float), before["pol1"])},
            "must be finite numbers",
        ),
        (
            {"pol1": jax.tree.map(lambda leaf: leaf.astype(complex), before["pol1"])},
            "complex128 where float32 belongs",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            trained.set_weights(wrong)
    jax.tree.map(np.testing.assert_array_equal, trained.get_weights(), before)
