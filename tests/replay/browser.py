"""A headless Chromium for the tests of the replay page, driven by ChromeDriver over plain HTTP."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")
MISSING = None if CHROMIUM and DRIVER else "chromium and chromedriver are not installed"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--window-size=1280,900"),
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # of the WebDriver standard


class Browser:
    """One window. `profile` is an empty folder."""

    def __init__(self, profile):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.driver = subprocess.Popen(
            [DRIVER, f"--port={self.port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        options = {
            "binary": CHROMIUM,
            "args": [*FLAGS, f"--user-data-dir={profile}", "about:blank"],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self.session = ""
        self.wait(lambda: self._call("GET", "/status", session=False)["ready"])
        made = self._call(
            "POST", "/session", {"capabilities": {"alwaysMatch": wanted}}, session=False
        )
        self.session = f"/session/{made['sessionId']}"

    def close(self):
        try:
            self._call("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()

    def open(self, address):
        self._call("POST", "/url", {"url": str(address)})

    def run(self, script, *arguments):
        """The value that JavaScript returns in the page."""
        return self._call("POST", "/execute/sync", {"script": script, "args": arguments})

    def run_async(self, script, *arguments):
        """The value that JavaScript gives to its last argument, a function."""
        return self._call("POST", "/execute/async", {"script": script, "args": arguments})

    def inside(self, selector, script):
        """The value that JavaScript returns in a frame of the page."""
        frame = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", "/frame", {"id": frame})
        try:
            return self.run(script)
        finally:
            self._call("POST", "/frame/parent", {})

    def click(self, selector):
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        self._call("POST", f"/element/{found[ELEMENT]}/click", {})

    def press(self, *keys):
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self._call("POST", "/actions", {"actions": [source]})

    def show(self, scheme="light", size=None):
        """Sets the colour scheme that the page is asked for, and the window's size."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._devtools("Emulation.setEmulatedMedia", {"features": features})
        if size is not None:
            shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
            self._devtools("Emulation.setDeviceMetricsOverride", shape)

    def picture(self):
        """A PNG of the window."""
        return base64.b64decode(self._call("GET", "/screenshot"))

    def requests(self):
        """The addresses that pages asked for since the last call."""
        entries = self._call("POST", "/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self):
        """What the console has shown since the last call."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    @staticmethod
    def wait(holds, seconds=20.0):
        """Until `holds()` is true; what it returned."""
        last = time.monotonic() + seconds
        while True:
            try:
                if value := holds():
                    return value
            except OSError:  # the driver is not there yet
                pass
            assert time.monotonic() < last, "the browser did not get there in time"
            time.sleep(0.02)

    def _devtools(self, command, parameters):
        self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _call(self, method, path, body=None, *, session=True):
        address = f"http://127.0.0.1:{self.port}{self.session if session else ''}{path}"
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, content, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]
