"""Atari's games in RLlib's wrappers: of a game that is played here without its emulator."""

import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from jaxrl import UsageError, from_rllib
from jaxrl.outside.workers.sources import make_copy, source_of
from jaxrl.rllib.env_names import wrappers_of

LIVES, FRAMES_OF_A_LIFE = 2, 40
NAME = "ALE/Countdown-v5"


class Countdown(gymnasium.Env):
    """Shows the number of its frames as grey, pays 1 for each, and takes a life after 40.

    It has what the wrappers read of an emulator. FIRE pays 10 in place of 1.
    """

    observation_space = gymnasium.spaces.Box(0, 255, (210, 160, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, frameskip=4, render_mode=None):
        self._frameskip, self.games, self.ale, self.render_mode = frameskip, 0, self, render_mode

    def get_action_meanings(self):
        return ["NOOP", "FIRE", "UP"]

    def lives(self):
        return LIVES - self.frames // FRAMES_OF_A_LIFE

    def getScreenGrayscale(self, screen):
        screen[...] = self.frames

    def getScreenRGB(self, screen):
        screen[...] = self.frames

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.frames, self.games = 0, self.games + 1
        return np.zeros((210, 160, 3), np.uint8), {}

    def step(self, action):
        self.frames += 1
        reward = 10.0 if action == 1 else 1.0
        is_over = self.lives() == 0
        return np.full((210, 160, 3), self.frames, np.uint8), reward, is_over, False, {}


@pytest.fixture
def game(monkeypatch):
    """The name of the game, and pictures without OpenCV."""
    resize = lambda image, size, interpolation: image[: size[1], : size[0]].copy()
    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(resize=resize, INTER_AREA=3))
    gymnasium.register(NAME, entry_point=Countdown)
    yield f"gym:{NAME}"
    del gymnasium.registry[NAME]


def made(game, **arguments):
    return make_copy(source_of(game, arguments))


def test_an_observation_is_the_last_frames_each_the_fourth_of_the_game(game):
    env = made(game, dim=84, framestack=3, frameskip=1)
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (84, 84, 3), np.uint8)
    obs, _ = env.reset(seed=0)
    first = int(obs[0, 0, 0])
    assert obs.dtype == np.uint8 and np.all(obs == first)
    obs, reward, *_ = env.step(0)
    assert obs[5, 7].tolist() == [first, first, first + 4] and reward == 4


def test_a_reset_is_followed_by_up_to_30_frames_of_nothing_fire_and_up(game):
    env = made(game, dim=84, framestack=1, frameskip=1, terminal_on_life_loss=False)
    frames = {int(env.reset(seed=seed)[0][0, 0, 0]) for seed in range(40)}
    assert min(frames) >= 1 + 8 and max(frames) <= 30 + 8 and len(frames) > 10


def test_a_game_that_skips_frames_itself_is_stepped_once_for_a_choice(game):
    env = made(game, dim=84, framestack=1)
    first = int(env.reset(seed=0)[0][0, 0, 0])
    assert int(env.step(0)[0][0, 0, 0]) == first + 1


def test_a_life_is_an_episode_and_the_next_one_plays_on_in_the_same_game(game):
    env = made(game, dim=84, framestack=1, frameskip=1)
    env.reset(seed=0)

    def play():
        while True:
            obs, _, terminated, truncated, _ = env.step(0)
            if terminated or truncated:
                return int(obs[0, 0, 0]), env.unwrapped.lives(), env.unwrapped.games

    frames, *rest = play()
    assert 40 <= frames < 44 and rest == [1, 1]
    obs, _ = env.reset(seed=1)
    assert int(obs[0, 0, 0]) == frames + 3 * 4 and env.unwrapped.games == 1  # nothing, FIRE, UP
    assert play()[1:] == (0, 1)
    env.reset(seed=2)
    assert env.unwrapped.games == 2
    whole = made(game, dim=84, frameskip=1, terminal_on_life_loss=False)
    whole.reset(seed=0)
    frames = [whole.step(0) for _ in range(19)]  # at least 9 were before
    assert [terminated for _, _, terminated, *_ in frames].index(True) >= 10


def test_colgame_here_stay_where_they_are_asked_for_and_a_game_without_dim_is_as_it_is(game):
    assert made(game, dim=84, grayscale=False).observation_space.shape == (84, 84, 12)
    assert isinstance(made(game, frameskip=1).unwrapped, Countdown)
    assert made(game).observation_space.shape == (210, 160, 3)
    with pytest.raises(UsageError, match=r"cannot be made.*dims"):
        made(game, dims=84)


# RLlib's configurations


def old(game, **settings):
    return from_rllib({"env": game.removeprefix("gym:"), "num_workers": 1, **settings})


def test_the_old_stack_wraps_a_game_by_its_name_as_rllib_does(game):
    config = old(game, env_config={"frameskip": 1}).config
    assert config.env == game and config.clip_rewards == "sign"
    assert dict(config.env_args) == {"frameskip": 1, "dim": 84, "framestack": 4}
    assert (config.conv_filters, config.fcnet_hiddens) == (((16, 8, 4), (32, 4, 2)), (256,))
    other = old(game, model={"dim": 42, "framestack": False, "grayscale": True}, clip_rewards=5)
    assert dict(other.config.env_args) == {"dim": 42, "framestack": 1}
    assert other.config.clip_rewards == 5 and not other.rows[0].why
    assert "RLlib's wrappers of Atari's games" in str(other)
    assert old(game, clip_rewards=False).config.clip_rewards is None
    assert old(game, clip_rewards=None).config.clip_rewards == "sign"


def test_a_game_is_evaluated_whole_and_the_rows_say_that_training_plays_lives(game):
    evaluated = lambda **settings: old(game, evaluation_interval=5, **settings)
    arguments = lambda **settings: dict(evaluated(**settings).run_settings["evaluation_env_args"])
    assert arguments() == {"terminal_on_life_loss": False}
    inner = {"env_config": {"frameskip": 1}}
    assert arguments(evaluation_config=inner) == {"terminal_on_life_loss": False, "frameskip": 1}
    assert "evaluation_env_args" not in old(game).run_settings
    stopped = old(game, stop={"episode_reward_mean": 200, "time_total_s": 60})
    assert stopped.run_settings["stop"]["env_runners/episode_return_mean"] == 200
    said = [row.why for row in stopped.rows if "of single lives, RLlib's of whole games" in row.why]
    assert len(said) == 2
    assert any("stop by evaluation/env_runners/episode_return_mean" in why for why in said)
    new = from_rllib({"env": NAME, "num_env_runners": 1, "evaluation_interval": 5})
    assert "evaluation_env_args" not in new.run_settings


def test_the_new_stack_and_a_game_without_its_preference_are_left_as_they_are(game):
    new = from_rllib({"env": NAME, "num_env_runners": 1}).config
    raw = old(game, preprocessor_pref=None, model={"dim": 42}).config
    for config in (new, raw):
        assert (config.env, config.env_args, config.clip_rewards) == (game, (), None)
    assert from_rllib({"env": "CartPole-v1", "num_workers": 1}).config.clip_rewards is None


def test_a_game_that_a_function_makes_is_refused_for_rllib_would_wrap_it(game):
    with pytest.raises(UsageError, match=r"RLlib wraps this game: give its name.*or preproc"):
        from_rllib({"env": lambda: gymnasium.make(NAME), "num_workers": 1})


def test_old_names_of_atari_are_games_too():
    wrapped = lambda env: wrappers_of(f"gym:{env}", {}, new_stack=False)
    assert wrapped("BreakoutNoFrameskip-v4") == wrapped("ale_py:ALE/Pong-v5")
    assert wrapped("BreakoutNoFrameskip-v4") == {"dim": 84, "framestack": 4}
    assert wrapped("CartPole-v1") == {}


# With the emulator


def test_a_game_of_breakout_is_that_of_rllibs_wrappers_step_by_step():
    wrappers = pytest.importorskip("ray.rllib.env.wrappers.atari_wrappers")
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    pytest.importorskip("cv2")
    arguments = {"frameskip": 1, "repeat_action_probability": 0.0}
    game_here = made("gym:ALE/Breakout-v5", dim=84, framestack=4, **arguments)
    game_there = gymnasium.make("ALE/Breakout-v5", **arguments)
    game_there = wrappers.wrap_deepmind(game_there, dim=84, framestack=True, noframeskip=True)
    assert game_here.observation_space.shape == game_there.observation_space.shape
    draws, ends = np.random.default_rng(0), 0
    pairs = [env.reset(seed=3)[0] for env in (game_here, game_there)]
    for _ in range(800):
        assert np.abs(pairs[0].astype(float) - pairs[1]).mean() < 2  # in how grey a colour is
        action = int(draws.integers(4))
        results = [env.step(action) for env in (game_here, game_there)]
        assert results[0][1:4] == results[1][1:4]
        pairs = [obs for obs, *_ in results]
        if results[0][2] or results[0][3]:
            ends += 1
            pairs = [env.reset(seed=ends)[0] for env in (game_here, game_there)]
    assert ends > 10


@pytest.mark.parametrize("env", ["ALE/Breakout-v5", "BreakoutNoFrameskip-v4"])
def test_games_of_the_emulator_are_wrapped_by_their_names(env):
    pytest.importorskip("ale_py"), pytest.importorskip("cv2")
    config = from_rllib({"env": env, "num_workers": 1}).config
    assert config.setup().env.observation_space("default_agent").shape == (84, 84, 4)
