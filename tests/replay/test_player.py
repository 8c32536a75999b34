"""The replay page in a headless Chromium: it plays, steps and scrubs, and loads nothing else."""

import io

import numpy as np
import pytest
from PIL import Image

from jaxrl.replay.page import Column, make_replay
from tests.play.test_recording import recorded, untrained
from tests.replay.browser import MISSING, Browser

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

ARENA = {"env_args": {"height": 4, "width": 5, "max_steps_in_episode": 30}}
LEFT, RIGHT, UP, HOME, END = "\ue012", "\ue014", "\ue013", "\ue011", "\ue010"  # WebDriver's names


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    window = Browser(tmp_path_factory.mktemp("profile"))
    yield window
    window.close()


@pytest.fixture(scope="module")
def episodes():
    """The arena's recordings, (likeliest, sampled): episodes 0 and 1 of two players."""
    arena = untrained("arena", **ARENA)
    return [recorded(arena, number=2, explore=how) for how in (False, True)]


@pytest.fixture
def opened(browser, episodes, tmp_path):
    """The page of both players, paused at the first step of episode 0."""
    likeliest, sampled = episodes
    columns = [Column("likeliest", likeliest), Column("sampled", sampled)]
    path = make_replay(columns).save(tmp_path / "episode.html")
    browser.show("light", (1280, 900))
    browser.requests(), browser.complaints()
    browser.open(path.as_uri())
    browser.wait(lambda: shown(browser, "step") is not None)
    browser.run("play(false); go(0);")
    browser.wait(lambda: shown(browser, "step") == "0")
    return path


def shown(browser, name):
    return browser.run(f"return document.body.dataset.{name}")


def words(browser, selector):
    return browser.run(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
    )


def test_nothing_leaves_the_page_and_it_has_no_errors(browser, opened):
    browser.click("#play")
    browser.wait(lambda: int(shown(browser, "step")) > 3)
    asked = [
        address for address in browser.requests() if not address.startswith(("data:", "chrome"))
    ]
    assert asked == [opened.as_uri()]
    assert browser.complaints() == []
    refused = "return fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')"
    assert browser.run(refused) == "refused"
    assert any("Content Security Policy" in line for line in browser.complaints())


def test_the_button_plays_and_pauses_and_an_episode_leads_to_the_next(browser, opened):
    browser.click("#play")
    browser.wait(lambda: int(shown(browser, "step")) > 2)
    assert shown(browser, "playing") == "true"
    browser.click("#play")
    browser.wait(lambda: shown(browser, "playing") == "false")
    browser.run("setSpeed(8); go(29); play(true);")
    browser.wait(lambda: shown(browser, "episode") == "1")
    browser.wait(lambda: shown(browser, "playing") == "false")
    assert shown(browser, "step") == "30"  # of the last episode, where it stays


def test_a_page_that_is_opened_plays_and_space_pauses_though_the_button_was_clicked(
    browser, opened
):
    browser.open(opened.as_uri())
    browser.wait(lambda: shown(browser, "playing") == "true" and shown(browser, "step") != "0")
    browser.click("#play")
    browser.wait(lambda: shown(browser, "playing") == "false")
    browser.press(" ")
    browser.wait(lambda: shown(browser, "playing") == "true")
    browser.press(" ")
    browser.wait(lambda: shown(browser, "playing") == "false")


def test_space_presses_the_button_that_has_the_focus_and_no_other(browser, opened):
    browser.click("#episodes button:nth-child(2)")
    browser.run("go(9)")
    browser.wait(lambda: shown(browser, "step") == "9")
    browser.press(" ")
    browser.wait(lambda: shown(browser, "step") == "0")  # the episode is chosen again
    assert shown(browser, "playing") == "false"
    browser.press(RIGHT)
    browser.wait(lambda: shown(browser, "step") == "1")


def test_several_episodes_have_buttons_and_a_click_on_the_chart_goes_there(browser, opened):
    assert words(browser, "#episodes button") == ["episode 0", "episode 1"]
    browser.click("#episodes button:nth-child(2)")
    browser.wait(lambda: shown(browser, "episode") == "1")
    browser.click(".chart canvas")  # its middle, which is right of step 15 by half the margin
    browser.wait(lambda: shown(browser, "step") != "0")
    assert 12 <= int(shown(browser, "step")) <= 15


def test_keys_step_scrub_change_the_speed_and_choose_the_episode(browser, opened):
    def after(keys, name, value):
        browser.press(*keys)
        browser.wait(lambda: shown(browser, name) == value)

    after([RIGHT, RIGHT, RIGHT], "step", "3")
    after([LEFT], "step", "2")
    after([END], "step", "30")
    after([HOME], "step", "0")
    after([UP], "speed", "2")
    after(["2"], "episode", "1")
    after([" "], "playing", "true")


def test_the_slider_goes_to_a_step(browser, opened):
    browser.run(
        "const s = document.getElementById('scrub'); s.value = 12; s.oninput({ target: s });"
    )
    browser.wait(lambda: shown(browser, "step") == "12")
    assert words(browser, "#clock") == ["step 12 of 30"]


def test_the_numbers_are_those_of_the_recordings(browser, opened, episodes):
    likeliest, sampled = episodes
    browser.run("go(17)")
    browser.wait(lambda: shown(browser, "step") == "17")
    for name, column in (("likeliest", likeliest), ("sampled", sampled)):
        returns = column[0].running_returns[17]
        index = ("likeliest", "sampled").index(name) + 1
        place = f"#columns section:nth-child({index})"
        assert read(words(browser, f"{place} h2 b")) == [round(returns.sum(), 2)]
        np.testing.assert_allclose(read(words(browser, f"{place} h3 b")), returns, atol=0.006)
        values = [column[0].decisions[agent].value[17] for agent in ("agent1", "agent2")]
        found = read(words(browser, f"{place} dl div:nth-child(2) dd"))
        np.testing.assert_allclose(found, values, atol=0.006)
        likely = column[0].decisions["agent1"].probabilities[17]
        found = read(words(browser, f"{place} .agent:nth-child(1) .bar b"))
        np.testing.assert_allclose(found, 100 * likely, atol=0.8)
    taken = [int(sampled[0].decisions[agent].action[17]) for agent in ("agent1", "agent2")]
    names = words(browser, "#columns section:nth-child(2) .choice.taken span")
    assert names == [("up", "right", "down", "left")[action] for action in taken]


def read(texts):
    return [float(text.replace("\u2212", "-")) for text in texts]


def test_the_agents_are_painted_where_they_are(browser, opened, episodes):
    positions = episodes[1][0].states.positions
    for step in (0, 9, 30):
        browser.run(f"go({step})")
        browser.wait(lambda step=step: shown(browser, "step") == str(step))
        for agent, colour in ((0, (25, 98, 170)), (1, (226, 88, 34))):
            row, column = divmod(int(positions[step, agent]), 5)
            assert pixel(browser, (column + 0.6) / 5.2, (row + 0.6) / 4.2) == colour


def pixel(browser, x, y):
    """The colour at a share of the second stage's width and height."""
    box = browser.run(
        "const b = document.querySelectorAll('.stage canvas')[1].getBoundingClientRect();"
        "return [b.x, b.y, b.width, b.height]"
    )
    picture = Image.open(io.BytesIO(browser.picture())).convert("RGB")
    return picture.getpixel((round(box[0] + x * box[2]), round(box[1] + y * box[3])))


def test_light_and_dark_follow_the_browser(browser, opened):
    corner = lambda: Image.open(io.BytesIO(browser.picture())).convert("L").getpixel((3, 300))
    assert corner() > 240
    browser.show("dark")
    browser.wait(lambda: corner() < 40)
    browser.show("light")
    browser.wait(lambda: corner() > 240)


def test_a_notebooks_frame_shows_the_page_and_waits_for_a_click(
    browser, opened, episodes, tmp_path
):
    likeliest, _ = episodes
    shown_inline = make_replay([Column("now", likeliest)])._repr_html_()
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><body>{shown_inline}", encoding="utf-8")
    browser.open(path.as_uri())
    browser.complaints()
    frame = lambda: browser.inside("iframe", "return document.body.dataset.step")
    browser.wait(lambda: frame() == "0")
    assert browser.inside("iframe", "return document.body.dataset.playing") == "false"
    assert browser.complaints() == []
