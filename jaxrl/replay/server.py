"""Server of the page of a run or a sweep, for this machine alone."""

import contextlib
import json
import os
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jaxrl.core.errors import UsageError, explained, one_line
from jaxrl.replay.live_run import LiveRun
from jaxrl.replay.live_sweep import LiveSweep
from jaxrl.replay.run_pages import live_page

HOST, PORT = "127.0.0.1", 8765
LOOK_SECONDS = 2.0  # between two looks at the run's folder
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LiveServer(ThreadingHTTPServer):
    """Serves two things, to this machine alone: the page at `/`, and what it shows at `/live`.

    Raises:
        UsageError: the port cannot be had.
    """

    daemon_threads = True
    # On Windows the option would let another program have the same port at the same time.
    allow_reuse_address = os.name != "nt"

    def __init__(self, run: LiveRun | LiveSweep, port: int = PORT):
        self.run, self.page = run, live_page().encode()
        self._problem = ""  # why the last look found nothing to play
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
        """Serves, and plays what is new, until Ctrl-C."""
        # JAX in the main thread: Python cannot end while another one is inside of it.
        threading.Thread(target=self.serve_forever, daemon=True).start()
        try:
            while True:
                self.look()
                time.sleep(LOOK_SECONDS)
        finally:
            self.shutdown()
            self.server_close()

    def look(self) -> None:
        """Plays what is new; what goes wrong is said in the page, which lives on."""
        try:
            with explained("nothing could be played"):
                self.run.play()
            self._problem = ""
        except UsageError as error:  # a folder that was damaged or removed meanwhile
            self._problem = one_line(error)

    def contents(self, page_episode: int, *, compared: bool) -> bytes:
        """The answer at `/live`, as JSON: `LiveRun.status`, or the problem with the folder alone.

        Args:
            page_episode: the number of the episode that the page has.
            compared: as of `LiveRun.status`.
        """
        try:
            with explained("the folder could not be read"):
                status = self.run.status(page_episode, compared=compared)
                status["note"] = " · ".join(filter(None, [status["note"], self._problem]))
                return _as_json(status)
        except UsageError as error:
            return _as_json({"problem": one_line(error)})


def _as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


class LiveHandler(BaseHTTPRequestHandler):
    """Answers GET of the two paths; nothing of a request becomes a file's name."""

    server: LiveServer
    server_version, sys_version = "jaxrl", ""

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        is_foreign = self.headers.get("Sec-Fetch-Site") == "cross-site"
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"not this host\n")
        elif path.path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        elif path.path == "/live" and is_foreign:  # but a link may lead to the page itself
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"not for other sites\n")
        elif path.path == "/live":
            asked = parse_qs(path.query)
            page_episode = asked.get("episode", ["0"])[0]
            if not page_episode.isdecimal() or len(page_episode) >= 10:
                page_episode = "0"
            compared = asked.get("compared") == ["1"]
            content = self.server.contents(int(page_episode), compared=compared)
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
