"""Behaviour cloning and MARWIL on recorded episodes; numbers by hand, or from what was recorded."""

import functools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import BCConfig, MARWILConfig, Trainer, UsageError, load_policy
from jaxrl.algorithms.bc.summary import describe
from jaxrl.algorithms.offline_data import checked
from jaxrl.core.spaces import Box, Dict, Discrete
from jaxrl.episodes import EpisodeWriter, MultiAgentEpisode, SingleAgentEpisode
from jaxrl.ops.environment_actions import ActionForm
from tests.episodes import rllib_batch_files
from tests.probes import Joining, Leavers, TicTacToe, Twins

pytest.importorskip("pyarrow")
SMALL = {"fcnet_hiddens": (8,), "minibatch_size": 16, "train_batch_size": 32}


def written(folder, episodes):
    with EpisodeWriter(folder) as writer:
        for episode in episodes:
            writer.write(episode)
    return str(folder)


def poles(actions, rewards=None, first=0.0, **ends):
    """An episode of CartPole's spaces; observation t is (first + t, 0, 0, 0)."""
    times = first + np.arange(len(actions) + 1, dtype=np.float32)
    return SingleAgentEpisode(
        observations=np.stack([times, *[np.zeros_like(times)] * 3], axis=1),
        actions=np.array(actions, np.int32),
        rewards=[1.0] * len(actions) if rewards is None else rewards,
        len_lookback_buffer=0,
        **ends,
    )


@pytest.fixture(scope="module")
def cartpole_data(tmp_path_factory):
    """Ten episodes that turn by the sign of the pole's angle, which balances it for a while."""
    env, params = jaxrl.make("cartpole")
    step, episodes = jax.jit(env.step_env), []
    for seed in range(10):
        obs, state = env.reset_env(jax.random.key(seed), params)
        episode = SingleAgentEpisode()
        episode.add_env_reset(np.asarray(obs))
        done = False
        while not done and len(episode) < 40:
            action = int(obs[2] > 0)
            obs, state, reward, done, _ = step(jax.random.key(0), state, action, params)
            episode.add_env_step(np.asarray(obs), action, float(reward), terminated=bool(done))
        episode.is_truncated = not episode.is_terminated
        episodes.append(episode)
    return written(tmp_path_factory.mktemp("data") / "poles", episodes)


def data_of(config):
    return config.build().data()


# What is read


def test_steps_are_those_of_the_episodes_and_returns_are_discounted_by_hand(tmp_path):
    episodes = [
        poles([0, 1], rewards=[1.0, 2.0], terminated=True),
        poles([1, 1, 0], rewards=[4.0, 0.0, 8.0], first=10.0, truncated=True),
    ]
    source = written(tmp_path / "data", episodes)
    (data,) = data_of(MARWILConfig(env="cartpole", input=source, gamma=0.5, **SMALL))
    steps = jax.tree.map(lambda leaf: leaf[0], data.steps)
    assert data.count.tolist() == [5]
    assert steps.obs[:, 0].tolist() == [0, 1, 10, 11, 12]
    assert steps.action.tolist() == [0, 1, 1, 1, 0]
    assert steps.return_to_go.tolist() == [2, 2, 6, 4, 8]
    assert steps.discount.tolist() == [0, 0, 0.125, 0.25, 0.5]  # 0 where the world had ended
    assert data.ends.obs[0, steps.end[2:], 0].tolist() == [13, 13, 13]


def test_cloning_keeps_no_returns(cartpole_data):
    (data,) = data_of(BCConfig(env="cartpole", input=cartpole_data, **SMALL))
    assert data.ends is None and data.steps.return_to_go is None


def test_files_that_changed_are_read_again(tmp_path):
    config = BCConfig(env="cartpole", input=written(tmp_path, [poles([0])]), **SMALL)
    assert data_of(config)[0].count.tolist() == [1]
    written(tmp_path, [poles([1, 1])])
    assert data_of(config)[0].count.tolist() == [3]


def test_several_folders_are_one_data_set(tmp_path):
    folders = [written(tmp_path / name, [poles([0, 1])]) for name in "ab"]
    assert data_of(BCConfig(env="cartpole", input=folders, **SMALL))[0].count.tolist() == [4]


def test_the_steps_of_a_folder_that_is_named_twice_count_twice(tmp_path):
    a = written(tmp_path / "a", [poles([0, 0])])
    b = written(tmp_path / "b", [poles([1, 1])])
    (data,) = data_of(BCConfig(env="cartpole", input=[a, a, b], **SMALL))
    assert data.steps.action[0].tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.long
def test_steps_are_drawn_by_the_shares_of_their_folders_and_not_by_their_lengths(tmp_path):
    short = written(tmp_path / "a", [poles([0])])
    long = written(tmp_path / "b", [poles([1] * 9)])
    shares = {short: 0.75, long: 0.25}
    config = BCConfig(env="cartpole", input=shares, **{**SMALL, "train_batch_size": 4096})
    algorithm = config.build()
    steps = algorithm.collect(algorithm.init(jax.random.key(0)))[1][0].steps
    assert abs(np.mean(steps.action == 0) - 0.75) < 0.03  # 4 standard deviations
    times = np.asarray(steps.obs)[..., 0][steps.action == 1]
    assert set(times.tolist()) == set(range(9))
    assert dict(describe(config))["episodes"] == f"0.75 of {short}, 0.25 of {long}"
    lists = json.loads(json.dumps(config.input))  # as a run's folder holds it
    assert BCConfig(env="cartpole", input=lists).input == config.input


def test_files_of_rllibs_are_the_same_data(tmp_path):
    columns = rllib_batch_files.batch(0, 3, last="truncateds")
    source = rllib_batch_files.written(tmp_path / "rllib", rllib_batch_files.line(columns))
    parquet = written(tmp_path / "parquet", [poles([0, 1, 0], truncated=True)])
    found, expected = (
        data_of(MARWILConfig(env="cartpole", input=folder, **SMALL)) for folder in (source, parquet)
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_steps_of_a_policy_that_one_agent_has_need_no_agent(tmp_path):
    env = Twins()
    obs = np.zeros((3, *env.observation_space(env.agents[0], env.default_params).shape))
    episode = SingleAgentEpisode(
        observations=obs, actions=[0, 0], rewards=[0.0, 0.0], module_id=env.agents[1],
        len_lookback_buffer=0,
    )  # fmt: skip
    source = written(tmp_path, [episode])
    policies = {"policies": "per-agent", "policies_to_train": [env.agents[1]]}
    config = BCConfig(env=env, input=source, **policies, **SMALL)
    assert sum(data.count.sum() for data in data_of(config) if data is not None) == 2
    assert "set its agent_id" in refused(env=env, input=source, policies="shared")


def sampled(config, number, explore=True):
    with Trainer(config, run_dir=None, quiet=True) as trainer:
        return trainer.sample(number, explore=explore)


@pytest.mark.slow
@pytest.mark.long
def test_each_agents_steps_go_to_its_policy_also_of_those_that_join_late_or_leave(tmp_path):
    for env in (Joining(), Leavers()):
        episodes = sampled(jaxrl.PPOConfig(env=env, fcnet_hiddens=(4,), num_envs=2), 3)
        folder = written(tmp_path / env.name, episodes)
        config = BCConfig(env=env, input=folder, policies="per-agent", **SMALL)
        algorithm = config.build()
        data = algorithm.data()
        for agent in env.agents:
            group, row = algorithm.grouping.locate(agent)
            alone = [episode.agent_episodes[agent] for episode in episodes]
            count = sum(map(len, alone))
            actions = np.concatenate([episode.get_actions() for episode in alone])
            assert data[group].count[row] == count > 0
            np.testing.assert_array_equal(data[group].steps.action[row, :count], actions)


@pytest.mark.long
def test_a_shared_policy_is_told_whose_steps_they_are(tmp_path):
    env = Twins()
    episodes = sampled(jaxrl.PPOConfig(env=env, fcnet_hiddens=(4,), num_envs=2), 2)
    source = written(tmp_path, episodes)
    config = BCConfig(env=env, input=source, policies="shared", agent_id_obs=True, **SMALL)
    (data,) = data_of(config)
    lengths = [len(episode.agent_episodes[agent]) for episode in episodes for agent in env.agents]
    places = np.repeat(np.tile(np.arange(2), 2), lengths)
    np.testing.assert_array_equal(data.steps.inputs.agent_id[0], places)


@pytest.mark.long
def test_masks_are_used_where_each_episode_has_its_own(tmp_path):
    env = TicTacToe()
    episodes = sampled(jaxrl.PPOConfig(env=env, fcnet_hiddens=(4,), num_envs=2), 2)
    source = written(tmp_path / "whole", episodes)
    config = BCConfig(env=env, input=source, policies="shared", **SMALL)
    steps = data_of(config)[0].steps
    taken = np.take_along_axis(steps.inputs.action_mask[0], steps.action[0][:, None], axis=1)
    assert taken.all() and not steps.inputs.action_mask.all()
    for agent in episodes[0].agent_episodes.values():
        del agent.extra_model_outputs["action_mask"]
    written(tmp_path / "parts", episodes)
    (data,) = data_of(config.replace(input=str(tmp_path / "parts")))
    assert data.steps.inputs.action_mask is None


@pytest.mark.parametrize("kind", ["gaussian", "beta", "squashed_gaussian"])
def test_actions_of_a_box_are_read_back_to_what_the_policy_sampled(kind):
    space = Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), (2,))
    sampled = np.float32([[0.5, -0.25], [-0.9, 0.0]])
    form = ActionForm(space, normalize=True, kind=kind)
    played = np.asarray(form.to_env(jnp.asarray(sampled)))
    np.testing.assert_allclose(form.from_env(played), sampled, atol=1e-5)


def test_a_squashed_action_at_its_bound_is_finite():
    space = Box(-1.0, 1.0, (1,))
    read = ActionForm(space, normalize=True, kind="squashed_gaussian").from_env
    assert 3 < read(np.float32([[1.0]]))[0, 0] < 5


# What is learned


@functools.cache
def first_update(config):
    """One iteration from the start, compiled once for all numbers and for data of one size."""
    algorithm = config.build()

    def update(hypers, data):
        return algorithm.update(algorithm.init(jax.random.key(0), hypers), hypers, data=data)

    return jax.jit(update)


def update_once(config):
    """(metrics, runner) of one iteration."""
    update = first_update(config.static().replace(input="given"))
    runner, metrics = update(config.hypers(), config.build().data())
    return {name: float(value[0]) for name, value in metrics.learners[0].items()}, runner


@pytest.mark.long
def test_of_one_step_alone_the_weight_of_a_good_action_is_e_to_the_beta(tmp_path):
    """With the average at its first minibatch c = |A|, so that A / c is 1, or -1."""
    for reward, sign in ((50.0, 1), (-50.0, -1)):
        source = written(tmp_path / str(sign), [poles([1], rewards=[reward], terminated=True)])
        settings = {"input": source, "lr": 0.0, "beta": 0.5, **SMALL}
        metrics, _ = update_once(MARWILConfig(env="cartpole", **settings))
        weight = math.exp(0.5 * sign)
        assert metrics["mean_weight"] == pytest.approx(weight, rel=1e-4)
        assert metrics["policy_loss"] == pytest.approx(-weight * metrics["log_prob"], rel=1e-4)
        assert metrics["vf_loss"] == pytest.approx(0.5 * 50.0**2, rel=0.02)  # V is near 0
        together = metrics["policy_loss"] + metrics["vf_loss"]
        assert metrics["total_loss"] == pytest.approx(together, rel=1e-5)


def test_a_weight_is_at_most_20(tmp_path):
    source = written(tmp_path, [poles([1], rewards=[9.0], terminated=True)])
    config = MARWILConfig(env="cartpole", input=source, lr=0.0, beta=100.0, **SMALL)
    assert update_once(config)[0]["mean_weight"] == pytest.approx(20.0, rel=1e-5)


@pytest.mark.long
def test_the_log_probability_reported_is_that_of_the_policy(tmp_path):
    source = written(tmp_path, [poles([1], terminated=True)])
    metrics, runner = update_once(BCConfig(env="cartpole", input=source, lr=0.0, **SMALL))
    spec = BCConfig(env="cartpole", input=source, **SMALL).build().policy_specs[0]
    params = jax.tree.map(lambda leaf: leaf[0], runner.learners[0].params)
    distribution, _ = spec.evaluate_actions(params, jnp.zeros((1, 4)), None)
    assert metrics["log_prob"] == pytest.approx(float(distribution.log_prob(jnp.array([1]))[0]))


@pytest.mark.long
def test_with_beta_0_and_no_value_loss_marwil_is_cloning(cartpole_data):
    common = {"env": "cartpole", "input": cartpole_data, "total_env_steps": 32, **SMALL}
    cloned = update_once(BCConfig(**common))[1]
    weighted = update_once(MARWILConfig(beta=0.0, vf_coeff=0.0, **common))[1]
    for x, y in zip(
        jax.tree.leaves(cloned.learners[0].params),
        jax.tree.leaves(weighted.learners[0].params),
        strict=True,
    ):
        np.testing.assert_allclose(x, y, atol=1e-6)


@pytest.mark.long
def test_a_value_goes_on_after_a_truncated_episode_and_ends_with_a_terminated_one(tmp_path):
    """Of one observation for ever, reward 1 and gamma 0.5: V = (1.5 + V/4 + 1 + V/2) / 2 is 2.

    Where the two steps terminate it is the mean of 1.5 and 1.
    """
    for ends, expected in (("truncated", 2.0), ("terminated", 1.25)):
        episode = poles([1, 1], **{ends: True})
        episode.set_observations(new_data=np.zeros((3, 4), np.float32))
        source = written(tmp_path / ends, [episode])
        settings = {"input": source, "gamma": 0.5, "lr": 1e-2, **SMALL, "train_batch_size": 1600}
        config = MARWILConfig(env="cartpole", total_env_steps=1600 * 20, **settings)
        runner, _ = jax.jit(jaxrl.make_train(config))(jax.random.key(0))
        params = jax.tree.map(lambda leaf: leaf[0], runner.learners[0].params)
        spec = config.build().policy_specs[0]
        _, value = spec.evaluate_actions(params, jnp.zeros((1, 4)), None)
        assert float(value[0]) == pytest.approx(expected, abs=0.05)


@pytest.mark.long
def test_the_filter_is_the_mean_and_spread_of_the_data(cartpole_data):
    settings = {"observation_filter": "MeanStdFilter", **SMALL}
    config = BCConfig(env="cartpole", input=cartpole_data, **settings)
    obs = config.build().data()[0].steps.obs[0]
    _, runner = update_once(config)
    stats = runner.learners[0].filter
    assert float(stats.count[0]) == len(obs)
    np.testing.assert_allclose(stats.mean[0], obs.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(stats.variance[0], obs.var(axis=0), rtol=1e-4)


def test_policies_of_unequal_data_draw_none_of_the_rows_that_fill_up(tmp_path):
    """One agent has 1 step and the other 20, all of them action 1; what fills up is 0."""
    env, episodes = Twins(), []
    for agent, count in zip(env.agents, (1, 20), strict=True):
        space = env.observation_space(agent, env.default_params)
        steps = {"observations": np.zeros(space.shape, space.dtype), "actions": 1, "rewards": 0.0}
        numbers = {"observations": count + 1, "actions": count, "rewards": count}
        columns = {name: [{agent: steps[name]}] * numbers[name] for name in steps}
        ends = {"truncateds": {"__all__": True}, "len_lookback_buffer": 0}
        episodes.append(MultiAgentEpisode(**columns, **ends))
    source = written(tmp_path, episodes)
    algorithm = BCConfig(env=env, input=source, policies="per-agent", **SMALL).build()
    data = algorithm.data()
    assert data[0].count.tolist() == [1, 20]
    draw = jax.jit(lambda data: algorithm.collect(algorithm.init(jax.random.key(0)), data=data))
    _, (drawn,) = draw(data)
    assert drawn.steps.action.shape == (2, 2, 16)
    assert drawn.steps.action.tolist() == np.ones((2, 2, 16)).tolist()


# Data that does not fit


@pytest.mark.parametrize(
    ("space", "values", "says"),
    [
        (Box(-1.0, 1.0, (2,)), np.zeros((3, 4)), "have the shape (4,)"),
        (Box(-1.0, 1.0, (2,)), np.full((3, 2), np.nan), "hold nan"),
        (Box(-1.0, 1.0, (1,)), np.array([["a"]]), "are no numbers, but"),
        (Discrete(3), np.array([0, 3]), "hold 3"),
        (Discrete(3), np.array([0.5]), "hold 0.5"),
        (Dict({"a": Discrete(2)}), np.zeros((3, 2)), "do not have the parts"),
        (Dict({"a": Discrete(2)}), {"a": np.array([0, 2])}, "'a' hold 2"),
    ],
)
def test_values_beyond_their_space_are_refused_by_name(space, values, says):
    with pytest.raises(UsageError, match="episode e, agent 'x': actions") as error:
        checked(space, values, "episode e, agent 'x': actions")
    assert says in str(error.value)


def test_values_take_the_types_of_their_space():
    assert checked(Box(-1.0, 1.0, (2,)), np.zeros((3, 2)), "").dtype == np.float32
    assert checked(Discrete(3), np.array([0, 2], np.int64), "").dtype == np.int32


def refused(**settings):
    with pytest.raises(UsageError) as error:
        Trainer(BCConfig(**{**SMALL, **settings}), run_dir=None, quiet=True)
    return str(error.value)


def test_settings_and_data_that_cannot_work_are_refused_before_compiling(tmp_path, cartpole_data):
    of_poles = {"env": "cartpole", "input": cartpole_data}
    assert "input is missing" in refused(env="cartpole")
    assert "no episodes in" in refused(env="cartpole", input=str(tmp_path / "nowhere"))
    assert "set its agent_id" in refused(env="arena", input=cartpole_data)
    nothing = rllib_batch_files.line(rllib_batch_files.batch(0, 0))
    nothing = rllib_batch_files.written(tmp_path / "nothing", nothing)
    shares = refused(env="cartpole", input={cartpole_data: 0.9, nothing: 0.1})
    assert "holds no step of policy 'default_policy', which draws 0.1" in shares
    assert "have the shape (4,)" in refused(env="gymnax:Acrobot-v1", input=cartpole_data)
    assert "plays none" in refused(**of_poles, num_envs=4)
    assert "is no multiple of minibatch_size=16" in refused(**of_poles, train_batch_size=40)
    assert "takes no memory yet" in refused(**of_poles, use_gru=True)
    with pytest.raises(UsageError, match="trains on one device"):
        Trainer(BCConfig(**of_poles, **SMALL), run_dir=None, devices=2)
    for wrong, says in [
        (5, "must name recorded episodes"),
        ([("a", 0.5), "b"], "must name recorded episodes"),
        ({"a": 0.5, "b": 0.4}, "the shares must make 1 together, not 0.9"),
        ({"a": 1.0, "b": 0.0}, r"input\['b'\]=0.0 must be a number in \(0, 1\]"),
        ({"sampler": 0.5, "a": 0.5}, "nothing is played, so there is no 'sampler'"),
    ]:
        with pytest.raises(UsageError, match=says):
            BCConfig(env="cartpole", input=wrong)
    with pytest.raises(UsageError, match="PPOConfig has it"):
        BCConfig(env="cartpole", num_epochs=4)


def test_an_agent_that_the_environment_lacks_and_a_policy_without_data_are_refused(tmp_path):
    episode = poles([0], truncated=True)
    episode.agent_id = "agent3"
    source = written(tmp_path / "unknown", [episode])
    assert "unknown agent 'agent3' in episode" in refused(env="arena", input=source)
    env, space = Twins(), Twins().observation_space(Twins().agents[0], Twins().default_params)
    obs = np.zeros((2, *space.shape), space.dtype)
    first, second = env.agents
    alone = SingleAgentEpisode(
        observations=obs, actions=[0], rewards=[0.0], agent_id=first, len_lookback_buffer=0
    )
    source = written(tmp_path / "alone", [alone])
    settings = {"env": env, "input": source, "policies": "per-agent"}
    assert f"no step of policy {second!r}" in refused(**settings)
    trainer = Trainer(
        BCConfig(**settings, **SMALL, policies_to_train=(first,)), run_dir=None, quiet=True
    )
    assert trainer.algorithm.trained == (first,)


# Runs


@pytest.fixture(scope="module")
def run(cartpole_data, tmp_path_factory):
    """A run of four iterations, saved and evaluated after every second one."""
    folder = tmp_path_factory.mktemp("bc") / "run"
    config = MARWILConfig(env="cartpole", input=cartpole_data, total_env_steps=4 * 32, **SMALL)
    settings = {"checkpoint_frequency": 2, "keep": 5, "evaluation_interval": 2}
    with Trainer(config, run_dir=folder, quiet=True, pictures=False, **settings) as trainer:
        trainer.fit()
    return folder, trainer


def weights(trainer):
    return jax.tree.leaves(trainer.get_weights())


@pytest.mark.long
def test_a_result_has_what_was_learned_and_evaluated_and_nothing_that_was_played(run):
    _, trainer = run
    result = trainer.last_result
    assert "env_runners" not in result
    assert result["num_env_steps_sampled_lifetime"] == 4 * 32
    assert result["evaluation"]["env_runners"]["num_episodes"] == 10
    learner = result["learners"]["default_policy"]
    assert {"log_prob", "policy_loss", "vf_loss", "entropy", "mean_weight"} <= set(learner)
    assert learner["num_module_steps_trained"] == 32


def test_resumed_from_a_checkpoint_it_learns_the_same_to_the_bit(run, tmp_path):
    folder, trainer = run
    again = Trainer.from_checkpoint(folder, checkpoint=2, run_dir=tmp_path / "again", quiet=True)
    again.fit()
    again.stop()
    for x, y in zip(weights(trainer), weights(again), strict=True):
        np.testing.assert_array_equal(x, y)


def test_without_evaluations_it_trains_and_no_checkpoint_is_called_the_best(run, tmp_path):
    _, trainer = run
    settings = {"run_dir": tmp_path / "run", "quiet": True, "pictures": False}
    settings |= {"evaluation_interval": None}
    with Trainer(trainer.config, **settings) as again:
        assert "evaluation" not in again.fit()
    with pytest.raises(UsageError, match="best"):
        load_policy(tmp_path / "run", checkpoint="best")


@pytest.mark.long
def test_a_policy_plays_without_the_episodes_that_it_learned_from(run, cartpole_data, tmp_path):
    folder, _ = run
    there = Path(cartpole_data)
    away = there.rename(tmp_path / "away")
    try:
        assert load_policy(folder).act(np.zeros(4)) in (0, 1)
        assert jaxrl.evaluate(folder, episodes=3)["env_runners"]["num_episodes"] == 3
        with pytest.raises(UsageError, match="no episodes in"):
            Trainer.from_checkpoint(folder, run_dir=None)
    finally:
        away.rename(there)


@pytest.mark.long
def test_ppo_begins_with_the_weights_that_were_cloned(run):
    folder, trainer = run
    config = jaxrl.PPOConfig(env="cartpole", fcnet_hiddens=(8,), num_envs=2, rollout_length=64)
    begun = Trainer(config, run_dir=None, quiet=True, init_from={"default_policy": folder})
    begun.runner  # noqa: B018  compiled and initialised when it is first asked for
    for x, y in zip(weights(trainer), weights(begun), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.long
def test_a_trial_of_a_sweep_is_the_training_alone_and_ranked_by_evaluation(run, tmp_path):
    _, trainer = run
    config = trainer.config
    settings = {"evaluation_interval": 2, "quiet": True}
    swept = jaxrl.sweep(config, {"lr": [1e-3, 0.0]}, run_dir=tmp_path / "sweep", **settings)
    first = swept.outcomes[0]
    np.testing.assert_allclose(
        first.result["learners"]["default_policy"]["log_prob"],
        trainer.last_result["learners"]["default_policy"]["log_prob"],
        rtol=1e-5,
    )
    path = "evaluation/env_runners/episode_return_mean"
    assert swept.metric == path
    assert first.score == first.result["evaluation"]["env_runners"]["episode_return_mean"]
    without = {"run_dir": None, "quiet": True, "evaluation_interval": None}
    with pytest.raises(UsageError, match="needs evaluations: give evaluation_interval"):
        jaxrl.sweep(config, {"lr": [1e-3, 0.0]}, **without)
