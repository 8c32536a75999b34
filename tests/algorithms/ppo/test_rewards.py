"""Rewards that PPO learns from: a model's intrinsic ones, their scale, and what is reported."""

import functools
import importlib.util
import json
import math
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer
from jaxrl.algorithms.on_policy import Iteration
from jaxrl.algorithms.ppo.hypers import PPOSpec
from jaxrl.algorithms.ppo.rewards import prepare_rewards
from jaxrl.algorithms.ppo.update import PPOState
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.ops.distributions import Categorical
from jaxrl.ops.running_stats import init_running_stats
from jaxrl.rollout.steps import Trajectory
from jaxrl.run.storage import checkpoint
from tests.messages import refused_by
from tests.probes import Curious, Turns, Watch
from tests.programs import SMALL_CARTPOLE, SMALL_CURIOUS, first_rollout, updated

EXAMPLE = Path(__file__).parents[3] / "examples" / "random_network_distillation.py"
NOVELTY = SimpleNamespace(intrinsic_reward=lambda params, rows: params * rows.next_obs[..., 0])
QUIET = {"quiet": True, "loggers": (), "pictures": False}


def spec_of(**changes):
    policy_spec = PolicySpec(NOVELTY, Box(0.0, 9.0, (1,)), Discrete(2))
    values = {
        "policy_spec": policy_spec, "trained": True, "minibatch_size": 2, "num_epochs": 1,
        "use_kl_loss": False, "normalize_advantages": None, "value_clip": None, "optimizer": None,
        "blocks": 1,
    }  # fmt: skip
    return PPOSpec(**{**values, **changes})


def rows_of(reward, next_obs, done, active=None):
    """A trajectory [T, E, 1] of columns [T, E]."""
    column = lambda rows, dtype: jnp.asarray(rows, dtype)[..., None]
    reward, next_obs = column(reward, jnp.float32), column(next_obs, jnp.float32)
    done, zeros = column(done, bool), jnp.zeros_like(reward)
    return Trajectory(
        obs=zeros[..., None], action=zeros.astype(jnp.int32),
        distribution=Categorical(jnp.zeros((*zeros.shape, 2))), value=zeros, next_value=zeros,
        reward=reward, terminated=done, done=done,
        active=jnp.ones_like(done) if active is None else column(active, bool),
        next_obs=next_obs[..., None],
    )  # fmt: skip


def learner_of(spec):
    stats = init_running_stats(())
    return PPOState(
        params=jnp.float32(2),
        opt_state=(),
        kl_coeff=jnp.float32(0),
        return_filter=stats if spec.normalize_returns else None,
        intrinsic_filter=stats if spec.normalize_intrinsic_rewards else None,
    )


def iteration_of(returns=None, **numbers):
    numbers = {"gamma": 0.5, **numbers}
    hypers = PPOConfig(env="cartpole").hypers(**numbers)["default_policy"]
    return Iteration(hypers, jnp.float32(100), jax.random.key(0), returns)


def test_the_intrinsic_reward_is_added_with_its_weight_and_its_mean_reported():
    spec = spec_of()
    rows = rows_of([[1.0], [1.0], [1.0]], [[1.0], [0.0], [2.0]], [[False], [True], [False]])
    schedule = [[0, 1.0], [200, 0.0]]  # 0.5 after 100 steps
    iteration = iteration_of(intrinsic_reward_coeff=schedule)
    learner, prepared, returns, metrics = prepare_rewards(spec, learner_of(spec), rows, iteration)
    # Twice the next observation: 2, 0, 4; half of it.
    np.testing.assert_allclose(prepared.reward[:, 0, 0], [2.0, 1.0, 3.0])
    np.testing.assert_allclose(metrics["intrinsic_reward_mean"], 1.0)
    assert returns is None and learner.intrinsic_filter is None


def test_intrinsic_rewards_are_divided_by_the_deviation_of_their_return_alone():
    spec = spec_of(normalize_intrinsic_rewards=True)
    rows = rows_of([[-1.0], [-1.0], [-1.0]], [[1.0], [0.0], [2.0]], [[False], [True], [False]])
    before = {"total": None, "intrinsic": jnp.float32([[4.0]])}
    iteration = iteration_of(before)
    learner, prepared, after, metrics = prepare_rewards(spec, learner_of(spec), rows, iteration)
    # Returns of 2, 0, 4 with gamma 0.5: 2 + 4/2 = 4, 0 + 4/2 = 2, then a new episode, 4.
    std = np.std([4.0, 2.0, 4.0])
    np.testing.assert_allclose(
        prepared.reward[:, 0, 0], [2 / std - 1, -1.0, 4 / std - 1], rtol=1e-6
    )
    np.testing.assert_allclose(learner.intrinsic_filter.variance, std**2, rtol=1e-6)
    np.testing.assert_allclose(after["intrinsic"], [[4.0]])
    assert after["total"] is None and learner.return_filter is None
    np.testing.assert_allclose(metrics["intrinsic_reward_mean"], 2 / std, rtol=1e-6)
    # The second time the deviation is over all six returns: 4/2 + 2 = 4, 2, 4 again.
    again, *_ = prepare_rewards(spec, learner, rows, iteration_of(after))
    assert again.intrinsic_filter.count == 6


def test_with_normalize_returns_the_sum_of_both_is_divided_again():
    spec = spec_of(normalize_intrinsic_rewards=True, normalize_returns=True)
    rows = rows_of([[1.0], [3.0]], [[1.0], [2.0]], [[True], [True]])
    before = {"total": jnp.zeros((1, 1)), "intrinsic": jnp.zeros((1, 1))}
    learner, prepared, after, _ = prepare_rewards(
        spec, learner_of(spec), rows, iteration_of(before)
    )
    # Intrinsic 2 and 4, each a return by itself, of deviation 1: the sums are 3 and 7, of 2.
    np.testing.assert_allclose(prepared.reward[:, 0, 0], [1.5, 3.5], rtol=1e-6)
    np.testing.assert_allclose(learner.intrinsic_filter.mean, 3.0)
    np.testing.assert_allclose(learner.return_filter.mean, 5.0)
    np.testing.assert_allclose([after["total"], after["intrinsic"]], 0.0)


def test_rows_in_which_the_agent_did_not_act_count_for_nothing():
    spec = spec_of(normalize_intrinsic_rewards=True)
    before = {"total": None, "intrinsic": jnp.zeros((1, 1))}
    rows = rows_of(
        [[0.0], [0.0], [0.0]],
        [[1.0], [2.0], [jnp.nan]],
        [[True], [True], [True]],
        [[True], [True], [False]],
    )
    learner, prepared, _, metrics = prepare_rewards(
        spec, learner_of(spec), rows, iteration_of(before)
    )
    np.testing.assert_allclose(prepared.reward[:, 0, 0], [2.0, 4.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(metrics["intrinsic_reward_mean"], 3.0, rtol=1e-6)
    assert learner.intrinsic_filter.count == 2


@pytest.mark.long
def test_environments_split_over_devices_have_one_deviation_and_one_mean():
    whole = spec_of(normalize_intrinsic_rewards=True)
    split = spec_of(normalize_intrinsic_rewards=True, axis_name="devices")
    keys = jax.random.split(jax.random.key(0), 2)
    rows = rows_of(jnp.zeros((5, 4)), jax.random.uniform(keys[0], (5, 4)), jnp.zeros((5, 4), bool))
    before = {"total": None, "intrinsic": jax.random.uniform(keys[1], (4, 1))}
    by = lambda spec: (
        lambda rows, before: prepare_rewards(spec, learner_of(spec), rows, iteration_of(before))
    )
    learner, prepared, after, metrics = jax.jit(by(whole))(rows, before)
    parted = lambda axis, tree: jax.tree.map(
        lambda leaf: jnp.moveaxis(
            leaf.reshape(*leaf.shape[:axis], 2, 2, *leaf.shape[axis + 1 :]), axis, 0
        ),
        tree,
    )
    on_each = jax.jit(jax.vmap(by(split), axis_name="devices"))
    learners, parts, afters, of_each = on_each(parted(1, rows), parted(0, before))
    for leaf, leaves in zip(
        jax.tree.leaves((learner.intrinsic_filter, metrics)),
        jax.tree.leaves((learners.intrinsic_filter, of_each)),
        strict=True,
    ):
        np.testing.assert_allclose(leaves, [leaf, leaf], rtol=1e-5)
    np.testing.assert_allclose(parts.reward, parted(1, prepared.reward), rtol=1e-5)
    np.testing.assert_allclose(afters["intrinsic"], parted(0, after["intrinsic"]), rtol=1e-5)


@pytest.mark.long
def test_a_model_with_an_intrinsic_reward_sees_the_state_that_a_step_reached_before_the_reset():
    small = {"num_envs": 2, "rollout_length": 6, "minibatch_size": 12, "num_epochs": 1}
    (rows,) = first_rollout(PPOConfig(env=Watch(), model=Curious(), **small))[2].trajectories
    time, reached = np.asarray(rows.obs[..., 0]), np.asarray(rows.next_obs[..., 0])
    np.testing.assert_array_equal(reached, time + 1)
    done = np.asarray(rows.done)
    assert done.any() and (time[1:][done[:-1]] == 0).all()  # the next row is another episode's
    (plain,) = first_rollout(PPOConfig(env=Watch(), fcnet_hiddens=(4,), **small))[2].trajectories
    assert plain.next_obs is None


class Table:
    """For `Turns`: a row of two logits and a value, paid 1 a step."""

    def init(self, key, obs):
        return jnp.zeros((2, 3))

    def apply(self, params, obs):
        row = jax.nn.one_hot(obs, 2) @ params
        return row[:, :2], row[:, 2]

    def intrinsic_reward(self, params, trajectory):
        return jnp.ones(trajectory.next_obs.shape)


@pytest.mark.long
def test_agents_that_wait_are_paid_for_their_own_actions_alone():
    sizes = {"num_envs": 2, "rollout_length": 6, "minibatch_size": 12, "num_epochs": 1}
    paid = {"policies": "shared", "model": Table(), "normalize_intrinsic_rewards": True}
    runner, metrics = updated(PPOConfig(env=Turns(), **sizes, **paid))
    assert all(jnp.all(jnp.isfinite(value)) for value in jax.tree.leaves(metrics.learners))
    # Of the two agents one acts in each of 6 steps, in 2 environments, twice.
    assert runner.learners[0].intrinsic_filter.count == 2 * 2 * 6


@pytest.mark.parametrize(
    ("clip_rewards", "expected"),
    [(True, [1.0, -1.0, 0.0]), (0.5, [0.5, -0.25, 0.0]), (False, [3.0, -0.25, 0.0])],
)
def test_rewards_are_learned_from_by_their_sign_or_within_a_bound(clip_rewards, expected):
    config = PPOConfig(env="cartpole", clip_rewards=clip_rewards)
    spec = spec_of(clip_rewards=config.clip_rewards)
    rows = rows_of([[3.0], [-0.25], [0.0]], [[0.0]] * 3, [[False]] * 3)
    iteration = iteration_of(intrinsic_reward_coeff=0.0)
    _, prepared, *_ = prepare_rewards(spec, learner_of(spec), rows, iteration)
    np.testing.assert_array_equal(prepared.reward[:, 0, 0], expected)


def test_intrinsic_rewards_are_added_to_clipped_ones_and_both_are_scaled_together():
    spec = spec_of(clip_rewards=1.0, normalize_returns=True)
    rows = rows_of([[9.0], [-9.0]], [[1.0], [1.0]], [[True], [True]])
    iteration = iteration_of(jnp.zeros((1, 1)), intrinsic_reward_coeff=0.5)
    learner, prepared, *_ = prepare_rewards(spec, learner_of(spec), rows, iteration)
    # 1 + 1 and -1 + 1, with a deviation of 1.
    np.testing.assert_allclose(learner.return_filter.mean, 1.0)
    np.testing.assert_allclose(prepared.reward[:, 0, 0], [2.0, 0.0], atol=1e-6)


def test_true_and_one_are_two_settings_which_a_configuration_keeps(tmp_path):
    signs, bound = (SMALL_CARTPOLE.replace(clip_rewards=clip) for clip in (True, 1))
    assert signs != bound and signs.clip_rewards == "sign"
    for config in (signs, bound):
        saved = json.loads(json.dumps(config.to_dict()))
        assert PPOConfig.from_dict(saved) == config
    assert SMALL_CARTPOLE.replace(clip_rewards=False) == SMALL_CARTPOLE


test_a_bound_of_rewards_is_above_zero = refused_by(
    lambda clip_rewards: SMALL_CARTPOLE.replace(clip_rewards=clip_rewards),
    [
        (0, "clip_rewards=0 must be sign, a number > 0, or None"),
        (-1.0, r"clip_rewards=-1\.0 must be"),
        (math.nan, "clip_rewards=nan must be"),
        ("signs", "clip_rewards='signs' must be"),
    ],
)


@pytest.mark.long
def test_episodes_are_reported_with_the_rewards_of_the_environment():
    plain = SMALL_CARTPOLE
    (_, as_played), (_, clipped) = (
        updated(config, 1) for config in (plain, plain.replace(clip_rewards=0.25))
    )
    jax.tree.map(np.testing.assert_array_equal, as_played.episodes, clipped.episodes)
    # CartPole pays 1 a step, so values learn towards a quarter of it.
    losses = [metrics.learners[0]["vf_loss"] for metrics in (as_played, clipped)]
    assert losses[1] < losses[0]


def trained(config, folder, stops):
    for stop in stops:
        resumed = folder.exists()
        make = functools.partial(Trainer.from_checkpoint, folder, trust=True)
        if not resumed:
            make = functools.partial(Trainer, config, run_dir=folder)
        with make(**QUIET) as trainer:
            result = trainer.fit({"training_iteration": stop})
            trainer.save()
    return result, checkpoint.read(checkpoint.find(folder)).arrays


@pytest.mark.long
def test_a_resumed_run_has_the_deviation_and_all_else_to_the_bit(tmp_path):
    (result, whole), (_, cut) = (
        trained(SMALL_CURIOUS, tmp_path / name, stops)
        for name, stops in (("whole", (4,)), ("cut", (2, 4)))
    )
    assert whole.keys() == cut.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, cut[name], err_msg=name)
    assert whole["runner.learners.0.intrinsic_filter.count"] == 4 * 64
    assert np.abs(whole["runner.envs.features.returns.0.intrinsic"]).max() > 0
    # CartPole pays 1 a step: the return is the length, whatever the model pays itself.
    played = result["env_runners"]
    assert played["episode_return_mean"] == played["episode_len_mean"]
    assert result["learners"]["default_policy"]["intrinsic_reward_mean"] > 0


test_a_setting_that_would_do_nothing_is_refused_before_compiling = refused_by(
    lambda settings: SMALL_CARTPOLE.replace(**settings).build(),
    [
        (
            {"normalize_intrinsic_rewards": True},
            "normalize_intrinsic_rewards=True: the model of policy 'default_policy' gives no "
            "intrinsic reward",
        ),
        ({"intrinsic_reward_coeff": 0.5}, r"intrinsic_reward_coeff=0\.5: the model of"),
        ({"intrinsic_reward_coeff": "high"}, "intrinsic_reward_coeff='high'"),
    ],
)


def test_an_intrinsic_reward_of_another_shape_is_refused_before_compiling():
    class Summed(Curious):
        def intrinsic_reward(self, params, trajectory):
            return super().intrinsic_reward(params, trajectory).sum()

    algorithm = SMALL_CARTPOLE.replace(model=Summed()).build()
    with pytest.raises(UsageError, match=r"must have the shape \[16, 4, 1\] of .*, not \[\]"):
        jax.eval_shape(lambda: algorithm.update(algorithm.init(jax.random.key(0))))


def example():
    found = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.long
def test_random_network_distillation_learns_its_predictor_and_never_its_target():
    config = SMALL_CARTPOLE.replace(
        model=example().RND, normalize_intrinsic_rewards=True, lr=1e-2, num_epochs=8
    )
    algorithm = config.build()
    runner = algorithm.init(jax.random.key(0))
    before = runner.learners[0].params["params"]
    update, errors = jax.jit(algorithm.update), []
    for _ in range(8):
        runner, metrics = update(runner)
        errors.append(float(metrics.learners[0]["model_loss"][0]))
    after = runner.learners[0].params["params"]
    for name in before:
        same = jax.tree.map(lambda x, y: bool((x == y).all()), before[name], after[name])
        assert all(jax.tree.leaves(same)) == (name == "target"), name
    assert errors[-1] < 0.5 * errors[0]
