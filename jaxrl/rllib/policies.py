"""RLlib's policies read as ours: who plays whom, which of them learn, and their own settings."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

from jaxrl.core.errors import UsageError, brief, one_line, unknown_name
from jaxrl.core.types import DEFAULT_POLICY, AgentId, PolicyId
from jaxrl.models.random_policy import RandomPolicy
from jaxrl.rllib import form
from jaxrl.rllib.context import Context
from jaxrl.rllib.form import is_code, is_of_ppo, model_of
from jaxrl.rllib.rows import Row, changes, given_of, harmless, taken
from jaxrl.rollout.policy_map import policies_that_learn

SPEC = ("policy_class", "observation_space", "action_space", "config")  # RLlib's 4-tuple
OVERRIDES = (
    *("algorithm_config_overrides_per_module", "algorithm_config_overrides_per_policy"),
    "_per_module_overrides",
)
POLICY_KEYS = ("policies", "policy_mapping_fn", "policies_to_train", *OVERRIDES, "_rl_module_spec")
DEFAULT_MAPPING = "DEFAULT_POLICY_MAPPING_FN"
MEMORY = ("use_lstm", "use_attention")  # settings for the networks that learn
RANDOM = ("RandomPolicy", "RandomRLModule")  # RLlib's classes
RANDOM_MODULES = ("ray.rllib.examples.", "jaxrl.models.random_policy")
TIMES_ASKED = 8  # a mapping that draws is likely to answer differently in as many
NO_FUNCTION = (
    "policy_mapping_fn is a function, which a file does not hold: give policies="
    '{"pol1": ["agent1"], ...} beside it (--policies FILE, a JSON file of the same form)'
)


class Specs(NamedTuple):
    """The specifications of policies in a configuration."""

    names: list[PolicyId]  # none: RLlib's default policy
    settings: dict[PolicyId, dict[str, Any]]  # RLlib's, of each policy alone
    rows: list[Row]  # of what cannot be read
    has_modules: bool  # whether a specification of several RLModules was read
    fixed: dict[PolicyId, Any]  # models of those that never learn: random and scripted ones


def read_specs(values: Mapping[str, Any]) -> Specs:
    """The policies' names and their own settings, from 4-tuples, PolicySpecs, modules' specs."""
    modules = form.modules_of(values.get(form.MODULE))
    policies = values.get("policies")
    if isinstance(policies, set | frozenset | list | tuple):
        policies = dict.fromkeys(sorted(map(str, policies)))
    if policies is not None and not isinstance(policies, Mapping):
        raise UsageError(f"policies={brief(policies)} must be policies by name, or their names")
    names = [str(policy) for policy in policies or {}]
    specs = Specs(names, {}, [], bool(modules), {})
    for policy, spec in (policies or {}).items():
        specs.settings[str(policy)] = _config(str(policy), spec, specs)
    for key in OVERRIDES:
        overrides = values.get(key) or {}
        if not isinstance(overrides, Mapping):
            raise UsageError(f"{key}={brief(overrides)} must be settings by policy")
        for policy, settings in overrides.items():
            held = specs.settings.setdefault(str(policy), {})
            held |= _mapping(f"{key}/{policy}", settings)
    if specs.has_modules:
        for policy, module in modules.items():
            model = _module(str(policy), module, specs)
            specs.settings.setdefault(str(policy), {}).update({"model": model} if model else {})
    return specs


def mapping(
    values: Mapping[str, Any], policies: list[PolicyId], context: Context
) -> tuple[dict[PolicyId, list[AgentId]], Iterator[Row]]:
    """{policy: its agents} by `policy_mapping_fn`, and the rows of all that names policies."""
    ask = values.get("policy_mapping_fn")
    is_default = ask is None or DEFAULT_MAPPING in getattr(ask, "__qualname__", str(ask))
    names = policies or [DEFAULT_POLICY]
    if is_default and policies and len(policies) > 1:
        if DEFAULT_POLICY not in policies:
            raise UsageError(
                NO_FUNCTION.replace("is a function, which a file does not hold", "is missing")
            )
        names = [DEFAULT_POLICY]
    if is_default or len(names) == 1:
        played = {names[0]: list(context.agents)}
    elif not callable(ask):
        raise UsageError(NO_FUNCTION if is_code(ask) else f"{NO_FUNCTION}, not {brief(ask)}")
    else:
        played = _asked(ask, context.agent_ids)
    for policy in played:
        if policies and policy not in policies:
            raise unknown_name("policy", policy, policies, "of policy_mapping_fn")
    return played, _rows(values, policies, played, context)


def _rows(
    values: Mapping[str, Any],
    policies: list[PolicyId],
    played: dict[PolicyId, list[AgentId]],
    context: Context,
) -> Iterator[Row]:
    read = given_of(values, "policies", "policy_mapping_fn")
    is_usual = not context.is_multi_agent and list(played) == [DEFAULT_POLICY]
    if is_usual and read:
        yield harmless(read, "one agent, one policy")
    idle = [policy for policy in policies if policy not in played and len(policies) > 1]
    if not is_usual:
        yield taken(read, policies={**played, **{policy: [] for policy in idle}})
    for policy in policies:
        if policy not in played and (len(policies) > 1 or policy != DEFAULT_POLICY):
            yield harmless({f"policies/{policy}": None}, "it plays no agent")


def trained(chosen: Any, played: list[PolicyId], named: list[PolicyId]) -> Row:
    """The row of `policies_to_train`: those of the `played` policies; `named` may be idle ones."""
    read = {"policies_to_train": chosen}
    if chosen is None:
        return harmless(read, "all learn")
    if is_code(chosen):
        return changes(read, "a function, which a file does not hold: give policies_to_train=[...]")
    if callable(chosen):
        names = list(policies_that_learn(chosen, dict.fromkeys(played, ())))
    elif isinstance(chosen, list | tuple | set | frozenset):
        for policy in chosen:
            if policy not in (*played, *named):
                raise unknown_name("policy", policy, played, "of policies_to_train")
        names = [policy for policy in played if policy in chosen]
    else:
        raise UsageError(
            f"policies_to_train={brief(chosen)} must be policies' names, or a function"
        )
    return taken(read, policies_to_train=names)


def _asked(ask: Callable, agent_ids: Mapping[AgentId, Any]) -> dict[PolicyId, list[AgentId]]:
    """{policy: its agents}, by a function that must not look at the episode, or draw.

    Args:
        agent_ids: what the function calls each agent: RLlib's may be numbers.
    """
    played: dict[PolicyId, list[AgentId]] = {}
    for agent, agent_id in agent_ids.items():
        try:
            answers = {_call(ask, agent_id, None) for _ in range(TIMES_ASKED)}
        except Exception as error:
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise UsageError(
                f"policy_mapping_fn raises {reason}, for agent {agent_id!r} and no episode: here "
                "one mapping holds for the whole run; the agents are " + ", ".join(agent_ids)
            ) from None
        if len(answers) > 1:
            raise UsageError(
                f"policy_mapping_fn draws the policy of agent {agent_id!r}: here one mapping holds "
                "for the whole run; give policies={policy: [agents]}"
            )
        played.setdefault(str(answers.pop()), []).append(agent)
    return played


def _call(function: Callable, name: Any, rest: Any) -> Any:
    """Calls it as RLlib does: (agent, episode, worker=...) in the old versions, or less."""
    for arguments, keywords in (
        ((name, rest), {"worker": None}),
        ((name, rest), {}),
        ((name,), {}),
    ):
        try:
            inspect.signature(function).bind(*arguments, **keywords)
        except TypeError:
            continue
        except ValueError:  # a built-in without a signature
            return function(name)
        return function(*arguments, **keywords)
    return function(name)


def fixed_model(cls: Any) -> Any:
    """The model of a random or scripted policy's class; None if it is neither.

    A scripted policy is a function of the spaces, as `model` takes it.
    """
    if isinstance(cls, FunctionType):
        return cls
    path = f"{cls.__module__}.{cls.__name__}" if isinstance(cls, type) else str(cls)
    module, _, name = path.removeprefix("<class '").removesuffix("'>").rpartition(".")
    return RandomPolicy if name in RANDOM and module.startswith(RANDOM_MODULES) else None


def fixed_rows(values: Mapping[str, Any], specs: Specs, played: list[PolicyId]) -> Iterator[Row]:
    """The rows of the policies that play and never learn."""
    for policy in filter(specs.fixed.get, played):
        model = specs.fixed[policy]
        read = {f"policies/{policy}/policy_class": model}
        memory = [name for name in MEMORY if values.get(f"model/{name}")]
        of_policy = {"model": model, **dict.fromkeys(memory, False)}
        settings = {"per_policy": {policy: of_policy}}
        if model is not RandomPolicy:
            yield taken(read, "it does not learn", **settings)
        elif values.get("evaluation_config/explore", True):
            why = "it does not learn; evaluations sample all actions"
            yield taken(read, why, evaluation_explore=True, **settings)
        else:
            yield changes(read, "random actions need evaluations that explore")


def _config(policy: PolicyId, spec: Any, specs: Specs) -> dict[str, Any]:
    """The settings that a policy has of its own."""
    path, rows = f"policies/{policy}", specs.rows
    if spec is None:
        return {}
    if isinstance(spec, str):
        rows.append(changes({path: spec}, "an object, which a file does not hold"))
        return {}
    if isinstance(spec, list | tuple) and len(spec) == len(SPEC):
        parts = dict(zip(SPEC, spec, strict=True))
    elif isinstance(spec, Mapping):
        parts = dict(spec)
    else:
        parts = {name: getattr(spec, name, None) for name in SPEC}
    cls = parts.get("policy_class")
    if (model := fixed_model(cls)) is not None:
        specs.fixed[policy] = model
    elif not is_of_ppo(cls):
        why = "a class of your own: a scripted policy is a function (docs/policies.md)"
        rows.append(changes({f"{path}/policy_class": cls}, why))
    return _mapping(f"{path}/config", parts.get("config"))


def _module(policy: PolicyId, module: Any, specs: Specs) -> Mapping[str, Any]:
    """The model's settings of RLlib's RLModuleSpec."""
    path, rows = f"{form.MODULE}/{policy}", specs.rows
    fields = form.fields_of_module(module)
    if (model := fixed_model(fields.get("module_class"))) is not None:
        specs.fixed[policy] = model
        return {}
    for name in form.other_fields(fields):
        why = "model=... takes a network of your own, init_from=... weights that were learned"
        rows.append(changes({f"{path}/{name}": fields[name]}, why))
    return model_of(form.model_of_module(fields)) or {}


def _mapping(path: str, value: Any) -> dict[str, Any]:
    value = value.to_dict() if hasattr(value, "to_dict") else value
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{path}={brief(value)} must be a mapping of settings")
    return dict(value or {})
