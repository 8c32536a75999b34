"""Evaluation.

Exactly the episodes that were asked for, the same ones for the same seed, by whichever way.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import Trainer, UsageError, load_policy
from jaxrl.cli.evaluate import EvaluateOptions, RenderOptions, report
from jaxrl.cli.evaluate import evaluate as evaluate_run
from jaxrl.cli.flags import flags_of, given_flags
from jaxrl.core.fields import check_all
from jaxrl.episodes import read_episodes
from jaxrl.play.whole_episodes import episode_keys, step_chance
from jaxrl.run.results import flatten, lookup
from tests.messages import refusal, refused_by
from tests.play.test_recording import counted, untrained
from tests.programs import SMALL_ARENA, SMALL_REINFORCE, lines_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "run"
    evaluated = {"evaluation_interval": 3, "evaluation_duration": 6}
    with Trainer(SMALL_ARENA, run_dir=path, quiet=True, pictures=False, **evaluated) as trainer:
        trainer.fit({"training_iteration": 3})
    return trainer


@pytest.mark.long
def test_every_seed_that_the_settings_allow_can_be_evaluated(start):
    trainer = start(
        run_dir=None, evaluation_interval=1, evaluation_duration=1, evaluation_seed=2**32 - 1
    )
    assert trainer.fit({"training_iteration": 1})["evaluation"]["env_runners"]["num_episodes"] == 1
    with pytest.raises(UsageError, match="seed=4294967296"):
        trainer.evaluate(seed=2**32)
    check_all(EvaluateOptions(seed=2**32 - 1))
    check_all(RenderOptions(seed=2**32 - 1))


@pytest.mark.long
def test_an_evaluation_by_steps_plays_whole_episodes_until_so_many(start):
    by_steps = {"evaluation_interval": 1, "evaluation_duration_unit": "timesteps"}
    trainer = start(run_dir=None, evaluation_duration=45, **by_steps)
    found = trainer.fit({"training_iteration": 1})["evaluation"]["env_runners"]
    lengths = found["hist_stats"]["episode_lengths"]
    assert sum(lengths) == found["num_env_steps_sampled"] >= 45 > sum(lengths[:-1])
    assert found == trainer.evaluate()["env_runners"]
    assert trainer.evaluate(episodes=2)["env_runners"]["num_episodes"] == 2
    assert len(trainer.sample(1)) == 1
    with pytest.raises(UsageError, match="unknown evaluation_duration_unit 'steps'"):
        start(run_dir=None, evaluation_duration_unit="steps")


def weights_of(trainer):
    return tuple(learner.weights for learner in trainer.runner.learners)


def played_by_hand(run_dir, episodes):
    """Returns [episodes, agents] of the arena, played step by step with the loaded policies."""
    policies = {f"agent{i}": load_policy(run_dir, f"pol{i}") for i in (1, 2)}
    env, params = jaxrl.make("arena", height=4, width=4, max_steps_in_episode=20)
    reset_key, play_key = episode_keys(0)
    spec = jaxrl.PPOConfig(env="arena").build().rollout_spec
    returns = np.zeros((episodes, 2))
    step = jax.jit(env.step)
    step_key = jax.jit(lambda i, t: step_chance(spec, play_key, i[None], t).step_key[0])
    for i in range(episodes):
        obs, state = env.reset(jax.random.fold_in(reset_key, i), params)
        for t in itertools.count():
            key = step_key(jnp.int32(i), jnp.int32(t))
            actions = {agent: policy.act(obs[agent]) for agent, policy in policies.items()}
            env_step = step(key, state, actions, params)
            obs, state, rewards, terminated, truncated, _ = env_step
            returns[i] += [rewards["agent1"], rewards["agent2"]]
            if terminated["__all__"] or truncated["__all__"]:
                break
    return returns


@pytest.mark.long
def test_trainer_script_function_and_loaded_policies_play_the_same_episodes(trained, capsys):
    logged = lines_of(trained.run_dir)[-1]["evaluation"]["env_runners"]
    again = trained.evaluate()["env_runners"]
    loaded = jaxrl.evaluate(trained.run_dir, episodes=6)["env_runners"]
    assert logged == again == loaded
    by_hand = played_by_hand(trained.run_dir, 6)
    assert loaded["episode_return_mean"] == pytest.approx(by_hand.sum(axis=1).mean(), abs=1e-4)
    assert loaded["episode_return_std"] == pytest.approx(by_hand.sum(axis=1).std(), abs=1e-4)
    assert loaded["agent_episode_returns_mean"]["agent2"] == pytest.approx(
        by_hand[:, 1].mean(), abs=1e-4
    )
    evaluate_run([str(trained.run_dir), "--episodes", "6"])
    printed = capsys.readouterr().out
    likeliest, sampled = printed.split(f"6 episodes of {trained.run_dir}")[1:]
    explored = jaxrl.evaluate(trained.run_dir, episodes=6, explore=True)["env_runners"]
    assert explored["episode_return_mean"] != loaded["episode_return_mean"]
    for block, name, result in ((likeliest, "likeliest", loaded), (sampled, "sampled", explored)):
        assert f"(last), {name} actions" in block and "num_collisions" in block
        spread = f"{result['episode_return_mean']:10.2f} +- {result['episode_return_std']:.2f}"
        assert spread in block


@pytest.mark.parametrize("way", ["True", "False"])
def test_the_command_plays_one_way_where_it_is_told_which(trained, capsys, way):
    evaluate_run([str(trained.run_dir), "--episodes", "2", "--explore", way])
    printed = capsys.readouterr().out
    assert printed.count("2 episodes of") == 1
    assert {"True": "sampled", "False": "likeliest"}[way] in printed


@pytest.mark.parametrize("word", ["True", "False", "None"])
def test_a_switch_before_or_behind_the_run_takes_each_word_that_its_help_names(word):
    flags = flags_of(EvaluateOptions())
    for words in (["--explore", word, "runs/a"], ["runs/a", "--explore", word]):
        assert given_flags(words, flags, positional="run") == {"explore": [word], "run": ["runs/a"]}


@pytest.mark.long
def test_trainer_and_saved_run_give_the_episodes_that_they_evaluate(trained):
    plain = trained.evaluate()
    result = trained.evaluate(return_episodes=True)
    episodes = result.pop("episodes")
    loaded = jaxrl.evaluate(trained.run_dir, episodes=6, return_episodes=True)
    assert result.keys() == plain.keys() == {"env_runners"}
    for read in (result, loaded):
        for path, value in flatten(plain["env_runners"]):
            assert lookup(read["env_runners"], path) == pytest.approx(value, rel=1e-6)
    returns = [episode.get_return() for episode in episodes]
    assert np.mean(returns) == pytest.approx(plain["env_runners"]["episode_return_mean"], rel=1e-5)
    for same in (loaded["episodes"], trained.sample(6, explore=False)):
        for episode, again in zip(episodes, same, strict=True):
            np.testing.assert_array_equal(
                episode.get_rewards(agent_ids="agent2")["agent2"],
                again.get_rewards(agent_ids="agent2")["agent2"],
            )
            assert jaxrl.replay_episode(again).difference is None
            assert episode.module_for("agent2") == again.module_for("agent2") == "pol2"
    short = trained.sample(1, explore=False, env_args={"max_steps_in_episode": 5})
    assert [len(episode) for episode in short] == [5]
    (third,) = trained.sample(1, explore=False, first=2)
    assert third.custom_data["origin"]["episode"] == 2
    assert third.get_return() == pytest.approx(returns[2], rel=1e-5)


@pytest.mark.long
def test_an_evaluation_holds_its_episodes_one_by_one_in_their_order(trained):
    result = trained.evaluate(episodes=5, explore=True, return_episodes=True)
    (runners, episodes), hist_stats = result.values(), result["env_runners"]["hist_stats"]
    returns = [episode.get_return() for episode in episodes]
    assert hist_stats["episode_reward"] == pytest.approx(returns, rel=1e-5)
    assert len(set(hist_stats["episode_reward"])) > 1
    assert hist_stats["episode_lengths"] == [len(episode) for episode in episodes] == [20] * 5
    assert runners["episode_return_std"] == np.std(hist_stats["episode_reward"])
    assert max(hist_stats["num_collisions"]) == runners["custom_metrics"]["num_collisions_max"]
    during = trained.results()[2]["evaluation"]["env_runners"]
    assert len(during["hist_stats"]["episode_lengths"]) == 6  # as the run's log has them
    cut = trained.evaluate(episodes=2, max_steps=3)["env_runners"]
    assert "hist_stats" not in cut and cut["num_episodes_cut"] == 2


def test_evaluated_episodes_are_written_to_a_folder(trained, tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="the extra `offline`")
    result = jaxrl.evaluate(trained.run_dir, episodes=6, return_episodes=True, output=tmp_path)
    written = list(read_episodes(tmp_path))
    assert [each.id_ for each in written] == [each.id_ for each in result["episodes"]]
    folder = tmp_path / "of the command"
    evaluate_run([str(trained.run_dir), "--episodes", "6", "--output", str(folder)])
    assert f"{result['env_runners']['episode_return_mean']:10.2f}" in capsys.readouterr().out
    assert [each.get_return() for each in read_episodes(folder)] == [
        each.get_return() for each in written
    ]


test_a_sample_that_cannot_be_played_is_refused_in_one_line = refused_by(
    lambda trained, arguments: trained.sample(**arguments),
    [
        ({"num_episodes": 0}, "num_episodes=0 must be an integer of at least 1"),
        ({"num_episodes": -3}, "num_episodes=-3 must be"),
        ({"num_episodes": 2.0}, r"num_episodes=2.0 must be"),
        ({"first": -1}, "first=-1 must be an integer of at least 0"),
        ({"explore": 1}, "explore=1 must be True or False"),
        ({"seed": "a"}, "seed='a' must be"),
    ],
    fixture="trained",
)


def test_evaluating_changes_nothing_that_is_trained(start, tmp_path):
    plain = start()
    watched = start(run_dir=tmp_path / "watched", evaluation_interval=1, evaluation_duration=2)
    for trainer in (plain, watched):
        trainer.fit({"training_iteration": 4})
    both = plain.runner.learners, watched.runner.learners
    jax.tree.map(np.testing.assert_array_equal, *both)


@pytest.mark.long
def test_long_episodes_count_as_much_as_short_ones():
    """CartPole's untrained episodes differ in length; the first of each of 200 environments count.

    Taking whichever 200 finish first, of fewer environments, would favour the short ones.
    """
    cartpole = untrained("cartpole")
    result = counted(cartpole, number=200, explore=True)
    assert result["num_episodes"] == 200
    assert result["num_env_steps_sampled"] == pytest.approx(200 * result["episode_len_mean"])
    # A step is paid 1.
    assert result["episode_return_mean"] == pytest.approx(result["episode_len_mean"])
    alone = [counted(cartpole, number=1, explore=True, seed=seed) for seed in range(1, 4)]
    assert len({result["episode_len_mean"] for result in alone}) > 1
    assert result["episode_len_min"] < result["episode_len_mean"] < result["episode_len_max"]


def test_other_arguments_of_the_environment_are_evaluated_in_their_own_world(trained):
    short = jaxrl.evaluate(trained.run_dir, episodes=2, env_args={"max_steps_in_episode": 5})
    assert short["env_runners"]["episode_len_max"] == 5
    with pytest.raises(UsageError, match="change the agents or their spaces"):
        jaxrl.evaluate(trained.run_dir, episodes=2, env_args={"height": 5})


SHORT_ONES = {"evaluation_interval": 1, "evaluation_duration": 2}
SHORT_ONES |= {"evaluation_env_args": {"max_steps_in_episode": 5}}


def test_evaluation_during_training_may_play_another_environment(start):
    trainer = start(**SHORT_ONES)
    assert trainer.train()["evaluation"]["env_runners"]["episode_len_mean"] == 5


@pytest.mark.long
def test_the_trainers_evaluation_takes_the_arguments_of_the_saved_runs(trained):
    changes = {"episodes": 3, "explore": True, "seed": 7, "env_args": {"max_steps_in_episode": 5}}
    played = trained.evaluate(**changes)
    assert played == jaxrl.evaluate(trained.run_dir, **changes)
    results = played["env_runners"]
    assert (results["num_episodes"], results["episode_len_max"]) == (3, 5)
    assert trained.evaluate()["env_runners"]["num_episodes"] == 6  # the settings are as they were
    assert trained.evaluate(seed=7) == jaxrl.evaluate(trained.run_dir, episodes=6, seed=7)


def test_settings_of_the_evaluation_may_be_taken_back_for_one(start):
    trainer = start(**SHORT_ONES)
    assert trainer.evaluate(env_args={})["env_runners"]["episode_len_mean"] == 20
    assert trainer.evaluate()["env_runners"]["episode_len_mean"] == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episodes": 0}, "episodes=0 must be an integer of at least 1"),
        ({"explore": "yes"}, "explore='yes' must be True or False"),
        ({"seed": -1}, "seed=-1 must be an integer of at least 0"),
        ({"env_args": {"height": 5}}, "change the agents or their spaces"),
        ({"env_args": 5}, "env_args=5 must be"),
        ({"return_episodes": "no"}, "return_episodes='no' must be True or False"),
    ],
)
def test_arguments_of_an_evaluation_that_cannot_work_are_refused(trained, changes, message):
    for play in (trained.evaluate, functools.partial(jaxrl.evaluate, trained.run_dir)):
        with refusal(message):
            play(**changes)


def test_a_criterion_and_the_best_may_be_an_evaluations_result(start):
    trainer = start(evaluation_interval=2, evaluation_duration=2)
    path = "evaluation/env_runners/episode_len_mean"
    assert trainer.fit({path: 20})["training_iteration"] == 2
    with pytest.raises(UsageError, match="unknown checkpoint_score_attribute 'episode_return'"):
        start(run_dir=None, checkpoint_score_attribute="episode_return").train()


@pytest.mark.long
def test_custom_metrics_and_a_single_agent_are_reported(start):
    trainer = start(SMALL_REINFORCE, run_dir=None)
    result = trainer.evaluate()["env_runners"]
    assert result["num_episodes"] == 10
    steps = result["num_env_steps_sampled"]
    assert result["num_agent_steps_sampled"] == {"default_agent": steps}
    numbers = {"x_mean": 1.0, "x_min": 0.0, "x_max": 2.0}
    result = {**result, "custom_metrics": {**numbers, "arm": numbers}}
    result["task"] = {"gravity": 9.75}
    played = {"env_runners": result, "opponents": {"pol2": "copy of iteration 6"}}
    text = report(played, "run", EvaluateOptions())
    assert "gravity                        9.75  (mean of what was drawn)" in text
    assert text.endswith("pol2                     played by the copy of iteration 6")
    assert "x                              1.00  (from 0.00 to 2.00)" in text
    assert "arm/x                          1.00  (from 0.00 to 2.00)" in text
