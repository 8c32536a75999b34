"""A configuration as people see it: the settings that differ from the defaults, then the others."""

from collections.abc import Mapping
from typing import Any

from jaxrl.core.displays import Display


def changed_settings(config: Any) -> dict[str, Any]:
    """The settings of a configuration that differ from its class's defaults, as plain values."""
    values, changed = config.to_dict(), {}
    for name, default in config.defaults().items():
        if getattr(config, name) != default:
            changed[name] = values[name]
    return changed


def call_of(config: Any) -> str:
    """`PPOConfig(env='arena', lr=0.001)`: the call that makes the configuration again."""
    changed = changed_settings(config)
    arguments = ", ".join(f"{name}={value!r}" for name, value in changed.items())
    return f"{type(config).__name__}({arguments})"


def settings_display(config: Any) -> Display:
    """A configuration: what differs from the defaults, and folded below it the rest."""
    changed, others = changed_settings(config), config.to_dict()
    for name in changed:
        del others[name]
    return Display(
        f"{type(config).__name__} of {config.env_name or 'no environment'}",
        _lines(changed),
        folded=Display(f"{len(others)} settings have their defaults", _lines(others)),
    )


def _lines(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    return list(zip(settings, map(repr, settings.values()), strict=True))
