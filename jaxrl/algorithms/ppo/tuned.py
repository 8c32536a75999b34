"""An environment's tuned settings beside what a user changes: the user's own network wins."""

from collections.abc import Mapping
from typing import Any

from jaxrl.algorithms.hypers import schedules_of
from jaxrl.algorithms.model_config import BUILT_IN
from jaxrl.core.fields import as_count, without
from jaxrl.core.types import PolicyId

TOTAL = "total_env_steps"
CHOOSES_NETWORK = BUILT_IN | {"model"}  # settings that choose a network
TUNED_NETWORK = ("model", "max_seq_len")  # what a chosen network replaces

Settings = dict[str, Any]


def resolve_tuned(
    plain: Any, tuned: Mapping[str, Any], changes: Mapping[str, Any]
) -> tuple[Settings, Settings]:
    """(`tuned`, `changes`), so that the second on top of the first is what the user means.

    - A setting of the built-in networks or a `model` among the changes takes the place of a tuned
      `model` and its `max_seq_len`: for all policies, or within `per_policy` for that policy.
    - What is changed for all policies is no policy's tuned setting any more.
    - Other tuned settings of a policy stay beside those that the changes give it.
    - With other `policies`, a policy that plays the agents of a tuned one has its settings.
    - With another number of steps, tuned schedules reach over as large a share of them.

    Args:
        plain: a configuration of the environment, without changes.
        changes: settings, nested forms read (`read_settings`).
    """
    tuned = stretched(plain, tuned, changes.get(TOTAL))
    remaining = _without_network(tuned, changes)
    first = _as_dicts(remaining.get("per_policy", ()))
    second = _as_dicts(changes.get("per_policy", ()))
    if first is None or second is None or not (first or second):
        return remaining, dict(changes)  # what is badly formed is refused by its check
    remaining.pop("per_policy", None)
    defaults = {name: getattr(plain, name) for name in TUNED_NETWORK if name in remaining}
    for policy, settings in second.items():
        if CHOOSES_NETWORK & settings.keys():
            second[policy] = {**defaults, **settings}
    by_policy = dict(second)
    for policy, settings in _settings_by_policy(plain, first, changes.get("policies")).items():
        chosen = second.get(policy, {})
        settings = _without_network(settings, {**changes, **chosen})
        left = without(settings, changes)
        if left:
            by_policy[policy] = {**left, **chosen}
    return remaining, {**changes, "per_policy": by_policy}


def stretched(plain: Any, tuned: Mapping[str, Any], total: Any) -> Settings:
    """`tuned`, of all policies and of each, with its schedules over `total` steps of training."""
    total = as_count(total)
    is_count = isinstance(total, int) and total > 0  # anything else is refused by its check
    if TOTAL not in tuned or not is_count or total == tuned[TOTAL]:
        return dict(tuned)
    names = schedules_of(type(plain))
    at = lambda step: int(part) if (part := step * total / tuned[TOTAL]).is_integer() else part

    def over_total(settings: Mapping[str, Any]) -> Settings:
        chosen = dict(settings)
        for name in names:
            if isinstance(knots := chosen.get(name), list | tuple):
                chosen[name] = [[at(step), value] for step, value in knots]
        return chosen

    over_all = over_total(tuned)
    if by_policy := tuned.get("per_policy"):
        settings = map(over_total, by_policy.values())
        over_all["per_policy"] = dict(zip(by_policy, settings, strict=True))
    return over_all


def _without_network(tuned: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """`tuned`, of all policies or of one, without its network if the changes choose another."""
    if not CHOOSES_NETWORK & changes.keys():
        return dict(tuned)
    return without(tuned, TUNED_NETWORK)


def _settings_by_policy(plain: Any, by_policy: dict[PolicyId, Settings], policies: Any) -> dict:
    """Settings by the names of those `policies` that play the agents of a tuned policy."""
    if policies is None or not by_policy:
        return by_policy
    before, after = plain.setup().policies, plain.replace(policies=policies).setup().policies
    names = {frozenset(agents): policy for policy, agents in after.items()}
    agents_of = {policy: frozenset(before.get(policy, ())) for policy in by_policy}
    return {
        names[agents_of[policy]]: settings
        for policy, settings in by_policy.items()
        if agents_of[policy] in names
    }


def _as_dicts(by_policy: Any) -> dict[PolicyId, Settings] | None:
    """Settings by policy, or None if they are badly formed."""
    try:
        return {policy: dict(settings) for policy, settings in dict(by_policy).items()}
    except (TypeError, ValueError):
        return None
