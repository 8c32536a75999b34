"""Policy client: RLlib's verbs over a WebSocket, for programs that own their loop."""

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import connect

from jaxrl_client.local_policy import LocalPolicies
from jaxrl_client.values import from_action, to_message

PROTOCOL = 1
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between two attempts to connect
PING_SECONDS = 600.0  # for the answer to a ping; a server may read nothing while it learns
FOREVER = threading.TIMEOUT_MAX
EVERYONE = "__all__"
FLAGS = bool | np.bool_
BROKEN = (WebSocketException, OSError, TimeoutError, EOFError)


class ServerError(RuntimeError):
    """The server refused a message; its episode has been dropped."""


class EpisodeLost(ConnectionError):
    """The connection was lost, and with it the episode. The client has connected again."""


class Episode:
    """An episode of this client."""

    def __init__(self, explore: bool | None, training_enabled: bool):
        self.explore, self.training_enabled = explore, training_enabled
        self.reward: Any = 0.0  # since the last action, not sent yet
        self.done: list[str] = []  # the agents that ended with it
        self.ended: set[str] = set()  # those and the ones before
        self.num_steps = 0

    def end_agents(self, agents: Iterable[str]) -> None:
        """Takes note of agents that have ended, while others go on."""
        new = [agent for agent in agents if agent not in self.ended]
        self.done += new
        self.ended |= set(new)

    def taken_returns(self) -> dict[str, Any]:
        """The fields of a message that say what came of the last action; they are said once."""
        fields = {"reward": self.reward, **({"done": self.done} if self.done else {})}
        self.reward, self.done = 0.0, []
        return fields


def _check_seconds(name: str, seconds: float, above: bool = False) -> None:
    is_number = isinstance(seconds, int | float | np.number) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < FOREVER or (above and seconds == 0):
        least = "above" if above else "of at least"
        raise ValueError(f"{name}={seconds!r:.80} must be a number of seconds {least} 0")


class PolicyClient:
    """A connection to a policy server.

    One agent's observations, actions and rewards are plain values; those of several are dicts by
    agent. It may be used from several threads, one call at a time.

    Args:
        address: of the server, "ws://127.0.0.1:9944" or "wss://...".
        inference_mode: "remote": the server acts; "local": the policies are fetched and act here.
        update_interval: seconds between two looks for newer policies, in local mode, at the starts
            of episodes; None: never.
        token: where the server asks for one.
        ssl_context: for "wss://", where the system's certificates do not do.
        text: whether messages are JSON, and not msgpack.
        timeout: seconds until an answer.
        reconnect_seconds: for how long a server that is gone is tried again.
    """

    def __init__(
        self,
        address: str = "ws://127.0.0.1:9944",
        inference_mode: str = "remote",
        update_interval: float | None = 10.0,
        *,
        token: str = "",
        ssl_context: ssl.SSLContext | None = None,
        text: bool = False,
        timeout: float = 60.0,
        reconnect_seconds: float = 60.0,
    ):
        if not isinstance(inference_mode, str) or inference_mode not in ("local", "remote"):
            raise ValueError(f"inference_mode={inference_mode!r:.80} must be 'local' or 'remote'")
        if not isinstance(address, str) or not address.startswith(("ws://", "wss://")):
            raise ValueError(f"address={address!r:.80} must begin with ws:// or wss://")
        if not isinstance(token, str) or not token.isprintable():
            raise ValueError("token must be a text")
        if not isinstance(text, bool):
            raise ValueError(f"text={text!r:.80} must be True or False")
        if update_interval is not None:
            _check_seconds("update_interval", update_interval)
        _check_seconds("timeout", timeout, above=True)
        _check_seconds("reconnect_seconds", reconnect_seconds)
        self.address, self.inference_mode = address, inference_mode
        self.update_interval, self.timeout = update_interval, timeout
        self.reconnect_seconds, self.text = reconnect_seconds, text
        self._token, self._ssl_context = token, ssl_context
        library = msgspec.json if text else msgspec.msgpack
        self._encode, self._decode = library.Encoder().encode, library.Decoder().decode
        self._lock, self._requests, self._started = threading.RLock(), 0, 0
        self._episodes: dict[str, Episode] = {}
        self._local: LocalPolicies | None = None
        self._updated = -np.inf
        self._connection = self._socket = None
        self._connect()

    def start_episode(
        self,
        episode_id: str | None = None,
        training_enabled: bool = True,
        explore: bool | None = None,
    ) -> str:
        """Begins an episode; its name.

        Args:
            training_enabled: whether a server that trains learns from it.
            explore: whether actions are sampled; None: as the server does.
        """
        with self._lock:
            if self.inference_mode == "local":
                self._update_if_due(explore)
            self._started += 1
            name = f"episode-{self._started}" if episode_id is None else episode_id
            if self._reports_episodes:
                fields = {"episode": name, "training_enabled": training_enabled}
                self._request("start_episode", **fields, **_exploring(explore))
            elif name in self._episodes:
                raise ServerError(f"episode {name!r} has begun already")
            self._episodes[name] = Episode(explore, training_enabled)
            return name

    def get_action(self, episode_id: str, observation: Any, mask: Any = None) -> Any:
        """The action for an observation; `mask` says which ones are possible, where it is needed.

        Raises:
            EpisodeLost: the connection broke; start another episode.
            ServerError: the server refused the observation.
        """
        with self._lock:
            episode = self._open(episode_id)
            if self.inference_mode == "local":
                return self._act_here(episode_id, observation, mask)
            fields = self._fields(episode_id, observation, mask, episode.taken_returns())
            answer = self._request("get_action", **fields)
            episode.num_steps += 1
            return self._by_agent(from_action, "action_space", answer["action"])

    def log_action(
        self,
        episode_id: str,
        observation: Any,
        action: Any,
        mask: Any = None,
        log_prob: Any = None,
    ) -> None:
        """Sends the server an action that was chosen here.

        Args:
            log_prob: the logarithm of the probability (density) with which it was chosen; a server
                that trains learns nothing from an action without it.
        """
        with self._lock:
            episode = self._open(episode_id)
            fields = self._fields(episode_id, observation, mask, episode.taken_returns())
            fields["action"] = self._by_agent(self._to_message, "action_space", action)
            if log_prob is not None:
                fields["log_prob"] = _each(float, log_prob)
            episode.num_steps += 1
            if self._reports_episodes:
                self._tell("log_action", fields)

    def log_returns(
        self,
        episode_id: str,
        reward: Any,
        info: Any = None,
        multiagent_done_dict: dict[str, bool] | None = None,
    ) -> None:
        """Adds a reward since the last action; it is sent with the next message.

        Args:
            info: for programs written for RLlib: it is not sent, since nothing reads it; what a
                policy should know is in its observation.
            multiagent_done_dict: {agent: True} of the agents whose part in the episode ended with
                this reward, while others go on; `end_episode` ends it for all ("__all__").

        Raises:
            ValueError: agents that have ended where the server has one alone.
        """
        done = multiagent_done_dict or {}
        if not isinstance(done, dict) or not all(isinstance(end, FLAGS) for end in done.values()):
            raise ValueError(f"multiagent_done_dict={done!r:.80} must be {{agent: True or False}}")
        if done and len(self.welcome["agents"]) == 1:
            raise ValueError(
                "multiagent_done_dict is of several agents, and the server has one: end_episode "
                "ends its episode"
            )
        with self._lock:
            episode = self._open(episode_id)
            episode.reward = _sum(episode.reward, _each(float, reward))
            episode.end_agents(agent for agent, end in done.items() if end and agent != EVERYONE)

    def end_episode(
        self, episode_id: str, observation: Any = None, truncated: bool = False
    ) -> None:
        """Ends an episode.

        Args:
            observation: the last one, which nobody acts on.
            truncated: whether a time limit ended it, and not the world.
        """
        with self._lock:
            episode = self._open(episode_id)
            if self._reports_episodes:
                fields = {"episode": episode_id, "truncated": truncated, **episode.taken_returns()}
                if observation is not None:
                    obs = self._by_agent(self._to_message, "observation_space", observation)
                    fields["obs"] = obs
                self._request("end_episode", **fields)
            self._forget(episode_id)

    def update_policy_weights(self) -> None:
        """Fetches the newest policies, in local mode; running episodes keep theirs."""
        with self._lock:
            if self._local is not None:
                self._local.update(self._fetch)
            self._updated = time.monotonic()

    def close(self) -> None:
        """Ends the connection; the server drops the episodes that have not ended."""
        with self._lock:
            if self._connection is not None:
                connection, self._connection, self._socket = self._connection, None, None
                connection.__exit__(None, None, None)

    def __enter__(self) -> "PolicyClient":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def _reports_episodes(self) -> bool:
        """True if the server follows the episodes, to act in them or to learn from them."""
        return self.inference_mode == "remote" or self.welcome["training"]

    def _open(self, name: str) -> Episode:
        if name not in self._episodes:
            raise ServerError(f"there is no episode {name!r}: start_episode begins one")
        return self._episodes[name]

    def _forget(self, name: str) -> None:
        self._episodes.pop(name, None)
        if self._local is not None:
            self._local.forget(name)

    def _act_here(self, name: str, observation: Any, mask: Any) -> Any:
        episode, acting = self._episodes[name], observation
        if episode.ended and isinstance(observation, dict):
            ended = episode.ended
            acting = {agent: obs for agent, obs in observation.items() if agent not in ended}
            if not acting:
                raise ServerError("each of these agents has ended: end_episode ends the episode")
        returns = episode.taken_returns()
        request = {"obs": acting, "mask": mask, "explore": episode.explore, **returns}
        actions, log_probs = self._local.act(name, request, self._fetch)
        if len(self.welcome["agents"]) == 1:
            (actions,), (log_probs,) = actions.values(), log_probs.values()
        episode.num_steps += 1
        if self._reports_episodes:
            fields = self._fields(name, observation, mask, returns)
            fields["action"] = self._by_agent(self._to_message, "action_space", actions)
            fields["log_prob"] = log_probs
            fields["weights_version"] = self._local.version_of(name)
            self._tell("log_action", fields)
        return actions

    def _update_if_due(self, explore: bool | None) -> None:
        if self._local is None:
            self._local = LocalPolicies(self.welcome)
        self._local.fetch_missing(explore, self._fetch)
        due = self.update_interval is not None
        if due and time.monotonic() - self._updated >= self.update_interval:
            self.update_policy_weights()

    def _fetch(self, policy: str, explore: bool | None, version: int) -> dict[str, Any]:
        fields = {"policy": policy, "known": version}
        return self._request("get_weights", **fields, **_exploring(explore))

    def _fields(
        self, name: str, observation: Any, mask: Any, returns: dict[str, Any]
    ) -> dict[str, Any]:
        """The fields of a message that `get_action` and `log_action` have in common."""
        obs = self._by_agent(self._to_message, "observation_space", observation)
        fields = {"episode": name, "obs": obs, **returns}
        if mask is not None:
            fields["mask"] = _each(lambda flags: np.asarray(flags, bool).tolist(), mask)
        return fields

    def _to_message(self, value: Any, space: dict[str, Any] | None = None) -> Any:
        return to_message(value, space, binary=not self.text)

    def _by_agent(self, convert: Any, kind: str, values: Any) -> Any:
        """Every agent's value, converted with its space."""
        agents, policies = self.welcome["agents"], self.welcome["policies"]
        if len(agents) == 1:
            (policy,) = agents.values()
            return convert(values, policies[policy][kind])
        if not isinstance(values, dict):
            raise ValueError(f"there are several agents ({', '.join(agents)}): give a dict")
        spaces = {agent: policies[policy][kind] for agent, policy in agents.items()}
        return {agent: convert(value, spaces.get(agent)) for agent, value in values.items()}

    def _connect(self) -> None:
        """Connects, and tries again while the server is not there."""
        last, pause = time.monotonic() + self.reconnect_seconds, FIRST_PAUSE
        while True:
            try:
                options = {"compression": None, "max_size": None, "proxy": None}
                if self._ssl_context:
                    options["ssl"] = self._ssl_context
                self._connection = connect(self.address, ping_timeout=PING_SECONDS, **options)
                self._socket = self._connection.__enter__()
                self._send("hello", {"protocol": PROTOCOL, "token": self._token})
                self.welcome = self._receive()
                return
            except InvalidStatus as error:
                raise ServerError(f"{self.address} refused the connection: {error}") from None
            except BROKEN as error:
                self._break()
                if time.monotonic() + pause > last:
                    raise ConnectionError(f"{self.address} cannot be reached: {error}") from None
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _break(self) -> None:
        """Forgets a connection that does not work, and the server's episodes with it."""
        connection, self._connection, self._socket = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(*BROKEN):
                connection.__exit__(None, None, None)
        if self.inference_mode == "remote" or getattr(self, "welcome", {}).get("training"):
            for name in list(self._episodes):
                self._forget(name)

    def _request(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The answer to a message; connects again where the connection is broken."""
        name = fields.get("episode")
        begins = kind in ("start_episode", "get_weights")
        while True:
            try:
                if self._socket is None:
                    raise EOFError("closed")
                self._requests += 1
                self._send(kind, {"id": self._requests, **fields})
                return self._receive(self._requests)
            except BROKEN as error:
                self._break()
                self._connect()
                if not begins:
                    raise EpisodeLost(f"episode {name!r} was lost: {error}") from None

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        """Sends a message that is not answered."""
        try:
            if self._socket is None:
                raise EOFError("closed")
            self._send(kind, fields)
        except BROKEN as error:
            self._break()
            self._connect()
            raise EpisodeLost(f"episode {fields['episode']!r} was lost: {error}") from None

    def _send(self, kind: str, fields: dict[str, Any]) -> None:
        frame = self._encode({"type": kind, **fields})
        self._socket.send(frame.decode() if self.text else frame)

    def _receive(self, number: int | None = None) -> dict[str, Any]:
        """The answer to request `number`; an error about an earlier message is raised with it."""
        refused = None
        while True:
            message = self._decode(self._socket.recv(timeout=self.timeout))
            if message["type"] == "error":
                refused = refused or message
                self._forget(message["episode"])
                if message["closing"]:
                    self._break()
                    raise ServerError(refused["reason"])
            if message.get("id") == number:
                if refused is not None:
                    raise ServerError(refused["reason"])
                return message


def _exploring(explore: bool | None) -> dict[str, bool]:
    """The field of a message that says whether actions are sampled; none: as the server does."""
    return {} if explore is None else {"explore": explore}


def _each(convert: Callable[[Any], Any], values: Any) -> Any:
    """A value converted, or each value of a dict by agent."""
    if isinstance(values, dict):
        return {agent: convert(value) for agent, value in values.items()}
    return convert(values)


def _sum(total: Any, value: Any) -> Any:
    """The sum of two rewards, each a number or a dict by agent."""
    if not isinstance(value, dict):
        return total + value
    if not isinstance(total, dict):
        total = {}
    return {agent: total.get(agent, 0.0) + value.get(agent, 0.0) for agent in {**total, **value}}
