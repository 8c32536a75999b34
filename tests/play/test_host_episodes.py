"""Evaluation outside JAX: whole episodes in copies that the run's workers step."""

import numpy as np
import pytest

import jaxrl
from jaxrl.envs.cartpole import CartPole
from jaxrl.outside.workers.pictured import MOST_PICTURES
from jaxrl.outside.workers.python_env import adapt
from tests.messages import refusal
from tests.outside.workers.environments import (
    EXIT,
    HANG,
    RAISE,
    Counter,
    Informed,
    Leavers,
    Nim,
    Painted,
)
from tests.programs import SMALL_REINFORCE

CONFIG = SMALL_REINFORCE.replace(
    env="tests.outside.workers.environments:Counter",
    num_envs=2,
    rollout_length=8,
    total_env_steps=16,
)
SETTINGS = {"run_dir": None, "quiet": True}


def broken(fault, share):
    return CONFIG.replace(env_args={"fault": fault, "share": share})


@pytest.mark.long
def test_processes_play_the_episodes_that_this_process_plays():
    found = []
    for workers in (0, 2):
        with jaxrl.Trainer(CONFIG, **SETTINGS, workers=workers) as trainer:
            found.append(trainer.evaluate(episodes=3, explore=True)["env_runners"])
            assert trainer.evaluate(episodes=3, explore=True)["env_runners"] == found[-1]
    assert found[0] == found[1] and found[0]["episode_len_mean"] == 5


@pytest.mark.parametrize("workers", [0, 2])
def test_sampled_episodes_have_the_infos_of_their_steps_and_processes_send_what_they_can(workers):
    config = CONFIG.replace(env=Informed)
    with jaxrl.Trainer(config, **SETTINGS, workers=workers) as trainer:
        trainer.evaluate(episodes=3)
        episodes = trainer.sample(3)
    for episode in episodes:
        assert [info.get("steps") for info in episode.get_infos()] == [None, 1, 2, 3, 4, 5]
        assert [info["places"][0] for info in episode.get_infos()[1:]] == [1, 2, 3, 4, 5]
        assert episode.get_infos(-1)["metrics"] == {"actions": float(episode.get_actions(-1))}
        assert ("module" in episode.get_infos(-1)) == (workers == 0)


@pytest.mark.long
def test_infos_of_several_agents_are_those_of_their_own_observations():
    with jaxrl.Trainer(CONFIG.replace(env=Leavers), **SETTINGS, workers=0) as trainer:
        (episode,) = trainer.sample(1)
    masks = {}
    for agent, infos in by_agent(episode):
        masks[agent] = [info["action_mask"][1] for info in infos]
    assert masks == {"a0": [0, 1], "a1": [0, 1, 0], "a2": [0, 1, 0, 1]}
    with jaxrl.Trainer(CONFIG.replace(env=Nim), **SETTINGS, workers=0) as trainer:
        (episode,) = trainer.sample(1)
    for agent, infos in by_agent(episode):
        observations = episode.agent_episodes[agent].get_observations()
        assert [info["sticks"] for info in infos] == observations.tolist()


def by_agent(episode):
    return [(agent, data.get_infos()) for agent, data in episode.agent_episodes.items()]


def test_a_class_of_environments_is_evaluated_with_other_arguments_and_an_object_is_not():
    config = CONFIG.replace(env=Counter, env_args={"length": 7})
    with jaxrl.Trainer(config, **SETTINGS, workers=0, evaluation_env_args={"length": 3}) as trainer:
        assert trainer.evaluate(episodes=1)["env_runners"]["episode_len_mean"] == 3
        assert trainer.evaluate(episodes=1, env_args={})["env_runners"]["episode_len_mean"] == 7
    with refusal("need an environment by name, or its class; CartPole is made already"):
        made = CONFIG.replace(env=CartPole())
        jaxrl.Trainer(made, **SETTINGS, evaluation_env_args={"max_steps_in_episode": 3})


@pytest.mark.long
def test_evaluation_samples_from_the_policy_itself_where_training_explores():
    found = []
    for exploration in (None, {"type": "EpsilonGreedy"}):
        config = CONFIG.replace(exploration_config=exploration)
        with jaxrl.Trainer(config, **SETTINGS) as trainer:
            (episode,) = trainer.sample(num_episodes=1)
            found.append(episode.get_actions())
    np.testing.assert_array_equal(*found)


@pytest.mark.long
def test_a_saved_run_is_evaluated_as_while_it_trained_though_episodes_fail_now_and_then(tmp_path):
    settings = {"workers": 1, "evaluation_interval": 1, "evaluation_duration": 3}
    config, folder = broken(RAISE, 0.1), tmp_path / "run"
    with jaxrl.Trainer(config, run_dir=folder, quiet=True, pictures=False, **settings) as trainer:
        wanted = trainer.fit()["evaluation"]
    assert wanted["env_runners"]["num_episodes"] == 3
    assert jaxrl.evaluate(folder, episodes=3, trust=True) == wanted


@pytest.mark.long
@pytest.mark.parametrize("fault", [HANG, EXIT])
def test_an_environment_that_always_fails_ends_its_evaluation_in_one_line(fault):
    settings = {"workers": 1, "env_step_timeout_s": 0.2, "max_consecutive_faults": 1}
    trainer = jaxrl.Trainer(broken(fault, 1.0), **SETTINGS, **settings)
    message = "failed 2 times and finished no"
    with trainer, refusal(message):
        trainer.evaluate(episodes=1)


@pytest.mark.long
def test_an_episode_of_a_run_is_pictured_as_it_was_played(tmp_path):
    config = CONFIG.replace(
        env="tests.outside.workers.environments:Painted", env_args={"render_mode": "rgb_array"}
    )
    folder = tmp_path / "run"
    with jaxrl.Trainer(config, run_dir=folder, quiet=True, workers=0) as trainer:
        trainer.fit()
    assert (folder / "episode.gif").read_bytes().startswith(b"GIF")
    out, played = jaxrl.render(folder, tmp_path / "strip.png", trust=True)
    assert out.exists() and (played.num_steps, played.end) == (5, "terminated")
    assert {step: picture[0, 0, 0] for step, picture in played.pictures.items()} == {
        step: 10 * step for step in range(6)
    }
    wanted = jaxrl.evaluate(folder, episodes=1, trust=True)["env_runners"]
    assert played.rewards.sum() == wanted["episode_return_mean"]
    _, cut = jaxrl.render(folder, tmp_path / "cut.gif", max_steps=3, trust=True)
    assert (cut.num_steps, cut.end) == (3, "cut")
    jaxrl.replay(folder, trust=True).save(tmp_path / "pictures.html")
    without = {"env_args": {"render_mode": None}, "trust": True}
    with refusal("--env-args render_mode=rgb_array"):
        jaxrl.render(folder, tmp_path / "none.gif", **without)
    jaxrl.replay(folder, **without).save(tmp_path / "observations.html")
    assert (tmp_path / "observations.html").exists()


def test_of_a_long_episode_evenly_spaced_pictures_are_kept():
    env = adapt(None, lambda: Painted("rgb_array", length=3 * MOST_PICTURES)).pictured()
    env.reset(np.zeros(1, np.uint32))
    for _ in range(3 * MOST_PICTURES - 1):
        env.send(0, {"default_agent": np.zeros(1, np.int32)})
        assert not env.receive(0).episode_done[0]
    last = 3 * MOST_PICTURES - 1
    assert sorted(env.pictures) == [*range(0, last, 4), last]
    env.close()
