"""Opening a page in the user's browser, where there is a screen."""

import contextlib
import os
import sys
import webbrowser

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # without these there is no screen on Linux
IN_THE_TERMINAL = {"elinks", "links", "lynx", "w3m", "www-browser"}


def open_page(address: str) -> bool:
    """Opens the address in the browser; returns whether it could, and never fails.

    A browser of the terminal is not opened, for it would take the terminal from the training.
    """
    is_desktop = sys.platform in ("darwin", "win32") and "SSH_CONNECTION" not in os.environ
    if not (is_desktop or any(map(os.environ.get, SCREENS))):
        return False
    with contextlib.suppress(Exception):  # of any kind: the page can be opened by hand
        browser = webbrowser.get()
        if os.path.basename(getattr(browser, "name", "")) not in IN_THE_TERMINAL:
            return browser.open(address)
    return False
