"""A configuration as people see it: the settings that differ from the defaults, then the others."""

import dataclasses
from typing import Any

from jaxrl.algorithms.validators import DEFAULT_SIZES
from jaxrl.core.displays import Display


def changed_settings(config: Any) -> dict[str, Any]:
    """The settings of a configuration that differ from its class's defaults, as plain values."""
    sizes = config.sizes({}, DEFAULT_SIZES)
    values = config.to_dict()
    changed = {}
    for field in dataclasses.fields(config):
        if getattr(config, field.name) != sizes.get(field.name, field.default):
            changed[field.name] = values[field.name]
    return changed


def call_of(config: Any) -> str:
    """`PPOConfig(env='arena', lr=0.001)`: the call that makes the configuration again."""
    changed = changed_settings(config)
    arguments = ", ".join(f"{name}={value!r}" for name, value in changed.items())
    return f"{type(config).__name__}({arguments})"


def config_display(config: Any) -> Display:
    """A configuration: what differs from the defaults, and folded below it the rest."""
    name, changed = type(config).__name__, changed_settings(config)
    defaults = [pair for pair in config.to_dict().items() if pair[0] not in changed]
    return Display(
        f"{name} of {config.env_name or 'no environment'}",
        _settings(changed.items()),
        folded=Display(f"{len(defaults)} settings have their defaults", _settings(defaults)),
    )


def _settings(pairs: Any) -> list[tuple[str, str]]:
    return [(name, repr(value)) for name, value in pairs]
