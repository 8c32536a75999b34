"""Plain values, which a run's files hold as they are."""

from typing import Any

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.frozen import is_mapping, thawed


def is_plain(value: Any) -> bool:
    """Returns whether a file holds a value: numbers, texts, lists and mappings by text of them."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if is_mapping(value):
        return all(isinstance(key, str) and is_plain(part) for key, part in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def check_plain(setting: str, arguments: Any) -> None:
    """Refuses arguments that a run's files cannot hold, such as arrays and spaces.

    Args:
        arguments: frozen, as `jaxrl.core.frozen.freeze_arguments` gives them.
    """
    for name, value in thawed(arguments).items():
        if not is_plain(value):
            raise UsageError(
                f"{setting}: {name} holds {brief(value)}, which a run's files cannot: give "
                "numbers, texts, lists, and mappings whose keys are texts"
            )
