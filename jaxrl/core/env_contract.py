"""Static checks of an environment: the object, its spaces, structure, shapes and types.

Each function raises `ContractError` at the first broken rule. `jaxrl.core.env_checker.check_env`
calls all of them, `require_trainable` those that training depends on.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.env import (
    Solo,
    agents_may_wait,
    has_outside_state,
    is_batched,
    is_multi_agent,
    is_stacked,
    lift,
    raw_reset,
    raw_step,
    reset_all,
    stack_agents,
    step_all,
)
from jaxrl.core.errors import UsageError, brief, reason_of
from jaxrl.core.fast_prng import keys_as_numbers
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.spaces import Space, tree_of
from jaxrl.core.tasks import wrong_metric_name
from jaxrl.core.types import ALL, DEFAULT_AGENT, AgentId, Key, PyTree

METHODS = ("reset", "step", "reset_env", "step_env", "is_truncated")
METHODS += ("observation_space", "action_space")
PYTHON_LIBRARIES = {"gymnasium": "Gymnasium", "gym": "Gym", "pettingzoo": "PettingZoo"}
MAX_REMEMBERED = 256  # environments that `require_trainable` need not check again
OLD_GYMNAX = "this looks like gymnax before 1.0, whose `done` mixes termination and truncation"
ANYTHING = object()  # in place of a type: checked elsewhere


class ContractError(AssertionError):
    """The error for a broken rule: names the environment, the rule, and what was found instead."""


@dataclass(frozen=True)
class Type:
    """A required array type: its shape, and the kind of its dtype."""

    shape: tuple[int, ...]
    kind: Any  # bool, jnp.integer, jnp.floating, or several of them
    reason: str = ""

    def __str__(self):
        kinds = self.kind if isinstance(self.kind, tuple) else (self.kind,)
        return f"{', '.join(kind.__name__ for kind in kinds)}{list(self.shape)}{self.reason}"

    def includes(self, leaf: jax.ShapeDtypeStruct) -> bool:
        kinds = self.kind if isinstance(self.kind, tuple) else (self.kind,)
        return leaf.shape == self.shape and any(jnp.issubdtype(leaf.dtype, kind) for kind in kinds)


FLAG, NUMBER = Type((), bool), Type((), jnp.floating)
METRIC = Type((), (jnp.floating, jnp.integer, bool))  # summed as f32


class CheckedEnv(NamedTuple):
    """The environment under examination; a single-agent one has the agent DEFAULT_AGENT."""

    env: Any
    params: PyTree
    agents: tuple[AgentId, ...]
    obs_spaces: dict[AgentId, Space]
    action_spaces: dict[AgentId, Space]

    def each(self, value: Callable[[str], Any], *more: str) -> PyTree:
        """{name: value(name)} of the agents and the names in `more`; one value if single-agent."""
        if not is_multi_agent(self.env):
            return value(DEFAULT_AGENT)
        return {name: value(name) for name in (*self.agents, *more)}

    def split(self, values: PyTree, *more: str) -> dict[str, PyTree]:
        """The inverse of `each`: always a dict."""
        many = is_multi_agent(self.env)
        return {name: values[name] if many else values for name in (*self.agents, *more)}

    def act(self, key: Key) -> PyTree:
        """A random action."""
        keys = dict(zip(self.agents, jax.random.split(key, len(self.agents)), strict=True))
        return self.each(lambda agent: self.action_spaces[agent].sample(keys[agent]))

    def first_step(self, key: Key, params: PyTree) -> tuple:
        reset_key, act_key, step_key = jax.random.split(key, 3)
        obs, state = self.env.reset(reset_key, params)
        return keys_as_numbers((obs, self.env.step(step_key, state, self.act(act_key), params)))

    def raw_first_step(self, key: Key) -> tuple:
        """A first step as the training loop makes it, stacked where the environment is."""
        if is_multi_agent(self.env):
            obs, state = raw_reset(self.env, key, self.params)
            return keys_as_numbers(
                (obs, tuple(raw_step(self.env, key, state, self.act(key), self.params)))
            )
        obs, state = self.env.reset_env(key, self.params)
        return keys_as_numbers((obs, self.env.step_env(key, state, self.act(key), self.params)))

    def first_steps_of_all(self, keys: Key) -> tuple:
        """First steps of a batched environment's copies, as the training loop makes them."""
        env = lift(self.env)
        obs, state = reset_all(env, keys, self.params)
        action = jax.vmap(self.action_spaces[DEFAULT_AGENT].sample)(keys)
        action = jax.tree.map(lambda leaf: leaf[:, None], action)  # of the one agent
        return keys_as_numbers((obs, tuple(step_all(env, keys, state, action, self.params))))


# ---- the object and its spaces


def require_environment(env: Any, what: str) -> None:
    """Rejects anything but an environment: a number, a class, another library's object.

    Args:
        what: the beginning of the message: "env", or "environment 'module:Class'".

    Raises:
        UsageError: what was given, and what is allowed.
    """
    allowed = (
        "a name, or an object of jaxrl.Environment or of gymnax's contract (docs/environments.md)"
    )
    kinds = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    for package, library in PYTHON_LIBRARIES.items():
        if package in kinds:
            raise UsageError(
                f"{what} is a {library} environment ({type(env).__name__}), which runs in Python "
                f"and cannot be compiled; allowed: {allowed}"
            )
    if isinstance(env, type):
        raise UsageError(
            f"{what} is the class {env.__name__}; give an instance, perhaps {env.__name__}()"
        )
    if not any(callable(getattr(env, method, None)) for method in METHODS):
        raise UsageError(f"{what} must be {allowed}, not {describe(env)}: {brief(env)}")


def default_params_of(env: Any) -> PyTree:
    """The `default_params` of `env`; a UsageError where there are none."""
    try:
        return env.default_params
    except Exception as error:
        name = type(env).__name__
        raise UsageError(f"environment {name} has no default_params: {reason_of(error)}") from error


def examine(env: Any, params: PyTree) -> CheckedEnv:
    """Checks the object, its parameters, agents and spaces."""
    case = CheckedEnv(env, params, (DEFAULT_AGENT,), {}, {})
    run(case, "the environment object must be hashable, as a frozen dataclass is", hash, env)
    for method in METHODS:
        hint = f"; {OLD_GYMNAX}" if method == "is_truncated" else ""
        rule = f"it must have a method `{method}`{hint}"
        require(case, callable(getattr(env, method, None)), rule)
    if params is None:
        params = run(case, "default_params must be there", lambda: env.default_params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        is_number = isinstance(leaf, bool | int | float | np.ndarray | np.generic | jax.Array)
        where = f"params{jax.tree_util.keystr(path)}"
        require(case, is_number, f"{where} must be a number or an array, not {leaf!r}")
    agents = _examine_agents(case) if is_multi_agent(env) else case.agents
    case = case._replace(params=params, agents=agents)
    for agent in case.agents:
        case.obs_spaces[agent] = _examine_space(case, "observation_space", agent)
        case.action_spaces[agent] = _examine_space(case, "action_space", agent)
    for choice in ("tuned", "fast_changes"):
        found = getattr(env, choice, {})
        named = isinstance(found, Mapping) and all(isinstance(name, str) for name in found)
        require(case, named, f"{choice} must be a mapping of settings by name, not {found!r}")
    return case


def _examine_agents(case: CheckedEnv) -> tuple[AgentId, ...]:
    agents = case.env.agents
    named = isinstance(agents, tuple) and len(agents) > 0
    named = named and all(isinstance(agent, str) and agent != ALL for agent in agents)
    rule = f"agents must be a tuple of one or more names, none of them {ALL!r}, not {agents!r}"
    require(case, named, rule)
    require(case, len(set(agents)) == len(agents), f"agents must be unique, not {agents!r}")
    policies = run(case, "default_policies must be there", lambda: case.env.default_policies)
    rule = f"default_policies must be {{policy: agents}}, not {policies!r}"
    require(case, isinstance(policies, Mapping), rule)
    played = sorted(agent for members in policies.values() for agent in members)
    rule = f"default_policies must name every agent exactly once, not {policies!r}"
    require(case, played == sorted(agents), rule)
    return agents


def _examine_space(case: CheckedEnv, method: str, agent: AgentId) -> Space:
    arguments = (agent, case.params) if is_multi_agent(case.env) else (case.params,)
    what = f"{method}({agent!r}, params)" if is_multi_agent(case.env) else f"{method}(params)"
    space = run(case, f"{what} must be there", getattr(case.env, method), *arguments)
    again = run(case, f"{what} must be there", getattr(case.env, method), *arguments)
    allowed = "a Discrete, MultiDiscrete, Box, Dict or Tuple of jaxrl.core.spaces"
    rule = f"{what} must be {allowed}, which are frozen and hashable, not {describe(space)}"
    require(case, isinstance(space, Space), rule)
    rule = f"{what} must be the same on every call, not {space}, then {again}"
    require(case, space == again, rule)
    return space


# ---- structure, shapes and types


def require_params(env: Any, params: PyTree) -> None:
    """Refuses parameters that are not of the class of the environment's own; None is its own."""
    default = None if params is None else getattr(env, "default_params", None)
    if default is None or isinstance(params, type(default)):
        return
    kind = type(default).__name__
    raise UsageError(f"params={brief(params)} must be a {kind}, as env.default_params, or None")


def require_trainable(env: Any, params: PyTree = None) -> None:
    """Rejects an environment that breaks a rule of shapes and types, before anything is compiled.

    Nothing is computed, and an environment that passed is not checked again. Those of `jaxrl.envs`
    are not checked at all: the tests of this package do that.

    Raises:
        UsageError: one line that names the environment, the rule, and what was found instead.
    """
    if params is None:
        with contextlib.suppress(Exception):  # `examine` reports it
            params = env.default_params
    type_of = lambda leaf: (np.shape(leaf), getattr(leaf, "dtype", type(leaf)))
    types = str(jax.tree.map(type_of, params))
    if type(env).__module__.startswith("jaxrl.envs."):
        return
    if _is_hashable(env) and (env, types) in _trainable:
        return
    try:
        case, key = examine(env, params), jax.eval_shape(lambda: jax.random.key(0))
        check_stacked_types(case, key) if is_stacked(env) else check_raw_types(case, key)
        if is_batched(env):
            trace(case, "reset_batch and step_batch of two", case.first_steps_of_all, _two(key))
        else:
            trace(case, "a step under vmap, over keys,", jax.vmap(case.raw_first_step), _two(key))
    except ContractError as error:
        raise UsageError(
            f"environment {error} (found by check_env; jaxrl.check_env(env) shows the traceback, "
            "and plays it as well)"
        ) from error
    if has_outside_state(env):
        return  # equal to itself alone, and not to be kept alive here
    if len(_trainable) >= MAX_REMEMBERED:
        _trainable.clear()
    _trainable.add((env, types))


def _is_hashable(env: Any) -> bool:
    with contextlib.suppress(Exception):  # a field that is a dict, say; `examine` names the rule
        hash(env)
        return True
    return False


_trainable: set = set()  # (environment, types of its params) of those that passed


def _two(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((2, *shape.shape), shape.dtype)


def check_raw_types(case: CheckedEnv, key: Key) -> tuple[PyTree, PyTree]:
    """Checks what training calls: reset_env, step_env, is_truncated, action_mask.

    Returns:
        the types of (obs, state).
    """
    env, params = case.env, case.params
    rewards, flags = case.each(lambda _: NUMBER), case.each(lambda _: FLAG, ALL)
    fresh = {"obs": case.each(lambda agent: _type_of(case.obs_spaces[agent])), "state": ANYTHING}
    obs, state = _check_call(case, "reset_env", fresh, env.reset_env, key, params)
    action = jax.eval_shape(case.act, key)
    reached = {"obs": obs, "state": state, "reward": rewards, "terminated": flags, "info": ANYTHING}
    info = _check_call(case, "step_env", reached, env.step_env, key, state, action, params)[-1]
    _check_info(case, "step_env", info)
    _check_clock_and_masks(case, state)
    return obs, state


def check_types(case: CheckedEnv, key: Key) -> None:
    env, params = case.env, case.params
    rewards, flags = case.each(lambda _: NUMBER), case.each(lambda _: FLAG, ALL)
    obs, state = check_raw_types(case, key)
    same = {"obs": obs, "state": state}
    _check_call(case, "reset", same, env.reset, key, params)
    action = jax.eval_shape(case.act, key)
    stepped = {**same, "reward": rewards, "terminated": flags, "truncated": flags, "info": ANYTHING}
    info = _check_call(case, "step", stepped, env.step, key, state, action, params)[-1]
    _check_info(case, "step", info)
    for name in ("final_observation", "active") if is_multi_agent(env) else ("final_observation",):
        rule = f"info of step must hold {name!r} on every step, not only {sorted(info)}"
        require(case, name in info, rule)
    _check_like(case, "info['final_observation'] of step", info["final_observation"], obs)
    keys = jax.random.split(key)
    two = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * 2), params)
    trace(case, "step under vmap, over keys and params,", jax.vmap(case.first_step), keys, two)
    if hasattr(env, "render"):
        picture = trace(case, "render", env.render, state, params)
        fits = getattr(picture, "dtype", None) == jnp.uint8
        fits = fits and picture.ndim == 3 and picture.shape[2] == 3
        require(case, fits, f"render must give u8[H, W, 3], not {describe(picture)}")
    if hasattr(env, "draw"):
        from jaxrl.core.drawing import broken_rule

        broken = []  # found while `draw` is traced, where bounds may be a tuple of numbers
        check = lambda *args: broken.append(broken_rule(env.draw(*args)))
        trace(case, "draw", check, state, params)
        require(case, broken[0] is None, f"draw {broken[0]}")


def _check_acting_agents(case: CheckedEnv, state: PyTree) -> None:
    if not agents_may_wait(case.env):
        return
    rule = "an environment of one agent must have no acting_agents: it cannot wait"
    require(case, is_multi_agent(case.env), rule)
    acting = trace(case, "acting_agents", case.env.acting_agents, state, case.params)
    flags = Type((len(case.agents),), bool) if is_stacked(case.env) else case.each(lambda _: FLAG)
    _check_like(case, "acting_agents(state, params)", acting, flags)


def _check_global_state(case: CheckedEnv, state: PyTree) -> None:
    if not hasattr(case.env, "global_state"):
        return
    global_state = trace(case, "global_state", case.env.global_state, state, case.params)
    if hasattr(case.env, "global_state_space"):
        space = case.env.global_state_space(case.params)
        _check_like(case, "global_state(state, params)", global_state, _type_of(space))


def check_stacked_types(case: CheckedEnv, key: Key) -> None:
    first, *others = case.agents
    for spaces in (case.obs_spaces, case.action_spaces):
        for agent in others:
            clash = f"{first!r} has {spaces[first]}, {agent!r} has {spaces[agent]}"
            rule = f"agents of a stacked environment need equal spaces: {clash}"
            require(case, spaces[agent] == spaces[first], rule)
    env, params, batch = case.env, case.params, (len(case.agents),)
    fresh = {"obs": _type_of(case.obs_spaces[first], batch), "state": ANYTHING}
    obs, state = _check_call(case, "reset_stacked", fresh, env.reset_stacked, key, params)
    rewards, flags = Type(batch, jnp.floating), Type(batch, bool, ", with no '__all__'")
    reached = {"obs": obs, "state": state, "reward": rewards, "terminated": flags, "info": ANYTHING}
    action = jax.eval_shape(lambda key: stack_agents(env, case.act(key)), key)
    arguments = key, state, action, params
    info = _check_call(case, "step_stacked", reached, env.step_stacked, *arguments)[-1]
    _check_metrics(case, "step_stacked", info)
    if "active" in info:
        _check_like(case, "info['active'] of step_stacked", info["active"], Type(batch, bool))
    _check_clock_and_masks(case, state)


def _check_clock_and_masks(case: CheckedEnv, state: PyTree) -> None:
    env, params = case.env, case.params
    clock = trace(case, "is_truncated", env.is_truncated, state, params)
    _check_like(case, "is_truncated(state, params)", clock, FLAG)
    _check_acting_agents(case, state)
    _check_global_state(case, state)
    if not hasattr(env, "action_mask"):
        return
    mask = trace(case, "action_mask", env.action_mask, state, params)
    expected = {agent: _mask_type(case, agent) for agent in case.agents}
    if isinstance(env, Solo):
        expected = expected[DEFAULT_AGENT]  # as the wrapped environment gives it
    elif is_stacked(env):
        first = expected[case.agents[0]]
        expected = Type((len(case.agents), *first.shape), bool, first.reason)
    else:
        expected = case.each(expected.get)
    _check_like(case, "action_mask(state, params)", mask, expected)


def _mask_type(case: CheckedEnv, agent: AgentId) -> Type:
    """bool[A]: the actions of a Discrete space; those of several integers are concatenated."""
    space = case.action_spaces[agent]
    number = mask_length(space)
    rule = f"action_mask needs discrete actions, but agent {agent!r} has {space}"
    require(case, number > 0, rule)
    return Type((number,), bool, f" for the actions of {space}")


def _check_call(
    case: CheckedEnv, method: str, expected: dict[str, Any], function: Callable, *args
) -> tuple:
    """The types of what `method` returns, checked against `expected`, {name: type}."""
    values = trace(case, method, function, *args)
    number = len(values) if isinstance(values, tuple) else f"a {type(values).__name__}"
    hint = f"; {OLD_GYMNAX}" if method == "step" and number == 5 else ""
    names = ", ".join(expected)
    rule = f"must return {len(expected)} values, ({names}), not {number}{hint}"
    require(case, number == len(expected), f"{method} {rule}")
    for value, (name, type_) in zip(values, expected.items(), strict=True):
        if type_ is not ANYTHING:
            _check_like(case, f"{name} of {method}", value, type_)
    return values


def _check_info(case: CheckedEnv, method: str, info: Any) -> None:
    _check_metrics(case, method, info)
    if is_multi_agent(case.env) and "active" in info:
        _check_like(case, f"info['active'] of {method}", info["active"], case.each(lambda _: FLAG))


def _check_metrics(case: CheckedEnv, method: str, info: Any) -> None:
    rule = f"info of {method} must be a dict, not {describe(info)}"
    require(case, isinstance(info, Mapping), rule)
    metrics = info.get("metrics", {})
    what = f"info['metrics'] of {method}"
    require(case, isinstance(metrics, Mapping), f"{what} must be a dict, not {describe(metrics)}")
    wrong = wrong_metric_name(metrics, case.params)
    require(case, wrong is None, f"{what} {wrong}")
    _check_like(case, what, dict(metrics), dict.fromkeys(metrics, METRIC))


def _check_like(case: CheckedEnv, what: str, found: PyTree, expected: PyTree) -> None:
    """Requires the structure, shapes and dtypes of `expected`, a tree of `Type`s or arrays."""
    leaves = dict(jax.tree_util.tree_leaves_with_path(found))
    types = dict(jax.tree_util.tree_leaves_with_path(expected))
    for path, type_ in types.items():
        rule = f"{what}{jax.tree_util.keystr(path)} must be {describe(type_)}"
        require(case, path in leaves, f"{rule}, but {what} is {describe(found)}")
        require(case, _is_like(leaves[path], type_), f"{rule}, not {describe(leaves[path])}")
    for path in leaves:
        require(case, path in types, f"{what}{jax.tree_util.keystr(path)} must not be there")
    structure, needed = jax.tree.structure(found), jax.tree.structure(expected)
    rule = f"{what} must have the structure {needed}, not {structure}"
    require(case, structure == needed, rule)


def _is_like(leaf: jax.ShapeDtypeStruct, expected: Any) -> bool:
    if isinstance(expected, Type):
        return expected.includes(leaf)
    return (leaf.shape, leaf.dtype) == (expected.shape, expected.dtype)


def _type_of(space: Space, batch: tuple[int, ...] = ()) -> PyTree:
    """The `Type` of an observation, or a tree of them for a tree of spaces."""

    def plain_type(part):
        kinds = (bool, jnp.floating, jnp.integer)
        kind = next(kind for kind in kinds if jnp.issubdtype(part.dtype, kind))
        return Type((*batch, *part.shape), kind, f" as in {part}")

    return jax.tree.map(plain_type, tree_of(space))


# ---- used by all rules


def broken(case: CheckedEnv, rule: str) -> ContractError:
    name, made_with = getattr(case.env, "name", None), getattr(case.env, "made_with", None)
    name = name if isinstance(name, str) else type(case.env).__name__
    return ContractError(f"{name}{f' with {brief(made_with)}' if made_with else ''}: {rule}")


def require(case: CheckedEnv, holds: bool, rule: str) -> None:
    if not holds:
        raise broken(case, rule)


def run(case: CheckedEnv, rule: str, function: Callable, *args) -> Any:
    """The call's result; `rule` is broken where it raises."""
    try:
        return function(*args)
    except Exception as error:
        raise broken(case, f"{rule}, but {reason_of(error)}") from error


def trace(case: CheckedEnv, method: str, function: Callable, *args) -> PyTree:
    """The types of the call's result."""
    rule = f"{method} must trace with keys and params traced"
    return run(case, rule, lambda: jax.eval_shape(function, *args))


def describe(value: Any) -> str:
    """A type, or a value's type, in few words."""
    if isinstance(value, Mapping):
        return f"a dict of {sorted(map(str, value))}"
    if isinstance(value, jax.ShapeDtypeStruct | jax.Array | np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    if value is None:
        return "nothing"
    if isinstance(value, Type):
        return str(value)
    module = "" if type(value).__module__ == "builtins" else f"{type(value).__module__}."
    name = f"{module}{type(value).__name__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
