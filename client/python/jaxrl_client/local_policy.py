"""Local inference: the server's policies, fetched as files and played in NumPy."""

import base64
import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxrl_client.numpy_policy import NumpyPolicy
from jaxrl_client.values import from_action

Fetch = Callable[[str, bool | None, int], dict[str, Any]]  # policy, explore, known version


class LocalPolicies:
    """The policies of a server, and which of them play which episode.

    An episode is played to its end with the weights that it began with.
    """

    def __init__(self, welcome: dict[str, Any]):
        self.welcome = welcome
        self._files: dict[tuple[str, bool | None], tuple[int, NumpyPolicy]] = {}
        self._players: dict[str, dict[str, NumpyPolicy]] = {}  # by episode, then by agent
        self._versions: dict[str, int] = {}

    def fetch_missing(self, explore: bool | None, fetch: Fetch) -> None:
        """Fetches the policies that were not fetched yet."""
        for policy in self.welcome["policies"]:
            if (policy, explore) not in self._files:
                self._fetch(policy, explore, fetch)

    def update(self, fetch: Fetch) -> None:
        """Fetches the policies that have become newer."""
        for policy, explore in list(self._files):
            self._fetch(policy, explore, fetch)

    def _fetch(self, policy: str, explore: bool | None, fetch: Fetch) -> None:
        version, _ = self._files.get((policy, explore), (-1, None))
        answer = fetch(policy, explore, version)
        npz = answer["npz"]
        if npz is not None:
            if not isinstance(npz, bytes):
                npz = base64.b64decode(npz)
            # Which actions are drawn differs from client to client.
            file = NumpyPolicy(io.BytesIO(npz), seed=None)
            self._files[policy, explore] = answer["weights_version"], file

    def act(
        self, episode: str, request: dict[str, Any], fetch: Fetch
    ) -> tuple[dict[str, Any], dict[str, float]]:
        """(the agents' actions, their log-probabilities where actions are integers)."""
        agents, explore = self.welcome["agents"], request["explore"]
        one_agent = len(agents) == 1
        by_agent = lambda values: {next(iter(agents)): values} if one_agent else values
        masks = {} if request["mask"] is None else by_agent(request["mask"])
        rewards = by_agent(request["reward"]) or {}
        if episode not in self._players:
            self.fetch_missing(explore, fetch)
            self._players[episode] = {}
            versions = [version for version, _ in self._files.values()]
            self._versions[episode] = min(versions)
        players, actions, log_probs = self._players[episode], {}, {}
        for agent, obs in by_agent(request["obs"]).items():
            policy = agents[agent]
            begins = agent not in players
            if begins:  # the arrays are shared, the memory is not
                players[agent] = copy.copy(self._files[policy, explore][1])
                players[agent].reset()
            player = players[agent]
            others = [name for name in agents if agents[name] == policy]
            inputs = _inputs(player, obs, masks.get(agent))
            fields = {field["name"] for field in player.metadata["inputs"]}
            if "agent" in fields:
                inputs["agent"] = others.index(agent)
            if "prev_reward" in fields and not begins:
                inputs["prev_reward"] = rewards.get(agent, 0.0)
            action = player.act(**inputs)
            actions[agent] = from_action(action, self.welcome["policies"][policy]["action_space"])
            log_probs[agent] = log_prob(player, action)
        return actions, log_probs

    def version_of(self, episode: str) -> int:
        return self._versions[episode]

    def forget(self, episode: str) -> None:
        self._players.pop(episode, None)
        self._versions.pop(episode, None)


def log_prob(player: NumpyPolicy, action: Any) -> float | None:
    """The log-probability of the action that a policy has just chosen, if that is of integers."""
    network, logits = player.metadata["network"], player.action_dist_inputs[0]
    plans = network.get("actions", [network])
    if any(plan["distribution"] != "categorical" for plan in plans):
        return None
    total, counts, places = 0.0, [], []
    for plan, leaf in zip(plans, _leaves(action), strict=True):
        counts += plan["action_counts"]
        places += (np.ravel(leaf) - np.array(plan.get("action_start", 0))).tolist()
    parts = np.split(np.asarray(logits, np.float64), np.cumsum(counts)[:-1])
    for part, chosen in zip(parts, places, strict=True):
        highest = part.max()
        total += part[chosen] - highest - np.log(np.exp(part - highest).sum())
    return float(total)


def _leaves(action: Any) -> Iterator[Any]:
    """The parts of an action, those of a dict by name."""
    if isinstance(action, dict):
        action = tuple(action[name] for name in sorted(action))
    if not isinstance(action, tuple):
        yield action
        return
    for part in action:
        yield from _leaves(part)


def _inputs(player: NumpyPolicy, obs: Any, mask: Any) -> dict[str, Any]:
    """An observation and a mask by the names of the policy's inputs."""
    names = {field["name"] for field in player.metadata["inputs"]}
    inputs = {} if mask is None else {"mask": mask}
    for path, part in _parts(obs, player.metadata["observation_space"]):
        if path == "action_mask" and "mask" in names:
            inputs["mask"] = part
        else:
            inputs["obs" if "obs" in names else f"obs_{path}"] = part
    return inputs


def _parts(value: Any, space: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """(name, part) of each plain space of a value."""
    if space["space"] not in ("Dict", "Tuple"):
        yield path, value
        return
    spaces = space["spaces"]
    for name, part in spaces.items() if isinstance(spaces, dict) else enumerate(spaces):
        yield from _parts(value[name], part, f"{path}_{name}" if path else str(name))
