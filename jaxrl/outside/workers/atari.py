"""Atari's games as RLlib's old stack plays them: small grey pictures, skipped and stacked frames.

    gym:ALE/Pong-v5    env_args={"dim": 84, "framestack": 4}

These are the wrappers of Mnih et al. 2015: up to 30 no-ops after a reset, one action for
four frames, the brighter of the last two of them, a life as an episode, FIRE where a game waits for
it. Gymnasium has the first three; a life and FIRE are as in RLlib. This module must not import JAX.
"""

from collections import deque
from typing import Any

import numpy as np

FRAMES = 4  # that a choice is played for, and that are stacked by framestack=True
NOTHING, FIRE, UP = 0, 1, 2  # actions


def wrapped(
    game: Any,
    *,
    dim: int = 84,
    framestack: int | bool = True,
    grayscale: bool = True,
    terminal_on_life_loss: bool = True,
) -> Any:
    """A game of Atari's in its wrappers.

    A game that skips frames itself (frameskip=4) is left to do so; one that plays each (1) is
    stepped for four.

    Args:
        dim: height and width of the pictures.
        framestack: how many of them an observation holds, along its last axis; True: 4.
        terminal_on_life_loss: whether an episode is one life; the next one plays on.
    """
    from gymnasium.wrappers import AtariPreprocessing

    skips_itself = getattr(game.unwrapped, "_frameskip", 1) != 1
    env = AtariPreprocessing(
        game,
        frame_skip=1 if skips_itself else FRAMES,
        screen_size=int(dim),
        grayscale_obs=bool(grayscale),
        grayscale_newaxis=True,
    )
    if terminal_on_life_loss:
        env = OneLife(env)
    if "FIRE" in game.unwrapped.get_action_meanings():
        env = Fired(env)
    num_frames = FRAMES if framestack is True else int(framestack)
    return StackedFrames(env, num_frames) if num_frames > 1 else env


class Wrapper:
    """A `gymnasium.Env` around another one, which answers for what it does not change."""

    def __init__(self, env: Any):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # while it is copied
            raise AttributeError(name)
        return getattr(self.env, name)


class OneLife(Wrapper):
    """Each life is an episode. A reset plays on, and begins a new game only if the last is over."""

    def __init__(self, env: Any):
        super().__init__(env)
        self._lives, self._is_over = 0, True

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        if not self._is_over:
            obs, _, terminated, truncated, info = self.env.step(NOTHING)
            self._is_over = terminated or truncated
        if self._is_over:
            obs, info = self.env.reset(seed=seed, options=options)
        self._lives, self._is_over = self.env.unwrapped.ale.lives(), False
        return obs, info

    def step(self, action: Any) -> tuple:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._is_over = terminated or truncated
        lives = self.env.unwrapped.ale.lives()
        is_lost = 0 < lives < self._lives  # with none left some games play on for a few frames
        self._lives = lives
        return obs, reward, terminated or is_lost, truncated, info


class Fired(Wrapper):
    """Presses FIRE and UP at a reset: some games wait for it."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        obs, info = self.env.reset(seed=seed, options=options)
        for action in (FIRE, UP):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(seed=seed, options=options)
        return obs, info


class StackedFrames(Wrapper):
    """The last frames along the last axis; at a reset all are the first one."""

    def __init__(self, env: Any, num_frames: int):
        from gymnasium.spaces import Box

        super().__init__(env)
        self._frames = deque(maxlen=num_frames)
        height, width, channels = env.observation_space.shape
        self.observation_space = Box(0, 255, (height, width, channels * num_frames), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([obs] * self._frames.maxlen)
        return self._stacked(), info

    def step(self, action: Any) -> tuple:
        obs, *results = self.env.step(action)
        self._frames.append(obs)
        return self._stacked(), *results

    def _stacked(self) -> np.ndarray:
        return np.concatenate(self._frames, axis=-1)
