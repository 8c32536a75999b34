"""Godot RL Agents' protocol: a scripted scene is played by a policy server's policies."""

import json
import socket
import struct
import threading

import numpy as np
import pytest

pytest.importorskip("websockets", reason="the extra `serving`")
pytest.importorskip("msgspec", reason="the extra `serving`")

from jaxrl_client import PolicyClient
from jaxrl_client.godot import Scene, play

from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl.serving.episode_record import Experience
from jaxrl.serving.external_env import spaces_of
from tests.serving.served import serving, small_policy

ROW = {"obs": {"size": [3], "space": "box"}}
MOVE = {"move": {"size": 3, "action_type": "discrete"}}


class ScriptedScene(threading.Thread):
    """A scene as the plugin's Sync node speaks: agent i's episodes last i + 2 steps."""

    def __init__(self, connection, **info):
        super().__init__(daemon=True)
        self.connection, self.heard = connection, []
        self.info = {"observation_space": [ROW, ROW], "action_space": [MOVE, MOVE], **info}
        self.steps, self.seen = 0, []

    def run(self):
        while (message := self.read()) is not None:
            self.heard.append(message)
            if message["type"] == "env_info":
                self.write(type="env_info", n_agents=2, **self.info)
            elif message["type"] == "reset":
                self.write(type="reset", obs=self.observe(), info=[{}, {}])
            elif message["type"] == "action":
                self.steps += 1
                done = [self.steps % 2 == 0, self.steps % 3 == 0]
                told = {"obs": self.observe(), "reward": [1.0, self.steps], "done": done}
                self.write(type="step", info=[{}, {}], **told)

    def observe(self):
        self.seen.append([[self.steps / 4, agent, -1.0] for agent in range(2)])
        return [{"obs": obs} for obs in self.seen[-1]]

    def read(self):
        content = self.connection.makefile("rb") if not hasattr(self, "file") else self.file
        self.file = content
        size = content.read(4)
        return json.loads(content.read(struct.unpack("<I", size)[0])) if size else None

    def write(self, **message):
        content = json.dumps(message).encode()
        self.connection.sendall(struct.pack("<I", len(content)) + content)


@pytest.fixture
def ends():
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_a_scene_is_played_by_the_policy_and_its_episodes_are_learned_from(ends):
    here, there = ends
    script, policy, experience = ScriptedScene(there), small_policy(), Experience(100, 1000)
    script.start()
    with serving(policy, experience=experience) as server, PolicyClient(server.address) as client:
        scene = Scene(here)
        play(scene, client, num_steps=6)
    kinds = [message["type"] for message in script.heard]
    assert kinds == ["handshake", "env_info", "reset", *["action"] * 6]
    assert script.heard[0] == {"type": "handshake", "major_version": "0", "minor_version": "7"}
    for seen, message in zip(script.seen, script.heard[3:], strict=False):
        expected = [{"move": int(policy.act(np.array(obs, np.float32)))} for obs in seen]
        assert message["action"] == expected
    chunks = []
    while (chunk := experience.get(0.01)) is not None:
        chunks.append(chunk.to_numpy())
    assert sorted(len(chunk) for chunk in chunks) == [2, 2, 2, 3, 3]
    assert all(chunk.is_terminated for chunk in chunks)
    second = [chunk for chunk in chunks if chunk.get_observations()[0, 1] == 1]
    assert [list(chunk.get_rewards()) for chunk in second] == [[1, 2, 3], [4, 5, 6]]
    np.testing.assert_allclose(second[1].get_observations()[:, 0], np.arange(3, 7) / 4)


def test_policies_have_the_names_that_the_scene_gives_them(ends):
    here, there = ends
    script = ScriptedScene(there, agent_policy_names=["chaser", "runner"])
    script.start()
    policies = small_policy("a", ("chaser",)), small_policy("b", ("runner",))
    with serving(*policies) as server, PolicyClient(server.address) as client:
        play(Scene(here), client, num_steps=3)
    for seen, message in zip(script.seen, script.heard[3:], strict=False):
        for policy, obs, action in zip(policies, seen, message["action"], strict=True):
            assert action == {"move": int(policy.act(np.array(obs, np.float32)))}


def test_a_scenes_spaces_become_the_flags_of_a_training(ends):
    here, there = ends
    eyes = {
        "camera_2d": {"size": [4, 5, 3], "space": "box"},
        "gear": {"size": 4, "space": "discrete"},
        "speed": {"size": [2], "space": "box", "low": 0, "high": 9},
    }
    heads = {
        "steer": {"size": 2, "action_type": "continuous"},
        "gas": {"size": 1, "action_type": "continuous"},
    }
    ScriptedScene(there, observation_space=eyes, action_space=heads).start()
    scene = Scene(here)
    words = scene.flags().split("'")
    assert words[0] == "--env external:godot --observation-space "
    assert spaces_of("observation_space", words[1])["default_agent"] == Dict(
        {
            "camera_2d": Box(0, 255, (4, 5, 3), "uint8"),
            **{"gear": Discrete(4), "speed": Box(0, 9, (2,))},
        }
    )
    assert spaces_of("action_space", words[3])["default_agent"] == Box(-1, 1, (3,))
    image = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    told = {"camera_2d": image.tobytes().hex(), "gear": 3, "speed": [1.0, 2.0]}
    np.testing.assert_array_equal(scene.observation(0, told)["camera_2d"], image)
    assert scene.action(0, np.array([0.5, -0.5, 1.0])) == {"steer": [0.5, -0.5], "gas": [1.0]}


def test_several_discrete_actions_are_one_of_several_parts(ends):
    here, there = ends
    heads = {name: {"size": size, "action_type": "discrete"} for name, size in (("a", 2), ("b", 3))}
    ScriptedScene(there, action_space=heads).start()
    scene = Scene(here)
    assert spaces_of("action_space", scene.flags().split("'")[3])["default_agent"] == (
        MultiDiscrete((2, 3))
    )
    assert scene.action(0, np.array([1, 2])) == {"a": 1, "b": 2}


def test_a_scene_of_mixed_actions_is_refused(ends):
    here, there = ends
    heads = {**MOVE, "steer": {"size": 2, "action_type": "continuous"}}
    ScriptedScene(there, action_space=heads).start()
    with pytest.raises(ValueError, match="all continuous or all discrete"):
        Scene(here)
