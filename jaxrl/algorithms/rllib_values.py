"""RLlib's forms of settings read as ours: `model={...}`, PolicySpecs, square kernels as pairs."""

import secrets
from collections.abc import Mapping
from typing import Any

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import unknown_setting, without

OF_ADAM = ("adam_epsilon",)  # what RLlib's `optimizer` may hold here
ACTIVATIONS = {"swish": "silu", None: "linear"}  # RLlib's other names
SPEC = ("policy_class", "observation_space", "action_space", "config")  # of RLlib's PolicySpec


def read_settings(
    changes: Mapping[str, Any], network: tuple[str, ...], owner: str
) -> dict[str, Any]:
    """The settings that a user gave, those in RLlib's nested forms spread out.

    `model={"fcnet_hiddens": [64]}` is `fcnet_hiddens=[64]`, and `optimizer={"adam_epsilon": 1e-5}`
    that epsilon, also within `per_policy`. Policies as PolicySpecs are their names, their
    configurations a part of `per_policy`.

    Args:
        network: the settings that `model` may hold.
        owner: the configuration's class, for errors.
    """
    settings = _without_nested(changes, network, owner)
    policies = settings.get("policies")
    if isinstance(policies, set | frozenset):
        settings["policies"] = _names("policies", policies)
    if isinstance(policies, Mapping) and policies and all(map(_is_spec, policies.values())):
        settings["policies"] = list(policies)
        of_specs = {name: _config_of(name, spec) for name, spec in policies.items()}
        if any(of_specs.values()):
            settings["per_policy"] = merged_by_policy(of_specs, settings.get("per_policy") or {})
    if isinstance(by_policy := settings.get("per_policy"), Mapping):
        settings["per_policy"] = {
            policy: _without_nested(values, network, owner)
            if isinstance(values, Mapping)
            else values
            for policy, values in by_policy.items()
        }
    return settings


def merged_by_policy(first: Any, second: Any) -> Any:
    """Settings by policy, `second` on top of `first`; `second` alone if it is badly formed."""
    merged: dict[Any, dict[str, Any]] = {}
    try:
        for by_policy in (first, second):
            for policy, values in dict(by_policy).items():
                merged[policy] = {**merged.get(policy, {}), **dict(values)}
    except (TypeError, ValueError):  # which the check of per_policy refuses by name
        return second
    return {policy: values for policy, values in merged.items() if values}


def names_of_policies(name: str, value: Any) -> Any:
    """A set of policies' names as a sorted list; anything else as it is."""
    return tuple(_names(name, value)) if isinstance(value, set | frozenset) else value


def drawn_seed(name: str, value: Any) -> Any:
    """A seed for None, which means any in RLlib; the configuration holds the one that was drawn."""
    return secrets.randbits(31) if value is None else value


def no_filter(name: str, value: Any) -> Any:
    """None for "NoFilter"."""
    return None if value == "NoFilter" else value


def activation(name: str, value: Any) -> Any:
    """`silu` for "swish", `linear` for None."""
    return ACTIVATIONS.get(value, value) if value is None or isinstance(value, str) else value


def square_filters(name: str, value: Any) -> Any:
    """[filters, [3, 3], [2, 2]] as [filters, 3, 2]; refuses what is not square."""
    if not isinstance(value, tuple):
        return value
    return tuple(_square_layer(name, layer) for layer in value)


def _square_layer(name: str, layer: Any) -> Any:
    if not isinstance(layer, tuple) or len(layer) != 3:
        return layer
    for what, size in zip(("kernel", "stride"), layer[1:], strict=True):
        if isinstance(size, tuple) and (len(size) != 2 or size[0] != size[1]):
            raise UsageError(
                f"{name}: the {what} {list(size)} of layer {brief(layer)} must be square: one "
                "number"
            )
    return tuple(size[0] if isinstance(size, tuple) else size for size in layer)


def _without_nested(
    changes: Mapping[str, Any], network: tuple[str, ...], owner: str
) -> dict[str, Any]:
    """`changes`, and in place of the mappings `model` and `optimizer` what they hold."""
    settings = dict(changes)
    for outer, inner, beside in (
        ("model", network, {}),
        ("optimizer", OF_ADAM, {"optimizer": None}),
    ):
        nested = changes.get(outer)
        if not isinstance(nested, Mapping) or (beside and set(nested) - set(inner)):
            continue  # the check of `optimizer` refuses what it may not hold
        settings = {**without(settings, {outer}), **beside}
        for name, value in nested.items():
            if name not in inner:
                raise unknown_setting(name, inner, f"of {outer}", owner=owner)
            if name in changes and changes[name] != value:
                raise UsageError(f"{name} is given twice: in {outer}={{...}} and beside it")
            settings[name] = value
    return settings


def _names(name: str, policies: set | frozenset) -> list[str]:
    if not all(isinstance(policy, str) for policy in policies):
        raise UsageError(f"{name}={brief(policies)} must hold names")
    return sorted(policies)


def _is_spec(value: Any) -> bool:
    """Returns whether this is RLlib's None, (class, space, space, config) or PolicySpec."""
    if isinstance(value, tuple) and len(value) == len(SPEC):
        return not all(isinstance(part, str) for part in value)
    return value is None or all(hasattr(value, name) for name in SPEC)


def _config_of(policy: str, spec: Any) -> dict[str, Any]:
    """A policy's own settings; the spaces are the environment's to say."""
    if spec is None:
        return {}
    parts = spec if isinstance(spec, tuple) else tuple(getattr(spec, name) for name in SPEC)
    policy_class, _, _, config = parts
    if policy_class is not None:
        raise UsageError(
            f"policies[{policy!r}] names a class, {brief(policy_class)}: per_policy={{{policy!r}: "
            '{"model": ...}} gives a policy a network of its own'
        )
    if config is not None and not isinstance(config, Mapping):
        raise UsageError(
            f"policies[{policy!r}]: the configuration {brief(config)} must be a mapping of settings"
        )
    return dict(config or {})
