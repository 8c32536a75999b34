"""Exported policies in a browser: the arena's example plays an episode as jaxrl does.

It needs Chromium and the folder `dist` of the npm package onnxruntime-web, which the variable
ONNXRUNTIME_WEB names.
"""

import functools
import http.server
import json
import os
import shutil
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy
from tests.run.replay.browser import MISSING, Browser

pytest.importorskip("jax2onnx", reason="the extra `onnx`")
RUNTIME = os.environ.get("ONNXRUNTIME_WEB")
pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.skipif(not RUNTIME, reason="ONNXRUNTIME_WEB names no folder of onnxruntime-web"),
]
ROOT = Path(__file__).parents[3]
FILES = (
    *("examples/browser/arena.html", "examples/browser/arena.js"),
    *("jaxrl/run/replay/painting.js", "jaxrl/run/replay/player.css"),
)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def served(tmp_path):
    """The example's address, and its two policies, of random weights."""
    folder = tmp_path / "site"
    folder.mkdir()
    for file in FILES:
        shutil.copy(ROOT / file, folder)
    shutil.copytree(RUNTIME, folder / "ort")
    algorithm = PPOConfig(env="arena", fcnet_hiddens=(8, 8)).build()
    policies = []
    for i, spec in enumerate((algorithm.policy_specs * 2)[:2]):
        params = jax.tree.map(lambda leaf: 3 * leaf, spec.model.init(jax.random.key(i)))
        policies.append(Policy(spec, PolicyWeights(params), name=f"pol{i + 1}"))
        policies[-1].export(folder / f"pol{i + 1}.onnx")
    handler = functools.partial(Quiet, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/arena.html", policies
    server.shutdown()
    server.server_close()


def played(policies, coins):
    """(positions of each step, returns) in jaxrl."""
    env = PPOConfig(env="arena").build().rollout_spec.env
    _, state = env.reset_stacked(None, env.default_params)
    step = jax.jit(env.step_in_order)
    positions, returns = [state.positions.tolist()], np.zeros(2)
    for coin in coins:
        cells = positions[-1]
        actions = [policies[0].act(cells), policies[1].act(cells[::-1])]
        _, state, rewards, *_ = step(state, np.array(actions), np.bool_(coin))
        positions.append(state.positions.tolist())
        returns += np.asarray(rewards)
    return positions, returns


def test_the_arenas_example_plays_an_episode_as_jaxrl_does(served, tmp_path):
    address, policies = served
    coins = np.random.default_rng(0).random(60) < 0.5
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(f"{address}?coins={''.join(str(int(coin)) for coin in coins)}")
        browser.wait(lambda: browser.run("return document.body.dataset.states"), 60)
        states = json.loads(browser.run("return document.body.dataset.states"))
        returns = json.loads(browser.run("return document.body.dataset.returns"))
        picture = browser.picture()
        assert browser.complaints() == []
    finally:
        browser.close()
    expected, expected_returns = played(policies, coins)
    assert states == expected and len(set(map(tuple, states))) > 3
    np.testing.assert_allclose(returns, expected_returns, atol=1e-5)
    (tmp_path / "arena.png").write_bytes(picture)
    assert len(picture) > 5_000
