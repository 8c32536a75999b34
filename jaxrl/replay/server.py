"""Live view of a run: its curves and an episode of its newest checkpoint, served on loopback."""

import contextlib
import json
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from jaxrl.core.errors import UsageError, one_line
from jaxrl.play.recording import episodes_to_show, record_episodes
from jaxrl.replay.page import Column, page_of, replay_data
from jaxrl.replay.replay import players_of_run
from jaxrl.run.logging.curves import MAX_LINES, Curves, aligned
from jaxrl.run.logging.panels import panels_of
from jaxrl.run.logging.result_rows import read_result
from jaxrl.run.results import lookup
from jaxrl.run.storage import checkpoint, own_files, run_folder
from jaxrl.run.storage.runs import METRICS

HOST, PORT = "127.0.0.1", 8765
LOOK_SECONDS = 2.0  # between two looks at the run's folder
MAX_POINTS = 400  # of a curve as it is sent
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LiveRun:
    """The present contents of a run's folder."""

    def __init__(self, folder: Path, *, trust: bool = False):
        self.folder, self.facts, self.trust = folder, run_folder.read(folder), trust
        self._panels = panels_of(self.facts)
        self._lock = threading.Lock()
        self._curves, self._read, self._last = Curves(self._panels), 0, None
        self._num_damaged = 0  # lines of the log
        self._episode: tuple[int, dict[str, Any] | None] = (0, None)  # number, data
        self._played, self._trouble = None, "" if self._has_checkpoint() else "no checkpoint yet"

    def status(self, known_episode: int) -> dict[str, Any]:
        """The contents of the page; the episode only if its number is not `known_episode`."""
        with self._lock:
            self._read_log()
            number, episode = self._episode
            return {
                "title": self.facts.get("env_name", ""),
                "note": self._note(),
                "curves": curves_data(self._curves, self._panels),
                "number": number,
                "episode": None if number == known_episode else episode,
            }

    def play_newest(self) -> None:
        """Plays an episode where there is a checkpoint that was not played yet."""
        if not self._has_checkpoint():
            return
        if self._played is None:
            self._trouble = "the newest checkpoint begins to play"  # which compiles for a while
        stamp = None
        try:
            found = checkpoint.find(self.folder)
            stamp = found, (found / checkpoint.FACTS).stat().st_mtime_ns
            if stamp == self._played:
                return
            players = players_of_run(self.folder, "last", {"trust": self.trust})
            shown = episodes_to_show(players.seed, explore=True)  # as training plays
            recordings = tuple(record_episodes(players, shown))
            column = Column(players.name, recordings, "sampled actions")
            data = replay_data([column], note=self.folder.name)
        except Exception as error:  # of an environment, or of a folder that is being written
            with self._lock:
                self._trouble = one_line(error)
                self._played = stamp  # not again until there is another checkpoint
            return
        with self._lock:
            self._episode = self._episode[0] + 1, data
            self._played, self._trouble = stamp, ""

    def _has_checkpoint(self) -> bool:
        return any(checkpoint.both_kinds(self.folder / checkpoint.CHECKPOINTS))

    def _read_log(self) -> None:
        """Adds the lines that are new in the log; one that was cut back is read from its start."""
        path = self.folder / METRICS
        try:
            with open(path, "rb", opener=own_files.only_files) as file:
                size = file.seek(0, 2)
                if size < self._read:
                    self._curves, self._read, self._num_damaged = Curves(self._panels), 0, 0
                file.seek(self._read)
                new = file.read(size - self._read)
        except OSError:  # before the first iteration, or removed meanwhile
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = whole.split(b"\n")[:-1]
        results = [result for result in map(read_result, lines) if result is not None]
        self._num_damaged += len(lines) - len(results) + self._curves.add(results)
        if results:
            self._last = results[-1]

    def _note(self) -> str:
        parts = [self.folder.name]
        if self._last is not None:
            steps = self._last.get("num_env_steps_sampled_lifetime", 0)
            iteration = self._last.get("training_iteration", 0)
            parts.append(f"iteration {iteration:,}, {steps:,} steps")
            value = lookup(self._last, "env_runners/episode_return_mean")
            if isinstance(value, int | float):
                parts.append(f"return {value:.2f}")
        if self._num_damaged:
            parts.append(f"damaged lines, or results that are no numbers: {self._num_damaged:,}")
        if self._trouble:
            parts.append(self._trouble)
        return " · ".join(parts)


def curves_data(curves: Curves, panels: Any) -> list[dict[str, Any]]:
    """The panels of a run's curves: [{"title", "lines": [{"name", "xs", "ys"}]}]."""
    series = curves.series()
    titles = {"return": "return", **{panel.name: panel.title for panel in panels}}
    shown: dict[str, list[dict[str, Any]]] = {name: [] for name in titles}
    for name, (steps, values) in series.items():
        kind = name.partition("/")[0]
        panel = "return" if kind in ("agent", "evaluation") else kind
        if panel not in shown or not len(steps):
            continue
        rows = np.unique(np.linspace(0, len(steps) - 1, MAX_POINTS).astype(int))
        points = {"xs": steps[rows].tolist(), "ys": [float(f"{y:.6g}") for y in values[rows]]}
        shown[panel].append({"name": name, **points})
    for lines in shown.values():
        whole = [line for line in lines if line["name"] in ("return", "evaluation")]
        parts = [line for line in lines if line not in whole]
        if len(parts) > MAX_LINES:
            steps, values = aligned([(np.array(x["xs"]), np.array(x["ys"])) for x in parts])
            mean = {"xs": steps.tolist(), "ys": values.mean(axis=0).tolist()}
            parts = [{"name": f"mean of {len(parts)}", **mean}]
        lines[:] = [*whole, *parts]
    return [{"title": titles[name], "lines": lines} for name, lines in shown.items() if lines]


class LiveServer(ThreadingHTTPServer):
    """Serves two things, to this machine alone: the page at `/`, and what it shows at `/live`.

    Raises:
        UsageError: the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, run: LiveRun, port: int = PORT):
        self.run, self.page = run, page_of(None).encode()
        try:
            super().__init__((HOST, port), LiveHandler)
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used ({error.strerror or error}); choose another, "
                "--port 0 any that is free"
            ) from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The Host headers that are accepted; others are refused (DNS rebinding)."""
        return tuple(f"{name}:{self.server_port}" for name in (HOST, "localhost"))

    def serve(self) -> None:
        """Serves, and plays what is new, until Ctrl-C; that waits while a program is compiled."""
        # JAX in the main thread: Python cannot end while another one is inside of it.
        threading.Thread(target=self.serve_forever, daemon=True).start()
        try:
            while True:
                self.run.play_newest()
                time.sleep(LOOK_SECONDS)
        finally:
            self.shutdown()
            self.server_close()


class LiveHandler(BaseHTTPRequestHandler):
    """Answers GET of the two paths; nothing of a request becomes a file's name."""

    server: LiveServer
    server_version, sys_version = "jaxrl", ""

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"not this host\n")
        elif path.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        elif path.path == "/live":
            page_episode = parse_qs(path.query).get("episode", ["0"])[0]
            if not page_episode.isdecimal() or len(page_episode) >= 10:
                page_episode = "0"
            status = self.server.run.status(int(page_episode))
            content = json.dumps(status, separators=(",", ":"), allow_nan=False).encode()
            self._answer(HTTPStatus.OK, "application/json", content)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"not found\n")

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the page was closed meanwhile
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Says nothing: a page asks every two seconds."""
