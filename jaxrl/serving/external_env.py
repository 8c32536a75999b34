"""External environment: what programs that own their loop declare of themselves, for training."""

import ast
import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.outside_env import OutsideEnvironment, OutsideMultiAgentEnvironment
from jaxrl.core.registry import EXTERNAL
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple
from jaxrl.core.types import DEFAULT_AGENT, AgentId
from jaxrl.outside.workers.vector import VectorSpec

GODOT = f"{EXTERNAL}:godot"  # scenes of Godot RL Agents
SPACES = {"Box": Box, "Discrete": Discrete, "MultiDiscrete": MultiDiscrete, "Dict": Dict}
TUNED = MappingProxyType(
    {
        **{"num_envs": 8, "rollout_length": 256, "num_epochs": 10, "minibatch_size": 64},
        **{"lr": 3e-4, "gamma": 0.99, "lambda_": 0.95, "clip_param": 0.2, "vf_clip_param": None},
        **{"vf_loss_coeff": 0.5, "use_kl_loss": False, "grad_clip": 0.5},
        **{"fcnet_hiddens": (64, 64), "total_env_steps": 1_000_000},
    }
)


class _Clients:
    """The part that environments of one agent and of several share."""

    tuned = TUNED  # settings as Stable-Baselines3 has them


class External(_Clients, OutsideEnvironment):
    """Clients with one agent."""


class ExternalMultiAgent(_Clients, OutsideMultiAgentEnvironment):
    """Clients with several agents."""


def constructor(name: str) -> Callable[..., External | ExternalMultiAgent]:
    """The constructor of `external`, or of `external:NAME`."""

    def external(
        observation_space: str, action_space: str, mask: bool = False
    ) -> External | ExternalMultiAgent:
        observations = spaces_of("observation_space", observation_space)
        actions = spaces_of("action_space", action_space)
        if observations.keys() != actions.keys():
            raise UsageError(
                f"observation_space has the agents {', '.join(observations)}, action_space "
                f"{', '.join(actions)}"
            )
        several = tuple(observations) != (DEFAULT_AGENT,)
        spec = VectorSpec(
            name=f"{EXTERNAL}:{name}" if name else EXTERNAL,
            agents=tuple(observations),
            observation_spaces=observations,
            action_spaces=actions,
            metrics=(),
            masked=bool(mask),
            always_active=not several,
            waits=several,
        )
        return (ExternalMultiAgent if several else External)(spec, _no_copies)

    return external


def is_external(env: Any) -> bool:
    """Returns whether an environment's name means programs that own their loop."""
    return isinstance(env, str) and env.partition(":")[0] == EXTERNAL


def spaces_of(setting: str, text: Any) -> dict[AgentId, Space]:
    """The spaces that a text says, by agent: `Box(-1, 1, 4)`, or `{"a": Discrete(2), ...}`."""
    if not isinstance(text, str):
        raise UsageError(f"{setting} must be a text such as 'Box(-1, 1, 4)', not {brief(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(f"{setting}={brief(text)} is no space: write 'Box(-1, 1, 4)'") from None
    if not isinstance(tree, ast.Dict):
        return {DEFAULT_AGENT: _space(setting, tree)}
    spaces = {agent: _space(setting, space) for agent, space in _named(setting, tree)}
    if not spaces:
        raise UsageError(f"{setting}={brief(text)} has no agent")
    return spaces


def _named(setting: str, tree: ast.expr) -> list[tuple[str, ast.expr]]:
    """The pairs of a dict whose keys are names in quotes."""
    if not isinstance(tree, ast.Dict):
        raise UsageError(f"{setting}: {brief(ast.unparse(tree))} must be {{name: SPACE, ...}}")
    for key in tree.keys:
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            written = brief(ast.unparse(tree))
            raise UsageError(f"{setting}={written}: a name must be in quotes")
    return [(key.value, part) for key, part in zip(tree.keys, tree.values, strict=True)]


def _space(setting: str, tree: ast.expr) -> Space:
    """A space of the syntax tree of `Box(...)` and the like; nothing is evaluated."""
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        written = brief(ast.unparse(tree))
        raise UsageError(f"{setting}: {written} is no space: write {', '.join(SPACES)} (...)")
    kind = tree.func.id
    if kind == "Tuple":
        return Tuple(tuple(_space(setting, part) for part in tree.args))
    if kind not in SPACES:
        raise unknown_name("space", kind, [*SPACES, "Tuple"], f"of {setting}")
    if kind == "Dict":
        pairs = [(part.arg, part.value) for part in tree.keywords]
        if tree.args:  # names that are not identifiers
            pairs += _named(setting, tree.args[0])
        return Dict({name: _space(setting, part) for name, part in pairs})
    values = [_number(setting, part) for part in tree.args]
    named = {part.arg: _number(setting, part.value) for part in tree.keywords}
    if kind == "Box" and len(values) > 2:
        shape = values[2] if isinstance(values[2], tuple) else tuple(values[2:])
        values = [*values[:2], shape]
    if kind == "MultiDiscrete" and values and not isinstance(values[0], tuple):
        values = [tuple(values)]
    try:
        return SPACES[kind](*values, **named)
    except TypeError as error:
        raise UsageError(f"{setting}: {ast.unparse(tree)}: {error}") from None


def _number(setting: str, tree: ast.expr) -> Any:
    """A number, a text or a list of them; `inf` is infinity."""
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_number(setting, tree.operand)
    if isinstance(tree, ast.Name) and tree.id == "inf":
        return math.inf
    if isinstance(tree, ast.Tuple | ast.List):
        return tuple(_number(setting, part) for part in tree.elts)
    if isinstance(tree, ast.Constant):
        return tree.value
    raise UsageError(f"{setting}: {brief(ast.unparse(tree))} is no number")


def _no_copies(num_envs: int, **settings: Any) -> Any:
    raise UsageError(
        "external programs own their loop, so no copies of them can be made: train with "
        "train_ppo.py --env external, or with jaxrl.Learner"
    )
