"""Godot RL Agents' protocol: a scripted scene is played by a server's policies, and trains them."""

import asyncio
import contextlib
import json
import re
import socket
import struct
import threading
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("websockets", reason="the extra `serving`")
pytest.importorskip("msgspec", reason="the extra `serving`")

from jaxrl import UsageError
from jaxrl.cli import train
from jaxrl.cli.train import begin, parse
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl.serving import godot
from jaxrl.serving.batched_inference import BatchedPolicy
from jaxrl.serving.episode_record import Experience
from jaxrl.serving.external_env import spaces_of
from jaxrl.serving.godot import SceneFailed, SceneForm, Scenes
from jaxrl.serving.settings import GODOT_PORT
from tests.serving.served import serving, small_policy, wait_until

pytestmark = pytest.mark.process  # a server and its scenes wait for each other

ROW = {"obs": {"size": [3], "space": "box", "low": -2, "high": 2}}
MOVE = {"move": {"size": 3, "action_type": "discrete"}}
INFO = {"n_agents": 2, "observation_space": [ROW, ROW], "action_space": [MOVE, MOVE]}


class ScriptedScene(threading.Thread):
    """A scene as the plugin's Sync node speaks: agent i's episodes last i + 2 steps."""

    def __init__(self, port, num_steps=6, **info):
        super().__init__(daemon=True)
        self.port, self.num_steps, self.info = port, num_steps, {**INFO, **info}
        self.heard, self.seen, self.steps = [], [], 0

    def run(self):
        with contextlib.ExitStack() as stack:
            connection = socket.create_connection(("127.0.0.1", self.port))
            self.connection = stack.enter_context(connection)
            self.file = stack.enter_context(connection.makefile("rb"))
            while self.steps < self.num_steps and (message := self.read()) is not None:
                self.heard.append(message)
                if message["type"] == "close":
                    return
                self.answer(message)

    def answer(self, message):
        if message["type"] == "env_info":
            self.write(type="env_info", **self.info)
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
        try:
            size = self.file.read(4)
        except ConnectionError:
            return None
        return json.loads(self.file.read(struct.unpack("<I", size)[0])) if size else None

    def write(self, **message):
        content = json.dumps(message).encode()
        self.connection.sendall(struct.pack("<I", len(content)) + content)


def play(*policies, experience=None, **info):
    """The scene and the server, after the scene has been played to its end."""
    with serving(*policies, experience=experience, godot_port=0) as server:
        scene = ScriptedScene(server.scenes.port, **info)
        scene.start()
        scene.join(20)
        wait_until(lambda: not server.sessions)
    return scene, server


def test_a_scene_is_played_by_the_policy_and_its_episodes_are_learned_from():
    policy, experience = small_policy(), Experience(100, 1000)
    scene, server = play(policy, experience=experience)
    kinds = [message["type"] for message in scene.heard]
    assert kinds == ["handshake", "env_info", "reset", *["action"] * 6]
    assert scene.heard[0] == {"type": "handshake", "major_version": "0", "minor_version": "7"}
    for seen, message in zip(scene.seen, scene.heard[3:], strict=False):
        expected = [{"move": int(policy.act(np.array(obs, np.float32)))} for obs in seen]
        assert message["action"] == expected
    assert server.batcher.num_calls == 7  # the agents of a step ask together, one last time in vain
    chunks = []
    while (chunk := experience.get(0.01)) is not None:
        chunks.append(chunk.to_numpy())
    assert sorted(len(chunk) for chunk in chunks) == [2, 2, 2, 3, 3]
    assert all(chunk.is_terminated for chunk in chunks)
    second = [chunk for chunk in chunks if chunk.get_observations()[0, 1] == 1]
    assert [list(chunk.get_rewards()) for chunk in second] == [[1, 2, 3], [4, 5, 6]]
    np.testing.assert_allclose(second[1].get_observations()[:, 0], np.arange(3, 7) / 4)


def test_policies_have_the_names_that_the_scene_gives_them():
    policies = small_policy("a", ("chaser",)), small_policy("b", ("runner",))
    scene, _ = play(*policies, agent_policy_names=["chaser", "runner"])
    assert len(scene.heard) == 9
    for seen, message in zip(scene.seen, scene.heard[3:], strict=False):
        for policy, obs, action in zip(policies, seen, message["action"], strict=True):
            assert action == {"move": int(policy.act(np.array(obs, np.float32)))}


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"action_space": {"move": {"size": 4, "action_type": "discrete"}}}, "Discrete(n=4)"),
        ({"agent_policy_names": ["chaser", "stranger"]}, "'stranger' is none of chaser, runner"),
        ({"observation_space": [{}]}, "must describe each of its 2 agents"),
        ({"n_agents": None}, "its env_info cannot be read"),
    ],
)
def test_a_scene_of_other_policies_is_told_to_end(info, message, caplog):
    policies = small_policy("a", ("chaser",)), small_policy("b", ("runner",))
    scene, _ = play(*policies, **{"agent_policy_names": ["chaser", "runner"], **info})
    assert [heard["type"] for heard in scene.heard] == ["handshake", "env_info", "close"]
    (record,) = caplog.records
    assert message in record.getMessage()


def test_what_is_no_scene_costs_only_its_connection(caplog):
    with serving(godot_port=0) as server:
        for words in (b"GET / HTTP/1.1\r\n\r\n", struct.pack("<I", 2) + b"[]", b""):
            address = ("127.0.0.1", server.scenes.port)
            with contextlib.suppress(OSError), socket.create_connection(address) as sender:
                sender.sendall(words)
                sender.shutdown(socket.SHUT_WR)
                while sender.recv(1000):
                    pass
        scene = ScriptedScene(server.scenes.port)
        scene.start()
        scene.join(20)
        assert scene.steps == 6
        wait_until(lambda: len(caplog.records) == 4)
    told = [record.getMessage() for record in caplog.records]
    assert "it sent a message of 542,393,671 bytes" in told[0] and "it has gone" in told[3]


def test_an_observation_that_is_refused_ends_the_scene_and_not_the_server(caplog):
    scene, server = play(observation_space={"obs": {"size": [4], "space": "box"}})
    assert scene.steps == 0 and server.counts["clients"] == 1
    assert "'obs' must be [4] numbers" in caplog.text


def test_a_scenes_spaces_are_settings_of_a_training():
    eyes = {
        "camera_2d": {"size": [4, 5, 3], "space": "box"},
        "the gear": {"size": 4, "space": "discrete"},
        "speed": {"size": [2], "space": "box", "low": 0, "high": 9},
    }
    heads = {
        "steer": {"size": 2, "action_type": "continuous"},
        "gas": {"size": 1, "action_type": "continuous"},
    }
    form = SceneForm({"n_agents": 2, "observation_space": eyes, "action_space": heads})
    spaces = {name: spaces_of(name, text) for name, text in form.space_texts.items()}
    observed = {
        "camera_2d": Box(0, 255, (4, 5, 3), "uint8"),
        **{"the gear": Discrete(4), "speed": Box(0, 9, (2,))},
    }
    assert spaces["observation_space"] == {"default_agent": Dict(observed)}
    assert spaces["action_space"] == {"default_agent": Box(-1, 1, (3,))}
    image = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    told = {"camera_2d": image.tobytes().hex(), "the gear": [3], "speed": [1.0, 2.0]}
    observation = form.observation(0, told)
    np.testing.assert_array_equal(observation["camera_2d"], image)
    assert observation["the gear"] == 3
    assert form.action(0, np.array([0.5, -0.5, 1.0])) == {"steer": [0.5, -0.5], "gas": [1.0]}


def test_several_discrete_actions_are_one_of_several_parts():
    heads = {name: {"size": size, "action_type": "discrete"} for name, size in (("a", 2), ("b", 3))}
    form = SceneForm({**INFO, "action_space": heads})
    assert form.action_spaces == [MultiDiscrete((2, 3))] * 2
    assert form.action(0, np.array([1, 2])) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"n_agents": float("inf")}, "n_agents must be a whole number from 1 to 4,096, not inf"),
        ({"n_agents": 10**9}, "n_agents must be a whole number from 1 to 4,096"),
        ({"n_agents": float("nan")}, "n_agents must be a whole number"),
        ({"n_agents": "2"}, "n_agents must be a whole number"),
        ({"observation_space": {"obs": {"size": [10**12], "space": "box"}}}, "obs must be a whole"),
        (
            {"observation_space": {"obs": {"size": [10**4] * 3, "space": "box"}}},
            "the size of obs must be a whole number from 1 to 16,777,216",
        ),
        ({"observation_space": {"obs": {"size": 10**12, "space": "discrete"}}}, "obs must be a"),
        ({"action_space": {"move": {"size": 10**12, "action_type": "discrete"}}}, "move must be a"),
    ],
)
def test_a_scene_of_impossible_sizes_is_refused_at_once(info, message):
    with pytest.raises(SceneFailed, match=re.escape(message)):
        SceneForm({**INFO, **info})


def test_a_scene_is_not_held_up_by_a_connection_that_says_nothing():
    """The silent one is kept, and may still describe itself while the other is played."""
    scenes = Scenes(0)
    silent = ScriptedScene(scenes.port)
    silent.connection = socket.create_connection(("127.0.0.1", scenes.port))
    scene = ScriptedScene(scenes.port)
    scene.start()
    assert scenes.first().form.num_agents == 2
    with contextlib.closing(scenes), silent.connection as connection:
        silent.file = connection.makefile("rb")
        assert [silent.read()["type"] for _ in range(2)] == ["handshake", "env_info"]
        silent.write(type="env_info", **INFO)
        kept = [asyncio.run(scenes.accept()) for _ in range(2)]
        assert [asyncio.run(each.describe()).num_agents for each in kept] == [2, 2]
        for each in kept:
            each.close()
    scene.join(20)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (
            {"action_space": {**MOVE, "steer": {"size": 2, "action_type": "continuous"}}},
            "all continuous or all discrete",
        ),
        (
            {"observation_space": [ROW, {"obs": {"size": [4], "space": "box"}}]},
            "agents of its policy 'shared_policy' have different spaces",
        ),
    ],
)
def test_a_scene_that_no_policy_can_play_is_refused(info, message):
    with pytest.raises(SceneFailed, match=message):
        SceneForm({**INFO, **info})


def test_one_command_trains_a_scene_by_the_spaces_that_it_tells(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(BatchedPolicy, "warm_up", lambda self: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"godot_port={port} cannot be used"):
            Scenes(port)
    scene = ScriptedScene(port, num_steps=10**6)
    connecting = threading.Timer(0.5, scene.start)
    connecting.start()
    settings = {"num_envs": 2, "rollout_length": 8, "minibatch_size": 16, "num_epochs": 1}
    settings |= {"fcnet_hiddens": 8, "run_dir": tmp_path / "run", "pictures": False}
    words = ["--env", "godot", "--serve", "port=0", f"godot_port={port}"]
    for name, value in settings.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    order = parse(words)
    assert f"waiting for a scene on port {port}: press PLAY" in capsys.readouterr().out
    assert order.config.setup().env.env.action_space() == Discrete(3)
    with begin(order) as trainer:
        result = trainer.fit({"training_iteration": 2})
    scene.join(20)
    assert result["env_runners"]["num_episodes"] > 0
    assert scene.heard[-1] == {"type": "close"}


def test_a_quiet_command_waits_for_a_scene_without_a_word(monkeypatch, capsys):
    texts = {"observation_space": "Box(-1, 1, 1)", "action_space": "Discrete(2)"}
    first = SimpleNamespace(form=SimpleNamespace(space_texts=texts))
    monkeypatch.setattr(
        godot, "Scenes", lambda port: SimpleNamespace(port=port, first=lambda: first)
    )
    assert parse(["--env", "godot", "--quiet"]).scenes.port == GODOT_PORT
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-envs", "0"], "num_envs=0 must be an integer"),
        (["--keep", "0"], "keep=0 must be"),
        (["--resum", "x"], "unknown flag '--resum'; did you mean '--resume'"),
    ],
)
def test_bad_settings_are_refused_before_a_scene_is_waited_for(words, message, monkeypatch):
    monkeypatch.setattr(train, "first_scene", lambda port, quiet: pytest.fail("it waits"))
    with pytest.raises(UsageError, match=message):
        parse(["--env", "godot", *words])
