"""The JavaScript client: a page in Chromium plays the arena against a policy server."""

import pytest

pytest.importorskip("websockets", reason="the extra `serving`")
pytest.importorskip("msgspec", reason="the extra `serving`")

from tests.arena_page import COINS, arena_policies, check_page, site
from tests.run.replay.browser import MISSING, Browser
from tests.serving.served import serving

pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
CLIENT = "client/javascript/jaxrl-client.js"
PAGE = ("examples/browser/served.html", "examples/browser/served_players.js", CLIENT)


def test_the_served_arena_plays_an_episode_as_jaxrl_does(tmp_path):
    folder, policies = tmp_path / "site", arena_policies()
    folder.mkdir()
    with site(folder, *PAGE) as address, serving(*policies, origins=(address,)) as server:
        page = f"{address}/served.html?server={server.address}"
        check_page(page, tmp_path / "profile", policies)
        counts = server.counts
    assert (counts["actions"], counts["ended"], counts["refused"]) == (len(COINS), 1, 0)


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


def test_the_javascript_client_says_what_the_server_refuses(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    with site(folder, *PAGE) as address, serving(origins=(address,)) as server:
        browser = Browser(tmp_path / "profile")
        try:
            browser.open(f"{address}/served.html?server={server.address}")
            said = browser.run_async(ERRORS, server.address)
        finally:
            browser.close()
    assert said[0] == "ws://127.0.0.1:1/ cannot be reached"
    assert said[1] == "there is no episode 'none': start_episode begins one"
    assert said[2] == "number"
    assert "must be [3] of float32, not [0, 0]" in said[3]
    assert said[4].startswith("no message: Invalid value 'nonsense'")
    assert said[5] == "the connection is closed"
