"""Exported policies in a browser: the arena's example plays an episode as jaxrl does.

It needs Chromium and the folder `dist` of the npm package onnxruntime-web, which the variable
ONNXRUNTIME_WEB names.
"""

import os
import shutil

import pytest

from tests.arena_page import arena_policies, check_page, site
from tests.replay.browser import MISSING

pytest.importorskip("jax2onnx", reason="the extra `onnx`")
RUNTIME = os.environ.get("ONNXRUNTIME_WEB")
pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.skipif(not RUNTIME, reason="ONNXRUNTIME_WEB names no folder of onnxruntime-web"),
]
PAGE = ("examples/browser/arena.html", "examples/browser/exported_players.js")


def test_the_arenas_example_plays_an_episode_as_jaxrl_does(tmp_path):
    folder = tmp_path / "site"
    shutil.copytree(RUNTIME, folder / "ort")
    policies = arena_policies()
    for policy in policies:
        policy.export(folder / f"{policy.name}.onnx")
    with site(folder, *PAGE) as address:
        check_page(f"{address}/arena.html", tmp_path / "profile", policies)
