"""Training with memory.

What is learned from is what was acted on, and a cue is kept until it is asked for.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, load_policy
from jaxrl.algorithms.ppo.batch import batch_layout, make_batch, make_minibatches
from jaxrl.algorithms.ppo.behaviour import as_if_by_policy, as_if_played_now
from jaxrl.core.env import StackedEnvironment
from jaxrl.core.spaces import Box, Discrete
from jaxrl.models.policy_spec import PolicyWeights
from tests.probes import Crowd, Joining, Leavers, Recall, SeveralAgents, State

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
ONE_CORE = {"vf_share_layers": True}  # of policy and value, where it would be two
TOLD = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
SMALL = {
    "num_envs": 8,
    "rollout_length": 17,
    "minibatch_size": 24,
    "num_epochs": 2,
    "fcnet_hiddens": (8,),
}


@dataclass(frozen=True)
class Recallers(SeveralAgents, StackedEnvironment):
    """`Recall` for each of several agents, with a cue of its own."""

    agents: tuple[str, ...]
    observes = Discrete(3)

    def reset_stacked(self, key, params):
        cue = jax.random.bernoulli(key, shape=(len(self.agents),)).astype(jnp.int32)
        return cue, State(jnp.int32(0), cue)

    def step_stacked(self, key, state, action, params):
        last = jnp.broadcast_to(state.time == 4, action.shape)
        reward = (last & (action == state.cue)).astype(jnp.float32)
        state = state.replace(time=state.time + 1)
        return jnp.full_like(state.cue, 2), state, reward, last, {}


@functools.cache
def second_rollouts(config):
    """{policy: (learner's spec, params, trajectory)} of a second rollout, begun within episodes."""
    algorithm = config.build()

    @jax.jit
    def second_rollout(key):
        def collect(runner, k):
            return algorithm.collect(runner.replace(num_updates=k))

        runner, rollouts = jax.lax.scan(collect, algorithm.init(key), jnp.arange(2))
        return runner, jax.tree.map(lambda leaf: leaf[1], rollouts.trajectories)

    runner, trajectories = second_rollout(jax.random.key(0))
    trajectories = jax.tree.map(np.asarray, trajectories)
    found = {}
    for policy in algorithm.grouping.policies:
        group, place = algorithm.grouping.locate(policy)
        alone = jax.tree.map(lambda leaf, place=place: leaf[:, place], trajectories[group])
        spec = algorithm.grouping.groups[group].structure
        found[policy] = spec, algorithm.policy_weights(runner, policy).params, alone
    return found


# Pairwise in two programs: every kind of memory, every way of sharing policies, numbers and choices
# that the network is told, and for cells and attention alike being told or not, waits or none, one
# core or two, and long sequences or single steps.
CROWD = PPOConfig(
    env=Crowd(5),
    policies={
        "shared": ("one_0", "one_1"),
        "first": ("one_2",),
        "second": ("one_3",),
        "alone": ("one_4",),
    },
    per_policy={
        "shared": {**MEMORIES["gru"], "max_seq_len": 1},
        "first": {**MEMORIES["lstm"], **TOLD, **ONE_CORE},
        "second": {**MEMORIES["lstm"], **TOLD, **ONE_CORE},
        "alone": {**MEMORIES["attention"], **ONE_CORE, "max_seq_len": 1},
    },
    max_seq_len=6,
    **SMALL,
)
WAITING = PPOConfig(
    env=Joining(("early", "late", "later", "last")),
    policies={"early": ("early",), "alone": ("late",), "shared": ("later", "last")},
    per_policy={
        "alone": {**MEMORIES["gru"], **TOLD, **ONE_CORE},
        "shared": {**MEMORIES["attention"], **TOLD},
    },
    max_seq_len=6,
    **SMALL,
)


@pytest.mark.parametrize(
    ("policy", "number", "length", "width"),
    [("shared", 17, 1, 2), ("first", 3, 6, 1), ("second", 3, 6, 1), ("alone", 17, 1, 1)],
)
@pytest.mark.long
def test_sequences_are_judged_as_they_were_acted_on(policy, number, length, width):
    """17 steps in parts of 6 or of 1: of an agent, of two of one policy, or of two policies.

    Resets within sequences, carries across rollouts, rows of weight 0; each agent has a memory of
    its own.
    """
    spec, params, path = second_rollouts(CROWD)[policy]
    assert batch_layout(spec.policy_spec, path.value.shape) == (number, length, 8, width, True)
    assert np.asarray(path.done[:-1]).any()
    brought = [
        np.asarray(leaf[0]).reshape(path.value[0].size, -1) for leaf in jax.tree.leaves(path.carry)
    ]
    # Of episodes that had begun before, each environment has a carry of its own.
    assert max(len(np.unique(rows, axis=0)) for rows in brought) > 1
    assert judged_as_acted_on(spec, params, path) == path.value.size


@pytest.mark.parametrize(("policy", "width"), [("alone", 1), ("shared", 2)])
@pytest.mark.long
def test_sequences_with_waits_are_judged_as_they_were_acted_on(policy, width):
    """A second rollout of 17 steps begins in the fourth step of an episode of 7.

    No action is open there.
    """
    spec, params, path = second_rollouts(WAITING)[policy]
    assert batch_layout(spec.policy_spec, path.value.shape) == (3, 6, 8, width, True)
    assert judged_as_acted_on(spec, params, path) == np.asarray(path.active).sum() > 70


@pytest.mark.parametrize(
    ("config", "policy"), [(CROWD, "shared"), (CROWD, "first"), (WAITING, "shared")]
)
@pytest.mark.long
def test_a_stale_rollout_of_the_weights_that_learn_stays_as_it_is(config, policy):
    """The sequences are judged in parts of 24 rows, the last of them not full."""
    spec, params, path = second_rollouts(config)[policy]
    now = jax.jit(as_if_played_now, static_argnums=0)(spec, PolicyWeights(params, None), path)
    there = np.asarray(path.active)
    for name in ("value", "next_value"):
        np.testing.assert_allclose(getattr(now, name)[there], getattr(path, name)[there], atol=1e-5)
    np.testing.assert_allclose(as_if_by_policy(now).importance[there], 1.0, atol=1e-5)


def judged_as_acted_on(spec, params, path):
    """The number of rows, after comparing each one's value and log-probability."""
    value, log_prob, sequences = jax.tree.map(np.asarray, judge(spec, params, path))
    there = sequences.weight > 0
    np.testing.assert_allclose(value[there], sequences.value[there], atol=1e-5)
    np.testing.assert_allclose(log_prob[there], sequences.log_prob[there], atol=1e-5)
    return there.sum()


@functools.partial(jax.jit, static_argnums=0)
def judge(spec, params, path):
    """(values, log-probabilities, rows) of a trajectory's sequences, [L, B].

    As the learner judges them at first.
    """
    policy_spec, layout = spec.policy_spec, batch_layout(spec.policy_spec, path.value.shape)
    estimates = path.value, path.value  # which are not judged
    batch = make_batch(spec, None, path, estimates)
    minibatches = make_minibatches(spec, layout, batch, jax.random.key(0))
    sequences = minibatches.gather(jnp.arange(layout.num_pieces))
    inputs = sequences.obs, None, sequences.carry, sequences.is_first, sequences.waited
    distribution, value = policy_spec.evaluate_actions(params, *inputs)
    return value, distribution.log_prob(sequences.action), sequences


class Adder:
    """Remembers the sum of what it has observed in its episode, which is its value."""

    def init(self, key, obs, carry):
        return {"logits": jnp.zeros(2), "unused": jnp.zeros(1)}

    def initial_carry(self, batch_shape):
        return jnp.zeros(batch_shape)

    def apply(self, params, obs, carry):
        carry = carry + obs[:, 0]
        return jnp.broadcast_to(params["logits"], (len(obs), 2)), carry, carry


@pytest.mark.long
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
    spec = algorithm.grouping.groups[group].structure
    path = jax.tree.map(lambda leaf: np.asarray(leaf)[:, place], rollout.trajectories[group])
    active = np.array(2 * [False, False, True, True, False, True, True])
    path_of_first = jax.tree.map(lambda leaf: leaf[:, 0, 0], path)
    np.testing.assert_array_equal(path_of_first.active, active)
    np.testing.assert_array_equal(path_of_first.value[active], [1, 2, 3, 4, 1, 2, 3, 4])
    # The clock ends the episode with the last action: V of the state it reached, of which `late`
    # observes 1, is 5.
    np.testing.assert_array_equal(path_of_first.next_value[active], [2, 3, 4, 5, 2, 3, 4, 5])
    np.testing.assert_array_equal(path_of_first.reward[active], [1, 11, 1, 1, 1, 11, 1, 1])
    values, _, _ = judge(spec, algorithm.policy_weights(runner, "late").params, path)
    by_step = (
        np.asarray(values).reshape(5, 3, 8).swapaxes(0, 1).reshape(15, 8)[:14]
    )  # of 3 parts of 5 steps
    np.testing.assert_array_equal(by_step[active], np.tile([[1], [2], [3], [4]], (2, 8)))


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


@pytest.mark.long
def test_rows_that_fill_up_and_agents_that_left_break_no_distribution_and_no_carry():
    """A Beta of zeros, and a carry that garbage made NaN, are in the batch with weight 0.

    10 steps are filled up to three parts of 4.
    """
    config = PPOConfig(
        env=LeaversOfABox(nan=True),
        max_seq_len=4,
        per_policy={"wide": {"action_distribution": "beta", **MEMORIES["gru"]}},
        policies_to_train=("wide",),
        **{**SMALL, "rollout_length": 10},
    )
    algorithm = config.build()
    group, _ = algorithm.grouping.locate("wide")
    assert algorithm.policy_specs[group].sequences(10) == (3, 4)
    update = jax.jit(algorithm.update)
    runner, _ = update(jax.jit(algorithm.init)(jax.random.key(0)))
    _, metrics = update(runner)
    assert metrics.learners[group]["parameters_finite"] == 1.0
    assert np.isfinite(metrics.learners[group]["total_loss"])


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


@pytest.mark.slow
@pytest.mark.long
def test_a_run_with_actions_left_open_goes_on_bit_for_bit_and_over_two_devices(tmp_path):
    """The first rollout, of 4 steps, ends in the pause of `late`.

    Its last action is learned from in the second.
    """
    settings = {
        **SMALL,
        "rollout_length": 4,
        "minibatch_size": 16,
        **MEMORIES["gru"],
        **ONE_CORE,
        "normalize_returns": True,
    }
    config = PPOConfig(env=Joining(), max_seq_len=3, total_env_steps=96, **settings)
    whole = Trainer(config, run_dir=None, quiet=True)
    whole.fit()
    half = Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False)
    half.fit({"training_iteration": 1})
    (unfinished,) = half.runner.envs.features["unfinished"]  # of both policies, stacked
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
    assert load_policy(tmp_path / "run", "late", config=config).remembers


@pytest.fixture(scope="module")
def recalling():
    """A trainer whose policies, one with each kind of memory and one with none, saw their cues."""
    config = PPOConfig(
        env=Recallers(("none", *MEMORIES)),
        per_policy={
            "gru": MEMORIES["gru"],
            "lstm": {**MEMORIES["lstm"], **ONE_CORE},
            "attention": {**MEMORIES["attention"], **ONE_CORE},
        },
        num_envs=32,
        rollout_length=20,
        minibatch_size=160,
        num_epochs=4,
        fcnet_hiddens=(16,),
        lr=1e-2,
        lambda_=0.95,
        total_env_steps=640 * 30,
    )
    trainer = Trainer(config, run_dir=None, quiet=True)
    trainer.fit()
    return trainer


@pytest.mark.slow
@pytest.mark.long
def test_a_cue_is_recalled_by_memory_alone(recalling):
    returned = recalling.last_result["env_runners"]["agent_episode_returns_mean"]
    assert 0.3 < returned.pop("none") < 0.7
    assert all(mean > 0.9 for mean in returned.values()), returned


@pytest.mark.long
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_policy_with_memory_acts_step_by_step_alone_and_in_batches(recalling, memory):
    policy = recalling.get_policy(memory)
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
