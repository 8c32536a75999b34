"""Pictures of an episode, read back: frames, times, sizes, and captions that change."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from PIL import Image, ImageSequence

import jaxrl
from jaxrl import UsageError
from jaxrl.core.agent_steps import AgentSteps
from jaxrl.core.env import Environment
from jaxrl.play import video
from jaxrl.play.recording import EpisodeRecording
from jaxrl.play.video import (
    MAX_FRAMES,
    NAMED_AGENTS,
    caption,
    check_episode_picture,
    shown_steps,
    write_episode,
)
from tests.messages import refusal
from tests.probes import Probe


class State(struct.PyTreeNode):
    time: jax.Array


class Painter(Environment):
    """A grey picture, lighter with each step; wide or high as asked."""

    def __init__(self, height=120, width=160):
        self.height, self.width = height, width

    def render(self, state, params):
        return jnp.full((self.height, self.width, 3), 40 + state.time % 200, jnp.uint8)


class Noisy(Painter):
    def render(self, state, params):
        return jax.random.bits(jax.random.key(state.time), (self.height, self.width, 3), jnp.uint8)


def played(num_steps, agents=("default_agent",), env=None):
    ones, flags = np.ones(num_steps, np.float32), np.zeros(num_steps, bool)
    steps = AgentSteps(np.arange(num_steps + 1), ones, ones, ~flags, flags, flags, {})
    steps, states = dict.fromkeys(agents, steps), State(np.arange(num_steps + 1))
    return EpisodeRecording(env or Painter(), None, {}, steps, "truncated", states)


def read(path):
    """(frames u8[F, H, W, 3], their times in ms)."""
    with Image.open(path) as image:
        shown = [
            (np.asarray(frame.convert("RGB")), frame.info["duration"])
            for frame in ImageSequence.Iterator(image)
        ]
        return (
            np.stack([frame for frame, _ in shown]),
            [time for _, time in shown],
            image.info.get("loop"),
        )


@pytest.mark.parametrize(
    ("num_steps", "seconds"), [(20, (2, 4)), (100, (10, 15)), (500, (9, 13)), (3000, (9, 13))]
)
def test_a_gif_loops_at_a_pace_that_can_be_watched_and_holds_its_last_frame(
    tmp_path, num_steps, seconds
):
    write_episode(tmp_path / "episode.gif", played(num_steps, env=Painter()))
    frames, times, loop = read(tmp_path / "episode.gif")
    assert len(frames) == len(shown_steps(num_steps)) <= MAX_FRAMES
    assert loop == 0 and times[-1] == 1500 and len(set(times[:-1])) == 1
    assert seconds[0] <= sum(times[:-1]) / 1000 <= seconds[1]
    middle = frames[:, -10, 120, 0].astype(int)  # of the picture, below the caption
    np.testing.assert_allclose(
        middle, 40 + shown_steps(num_steps) % 200, atol=9
    )  # one palette for all
    assert [file.name for file in tmp_path.iterdir()] == ["episode.gif"]


def test_the_pace_may_be_set(tmp_path):
    write_episode(tmp_path / "episode.gif", played(10, env=Painter()), fps=20)
    assert read(tmp_path / "episode.gif")[1] == [50] * 10 + [1500]


@pytest.mark.parametrize("num_steps", [1, 2, 50, MAX_FRAMES - 1, MAX_FRAMES, 1001, 100_000])
def test_a_long_episode_is_shown_in_even_strides_with_its_first_and_last_state(num_steps):
    steps = shown_steps(num_steps)
    assert (steps[0], steps[-1]) == (0, num_steps) and 2 <= len(steps) <= MAX_FRAMES
    assert len(set(np.diff(steps)[:-1])) <= 1
    if num_steps < MAX_FRAMES:
        assert len(steps) == num_steps + 1


def test_the_caption_counts_steps_and_returns():
    def words(step, agents, returns, width=320):
        lines = caption(played(100, agents), step, np.array(returns), {"b": (9, 8, 7)}, width).lines
        return [[text for text, _ in line] for line in lines]

    assert words(7, ("solo",), [1.25]) == [["step 7 of 100", "return: 1.2"]]
    expected = [["step 7 of 100", "return: -2.0"], ["a: -2.0", "b: 0.0"]]
    assert words(7, ("a", "b"), [-2.0, -0.04]) == expected
    assert words(0, ("a", "b", "c"), [0, 0, 0])[1:] == [["a: 0.0", "b: 0.0"], ["c: 0.0"]]
    assert words(0, ("a_rather_long_name", "b"), [0, 0])[1:] == [
        ["a_rather_long_name: 0.0"],
        ["b: 0.0"],
    ]
    many = tuple(f"agent{i}" for i in range(NAMED_AGENTS + 1))
    assert words(0, many, range(5))[1:] == [["5 agents", "0.0 to 4.0 each"]]
    ((_, (_, colour)),) = caption(
        played(1, ("a", "b")), 0, np.zeros(2), {"b": (9, 8, 7)}, 320
    ).lines[1:]
    assert colour == (9, 8, 7)


def test_the_caption_is_on_the_picture_above_the_frame_in_the_agents_colours(tmp_path):
    class Coloured(Painter):
        agent_colors = {"a": (250, 0, 0), "b": (0, 0, 250)}  # noqa: RUF012

    write_episode(tmp_path / "episode.gif", played(30, ("a", "b"), env=Coloured()))
    frames, _, _ = read(tmp_path / "episode.gif")
    bar = frames[:, :-180].astype(int)  # 120 x 160, brought up to a width of 240
    assert frames.shape[1:] == (frames.shape[1], 240, 3) and 30 < bar.shape[1] < 80
    changed = np.abs(np.diff(bar, axis=0)).max(axis=(1, 2, 3))
    assert np.all(changed > 100)  # each step writes another number
    red, blue = bar[..., 0] - bar[..., 2] > 100, bar[..., 2] - bar[..., 0] > 100
    assert red[:, :, :120].any() and not red[:, :, 120:].any()
    assert blue[:, :, 120:].any() and not blue[:, :, :120].any()


def test_the_legend_is_a_line_of_discs_in_the_colours_of_the_picture(tmp_path):
    class Explained(Painter):
        legend = {"food": (0, 200, 0), "poison": (200, 0, 0)}  # noqa: RUF012

    for env, name in ((Painter(), "plain.gif"), (Explained(), "explained.gif")):
        write_episode(tmp_path / name, played(3, env=env))
    plain, explained = (
        read(tmp_path / name)[0].astype(int) for name in ("plain.gif", "explained.gif")
    )
    added = explained.shape[1] - plain.shape[1]
    assert 15 <= added <= 30
    line = explained[0, -180 - added : -180]
    green, red = line[..., 1] - line[..., 0] > 100, line[..., 0] - line[..., 1] > 100
    assert 20 < green.sum() < 200 and 20 < red.sum() < 200
    assert np.argwhere(green)[:, 1].max() < np.argwhere(red)[:, 1].min()  # food first


def test_large_frames_are_made_smaller_and_small_ones_larger(tmp_path):
    for size, expected in (
        ((800, 1000), (400, 500)),
        ((10, 8), (300, 240)),
        ((121, 251), (121, 252)),
    ):
        write_episode(tmp_path / "episode.gif", played(3, env=Painter(*size)))
        frames, _, _ = read(tmp_path / "episode.gif")
        height, width = frames.shape[1:3]
        assert width == expected[1]
        assert 20 <= height - expected[0] <= 40
        assert height % 2 == width % 2 == 0


@pytest.mark.long
def test_a_gif_that_would_be_too_large_shows_fewer_frames_at_the_same_speed(tmp_path, monkeypatch):
    write_episode(tmp_path / "large.gif", played(60, env=Noisy()))
    monkeypatch.setattr(video, "MAX_BYTES", (tmp_path / "large.gif").stat().st_size // 2)
    write_episode(tmp_path / "small.gif", played(60, env=Noisy()))
    assert (tmp_path / "small.gif").stat().st_size <= video.MAX_BYTES
    (large, slow, _), (small, fast, _) = read(tmp_path / "large.gif"), read(tmp_path / "small.gif")
    assert len(small) < len(large) and sum(slow) == pytest.approx(sum(fast), rel=0.1)
    np.testing.assert_array_equal(small[-1], large[-1])


def test_a_strip_has_a_dozen_frames_in_rows(tmp_path):
    write_episode(tmp_path / "strip.png", played(500, env=Painter()))
    with Image.open(tmp_path / "strip.png") as strip:
        assert strip.width == 4 * (240 + video.GAP) + video.GAP
        assert 3 * 180 < strip.height < 3 * 240
        tones = [strip.getpixel((column * 248 + 128, strip.height - 100))[0] for column in range(4)]
    steps = np.linspace(0, 500, 12).round()[-4:]
    np.testing.assert_allclose(tones, 40 + steps % 200, atol=1)
    write_episode(tmp_path / "strip.png", played(2, env=Painter()))  # fewer states than places
    with Image.open(tmp_path / "strip.png") as strip:
        assert strip.width == 3 * (240 + video.GAP) + video.GAP


def test_a_video_has_the_frames_and_holds_the_last_one(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    write_episode(tmp_path / "episode.mp4", played(40, env=Painter()), fps=10)
    command = [
        ffmpeg.get_ffmpeg_exe(),
        "-i",
        tmp_path / "episode.mp4",
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-",
    ]
    told = subprocess.run(command, capture_output=True, check=True)
    assert b"Duration: 00:00:05.50" in told.stderr
    frames = np.frombuffer(told.stdout, np.uint8).reshape(41 + 14, -1, 240, 3)
    middle = frames[:, -10, 120, 0].astype(int)
    np.testing.assert_allclose(middle, 40 + np.minimum(np.arange(55), 40), atol=4)
    assert [file.name for file in tmp_path.iterdir()] == ["episode.mp4"]


def test_mistakes_are_one_line_before_anything_is_played(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"must end in one of \.gif, \.mp4, \.png"):
        check_episode_picture(tmp_path / "episode.avi", Painter())
    with pytest.raises(UsageError, match="Probe has no render"):
        check_episode_picture(tmp_path / "episode.gif", Probe())
    with pytest.raises(UsageError, match="must end in"):
        jaxrl.render(played(1), tmp_path / "episode")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(UsageError, match=r"pip install 'jaxrl\[video\]'"):
        check_episode_picture(tmp_path / "episode.mp4", Painter())


def test_a_place_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with refusal("cannot be written"):
        write_episode(tmp_path / "file" / "episode.png", played(1, env=Painter()))
