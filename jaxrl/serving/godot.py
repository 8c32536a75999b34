"""Scenes of Godot RL Agents, unchanged, as clients of a policy server: their plugin's protocol.

A scene connects by TCP. Each message is JSON after its length in four bytes, little-endian. Each
agent of the scene lives through episodes of its own, with the policy that the scene names for it.
All agents of a step ask at the same time.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import math
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.json_text import read_json
from jaxrl.core.troubles import Troubles
from jaxrl.core.types import DEFAULT_AGENT
from jaxrl.serving import protocol
from jaxrl.serving.external_env import spaces_of
from jaxrl.serving.nested_numbers import array_of
from jaxrl.serving.session import ServedPolicies, Session
from jaxrl.serving.settings import GODOT_PORT, HOST

MAX_BYTES = 2**26  # of a message of a scene
MAX_AGENTS, MAX_NUMBERS = 4096, 2**24  # of a scene; of an observation or an action
MAX_UNDESCRIBED = 64  # scenes that have connected and not described themselves
RETRY_SECONDS = 1.0  # to the next try, where no connection can be accepted
HELLO_SECONDS = 60.0  # to describe itself; a scene that is starting takes seconds
HANDSHAKE = {"type": "handshake", "major_version": "0", "minor_version": "7"}

log = logging.getLogger("jaxrl.godot")


class SceneFailed(Exception):
    """A scene went away, or said what is not of the protocol."""


class SceneForm:
    """The agents of a scene and their spaces, as its `env_info` has them.

    Attributes:
        policies: the name of each agent's policy.
        action_spaces: of each agent.
        space_texts: the settings `observation_space` and `action_space` of a training for it.
    """

    def __init__(self, info: Mapping[str, Any]):
        try:
            count = _bounded("n_agents", info["n_agents"], MAX_AGENTS)
            by_agent = lambda value: value if isinstance(value, list) else [value] * count
            self.policies = info.get("agent_policy_names") or ["shared_policy"] * count
            self._observations = by_agent(info["observation_space"])
            self._actions = by_agent(info["action_space"])
            lists = (self.policies, self._observations, self._actions)
            if count < 1 or any(len(values) != count for values in lists):
                raise SceneFailed(f"its env_info must describe each of its {count} agents")
            texts = [_observation_text(parts) for parts in self._observations]
            actions = [_action_text(heads) for heads in self._actions]
            self.action_spaces = [
                spaces_of("action_space", text)[DEFAULT_AGENT] for text in actions
            ]
            self.space_texts = {
                "observation_space": self._by_policy(texts),
                "action_space": self._by_policy(actions),
            }
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SceneFailed(f"its env_info cannot be read: {one_line(error)}") from None

    @property
    def num_agents(self) -> int:
        return len(self.policies)

    def observation(self, agent: int, values: Mapping[str, Any]) -> Any:
        """An agent's observation: a single part by itself, several as a dict."""
        parts = {}
        for name, form in self._observations[agent].items():
            shape = () if form["space"] == "discrete" else tuple(form["size"])
            parts[name] = _array_of(name, values[name], shape)
        return next(iter(parts.values())) if len(parts) == 1 else parts

    def action(self, agent: int, action: Any) -> dict[str, Any]:
        """An agent's action, by the names of its parts."""
        values, parts, begin = np.ravel(action), {}, 0
        for name, head in self._actions[agent].items():
            if head["action_type"] == "discrete":
                parts[name] = int(values[begin])
                begin += 1
            else:
                parts[name] = values[begin : begin + head["size"]].tolist()
                begin += head["size"]
        return parts

    def _by_policy(self, texts: Sequence[str]) -> str:
        """The agents' spaces as one text, by policy where there are several."""
        found = {}
        for policy, text in zip(self.policies, texts, strict=True):
            if found.setdefault(policy, text) != text:
                raise SceneFailed(f"agents of its policy {policy!r} have different spaces")
        return next(iter(found.values())) if len(found) == 1 else _dict_text(found)


class Scene:
    """A scene that has connected; `form` is None before `describe`."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self._connection, self.form = connection, None
        self._received, self._is_asked = bytearray(), False

    async def describe(self) -> SceneForm:
        """Asks the scene for its agents and their spaces; may be cancelled and called again."""
        if self.form is None:
            try:
                async with asyncio.timeout(HELLO_SECONDS):
                    if not self._is_asked:
                        self._is_asked = True
                        await self._send(HANDSHAKE)
                        await self._send({"type": "env_info"})
                    self.form = SceneForm(await self._read("env_info"))
            except TimeoutError:
                raise SceneFailed("it did not describe itself") from None
        return self.form

    async def ask(self, message: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """The answer to a message, of a certain type."""
        await self._send(message)
        return await self._read(kind)

    async def _read(self, kind: str) -> dict[str, Any]:
        """The next message of the scene, whole: whoever waits for it may be cancelled."""
        (size,) = struct.unpack("<I", await self._received_up_to(4))
        if size > MAX_BYTES:
            raise SceneFailed(f"it sent a message of {size:,} bytes")
        content = (await self._received_up_to(4 + size))[4:]
        del self._received[: 4 + size]
        try:
            answer = read_json(content)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("type") != kind:
            raise SceneFailed(f"it sent no message of the type {kind!r}")
        return answer

    def close(self) -> None:
        """Asks the game to end, and ends the connection."""
        with contextlib.suppress(OSError):
            self._connection.send(_frame({"type": "close"}))
        self._connection.close()

    async def _send(self, message: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._connection, _frame(message))
        except OSError as error:
            raise SceneFailed(f"it has gone: {one_line(error)}") from None

    async def _received_up_to(self, size: int) -> bytes:
        """The first bytes that have not been read; they stay where they are."""
        loop = asyncio.get_running_loop()
        while (missing := size - len(self._received)) > 0:
            try:
                part = await loop.sock_recv(self._connection, min(missing, 2**20))
            except OSError as error:
                raise SceneFailed(f"it has gone: {one_line(error)}") from None
            if not part:
                raise SceneFailed("it has gone")
            self._received += part
        return bytes(self._received[:size])


class Scenes:
    """The port on this machine that scenes connect to.

    Raises:
        UsageError: the port cannot be had.
    """

    def __init__(self, port: int = GODOT_PORT):
        try:
            self._listening = socket.create_server((HOST, port))
        except OSError as error:
            raise UsageError(
                f"godot_port={port} cannot be used ({error.strerror or error}); scenes choose "
                "theirs by --port"
            ) from None
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        self._connected: list[Scene] = []  # while the first was waited for
        self.troubles = Troubles(log.warning)

    def first(self) -> Scene:
        """The first scene that describes itself; waits for it. It is accepted as any other."""
        if not self._connected:
            self._connected = asyncio.run(self._first_described())
        return self._connected[0]

    async def accept(self) -> Scene:
        """The next scene that connects."""
        if self._connected:
            return self._connected.pop(0)
        connection = await self._accepted()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Scene(connection)

    async def _accepted(self) -> socket.socket:
        while True:
            try:
                return (await asyncio.get_running_loop().sock_accept(self._listening))[0]
            except OSError as error:  # no descriptor is left: later there may be one
                kind = "a scene could not connect"
                self.troubles.tell(kind, f"{kind}: {one_line(error)}")
                await asyncio.sleep(RETRY_SECONDS)

    def say_ended(self, scene: Scene, error: SceneFailed) -> None:
        """Says why a scene has ended, to people; what never described itself is another kind."""
        who = "a connection" if scene.form is None else "a scene"
        kind = f"{who} has ended: {str(error).partition(':')[0]}"
        self.troubles.tell(kind, f"a scene has ended: {error}")

    async def _first_described(self) -> list[Scene]:
        """The scenes that have connected when the first has described itself, that one first."""
        describing: dict[asyncio.Task, Scene] = {}
        accepting = asyncio.create_task(self.accept())
        while True:
            await asyncio.wait((accepting, *describing), return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in describing if task.done()]:
                scene = describing.pop(task)
                if task.exception() is None:
                    return [scene, *await _stopped(describing)]
                self.say_ended(scene, task.exception())
                scene.close()
            if accepting.done():
                scene = accepting.result()
                if len(describing) >= MAX_UNDESCRIBED:
                    scene.close()
                else:
                    describing[asyncio.create_task(scene.describe())] = scene
                accepting = asyncio.create_task(self.accept())

    def close(self) -> None:
        self._listening.close()
        for scene in self._connected:
            scene.close()


class SceneClient:
    """The client of a server that a scene is, described."""

    def __init__(self, scene: Scene, served: ServedPolicies, troubles: Troubles):
        self.scene, self.form, self.served = scene, scene.form, served
        self.troubles = troubles
        self._agents = [self._agent(i) for i in range(self.form.num_agents)]
        self._episodes: list[str | None] = [None] * self.form.num_agents
        self._session: Session | None = None
        self._waiting: dict[int, asyncio.Future] = {}
        self._numbers = itertools.count()

    def receive(self, message: protocol.Message, is_text: bool) -> None:
        """An answer of the session."""
        if isinstance(message, protocol.Error) and message.closing:
            for future in self._waiting.values():
                future.set_exception(SceneFailed(message.reason))
            self._waiting.clear()
        elif (future := self._waiting.pop(message.id, None)) is not None and not future.done():
            future.set_result(message)

    async def play(self, session: Session) -> None:
        """Lets the policies act in the scene, until it goes; the session sends to `receive`.

        A scene says `done` for both ends of an episode, which counts as the end of the world. What
        an agent observes with it is where its next episode begins.
        """
        self._session = session
        session.take_unencoded()
        reply = await self.scene.ask({"type": "reset"}, "reset")
        rewards = [0.0] * self.form.num_agents
        while True:
            try:
                asking = [self._act(i, reply["obs"][i], rewards[i]) for i in range(len(rewards))]
                actions = await asyncio.gather(*asking)
                reply = await self.scene.ask({"type": "action", "action": actions}, "step")
                rewards = [float(reply["reward"][i]) for i in range(len(rewards))]
                for i, reward in enumerate(rewards):
                    if reply["done"][i]:
                        await self._end(i, reply["obs"][i], reward)
                        rewards[i] = 0.0
            except (LookupError, TypeError, ValueError) as error:
                raise SceneFailed(f"its step cannot be read: {one_line(error)}") from None

    async def _act(self, i: int, values: Mapping[str, Any], reward: float) -> dict[str, Any]:
        """An agent's action; begins its episode where none is open."""
        obs = self._of(i, self.form.observation(i, values))
        while True:
            if self._episodes[i] is None:
                began = await self._ask(protocol.StartEpisode, episode=None)
                self._episodes[i], reward = began.episode, 0.0
            asked = {"episode": self._episodes[i], "obs": obs, "reward": self._of(i, reward)}
            answer = await self._ask(protocol.GetAction, **asked)
            if isinstance(answer, protocol.Action):
                action = answer.action
                if not self.served.has_one_agent:
                    action = action[self._agents[i]]
                return self.form.action(i, action)
            kind = "an episode of a scene was dropped"
            self.troubles.tell(kind, f"{kind}: {answer.reason}")
            self._episodes[i] = None

    async def _end(self, i: int, values: Mapping[str, Any], reward: float) -> None:
        last = self._of(i, self.form.observation(i, values))
        name, self._episodes[i] = self._episodes[i], None
        await self._ask(protocol.EndEpisode, episode=name, obs=last, reward=self._of(i, reward))

    async def _ask(self, kind: type[protocol.Message], **fields: Any) -> Any:
        """The answer to a request; an `Error` where it was refused."""
        number = next(self._numbers)
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        self._session.handle(kind(id=number, **fields))
        if self._session.is_closed and not future.done():
            raise SceneFailed(self._session.close_reason or "the server has stopped")
        return await future

    def _of(self, i: int, value: Any) -> Any:
        """A value of an agent, as messages have it."""
        return value if self.served.has_one_agent else {self._agents[i]: value}

    def _agent(self, i: int) -> str:
        """The agent of the policies that an agent of the scene plays as."""
        players, name = self.served.players, self.form.policies[i]
        if self.served.has_one_agent:
            (agent,) = players
        elif name in players:
            agent = name
        else:
            raise SceneFailed(f"its policy {name!r} is none of {', '.join(players)}")
        asked = self.form.action_spaces[i]
        if asked != (space := self.served.policies[players[agent]].policy.action_space):
            raise SceneFailed(f"its actions are {asked}, and the policy's are {space}")
        return agent


async def _stopped(describing: Mapping[asyncio.Task, Scene]) -> list[Scene]:
    """The scenes of these tasks, which end; they may be described later."""
    for task in describing:
        task.cancel()
    await asyncio.gather(*describing, return_exceptions=True)
    return list(describing.values())


def _bounded(name: str, value: Any, most: int) -> int:
    """A count that a scene tells."""
    if not isinstance(value, int | float) or not 1 <= value <= most or value % 1:
        raise ValueError(f"{name} must be a whole number from 1 to {most:,}, not {brief(value)}")
    return int(value)


def _array_of(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A part of an observation: nested lists, a row of numbers, or hexadecimal digits of bytes."""
    size = math.prod(shape)
    if isinstance(value, str):
        if len(value) != 2 * size:
            raise ValueError(f"{name!r} must be {size} bytes, not {len(value) // 2}")
        return np.frombuffer(bytes.fromhex(value), np.uint8).reshape(shape)
    array = array_of(value, shape)
    if array is None:
        array = array_of(value, (size,))
    if array is None:
        raise ValueError(f"{name!r} must be {list(shape)} numbers, not {brief(value)}")
    return array.reshape(shape)


def _frame(message: Mapping[str, Any]) -> bytes:
    content = json.dumps(message).encode()
    return struct.pack("<I", len(content)) + content


def _observation_text(parts: Mapping[str, Any]) -> str:
    texts = {}
    for name, form in parts.items():
        if form["space"] == "discrete":
            texts[name] = f"Discrete({_bounded(name, form['size'], MAX_NUMBERS)})"
            continue
        shape = tuple(_bounded(name, size, MAX_NUMBERS) for size in form["size"])
        _bounded(f"the size of {name}", math.prod(shape), MAX_NUMBERS)
        if "2d" in name:
            texts[name] = f"Box(0, 255, {shape}, dtype='uint8')"
        else:
            low, high = float(form.get("low", -1)), float(form.get("high", 1))
            texts[name] = f"Box({low}, {high}, {shape})"
    return next(iter(texts.values())) if len(texts) == 1 else f"Dict({_dict_text(texts)})"


def _action_text(heads: Mapping[str, Any]) -> str:
    sizes = [_bounded(name, head["size"], MAX_NUMBERS) for name, head in heads.items()]
    kinds = {head["action_type"] for head in heads.values()}
    if kinds == {"continuous"}:
        return f"Box(-1, 1, {sum(sizes)})"
    if kinds != {"discrete"}:
        raise SceneFailed("its actions must be all continuous or all discrete")
    listed = ", ".join(map(str, sizes))
    return f"Discrete({listed})" if len(sizes) == 1 else f"MultiDiscrete({listed})"


def _dict_text(texts: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{name!r}: {text}' for name, text in texts.items())}}}"
