"""RLlib's connectors, as far as they are settings here: the filter of observations."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl.core.errors import one_line
from jaxrl.rllib.context import Context
from jaxrl.rllib.form import is_code
from jaxrl.rllib.rows import Row, changes, given_of, harmless, taken

TO_MODULE = ("env_to_module_connector", "_env_to_module_connector")
MODULES = "ray.rllib.connectors."  # of RLlib's own
FILTER, FLATTEN = "MeanStdFilter", "FlattenObservations"
# RLlib's defaults of the filter, which ours has.
USUAL = {"de_mean_to_zero": True, "de_std_to_one": True, "clip_by_value": 10.0}
ARGUMENTS = ((None, None, None), (None,), ())  # (env, spaces, device), or fewer in old versions


def filtering(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    """`observation_filter`, by its name or as the connector that RLlib's new stack has for it."""
    for value in given_of(values, "observation_filter").values():
        name = "MeanStdFilter" if value == "ConcurrentMeanStdFilter" else value
        name = None if value == "NoFilter" else name
        yield taken({"observation_filter": value}, observation_filter=name)
    for key in TO_MODULE:
        if values.get(key) is None:
            yield from [harmless({key: None}, "")] if key in values else []
        else:
            yield _connectors(key, values[key])


def _connectors(key: str, make: Any) -> Row:
    """The row of a function that makes connectors from observations to modules."""
    see = "see observation_filter, jaxrl.frame_stack(env, N), jaxrl.transform(env, observation=f)"
    if is_code(make) or not callable(make):
        return changes({key: make}, f"a function, which a file does not hold: {see}")
    try:
        made = _made(make)
    except Exception as error:
        return changes({key: make}, f"{type(error).__name__}: {one_line(error)}; {see}")
    made = made if isinstance(made, list | tuple) else [made]
    if unread := [type(connector).__name__ for connector in made if not _is_read(connector)]:
        return changes({key: make}, f"{', '.join(unread)}: no counterpart; {see}")
    names = [type(connector).__name__ for connector in made]
    if FILTER in names:
        return taken({key: make}, f"it makes {', '.join(names)}", observation_filter=FILTER)
    return harmless({key: make}, "observations are flattened for networks in both")


def _made(make: Any) -> Any:
    """The connectors that a function makes, called as RLlib calls it, without an environment."""
    for arguments in ARGUMENTS:
        try:
            inspect.signature(make).bind(*arguments)
        except TypeError:
            continue
        return make(*arguments)
    raise TypeError("it takes other arguments than RLlib gives (env, spaces, device)")


def _is_read(connector: Any) -> bool:
    """Returns whether a connector is RLlib's own, and one that has a counterpart."""
    cls = type(connector)
    if not cls.__module__.startswith(MODULES):
        return False
    is_usual = all(getattr(connector, name, value) == value for name, value in USUAL.items())
    return cls.__name__ == FLATTEN or (cls.__name__ == FILTER and is_usual)
