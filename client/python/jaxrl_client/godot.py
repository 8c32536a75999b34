"""Godot RL Agents' scenes, unchanged, as clients of a policy server.

    python -m jaxrl_client.godot --server ws://127.0.0.1:9944

It listens where such a scene connects to (TCP port 11008 of this machine) and speaks its protocol:
each message is JSON after its length in four bytes, little-endian. Each agent of the scene lives
through episodes of its own. Agents of one policy share it, by the name that the scene gives it.
"""

import argparse
import json
import math
import socket
import struct
from typing import Any

import numpy as np

from jaxrl_client.client import EpisodeLost, PolicyClient

PORT = 11008
MAX_BYTES = 2**26  # of a message of the scene
HANDSHAKE = {"type": "handshake", "major_version": "0", "minor_version": "7"}


class Scene:
    """A scene that has connected.

    Args:
        connection: the socket that it has connected with.

    Raises:
        ValueError: spaces that no policy can have.
    """

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.send(HANDSHAKE)
        info = self.ask({"type": "env_info"}, "env_info")
        self.num_agents = int(info["n_agents"])
        names = info.get("agent_policy_names") or ["shared_policy"] * self.num_agents
        self.policies: list[str] = [str(name) for name in names]
        each = lambda told: told if isinstance(told, list) else [told] * self.num_agents
        self.observations: list[dict] = each(info["observation_space"])
        self.actions: list[dict] = each(info["action_space"])
        for heads in self.actions:
            if len({head["action_type"] for head in heads.values()}) != 1:
                raise ValueError(f"actions must be all continuous or all discrete, not {heads}")

    def flags(self) -> str:
        """The flags of `jaxrl train` for this scene."""
        spaces = {"observation": {}, "action": {}}
        for i, policy in enumerate(self.policies):
            spaces["observation"][policy] = _observation_text(self.observations[i])
            spaces["action"][policy] = _action_text(self.actions[i])
        texts = {}
        for kind, by_policy in spaces.items():
            pairs = ", ".join(f'"{policy}": {text}' for policy, text in by_policy.items())
            texts[kind] = next(iter(by_policy.values())) if len(by_policy) == 1 else f"{{{pairs}}}"
        return (
            f"--env external:godot --observation-space '{texts['observation']}' "
            f"--action-space '{texts['action']}'"
        )

    def observation(self, agent: int, told: dict[str, Any]) -> Any:
        """An agent's observation: a single part by itself, several as a dict."""
        parts = {}
        for name, form in self.observations[agent].items():
            value = told[name]
            if isinstance(value, str):  # an image, as hexadecimal digits
                value = np.frombuffer(bytes.fromhex(value), np.uint8).reshape(form["size"])
            parts[name] = np.asarray(value)
        return next(iter(parts.values())) if len(parts) == 1 else parts

    def action(self, agent: int, action: Any) -> dict[str, Any]:
        """An agent's action, by the names of its parts."""
        values, parts, begin = np.ravel(action), {}, 0
        for name, head in self.actions[agent].items():
            if head["action_type"] == "discrete":
                parts[name] = int(values[begin])
                begin += 1
            else:
                parts[name] = values[begin : begin + head["size"]].tolist()
                begin += head["size"]
        return parts

    def ask(self, message: dict[str, Any], kind: str) -> dict[str, Any]:
        """The answer to a message, of a certain type."""
        self.send(message)
        answer = self._receive()
        if answer.get("type") != kind:
            raise ValueError(f"the scene sent {answer.get('type')!r} where {kind!r} belongs")
        return answer

    def send(self, message: dict[str, Any]) -> None:
        content = json.dumps(message).encode()
        self.connection.sendall(struct.pack("<I", len(content)) + content)

    def _receive(self) -> dict[str, Any]:
        (size,) = struct.unpack("<I", self._exactly(4))
        if size > MAX_BYTES:
            raise ValueError(f"the scene sent a message of {size:,} bytes")
        return json.loads(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            part = self.connection.recv(min(size - len(content), 2**20))
            if not part:
                raise ConnectionError("the scene has gone")
            content += part
        return bytes(content)


def play(scene: Scene, client: PolicyClient, num_steps: float = math.inf) -> None:
    """Lets the server's policies act in a scene, until it goes.

    A scene says `done` for both ends of an episode, which counts as the end of the world. What an
    agent observes with it is where its next episode begins.
    """
    observations = scene.ask({"type": "reset"}, "reset")["obs"]
    episodes: list[str | None] = [None] * scene.num_agents
    steps = 0
    while steps < num_steps:
        try:
            actions = _actions(scene, client, episodes, observations)
        except EpisodeLost as error:
            print(error)
            episodes = [None] * scene.num_agents
            continue
        told = scene.ask({"type": "action", "action": actions}, "step")
        observations = told["obs"]
        for agent in range(scene.num_agents):
            reward, episode = float(told["reward"][agent]), episodes[agent]
            policy = scene.policies[agent]
            client.log_returns(episode, _of(client, policy, reward))
            if told["done"][agent]:
                last = _of(client, policy, scene.observation(agent, observations[agent]))
                client.end_episode(episode, last)
                episodes[agent] = None
        steps += 1
    for episode in episodes:
        if episode is not None:
            client.end_episode(episode)


def _actions(
    scene: Scene, client: PolicyClient, episodes: list[str | None], observations: list[dict]
) -> list[dict[str, Any]]:
    """Every agent's action; begins the episodes that are None."""
    actions = []
    for agent, policy in enumerate(scene.policies):
        episodes[agent] = episodes[agent] or client.start_episode()
        obs = _of(client, policy, scene.observation(agent, observations[agent]))
        action = client.get_action(episodes[agent], obs)
        if isinstance(action, dict):
            action = action[policy]
        actions.append(scene.action(agent, action))
    return actions


def _of(client: PolicyClient, policy: str, value: Any) -> Any:
    """A value of an agent, as messages have it."""
    return value if len(client.welcome["agents"]) == 1 else {policy: value}


def _observation_text(parts: dict[str, Any]) -> str:
    texts = {}
    for name, form in parts.items():
        if form["space"] == "discrete":
            texts[name] = f"Discrete({form['size']})"
        elif "2d" in name:
            texts[name] = f'Box(0, 255, {tuple(form["size"])}, dtype="uint8")'
        else:
            low, high = form.get("low", -1.0), form.get("high", 1.0)
            texts[name] = f"Box({low}, {high}, {tuple(form['size'])})"
    if len(texts) == 1:
        return next(iter(texts.values()))
    return f"Dict({', '.join(f'{name}={text}' for name, text in texts.items())})"


def _action_text(heads: dict[str, Any]) -> str:
    sizes = [head["size"] for head in heads.values()]
    if next(iter(heads.values()))["action_type"] == "continuous":
        return f"Box(-1, 1, {sum(sizes)})"
    if len(sizes) == 1:
        return f"Discrete({sizes[0]})"
    return f"MultiDiscrete({', '.join(map(str, sizes))})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", default="ws://127.0.0.1:9944", help="the policy server")
    parser.add_argument("--port", type=int, default=PORT, help="where the scene connects to")
    args = parser.parse_args()
    with socket.create_server(("127.0.0.1", args.port)) as listening:
        print(f"waiting for a scene on port {args.port}: press PLAY in Godot")
        while True:
            connection, _ = listening.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    scene = Scene(connection)
                    print(f"connected: {scene.num_agents} agents\ntrain with   {scene.flags()}")
                    with PolicyClient(args.server, reconnect_seconds=3600) as client:
                        play(scene, client)
                except (ConnectionError, ValueError, KeyError, TypeError) as error:
                    print(f"the scene ended: {error}")


if __name__ == "__main__":
    main()
