"""Tests of `check_env`: it accepts correct environments and names the rule that others break."""

import functools
import re
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.core import env_checker
from jaxrl.core.env import Environment, Solo
from jaxrl.core.env_checker import ContractError, check_env, check_rollout, random_rollout
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make, names
from jaxrl.core.spaces import Box, Discrete
from jaxrl.core.types import ALL
from tests.core.environments import Clock, Corridor, Pair, Relay, Signposted, Trio
from tests.outside.workers.environments import RAISE, REWARD, Counter, Leavers, Nim
from tests.probes import Joining, TicTacToe, Turns


class Step(NamedTuple):
    """What `step` returns, by name."""

    obs: Any
    state: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: dict


class RawStep(NamedTuple):
    """What `step_env` and `step_stacked` return, by name."""

    obs: Any
    state: Any
    reward: Any
    terminated: Any
    info: dict


def changed(base, method, kind, change=None, **parts):
    """`base`'s method, whose result `change` has turned into another, or functions its parts."""
    original = getattr(base, method)

    def call(self, key, state, action, params=None):
        values = kind(*original(self, key, state, action, params))
        if change is not None:
            return change(values)
        return values._replace(**{name: part(values) for name, part in parts.items()})

    return {method: call}


def raw(change=None, base=Corridor, **parts):
    return changed(base, "step_env", RawStep, change, **parts)


def stepped(change=None, base=Corridor, **parts):
    return changed(base, "step", Step, change, **parts)


def stacked(change=None, **parts):
    return changed(Pair, "step_stacked", RawStep, change, **parts)


def begun(change, base=Corridor, method="reset_env"):
    """`base`'s reset, whose (obs, state) `change` has turned into others."""
    original = getattr(base, method)
    return {method: lambda self, key, params=None: change(*original(self, key, params))}


def shown(change, base=Corridor, method="reset_env"):
    return begun(lambda obs, state: (change(obs), state), base, method)


def broken(base, attributes):
    return type(base.__name__, (base,), attributes)()


def without(mapping, name):
    return {key: value for key, value in mapping.items() if key != name}


def no_reset(self, key, state, action, params=None):
    """Tells of the end, and goes on as if there was none."""
    params = self.default_params if params is None else params
    obs, state, reward, terminated, info = self.step_env(key, state, action, params)
    truncated = self.is_truncated(state, params) & ~terminated
    return obs, state, reward, terminated, truncated, {**info, "final_observation": obs}


def branching_on_a_number(self, key, state, action, params):
    if params.step_size > 0:
        return Corridor.step_env(self, key, state, action, params)


def only_one_at_a_time(self, key, state, action, params):
    values = Corridor.step_env(self, key, state, action, params)
    reward = jax.pure_callback(
        lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), values[2]
    )  # no vmap_method
    return values[0], values[1], reward, *values[3:]


def counting_its_calls(self, key, state, action, params):
    self.calls.append(len(self.calls))
    return RawStep(*Corridor.step_env(self, key, state, action, params))._replace(
        reward=jnp.float32(len(self.calls))
    )


def counting_in_an_array(self, key, state, action, params):
    self.calls.append(len(self.calls))
    table = jnp.asarray(np.full(100, float(len(self.calls)), np.float32))
    return RawStep(*Corridor.step_env(self, key, state, action, params))._replace(
        reward=table[state.time]
    )


def other_space(self, params=None):
    self.calls.append(0)
    return Box(-200.0, 200.0 + len(self.calls), (2,))


ONE_AGENT = {
    # the object
    "must be hashable": {"__hash__": None},
    "it must have a method `step_env`": {"step_env": None},
    "it must have a method `is_truncated`; this looks like gymnax before 1.0": {
        "is_truncated": None
    },
    "Corridor must define default_params": {"default_params": Environment.default_params},
    "Corridor must define reset_env(key, params)": {"reset_env": Environment.reset_env},
    "params['goal'] must be a number or an array, not 'north'": {
        "default_params": {"goal": "north"}
    },
    "observation_space(params) must be a Discrete, Multi": {
        "observation_space": lambda self, params=None: [2, 3]
    },
    "observation_space(params) must be the same on every call": {
        "observation_space": other_space,
        "calls": [],
    },
    "action_space(params) must be there, but KeyError: 'left'": {
        "action_space": lambda self, params=None: {}["left"]
    },
    "tuned must be a mapping of settings by name": {"tuned": {1: 3e-4}},
    "fast_changes must be a mapping of settings by name": {"fast_changes": [3e-4]},
    # types
    "reset_env must return 2 values, (obs, state), not 3": begun(
        lambda obs, state: (obs, state, {})
    ),
    "obs of reset_env must be floating[2] as in Box": shown(lambda obs: jnp.zeros(3)),
    "as in Box(-200 to 200, (2,), float32), not int32[2]": shown(lambda obs: obs.astype(jnp.int32)),
    "but obs of reset_env is a dict of ['camera']": shown(lambda obs: {"camera": obs}),
    "obs of reset must be float32[2], not float16[2]": shown(
        lambda obs: obs.astype(jnp.float16), method="reset"
    ),
    "step_env must trace with keys and params traced, but TracerBoolConversionError": {
        "step_env": branching_on_a_number
    },
    "step_env must return 5 values, (obs, state, reward, terminated, info), not 6": raw(
        lambda step: (*step, {})
    ),
    "obs of step_env must be float32[2], not float32[2, 1]": raw(
        obs=lambda step: step.obs[:, None]
    ),
    "state of step_env.time must be int32[], not float32[]": raw(
        state=lambda step: step.state.replace(time=jnp.float32(step.state.time))
    ),
    "state of step_env.position must be float32[], "
    "but state of step_env is a tests.core.environments.Clock": raw(
        state=lambda step: Clock(time=step.state.time)
    ),
    "reward of step_env must be floating[], not int32[]": raw(reward=lambda step: jnp.int32(1)),
    "reward of step_env must be floating[], not float32[1]": raw(
        reward=lambda step: step.reward[None]
    ),
    "reward of step_env must be floating[], but reward of step_env is nothing": raw(
        reward=lambda step: None
    ),
    "terminated of step_env must be bool[], not float32[]": raw(
        terminated=lambda step: jnp.float32(step.terminated)
    ),
    "info of step_env must be a dict, not a tuple": raw(info=lambda step: ()),
    "info['metrics'] of step_env must be a dict": raw(info=lambda step: {"metrics": step.reward}),
    "info['metrics'] of step_env['seen'] must be floating, integer, bool[], not int32[2]": raw(
        info=lambda step: {"metrics": {"seen": jnp.zeros(2, jnp.int32)}}
    ),
    "info['metrics'] of step_env must be named by texts, with a word on each side": raw(
        info=lambda step: {"metrics": {3: step.reward}}
    ),
    "with a word on each side of a '/', not 'seen/'": raw(
        info=lambda step: {"metrics": {"seen/": step.reward}}
    ),
    "must not be named 'task/level': 'task/' begins the names of numbers of params": raw(
        info=lambda step: {"metrics": {"task/level": step.reward}}
    ),
    "must not be named 'seen' and 'seen_mean/left': in results seen_mean would be a number": raw(
        info=lambda step: {"metrics": {"seen": step.reward, "seen_mean/left": step.reward}}
    ),
    "is_truncated(state, params) must be bool[], not int32[]": {
        "is_truncated": lambda self, state, params: state.time
    },
    "must return 6 values, (obs, state, reward, terminated, truncated, info), not 5; "
    "this looks like gymnax before": stepped(
        lambda step: (*step[:3], step.terminated | step.truncated, step.info)
    ),
    "truncated of step must be bool[], not int32[]": stepped(truncated=lambda step: jnp.int32(0)),
    "info of step must hold 'final_observation' on every step": stepped(
        info=lambda step: without(step.info, "final_observation")
    ),
    "info['final_observation'] of step must be float32[2], not float32[1]": stepped(
        info=lambda step: {"final_observation": step.obs[:1]}
    ),
    "step under vmap, over keys and params, must trace": {"step_env": only_one_at_a_time},
    "render must give u8[H, W, 3], not float32[4, 4, 3]": {
        "render": lambda self, state, params: jnp.zeros((4, 4, 3))
    },
    "draw must give a jaxrl.core.drawing.Drawing, not ndarray": {
        "draw": lambda self, state, params: np.zeros(3)
    },
    # values
    "the same key must give the same numbers, whatever was called before": {
        "step_env": counting_its_calls,
        "calls": [],
    },
    "no state hidden in Python": {"step_env": counting_in_an_array, "calls": []},
    "obs of step, and its final_observation, must lie in Box": raw(
        obs=lambda step: jnp.where(step.state.time > 4, 210.0, step.obs)
    ),
    "step must be truncated where is_truncated(the state step_env reached)": stepped(
        truncated=lambda step: step.truncated & False
    ),
    "step must return the state of a new one, of which is_truncated is False": {"step": no_reset},
}


@functools.cache
def evidence(env):
    """(case, start, played) of the 64 random steps in which check_env found every rule kept."""
    recorded = []

    def record(case, steps, key):
        recorded.append((case, *random_rollout(case, steps, key)))
        return recorded[-1][1:]

    with mock.patch.object(env_checker, "random_rollout", record):
        check_env(env, steps=64)
    return recorded[0]


@pytest.mark.long
@pytest.mark.parametrize(
    "env",
    [Corridor(), Solo(Corridor()), Trio(), Pair(), Signposted()],
    ids=lambda env: type(env).__name__,
)
def test_check_env_lets_the_small_environments_through(env):
    assert evidence(env)[2].time.shape == (4, 64)


SHORT = {"pursuit": {"max_cycles": 50}, "waterworld": {"max_cycles": 50}}  # so that some end


@pytest.mark.long
def test_check_env_takes_a_name_and_finds_what_that_breaks(monkeypatch):
    check_env("cartpole", steps=2)
    monkeypatch.setattr("jaxrl.core.env_checker.make", lambda name: (object(), None))
    with pytest.raises(ContractError, match="it must have a method"):
        check_env("broken")


def test_check_env_says_how_many_rules_hold():
    found = check_env("cartpole", steps=2)
    assert repr(found) == f"CartPole: {len(found.rules)} rules hold" and len(found.rules) == 16
    assert "the same key gives the same numbers" in found.rules
    assert "metrics are single numbers, and their names fit into results" in found.rules
    assert len(set(found.rules)) == 16


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (Counter(), "Counter"),
        (Counter, "Counter"),
        ("gym:CartPole-v1", "gym:CartPole-v1"),
        (Leavers(), "Leavers"),
        (Nim(), "Nim"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_check_env_plays_environments_in_python(env, name):
    found = check_env(env, steps=40)
    assert repr(found) == f"{name}: 7 rules hold"
    assert len(set(found.rules)) == 7


class Level(Counter):
    """Reports a number under a name that belongs to the tasks of episodes."""

    def step(self, action):
        return *super().step(action)[:4], {"metrics": {"task/level": 1.0}}


@pytest.mark.long
def test_the_names_of_metrics_are_checked_in_python_too_and_those_of_drawn_numbers_may_be_there():
    with pytest.raises(ContractError, match=r"info\['metrics'\] must not be named 'task/level'"):
        check_env(Level(), steps=2)
    assert len(check_env(*make("cartpole", gravity="uniform:5:15"), steps=2).rules) == 16


def test_params_of_an_environment_in_python_are_refused():
    with pytest.raises(UsageError, match="params=3: Counter runs outside JAX, without any"):
        check_env(Counter(), params=3)


class Strays(Counter):
    """Observes more than it declares."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 3, (3,), np.float32)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Strays(), "Strays: observations of agent 'default_agent' must lie in .*, not be "),
        (Counter(fault=RAISE), "Counter: no reset and no step may fail, .*the simulator is gone"),
        (Counter(fault=REWARD), "Counter: no reset and no step may fail, but .*reward"),
    ],
    ids=["strays", "fails", "pays nothing"],
)
def test_a_rule_that_an_environment_in_python_breaks_is_named(env, message):
    with pytest.raises(ContractError, match=message) as error:
        check_env(env, steps=40)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", [*names(), "gymnax:Catch-bsuite", "gymnax:Breakout-MinAtar"])
@pytest.mark.long
def test_every_environment_of_the_registry_keeps_to_the_contract(name):
    try:
        env, params = make(name, **SHORT.get(name, {}))
    except UsageError as error:
        pytest.skip(str(error))  # announced, and not importable here
    check_env(env, params)


def seen_otherwise(**parts):
    return shown(lambda obs: {**obs, **parts}, Signposted)


TREES = {
    "obs of reset_env['signs'][1] must be integer[2] as in MultiDiscrete(nvec=(2, 9)), "
    "not int32[3]": seen_otherwise(signs=(jnp.int32(0), jnp.zeros(3, jnp.int32))),
    "obs of reset_env['place'] must be floating[2] as in Box": seen_otherwise(place=jnp.int32(0)),
    "obs of reset_env['view'] must not be there": seen_otherwise(view=jnp.int32(0)),
    "signs: (9, [0, 0])}": seen_otherwise(signs=(jnp.int32(9), jnp.zeros(2, jnp.int32))),
}


THREE_AGENTS = {
    # the object
    "agents must be a tuple of one or more names": {"agents": ()},
    "none of them '__all__', not ['early', 'left', 'right']": {
        "agents": ["early", "left", "right"]
    },
    "agents must be a tuple of one or more names, none of them '__all__', "
    "not ('early', '__all__')": {"agents": ("early", ALL)},
    "agents must be unique, not ('left', 'right', 'left')": {"agents": ("left", "right", "left")},
    "default_policies must be {policy: agents}, not ['left']": {"default_policies": ["left"]},
    "every agent exactly once, not {'pol': ('left', 'right')}": {
        "default_policies": {"pol": ("left", "right")}
    },
    "every agent exactly once, not {'one': ('early', 'left', 'right'), 'two': ('left',)}": {
        "default_policies": {"one": ("early", "left", "right"), "two": ("left",)}
    },
    "action_space('early', params) must be a Discrete": {
        "action_space": lambda self, agent, params=None: None
    },
    # types
    "obs of reset_env['ghost'] must not be there": shown(
        lambda obs: {**obs, "ghost": obs["left"]}, Trio
    ),
    "obs of reset_env['early'] must be integer[] as in Discrete(n=1000), not float32[]": shown(
        lambda obs: {**obs, "early": jnp.float32(0)}, Trio
    ),
    "obs of step_env['right'] must be float32[1], "
    "but obs of step_env is a dict of ['early', 'left']": raw(
        base=Trio, obs=lambda step: without(step.obs, "right")
    ),
    "reward of step_env['early'] must be floating[], but reward of step_env is float32[]": raw(
        base=Trio, reward=lambda step: jnp.float32(0)
    ),
    "terminated of step_env['__all__'] must be bool[], "
    "but terminated of step_env is a dict of": raw(
        base=Trio, terminated=lambda step: without(step.terminated, ALL)
    ),
    "info['active'] of step_env['early'] must be bool[], not int32[]": raw(
        base=Trio, info=lambda step: {"active": {**step.info["active"], "early": step.state.time}}
    ),
    "truncated of step['__all__'] must be bool[]": stepped(
        base=Trio, truncated=lambda step: without(step.truncated, ALL)
    ),
    "info of step must hold 'active' on every step": stepped(
        base=Trio, info=lambda step: without(step.info, "active")
    ),
    # values
    "agent 'early' has ended and must be inactive until the reset": raw(
        base=Trio, info=lambda step: {}
    ),
    "must be set when no agent is left": stepped(
        base=Trio,
        terminated=lambda step: {agent: jnp.array(agent != ALL) for agent in step.terminated},
    ),
}


@pytest.mark.long
def test_an_agent_may_be_absent_for_a_whole_episode():
    absent = lambda step: step._replace(
        info={"active": {**step.info["active"], "right": jnp.array(False)}},
        reward={**step.reward, "right": jnp.float32(0)},
    )
    check_env(broken(Trio, raw(absent, Trio)), steps=64)


WAITING = {
    "'right' is inactive but has not ended: "
    "an environment whose agents wait must have acting_agents(state, params)": (
        Trio,
        raw(
            base=Trio,
            info=lambda step: {"active": {**step.info["active"], "right": step.state.time > 2}},
        ),
    ),
    "acting_agents(state, params)['right'] must be bool[]": (
        Relay,
        {
            "acting_agents": lambda self, state, params: {
                "early": state.time < 3,
                "left": state.time > 1,
            }
        },
    ),
    "info['active']['early'], if given, must be what acting_agents says of the state "
    "before the step": (
        Relay,
        raw(
            base=Relay,
            info=lambda step: {"active": dict.fromkeys(Trio.agents, step.state.time < 3)},
        ),
    ),
    "an environment of one agent must have no acting_agents: it cannot wait": (
        Corridor,
        {"acting_agents": lambda self, state, params: jnp.array(True)},
    ),
}


@pytest.mark.parametrize("env", [Turns(), Joining(), TicTacToe(), Relay()], ids=repr)
def test_check_env_lets_games_of_turns_and_late_joiners_through(env):
    assert evidence(env)[2].time.shape == (4, 64)


STACKED = {
    "need equal spaces: 'first' has Discrete(n=3), 'second' has Discrete(n=2)": {
        "action_space": lambda self, agent=None, params=None: Discrete(3 if agent == "first" else 2)
    },
    "obs of reset_stacked must be floating[2, 3] as in Box": shown(
        lambda obs: obs[0], Pair, "reset_stacked"
    ),
    "obs of step_stacked must be float32[2, 3], not float32[3]": stacked(
        obs=lambda step: step.obs[0]
    ),
    "reward of step_stacked must be floating[2], not float32[]": stacked(
        reward=lambda step: step.reward.sum()
    ),
    "terminated of step_stacked must be bool[2], with no '__all__', but": stacked(
        terminated=lambda step: {ALL: step.terminated.any()}
    ),
    "info['active'] of step_stacked must be bool[2], not bool[]": stacked(
        info=lambda step: {"active": jnp.array(True)}
    ),
    "step_stacked must return 5 values": stacked(lambda step: (*step, {})),
    "reset_env and reset_stacked must give the same for the same key": shown(
        lambda obs: {**obs, "first": obs["first"] + 1}, Pair
    ),
    "step_env and step_stacked must give the same for the same key": raw(
        base=Pair, reward=lambda step: {**step.reward, "first": step.reward["first"] + 1}
    ),
    "agent 'first' has ended and must be inactive until the reset": stacked(info=lambda step: {}),
}


BY_BASE = {Corridor: ONE_AGENT, Signposted: TREES, Trio: THREE_AGENTS, Pair: STACKED}
RULES = WAITING | {
    rule: (base, attributes)
    for base, rules in BY_BASE.items()
    for rule, attributes in rules.items()
}


@pytest.mark.parametrize("rule", RULES)
def test_check_env_names_the_rule_that_is_broken(rule):
    base, attributes = RULES[rule]
    with pytest.raises(ContractError, match=re.escape(rule)) as caught:
        check_env(broken(base, attributes), steps=1 if "no agent is left" in rule else 64)
    assert str(caught.value).startswith(f"{base.__name__}: ")
    assert "\n" not in str(caught.value)


# Rules about values, on evidence that was tampered with: what an environment played is recorded
# once, and the record is broken as an environment that breaks the rule would leave it.


def everywhere(tree, value):
    return jax.tree.map(lambda leaf: np.full_like(leaf, value), tree)


def where_terminated(played, leaf, value):
    """`leaf` [E, T, ...] with `value` where the world ended."""
    ended = played.terminated[ALL]
    return np.where(ended.reshape(*ended.shape, *[1] * (leaf.ndim - 2)), value, leaf)


def nan_at_the_end(start, played):
    """A final observation that is NaN lies in no space."""
    agent = "default_agent"
    inside = {agent: played.inside[agent] & ~played.terminated[ALL]}
    obs = {agent: where_terminated(played, played.final_obs[agent], np.nan)}
    return start, played._replace(inside=inside, final_obs=obs)


def infinite_at_the_end(start, played):
    reward = {name: where_terminated(played, leaf, np.inf) for name, leaf in played.reward.items()}
    return start, played._replace(reward=reward)


def without_any_end(start, played):
    never = {"terminated": everywhere(played.terminated, False), "clock": played.clock & False}
    return start, played._replace(truncated=everywhere(played.truncated, False), **never)


def both_ends(start, played):
    truncated = {name: flag | played.terminated[name] for name, flag in played.truncated.items()}
    return start, played._replace(truncated=truncated)


def time_of_an_old_episode(start, played):
    over = played.terminated[ALL] | played.truncated[ALL]
    return start, played._replace(time=np.where(over, 1, played.time))


def with_part(field, name, change):
    """A record of which the part `name` of a field is `change(part, played)`."""

    def tampered(start, played):
        parts = getattr(played, field)
        return start, played._replace(**{field: {**parts, name: change(parts[name], played)}})

    return tampered


TAMPERED = {
    "obs of reset must lie in Box": (
        Corridor(),
        lambda start, played: ({**start, "inside": everywhere(start["inside"], False)}, played),
    ),
    "reset must return a state of which is_truncated is False": (
        Corridor(),
        lambda start, played: ({**start, "clock": ~start["clock"]}, played),
    ),
    "final_observation [nan, nan]": (Corridor(), nan_at_the_end),
    "reward must be finite; not so in step": (Corridor(), infinite_at_the_end),
    "info['metrics']['move'] must be finite": (
        Corridor(),
        with_part("metrics", "move", lambda part, _: np.full_like(part, np.nan)),
    ),
    "terminated and truncated must never both be set": (Corridor(), both_ends),
    "no episode may last longer than max_steps_in_episode=8": (Corridor(), without_any_end),
    "info['final_observation'] must equal obs where the episode goes on": (
        Corridor(),
        with_part("final_obs", "default_agent", lambda part, _: np.zeros_like(part)),
    ),
    "info['final_observation'] must equal obs where the episode goes on; not so in step": (
        Signposted(),
        with_part(
            "final_obs", "default_agent", lambda part, _: {**part, "picture": 0 * part["picture"]}
        ),
    ),
    "step must return the state of a new one, with time=0": (Corridor(), time_of_an_old_episode),
    "reward['early'] must be 0 where it is inactive": (
        Trio(),
        with_part("reward", "early", lambda part, played: np.float32(played.time)),
    ),
    "agent 'left' must be terminated or truncated where '__all__' is": (
        Trio(),
        with_part("terminated", "left", lambda part, _: np.zeros_like(part)),
    ),
    "terminated['right'] and truncated['right'] must never both be set": (
        Trio(),
        with_part("truncated", "right", lambda part, played: played.terminated["right"]),
    ),
    "info['final_observation']['early'] must equal obs where the episode goes on": (
        Trio(),
        with_part("final_obs", "early", lambda part, _: np.zeros_like(part)),
    ),
    "agent 'second' has ended and must be inactive until the reset": (
        Pair(),
        with_part("active", "second", lambda part, _: np.ones_like(part)),
    ),
    "agent 'early' has ended and must be inactive until the reset": (
        Relay(),
        with_part("active", "early", lambda part, _: np.ones_like(part)),
    ),
    "reward['early'] must be 0 once it has ended": (
        Relay(),
        with_part("reward", "early", lambda part, played: np.float32(played.time)),
    ),
}


@pytest.mark.parametrize("rule", TAMPERED)
def test_of_what_an_environment_played_the_rule_that_is_broken_is_named(rule):
    env, tamper = TAMPERED[rule]
    case, start, played = evidence(env)
    with pytest.raises(ContractError, match=re.escape(rule)) as caught:
        check_rollout(case, *tamper(start, played))
    assert "\n" not in str(caught.value)


def test_check_env_takes_params_and_key_and_refuses_a_rollout_without_steps():
    env = Corridor()
    check_env(
        env, env.default_params.replace(max_steps_in_episode=3), steps=8, key=jax.random.key(7)
    )
    with pytest.raises(UsageError, match="steps=0 must be an integer of at least 1"):
        check_env(env, steps=0)


def test_a_state_may_hold_a_random_key():
    class Keyed(Corridor):
        def reset_env(self, key, params):
            obs, state = super().reset_env(key, params)
            return obs, (state, key)

        def step_env(self, key, state, action, params):
            obs, place, *rest = super().step_env(state[1], state[0], action, params)
            return obs, (place, jax.random.fold_in(state[1], 1)), *rest

        def is_truncated(self, state, params):
            return super().is_truncated(state[0], params)

    check_env(Keyed(), steps=32)
