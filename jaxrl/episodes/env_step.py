"""The meaning of an environment step for each of many agents: who joins, steps, waits or ends."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxrl.core.errors import brief
from jaxrl.core.value_copies import owned
from jaxrl.episodes.errors import EpisodeError
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl.episodes.values import Nested, as_flag, as_reward, by_name

EVERYONE = "__all__"
# How an agent's part of a field is read; the others are taken as they are.
READERS = {"infos": by_name, "outputs": by_name, "terminateds": as_flag, "truncateds": as_flag}


class EnvStep(NamedTuple):
    """The actions of an environment step and what it returned, by agent; None means nothing."""

    observations: Mapping[Any, Nested] | None
    actions: Mapping[Any, Nested] | None
    rewards: Mapping[Any, float] | None
    infos: Mapping[Any, dict] | None = None
    terminateds: Mapping[Any, bool] | None = None
    truncateds: Mapping[Any, bool] | None = None
    outputs: Mapping[Any, dict[str, Nested]] | None = None  # of the models, with the actions

    def present(self) -> "EnvStep":
        """The step without the agents that a field has None for."""
        return EnvStep(*map(_present, self, self._fields))


def _present(by_agent: Mapping | None, name: str) -> dict:
    if by_agent is None:
        return {}
    if not isinstance(by_agent, Mapping):
        raise EpisodeError(f"{name} must be a dict by agent, not {brief(by_agent)}")
    read = READERS.get(name, lambda _, value: value)
    return {agent: read(name, value) for agent, value in by_agent.items() if value is not None}


class Pending(NamedTuple):
    """An action that has no next observation yet."""

    action: Nested
    outputs: dict[str, Nested]


class AgentStep(NamedTuple):
    """The meaning of an environment step for an agent.

    kind: "absent": it has had no observation so far. "joins": this is its first. "steps": an
    action of its has its next observation. "waits": no observation. "ends": it has none, and
    no action that waits for it.
    """

    kind: str
    reward: float
    observation: Nested = None
    info: dict | None = None
    pending: Pending | None = None
    terminated: bool = False
    truncated: bool = False


def agent_step(
    agent: Any, step: EnvStep, episode: SingleAgentEpisode | None, pending: Pending | None
) -> AgentStep:
    """The meaning of an environment step for an agent; raises EpisodeError where it makes no sense.

    Args:
        episode: the agent's so far, None before its first observation.
        pending: an action of earlier steps that still waits for its observation.
    """
    reward = as_reward(step.rewards.get(agent, 0.0))
    terminated = bool(step.terminateds.get(agent) or step.terminateds.get(EVERYONE))
    truncated = bool(step.truncateds.get(agent) or step.truncateds.get(EVERYONE))
    flags = {"reward": reward, "terminated": terminated, "truncated": truncated}
    observation, info = step.observations.get(agent), step.infos.get(agent)
    if episode is None:
        if agent in step.actions:
            raise EpisodeError(f"agent {agent!r} acts before it has an observation")
        if observation is None or terminated or truncated:
            return AgentStep("absent", **flags)
        return AgentStep("joins", observation=observation, info=info, **flags)
    if episode.is_done:
        if any(agent in part for part in (step.observations, step.actions, step.rewards)):
            raise EpisodeError(
                f"agent {agent!r} has ended, but got an observation, action or reward"
            )
        return AgentStep("ends", reward, None, None, None, *_ends_of(episode))
    if agent in step.actions:
        if pending is not None:
            raise EpisodeError(f"agent {agent!r} acts again before it has its next observation")
        if observation is not None and agent not in step.rewards:
            raise EpisodeError(f"agent {agent!r} acted and observed, but has no reward")
        pending = Pending(step.actions[agent], dict(step.outputs.get(agent, {})))
    if pending is None:
        if observation is not None and not (terminated or truncated):
            raise EpisodeError(f"agent {agent!r} has an observation again before it has acted")
        return AgentStep("ends" if terminated or truncated else "waits", **flags)
    if observation is None and truncated and not terminated:
        raise EpisodeError(f"agent {agent!r} is truncated without a last observation")
    if observation is None and terminated:
        observation, info = episode.observations[-1], episode.infos[-1]
    kind = "waits" if observation is None else "steps"
    episode.check_step(
        episode.observations[-1] if kind == "waits" else observation,
        pending.action,
        pending.outputs,
    )
    if kind == "waits" and agent in step.actions:
        pending = owned(pending)
    return AgentStep(kind, observation=observation, info=info, pending=pending, **flags)


def _ends_of(episode: SingleAgentEpisode) -> tuple[bool, bool]:
    return episode.is_terminated, episode.is_truncated


def steps_of_lists(
    observations: list | None,
    infos: list | None,
    actions: list | None,
    rewards: list | None,
    outputs: list | None,
) -> list[EnvStep]:
    """Lists of dicts by agent as environment steps, the reset first.

    Actions, rewards and outputs of index i belong to the step that leads to observation i + 1.
    """
    observations = _listed("observations", observations)
    actions, rewards = _listed("actions", actions), _listed("rewards", rewards)
    infos = _listed("infos", infos) or [{} for _ in observations]
    outputs = _listed("extra_model_outputs", outputs) or [{} for _ in actions]
    sizes = f"{len(observations)} observations, {len(actions)} actions, {len(rewards)} rewards"
    if len(infos) != len(observations):
        raise EpisodeError(f"{sizes}, {len(infos)} infos; each observation has one")
    if len(actions) == len(observations) > 0:  # nobody has observed anything after the last actions
        observations, infos = [*observations, {}], [*infos, {}]
    is_even = len(actions) == len(rewards) == len(outputs) == max(len(observations) - 1, 0)
    if not is_even:
        raise EpisodeError(
            f"{sizes}, {len(outputs)} extra_model_outputs; there must be one observation more"
        )
    steps = []
    led_to = zip([None, *actions], [None, *rewards], [None, *outputs], strict=True)
    for observation, info, before in zip(observations, infos, led_to, strict=False):
        action, reward, output = before
        steps.append(EnvStep(observation, action, reward, info, outputs=output).present())
    return steps


def _listed(name: str, value: list | None) -> list:
    if not isinstance(value, list | tuple | None):
        raise EpisodeError(f"{name}={brief(value)} must be a list of dicts by agent, or None")
    return list(value or ())


def with_ends(steps: list[EnvStep], terminateds: dict, truncateds: dict) -> list[EnvStep]:
    """The steps of a whole episode, each with the agents that end in it.

    An agent ends with its last observation, if it does not act on that; otherwise at the end.
    Without a flag it has terminated if it does not act while others go on. An agent that ends so
    with its first observation is left out.
    """
    last, acts = {}, {}
    for i, step in enumerate(steps):
        last |= dict.fromkeys(step.observations, i)
        acts |= dict.fromkeys(step.actions, i)
    final = len(steps) - 1
    flags = [({}, {}) for _ in steps]
    for agent, i in last.items():
        is_waiting = acts.get(agent, 0) > i
        is_gone = not is_waiting and i < final
        terminated, truncated = bool(terminateds.get(agent)), bool(truncateds.get(agent))
        terminated |= is_gone and not truncated
        at = final if is_waiting else i
        flags[at][0][agent], flags[at][1][agent] = terminated, truncated
        if is_gone and i == 0:
            del steps[0].observations[agent]
    flags[final][0][EVERYONE] = bool(terminateds.get(EVERYONE))
    flags[final][1][EVERYONE] = bool(truncateds.get(EVERYONE))
    ending = []
    for step, (terminated, truncated) in zip(steps, flags, strict=True):
        ending.append(step._replace(terminateds=terminated, truncateds=truncated))
    return ending


def as_flags(name: str, ends: Mapping[Any, bool] | bool) -> dict:
    """Flags by agent; a bool is meant for all."""
    if ends is None or isinstance(ends, Mapping):
        return {agent: as_flag(name, end) for agent, end in (ends or {}).items()}
    return {EVERYONE: True} if as_flag(name, ends) else {}
