"""Opening a page in the user's browser, where there is a screen."""

import contextlib
import os
import sys
import webbrowser

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # without these there is no screen on Linux


def open_page(address: str) -> bool:
    """Opens the address in the browser; returns whether it could, and never fails.

    A browser of the terminal is not opened, for it would take the terminal from the training.
    """
    has_screen = sys.platform in ("darwin", "win32") or any(map(os.environ.get, SCREENS))
    if not has_screen:
        return False
    with contextlib.suppress(Exception):  # of any kind: the page can be opened by hand
        return webbrowser.open(address)
    return False
