"""Video of an episode: a moving picture or a strip, with step and returns above each frame.

Needs no screen and no font: everything is painted into arrays, with the font that Pillow brings
along.
"""

import contextlib
import io
import itertools
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxrl.core.env import MultiAgentEnvironment
from jaxrl.core.errors import UsageError, brief, is_installed, require
from jaxrl.play.recording import EpisodeRecording, check_can_render, frames
from jaxrl.run.storage import own_files

ENDINGS = (".gif", ".mp4", ".png")
LONGEST_SIDE = 500  # pixels of a frame
SHORTEST_WIDTH = 240  # so that its caption can be read
TILE_SIDE, STRIP_FRAMES, STRIP_COLUMNS, GAP = 240, 12, 4, 8
MAX_FRAMES, MAX_BYTES = 130, 3_000_000  # of a moving picture, and of a GIF
SECONDS, LAST_FRAME = 11.0, 1.5  # s: of all frames, and of the last
SLOWEST, FASTEST = 0.12, 0.04  # s: of one frame
NAMED_AGENTS = 4  # of more there is one line for all
PALETTE_FRAMES = 12

Colour = tuple[int, int, int]  # red, green, blue, 0 to 255
PAPER, INK, QUIET, RULE = (255, 255, 255), (32, 36, 44), (104, 110, 120), (206, 208, 206)


def write_episode(
    path: str | Path, recording: EpisodeRecording, *, fps: float | None = None
) -> None:
    """Writes a recording, by the file's ending: a looping GIF, an MP4, or a PNG strip of frames.

    Args:
        fps: frames per second; default: so that the episode takes some ten seconds, a short one
            less. Of episodes of more than `MAX_FRAMES` steps every second, third ... is shown.

    Raises:
        UsageError: see `check_episode_picture`.
    """
    path = Path(path)
    check_episode_picture(path, recording.env)
    if path.suffix == ".png":
        steps = np.unique(np.linspace(0, recording.num_steps, STRIP_FRAMES).round().astype(int))
        content = _png(list(_captioned(recording, recording.shown(steps), TILE_SIDE)))
        write_file(path, lambda temporary: temporary.write_bytes(content))
        return
    steps = recording.shown(shown_steps(recording.num_steps))
    delay = 1 / fps if fps else min(max(SECONDS / len(steps), FASTEST), SLOWEST)
    shown = _captioned(recording, steps, LONGEST_SIDE)
    if path.suffix == ".mp4":
        write_file(path, lambda temporary: _write_mp4(temporary, shown, delay))
    else:
        content = _gif(list(shown), delay)
        write_file(path, lambda temporary: temporary.write_bytes(content))


def png_frames(recording: EpisodeRecording) -> tuple[np.ndarray, list[bytes]]:
    """(steps, a PNG of each) without captions, of at most `MAX_BYTES` together.

    Raises:
        UsageError: no Pillow, or an environment without `render`.
    """
    require("PIL", "the frames of a replay page", "pillow")
    from PIL import Image

    steps = recording.shown(shown_steps(recording.num_steps))
    shown = []
    for frame in frames(recording, steps):
        picture = Image.fromarray(frame)
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        file = io.BytesIO()
        picture.quantize(255, dither=0).save(file, "PNG", optimize=True)
        shown.append(file.getvalue())
    while sum(map(len, shown)) > MAX_BYTES and len(shown) > STRIP_FRAMES:
        # Every second one goes; the last stays.
        steps, shown = np.append(steps[:-1:2], steps[-1]), [*shown[:-1:2], shown[-1]]
    return steps, shown


def check_ending(path: str | Path) -> None:
    """Raises UsageError for an unknown ending, or one whose package is missing."""
    if Path(path).suffix not in ENDINGS:
        raise UsageError(
            f"picture of an episode {brief(str(path))}: the name must end in one of "
            f"{', '.join(ENDINGS)}; a page that plays is jaxrl.replay(...).save('episode.html')"
        )
    if Path(path).suffix == ".mp4" and not is_installed("imageio_ffmpeg"):
        raise UsageError(
            f"{path}: writing mp4 needs imageio[ffmpeg]; pip install 'jaxrl[video]', or write a "
            ".gif"
        )


def check_episode_picture(path: str | Path, env: MultiAgentEnvironment) -> None:
    """Raises UsageError for an unknown ending, a missing package, an env without pictures."""
    check_ending(path)
    require("PIL", Path(path).name, "pillow")
    check_can_render(env)


def shown_steps(num_steps: int) -> np.ndarray:
    """The states of an episode that are shown: at most `MAX_FRAMES`, the first and the last too."""
    stride = -(-num_steps // (MAX_FRAMES - 1)) or 1
    return np.unique([*range(0, num_steps, stride), num_steps])


@dataclass(frozen=True)
class Caption:
    """The bar above a frame: lines of (text, colour) that are spread over its width."""

    lines: tuple[tuple[tuple[str, Colour], ...], ...]
    # a last line: discs of these colours, each with its name
    legend: tuple[tuple[str, Colour], ...] = ()


def caption(
    recording: EpisodeRecording,
    step: int,
    returns: np.ndarray,
    colours: Mapping[str, Colour],
    width: int,
    legend: Mapping[str, Colour] = MappingProxyType({}),
) -> Caption:
    """Step and summed return; below these the agents' own, unless there is but one.

    Args:
        returns: f64[M], running.
        colours: by agent; others are written in ink.
        width: pixels; agents whose names are long get a line each.
        legend: what else the picture shows.
    """
    named = tuple(legend.items())
    head = (
        (f"step {step} of {recording.num_steps}", QUIET),
        (f"return: {_number(returns.sum())}", INK),
    )
    agents = recording.agents
    if len(agents) == 1:
        return Caption((head,), named)
    if len(agents) > NAMED_AGENTS:
        low, high = _number(returns.min()), _number(returns.max())
        span = low if low == high else f"{low} to {high}"
        return Caption((head, ((f"{len(agents)} agents", QUIET), (f"{span} each", INK))), named)
    by_agent = []
    for agent, value in zip(agents, returns, strict=True):
        by_agent.append((f"{agent}: {_number(value)}", colours.get(agent, INK)))
    columns = 1 if max(map(len, agents)) * 22 > width else 2
    lines = (tuple(by_agent[i : i + columns]) for i in range(0, len(agents), columns))
    return Caption((head, *lines), named)


def _number(value: float) -> str:
    """One decimal, and no minus before a zero."""
    return f"{round(float(value), 1) + 0.0:.1f}"


def _captioned(recording: EpisodeRecording, steps: np.ndarray, side: int) -> Iterator[Any]:
    """Pillow images of these states, of even sides for video, the longer about `side` pixels."""
    from PIL import Image

    returns, env = recording.running_returns, recording.env
    colours = {agent: tuple(colour) for agent, colour in getattr(env, "agent_colors", {}).items()}
    legend = {name: tuple(colour) for name, colour in getattr(env, "legend", {}).items()}
    for step, frame in zip(steps, frames(recording, steps), strict=True):
        height, width = frame.shape[:2]
        scale = min(1.0, side / max(height, width))
        if width * scale < SHORTEST_WIDTH:
            scale = SHORTEST_WIDTH / width
        size = round(width * scale), round(height * scale)
        picture = Image.fromarray(frame)
        if size != picture.size:
            method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
            picture = picture.resize(size, method)
        text = caption(recording, int(step), returns[step], colours, size[0], legend)
        yield _under(picture, text)


def _under(picture: Any, text: Caption) -> Any:
    """`picture` with the caption's bar on top of it."""
    from PIL import Image, ImageDraw, ImageFont

    size = 17 if picture.width >= 320 else 14
    line, margin = size + 6, 7
    bar = line * (len(text.lines) + bool(text.legend)) + margin
    width, height = picture.width + picture.width % 2, picture.height + bar
    whole = Image.new("RGB", (width, height + height % 2), PAPER)
    whole.paste(picture, (0, bar))
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(size)
    draw.line((0, bar - 1, width, bar - 1), fill=RULE)
    for i, parts in enumerate(text.lines):
        y = i * line + line / 2 + margin / 2
        for j, (words, colour) in enumerate(parts):
            # The second of two ends at the right edge, so that a growing number moves nothing else.
            x, anchor = (margin, "lm") if j == 0 else (width - margin, "rm")
            draw.text((x, y), words, fill=colour, font=font, anchor=anchor)
    x, y, radius = margin, len(text.lines) * line + line / 2 + margin / 2, size // 3
    for words, colour in text.legend:
        draw.ellipse((x, y - radius, x + 2 * radius, y + radius), fill=colour)
        draw.text((x + 2 * radius + 4, y), words, fill=QUIET, font=font, anchor="lm")
        x += 2 * radius + 4 + int(font.getlength(words)) + 14
    return whole


def _gif(pictures: list[Any], delay: float) -> bytes:
    """A looping GIF; one that would be too large loses every second frame, at the same speed."""
    palette = _palette(pictures)
    indexed = [picture.quantize(palette=palette, dither=0) for picture in pictures]
    while True:
        frame = max(round(100 * delay), 2) * 10  # ms, in tens
        times = [*[frame] * (len(indexed) - 1), round(1000 * LAST_FRAME)]
        file = io.BytesIO()
        indexed[0].save(
            file,
            "GIF",
            save_all=True,
            append_images=indexed[1:],
            duration=times,
            loop=0,
            optimize=True,
            disposal=1,
        )
        if file.tell() <= MAX_BYTES or len(indexed) <= STRIP_FRAMES:
            return file.getvalue()
        indexed, delay = [*indexed[:-1:2], indexed[-1]], 2 * delay


def _palette(pictures: list[Any]) -> Any:
    """One palette for all frames, from every fourth pixel of some: a frame stores only changes."""
    from PIL import Image

    some = []
    for i in np.unique(np.linspace(0, len(pictures) - 1, PALETTE_FRAMES).round().astype(int)):
        half = pictures[i].width // 2, pictures[i].height // 2
        some.append(pictures[i].resize(half, Image.Resampling.NEAREST))
    width, height = some[0].size
    together = Image.new("RGB", (width, height * len(some)))
    for i, picture in enumerate(some):
        together.paste(picture, (0, i * height))
    return together.quantize(255, method=Image.Quantize.MEDIANCUT)


def _write_mp4(path: Path, pictures: Iterator[Any], delay: float) -> None:
    """Streams the frames through imageio's ffmpeg, by our own pipe: JAX warns of imageio's fork."""
    import imageio_ffmpeg

    first = next(pictures)
    size = f"{first.width}x{first.height}"
    raw_in = f"-f rawvideo -pix_fmt rgb24 -s {size} -r {1 / delay:g} -i -"
    mp4_out = "-c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart"
    program = imageio_ffmpeg.get_ffmpeg_exe()
    command = [program, "-loglevel", "error", "-y", *raw_in.split(), *mp4_out.split(), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as ffmpeg:
        try:
            for picture in itertools.chain([first], pictures):
                frame = picture.tobytes()
                ffmpeg.stdin.write(frame)
            for _ in range(round(LAST_FRAME / delay) - 1):
                ffmpeg.stdin.write(frame)
        except BrokenPipeError:  # it has given up, and says why
            pass
        _, reason = ffmpeg.communicate()
    if ffmpeg.returncode:
        raise OSError(
            "ffmpeg: "
            f"{reason.decode(errors='replace').strip().splitlines()[-1:] or ffmpeg.returncode}"
        )


def _png(pictures: list[Any]) -> bytes:
    """The frames in rows of `STRIP_COLUMNS`."""
    from PIL import Image

    columns = min(STRIP_COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    width, height = pictures[0].width + GAP, pictures[0].height + GAP
    strip = Image.new("RGB", (columns * width + GAP, rows * height + GAP), RULE)
    for i, picture in enumerate(pictures):
        strip.paste(picture, (GAP + i % columns * width, GAP + i // columns * height))
    file = io.BytesIO()
    strip.save(file, "PNG", optimize=True)
    return file.getvalue()


def write_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes beside `path` and renames, so that nobody meets half a file."""
    temporary = own_files.temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):  # it has its name, or there is no folder to hold it
            temporary.unlink()
