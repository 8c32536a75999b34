"""Training with memory.

What is learned from is what was acted on, and a cue is kept until it is asked for.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, load_policy
from jaxrl.algorithms.ppo.batch import batch_layout, make_batch, make_minibatches
from tests.probes import SMALL_ARENA, Crowd, Joining, Leavers, Recall

MEMORIES = {
    "gru": {"use_gru": True, "lstm_cell_size": 8},
    "lstm": {"use_lstm": True, "lstm_cell_size": 8},
    "attention": {
        "use_attention": True,
        "attention_dim": 8,
        "attention_head_dim": 4,
        "attention_memory_inference": 6,
    },
}
TOLD = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
SMALL = {
    "num_envs": 8,
    "rollout_length": 17,
    "minibatch_size": 24,
    "num_epochs": 2,
    "fcnet_hiddens": (8,),
}


def rollouts_of(config):
    """Yields (player, params, trajectory) of a second rollout, whose first episodes began in the one before."""
    algorithm = config.build()
    collect = jax.jit(algorithm.collect)
    runner, _ = collect(jax.jit(algorithm.init)(jax.random.key(0)))
    runner = runner.replace(num_updates=jnp.int32(1))
    _, rollout = collect(runner)
    for policy in algorithm.grouping.policies:
        group, place = algorithm.grouping.locate(policy)
        alone = jax.tree.map(lambda leaf, place=place: leaf[:, place], rollout.trajectories[group])
        yield algorithm.policy_specs[group], algorithm.policy_weights(runner, policy).params, alone


@pytest.mark.parametrize(
    ("told", "length"), [({}, 6), (TOLD, 6), ({}, 1)], ids=["", "told more", "one step each"]
)
@pytest.mark.parametrize("memory", MEMORIES)
def test_sequences_are_judged_as_they_were_acted_on(memory, told, length):
    """17 steps in parts of 6, episodes of 5.

    Resets within sequences, carries across rollouts, rows of weight 0.
    """
    config = PPOConfig(env=Recall(), max_seq_len=length, **SMALL, **MEMORIES[memory], **told)
    policy_spec, params, path = next(rollouts_of(config))
    number = 3 if length == 6 else 17
    assert batch_layout(policy_spec, path.value.shape) == (number, length, 8, 1, True)
    judged_as_acted_on(config, policy_spec, params, path)


@pytest.mark.parametrize(("policies", "agents"), [("shared", 3), ("per-agent", 1)])
@pytest.mark.parametrize("memory", ["gru", "attention"])
def test_sequences_of_many_agents_are_judged_as_they_were_acted_on(memory, policies, agents):
    """Three agents of one policy, each with a memory of its own, and three policies side by side."""
    config = PPOConfig(env=Crowd(3), policies=policies, max_seq_len=6, **SMALL, **MEMORIES[memory])
    rollouts = list(rollouts_of(config))
    assert len(rollouts) == 3 // agents
    for policy_spec, params, path in rollouts:
        assert batch_layout(policy_spec, path.value.shape) == (3, 6, 8, agents, True)
        judged_as_acted_on(config, policy_spec, params, path)


class Adder:
    """Remembers the sum of what it has observed in its episode, which is its value."""

    def init(self, key, obs, carry):
        return {"logits": jnp.zeros(2), "unused": jnp.zeros(1)}

    def initial_carry(self, batch_shape):
        return jnp.zeros(batch_shape)

    def apply(self, params, obs, carry):
        carry = carry + obs[:, 0]
        return jnp.broadcast_to(params["logits"], (len(obs), 2)), carry, carry


def test_the_memory_of_a_late_joiner_begins_where_it_joins_and_stays_while_it_waits():
    """It acts in steps 2, 3, 5 and 6 of 7, and observes 1 there but 100 elsewhere.

    Its values are 1, 2, 3, 4.
    """
    config = PPOConfig(
        env=Joining(), model=Adder(), **{**SMALL, "rollout_length": 14}, max_seq_len=5
    )
    algorithm = config.build()
    runner, rollout = jax.jit(algorithm.collect)(jax.jit(algorithm.init)(jax.random.key(0)))
    group, place = algorithm.grouping.locate("late")
    policy_spec, path = (
        algorithm.policy_specs[group],
        jax.tree.map(lambda leaf: leaf[:, place], rollout.trajectories[group]),
    )
    active = np.array(2 * [False, False, True, True, False, True, True])
    path_of_first = jax.tree.map(lambda leaf: leaf[:, 0, 0], path)
    np.testing.assert_array_equal(path_of_first.active, active)
    np.testing.assert_array_equal(path_of_first.value[active], [1, 2, 3, 4, 1, 2, 3, 4])
    # The clock ends the episode with the last action: V of the state it reached, of which `late`
    # observes 1, is 5.
    np.testing.assert_array_equal(path_of_first.next_value[active], [2, 3, 4, 5, 2, 3, 4, 5])
    np.testing.assert_array_equal(path_of_first.reward[active], [1, 11, 1, 1, 1, 11, 1, 1])
    values = judged(config, policy_spec, algorithm.policy_weights(runner, "late").params, path)[0]
    by_step = (
        np.asarray(values).reshape(5, 3, 8).swapaxes(0, 1).reshape(15, 8)[:14]
    )  # of 3 parts of 5 steps
    np.testing.assert_array_equal(by_step[active], np.tile([[1], [2], [3], [4]], (2, 8)))


@pytest.mark.parametrize("memory", ["gru", "attention"])
def test_sequences_with_waits_are_judged_as_they_were_acted_on(memory):
    """A second rollout of 17 steps begins in the fourth step of an episode of 7.

    No action is open there.
    """
    config = PPOConfig(env=Joining(), max_seq_len=6, **SMALL, **MEMORIES[memory], **TOLD)
    for policy_spec, params, path in rollouts_of(config):
        value, log_prob, sequences = judged(config, policy_spec, params, path)
        there = np.asarray(sequences.weight) > 0
        assert there.sum() == np.asarray(path.active).sum() > 70
        np.testing.assert_allclose(value[there], sequences.value[there], atol=1e-5)
        np.testing.assert_allclose(log_prob[there], sequences.log_prob[there], atol=1e-5)


def judged(config, policy_spec, params, path):
    """(values, log-probabilities, rows) of a trajectory's sequences, [L, B].

    As the learner judges them at first.
    """
    spec = config.build().grouping.groups[0].structure
    spec = dataclasses.replace(spec, policy_spec=policy_spec)
    layout = batch_layout(policy_spec, path.value.shape)
    estimates = path.value, path.value  # which are not judged
    batch = make_batch(spec, (), path, estimates)
    minibatches = make_minibatches(spec, layout, batch, jax.random.key(0))
    sequences = minibatches.gather(jnp.arange(layout.num_pieces))
    inputs = sequences.obs, (), sequences.carry, sequences.is_first, sequences.waited
    distribution, value = jax.jit(policy_spec.evaluate_actions)(params, *inputs)
    return value, distribution.log_prob(sequences.action), sequences


def judged_as_acted_on(config, policy_spec, params, path):
    assert np.asarray(path.done[:-1]).any()
    brought = [
        np.asarray(leaf[0]).reshape(path.value[0].size, -1) for leaf in jax.tree.leaves(path.carry)
    ]
    # Of episodes that had begun before, each environment has a carry of its own.
    assert max(len(np.unique(rows, axis=0)) for rows in brought) > 1
    value, log_prob, sequences = judged(config, policy_spec, params, path)
    there = np.asarray(sequences.weight) > 0
    assert there.sum() == path.value.size
    np.testing.assert_allclose(value[there], sequences.value[there], atol=1e-5)
    np.testing.assert_allclose(log_prob[there], sequences.log_prob[there], atol=1e-5)


def test_every_row_comes_once_an_epoch_in_whole_sequences():
    policy_spec, _, path = next(
        rollouts_of(PPOConfig(env=Recall(), max_seq_len=6, **SMALL, **MEMORIES["gru"]))
    )
    layout = batch_layout(policy_spec, path.value.shape)
    rows = np.asarray(layout.rows(jnp.arange(layout.num_pieces)))
    np.testing.assert_array_equal(
        np.sort(rows.reshape(-1)), np.arange(18 * 8)
    )  # one step more than there are
    np.testing.assert_array_equal(np.diff(rows // 8, axis=0), 1)  # step after step ...
    np.testing.assert_array_equal(np.diff(rows % 8, axis=0), 0)  # ... of one environment


def test_rows_that_fill_up_and_agents_that_left_break_no_distribution_and_no_carry():
    """A Beta of zeros, and a carry that garbage made NaN, are in the batch with weight 0."""
    beta = PPOConfig(
        env=Crowd(),
        max_seq_len=4,
        action_distribution="beta",
        **{**SMALL, "rollout_length": 9},
        **MEMORIES["gru"],
    )
    left = PPOConfig(
        env=Leavers(nan=True), max_seq_len=3, **{**SMALL, "rollout_length": 9}, **MEMORIES["gru"]
    )
    for config in (beta, left):
        algorithm = config.build()
        update = jax.jit(algorithm.update)
        runner, _ = update(jax.jit(algorithm.init)(jax.random.key(0)))
        runner, metrics = update(runner)
        for learner in metrics.learners:
            assert (np.asarray(learner["parameters_finite"]) == 1.0).all()
            assert np.isfinite(learner["total_loss"]).all()


def test_a_minibatch_has_as_many_rows_as_asked_to_the_nearest_sequence_of_each_block():
    """Of blocks there are, with 8 environments and 20 steps, 2, 2, 2 and 4."""
    for size, rows in ((40, 40), (60, 80), (64, 80), (300, 320)):
        config = PPOConfig(
            env=Recall(),
            **{**SMALL, "rollout_length": 100, "minibatch_size": size},
            **MEMORIES["gru"],
        )
        spec = config.build().grouping.groups[0].structure
        layout = batch_layout(spec.policy_spec, (100, 8, 1))
        pieces = spec.blocks * layout.pieces_per_block(size, spec.blocks, spec.blocks)
        assert pieces * layout.length == rows
        assert f"{rows // 20} sequences of 20 steps" in config.describe()


def test_a_run_with_memory_goes_on_bit_for_bit_and_over_two_devices(tmp_path):
    config = SMALL_ARENA.replace(
        use_gru=True, lstm_cell_size=8, max_seq_len=6, normalize_returns=True
    )
    whole = Trainer(config, run_dir=None, quiet=True)
    whole.fit({"training_iteration": 4})
    half = Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False)
    half.fit({"training_iteration": 2})
    half.stop()
    again = Trainer.from_checkpoint(tmp_path / "run", quiet=True)
    again.fit({"training_iteration": 4})
    again.stop()
    split = Trainer(config, run_dir=None, quiet=True, devices=2)
    split.fit({"training_iteration": 4})
    for expected, same, near in zip(
        *(jax.tree.leaves(t.runner.learners) for t in (whole, again, split)), strict=True
    ):
        np.testing.assert_array_equal(expected, same)
        np.testing.assert_allclose(expected, near, rtol=2e-4, atol=2e-4)
    assert load_policy(tmp_path / "run", "pol1").remembers


def test_a_run_with_actions_left_open_goes_on_bit_for_bit_and_over_two_devices(tmp_path):
    """The first rollout, of 4 steps, ends in the pause of `late`, whose last action is learned from in the second."""
    settings = {
        **SMALL,
        "rollout_length": 4,
        "minibatch_size": 16,
        **MEMORIES["gru"],
        "normalize_returns": True,
    }
    config = PPOConfig(env=Joining(), max_seq_len=3, total_env_steps=96, **settings)
    whole = Trainer(config, run_dir=None, quiet=True)
    whole.fit()
    half = Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False)
    half.fit({"training_iteration": 1})
    (unfinished,) = half.runner.envs.unfinished  # of both policies, stacked
    np.testing.assert_array_equal(unfinished.there[:, :, 0], [[False] * 8, [True] * 8])
    half.stop()
    again = Trainer.from_checkpoint(tmp_path / "run", config=config, quiet=True)
    again.fit({"training_iteration": 3})
    again.stop()
    split = Trainer(config, run_dir=None, quiet=True, devices=2)
    split.fit()
    for expected, same, near in zip(
        *(jax.tree.leaves(t.runner.learners) for t in (whole, again, split)), strict=True
    ):
        np.testing.assert_array_equal(expected, same)
        np.testing.assert_allclose(expected, near, rtol=2e-4, atol=2e-4)
    assert whole.evaluate()["env_runners"]["episode_return_mean"] == 7 + 4 + 10


@pytest.mark.parametrize("memory", [None, *MEMORIES])
def test_a_cue_is_recalled_by_memory_alone(memory):
    config = PPOConfig(
        env=Recall(),
        num_envs=32,
        rollout_length=20,
        minibatch_size=160,
        num_epochs=4,
        fcnet_hiddens=(16,),
        lr=1e-2,
        lambda_=0.95,
        total_env_steps=640 * 30,
        **(MEMORIES[memory] if memory else {}),
    )
    trainer = Trainer(config, run_dir=None, quiet=True)
    returned = trainer.fit()["env_runners"]["episode_return_mean"]
    if memory is None:
        assert 0.3 < returned < 0.7
        return
    assert returned > 0.9
    policy = trainer.get_policy("default_policy")
    for cue in (0, 1):
        policy.reset()
        actions = [int(policy.act(obs)) for obs in (cue, 2, 2, 2, 2)]
        assert actions[-1] == cue
    policy.reset()
    cues = np.array([0, 1, 1])
    for t in range(10):  # two episodes each, side by side
        actions = policy.act(cues if t % 5 == 0 else np.full(3, 2), begins=t % 5 == 0)
        if t % 5 == 4:
            np.testing.assert_array_equal(actions, cues)
            cues = 1 - cues
    assert trainer.evaluate()["env_runners"]["episode_return_mean"] == 1.0
