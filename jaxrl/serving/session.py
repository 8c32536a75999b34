"""Session of one client of a policy server: its episodes, and what each of its messages does."""

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UsageError, brief, one_line, unknown_name
from jaxrl.core.spaces import to_json, tree_of
from jaxrl.core.types import AgentId, PolicyId, PyTree
from jaxrl.export.export import strict_json
from jaxrl.models.policy_spec import PolicyState
from jaxrl.serving import protocol
from jaxrl.serving.batched_inference import Acted, BatchedPolicy, Batcher, Row
from jaxrl.serving.episode_record import Act, Chunk, EpisodeRecord, Experience
from jaxrl.serving.message_values import Refused, read_action, read_mask, read_observation

WRONG_TOKEN = "wrong token"
MAX_MISTAKES = 20  # after which a connection is closed


class ServedPolicies:
    """The policies of a server and the agents that they play.

    Args:
        policies: by name.
        explore: whether actions are sampled, where an episode does not say.
    """

    def __init__(self, policies: Mapping[PolicyId, BatchedPolicy], *, explore: bool):
        self.policies, self.explore = dict(policies), explore
        self.players = {
            agent: name for name, batched in policies.items() for agent in batched.policy.agents
        }
        self.weights_version = 0
        self.experience: Experience | None = None  # where episodes are learned from

    @property
    def has_one_agent(self) -> bool:
        """True if messages hold plain values, and not dicts by agent."""
        return len(self.players) == 1

    def facts(self) -> dict[str, dict[str, Any]]:
        """The facts of each policy for clients."""
        return {
            name: {
                "observation_space": strict_json(to_json(batched.policy.observation_space)),
                "action_space": strict_json(to_json(batched.policy.action_space)),
                "mask": batched.policy.masked,
            }
            for name, batched in self.policies.items()
        }

    def by_agent(self, values: Any, what: str) -> dict[AgentId, Any]:
        """A message's values by agent."""
        if self.has_one_agent:
            return {next(iter(self.players)): values}
        if not isinstance(values, dict) or not values:
            raise Refused(f"{what} must be a dict by agent, not {brief(values)}")
        return self._of_known(values)

    def numbers(self, values: protocol.Numbers, what: str) -> dict[AgentId, float]:
        """A message's numbers by agent; that of a single agent may come without its name."""
        if isinstance(values, dict):
            return self._of_known(values)
        return self.by_agent(values, what)

    def _of_known(self, values: dict[AgentId, Any]) -> dict[AgentId, Any]:
        for agent in values:
            if agent not in self.players:
                raise Refused(str(unknown_name("agent", agent, self.players)))
        return values

    def row(self, agent: AgentId, obs: Any, mask: Any, state: PolicyState, explore: bool) -> Row:
        """A request for an agent's action, its parts checked."""
        policy = self.policies[self.players[agent]].policy
        obs, observed_mask = policy.policy_spec.given_observation(obs)
        if mask is not None and observed_mask is not None:
            raise Refused(f"agent {agent!r}: the observation holds an action_mask already")
        mask = observed_mask if mask is None else mask
        if mask is None and policy.masked:
            raise Refused(f"agent {agent!r} needs a mask, the actions that are possible")
        if mask is not None and not policy.masked:
            raise Refused(f"agent {agent!r} takes no mask")
        parts = read_observation(policy.observation_space, obs, policy.name)
        index = policy.agents.index(agent)
        mask = None if mask is None else read_mask(policy.action_space, mask)
        return Row(parts, state, mask, index, explore)


class ServedEpisode:
    """An episode of a client; its `record` is learned from, if it has one."""

    def __init__(self, name: str, explore: bool, states: dict[AgentId, PolicyState]):
        self.name, self.explore, self.states = name, explore, states
        self.record: EpisodeRecord | None = None
        self.ending: set[AgentId] = set()  # agents that ended since the last action
        self.ended: set[AgentId] = set()  # and before
        self.is_waiting = False  # for an action
        self.is_played_by_client = False  # which tells of its actions, and waits for no answer
        self.last_used = time.monotonic()


class Session:
    """One client, whatever carries its frames.

    `handle` never raises for what a client sends. A frame that is no message closes the connection.
    A message that cannot be done drops the episode that it names, if that is this client's.

    Args:
        send: sends a frame, as text or as binary.
        send_weights: answers `GetWeights`, in its own time.
        count: count(name) counts one more in the server's statistics.
        limits: `ServerSettings`.
    """

    def __init__(
        self,
        served: ServedPolicies,
        batcher: Batcher,
        *,
        send: Callable[[bytes, bool], None],
        send_weights: Callable[["Session", protocol.GetWeights], None],
        count: Callable[[str], None],
        limits: Any,
    ):
        self.served, self.batcher, self.limits = served, batcher, limits
        self._send_frame, self._send_weights, self.count = send, send_weights, count
        self.episodes: dict[str, ServedEpisode] = {}
        self.codec: protocol.Codec | protocol.Unencoded | None = None
        self.is_greeted, self.is_closed, self.close_reason = False, False, ""
        self._mistakes, self._started = 0, 0
        self.last_used = time.monotonic()
        self._handlers = {
            protocol.StartEpisode: self._start_episode,
            protocol.GetAction: self._get_action,
            protocol.LogAction: self._log_action,
            protocol.LogReturns: self._log_returns,
            protocol.EndEpisode: self._end_episode,
            protocol.GetWeights: self._get_weights,
        }

    def take_unencoded(self) -> None:
        """Serves a client in this process: `handle` and `send` get messages, without a hello."""
        self.codec, self.is_greeted = protocol.Unencoded(), True

    def handle(self, frame: str | bytes) -> None:
        """Does what a frame says, or refuses it."""
        if self.is_closed:
            return
        self.last_used = time.monotonic()
        self.codec = self.codec or protocol.codec_of(frame)
        try:
            message = self.codec.decode(frame)
        except protocol.Malformed as error:
            self.close(str(error))
            return
        if not self.is_greeted or isinstance(message, protocol.Hello):
            self._greet(message)
            return
        try:
            self._handlers[type(message)](message)
        except (Refused, UsageError) as error:
            self.refuse(message, str(error))

    @property
    def is_ahead(self) -> bool:
        """True if a client that chooses its own actions has to wait for learning."""
        return self.batcher.is_held() and any(
            episode.is_played_by_client for episode in self.episodes.values()
        )

    def is_idle(self, before: float) -> bool:
        """Returns whether nothing has come since a time, and no episode is open."""
        return self.last_used < before and not self.episodes

    def refuse(self, message: protocol.Message, reason: str) -> None:
        """Tells the client that a message was refused, and drops its episode."""
        name = getattr(message, "episode", None)
        if name in self.episodes:
            self.drop(name)
        self._mistakes += 1
        self.count("refused")
        if self._mistakes > MAX_MISTAKES:
            self.close(f"more than {MAX_MISTAKES} messages were refused: {reason}")
        else:
            self.send(protocol.Error(reason, getattr(message, "id", None), name))

    def send(self, message: protocol.Message) -> None:
        if not self.is_closed:
            codec = self.codec or protocol.BINARY
            self._send_frame(codec.encode(message), codec.is_text)

    def close(self, reason: str) -> None:
        """Ends the session; its episodes are dropped."""
        if not self.is_closed:
            if reason:
                self.send(protocol.Error(reason, closing=True))
            self.is_closed, self.close_reason = True, reason
            self.batcher.forget(self)
            for name in list(self.episodes):
                self.drop(name)

    def drop(self, name: str) -> None:
        """Forgets an episode that did not end well."""
        del self.episodes[name]
        self.count("dropped")

    def drop_unused(self, before: float) -> None:
        """Drops the episodes that nothing was said of since a time."""
        if self.is_ahead:  # what its client says is not read meanwhile
            for episode in self.episodes.values():
                episode.last_used = time.monotonic()
        for episode in list(self.episodes.values()):
            if episode.last_used < before and not episode.is_waiting:
                self.drop(episode.name)

    def _greet(self, message: protocol.Request) -> None:
        if self.is_greeted or not isinstance(message, protocol.Hello):
            self.close("the first message, and no other, must be hello")
        elif message.protocol != protocol.PROTOCOL:
            self.close(f"this server speaks protocol {protocol.PROTOCOL}, not {message.protocol}")
        elif not hmac.compare_digest(message.token.encode(), self.limits.token.encode()):
            self.close(WRONG_TOKEN)
        else:
            self.is_greeted = True
            served = self.served
            agents, facts, version = served.players, served.facts(), served.weights_version
            size = self.limits.max_message_bytes
            is_training = served.experience is not None
            self.send(
                protocol.Welcome(protocol.PROTOCOL, agents, facts, is_training, version, size)
            )

    def _start_episode(self, message: protocol.StartEpisode) -> None:
        self._started += 1
        name = message.episode or f"episode-{self._started}"
        if name in self.episodes:
            raise Refused(f"episode {name!r} has begun already")
        if len(self.episodes) >= self.limits.max_episodes:
            raise Refused(f"no more than {self.limits.max_episodes} episodes may be open")
        explore = self.served.explore if message.explore is None else message.explore
        states = {
            agent: self.served.policies[policy].fresh_state
            for agent, policy in self.served.players.items()
        }
        self.episodes[name] = episode = ServedEpisode(name, explore, states)
        experience = self.served.experience
        if experience is not None and message.training_enabled:
            episode.record = EpisodeRecord(self.served.has_one_agent, experience.max_steps)
        self.count("episodes")
        self.send(protocol.EpisodeStarted(message.id, name))

    def _get_action(self, message: protocol.GetAction) -> None:
        episode = self._open(message.episode)
        self._add_returns(episode, message)
        rows = self._rows(episode, message)
        agents = list(rows)
        self._observed(episode, message, rows)
        episode.is_waiting = True

        def answer(acted: list[Acted] | Exception) -> None:
            if self.is_closed or self.episodes.get(episode.name) is not episode:
                return
            episode.is_waiting = False
            if isinstance(acted, Exception):
                self.refuse(message, f"the policy failed: {one_line(acted)}")
                return
            actions, acts = {}, {}
            for agent, row in zip(agents, acted, strict=True):
                episode.states[agent] = row.state
                actions[agent] = row.action
                acts[agent] = self._act_of(agent, rows[agent], row)
            if episode.record is not None:
                episode.record.act(acts)
            self.count("actions")
            action = actions[agents[0]] if self.served.has_one_agent else actions
            self.send(protocol.Action(message.id, action, self.served.weights_version))

        asked = [(self.served.players[agent], row) for agent, row in rows.items()]
        self.batcher.ask(self, asked, answer)

    def _log_action(self, message: protocol.LogAction) -> None:
        episode = self._open(message.episode)
        self._add_returns(episode, message)
        rows = self._rows(episode, message)
        actions = self.served.by_agent(message.action, "action")
        if actions.keys() != rows.keys():
            raise Refused(f"actions of {', '.join(actions)}, but observations of {', '.join(rows)}")
        if episode.record is not None and message.log_prob is None:
            raise Refused(
                "log_action needs log_prob in an episode that is learned from; training_enabled "
                "of start_episode says whether it is"
            )
        log_probs = {}
        if message.log_prob is not None:
            log_probs = self.served.numbers(message.log_prob, "log_prob")
        acts = {}
        for agent, value in actions.items():
            batched = self.served.policies[self.served.players[agent]]
            if batched.remembers:
                raise Refused("a policy with memory has to choose every action: use get_action")
            spec, name = batched.policy_spec, batched.policy.name
            action = read_action(spec.action_space, value, name)
            sampled, env_action = spec.action_form.recorded(spec.action_form.from_env(action))
            sampled = None if env_action is None else jax.device_get(sampled)
            if episode.record is not None and not abs(log_probs.get(agent, np.inf)) < 1e30:
                raise Refused(f"log_prob of agent {agent!r} must be a finite number")
            acts[agent] = Act(action, sampled, log_probs.get(agent, 0.0), rows[agent].mask)
        self._observed(episode, message, rows)
        if episode.record is not None:
            episode.record.act(acts)
            episode.is_played_by_client = True

    def _log_returns(self, message: protocol.LogReturns) -> None:
        self._add_returns(self._open(message.episode), message)

    def _end_episode(self, message: protocol.EndEpisode) -> None:
        episode = self._open(message.episode)
        self._add_returns(episode, message)
        if episode.record is not None:
            self._record_end(episode, message)
        del self.episodes[episode.name]
        self.count("ended")

        def answer() -> None:
            version = self.served.weights_version
            self.send(protocol.EpisodeEnded(message.id, episode.name, version))

        if episode.is_played_by_client:  # else it would play ever more than can be learned from
            self.batcher.when_free(answer)
        else:
            answer()

    def _record_end(self, episode: ServedEpisode, message: protocol.EndEpisode) -> None:
        """Records the last observation, which a time limit's value needs."""
        last = {} if message.obs is None else self.served.by_agent(message.obs, "obs")
        if message.truncated and message.obs is None:
            raise Refused("an episode that a time limit ends needs its last observation, obs")
        observations = {}
        for agent, obs in last.items():
            if agent not in episode.ended:
                observations[agent] = self._unanswered(agent, obs)
        chunk = episode.record.end(observations, truncated=message.truncated, ended=episode.ending)
        self._keep(chunk)

    def _unanswered(self, agent: AgentId, obs: Any) -> PyTree:
        """An observation that nobody acts on."""
        batched = self.served.policies[self.served.players[agent]]
        policy = batched.policy
        obs, _ = policy.policy_spec.given_observation(obs)
        return batched.tree_of(read_observation(policy.observation_space, obs, policy.name))

    def _observed(self, episode: ServedEpisode, message: Any, rows: Mapping[AgentId, Row]) -> None:
        """Takes note of who has ended, and records observations if the episode is learned from."""
        ending, episode.ending = episode.ending, set()
        episode.ended |= ending
        if episode.record is None:
            return
        policies, players = self.served.policies, self.served.players
        trees = {agent: policies[players[agent]].tree_of(row.obs) for agent, row in rows.items()}
        for agent in ending.intersection(message.obs):
            trees[agent] = self._unanswered(agent, message.obs[agent])
        self._keep(episode.record.observe(trees, ended=ending))

    def _keep(self, chunk: Chunk | None) -> None:
        if chunk is not None:
            self.served.experience.put(chunk)

    def _act_of(self, agent: AgentId, row: Row, acted: Acted) -> Act:
        """The record of an answer that learning needs."""
        batched = self.served.policies[self.served.players[agent]]
        spaces = tree_of(batched.policy_spec.action_space)
        typed = lambda part, leaf: np.asarray(leaf, part.dtype)
        action = jax.tree.map(typed, spaces, acted.action)
        return Act(action, acted.sampled, acted.log_prob, row.mask)

    def _get_weights(self, message: protocol.GetWeights) -> None:
        if message.policy is None and len(self.served.policies) > 1:
            raise Refused(f"name one of the policies: {', '.join(self.served.policies)}")
        name = next(iter(self.served.policies)) if message.policy is None else message.policy
        if name not in self.served.policies:
            raise Refused(str(unknown_name("policy", name, self.served.policies)))
        message.policy = name
        self._send_weights(self, message)

    def _open(self, name: str) -> ServedEpisode:
        episode = self.episodes.get(name)
        if episode is None:
            raise Refused(f"there is no episode {name!r}: start_episode begins one")
        if episode.is_waiting:
            raise Refused(f"episode {name!r} is still waiting for an action")
        episode.last_used = time.monotonic()
        return episode

    def _rows(self, episode: ServedEpisode, message: Any) -> dict[AgentId, Row]:
        """The requests of the agents that act: one that ends has only observed."""
        observations = self.served.by_agent(message.obs, "obs")
        masks = {} if message.mask is None else self.served.by_agent(message.mask, "mask")
        rows = {}
        for agent, obs in observations.items():
            if agent in episode.ended:
                raise Refused(f"agent {agent!r} has ended in this episode, and observes no more")
            if agent in episode.ending:
                continue
            state = episode.states[agent]
            rows[agent] = self.served.row(agent, obs, masks.get(agent), state, episode.explore)
        if not rows:
            raise Refused("each of these agents has ended: end_episode ends the episode")
        return rows

    def _add_returns(self, episode: ServedEpisode, message: Any) -> None:
        """Gives agents their rewards, and takes note of those whose part ended with them."""
        self._add_reward(episode, message.reward)
        if message.done and self.served.has_one_agent:
            raise Refused("done is of several agents: end_episode ends the episode of one")
        for agent in message.done:
            if agent not in episode.states:
                raise Refused(str(unknown_name("agent", agent, self.served.players)))
        episode.ending |= set(message.done) - episode.ended

    def _add_reward(self, episode: ServedEpisode, reward: protocol.Numbers) -> None:
        """Gives agents their rewards."""
        if not isinstance(reward, dict) and reward == 0:
            return
        for agent, value in self.served.numbers(reward, "reward").items():
            if not abs(value) < 1e30:
                raise Refused(f"a reward must be a finite number, not {value}")
            if agent in episode.ended and value:
                raise Refused(f"agent {agent!r} has ended in this episode, and earns no more")
            if agent in episode.ended:
                continue
            if episode.record is not None:
                episode.record.reward(agent, value)
            state = episode.states[agent]
            if state.prev_reward is not None:
                total = np.float32(state.prev_reward + value)
                episode.states[agent] = state.replace(prev_reward=total)
