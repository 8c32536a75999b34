"""Features of rollouts: their order, how their slices lie, and that plain PPO pays for none."""

import sys
from pathlib import Path

import jax
import pytest

import jaxrl
from jaxrl.algorithms.features import ORDER
from jaxrl.rollout.env_step import env_axes
from tests.probes import Joining
from tests.run.storage.recorded_runs import Counting

# That tracing a training by plain PPO enters; they may only fall.
MOST_FILES, MOST_LINES = 25, 5_345
SIZES = {"num_envs": 8, "rollout_length": 16, "minibatch_size": 32, "fcnet_hiddens": (4,)}
NAMES = ["callbacks", "opponents", "present", "returns", "unfinished"]


@pytest.fixture(scope="module")
def with_all():
    """An algorithm with every feature, and the shapes of its state."""
    algorithm = jaxrl.PPOConfig(
        env=Joining(),
        policies={"first": ("late",), "second": ("early",)},
        policies_to_train=("first",),
        opponents=jaxrl.OpponentPool(size=2, every=1),
        critic_observation="all-agents",
        normalize_returns=True,
        callbacks=(Counting,),
        **SIZES,
    ).build()
    return algorithm, jax.eval_shape(algorithm.init, jax.random.key(0))


def test_features_have_one_order(with_all):
    """It is a part of the bits: each begins after those before it."""
    algorithm, _ = with_all
    assert [kind.name for kind in ORDER] == NAMES
    assert [feature.name for feature in algorithm.rollout_spec.features] == NAMES


def test_the_environments_of_a_slice_are_where_its_feature_says(with_all):
    algorithm, runner = with_all
    axes = env_axes(algorithm.rollout_spec)
    assert sorted(runner.envs.features) == NAMES
    sizes = jax.tree.map(
        lambda axis, part: {leaf.shape[axis] for leaf in jax.tree.leaves(part)}, axes, runner.envs
    )
    assert all(found == {8} for found in sizes.features.values())
    assert (sizes.obs, sizes.episodes) == ({8}, {8})


def test_a_rollout_keeps_what_features_show_and_goes_on_with_their_slices(with_all):
    algorithm, runner = with_all
    after, rollout = jax.eval_shape(algorithm.collect, runner)
    assert jax.tree.map(lambda leaf: leaf.shape, after.envs) == jax.tree.map(
        lambda leaf: leaf.shape, runner.envs
    )
    assert rollout.shown["opponents"].shape == (16, 8)


def test_evaluation_goes_without_what_only_learning_needs(with_all):
    algorithm, _ = with_all
    names = [feature.name for feature in algorithm.rollout_spec.apart.features]
    assert names == ["callbacks", "opponents", "present"]


@pytest.mark.long
def test_plain_ppo_has_no_features_and_tracing_it_enters_few_files():
    config = jaxrl.PPOConfig(env="cartpole", total_env_steps=256, num_epochs=2, **SIZES)
    algorithm = config.build()
    assert algorithm.rollout_spec.features == ()
    train, hypers = jaxrl.make_train(config), config.hypers()
    entered = files_entered(lambda: jax.eval_shape(train, jax.random.key(0), hypers))
    assert len(entered) <= MOST_FILES
    assert sum(len(file.read_text().splitlines()) for file in entered) <= MOST_LINES


def files_entered(call):
    """The files of jaxrl with a function that the call enters."""
    root, found = Path(jaxrl.__file__).parent, set()
    environments = root.parent / "envs"

    def enter(frame, event, _):
        if event == "call":
            found.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(enter)
    call()
    sys.setprofile(before)
    files = map(Path, found)
    return {file for file in files if any(map(file.is_relative_to, (root, environments)))}
