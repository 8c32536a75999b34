"""Records of served episodes: what clients lived through, in chunks to learn from."""

import queue
import threading
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.types import AgentId
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.outside.recording_policy import POLICY_ACTIONS

Chunk = SingleAgentEpisode | MultiAgentEpisode


class Act(NamedTuple):
    """An action, with what learning needs to know of it."""

    action: Any  # in the environment's units
    sampled: Any  # as the policy sampled it; None where that is the action
    log_prob: float  # with which it was chosen
    mask: np.ndarray | None  # the actions that were possible


class EpisodeRecord:
    """The steps of an episode since its last chunk.

    Args:
        max_steps: of a chunk.
    """

    def __init__(self, has_one_agent: bool, max_steps: int):
        self.has_one_agent, self.max_steps = has_one_agent, max_steps
        self.episode: Chunk = SingleAgentEpisode() if has_one_agent else MultiAgentEpisode()
        self._acts: dict[AgentId, Act] = {}
        self._rewards: dict[AgentId, float] = {}
        self._observed: dict[AgentId, Any] = {}

    def reward(self, agent: AgentId, value: float) -> None:
        """Adds to the reward of an agent's last action."""
        self._rewards[agent] = self._rewards.get(agent, 0.0) + value

    def observe(
        self, observations: Mapping[AgentId, Any], *, ended: Collection[AgentId] = ()
    ) -> Chunk | None:
        """Records what the last actions led to; a chunk, where it has as many steps as it may.

        Args:
            ended: agents that have terminated, while others go on.
        """
        self._observed.update(observations)
        if not self.episode.is_reset:
            self._rewards = {}  # of nothing that anybody did
            if self.has_one_agent:
                self.episode.add_env_reset(*observations.values())
            else:
                begin = {name: obs for name, obs in observations.items() if name not in ended}
                self.episode.add_env_reset(observations=begin)
            return None
        self._step(dict(observations), {}, ended)
        if len(self.episode) < self.max_steps:
            return None
        chunk, self.episode = self.episode, self.episode.cut()
        return chunk

    def act(self, acts: Mapping[AgentId, Act]) -> None:
        """Records the actions on what was observed last."""
        self._acts = dict(acts)

    def end(
        self,
        observations: Mapping[AgentId, Any],
        *,
        truncated: bool,
        ended: Collection[AgentId] = (),
    ) -> Chunk | None:
        """Records the end; the last chunk, where there is any step."""
        if not self._acts:
            return None
        last = {**{agent: self._observed[agent] for agent in self._acts}, **observations}
        self._step(last, {"truncated" if truncated else "terminated": True}, ended)
        return self.episode

    def _step(
        self,
        observations: dict[AgentId, Any],
        ends: dict[str, bool],
        ended: Collection[AgentId],
    ) -> None:
        acts, rewards = self._acts, self._rewards
        self._acts, self._rewards = {}, {}
        outputs = {agent: _outputs(act) for agent, act in acts.items()}
        if self.has_one_agent:
            (agent,) = acts
            action, reward = acts[agent].action, rewards.get(agent, 0.0)
            keywords = {**ends, "extra_model_outputs": outputs[agent]}
            self.episode.add_env_step(observations[agent], action, reward, **keywords)
            return
        actions = {agent: act.action for agent, act in acts.items()}
        rewards = {**dict.fromkeys(acts, 0.0), **rewards}
        keywords = {f"{how}s": {"__all__": True} for how in ends}
        keywords.setdefault("terminateds", {}).update(dict.fromkeys(ended, True))
        self.episode.add_env_step(
            observations, actions, rewards, **keywords, extra_model_outputs=outputs
        )


def _outputs(act: Act) -> dict[str, Any]:
    """The outputs of a step, by RLlib's names and `policy_actions`."""
    outputs = {"action_logp": np.float32(act.log_prob)}
    if act.sampled is not None:
        outputs[POLICY_ACTIONS] = act.sampled
    if act.mask is not None:
        outputs["action_mask"] = act.mask
    return outputs


class Experience:
    """Chunks of episodes that wait to be learned from, for one thread that takes them.

    Args:
        max_steps: of a chunk.
        enough: how many steps may wait before clients have to.
    """

    def __init__(self, max_steps: int, enough: int):
        self.max_steps, self.enough = max_steps, enough
        self._chunks: queue.SimpleQueue[Chunk] = queue.SimpleQueue()
        self.is_held = False  # clients have to wait in any case
        self._lock, self._waiting = threading.Lock(), 0

    @property
    def is_full(self) -> bool:
        """True if clients have to wait."""
        return self.is_held or self._waiting >= self.enough

    def put(self, chunk: Chunk) -> None:
        with self._lock:
            self._waiting += len(chunk)
        self._chunks.put(chunk)

    def get(self, seconds: float) -> Chunk | None:
        """The oldest chunk; None if none comes in time."""
        try:
            chunk = self._chunks.get(timeout=seconds)
        except queue.Empty:
            return None
        with self._lock:
            self._waiting -= len(chunk)
        return chunk
