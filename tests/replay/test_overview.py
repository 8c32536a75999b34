"""The page of a run and of a sweep in a headless Chromium: curves, table, warnings, both themes."""

import contextlib
import io
import os
import threading
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image

from jaxrl.core.errors import UsageError
from jaxrl.replay.live_run import LiveRun
from jaxrl.replay.live_sweep import LiveSweep
from jaxrl.replay.run_pages import write_report
from jaxrl.replay.server import LiveServer
from jaxrl.run.storage import checkpoint
from tests.replay.browser import MISSING, Browser
from tests.replay.test_live_run import clipped, rewritten
from tests.replay.test_live_sweep import make_sweep

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    window = Browser(tmp_path_factory.mktemp("profile"))
    yield window
    window.close()


def words(browser, selector):
    return browser.run(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
    )


@pytest.fixture
def sweep(browser, tmp_path):
    """The report of a sweep of four trials, one of which did not begin."""
    path = write_report(make_sweep(tmp_path / "sweep", [0.1, 0.2], finished=2), checkpoints=[])
    return opened(browser, path)


def opened(browser, path):
    browser.show("light", (1200, 800))
    browser.requests(), browser.complaints()
    browser.open(path.as_uri())
    browser.wait(lambda: words(browser, ".panel canvas") != [])
    return path


def hover(browser, share):
    """Moves the mouse to a share of the first panel's width."""
    browser.run(
        "const plot = document.querySelector('.u-over'), box = plot.getBoundingClientRect();"
        "const [clientX, clientY] = [box.left + arguments[0] * box.width, box.top + 20];"
        "plot.dispatchEvent(new MouseEvent('mousemove', { clientX, clientY, bubbles: true }));",
        share,
    )


def test_a_report_is_complete_without_a_network_and_has_no_errors(browser, sweep):
    asked = [
        address for address in browser.requests() if not address.startswith(("data:", "chrome"))
    ]
    assert asked == [sweep.as_uri()]
    assert browser.complaints() == []


def test_hovering_says_the_step_and_the_values_there_in_all_panels(browser, sweep):
    legend = ".panel:first-child .legend b"
    assert words(browser, legend) == ["20", "5"]  # the last medians: of 20, and of 0 and 10
    hover(browser, 0.0)
    browser.wait(lambda: words(browser, ".panel:first-child .step") == ["step 100"])
    assert words(browser, legend) == ["6.667", "1.667"]  # a third of the way
    steps = set(words(browser, ".step"))
    assert steps == {"step 100"} and len(words(browser, ".step")) > 1
    titles = browser.run("return [...document.querySelectorAll('.legend b')].map(b => b.title)")
    assert titles[1] == "from 0 to 3.333"


def test_a_click_on_a_columns_head_sorts_the_trials_and_another_turns_them(browser, sweep):
    trials = lambda: words(browser, "#trials td:first-child")
    assert trials() == ["0002", "0001", "0000", "0003"]  # by the score, what has none comes last
    browser.click("#trials th:nth-child(1) button")
    assert trials() == ["0000", "0001", "0002", "0003"]
    browser.click("#trials th:nth-child(1) button")
    assert trials() == ["0003", "0002", "0001", "0000"]
    browser.click("#trials th:nth-child(3) button")  # seeds, the largest first
    assert words(browser, "#trials td:nth-child(3)") == ["1", "1", "0", "0"]
    assert browser.run("return document.activeElement.textContent") == "seed"
    sorts = browser.run("return document.querySelectorAll('th[aria-sort=descending]').length")
    assert sorts == 1


def test_a_phone_shows_the_page_without_scrolling_sideways(browser, sweep):
    browser.show("light", (375, 800))
    wide = "return document.documentElement.scrollWidth"
    browser.wait(lambda: browser.run(wide) <= 375)
    assert browser.run("return document.querySelector('.panel').clientWidth") > 300


def test_the_curves_change_with_the_colour_scheme(browser, sweep):
    def ink():
        """The darkest and the lightest grey of the first panel."""
        picture = Image.open(io.BytesIO(browser.picture())).convert("L")
        return picture.crop((30, 70, 300, 250)).getextrema()

    light = ink()
    browser.show("dark")
    browser.wait(lambda: ink()[0] < 60)
    assert light[1] == 255 and ink()[1] < 255


@contextlib.contextmanager
def live_page(browser, live):
    """The page of a run or a sweep from its server, looked at by the browser."""
    server = LiveServer(live, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        browser.show("light", (1200, 800))
        browser.requests(), browser.complaints()
        browser.open(server.address)
        browser.wait(lambda: words(browser, ".panel canvas") != [])
        yield
        assert browser.complaints() == []
    finally:
        server.shutdown()
        server.server_close()


def look_now(browser):
    """Has the page ask its server now, not after two seconds."""
    browser.run("hurry()")


def test_the_live_page_follows_the_log_and_shows_warnings(browser, run):
    rewritten(run, clipped, 3)
    live = LiveRun(run)
    live.play()
    with live_page(browser, live):
        browser.wait(lambda: "iteration 3" in words(browser, "#note")[0])
        browser.wait(lambda: words(browser, "h2") != [])
        assert words(browser, "#which button") == ["newest checkpoint", "untrained, best and last"]
        assert words(browser, "#warnings li") == []
        rewritten(run, clipped, 12)
        browser.wait(lambda: "iteration 12" in words(browser, "#note")[0])
        (warning,) = words(browser, "#warnings li")
        assert "most value targets (90%) are clipped" in warning


def test_a_newer_episode_is_sent_once_and_waits_for_the_end_of_the_present_one(browser, run):
    number = lambda: browser.run("return document.body.dataset.number")
    live = LiveRun(run)
    live.play()
    with live_page(browser, live):
        browser.wait(lambda: number() == "1")
        browser.run("play(false); go(3);")
        os.utime(checkpoint.find(run) / checkpoint.FACTS, (1000, 1000))  # a checkpoint of its own
        live.play()

        def numbers_sent():
            """The episode that the page says it has, of each time that it asked."""
            look_now(browser)
            asked = [urlsplit(address).query for address in browser.requests()]
            return [parse_qs(query)["episode"] for query in asked if query]

        browser.wait(lambda: ["2"] in numbers_sent())
        assert number() == "1" and browser.run("return time") == 3
        browser.wait(lambda: numbers_sent() == [["2"]])  # it is not sent again
        browser.run("go(steps());")
        look_now(browser)
        browser.wait(lambda: number() == "2")


def test_what_stays_the_same_on_a_live_page_is_not_built_again(browser, tmp_path):
    folder = make_sweep(tmp_path / "sweep", [0.1, 0.2], finished=3)
    results = folder / "results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:2]))
    focused = lambda: browser.run("return document.activeElement.textContent")
    with live_page(browser, LiveSweep(folder)):
        browser.wait(lambda: "2 of 4 trials" in words(browser, "#note")[0])
        browser.click("#trials th:nth-child(1) button")
        assert focused() == "trial"
        browser.run("window.plan = document.querySelector('#plan dd')")
        results.write_text("".join(lines))
        look_now(browser)
        browser.wait(lambda: "3 of 4 trials" in words(browser, "#note")[0])
        assert words(browser, "#trials td:nth-child(4)")[2] == "terminated"
        assert focused() == "trial" and browser.run("return window.plan.isConnected")


def test_a_live_page_says_what_is_wrong_with_the_folder_beside_what_it_showed_last(
    browser, tmp_path, monkeypatch
):
    live = LiveSweep(make_sweep(tmp_path / "sweep", [0.1], finished=1))
    with live_page(browser, live):
        assert "1 of 2 trials" in words(browser, "#note")[0]

        def damaged(*_, **__):
            raise UsageError("the folder is damaged")

        monkeypatch.setattr(live, "status", damaged)
        look_now(browser)
        browser.wait(lambda: words(browser, "#note") == ["the folder is damaged"])
        assert words(browser, "#trials td:first-child") == ["0001", "0000"]  # the best first


def test_names_from_a_folder_are_text_and_no_page_of_their_own(browser, tmp_path):
    folder = make_sweep(tmp_path / "<img src=x onerror=alert(1)>", [0.1], finished=1)
    opened(browser, write_report(folder, tmp_path / "report.html", checkpoints=[]))
    assert "<img src=x" in words(browser, "#note")[0]
    assert browser.run("return document.images.length") == 0
