"""What a behaviour found is learned from as the policy would have found it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, make_train
from jaxrl.algorithms.ppo.batch import advantages_and_targets, make_batch
from jaxrl.algorithms.ppo.behaviour import as_if_by_policy, as_if_played_now
from jaxrl.algorithms.ppo.loss import gradient
from jaxrl.core.spaces import Box, Discrete
from jaxrl.models.policy_spec import PolicyInputs, PolicySpec, PolicyWeights
from jaxrl.ops.distributions import Categorical, DiagGaussian
from jaxrl.ops.exploration import EpsilonGreedy, GaussianNoise, Random
from jaxrl.ops.explored import Explored, learned_of
from jaxrl.ops.joint import Joint
from jaxrl.rollout.steps import Trajectory
from tests.algorithms.ppo.test_update import (
    MODEL,
    hypers_of_an_iteration,
    learner_spec,
    log_softmax,
    trajectory,
)
from tests.core.environments import Clock
from tests.probes import OneAgent

SEEDS = jnp.arange(3)
TWO_ARMS, THREE_ARMS = (0.0, 1.0), (1.0, 0.9, 0.0)
TARGET = np.array([0.5, -0.3], np.float32)


class Bandit(OneAgent):
    """One step an episode; arm i pays `pays[i]`, or a point minus its squared distance."""

    observes = Box(-1, 1, (1,))

    def __init__(self, pays=None):
        self.pays = pays

    def action_space(self, params=None):
        return Box(-1, 1, (2,)) if self.pays is None else Discrete(len(self.pays))

    def reset_env(self, key, params):
        return jnp.zeros(1), Clock(jnp.int32(0))

    def step_env(self, key, state, action, params):
        if self.pays is None:
            reward = -jnp.sum((action - TARGET) ** 2)
        else:
            reward = jnp.asarray(self.pays)[action]
        return jnp.zeros(1), Clock(state.time + 1), reward, jnp.array(True), {}


class Table:
    """Logits and value linear in the observation: of one that is one-hot, a table of states."""

    def __init__(self, *logits):
        self.logits = logits

    def init(self, key, obs=None):
        logits = jnp.array(self.logits)
        return {"logits": logits, "value": jnp.zeros(len(logits))}

    def apply(self, params, obs):
        return obs @ params["logits"], obs @ params["value"]


class Alone(Table):
    """The same numbers whatever is observed."""

    def apply(self, params, obs):
        return super().apply(params, jnp.ones((*obs.shape[:-1], 1)))


def epsilon_greedy(epsilon):
    kept = {"initial_epsilon": epsilon, "final_epsilon": epsilon}
    return {"type": "EpsilonGreedy", **kept}


def inverted(distribution, env_steps):
    """A user's own: it takes what the policy would not."""
    return Categorical(-distribution.logits)


def learned(env, logits, exploration, iterations=40, **changes):
    """The logits that three seeds end with."""
    config = PPOConfig(
        env=env, model=Alone(logits), num_envs=16, rollout_length=16, minibatch_size=64,
        num_epochs=4, lr=1e-2, entropy_coeff=0.0, total_env_steps=256 * iterations,
        exploration_config=exploration, **changes,
    )  # fmt: skip
    runners, _ = jax.jit(jax.vmap(make_train(config)))(jax.vmap(jax.random.key)(SEEDS))
    return np.asarray(runners.learners[0].params["logits"])[:, 0, 0]


@pytest.mark.long
@pytest.mark.parametrize(
    "exploration",
    [
        pytest.param(epsilon_greedy(0.1), id="a little"),
        pytest.param(epsilon_greedy(0.5), id="half"),
        pytest.param({"type": "Random"}, id="random"),
        pytest.param(inverted, id="a function"),
    ],
)
def test_the_better_arm_is_learned_though_the_greedy_one_is_the_worse(exploration):
    logits = learned(Bandit(TWO_ARMS), (0.2, -0.2), exploration)  # p(better) = 0.4
    assert (jax.nn.softmax(logits)[:, 1] > 0.95).all()


@pytest.mark.long
@pytest.mark.parametrize("normalize_advantages", ["batch", "minibatch"])
def test_arms_are_judged_by_what_the_policy_earns_and_not_the_exploration(normalize_advantages):
    """Exploration goes on taking the worst arm, beside which the second best looks good."""
    changes = {"normalize_advantages": normalize_advantages}
    logits = learned(Bandit(THREE_ARMS), (0.3, 1.0, -0.3), epsilon_greedy(0.1), 90, **changes)
    assert (jax.nn.softmax(logits)[:, 0] > 0.95).all()


@pytest.mark.long
def test_noise_around_the_likeliest_action_finds_the_best_point():
    """The policy's standard deviation begins at six times that of the noise."""
    noise = {"type": "GaussianNoise", "random_timesteps": 0}
    logits = learned(Bandit(), (0.0, 0.0, -0.5, -0.5), noise, 80)
    np.testing.assert_allclose(logits[:, :2], np.tile(TARGET, (3, 1)), atol=0.1)


class Linear(Table):
    def apply(self, params, obs):
        logits, value = super().apply(params, obs)
        return Categorical(logits), value


LINEAR = Linear(*np.random.default_rng(0).normal(0, 0.5, (3, 4)).tolist())
POSSIBLE = np.array([True, True, True, False])


def spec_of(model=LINEAR, **changes):
    policy_spec = PolicySpec(model, Box(-1.0, 1.0, (3,)), Discrete(4))
    return learner_spec(policy_spec=policy_spec, value_clip=None, **changes)


def acted(behave, *, mask=None, seed=0):
    """The trajectory of `test_update`, of whose policy `behave` makes the behaviour that acts."""
    played = trajectory(jax.random.key(seed))
    policy = played.distribution if mask is None else played.distribution.masked(mask)
    distribution = Explored(policy, behave(policy, jnp.float32(0)))
    noise = jax.random.gumbel(jax.random.key(seed + 1), policy.logits.shape)
    played = played.replace(distribution=distribution, action=distribution.sample(noise))
    if mask is not None:
        masks = jnp.broadcast_to(mask, policy.logits.shape)
        played = played.replace(inputs=PolicyInputs(action_mask=masks))
    return played


@functools.partial(jax.jit, static_argnums=0)
def gradient_of(spec, params, played, hypers):
    played = as_if_by_policy(played)
    batch = make_batch(spec, None, played, advantages_and_targets(spec, played, hypers))
    return gradient(params, spec, batch, hypers)[0]


def reference_gae(played, gamma, lambda_):
    reward, value, following = (
        np.asarray(leaf, np.float64) for leaf in (played.reward, played.value, played.next_value)
    )
    delta = reward + gamma * np.where(played.terminated, 0, following) - value
    advantage, later = np.zeros_like(delta), 0.0
    for t in reversed(range(len(delta))):
        later = advantage[t] = delta[t] + gamma * lambda_ * np.where(played.done[t], 0, later)
    return advantage, advantage + value


def reference_gradient(params, played, hypers, mask):
    """The decoupled objective's, row by row, in NumPy and float64."""
    advantage, target = reference_gae(played, float(hypers.gamma), float(hypers.lambda_))
    chosen = lambda logs: np.take_along_axis(logs, np.asarray(played.action)[..., None], -1)[..., 0]
    log_of = lambda logits: log_softmax(np.where(mask, np.float64(logits), -np.inf))
    with np.errstate(invalid="ignore"):
        old = log_of(played.distribution.policy.logits)
        drawn = log_softmax(np.float64(played.distribution.behaviour.logits))
        weight = np.minimum(np.exp(chosen(old) - chosen(drawn)), 1.0)
        obs = np.asarray(played.obs, np.float64)
        new = log_of(obs @ np.float64(params["logits"]))
        ratio = np.where(weight > 0, np.exp(chosen(new) - chosen(old)), 1.0)
    mean = np.average(advantage, weights=weight)
    advantage = advantage - mean
    advantage /= np.sqrt(np.average(advantage**2, weights=weight))
    clip = float(hypers.clip_param)
    within = np.where(advantage > 0, ratio < 1 + clip, ratio > 1 - clip)
    probability, pull = np.exp(new), (weight * advantage * ratio * within)[..., None]
    one_hot = np.arange(4) == np.asarray(played.action)[..., None]
    by_logits = -pull * (one_hot - probability)
    by_logits += float(hypers.kl_coeff) * (probability - np.exp(old))
    logs = np.where(mask, new, 0.0)
    entropy = -np.sum(probability * logs, -1, keepdims=True)
    by_logits += float(hypers.entropy_coeff) * probability * (logs + entropy)
    error = obs @ np.float64(params["value"]) - target
    by_value = float(hypers.vf_loss_coeff) * 2 * weight * error
    return {
        "logits": np.einsum("temi,tema->ia", obs, by_logits),
        "value": np.einsum("temi,tem->i", obs, by_value),
    }


def uniform(policy, env_steps):
    """Over all actions, the impossible ones as well."""
    return Categorical(jnp.zeros_like(policy.logits))


@pytest.mark.parametrize(
    ("behave", "mask"),
    [
        (EpsilonGreedy(initial_epsilon=0.1), None),
        (EpsilonGreedy(initial_epsilon=0.0), None),
        (Random(), POSSIBLE),
        (uniform, POSSIBLE),
    ],
    ids=["epsilon", "epsilon 0", "random, masked", "what the policy cannot do"],
)
def test_the_gradient_is_that_of_the_decoupled_objective(behave, mask):
    played = acted(behave, mask=mask)
    params = LINEAR.init(None)
    hypers = hypers_of_an_iteration(entropy_coeff=0.1, kl_coeff=0.4, vf_loss_coeff=0.7)
    found = gradient_of(spec_of(), params, played, hypers)
    expected = reference_gradient(params, played, hypers, True if mask is None else mask)
    assert np.abs(expected["logits"]).max() > 0.1
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-4, err_msg=name)


def test_no_row_weighs_more_than_one_and_those_of_a_deterministic_behaviour_the_policys():
    played = acted(EpsilonGreedy(initial_epsilon=0.0))
    weights = as_if_by_policy(played).importance
    likeliest = jnp.exp(played.distribution.policy.log_prob(played.action))
    np.testing.assert_allclose(weights, likeliest, rtol=1e-5)
    assert as_if_by_policy(acted(Random())).importance.max() == 1.0


def test_what_the_policy_played_itself_stays_as_it_is():
    played = trajectory(jax.random.key(0))
    assert as_if_by_policy(played) is played
    batch = make_batch(learner_spec(), None, played, (played.value, played.value))
    assert batch.importance is None and batch.policy_weight is batch.weight


def test_rows_in_which_nobody_acted_weigh_nothing_whatever_stands_in_them():
    played = acted(Random())
    active = jnp.ones_like(played.active).at[2:4].set(False)
    spoilt = jax.tree.map(lambda leaf: leaf.at[2:4].set(jnp.nan), played.distribution)
    importance = as_if_by_policy(played.replace(distribution=spoilt, active=active)).importance
    np.testing.assert_array_equal(importance[2:4], 0.0)
    assert (importance[:2] > 0).all()


def test_an_exploration_one_update_late_is_weighed_once_from_what_was_drawn():
    """By the probability of the weights that learn over that of the exploration."""
    played, spec = acted(EpsilonGreedy(initial_epsilon=0.3)), learner_spec()
    params = MODEL.init(jax.random.key(1))
    late = jax.jit(as_if_played_now, static_argnums=0)(spec, PolicyWeights(params, None), played)
    found = as_if_by_policy(late)
    now = MODEL.apply(params, played.obs)[0].log_prob(played.action)
    drawn = played.distribution.behaviour.log_prob(played.action)
    np.testing.assert_allclose(found.importance, np.minimum(jnp.exp(now - drawn), 1), rtol=1e-5)
    np.testing.assert_allclose(found.distribution.log_prob(played.action), now, rtol=1e-5)


def test_recorded_actions_are_weighed_by_the_probability_that_was_recorded():
    """A client's own exploration; of rows of the policy itself the weight is 1."""
    played = trajectory(jax.random.key(0))
    of_policy = played.distribution.log_prob(played.action)
    drawn = of_policy.at[0].set(np.log(0.9))
    found = as_if_by_policy(played.replace(log_prob=drawn))
    np.testing.assert_array_equal(found.importance[1:], 1.0)
    expected = np.minimum(np.exp(of_policy[0]) / 0.9, 1.0)
    np.testing.assert_allclose(found.importance[0], expected, rtol=1e-5)
    assert found.log_prob is None


class Normal(Table):
    """A mean and a log standard deviation, the same whatever is observed."""

    def apply(self, params, obs):
        outputs, value = super().apply(params, jnp.ones((*obs.shape[:-1], 1)))
        return DiagGaussian(outputs[..., :1], outputs[..., 1:], (1,)), value


NUMBER, STILL = Normal((0.0, 0.0)), {"initial_scale": 1.0, "final_scale": 1.0}
NOISE = GaussianNoise(random_timesteps=10, stddev=0.5, **STILL)


def noisy_row(action, mean=0.0, env_steps=10.0, value=0.0):
    """One row of the standard policy's noisy choice, whose advantage is 1."""
    of_row = lambda number: jnp.asarray(number)[None, None, None]
    policy = DiagGaussian(of_row([mean]), of_row([0.0]), (1,))
    ends = of_row(True)
    return Trajectory(
        obs=of_row([0.0]),
        action=of_row([action]),
        distribution=Explored(policy, NOISE(policy, jnp.float32(env_steps))),
        value=of_row(value),
        next_value=of_row(0.0),
        reward=of_row(1.0 + value),
        terminated=ends,
        done=ends,
        active=ends,
    )


def number_spec():
    policy_spec = PolicySpec(NUMBER, Box(-1.0, 1.0, (1,)), Box(-1.0, 1.0, (1,)))
    return learner_spec(policy_spec=policy_spec, normalize_advantages=None, value_clip=None)


def noisy_gradient(played, mean=0.0, log_std=0.0, **changes):
    """(by the mean, by the log standard deviation) of the loss of one row."""
    params = {"logits": jnp.array([[mean, log_std]]), "value": jnp.zeros(1)}
    off = {"entropy_coeff": 0.0, "kl_coeff": 0.0, "vf_loss_coeff": 0.0, "clip_param": 0.3}
    hypers = hypers_of_an_iteration(**{**off, **changes})
    return np.ravel(gradient_of(number_spec(), params, played, hypers)["logits"])


def test_the_gradient_of_a_noisy_choice_is_that_of_the_noise_around_the_mean():
    """z = 0.25 / 0.5: by the mean -z / 0.5, by the log standard deviation 1 - z^2."""
    np.testing.assert_allclose(noisy_gradient(noisy_row(0.25)), [-1.0, 0.75], rtol=1e-5)
    with_kl = noisy_gradient(noisy_row(0.25), entropy_coeff=0.1, kl_coeff=0.4)
    np.testing.assert_allclose(with_kl, [-1.0, 0.75 - 0.1], rtol=1e-5)


def test_the_ratio_of_a_noisy_choice_is_of_the_noise_and_leaves_the_clip_as_any_ratio():
    """At 0.1 z falls from 0.5 to 0.3, so the ratio is exp((0.25 - 0.09) / 2)."""
    ratio = np.exp(0.08)
    found = noisy_gradient(noisy_row(0.25), mean=0.1)
    np.testing.assert_allclose(found, [-0.6 * ratio, 0.91 * ratio], rtol=1e-4)
    np.testing.assert_array_equal(noisy_gradient(noisy_row(0.25), mean=0.1, clip_param=0.05), 0)
    halved = noisy_gradient(noisy_row(0.25), log_std=np.log(0.5), clip_param=1.0)
    ratio = 2 * np.exp((0.25 - 1.0) / 2)  # of noise half as wide, z = 1
    np.testing.assert_allclose(halved, [-4.0 * ratio, 0.0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("action", "weight"), [(0.25, 1.0), (1.0, 0.21596), (-1.0, 0.21596)])
def test_random_actions_before_the_noise_weigh_as_the_noise_would_have_played_them(action, weight):
    """N(1; 0, 0.5) = 0.10798, and 0.5 of all actions in [-1, 1]."""
    found = as_if_by_policy(noisy_row(action, env_steps=9.0))
    np.testing.assert_allclose(np.ravel(found.importance), [weight], rtol=1e-4)
    by_mean, _ = noisy_gradient(noisy_row(action, env_steps=9.0))
    np.testing.assert_allclose(by_mean, -weight * action / 0.25, rtol=1e-4)


def test_noise_one_update_late_is_that_around_the_present_mean():
    """Played around 0, weighed around 0.5: N(-0.25; 0.5, 0.5) / N(-0.25; 0, 0.5)."""
    params = {"logits": jnp.array([[0.5, 0.0]]), "value": jnp.zeros(1)}
    late = as_if_played_now(number_spec(), PolicyWeights(params, None), noisy_row(-0.25))
    weight = np.exp((0.5**2 - 1.5**2) / 2)
    np.testing.assert_allclose(np.ravel(as_if_by_policy(late).importance), [weight], rtol=1e-5)
    found = noisy_gradient(late, mean=0.5)
    np.testing.assert_allclose(found, [weight * 3.0, weight * -1.25], rtol=1e-4)


def test_noise_learns_in_its_part_of_an_action_and_the_policy_in_the_others():
    numbers, arms = DiagGaussian(jnp.zeros(1), jnp.zeros(1), (1,)), Categorical(jnp.zeros(2))
    joint = lambda *parts: Joint(parts, action_space=None, noise_sizes=(1, 2))
    noisy = NOISE(numbers, jnp.float32(10))
    behaviour = joint(noisy, EpsilonGreedy()(arms, jnp.float32(0)))
    other = DiagGaussian(jnp.ones(1), jnp.full(1, 0.5), (1,))
    learned = learned_of(joint(other, arms), behaviour)
    assert learned.parts[1] is arms
    np.testing.assert_array_equal(learned.parts[0].mode(), [1.0])
    np.testing.assert_allclose(learned.parts[0].log_std, np.log(0.5) + 0.5, rtol=1e-6)
    assert learned_of(arms, behaviour.parts[1]) is arms and learned_of(other, None) is other


def test_noise_of_rows_in_which_nobody_acted_reaches_no_gradient():
    played = noisy_row(0.25)
    spoilt = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), played.distribution)
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), played, noisy_row(0.5))
    mixed = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), played.distribution, spoilt)
    active = jnp.array([True, False]).reshape(2, 1, 1)
    found = noisy_gradient(both.replace(distribution=mixed, active=active))
    np.testing.assert_allclose(found, [-1.0, 0.75], rtol=1e-5)


@pytest.mark.long
def test_constant_noise_half_as_wide_as_the_policy_finds_the_best_point():
    noise = {"type": "GaussianNoise", "random_timesteps": 0, "stddev": 0.3, **STILL}
    logits = learned(Bandit(), (0.0, 0.0, -0.5, -0.5), noise, 80)
    np.testing.assert_allclose(logits[:, :2], np.tile(TARGET, (3, 1)), atol=0.15)
