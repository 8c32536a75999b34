"""One compiled function: what it gives alone, under vmap, in the Trainer, and over devices."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import PPOConfig, Trainer, make_train
from jaxrl.algorithms.ppo.ppo import make_ppo
from tests.algorithms.reinforce import ReinforceConfig
from tests.messages import refusal
from tests.probes import Crowd
from tests.programs import SMALL_CARTPOLE

SETTINGS = {
    "env": "arena",
    "env_args": {"height": 4, "width": 4, "max_steps_in_episode": 20},
    "num_envs": 8,
    "rollout_length": 16,
    "minibatch_size": 48,
    "num_epochs": 3,
    "fcnet_hiddens": (16,),
    "lr": 1e-3,
    "per_policy": {"pol2": {"lr": 2e-3}},
}
CONFIG = PPOConfig(**SETTINGS, total_env_steps=10 * 128)


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def params(runner):
    return [learner.params for learner in runner.learners]


@pytest.fixture(scope="module")
def single():
    return jax.jit(make_train(CONFIG))


@pytest.fixture(scope="module")
def eight():
    """Eight trainings in one program, each with a key and numbers; it may be traced only once."""
    return jax.jit(jax.vmap(chex.assert_max_traces(make_train(CONFIG), n=1)))


@pytest.mark.long
def test_one_compilation_serves_eight_keys_and_each_equals_its_single_run(eight, single):
    keys = jax.random.split(jax.random.key(0), 8)
    hypers = CONFIG.hypers()
    runners, _ = eight(keys, stack([hypers] * 8))
    eight(keys[::-1], stack([hypers] * 8))
    for member in (0, 5):
        alone, _ = single(keys[member], hypers)
        chex.assert_trees_all_close(
            params(jax.tree.map(lambda x, m=member: x[m], runners)), params(alone), atol=2e-5
        )


@pytest.mark.filterwarnings("ignore:lr leaves pol2 as per_policy has it")
@pytest.mark.long
def test_one_compilation_serves_every_learning_rate_and_each_equals_its_single_run(eight, single):
    rates = [1e-4 * 2**i for i in range(8)]
    hypers = [CONFIG.hypers(lr=rate) for rate in rates]
    key = jax.random.key(1)
    runners, _ = eight(stack([key] * 8), stack(hypers))
    eight(stack([key] * 8), stack(hypers[::-1]))
    for member in (0, 7):
        alone, _ = single(key, hypers[member])
        chex.assert_trees_all_close(
            params(jax.tree.map(lambda x, m=member: x[m], runners)), params(alone), atol=2e-5
        )
    spread = np.asarray(jax.tree.leaves(params(runners))[0])
    assert np.abs(spread[0] - spread[7]).max() > 1e-3  # the rates did make a difference


@pytest.mark.long
def test_keys_or_numbers_alone_may_be_mapped():
    train, key, hypers = make_train(SMALL_CARTPOLE), jax.random.key(0), SMALL_CARTPOLE.hypers()
    by_key = jax.eval_shape(jax.vmap(train), jax.random.split(key, 3))
    by_hypers = jax.eval_shape(jax.vmap(train, in_axes=(None, 0)), key, stack([hypers] * 3))
    chex.assert_trees_all_equal_shapes_and_dtypes(by_key, by_hypers)
    assert all(leaf.shape[0] == 3 for leaf in jax.tree.leaves(by_key))


@pytest.mark.long
def test_the_same_key_gives_the_same_bits_and_another_key_others(single):
    first, metrics = single(jax.random.key(3))
    again, other = (single(jax.random.key(seed))[0] for seed in (3, 4))
    assert metrics.agent_steps.tolist() == [[128, 128]] * 10
    chex.assert_trees_all_equal(params(first), params(again))
    assert not np.array_equal(jax.tree.leaves(params(first))[0], jax.tree.leaves(params(other))[0])


@pytest.mark.bits
def test_the_trainer_for_any_length_of_chunks_and_numbers_given_as_hypers_give_the_same_bits(
    single,
):
    """Those of make_train with the configuration's own numbers."""
    runner, metrics = single(jax.random.key(CONFIG.seed))
    given, _ = single(jax.random.key(CONFIG.seed), CONFIG.hypers())
    chex.assert_trees_all_equal(params(runner), params(given))
    trainer = Trainer(CONFIG, run_dir=None, quiet=True)
    results = [trainer.train() for _ in range(3)]
    results.append(trainer.fit())
    chex.assert_trees_all_equal(trainer.runner.learners, runner.learners)
    chex.assert_trees_all_equal(trainer.runner.window, runner.window)
    for result in results:
        index = result["training_iteration"] - 1
        kl = metrics.learners[0]["mean_kl_loss"][index, 1]
        assert result["learners"]["pol2"]["mean_kl_loss"] == pytest.approx(float(kl), abs=1e-7)
    assert results[-1]["training_iteration"] == CONFIG.num_updates


def adam_by_another_name(lr):
    return optax.adam(lr, eps=CONFIG.adam_epsilon)


# Of equal policies whose actions are continuous and whose observations are filtered. Advantages are
# standardised over the batch, or over each minibatch; either that or Adam by another name is
# another structure, and so a group of its own.
ALIKE = PPOConfig(
    env=Crowd(),
    observation_filter="MeanStdFilter",
    shuffle_blocks=2,
    use_kl_loss=True,
    normalize_advantages="batch",
    num_envs=8,
    rollout_length=16,
    minibatch_size=48,
    num_epochs=3,
    fcnet_hiddens=(8,),
    lr=1e-3,
)
BY_MINIBATCH = ALIKE.replace(
    per_policy={"one_1": {"normalize_advantages": "minibatch", "center_values": True}}
)
BY_OPTIMIZER = ALIKE.replace(per_policy={"one_1": {"optimizer": adam_by_another_name}})


@functools.cache
def ten_updates(config):
    """(algorithm, the runner after each of ten updates)."""
    algorithm = config.build()
    runners, update = [jax.jit(algorithm.init)(jax.random.key(0))], jax.jit(algorithm.update)
    for _ in range(10):
        runners.append(update(runners[-1])[0])
    return algorithm, runners[1:]


def weights_after(config, count):
    """{policy: weights} after so many updates."""
    algorithm, runners = ten_updates(config)
    return {
        policy: algorithm.policy_weights(runners[count - 1], policy)
        for policy in algorithm.grouping.policies
    }


@pytest.mark.long
def test_stacked_policies_learn_what_they_learn_apart():
    """The first must not notice that the second one has a group of its own."""
    for config, num_groups in ((ALIKE, 1), (BY_MINIBATCH, 2), (BY_OPTIMIZER, 2)):
        assert len(ten_updates(config)[0].grouping.groups) == num_groups
        learned = weights_after(config, 1)["one_0"]
        chex.assert_trees_all_close(learned, weights_after(ALIKE, 1)["one_0"], atol=1e-6)


@pytest.mark.parametrize(
    "num_policies", [2, *(pytest.param(count, marks=pytest.mark.slow) for count in (8, 32))]
)
@pytest.mark.long
def test_over_ten_updates_stacked_policies_give_the_numbers_of_one_apart(num_policies):
    together, apart = (
        weights_after(config.replace(env=Crowd(num_policies)), 10)
        for config in (ALIKE, BY_OPTIMIZER)
    )
    assert len(together) == num_policies
    chex.assert_trees_all_close(together, apart, atol=1e-3)


@pytest.mark.long
def test_environments_split_over_two_devices_learn_what_one_device_learns():
    split = make_ppo(BY_MINIBATCH, axis_name="devices")

    def three_updates(key):
        start = split.init(key)
        return jax.lax.scan(lambda runner, _: split.update(runner), start, length=3)[0]

    over_devices = jax.vmap(three_updates, in_axes=None, axis_size=2, axis_name="devices")
    members = jax.jit(over_devices)(jax.random.key(0)).learners
    expected = ten_updates(BY_MINIBATCH)[1][2].learners
    for device in (0, 1):
        member = jax.tree.map(lambda leaf, d=device: leaf[d], members)
        chex.assert_trees_all_close(member, expected, atol=2e-5)


@pytest.mark.long
def test_a_mapping_of_the_same_names_is_a_configuration():
    mapping = {**SETTINGS, "total_env_steps": 10 * 128}
    assert PPOConfig.from_dict(mapping) == CONFIG
    shapes, expected = (
        jax.eval_shape(make_train(form), jax.random.key(0)) for form in (mapping, CONFIG)
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(shapes, expected)
    with refusal("unknown setting 'learning_rat': perhaps learning_rate, SB3's name for lr"):
        make_train({"env": "arena", "learning_rat": 1e-3})


@functools.cache
def scheduled(rate):
    """(runner, metrics) of three iterations of 128 steps; the rate falls to 0 over two."""
    config = PPOConfig(
        env="cartpole",
        num_envs=8,
        rollout_length=16,
        num_epochs=1,
        lr=[[0, 1e-3], [256, 0.0]],
        observation_filter="MeanStdFilter",
        total_env_steps=3 * 128,
    )
    return jitted_train(config)(jax.random.key(0), config.hypers(lr=[[0, rate], [256, 0.0]]))


jitted_train = functools.cache(lambda config: jax.jit(make_train(config)))


@pytest.mark.long
def test_a_learning_rate_schedule_is_read_at_lifetime_steps():
    _, metrics = scheduled(1e-3)
    rates = metrics.learners[0]["default_optimizer_learning_rate"][:, 0]
    np.testing.assert_allclose(rates, [1e-3, 0.5e-3, 0.0], atol=1e-9)


@pytest.mark.long
def test_the_learner_reads_observations_by_the_filter_that_they_were_acted_on_with():
    """At a learning rate of 0 the batch's policy is the acting one, whatever the filter saw."""
    runner, metrics = scheduled(0.0)
    np.testing.assert_allclose(metrics.learners[0]["mean_kl_loss"], 0.0, atol=1e-6)
    moments = runner.learners[0].filter
    assert moments.count.tolist() == [3 * 128]
    assert (moments.variance > 0).all() and not np.allclose(moments.variance, 1.0, atol=0.1)


@pytest.mark.long
def test_a_gymnax_environment_trains():
    sizes = {"num_envs": 4, "rollout_length": 60, "fcnet_hiddens": (8,), "total_env_steps": 240}
    config = ReinforceConfig(env="gymnax:Catch-bsuite", **sizes)  # compiles in half PPO's time
    runner, metrics = jax.jit(make_train(config))(jax.random.key(0))
    assert int(metrics.episodes.iteration.count.sum()) >= 4 * 60 // 10
    assert jax.tree.all(jax.tree.map(lambda leaf: bool(jnp.isfinite(leaf).all()), params(runner)))
