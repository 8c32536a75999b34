"""Server of the page of a run or a sweep, for this machine alone."""

import contextlib
import json
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jaxrl.core.errors import UsageError, one_line
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
NOTHING = {"title": "", "warnings": [], "plan": [], "source": "", "curves": [], "number": 0}


class LiveServer(ThreadingHTTPServer):
    """Serves two things, to this machine alone: the page at `/`, and what it shows at `/live`.

    Raises:
        UsageError: the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, run: LiveRun | LiveSweep, port: int = PORT):
        self.run, self.page = run, live_page().encode()
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
                self.run.play()
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
            asked = parse_qs(path.query)
            page_episode = asked.get("episode", ["0"])[0]
            if not page_episode.isdecimal() or len(page_episode) >= 10:
                page_episode = "0"
            compared = asked.get("compared") == ["1"]
            try:
                status = self.server.run.status(int(page_episode), compared=compared)
            except UsageError as error:  # a file of the sweep that was damaged meanwhile
                status = {**NOTHING, "note": one_line(error)}
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
