"""Learning from recorded episodes of Python environments: trained as data, played to judge."""

import numpy as np
import pytest

import jaxrl
from jaxrl import BCConfig, MARWILConfig, PPOConfig, Trainer, UsageError
from jaxrl.cli.train import train_ppo
from jaxrl.episodes import EpisodeWriter, SingleAgentEpisode

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("pyarrow")
CARTPOLE = "gym:CartPole-v1"
SMALL = {
    "fcnet_hiddens": (8,),
    "minibatch_size": 64,
    "train_batch_size": 1024,
    "lr": 1e-2,
    "total_env_steps": 1024 * 20,
}
JUDGED = {"evaluation_interval": 10, "evaluation_duration": 2, "workers": 0, "pictures": False}


def balances(obs):
    """The side to push a pole to so that it stands, until the clock ends the episode."""
    x, speed, angle, turning = obs
    return int(3 * angle + turning + 0.1 * x + 0.3 * speed > 0)


def balanced(env, seed):
    """(observations, actions, rewards) of an episode."""
    observations, actions, rewards, done = [env.reset(seed=seed)[0]], [], [], False
    while not done:
        actions.append(balances(observations[-1]))
        obs, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(obs)
        rewards.append(reward)
        done = terminated or truncated
    return observations, actions, rewards


@pytest.fixture(scope="module")
def poles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "poles"
    with EpisodeWriter(folder) as writer, gymnasium.make("CartPole-v1") as env:
        for seed in range(4):
            observations, actions, rewards = balanced(env, seed)
            assert len(actions) == 500
            episode = SingleAgentEpisode(
                observations=np.array(observations),
                actions=np.array(actions),
                rewards=rewards,
                truncated=True,
                len_lookback_buffer=0,
            )
            writer.write(episode)
    return str(folder)


@pytest.mark.long
def test_cloning_for_a_python_environment_is_judged_in_it_and_resumes_unbroken(
    poles, tmp_path, capsys
):
    config = BCConfig(env=CARTPOLE, input=poles, **SMALL)
    with Trainer(config, run_dir=tmp_path / "run", **JUDGED) as trainer:
        result = trainer.fit({"training_iteration": 15})
        judged = [each["evaluation"] for each in trainer.results() if "evaluation" in each]
    assert len(judged) == 2  # in between, and at the end
    assert judged[-1]["env_runners"]["episode_return_mean"] > 100
    before = result["learners"]["default_policy"]["log_prob"]
    assert before > np.log(0.5)
    capsys.readouterr()
    with Trainer.from_checkpoint(tmp_path / "run") as trainer:
        result = trainer.fit()
        assert result["training_iteration"] == 20
        assert trainer.sample(1)[0].get_return() > 100
    assert result["learners"]["default_policy"]["log_prob"] > before
    assert "from scratch" not in capsys.readouterr().out  # there are no episodes under way


@pytest.mark.long
def test_many_iterations_are_one_call_of_the_program(poles):
    """As for an environment in JAX: only playing outside takes the host between two updates."""
    config = BCConfig(env=CARTPOLE, input=poles, **SMALL)
    with Trainer(config, run_dir=None, quiet=True, evaluation_interval=None) as trainer:
        assert not trainer.algorithm.plays_outside
        assert trainer.executable is None or trainer.executable.capacity > 1
        inside = BCConfig(env="cartpole", input=poles, **SMALL)
        with Trainer(inside, run_dir=None, quiet=True, evaluation_interval=None) as other:
            found, expected = trainer.fit(), other.fit()
    assert found["learners"] == expected["learners"]  # of the same data, to the bit


def test_an_object_of_copies_is_refused_before_training_where_they_are_to_be_judged(poles):
    env = gymnasium.make_vec("CartPole-v1", 2)
    config = BCConfig(env=env, input=poles, **SMALL)
    with pytest.raises(UsageError, match="give a function that makes it"):
        Trainer(config, run_dir=None, quiet=True, evaluation_interval=5)
    env.close()


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 2])
def test_weighted_cloning_of_an_environments_object_or_in_workers(poles, workers):
    env = gymnasium.make("CartPole-v1")
    config = MARWILConfig(env=env if workers == 0 else CARTPOLE, input=poles, **SMALL)
    with Trainer(config, run_dir=None, quiet=True, **{**JUDGED, "workers": workers}) as trainer:
        result = trainer.fit()
    assert result["evaluation"]["env_runners"]["episode_return_mean"] > 100


@pytest.mark.long
def test_agents_of_a_pettingzoo_environment_are_cloned_policy_by_policy(tmp_path):
    pytest.importorskip("pettingzoo")
    env = "tests.outside.workers.environments:Leavers"
    small = {"fcnet_hiddens": (4,), "policies": "per-agent"}
    acting = PPOConfig(env=env, num_envs=2, rollout_length=8, minibatch_size=8, **small)
    with Trainer(acting, run_dir=None, quiet=True, workers=0) as trainer:
        episodes = trainer.sample(4)
    with EpisodeWriter(tmp_path / "data") as writer:
        for episode in episodes:
            writer.write(episode)
    config = BCConfig(
        env=env, input=str(tmp_path / "data"), minibatch_size=8, train_batch_size=16,
        total_env_steps=160, **small,
    )  # fmt: skip
    with Trainer(config, run_dir=None, quiet=True, **JUDGED) as trainer:
        result = trainer.fit()
    learned = [name for name, metrics in result["learners"].items() if "log_prob" in metrics]
    assert sorted(learned) == ["a0", "a1", "a2"]
    assert np.isfinite(result["evaluation"]["env_runners"]["episode_return_mean"])


@pytest.mark.long
def test_a_sweep_ranks_cloning_for_a_python_environment_by_its_evaluations(poles):
    config = BCConfig(env=CARTPOLE, input=poles, **SMALL)
    found = jaxrl.sweep(config, {"lr": [1e-5, 1e-2]}, run_dir=None, quiet=True)
    assert dict(found.best_trial().trial.settings)["lr"] == 1e-2


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")  # Minari asks for authors and the like
def test_a_dataset_of_minari_trains_to_the_return_of_its_expert(tmp_path, monkeypatch, capsys):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    buffers = []
    with gymnasium.make("CartPole-v1") as env:
        for seed in range(10):
            observations, actions, rewards = balanced(env, seed)
            last = np.arange(len(actions)) == len(actions) - 1
            buffers.append(
                minari.data_collector.EpisodeBuffer(
                    observations=np.array(observations), actions=np.array(actions),
                    rewards=np.array(rewards), terminations=last & False, truncations=last,
                )
            )  # fmt: skip
    minari.create_dataset_from_buffers("cartpole/expert-v0", buffers, env="CartPole-v1")
    words = ["--algorithm", "bc", "--input", "minari:cartpole/expert-v0"]
    words += ["--env", CARTPOLE, "--run-dir", str(tmp_path / "run"), "--workers", "0"]
    train_ppo([*words, "--total-env-steps", "300_000", "--pictures", "False"])
    said = capsys.readouterr().out
    assert float(said.partition("in the last evaluation")[0].split()[-1]) >= 475
