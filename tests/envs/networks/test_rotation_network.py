"""The network of quarter turns: its symmetry, where a view leads, its refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import PPOConfig
from jaxrl.core.spaces import Box, Discrete
from jaxrl.envs.networks.rotation_network import RotationNetwork, View
from jaxrl.envs.pursuit_rules import move, observe
from tests.messages import refused_by

VIEW, MOVES = Box(0, 30, (7, 7, 3)), Discrete(5)
LEFT, RIGHT, DOWN, UP, STAY = range(5)


def network_and_weights(seed):
    """All weights are drawn, biases too."""
    model = RotationNetwork(VIEW, MOVES)
    params = jax.eval_shape(model.init, jax.random.key(seed), jnp.zeros((1, *VIEW.shape)))
    leaves, structure = jax.tree.flatten(params)
    shapes = [leaf.shape for leaf in leaves]

    @jax.jit
    def drawn(key):
        keys = jax.random.split(key, len(leaves))
        return [0.3 * jax.random.normal(*pair) for pair in zip(keys, shapes, strict=True)]

    return model, jax.tree.unflatten(structure, drawn(jax.random.key(seed)))


def views(seed, number=6):
    return jax.random.randint(jax.random.key(seed), (number, *VIEW.shape), 0, 3).astype(jnp.float32)


@pytest.mark.long
def test_a_view_turned_to_the_left_turns_the_moves_and_keeps_the_value():
    model, params = network_and_weights(0)
    obs = views(1)
    logits, value = model.apply(params, obs)
    turned, turned_value = model.apply(params, jnp.rot90(obs, axes=(1, 2)))
    after = np.array([UP, DOWN, LEFT, RIGHT, STAY])  # what was up is now on the left, and so on
    np.testing.assert_allclose(turned, logits[:, after], atol=1e-4)
    np.testing.assert_allclose(turned_value, value, atol=1e-4)
    assert np.ptp(logits, axis=1).min() > 0.1


@pytest.mark.long
def test_a_mirrored_view_is_another():
    model, params = network_and_weights(0)
    obs = views(1)
    apply = jax.jit(model.apply)
    logits, _ = apply(params, obs)
    mirrored, _ = apply(params, obs[:, :, ::-1])
    assert abs(mirrored[:, UP] - logits[:, UP]).max() > 0.1


def test_a_unit_that_sees_an_evader_above_sees_it_to_each_side_in_turn():
    layer, above = View(1), np.zeros((7, 7, 3), np.float32)
    above[2, 3, 2] = 1.0
    params = {"params": {"kernel": above.reshape(-1, 1), "bias": jnp.zeros(1)}}
    cells = {UP: (2, 3), LEFT: (3, 2), DOWN: (4, 3), RIGHT: (3, 4)}
    obs = np.zeros((4, 7, 7, 3), np.float32)
    for row, cell in zip(obs, cells.values(), strict=True):
        row[(*cell, 2)] = 1.0
    np.testing.assert_array_equal(layer.apply(params, obs), np.eye(4))


@pytest.mark.long
def test_pursuits_moves_are_quarter_turns_of_each_other_in_what_it_shows():
    env, _ = jaxrl.make("pursuit", n_pursuers=1, n_evaders=1)
    here, alive = jnp.array([[2], [2]]), jnp.array([True])
    there = lambda action: move(here, jnp.array([action]), env)
    shown = lambda action: observe(here, there(action), alive, env)[0, ..., 2]
    for before, after in ((UP, LEFT), (LEFT, DOWN), (DOWN, RIGHT), (RIGHT, UP)):
        np.testing.assert_array_equal(jnp.rot90(shown(before)), shown(after))


@pytest.mark.long
def test_an_even_view_turns_about_the_pursuers_own_cell():
    model = RotationNetwork(Box(0, 30, (6, 6, 3)), MOVES)
    obs = views(1)[:, :6, :6]
    params = model.init(jax.random.key(0), obs)
    turned = obs.at[:, :5, :5].set(jnp.rot90(obs[:, :5, :5], axes=(1, 2)))
    (logits, _), (turned_logits, _) = model.apply(params, obs), model.apply(params, turned)
    np.testing.assert_allclose(turned_logits[:, LEFT], logits[:, UP], atol=1e-5)


test_what_it_cannot_read_is_refused_in_one_line = refused_by(
    lambda spaces: RotationNetwork(*spaces),
    [
        ((Box(0, 1, (7, 6, 3)), MOVES), "a Box of n x n x channels and Discrete(5), not"),
        ((Box(0, 1, (147,)), MOVES), "(147,)"),
        ((VIEW, Discrete(4)), "Discrete(n=4)"),
        ((Discrete(3), MOVES), "Discrete(n=3)"),
    ],
    literal=True,
)


@pytest.mark.long
def test_a_run_that_names_it_is_loaded_without_trust(tmp_path):
    small = {"num_envs": 2, "rollout_length": 4, "minibatch_size": 8, "num_epochs": 1}
    size = {"n_pursuers": 2, "n_evaders": 2, "obs_range": 4}
    config = PPOConfig.tuned("pursuit", size, **small, total_env_steps=8)
    assert config.build().policy_specs[0].model.name == "RotationNetwork"
    with jaxrl.Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False) as trainer:
        trainer.fit()
    policy = jaxrl.load_policy(tmp_path / "run", "pursuer")
    assert np.shape(policy.act(np.zeros((4, 4, 3), np.float32))) == ()
