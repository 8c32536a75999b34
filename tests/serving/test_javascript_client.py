"""The JavaScript client: a page in Chromium and programs in Node talk to a policy server."""

import json
import os
import shutil
import subprocess

import pytest

pytest.importorskip("websockets", reason="the extra `serving`")
pytest.importorskip("msgspec", reason="the extra `serving`")

from tests.arena_page import COINS, ROOT, arena_policies, check_page, serving_files
from tests.replay.browser import MISSING, Browser
from tests.serving.served import serving

in_a_browser = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
in_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
DOWN_KEY = "\ue015"  # of WebDriver
CLIENT = "client/javascript/jaxrl-client.js"
PAGE = "examples/browser/served.html"


@in_a_browser
def test_the_served_arena_plays_an_episode_as_jaxrl_does(tmp_path):
    policies = arena_policies()
    with serving_files(ROOT) as address, serving(*policies, origins=(address,)) as server:
        page = f"{address}/{PAGE}?server={server.address}"
        check_page(page, tmp_path / "profile", policies)
        counts = server.counts
    assert (counts["actions"], counts["ended"], counts["refused"]) == (len(COINS), 1, 0)


@in_a_browser
def test_a_person_plays_an_agent_of_the_served_arena_by_the_arrow_keys(tmp_path):
    """From the top left corner the explorer goes down, too far from the hunter to be stopped."""
    policies = arena_policies()
    with serving_files(ROOT) as address, serving(*policies, origins=(address,)) as server:
        browser = Browser(tmp_path / "profile")
        numbers = "return document.getElementById('numbers').textContent"
        try:
            page = f"{address}/{PAGE}?server={server.address}&coins={'1' * 8}&play="
            browser.open(f"{page}agent1")
            browser.wait(lambda: "An arrow key begins" in browser.run(numbers))
            browser.press(DOWN_KEY)
            states = browser.wait(lambda: browser.run("return document.body.dataset.states"))
            assert "Reload the page" in browser.run(numbers)
            browser.open(f"{page}agent3")
            browser.wait(lambda: "choose agent1 or agent2" in browser.run(numbers))
        finally:
            browser.close()
    explorer = [positions[0] for positions in json.loads(states)]
    assert explorer == [10 * step for step in range(9)]


ERRORS = """
const [address, done] = arguments, said = [];
const attempt = async (call) => {
  try { await call(); } catch (error) { said.push(error.message); }
};
(async () => {
  await attempt(() => PolicyClient.connect("ws://127.0.0.1:1"));
  const client = await PolicyClient.connect(address);
  await attempt(() => client.getAction("none", [0, 0, 0]));
  const episode = await client.startEpisode({ explore: false });
  client.logReturns(episode, 1);
  client.logReturns(episode, 0.5);
  await attempt(async () => said.push(typeof await client.getAction(episode, [0, 0, 0])));
  await attempt(() => client.getAction(episode, [0, 0]));
  client.send({ type: "nonsense" });
  await attempt(() => client.startEpisode());
  await attempt(() => client.startEpisode());
  done(said);
})();
"""


@in_a_browser
def test_the_javascript_client_says_what_the_server_refuses(tmp_path):
    with serving_files(ROOT) as address, serving(origins=(address,)) as server:
        browser = Browser(tmp_path / "profile")
        try:
            browser.open(f"{address}/{PAGE}?server={server.address}")
            said = browser.run_async(ERRORS, server.address)
        finally:
            browser.close()
    assert said[0] == "ws://127.0.0.1:1/ cannot be reached"
    assert said[1] == "there is no episode 'none': start_episode begins one"
    assert said[2] == "number"
    assert "must be [3] of float32, not [0, 0]" in said[3]
    assert said[4].startswith("no message: Invalid value 'nonsense'")
    assert said[5] == "the connection is closed"


PROGRAM = """
const [file, address] = process.argv.slice(2);
if (process.env.WITHOUT) delete globalThis.WebSocket;
const { PolicyClient } = require(file);
const said = [];
const attempt = async (call) => {
  try { said.push(await call()); } catch (error) { said.push(error.message); }
};
(async () => {
  await attempt(async () => {
    const client = await PolicyClient.connect(address);
    const episode = await client.startEpisode({ explore: false });
    const action = typeof await client.getAction(episode, [0, 0, 0]);
    client.close();
    return action;
  });
  await attempt(() => PolicyClient.connect("ws://127.0.0.1:1").then(() => "connected"));
  console.log(JSON.stringify(said));
})();
"""


def said_in_node(folder, address, program=PROGRAM, **variables):
    """What a program says that plays a step, in a folder of its own."""
    (folder / "program.js").write_text(program)
    done = subprocess.run(
        ["node", "program.js", str(ROOT / CLIENT), address],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


@in_node
def test_node_without_a_websocket_says_what_to_install(tmp_path):
    missing = "there is no WebSocket, which Node has since version 22: npm install ws"
    said = said_in_node(tmp_path, "ws://127.0.0.1:1", WITHOUT="1", NODE_PATH="")
    assert said == [missing, missing]


RETURNS = """
const sent = [];
globalThis.WebSocket = class {
  constructor() { this.readyState = 1; setTimeout(() => this.onopen(), 1); }
  close() {}
  send(text) {
    const message = JSON.parse(text);
    sent.push(message);
    const types = { hello: "welcome", start_episode: "episode_started", get_action: "action" };
    const answer = { type: types[message.type] || "episode_ended", id: message.id, episode: "e" };
    setTimeout(() => this.onmessage({ data: JSON.stringify(answer) }), 1);
  }
};
const { PolicyClient } = require(process.argv[2]);
(async () => {
  const client = await PolicyClient.connect("ws://nowhere");
  const episode = await client.startEpisode();
  client.logReturns(episode, { a: 1, b: 2 }, { done: ["a"] });
  client.logReturns(episode, { a: 0.5 });
  await client.getAction(episode, { a: 0, b: 0 });
  client.logReturns(episode, { b: 3 });
  await client.endEpisode(episode);
  console.log(JSON.stringify(sent.slice(2).map(({ reward, done }) => [reward, done || []])));
})();
"""


@in_node
def test_returns_and_the_agents_that_ended_with_them_are_sent_once(tmp_path):
    said = said_in_node(tmp_path, "ws://nowhere", RETURNS)
    assert said == [[{"a": 1.5, "b": 2}, ["a"]], [{"b": 3}, []]]


WS = """
module.exports = class {
  constructor(address) { setTimeout(() => this.onerror(), 1); this.url = `${address}/ by ws`; }
};
"""


@in_node
def test_node_without_a_websocket_takes_that_of_the_package_ws_in_the_project(tmp_path):
    package = tmp_path / "node_modules" / "ws"
    package.mkdir(parents=True)
    (package / "index.js").write_text(WS)
    said = said_in_node(tmp_path, "ws://127.0.0.1:1", WITHOUT="1", NODE_PATH="")
    assert said == ["ws://127.0.0.1:1/ by ws cannot be reached"] * 2


HAS_WS = (
    shutil.which("node") is not None
    and not subprocess.run(
        ["node", "-e", "require('ws')"], capture_output=True, check=False
    ).returncode
)


@pytest.mark.skipif(not HAS_WS, reason="Node.js finds no package ws (NODE_PATH)")
def test_a_program_in_node_is_served_through_the_package_ws(tmp_path):
    with serving() as server:
        said = said_in_node(tmp_path, server.address, WITHOUT="1")
    assert said == ["number", "ws://127.0.0.1:1/ cannot be reached"]
