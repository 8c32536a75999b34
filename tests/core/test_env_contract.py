"""Tests of the static checks of an environment: every broken rule is named in one line."""

import re
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import pytest

from jaxrl import PPOConfig
from jaxrl.core import env_contract
from jaxrl.core.env import Solo, is_stacked
from jaxrl.core.env_checker import check_env
from jaxrl.core.env_contract import ContractError, require_trainable
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make
from jaxrl.core.spaces import Discrete
from tests.core.environments import Corridor, Pair, Params, Trio
from tests.core.test_env_checker import broken, raw, shown, stacked, without
from tests.messages import refusal
from tests.programs import TINY

MASK = jnp.ones(2, bool)


def branching(self, key, state, action, params):
    if state.time > 3:
        return None
    return Corridor.step_env(self, key, state, action, params)


def mask(value):
    return {"action_mask": lambda self, state, params: value}


BROKEN = {
    "it must have a method `step_env`": (Corridor, {"step_env": None}),
    "default_params must be there, but ZeroDivisionError: division by zero "
    "(test_env_contract.py:": (Corridor, {"default_params": property(lambda self: 1 / 0)}),
    "params['goal'] must be a number or an array, not 'north'": (
        Corridor,
        {"default_params": {"goal": "north"}},
    ),
    "obs of reset_env must be floating[2]": (Corridor, shown(lambda obs: jnp.zeros(3))),
    "reward of step_env must be floating[], not complex64[]": (
        Corridor,
        raw(reward=lambda step: step.reward + 0j),
    ),
    "state of step_env.time must be int32[], not float32[]": (
        Corridor,
        raw(state=lambda step: step.state.replace(time=jnp.float32(step.state.time))),
    ),
    "step_env must trace with keys and params traced, "
    "but TracerBoolConversionError: a Python `if`": (Corridor, {"step_env": branching}),
    "agents must be unique, not ('left', 'right', 'left')": (
        Trio,
        {"agents": ("left", "right", "left")},
    ),
    "reward of step_env['ghost'] must not be there": (
        Trio,
        raw(base=Trio, reward=lambda step: {**step.reward, "ghost": jnp.float32(1)}),
    ),
    "terminated of step_env['__all__'] must be bool[]": (
        Trio,
        raw(base=Trio, terminated=lambda step: without(step.terminated, "__all__")),
    ),
    "reward of step_stacked must be floating[2], not float32[3]": (
        Pair,
        stacked(reward=lambda step: jnp.zeros(3)),
    ),
    "info['metrics'] of step_stacked['seen'] must be floating, integer, bool[], not float32[2]": (
        Pair,
        stacked(info=lambda step: {**step.info, "metrics": {"seen": step.reward}}),
    ),
    "action_mask(state, params) must be bool[2] for the actions of Discrete(n=2), not bool[3]": (
        Corridor,
        mask(jnp.ones(3, bool)),
    ),
    "action_mask(state, params) must be bool[2] for the actions of Discrete(n=2), not int32[2]": (
        Corridor,
        mask(jnp.ones(2, jnp.int32)),
    ),
    "action_mask(state, params) must be bool[2, 2] for the actions of Discrete(n=2), not bool[2]": (
        Pair,
        mask(MASK),
    ),
    "action_mask(state, params)['left'] must be bool[2]": (
        Trio,
        {
            "action_space": lambda self, agent, params=None: Discrete(2),
            **mask({"early": MASK, "left": jnp.ones(3, bool), "right": MASK}),
        },
    ),
    "action_mask needs discrete actions, but agent 'left' has Box": (
        Trio,
        mask({"early": jnp.ones(3, bool)}),
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_configuration_refuses_an_environment_that_breaks_the_contract_and_so_does_check_env(
    rule,
):
    env = broken(*BROKEN[rule])
    with pytest.raises(UsageError, match=re.escape(rule)) as refused:
        PPOConfig(env=env).setup()
    assert "\n" not in str(refused.value) and "found by check_env" in str(refused.value)
    with pytest.raises(ContractError, match=re.escape(rule)):
        check_env(env, steps=4)


@dataclass(frozen=True)
class Mapped(Corridor):
    """An environment that cannot be hashed, for one of its fields cannot."""

    rewards: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Slip(Corridor):
    def step_env(self, key, state, action, params):
        return state.replace(no_such_field=1)


def test_an_environment_with_a_field_that_cannot_be_hashed_is_told_the_rule():
    rule = (
        "environment Mapped: the environment object must be hashable, "
        "as a frozen dataclass is, but TypeError"
    )
    with pytest.raises(UsageError, match=re.escape(rule)):
        PPOConfig(env=f"{__name__}:Mapped").setup()


def test_a_mistake_is_looked_for_in_the_users_own_lines():
    """Not in the standard library's, where `replace` fails."""
    with pytest.raises(UsageError, match=r"step_env must trace .* \(test_env_contract\.py:\d+\)"):
        require_trainable(Slip())


@pytest.mark.long
def test_masks_that_fit_pass():
    require_trainable(broken(Corridor, mask(MASK)))
    require_trainable(broken(Pair, mask(jnp.ones((2, 2), bool))))
    check_env(Solo(broken(Corridor, mask(MASK))), steps=4)


def test_an_environment_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        env_contract, "examine", lambda env, params: asked.append(env) or original(env, params)
    )
    env = Corridor(length=7.5)
    for lr in (1e-3, 1e-4):
        PPOConfig(env=env, lr=lr).setup()
    PPOConfig(env=Corridor(length=7.5)).setup()  # an equal one
    require_trainable(env, Params(step_size=2.0))  # other numbers of the same types
    assert asked == [env]


original = env_contract.examine


def test_environments_of_this_package_are_not_asked(monkeypatch):
    monkeypatch.setattr(env_contract, "examine", None)
    for name in ("arena", "cartpole", "pursuit", "waterworld"):
        require_trainable(*make(name))


def test_metrics_may_be_counts_and_flags_for_they_are_summed_as_floats():
    require_trainable(
        broken(Corridor, raw(info=lambda step: {"metrics": {"moved": step.state.time}}))
    )
    require_trainable(
        broken(Corridor, raw(info=lambda step: {"metrics": {"won": step.terminated}}))
    )


class Bare:
    """gymnax's contract by its methods alone."""

    default_params = Params()
    reset_env, step_env = Corridor.reset_env, Corridor.step_env
    length, observe = 3.0, Corridor.observe
    is_truncated, reset, step = Corridor.is_truncated, Corridor.reset, Corridor.step
    observation_space, action_space = Corridor.observation_space, Corridor.action_space
    observes, acts = Corridor.observes, Corridor.acts
    name = "bare"


def test_an_environment_need_not_be_derived_from_ours():
    assert PPOConfig(env=Bare()).setup().policies == {"default_policy": ("default_agent",)}


class TimeLimit:
    """Stands for Gymnasium's; the test does not need the library."""

    __module__ = "gymnasium.wrappers.common"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (5, "env must be a name, or an object of jaxrl.Environment .*, not an int: 5"),
        (object(), "env must be a name, or an object of .*, not an object: <object"),
        (jax.jit, "environment 'jit' is the function .*, not a gymnasium.Env"),
        (
            TimeLimit(),
            r"env is a Gymnasium environment \(TimeLimit\), "
            "which runs in Python and cannot be compiled",
        ),
        (
            "os:sep",
            "environment 'os:sep' is '/', a str, "
            "not a class or a function that makes an environment",
        ),
        (
            "builtins:dict",
            "environment 'builtins:dict' is the class dict, "
            "not a class or a function that makes an env",
        ),
        (
            "math:tau",
            "environment 'math:tau' is 6.28.*, a float, "
            "not a class or a function that makes an environment",
        ),
    ],
)
def test_what_is_no_environment_is_refused_in_one_line(env, message):
    for ask in (lambda: PPOConfig(env=env).setup(), lambda: PPOConfig.tuned(env)):
        with refusal(message):
            ask()


@pytest.mark.long
@pytest.mark.parametrize("name", ["arena", "cartpole", "pursuit", "waterworld"])
def test_environments_of_this_package_train_where_jax_has_64_bits(name):
    with jax.enable_x64(True):
        check_types_of(*make(name))
        algorithm = PPOConfig(env=name, **TINY).build()
        runner = jax.eval_shape(algorithm.init, jax.random.key(0))
        after, _ = jax.eval_shape(algorithm.update, runner)
        assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(
            lambda leaf: leaf.dtype, runner
        )


def check_types_of(env, params):
    case, key = env_contract.examine(env, params), jax.random.key(0)
    check = env_contract.check_stacked_types if is_stacked(env) else env_contract.check_raw_types
    check(case, key)
