"""The arena's pages of examples/browser: a site of files, and the same episode played in jaxrl."""

import contextlib
import functools
import http.server
import json
import shutil
import threading
from pathlib import Path

import jax
import numpy as np

from jaxrl import PPOConfig
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy
from tests.replay.browser import Browser

ROOT = Path(__file__).parents[1]
FILES = (*("examples/browser/arena.js", "jaxrl/replay/painting.js"), "jaxrl/replay/player.css")
COINS = np.random.default_rng(0).random(60) < 0.5


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def site(folder, *files):
    """The address of a folder, which gets some files of the repository."""
    for file in (*FILES, *files):
        shutil.copy(ROOT / file, folder)
    with serving_files(folder) as address:
        yield address


@contextlib.contextmanager
def serving_files(folder):
    """The address at which a folder's files are."""
    handler = functools.partial(Quiet, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def arena_policies():
    """The arena's two policies, of random weights."""
    algorithm = PPOConfig(env="arena", fcnet_hiddens=(8, 8)).build()
    policies = []
    for i, spec in enumerate((algorithm.policy_specs * 2)[:2]):
        params = jax.tree.map(lambda leaf: 3 * leaf, spec.model.init(jax.random.key(i)))
        weights, agents = PolicyWeights(params), (f"agent{i + 1}",)
        policies.append(Policy(spec, weights, name=f"pol{i + 1}", agents=agents))
    return policies


def played(policies):
    """(positions of each step, returns) in jaxrl."""
    env = PPOConfig(env="arena").build().rollout_spec.env
    _, state = env.reset_stacked(None, env.default_params)
    step = jax.jit(env.step_in_order)
    positions, returns = [state.positions.tolist()], np.zeros(2)
    for coin in COINS:
        cells = positions[-1]
        actions = [policies[0].act(cells), policies[1].act(cells[::-1])]
        _, state, rewards, *_ = step(state, np.array(actions), np.bool_(coin))
        positions.append(state.positions.tolist())
        returns += np.asarray(rewards)
    return positions, returns


def check_page(address, profile, policies):
    """Compares the page's episode with jaxrl's; a picture of the page."""
    browser, sign = Browser(profile), "&" if "?" in address else "?"
    try:
        browser.open(f"{address}{sign}coins={''.join(str(int(coin)) for coin in COINS)}")
        browser.wait(lambda: browser.run("return document.body.dataset.states"), 60)
        states = json.loads(browser.run("return document.body.dataset.states"))
        returns = json.loads(browser.run("return document.body.dataset.returns"))
        picture = browser.picture()
        assert browser.complaints() == []
    finally:
        browser.close()
    expected, expected_returns = played(policies)
    assert states == expected and len(set(map(tuple, states))) > 3
    np.testing.assert_allclose(returns, expected_returns, atol=1e-5)
    assert len(picture) > 5_000
