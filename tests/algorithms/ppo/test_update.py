"""One policy's update against a NumPy reference of the objective, and what it must leave alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import PPOConfig
from jaxrl.algorithms.on_policy import Iteration
from jaxrl.algorithms.ppo import loss as loss_module
from jaxrl.algorithms.ppo.batch import (
    Batch,
    advantages_and_targets,
    batch_layout,
    make_batch,
    minibatch_indices,
)
from jaxrl.algorithms.ppo.hypers import PPOSpec
from jaxrl.algorithms.ppo.loss import (
    Sums,
    Terms,
    gradient,
    learner_metrics,
    num_microbatches,
    ppo_loss,
    total_loss,
)
from jaxrl.algorithms.ppo.optimizer import clipped_apart
from jaxrl.algorithms.ppo.update import init_learner, update_policy
from jaxrl.algorithms.ppo.without_critic import without_critic
from jaxrl.core.spaces import Box, Discrete
from jaxrl.models.mlp import MLP
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.advantages import gae
from jaxrl.ops.distributions import Categorical
from jaxrl.rollout.steps import Trajectory
from tests.probes import Leavers, Turns

MODEL = MLP(Box(-1.0, 1.0, (3,)), Discrete(4), hiddens=(8,))
STEPS, ENVS, AGENTS = 6, 4, 2


def learner_spec(**changes):
    values = {
        "policy_spec": PolicySpec(MODEL, MODEL.observation_space, MODEL.action_space),
        "trained": True,
        "minibatch_size": 16,
        "num_epochs": 2,
        "use_kl_loss": True,
        "normalize_advantages": "batch",
        "value_clip": "loss",
        "optimizer": None,
        "blocks": 1,
    }
    return PPOSpec(**{**values, **changes})


def hypers(**changes):
    return PPOConfig(env="cartpole", **changes).hypers()["default_policy"]


def hypers_of_an_iteration(**changes):
    """At step 0, with `changes` as arrays."""
    return hypers().at(0.0).replace(**{name: jnp.float32(x) for name, x in changes.items()})


@jax.jit
def trajectory(key, active=None):
    keys = jax.random.split(key, 8)
    shape = (STEPS, ENVS, AGENTS)
    distribution = Categorical(jax.random.normal(keys[0], (*shape, 4)))
    terminated = jax.random.bernoulli(keys[1], 0.1, shape)
    return Trajectory(
        obs=jax.random.uniform(keys[2], (*shape, 3)),
        action=distribution.sample(jax.random.gumbel(keys[3], (*shape, 4))),
        distribution=distribution,
        value=jax.random.normal(keys[4], shape),
        next_value=jax.random.normal(keys[5], shape),
        reward=jax.random.normal(keys[6], shape),
        terminated=terminated,
        done=terminated | jax.random.bernoulli(keys[7], 0.1, shape),
        active=jnp.ones(shape, bool) if active is None else active,
    )


indices_of = jax.jit(minibatch_indices, static_argnums=(0, 1))
apply = jax.jit(MODEL.apply)


@jax.jit
def estimates(path):
    """(advantages, targets) of all rows, with lambda 1."""
    values = path.reward, path.value, path.next_value
    return gae(*values, path.terminated, path.done, gamma=0.99, lambda_=1.0)


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def reference_loss(
    logits, value, rows, kind, clip=0.3, vf_clip=0.5, vf_coeff=0.7, entropy_coeff=0.1, kl_coeff=0.4
):
    """The objective as the design states it, row by row, in NumPy and float64."""
    rows, total = jax.tree.map(np.asarray, rows), 0.0
    for i in range(len(value)):
        new = log_softmax(logits[i])
        old = log_softmax(np.asarray(rows.distribution.logits[i], np.float64))
        ratio = np.exp(new[rows.action[i]] - old[rows.action[i]])
        surrogate = -min(
            ratio * rows.advantage[i], np.clip(ratio, 1 - clip, 1 + clip) * rows.advantage[i]
        )
        error = (value[i] - rows.target[i]) ** 2
        moved = rows.value[i] + np.clip(value[i] - rows.value[i], -vf_clip, vf_clip)
        value_term = {
            "loss": min(error, vf_clip),
            "prediction": max(error, (moved - rows.target[i]) ** 2),
            None: error,
        }
        entropy, kl = -(np.exp(new) * new).sum(), (np.exp(old) * (old - new)).sum()
        total += rows.weight[i] * (
            surrogate + vf_coeff * value_term[kind] - entropy_coeff * entropy + kl_coeff * kl
        )
    return total / max(np.sum(rows.weight), 1.0)


@jax.jit
def random_rows(active):
    """(20 rows, of which a share is active, parameters)."""
    keys = jax.random.split(jax.random.key(1), 8)
    old = Categorical(jax.random.normal(keys[0], (20, 4)))
    action = old.sample(jax.random.gumbel(keys[1], (20, 4)))
    rows = Batch(
        obs=jax.random.uniform(keys[2], (20, 3)),
        action=action,
        distribution=old,
        log_prob=old.log_prob(action),
        value=jax.random.normal(keys[3], (20,)),
        advantage=jax.random.normal(keys[4], (20,)),
        target=jax.random.normal(keys[5], (20,)),
        weight=jax.random.bernoulli(keys[6], active, (20,)).astype(jnp.float32),
    )
    return rows, MODEL.init(keys[7])


@pytest.mark.parametrize("kind", ["loss", "prediction", None])
@pytest.mark.parametrize("active", [1.0, 0.5, 0.0])
def test_the_objective_is_that_of_a_numpy_reference(kind, active):
    rows, params = random_rows(active)
    numbers = hypers_of_an_iteration(
        clip_param=0.3, vf_clip_param=0.5, vf_loss_coeff=0.7, entropy_coeff=0.1, kl_coeff=0.4
    )
    loss, sums = jax.jit(ppo_loss, static_argnums=1)(
        params, learner_spec(value_clip=kind), rows, numbers
    )
    assert not sums.model
    loss = loss / max(float(rows.weight.sum()), 1.0)
    distribution, value = apply(params, rows.obs)
    expected = reference_loss(
        np.asarray(distribution.logits, np.float64), np.asarray(value, np.float64), rows, kind
    )
    assert float(loss) == pytest.approx(expected, abs=1e-5)
    assert float(Terms(*sums.terms).weight) == pytest.approx(float(rows.weight.sum()))


def test_a_gradient_part_by_part_is_the_gradient_of_the_whole(monkeypatch):
    path, spec = trajectory(jax.random.key(0)), learner_spec()
    numbers = hypers_of_an_iteration(entropy_coeff=0.1, kl_coeff=0.4)
    params = MODEL.init(jax.random.key(3))

    def of_all_rows(params, path):
        rows = make_batch(spec, None, path, advantages_and_targets(spec, path, numbers))
        return gradient(params, spec, rows, numbers)

    whole = jax.jit(of_all_rows)(params, path)
    monkeypatch.setattr(loss_module, "num_microbatches", lambda num_rows, axis_name: 4)
    parts = jax.jit(lambda *arguments: of_all_rows(*arguments))(params, path)
    for part, expected in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(part, expected, rtol=1e-4, atol=1e-4)


def test_the_formula_of_the_loss_is_the_same_for_a_row_and_for_the_mean_of_rows():
    """1 + 0.5 x 2 + 0.25 x 8 - 0.1 x 10 + 7 of the model = 10, and so of the metric."""
    numbers = hypers_of_an_iteration(vf_loss_coeff=0.5, kl_coeff=0.25, entropy_coeff=0.1)
    row = Terms(*[jnp.float32(0)] * len(Terms._fields))
    row = row._replace(policy_loss=1.0, vf_loss=2.0, mean_kl_loss=8.0, entropy=10.0, weight=1.0)
    assert float(total_loss(row, numbers, 7.0)) == pytest.approx(10.0)
    sums = Sums(2 * jnp.stack(row)[None], {"model_loss": jnp.array([14.0])})  # of two such rows
    metrics = learner_metrics((sums, jnp.zeros(1)), 1, jnp.float32(1), numbers)
    assert float(metrics["total_loss"]) == pytest.approx(10.0)


@pytest.mark.parametrize(
    "num_rows, parts", [(512, 1), (1024, 1), (8192, 8), (2500, 2), (2053, 1), (3000, 2)]
)
def test_where_cores_are_devices_minibatches_are_cut_into_equal_parts_that_their_caches_hold(
    num_rows, parts
):
    assert num_microbatches(num_rows, "env") == parts
    assert num_microbatches(num_rows, None) == 1


@functools.partial(jax.jit, static_argnums=0)
def first_learner(plan, numbers):
    return init_learner(plan, numbers, jax.random.key(3))


@functools.partial(jax.jit, static_argnums=0)
def update_once(plan, learner, numbers, path):
    """(learner, metrics); compiled once for all numbers and paths of a plan."""
    iteration = Iteration(numbers, jnp.float32(0), jax.random.key(2))
    return update_policy(plan, learner, path, iteration)


def learn(plan, numbers, path):
    """(learner before, after, metrics)."""
    # Plans start alike, but for the state of the optimiser and the coefficient of the KL.
    start = learner_spec(optimizer=plan.optimizer, use_kl_loss=plan.use_kl_loss)
    learner = first_learner(start, numbers)
    return learner, *update_once(plan, learner, numbers, path)


# Minibatches of two rows, of which some hold no active one.
PAIRS = learner_spec(always_active=False, minibatch_size=2, num_epochs=3)


@pytest.mark.long
def test_a_policy_without_active_rows_keeps_its_learner_to_the_bit():
    none = np.zeros((STEPS, ENVS, AGENTS), bool)
    before, after, metrics = learn(PAIRS, hypers(), trajectory(jax.random.key(0), none))
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), before, after))
    assert float(metrics["num_module_steps_trained"]) == 0


def test_a_minibatch_without_active_rows_takes_no_step():
    """5 active rows of 48 in minibatches of 2.

    As many steps of Adam as minibatches hold one, and no more.
    """
    active = np.zeros((STEPS, ENVS, AGENTS), bool)
    active[[0, 1, 2, 3, 5], [0, 3, 1, 2, 2], [0, 1, 1, 0, 1]] = True
    layout = batch_layout(PAIRS.policy_spec, active.shape)
    rows = np.asarray(indices_of(PAIRS, layout, jax.random.key(2)))
    wanted = int(active.reshape(-1)[rows].any(axis=1).sum())
    assert 10 < wanted <= 15 < len(rows) == 72
    path = trajectory(jax.random.key(0), active)
    before, after, _ = learn(PAIRS, hypers(lr=1e-2), path)
    assert (int(before.opt_state[0].count), int(after.opt_state[0].count)) == (0, wanted)
    _, after, _ = learn(dataclasses.replace(PAIRS, always_active=True), hypers(lr=1e-2), path)
    # So it must not be said of an environment that agents leave
    assert int(after.opt_state[0].count) == 72


NO_CRITIC = learner_spec(use_critic=False, normalize_advantages=None, minibatch_size=64)


def test_without_a_critic_advantages_are_the_discounted_sums_of_rewards():
    """A sum ends where an episode does, of itself or at a time limit, and with the rollout."""
    path, numbers = trajectory(jax.random.key(0)), hypers_of_an_iteration(gamma=0.9, lambda_=0.5)
    bare, (advantages, targets) = without_critic(NO_CRITIC, path, numbers)
    reward, done = np.asarray(path.reward, np.float64), np.asarray(path.done)
    assert (done & ~np.asarray(path.terminated)).any() and not done[-1].all()
    expected, later = np.zeros(reward.shape), np.zeros(reward.shape[1:])
    for t in reversed(range(STEPS)):
        expected[t] = later = reward[t] + 0.9 * np.where(done[t], 0.0, later)
    np.testing.assert_allclose(advantages, expected, atol=1e-5)
    assert not any(map(np.any, (targets, bare.value, bare.next_value)))
    _, (standardised, _) = without_critic(learner_spec(use_critic=False), path, numbers)
    centered = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(standardised, centered, atol=1e-5)


@pytest.mark.parametrize("kind", ["loss", "prediction", None])
def test_without_a_critic_the_policy_learns_and_the_value_stays_as_it_is(kind):
    path, plan = trajectory(jax.random.key(0)), dataclasses.replace(NO_CRITIC, value_clip=kind)
    before, after, metrics = learn(plan, hypers(lr=1e-2, vf_loss_coeff=1.0), path)
    value, next_value = apply(before.params, path.obs)[1], apply(after.params, path.obs)[1]
    np.testing.assert_array_equal(value, next_value)
    assert float(metrics["mean_kl_loss"]) > 0
    of_values = {name: float(value) for name, value in metrics.items() if name.startswith("vf_")}
    assert of_values == {"vf_loss": 0, "vf_loss_unclipped": 0, "vf_clip_fraction": 0}
    _, same, _ = learn(plan, hypers(lr=1e-2), path.replace(value=1e6 + path.value))
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), after, same))


def test_where_all_rows_are_active_it_makes_no_difference_that_some_might_not_be():
    path = trajectory(jax.random.key(0), np.ones((STEPS, ENVS, AGENTS), bool))
    first, second = (
        learn(dataclasses.replace(PAIRS, always_active=said), hypers(lr=1e-2), path)[1]
        for said in (True, False)
    )
    for leaf, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(leaf, other)


@pytest.mark.parametrize(
    ("env", "always"), [("cartpole", True), (Leavers(), False), (Turns(), False)]
)
def test_whether_agents_are_ever_away_is_known_before_anything_runs(env, always):
    assert PPOConfig(env=env, fcnet_hiddens=(4,)).build().rollout_spec.always_active == always


def test_inactive_rows_change_nothing_whatever_they_hold():
    active = np.random.default_rng(5).random((STEPS, ENVS, AGENTS)) < 0.7
    path = jax.device_get(trajectory(jax.random.key(0), active))
    leaves = np.concatenate(
        [~active[1:], np.zeros_like(active[:1])]
    )  # an agent that is gone next has ended now
    path = path.replace(done=path.done | ~active | leaves)
    garbage = path.replace(
        reward=np.where(active, path.reward, np.float32(1e6)),
        value=np.where(active, path.value, np.float32(np.nan)),
        obs=np.where(active[..., None], path.obs, np.float32(np.nan)),
        action=np.where(active, path.action, np.int32(3)),
        # An active row may bootstrap from its own next state alone; those of inactive rows are
        # free.
        next_value=np.where(active, path.next_value, np.float32(1e6)),
    )
    first, second = (
        learn(learner_spec(), hypers(lr=1e-2), trajectory)[1] for trajectory in (path, garbage)
    )
    for leaf, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(leaf, other, atol=1e-6)


@pytest.mark.long
def test_the_gradient_is_clipped_by_its_global_norm():
    plan = learner_spec(optimizer=optax.sgd, minibatch_size=48, num_epochs=1)
    moves = []
    for clip in (None, 1e-3):
        before, after, metrics = learn(
            plan, hypers(lr=1.0, grad_clip=clip), trajectory(jax.random.key(0))
        )
        moves.append(
            float(optax.tree.norm(jax.tree.map(jnp.subtract, after.params, before.params)))
        )
        norm = float(metrics["gradients_default_optimizer_global_norm"])
    assert moves[0] == pytest.approx(
        norm, rel=1e-4
    )  # plain descent at rate 1 moves by the gradient
    assert moves[1] == pytest.approx(1e-3, rel=1e-3)


def test_a_mean_gradient_is_clipped_by_array_or_by_number():
    sums = {"kernel": jnp.array([[6.0, 8.0]]), "bias": jnp.array([0.2])}  # of 2 rows
    clipped = lambda by, grad_clip: clipped_apart(sums, jnp.float32(2), jnp.float32(grad_clip), by)
    expected = {  # the mean is [3, 4], of norm 5, and [0.1]
        "norm": ([[0.6, 0.8]], [0.1]),
        "value": ([[1.0, 1.0]], [0.1]),
    }
    for by, (kernel, bias) in expected.items():
        found = clipped(by, 1.0)
        np.testing.assert_allclose(found["kernel"], kernel, rtol=1e-6)
        np.testing.assert_allclose(found["bias"], bias, rtol=1e-6)
        np.testing.assert_allclose(clipped(by, jnp.inf)["kernel"], [[3.0, 4.0]])


@pytest.mark.parametrize("by", ["norm", "value"])
def test_a_step_of_descent_moves_each_array_or_number_by_no_more_than_the_clip(by):
    plan = learner_spec(optimizer=optax.sgd, minibatch_size=48, num_epochs=1, grad_clip_by=by)
    before, after, _ = learn(plan, hypers(lr=1.0, grad_clip=1e-3), trajectory(jax.random.key(0)))
    moves = jax.tree.leaves(jax.tree.map(jnp.subtract, after.params, before.params))
    for move in moves:
        size = optax.tree.norm(move) if by == "norm" else jnp.abs(move).max()
        assert 0 < float(size) <= 1e-3 * (1 + 1e-3)
    assert float(optax.tree.norm(moves)) > 1.5e-3  # the whole moves further


@pytest.mark.long
@pytest.mark.parametrize("by", ["norm", "value"])
def test_adam_clips_packed_arrays_as_it_clips_layers(by):
    rows, numbers = trajectory(jax.random.key(0)), hypers(lr=1e-2, grad_clip=1e-3)
    learned = []
    for optimizer in (None, lambda lr: optax.adam(lr, eps=1e-8)):
        plan = learner_spec(optimizer=optimizer, grad_clip_by=by)
        learned.append(learn(plan, numbers, rows)[1].params)
    for packed, by_layer in zip(*map(jax.tree.leaves, learned), strict=True):
        np.testing.assert_allclose(packed, by_layer, atol=1e-6)


@pytest.mark.parametrize(("target", "factor"), [(1e-9, 1.5), (1e3, 0.5)])
def test_the_kl_coefficient_follows_the_kl_of_the_last_pass(target, factor):
    _, learner, metrics = learn(
        learner_spec(), hypers(lr=1e-2, kl_target=target), trajectory(jax.random.key(0))
    )
    assert float(metrics["curr_kl_coeff"]) == pytest.approx(0.2)
    assert float(learner.kl_coeff) == pytest.approx(0.2 * factor)


def test_without_the_kl_penalty_its_coefficient_stays_zero():
    _, learner, _ = learn(
        learner_spec(use_kl_loss=False), hypers(kl_target=1e-9), trajectory(jax.random.key(0))
    )
    assert float(learner.kl_coeff) == 0.0


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_every_minibatch_takes_an_equal_share_of_every_block_of_environments(blocks):
    plan = learner_spec(blocks=blocks, minibatch_size=16, num_epochs=3)
    layout = batch_layout(plan.policy_spec, (STEPS, ENVS, AGENTS))
    rows = np.asarray(indices_of(plan, layout, jax.random.key(0)))
    assert rows.shape == (9, 16)  # 3 epochs of 48 rows
    np.testing.assert_array_equal(np.bincount(rows.reshape(-1), minlength=48), 3)
    block = rows // AGENTS % ENVS // (ENVS // blocks)
    for b in range(blocks):
        np.testing.assert_array_equal((block == b).sum(axis=1), 16 // blocks)


@pytest.mark.parametrize("kind", ["loss", "prediction", None])
def test_the_share_of_clipped_values_is_that_of_the_active_rows_beyond_the_bound(kind):
    active = np.random.default_rng(5).random((STEPS, ENVS, AGENTS)) < 0.5
    # One step over all rows at rate 0, so that the values are those of the first parameters.
    plan = learner_spec(value_clip=kind, minibatch_size=48, num_epochs=1)
    numbers = hypers(lr=0.0, vf_clip_param=0.3)
    path = trajectory(jax.random.key(0), active)
    before, _, metrics = learn(plan, numbers, path)
    _, value = apply(before.params, np.asarray(path.obs).reshape(-1, 3))
    old, weight = np.asarray(path.value).reshape(-1), active.reshape(-1)
    _, target = estimates(path)
    error = np.asarray(value) - np.asarray(target).reshape(-1)
    beyond = {
        "loss": error**2 > 0.3,
        "prediction": np.abs(np.asarray(value) - old) > 0.3,
        None: np.zeros(48, bool),
    }
    assert float(metrics["vf_clip_fraction"]) == pytest.approx(beyond[kind][weight].mean())
    assert kind is None or 0.05 < metrics["vf_clip_fraction"] < 1


@pytest.mark.parametrize("part", ["params", "opt_state"])
@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_one_bad_number_among_parameters_or_optimiser_state_is_told(part, value):
    # At rate 0 what is bad stays bad, and what is good stays good; so do learners without rows.
    plan, numbers = learner_spec(), hypers(lr=0.0)
    none = trajectory(jax.random.key(0), np.zeros((STEPS, ENVS, AGENTS), bool))
    learner = first_learner(plan, numbers)
    leaves, tree = jax.tree.flatten(getattr(learner, part))
    leaves[-1] = np.array(leaves[-1])
    leaves[-1][0] = value
    assert update_once(plan, learner, numbers, none)[1]["parameters_finite"] == 1.0
    bad = learner.replace(**{part: jax.tree.unflatten(tree, leaves)})
    assert update_once(plan, bad, numbers, none)[1]["parameters_finite"] == 0.0


def test_a_reward_that_is_no_number_breaks_the_parameters_and_is_told():
    path = trajectory(jax.random.key(0))
    reward = np.array(path.reward)
    reward[2, 1, 0] = np.nan
    _, _, metrics = learn(learner_spec(), hypers(), path.replace(reward=reward))
    assert metrics["parameters_finite"] == 0.0
    assert not np.isfinite(metrics["policy_loss"])
