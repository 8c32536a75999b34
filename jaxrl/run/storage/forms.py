"""The form of what a run's JSON files hold, checked before anything reads it.

A form is a type, or types, that a value has; `{name: form}` for a dict with these names and perhaps
more; `{ANY: form}` for one with any names; `[form]` for a list; or a function that reads a value
and raises for another one.
"""

from collections.abc import Callable
from types import UnionType
from typing import Any

from jaxrl.core.errors import brief
from jaxrl.core.spaces import from_json

ANY = "*"
NUMBER = int | float

Form = type | UnionType | dict[str, "Form"] | list["Form"] | Callable[[Any], Any]


def problem_of(value: Any, form: Form, place: str) -> str:
    """The first difference from a form, in words that begin with its place; empty if none."""
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return _wrong(value, place)
        for name in value if ANY in form else form:
            if name not in value:
                return f"{place} has no {name!r}"
            if found := problem_of(
                value[name], form.get(name, form.get(ANY)), f"{name} in {place}"
            ):
                return found
        return ""
    if isinstance(form, list):
        if not isinstance(value, list):
            return _wrong(value, place)
        found = (problem_of(part, form[0], f"a part of {place}") for part in value)
        return next(filter(None, found), "")
    if isinstance(form, type | UnionType):
        is_right = isinstance(value, form) and (form is bool or not isinstance(value, bool))
        return "" if is_right else _wrong(value, place)
    try:
        form(value)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):
        return _wrong(value, place)
    return ""


def _wrong(value: Any, place: str) -> str:
    return f"{place} is {brief(value)}"


def lifetime(value: Any) -> None:
    """The form of a run's counts: no others.

    Raises:
        ValueError: another value.
    """
    others = dict.fromkeys(value.keys() - COUNTS.keys(), _refuse)
    if problem := problem_of(value, {**COUNTS, **others}, "it"):
        raise ValueError(problem)


def _counts(value: Any) -> None:
    if value is not None and (problem := problem_of(value, {ANY: int}, "it")):
        raise ValueError(problem)


def _refuse(value: Any) -> None:
    raise ValueError(f"{brief(value)} has no place")


POLICIES: Form = {ANY: {"agents": [str], "observation_space": from_json, "action_space": from_json}}
RUN: Form = {  # of metadata.json
    "action_masks": bool,
    "config_class": str,
    "env_name": str,
    "num_processes": int,
    "objects": [str],
    "opponents_of": str | None,
    "panels": list,
    "policies": POLICIES,
    "run_settings": dict,
    "versions": {ANY: str},
}
STORED: Form = {  # of any checkpoint.json
    "arrays": [str],
    "files": {ANY: str},
    "lifetime": {"training_iteration": int},
}
COUNTS: Form = {
    "training_iteration": int,
    "num_env_steps": int,
    "num_episodes": int,
    "time_total_s": NUMBER,
    "num_agent_steps": _counts,
    "num_module_steps_trained": _counts,
}
CALLBACKS: Form = [{"class": str, "state": object}]
CHECKPOINT: Form = {  # of a run's
    **RUN,
    "config": dict,
    "groups": [[str]],
    "hooks": {"callbacks": CALLBACKS},
    "lifetime": lifetime,
    "num_env_steps": int,
    "result": dict | None,
}


def problem_of_checkpoint(facts: dict[str, Any], name: str) -> str:
    """The fault in the form of a `checkpoint.json`; mostly empty.

    A run's names the class of its configuration. The blocks of a sweep have fewer facts.
    """
    if (found := problem_of(facts, STORED, name)) or "config_class" not in facts:
        return found
    if found := problem_of(facts, CHECKPOINT, name):
        return found
    stop = facts["run_settings"].get("stop", {})
    grouped = [policy for group in facts["groups"] for policy in group]
    if sorted(grouped) != sorted(facts["policies"]):
        return f"groups in {name} is {brief(facts['groups'])}, other policies"
    return problem_of(stop, {ANY: NUMBER}, f"stop in {name}")
