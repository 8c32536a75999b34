"""Episodes judged by policies: each step's importance ratio, reward and features, in arrays.

    log rho[t] = sum over agents m of log pi(a_m[t] | o_m[0..t]) - log b(a_m[t] | o_m[0..t])

over the agents that acted in environment step t and whose policy pi is judged; b is the policy that
recorded the action. The others' ratio is 1: they are part of the environment.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.types import DEFAULT_AGENT, DEFAULT_POLICY, AgentId, PolicyId
from jaxrl.episodes import SingleAgentEpisode
from jaxrl.episodes.by_agent import Episode, agents_of
from jaxrl.episodes.values import (
    Nested,
    check_fits,
    counts_of,
    leaves,
    map_nested,
    map_space,
    one_hot,
    stack,
)
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.offline.action_probabilities import AgentRows, JudgedActions, judge_actions

MAX_ONE_HOT = 256  # values of an integer observation; of more it is read as a number
# A product of ratios passes e^50 in one of e^50 episodes (Ville's inequality): that is no chance.
MAX_LOG_RATIO = 50.0


class JudgedEpisodes(NamedTuple):
    """n episodes of up to T environment steps; zeros beyond an episode's end.

    The features are of all R steps, one episode after the other; None unless they were asked for.
    """

    log_ratios: np.ndarray  # f64[n, T]
    rewards: np.ndarray  # f64[n, T]  of the agents whose return is estimated
    lengths: np.ndarray  # i64[n]
    states: Any = None  # f32[R, D]  the last observation of each agent, 0 before its first
    taken: Any = None  # f32[R, G]  g(a) of the judged agents' actions; 0 where an agent waits
    expected: Any = None  # f32[R, G]  E[g(a)] under the judged policies


class _Judged(NamedTuple):
    """The k steps of an agent in one episode."""

    number: int  # of the episode
    data: SingleAgentEpisode
    times: np.ndarray  # i64[k + 1]  the environment steps of its observations


def judge_episodes(
    episodes: Iterable[Episode],
    policy: Any,
    agent: AgentId | None = None,
    *,
    features: bool = True,
) -> JudgedEpisodes:
    """The ratios and rewards of whole episodes.

    Args:
        policy: a `jaxrl.Policy`, or {name: policy} of those that are judged together.
        agent: whose rewards count; None: all agents'.
        features: whether a value is to be fitted.

    Raises:
        UsageError: episodes that these policies cannot judge.
    """
    episodes = list(episodes)
    by_agent = _by_agent(episodes)
    policies = _policies_by_agent(episodes, by_agent, policy)
    if agent is not None and agent not in by_agent:
        raise unknown_name("agent", agent, by_agent, "in the episodes")
    lengths = np.array([len(episode) for episode in episodes])
    log_ratios = np.zeros((len(episodes), lengths.max()))
    judged = {}
    for name, steps in by_agent.items():
        if name in policies:
            judged[name] = judge_actions(policies[name], name, _rows_of(steps))
            log_ratios[_places(steps)] += judged[name].log_ratio
    _check_ratios(episodes, log_ratios)
    rewards = _rewards(episodes, by_agent, agent, log_ratios.shape)
    if not features:
        return JudgedEpisodes(log_ratios, rewards, lengths)
    states = [_states(steps, policies.get(name), lengths) for name, steps in by_agent.items()]
    actions = [_placed(judged[name], by_agent[name], lengths) for name in judged]
    taken, expected = (np.concatenate(parts, axis=1) for parts in zip(*actions, strict=True))
    return JudgedEpisodes(
        log_ratios, rewards, lengths, np.concatenate(states, axis=1), taken, expected
    )


# Episodes by agent


def _by_agent(episodes: list[Episode]) -> dict[AgentId, list[_Judged]]:
    if not episodes:
        raise UsageError("no episodes to judge from")
    by_agent = {}
    for number, episode in enumerate(episodes):
        _check_whole(episode, episodes[0])
        for agent, (data, times) in agents_of(episode).items():
            if len(data):
                by_agent.setdefault(agent, []).append(_Judged(number, data, times))
    return by_agent


def _check_whole(episode: Any, first: Episode) -> None:
    if not isinstance(episode, Episode):
        raise UsageError(f"expected episodes of jaxrl.episodes, not {brief(episode)}")
    if type(episode) is not type(first):
        raise UsageError(
            "episodes of one agent and of several are mixed: "
            f"{type(first).__name__} and {type(episode).__name__}"
        )
    if not (episode.begins_with_reset and len(episode)):
        raise UsageError(
            f"episode {episode.id_} does not begin with its reset, or has no step: a return is "
            "estimated from whole episodes"
        )
    if not episode.is_done:
        raise UsageError(
            f"episode {episode.id_} has not ended: a return is estimated from whole episodes"
        )


def _policies_by_agent(
    episodes: list[Episode], by_agent: Mapping[AgentId, list[_Judged]], policy: Any
) -> dict[AgentId, Any]:
    """{agent: its policy} of those that are judged."""
    modules: dict[AgentId, PolicyId] = {}
    for agent, steps in by_agent.items():
        for number, data, _ in steps:
            name = data.module_id or DEFAULT_POLICY
            if modules.setdefault(agent, name) != name:
                raise UsageError(
                    f"agent {agent!r} is played by policy {modules[agent]!r} in some episodes, by "
                    f"{name!r} in episode {episodes[number].id_}; judge them apart"
                )
    policies = policy
    if not isinstance(policy, Mapping):
        _check_policy(policy)
        alone = isinstance(episodes[0], SingleAgentEpisode)
        policies = {modules[DEFAULT_AGENT] if alone else policy.name: policy}
    for name, judged in policies.items():
        _check_policy(judged)
        if name not in modules.values():
            raise unknown_name("policy", name, set(modules.values()), "in the episodes")
    if not policies:
        raise UsageError("no policy to judge: give a jaxrl.Policy, or {name: policy}")
    return {agent: policies[name] for agent, name in modules.items() if name in policies}


def _check_policy(policy: Any) -> None:
    if not isinstance(getattr(policy, "policy_spec", None), PolicySpec):
        raise UsageError(
            "the policy to judge is a jaxrl.Policy, as jaxrl.load_policy gives it, or "
            f"{{name: policy}}, not {brief(policy)}"
        )


def _rows_of(steps: list[_Judged]) -> AgentRows:
    """An agent's steps of all episodes."""
    logp, mask = _output(steps, "action_logp"), _output(steps, "action_mask")
    return AgentRows(
        obs=_joined([_before_last(part.data.observations.arrays()) for part in steps]),
        action=_joined([part.data.actions.arrays() for part in steps]),
        reward=np.concatenate([np.asarray(part.data.rewards.view(), np.float32) for part in steps]),
        lengths=np.array([len(part.data) for part in steps]),
        action_logp=None if logp is None else np.asarray(logp, np.float64),
        action_mask=mask,
        dist_inputs=_output(steps, "action_dist_inputs"),
    )


def _before_last(observations: Nested) -> Nested:
    return map_nested(lambda leaf: leaf[:-1], observations)


def _output(steps: list[_Judged], name: str) -> np.ndarray | None:
    """The recording policy's outputs under a name, [R, ...]; None if an episode lacks it."""
    if not all(name in part.data.extra_model_outputs for part in steps):
        return None
    return _joined([part.data.extra_model_outputs[name].arrays() for part in steps])


def _joined(parts: list[list | Nested]) -> Nested:
    arrays = list(map(stack, parts))
    try:
        return map_nested(lambda *rows: np.concatenate(rows), *arrays)
    except ValueError:
        shapes = sorted({np.shape(leaf)[1:] for leaf in leaves(tuple(arrays))})
        raise UsageError(f"the episodes have values of different shapes: {shapes}") from None


# Arrays by environment step


def _places(steps: list[_Judged]) -> tuple[np.ndarray, np.ndarray]:
    """(episodes, environment steps) of an agent's actions, i64[R] each."""
    numbers = [np.full(len(part.data), part.number) for part in steps]
    return np.concatenate(numbers), np.concatenate([part.times[:-1] for part in steps])


def _check_ratios(episodes: list[Episode], log_ratios: np.ndarray) -> None:
    most = np.cumsum(log_ratios, axis=1).max(axis=1)
    if most.max() > MAX_LOG_RATIO:
        raise UsageError(
            f"episode {episodes[most.argmax()].id_}: the judged policy makes its actions "
            f"e^{most.max():.0f} times likelier than action_logp says, which chance does not give: "
            "its log-probabilities are not those of the actions"
        )


def _rewards(
    episodes: list[Episode],
    by_agent: Mapping[AgentId, list[_Judged]],
    agent: AgentId | None,
    shape: tuple[int, int],
) -> np.ndarray:
    """Rewards in the environment step that gave the agent's next observation, f64[n, T].

    One that came while the agent waited may depend on what others did meanwhile, so the product of
    ratios must reach that far. What belongs to no step of an agent counts in the last one.
    """
    rewards = np.zeros(shape)
    for name, steps in by_agent.items():
        if agent not in (None, name):
            continue
        for number, data, times in steps:
            rewards[number, times[1:] - 1] += np.asarray(data.rewards.view(), np.float64)
    for number, episode in enumerate(episodes):
        rewards[number, len(episode) - 1] += _hanging_rewards(episode, agent)
    return rewards


def _hanging_rewards(episode: Episode, agent: AgentId | None) -> float:
    if isinstance(episode, SingleAgentEpisode):
        return 0.0
    hanging = episode.get_return(include_hanging_rewards=True) - episode.get_return()
    if agent is None or not hanging:
        return hanging
    facts = episode.get_facts()
    waiting = facts["timelines"].get(agent, {}).get("waiting_reward", 0.0)
    return waiting + facts["early_rewards"].get(agent, 0.0)


def _states(steps: list[_Judged], policy: Any, lengths: np.ndarray) -> np.ndarray:
    """An agent's last observation in each environment step, f32[R, d]; 0 before its first."""
    space = None if policy is None else policy.observation_space
    values = _joined([part.data.observations.arrays() for part in steps])
    if space is not None:
        check_fits(space, values, "an observation", batch_axes=1)
    observed = np.nan_to_num(_as_numbers(space, values), posinf=0.0, neginf=0.0)
    rows = np.full(lengths.sum(), -1)
    starts, first = np.cumsum(lengths) - lengths, 0
    for number, _, times in steps:
        last = np.searchsorted(times, np.arange(lengths[number]), side="right") - 1
        begin = starts[number]
        rows[begin : begin + lengths[number]] = np.where(last < 0, -1, first + last)
        first += len(times)
    return np.where(rows[:, None] < 0, np.float32(0), observed[rows])


def _as_numbers(space: Any, values: Nested) -> np.ndarray:
    """Observations as f32[R, d]; integers of a known, small range as one-hot rows."""

    def leaf(part: Any, value: Any) -> np.ndarray:
        counts = None if part is None else counts_of(part)
        if counts is not None and counts.sum() <= MAX_ONE_HOT:
            value = one_hot(part, value)
        return np.asarray(value, np.float32).reshape(len(value), -1)

    if space is None:
        flat = leaves(map_nested(lambda value: leaf(None, value), values))
    else:
        flat = leaves(map_space(leaf, space, values))
    return np.concatenate(list(flat), axis=1)


def _placed(
    judged: JudgedActions, steps: list[_Judged], lengths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(taken, expected) by environment step, f32[R, G] each."""
    numbers, times = _places(steps)
    rows = (np.cumsum(lengths) - lengths)[numbers] + times
    placed = []
    for features in (judged.taken, judged.expected):
        out = np.zeros((lengths.sum(), features.shape[1]), np.float32)
        out[rows] = features
        placed.append(out)
    return tuple(placed)
