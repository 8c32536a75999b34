"""The environment of an RLlib configuration, and what rules know of it."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxrl.core.env import MultiAgentEnvironment, lift
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.registry import make_with
from jaxrl.core.spaces import Box
from jaxrl.core.types import AgentId, PyTree
from jaxrl.rllib.env_names import (
    argument_names,
    arguments_of,
    made_or_reason,
    named,
    reason_against,
    wrappers_of,
)
from jaxrl.rllib.rows import Row, changes, given_of, harmless, taken
from jaxrl.rollout.first_step import info_of_a_step, is_always_active

# What environments call their time limit, those of Gymnasium as the last.
TIME_LIMITS = ("max_steps_in_episode", "max_cycles", "max_episode_steps")
AGENT_STEPS = "agent_steps"
ENV_KEYS = ("env", "env_config", "horizon", "max_episode_steps")


class Context(NamedTuple):
    """The context of rules, besides the values that they read."""

    name: Any  # of the environment, as `PPOConfig` takes it
    env: MultiAgentEnvironment
    env_params: PyTree
    is_multi_agent: bool
    new_stack: bool  # whether RLlib would train with RLModules and Learners
    agent_ids: dict[AgentId, Any]  # what the environment itself calls each agent
    time_limit: int | None  # of an episode, in steps, where there is one
    settings_beside: Mapping[str, Any]  # those that win over the configuration
    wrappers: Mapping[str, Any] = {}  # the arguments that wrap a game of Atari's
    steps_each: int = 1  # of RLlib, in one step of the environment

    @property
    def agents(self) -> tuple[AgentId, ...]:
        return self.env.agents

    @property
    def num_acting(self) -> int | None:
        """The number of agents that act in every step; None where some may wait."""
        if not self.is_multi_agent:
            return 1
        if not is_always_active(self.env, info_of_a_step(self.env, self.env_params)):
            return None
        return len(self.agents)

    def counted_by(self, unit: Any) -> "Context":
        """The context of a configuration with `count_steps_by=unit`."""
        if unit != AGENT_STEPS:
            return self
        return self._replace(steps_each=self.num_acting or 1)

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """The image shape of the first agent's observations; None if they are no images."""
        space = self.env.observation_space(self.agents[0], self.env_params)
        return space.shape if isinstance(space, Box) and len(space.shape) == 3 else None


def read_environment(
    values: Mapping[str, Any], settings_beside: Mapping[str, Any], *, new_stack: bool
) -> tuple[Context, list[Row]]:
    """The environment, and the rows of what names it.

    Args:
        values: RLlib's, by path.
        settings_beside: those that win over the configuration: `env`, `env_args`, ...
    """
    rows, wrappers = [], {}
    env, args = settings_beside.get("env"), {}
    is_given = env is not None
    if not is_given:
        env, args, why = named(values.get("env"))
        settings = {"env_args": args} if args else {}
        rows.append(taken(given_of(values, "env"), why, env=env, **settings))
    elif "env" in values:
        rows.append(harmless(given_of(values, "env"), "another one is given beside it"))
    if is_given and not isinstance(env, str):
        made, params = make_with(env, {})
        rest = given_of(values, *ENV_KEYS[1:])
        rows += [harmless(rest, "the environment is given made")] if rest else []
    else:
        for row in _arguments(env, values):
            rows.append(row)
            args = {**args, **row.settings.get("env_args", {})}
        wrappers = wrappers_of(env, values, new_stack=new_stack)
        args = {**args, **wrappers}
        made, params = make_with(env, {**args, **dict(settings_beside.get("env_args") or {})})
    lifted = lift(made)
    spec = getattr(made, "spec", None)  # of an environment in Python
    ids = getattr(spec, "agent_ids", None) or lifted.agents
    ids = dict(zip(lifted.agents, ids, strict=True))
    limit = _time_limit(made, params)
    facts = (lifted is made, new_stack, ids, limit, settings_beside, wrappers)
    context = Context(env, lifted, params, *facts)
    return context, rows


def _arguments(env: Any, values: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of the arguments and the time limit that the environment takes."""
    config = values.get("env_config") or {}
    if not isinstance(config, Mapping):
        raise UsageError(f"env_config={brief(config)} must be a mapping")
    path, config = arguments_of(env, config)
    names = argument_names(env)
    args, read = {}, {}
    whole = {names.get(name, name): value for name, value in config.items()}
    reason = reason_against(env, whole) if whole else None
    if whole and reason is None:
        args, read, config = whole, dict(config), {}
    elif reason is not None and reason_against(env, {}) is not None:
        raise UsageError(reason)  # it needs its arguments, so that none can be tried alone
    for name, value in config.items():
        changed = {**args, names.get(name, name): value}
        if (reason := reason_against(env, changed)) is None:
            args, read = changed, {**read, name: value}
        else:
            yield changes({f"{path}/{name}": value}, reason)
    if args:
        yield taken({path: read}, env_args=args)
    limits = {key: values[key] for key in ENV_KEYS[2:] if values.get(key) is not None}
    for key, limit in limits.items():
        fitting = [name for name in TIME_LIMITS if _is_limited(env, {**args, name: limit}, limit)]
        if fitting:
            yield taken({key: limit}, env_args={fitting[0]: limit})
        else:
            yield changes({key: limit}, f"environment {brief(env)} takes no time limit")


def _is_limited(env: Any, args: Mapping[str, Any], limit: Any) -> bool:
    """Returns whether an environment takes the arguments and says that its episodes end there.

    One that is made from a single `config` takes any name, and may not read it.
    """
    made = made_or_reason(env, args)
    return not isinstance(made, str) and _time_limit(*made) == limit


def _time_limit(env: Any, params: PyTree) -> int | None:
    """The steps after which an environment ends its episodes; None if it says nothing."""
    for name in TIME_LIMITS[:2]:
        if (limit := getattr(params, name, None)) is not None:
            return limit
    return getattr(getattr(env, "spec", None), "time_limit", None)
