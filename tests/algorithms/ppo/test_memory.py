"""Training with memory.

What is learned from is what was acted on, and a cue is kept until it is asked for.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, load_policy
from jaxrl.algorithms.ppo.batch import batch_layout, make_batch, make_minibatches
from jaxrl.core.spaces import Box
from tests.probes import Crowd, Joining, Leavers, Recall

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
    """Yields (spec, params, trajectory) of a second rollout, which begins within episodes."""
    algorithm = config.build()

    @jax.jit
    def second_rollout(key):
        def collect(runner, k):
            return algorithm.collect(runner.replace(num_updates=k))

        runner, rollouts = jax.lax.scan(collect, algorithm.init(key), jnp.arange(2))
        return runner, jax.tree.map(lambda leaf: leaf[1], rollouts.trajectories)

    runner, trajectories = second_rollout(jax.random.key(0))
    trajectories = jax.tree.map(np.asarray, trajectories)
    for policy in algorithm.grouping.policies:
        group, place = algorithm.grouping.locate(policy)
        alone = jax.tree.map(lambda leaf, place=place: leaf[:, place], trajectories[group])
        yield algorithm.policy_specs[group], algorithm.policy_weights(runner, policy).params, alone


# Pairwise: every kind of memory with and without what it is told, every way of sharing policies,
# and attention and a cell in long sequences and step by step.
@pytest.mark.parametrize(
    ("memory", "agents", "told", "length"),
    [
        ("gru", "one", TOLD, 6),
        ("gru", "shared", {}, 6),
        ("lstm", "one", {}, 1),
        ("lstm", "per-agent", TOLD, 6),
        ("attention", "one", {}, 1),
        ("attention", "shared", TOLD, 6),
    ],
    ids=lambda value: "told" * (value is TOLD) if isinstance(value, dict) else str(value),
)
def test_sequences_are_judged_as_they_were_acted_on(memory, agents, told, length):
    """17 steps in parts of 6 or of 1: of an agent, of three of one policy, or of three policies.

    Resets within sequences, carries across rollouts, rows of weight 0; each agent has a memory of
    its own.
    """
    env = {"env": Recall()} if agents == "one" else {"env": Crowd(3), "policies": agents}
    config = PPOConfig(**env, max_seq_len=length, **SMALL, **MEMORIES[memory], **told)
    rollouts = list(rollouts_of(config))
    assert len(rollouts) == (3 if agents == "per-agent" else 1)
    width = 3 if agents == "shared" else 1
    number = 3 if length == 6 else 17
    for policy_spec, params, path in rollouts:
        assert batch_layout(policy_spec, path.value.shape) == (number, length, 8, width, True)
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
    policy_spec = algorithm.policy_specs[group]
    path = jax.tree.map(lambda leaf: np.asarray(leaf)[:, place], rollout.trajectories[group])
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
    return jax.tree.map(np.asarray, judge(spec, params, path))


@functools.partial(jax.jit, static_argnums=0)
def judge(spec, params, path):
    policy_spec, layout = spec.policy_spec, batch_layout(spec.policy_spec, path.value.shape)
    estimates = path.value, path.value  # which are not judged
    batch = make_batch(spec, (), path, estimates)
    minibatches = make_minibatches(spec, layout, batch, jax.random.key(0))
    sequences = minibatches.gather(jnp.arange(layout.num_pieces))
    inputs = sequences.obs, (), sequences.carry, sequences.is_first, sequences.waited
    distribution, value = policy_spec.evaluate_actions(params, *inputs)
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
    config = PPOConfig(env=Recall(), max_seq_len=6, **SMALL, **MEMORIES["gru"])
    layout = batch_layout(config.build().policy_specs[0], (17, 8, 1))
    rows = np.asarray(layout.rows(jnp.arange(layout.num_pieces)))
    np.testing.assert_array_equal(
        np.sort(rows.reshape(-1)), np.arange(18 * 8)
    )  # one step more than there are
    np.testing.assert_array_equal(np.diff(rows // 8, axis=0), 1)  # step after step ...
    np.testing.assert_array_equal(np.diff(rows % 8, axis=0), 0)  # ... of one environment


class LeaversOfABox(Leavers):
    """`wide` acts by a number instead of one of three actions."""

    def action_space(self, agent, params=None):
        return Box(-1.0, 1.0, (1,)) if agent == "wide" else super().action_space(agent, params)

    def step_env(self, key, state, action, params):
        wide = jnp.where(action["wide"][0] > 0, 2, 0)
        return super().step_env(key, state, {**action, "wide": wide}, params)


def test_rows_that_fill_up_and_agents_that_left_break_no_distribution_and_no_carry():
    """A Beta of zeros, and a carry that garbage made NaN, are in the batch with weight 0.

    10 steps are filled up to three parts of 4.
    """
    config = PPOConfig(
        env=LeaversOfABox(nan=True),
        max_seq_len=4,
        per_policy={"wide": {"action_distribution": "beta"}},
        **{**SMALL, "rollout_length": 10},
        **MEMORIES["gru"],
    )
    algorithm = config.build()
    assert [spec.sequences(10) for spec in algorithm.policy_specs] == [(3, 4)] * 2
    update = jax.jit(algorithm.update)
    runner, _ = update(jax.jit(algorithm.init)(jax.random.key(0)))
    runner, metrics = update(runner)
    assert [len(group.policies) for group in algorithm.grouping.groups] == [2, 1]
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


def recalling(memory):
    """A configuration that learns to recall a cue, where `memory` can."""
    return PPOConfig(
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


def test_a_run_with_memory_goes_on_bit_for_bit_and_over_two_devices(tmp_path):
    config = recalling("gru")  # whose program the test below compiles as well
    whole = Trainer(config, run_dir=None, quiet=True)
    whole.fit({"training_iteration": 4})
    half = Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False)
    half.fit({"training_iteration": 2})
    half.stop()
    again = Trainer.from_checkpoint(tmp_path / "run", config=config, quiet=True)
    again.fit({"training_iteration": 4})
    again.stop()
    split = Trainer(config, run_dir=None, quiet=True, devices=2)
    split.fit({"training_iteration": 4})
    for expected, same, near in zip(
        *(jax.tree.leaves(t.runner.learners) for t in (whole, again, split)), strict=True
    ):
        np.testing.assert_array_equal(expected, same)
        np.testing.assert_allclose(expected, near, rtol=2e-4, atol=2e-4)
    assert load_policy(tmp_path / "run", config=config).remembers


def test_a_run_with_actions_left_open_goes_on_bit_for_bit_and_over_two_devices(tmp_path):
    """The first rollout, of 4 steps, ends in the pause of `late`.

    Its last action is learned from in the second.
    """
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
    trainer = Trainer(recalling(memory), run_dir=None, quiet=True)
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
