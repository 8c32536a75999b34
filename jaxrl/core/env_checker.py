"""Environment checker (`check_env`): tests any environment against the contract, rule by rule.

The static checks come first (`jaxrl.core.env_contract`), then the values of a random rollout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env import (
    agents_may_wait,
    is_multi_agent,
    is_stacked,
    raw_reset,
    raw_step,
    split_agents,
    stack_agents,
)
from jaxrl.core.env_contract import (
    CheckedEnv,
    ContractError,
    check_stacked_types,
    check_types,
    examine,
    require,
    require_params,
)
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fast_prng import keys_as_numbers
from jaxrl.core.fields import count, takes
from jaxrl.core.frozen import is_array
from jaxrl.core.outside_env import is_outside
from jaxrl.core.registry import adapter_of, environment_of, is_maker, make
from jaxrl.core.tasks import METRICS_RULE
from jaxrl.core.types import ALL, AgentId, Key, PyTree
from jaxrl.core.wrapped_env import STATE_METHODS

__all__ = ["ContractError", "check_env"]

NUM_ENVS = 4  # environments of the random rollout
SAY_WHO_ACTS = "must have acting_agents(state, params), {agent: whether it acts in this state}"


class Played(NamedTuple):
    """A random rollout: arrays [E, T, ...] in dicts by agent id; both flags also have "__all__"."""

    obs: dict[AgentId, PyTree]  # returned by `step`, so after a reset
    final_obs: dict[AgentId, PyTree]
    inside: dict[AgentId, jax.Array]  # bool  both are in their space
    reward: dict[AgentId, jax.Array]
    terminated: dict[str, jax.Array]
    truncated: dict[str, jax.Array]
    active: dict[AgentId, jax.Array]
    told_active: dict[AgentId, jax.Array]  # returned by `step_env`, if given
    metrics: dict[str, jax.Array]
    clock: jax.Array  # bool  is_truncated of the state that `step_env` reached
    clock_after: jax.Array  # bool  is_truncated of the state that `step` returned
    time: jax.Array  # that state's `time`, 0 where it has none
    faces_agree: jax.Array  # bool  the stacked and the dict interface gave the same
    is_state_inside: jax.Array  # bool  what a critic sees of the reached state is in its space


@dataclass(frozen=True)
class RulesHold:
    """The result of a check; `print` says how many rules hold, `rules` which."""

    name: str  # of the environment
    rules: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{self.name}: {len(self.rules)} rules hold"


@takes(steps=count())
def check_env(
    env: Any, params: PyTree = None, *, steps: int = 256, key: Key | None = None
) -> RulesHold:
    """Checks that an environment keeps to the contract; returns the rules that hold.

    Args:
        env: of one agent (by duck type: of this library or of gymnax), of stacked agents, of many
            agents in dicts, or of a library that has an adapter; one of Gymnasium or PettingZoo, or
            a function that makes it; or its name, as of `make`.
        params: its parameters, default `env.default_params`; none of one outside JAX.
        steps: length of the random rollout; an end that it does not reach is not checked.
        key: of the rollout, default `jax.random.key(0)`.

    Raises:
        ContractError: at the first broken rule.
    """
    if isinstance(env, str):
        env, default = make(env)
        params = default if params is None and not is_outside(env) else params
    if not (key is None or is_array(key)):
        raise UsageError(f"key={brief(key)} must be a random key of JAX, or None")
    key = jax.random.key(0) if key is None else key
    if adapter_of(env) is not None or is_maker(env):
        env = environment_of(env, {})
    if is_outside(env):
        from jaxrl.core.outside_checker import check_outside

        if params is not None:
            raise UsageError(
                f"params={brief(params)}: {_name_of(env)} runs outside JAX, without any"
            )
        return RulesHold(_name_of(env), check_outside(env, steps, key))
    require_params(env, params)
    case = examine(env, params)
    if is_stacked(env):
        check_stacked_types(case, key)
    check_types(case, key)
    _check_purity(case, key)
    check_rollout(case, *random_rollout(case, steps, key))
    return RulesHold(_name_of(env), tuple(_rules_of(env)))


def _name_of(env: Any) -> str:
    name = getattr(env, "name", None)
    return name if isinstance(name, str) else type(env).__name__


def _rules_of(env: Any) -> Iterator[str]:
    """The rules that were checked, in short; the errors of broken ones say more."""
    yield "the object can be hashed, and has all methods"
    yield "params are numbers and arrays"
    yield "spaces are of a supported kind, and the same on every call"
    if is_multi_agent(env):
        yield "agents have names, and default_policies name each of them once"
    yield "reset_env, step_env, reset and step return values of the right structure and types"
    if is_stacked(env):
        yield "reset_stacked and step_stacked do so, and give the same as the others"
    yield METRICS_RULE
    for method in STATE_METHODS:
        if hasattr(env, method):
            yield f"{method} returns what it must"
    yield "all of them can be compiled, with keys and params as arrays, and vmapped"
    yield "the same key gives the same numbers"
    yield "observations, and final_observation, lie in their spaces"
    yield "final_observation is the observation where the episode goes on"
    yield "rewards and metrics are finite"
    yield "terminated and truncated are never both set"
    yield "an episode is truncated where is_truncated says so, and only there"
    if getattr(env.default_params, "max_steps_in_episode", None) is not None:
        yield "no episode is longer than max_steps_in_episode"
    yield "after an end comes a new episode"
    if is_multi_agent(env):
        yield "an agent that has ended is inactive and gets no reward until the reset"
        yield "the end of an episode ends all agents"


def random_rollout(case: CheckedEnv, steps: int, key: Key) -> tuple[dict[str, Any], Played]:
    """The results of NUM_ENVS resets, and of `steps` steps of random actions after each."""
    play = jax.vmap(lambda key, params: _play(case, steps, key, params), in_axes=(0, None))
    # This short program runs once: without optimisation it compiles in half the time.
    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    play = jax.jit(play, compiler_options=options)
    return jax.device_get(play(jax.random.split(key, NUM_ENVS), case.params))


def check_rollout(case: CheckedEnv, start: dict[str, Any], played: Played) -> None:
    """Checks the rules about the values of a rollout, in NumPy."""
    _check_start(case, start)
    _check_ends(case, played)
    _check_fresh_states(case, played, start["time"])
    _check_values(case, played)
    if is_multi_agent(case.env):
        _check_leaving(case, played)


def _check_purity(case: CheckedEnv, key: Key) -> None:
    """The same key gives the same numbers when traced again: no state is hidden in Python."""
    arguments = key, case.params
    programs = [jax.jit(lambda *args: case.first_step(*args)).lower(*arguments) for _ in range(2)]
    if programs[0].as_text() == programs[1].as_text():
        return
    first, second = (program.compile()(*arguments) for program in programs)
    rule = (
        "the same key must give the same numbers, whatever was called before: "
        "no state hidden in Python; reset and step differ when they are traced again"
    )
    require(case, _is_alike(first, second), rule)


def _play(case: CheckedEnv, steps: int, key: Key, params: PyTree) -> tuple[dict[str, Any], Played]:
    """The results of a reset, and of `steps` steps of random actions."""
    env = case.env

    def step(state, key):
        act_key, step_key = jax.random.split(key)
        action = case.act(act_key)
        reached = env.step_env(step_key, state, action, params)
        faces_agree = _faces_agree_on_step(case, step_key, state, action, params, reached)
        obs, state, reward, terminated, truncated, info = env.step(step_key, state, action, params)
        obs, final_obs = case.split(obs), case.split(info["final_observation"])
        if is_multi_agent(env):
            active = case.split(info["active"])
            told_active = case.split(reached[-1].get("active", info["active"]))
        else:
            active, told_active = case.split(jnp.array(True)), {}
        return state, Played(
            obs=obs,
            final_obs=final_obs,
            inside=jax.tree.map(jnp.logical_and, _inside(case, obs), _inside(case, final_obs)),
            reward=case.split(reward),
            terminated=case.split(terminated, ALL),
            truncated=case.split(truncated, ALL),
            active=active,
            told_active=told_active,
            metrics=dict(info.get("metrics", {})),
            clock=env.is_truncated(reached[1], params),
            clock_after=env.is_truncated(state, params),
            time=_time(state),
            faces_agree=faces_agree,
            is_state_inside=_is_state_inside(env, reached[1], params),
        )

    reset_key, play_key = jax.random.split(key)
    obs, state = env.reset(reset_key, params)
    start = {
        "obs": case.split(obs),
        "inside": _inside(case, case.split(obs)),
        "clock": env.is_truncated(state, params),
        "time": _time(state),
        "faces_agree": _faces_agree_on_reset(case, reset_key, params, obs, state),
    }
    return start, jax.lax.scan(step, state, jax.random.split(play_key, steps))[1]


def _inside(case: CheckedEnv, obs: dict[AgentId, PyTree]) -> dict[AgentId, jax.Array]:
    return {agent: space.contains(obs[agent]) for agent, space in case.obs_spaces.items()}


def _is_state_inside(env: Any, state: PyTree, params: PyTree) -> jax.Array:
    """bool[]: whether the global state, if there is one, lies in its space."""
    if not hasattr(env, "global_state_space"):
        return jnp.array(True)
    return env.global_state_space(params).contains(env.global_state(state, params))


def _time(state: PyTree) -> jax.Array:
    time = getattr(state, "time", 0)
    return jnp.asarray(time if jnp.ndim(time) == 0 else 0)


def _faces_agree_on_reset(
    case: CheckedEnv, key: Key, params: PyTree, obs: PyTree, state: PyTree
) -> jax.Array:
    if not is_stacked(case.env):
        return jnp.array(True)
    return _is_alike((stack_agents(case.env, obs), state), raw_reset(case.env, key, params))


def _faces_agree_on_step(
    case: CheckedEnv, key: Key, state: PyTree, action: PyTree, params: PyTree, reached
) -> jax.Array:
    """Returns whether `step_env` gave the same as `step_stacked` for the same key."""
    env = case.env
    if not is_stacked(env):
        return jnp.array(True)
    raw = raw_step(env, key, state, action, params)
    obs, reward = split_agents(env, raw.obs), split_agents(env, raw.reward)
    terminated = {**split_agents(env, raw.terminated), ALL: raw.all_terminated}
    return _is_alike(reached[:4], (obs, raw.state, reward, terminated))


def _is_alike(some: PyTree, others: PyTree) -> jax.Array:
    """bool[]: equal up to rounding; compiled programs may round differently."""
    close = lambda left, right: jnp.allclose(left, right, rtol=1e-5, equal_nan=True)
    leaves = (jax.tree.leaves(keys_as_numbers(tree)) for tree in (some, others))
    pairs = zip(*leaves, strict=True)
    return jnp.all(jnp.stack([close(*pair) for pair in pairs]))


def _check_start(case: CheckedEnv, start: dict[str, Any]) -> None:
    for agent, inside in start["inside"].items():
        found = _short(_at(start["obs"][agent], np.argmin(inside)))
        space = case.obs_spaces[agent]
        rule = f"obs{_of(case, agent)} of reset must lie in {space}, not be {found}"
        require(case, inside.all(), rule)
    rule = "reset must return a state of which is_truncated is False"
    require(case, not start["clock"].any(), rule)
    rule = "reset_env and reset_stacked must give the same for the same key"
    require(case, start["faces_agree"].all(), rule)


def _check_values(case: CheckedEnv, played: Played) -> None:
    over = played.terminated[ALL] | played.truncated[ALL]
    for agent in case.agents:
        name, reward = _of(case, agent), played.reward[agent]
        found = {"obs": played.obs[agent], "final_observation": played.final_obs[agent]}
        space = case.obs_spaces[agent]
        rule = f"obs{name} of step, and its final_observation, must lie in {space}"
        _always(case, played.inside[agent], rule, **found)
        rule = f"info['final_observation']{name} must equal obs where the episode goes on"
        same = _same(played.obs[agent], played.final_obs[agent], over.ndim)
        _always(case, over | same, rule, **found)
        _always(case, np.isfinite(reward), f"reward{name} must be finite", reward=reward)
    for name, values in played.metrics.items():
        rule = f"info['metrics'][{name!r}] must be finite"
        _always(case, np.isfinite(values), rule, value=values)
    rule = "global_state(state, params) must lie in global_state_space(params)"
    _always(case, played.is_state_inside, rule)
    rule = "step_env and step_stacked must give the same for the same key"
    _always(case, played.faces_agree, rule)


def _check_ends(case: CheckedEnv, played: Played) -> None:
    """Checks what ends an episode, and when."""
    terminated, truncated = played.terminated, played.truncated
    for name in (*case.agents, ALL) if is_multi_agent(case.env) else case.agents:
        rule = f"terminated{_of(case, name)} and truncated{_of(case, name)} must never both be set"
        _always(case, ~(terminated[name] & truncated[name]), rule)
    rule = (
        "step must be truncated where is_truncated(the state step_env reached) "
        "and not terminated, and only there"
    )
    holds = truncated[ALL] == (played.clock & ~terminated[ALL])
    _always(case, holds, rule, truncated=truncated[ALL], is_truncated=played.clock)
    over = terminated[ALL] | truncated[ALL]
    limit = getattr(case.params, "max_steps_in_episode", None)
    limit = np.inf if limit is None else limit
    length = _count_since_reset(np.ones_like(over), over)
    rule = f"no episode may last longer than max_steps_in_episode={limit}"
    _always(case, length <= limit, rule, length=length)


def _check_fresh_states(case: CheckedEnv, played: Played, start_time: np.ndarray) -> None:
    """Checks that the state after an end is a new episode's: not truncated, its time restarted."""
    over = played.terminated[ALL] | played.truncated[ALL]
    rule = "where an episode ended, step must return the state of a new one"
    _always(case, ~(over & played.clock_after), f"{rule}, of which is_truncated is False")
    if (start_time == start_time[0]).all():
        is_new = ~over | (played.time == start_time[0])
        _always(case, is_new, f"{rule}, with time={start_time[0]}", time=played.time)


def _check_leaving(case: CheckedEnv, played: Played) -> None:
    """Checks agents that wait, or end before their episode does, and that "__all__" ends all."""
    over = played.terminated[ALL] | played.truncated[ALL]
    remaining, may_wait = np.zeros_like(over), agents_may_wait(case.env)
    for agent in case.agents:
        active, reward = played.active[agent], played.reward[agent]
        ended = played.terminated[agent] | played.truncated[agent]
        left = _count_since_reset(ended, over) - ended > 0  # in an earlier step of this episode
        present = ~left if may_wait else active
        remaining |= present & ~ended & ~left
        rule = f"agent {agent!r} has ended and must be inactive until the reset"
        _always(case, ~(left & active), rule)
        rule = (
            f"agent {agent!r} is inactive but has not ended: "
            f"an environment whose agents wait {SAY_WHO_ACTS}"
        )
        # An agent that is never active in an episode does not take part in it.
        waits = ~active & ~left & _anywhere_in_episode(active, over)
        _always(case, ~waits | may_wait, rule)
        if may_wait:
            rule = (
                f"info['active'][{agent!r}], if given, must be what acting_agents says "
                "of the state before the step"
            )
            declared = played.told_active[agent]
            _always(case, active == declared, rule, active=declared, acting=active)
        when = "once it has ended" if may_wait else "where it is inactive"
        rule = f"reward[{agent!r}] must be 0 {when}"
        _always(case, present | (reward == 0), rule, reward=reward)
        rule = f"agent {agent!r} must be terminated or truncated where {ALL!r} is"
        _always(case, ~over | ~present | ended, rule)
    rule = f"terminated[{ALL!r}] or truncated[{ALL!r}] must be set when no agent is left"
    _always(case, over | remaining, rule)


def _anywhere_in_episode(flag: np.ndarray, over: np.ndarray) -> np.ndarray:
    """bool[E, T]: whether `flag` is set in any played step of the same episode."""
    over_before = np.concatenate([np.zeros_like(over[:, :1]), over[:, :-1]], axis=1)
    later = _count_since_reset(flag[:, ::-1], over_before[:, ::-1])[:, ::-1]
    return (_count_since_reset(flag, over) > 0) | (later > 0)


def _count_since_reset(flag: np.ndarray, over: np.ndarray) -> np.ndarray:
    """i64[E, T]: the number of steps of the episode with `flag`, the current step included."""
    counts = np.zeros(flag.shape, np.int64)
    running = np.zeros(flag.shape[0], np.int64)
    for t in range(flag.shape[1]):
        running += flag[:, t]
        counts[:, t] = running
        running = np.where(over[:, t], 0, running)
    return counts


def _of(case: CheckedEnv, name: str) -> str:
    return f"[{name!r}]" if is_multi_agent(case.env) else ""


def _always(case: CheckedEnv, holds: np.ndarray, rule: str, **found: np.ndarray) -> None:
    """Requires `holds`, bool[E, T], everywhere; the error has the first step and its values."""
    if not holds.all():
        step = int(np.argmin(holds.all(0)))
        where = int(np.argmin(holds[:, step])), step
        values = "".join(f", {name} {_short(_at(values, where))}" for name, values in found.items())
        require(case, False, f"{rule}; not so in step {step} of a random rollout{values}")


def _at(tree: PyTree, index: Any) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _same(some: PyTree, others: PyTree, num_axes: int) -> np.ndarray:
    """bool[E, T]: whether two trees of arrays [E, T, ...] hold the same numbers there."""

    def same_rows(left, right):
        return (left == right).reshape(*left.shape[:num_axes], -1).all(-1)

    return np.all(jax.tree.leaves(jax.tree.map(same_rows, some, others)), axis=0)


def _short(value: PyTree) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_short(part)}' for name, part in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    text = np.array2string(np.asarray(value), threshold=8, precision=4, separator=", ")
    return " ".join(text.split())
