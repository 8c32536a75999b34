"""Episodes that do not end: a line says so, and they are cut and do not count."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.cli.evaluate import EvaluateOptions, report
from jaxrl.play import play_limit
from jaxrl.play.play_limit import PlayCount, PlayLimit, PlayWatch
from tests.probes import OneAgent, State
from tests.programs import SMALL_REINFORCE


class SometimesEndless(OneAgent):
    """Ends after 3 steps of reward 1 if the reset drew so, in about half of the episodes."""

    time_limit = 2**30

    def reset_env(self, key, params):
        ends = jax.random.bernoulli(key).astype(jnp.int32)
        return jnp.ones(1), State(jnp.int32(0), ends)

    def step_env(self, key, state, action, params):
        state = state.replace(time=state.time + 1)
        terminated = (state.cue == 1) & (state.time == 3)
        return jnp.ones(1), state, jnp.float32(1), terminated, {}


class EndlessInPython(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {}


@pytest.fixture(scope="module")
def trainer():
    config = SMALL_REINFORCE.replace(env=SometimesEndless())
    with jaxrl.Trainer(config, run_dir=None, evaluation_max_steps=50) as trainer:
        yield trainer


@pytest.mark.long
def test_cut_episodes_do_not_count_and_their_number_is_told(trainer, capsys):
    episodes = trainer.evaluate(episodes=8)["env_runners"]
    num_cut = episodes["num_episodes_cut"]
    assert 0 < num_cut < 8 and episodes["num_episodes"] == 8 - num_cut
    assert episodes["episode_return_mean"] == episodes["episode_len_max"] == 3
    assert episodes["num_env_steps_sampled"] == 3 * (8 - num_cut) + 50 * num_cut
    said = capsys.readouterr().out
    assert f"{num_cut} of 8 episodes did not end within 50 steps and do not count" in said
    assert "evaluation_max_steps" in said


@pytest.mark.long
def test_episodes_as_objects_are_those_that_ended_whichever_were_cut(trainer):
    result = trainer.evaluate(episodes=8, return_episodes=True)
    whole = result["env_runners"]["num_episodes"]
    assert len(result["episodes"]) == len(trainer.sample(8, explore=False)) == whole
    assert all(len(episode) == 3 and episode.is_terminated for episode in result["episodes"])
    numbers = [episode.custom_data["origin"]["episode"] for episode in result["episodes"]]
    first = [number for number in range(8) if trainer.sample(1, explore=False, first=number)]
    assert numbers == first


def test_a_call_has_a_limit_of_its_own(trainer):
    expected = {"num_episodes": 0, "num_episodes_cut": 8, "num_env_steps_sampled": 16}
    assert trainer.evaluate(episodes=8, max_steps=2)["env_runners"] == expected
    with pytest.raises(jaxrl.UsageError, match="max_steps=0"):
        trainer.evaluate(max_steps=0)


def test_an_evaluation_without_an_episode_that_ended_is_reported(trainer, capsys):
    result = trainer.evaluate(episodes=2, max_steps=2)
    assert "no greedy episode has ended" in capsys.readouterr().out
    text = report(result, "runs/a", EvaluateOptions())
    assert "0 episodes of runs/a" in text and "2 more were cut: they did not end" in text


@pytest.mark.long
def test_outside_jax_an_evaluation_stops_at_the_limit_as_inside(capsys):
    config = SMALL_REINFORCE.replace(env=EndlessInPython(), num_envs=2, total_env_steps=32)
    settings = {"run_dir": None, "workers": 0, "evaluation_max_steps": 20}
    with jaxrl.Trainer(config, **settings) as trainer:
        episodes = trainer.evaluate(episodes=2)["env_runners"]
        assert trainer.sample(1) == []
    assert episodes == {"num_episodes": 0, "num_episodes_cut": 2, "num_env_steps_sampled": 40}
    assert "2 of 2 episodes did not end within 20 steps" in capsys.readouterr().out


def test_a_line_says_so_after_ten_seconds_without_an_end_and_then_ever_less_often(monkeypatch):
    now, said = 0.0, []
    monkeypatch.setattr(play_limit.time, "monotonic", lambda: now)
    watch = PlayWatch(PlayLimit(1000, said.append), "maze")
    done = np.array([False, False])
    when = []
    for second in range(100):
        now = float(second)
        done[0] = second >= 45
        before = len(said)
        watch.look(done, num_steps=7 * second)
        when += [second] * (len(said) - before)
    assert when == [10, 20, 40, 55, 65, 85]
    assert said[0].startswith("maze: 0 of 2 episodes have ended after 70 steps and 10 s; ")
    assert "1,000 steps" in said[0]
    assert said[-1].startswith("maze: 1 of 2 episodes have ended after 595 steps and 85 s; ")


def test_a_line_counts_the_episodes_after_ten_seconds_and_then_ever_less_often(monkeypatch):
    now, said = 0.0, []
    monkeypatch.setattr(play_limit.time, "monotonic", lambda: now)
    played = PlayCount(PlayLimit(1000, said.append), "maze")
    when = []
    for second in range(100):
        now = float(second)
        before = len(said)
        played.add(128)
        when += [second] * (len(said) - before)
    assert when == [10, 20, 40, 80]
    assert said[0] == "maze: 1,408 episodes have been played in 10 s; Ctrl-C breaks off"


def test_where_all_episodes_end_nothing_is_said():
    said = []
    watch = PlayWatch(PlayLimit(5, said.append), "maze")
    watch.look(np.array([True]), num_steps=5)
    watch.conclude(np.array([True]))
    assert said == []
