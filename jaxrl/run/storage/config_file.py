"""Configurations in files: settings as JSON, objects by their names, and reading them back.

Reading may follow names to code, so it is where `trust` is asked for; see `jaxrl.core.trust`.
"""

import dataclasses
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.task_settings import ONLY_TRAINING, for_opponent
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import only, without
from jaxrl.core.frozen import freeze
from jaxrl.core.registry import ENVIRONMENT, announced_name, constructor_of
from jaxrl.core.trust import Kind, Named, arguments_of, check_name, load, name_of, parse_name
from jaxrl.rollout.callbacks_kind import CALLBACKS
from jaxrl.rollout.policy_map import policies_that_learn
from jaxrl.run.settings import RunSettings

CONFIGURATION = Kind(
    "configuration class",
    "jaxrl.algorithms",
    "a configuration such as PPOConfig",
    lambda found: isinstance(found, type) and issubclass(found, AlgorithmConfig),
)


def _kinds(config: Any) -> dict[str, Kind]:
    """{setting of a dataclass that may name code: the kind of what it names}."""
    kinds = {field.name: field.metadata.get("kind") for field in dataclasses.fields(config)}
    return {name: kind for name, kind in kinds.items() if kind is not None}


ENVIRONMENT_SETTINGS = ("env", "env_args")  # which a policy that plays alone does not need
NAMED_BY_RUNS = _kinds(RunSettings)


def config_facts(config: Any, policies: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """A configuration as JSON can hold it, and the class that reads it.

    An environment, a model, an optimizer or callbacks that another process can import are stored as
    "module:Name", with their arguments. Of other objects and functions only the name is stored, and
    "objects" lists the setting: it cannot be read back. Functions from agents to policies, and of
    policies to train, are stored as what they answered.
    """
    from jaxrl.core.plain_values import is_plain

    values = config.to_dict()
    for settings in (values, *values.get("per_policy", {}).values()):
        for name in ("model", *ONLY_TRAINING):
            if name in settings:
                settings[name] = _by_name(settings[name])
    if "callbacks" in values:
        values["callbacks"] = list(map(_by_name, values["callbacks"]))
    values |= _environment_by_name(values.get("env"))
    if callable(values.get("policies")):
        values["policies"] = {policy: list(agents) for policy, agents in policies.items()}
    learning = values.get("policies_to_train")
    if callable(learning):
        values["policies_to_train"] = list(policies_that_learn(learning, policies))
    flat = without(values, {"per_policy"})
    for policy, settings in values.get("per_policy", {}).items():
        for name, value in settings.items():
            flat[f"per_policy.{policy}.{name}"] = value
    objects = sorted(name for name, value in flat.items() if not is_plain(value))
    return {
        "config_class": f"{type(config).__module__}:{type(config).__qualname__}",
        "config": json.loads(json.dumps(values, default=described, skipkeys=True)),
        "objects": objects,
    }


def read_config(
    facts: dict[str, Any],
    call: str,
    *,
    to_play: str | bool = False,
    opponent: str | None = None,
    changes: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Any:
    """The configuration of `config_facts`.

    Args:
        call: the Python function that takes what no file can hold, for errors.
        to_play: leave out what only training needs: optimizers, curricula, and callbacks that were
            objects or may not be imported. The name of the one policy that is to play: leave out
            all callbacks, and the settings of the other policies. The environment is not checked
            then, for nobody makes it.
        opponent: with `to_play`, the member of the pool that plays, or "pool"; None: leave the pool
            out, with what its functions would import.
        changes: settings that the user gives in this call, in place of the saved ones.
        trust: whether the file may name any code at all.

    Raises:
        UsageError: a setting was an object, or is unknown to this version; a name that is not
            allowed without `trust`, or does not lead to an object of its kind.
    """
    changes = dict(changes or {})
    values, objects = _checked_facts(facts)
    alone = to_play if isinstance(to_play, str) else None
    if to_play:
        left_out = set(ONLY_TRAINING)
        if alone or "callbacks" in objects:
            left_out.add("callbacks")
        pool = values.get("opponents")
        values = _without(values, left_out)
        if opponent is not None and pool is not None:
            values["opponents"], needs_code = for_opponent(pool, opponent)
            if not needs_code:
                objects.discard("opponents")
        refused = () if trust else untrusted_callbacks(facts)
        if "callbacks" in values and refused:
            entries = _listed(values["callbacks"])
            values["callbacks"] = [entry for entry in entries if entry not in refused]
    if alone:
        overrides = {**values.get("per_policy", {}).get(alone, {}), **changes}
        values["per_policy"] = {alone: overrides} if overrides else {}
    else:
        values |= changes
    if refused := _first_object(values, objects, changes, alone):
        again = "model" if refused == "model" and alone else "config"
        raise UsageError(
            f"the run's {refused} was an object, {brief(_saved_value(facts, refused))}, which no "
            f"file can hold: pass it again in Python, {call}(RUN, {again}=...)"
        )
    config_class = read_class(facts.get("config_class"), call, trust=trust)
    saved = _without(values, {*changes, "env"}) if alone else without(values, changes)
    check_names(config_class, saved, trust=trust)
    return config_class.from_dict(values)


def read_class(name: Any, call: str, *, trust: bool) -> type:
    """The configuration's class, by its name."""
    check_name(CONFIGURATION, name, "the run's configuration class", trust=trust)
    named = parse_name(name)
    try:
        if named is None or named.arguments:
            raise UsageError(f"{brief(name)} is not module:Class")
        return load(CONFIGURATION, named)
    except (ImportError, UsageError) as error:
        raise UsageError(
            f"the run's configuration is a {name!s:.200}, which cannot be imported here: {error}; "
            f"pass the configuration again in Python, {call}(RUN, config=...)"
        ) from None


def check_names(config_class: type, settings: Mapping[str, Any], *, trust: bool) -> None:
    """Refuses settings of a file that name code which only `trust` allows, without importing it.

    With `trust` the environment is imported, which must be a class: a function could do anything as
    it is called.

    Args:
        settings: by name; `pol1.model` is a policy's, as in sweeps.
    """
    kinds = _kinds(config_class)
    for path, text in _texts(freeze(settings)):
        kind = kinds.get(path.rpartition(".")[2])
        if kind is None:
            continue
        check_name(kind, text, f"the run's {path}", trust=trust)
        named = parse_name(text)
        if kind is ENVIRONMENT and not kind.announces(text) and named is not None:
            _load_class(named)


def _load_class(named: Named) -> None:
    """Imports an environment's class; of a function, says who may name it."""
    try:
        load(ENVIRONMENT, named)
    except UsageError as error:
        module = sys.modules.get(named.module)  # None where there is no such module
        if not isinstance(getattr(module, named.attribute, None), FunctionType):
            raise
        raise UsageError(
            f"{error}; name a function again yourself, as --env of jaxrl train --resume, or in "
            "config=... of the call in Python"
        ) from None


def function_of_env(facts: Mapping[str, Any]) -> str | None:
    """The name of the function that made a run's environment in this process, if one did."""
    text = facts["config"].get("env")
    named = parse_name(text) if isinstance(text, str) else None
    if named is None or ENVIRONMENT.announces(text) or named.module not in sys.modules:
        return None
    found = vars(sys.modules[named.module]).get(named.attribute)
    return text if isinstance(found, FunctionType) else None


def import_named(config: Any, names: Collection[str]) -> None:
    """Imports what a configuration read from a file names, before more modules can be found.

    Args:
        names: of settings that the user gives in this call, which are left alone.

    Raises:
        UsageError: there is no such thing, or it is of another kind.
    """
    kinds = _kinds(config)
    for path, text in _texts(freeze(without(config.to_dict(), names))):
        kind = kinds.get(path.rpartition(".")[2])
        if kind is ENVIRONMENT:
            constructor_of(text)
        elif kind is not None and (named := parse_name(text)) is not None:
            load(kind, named)


def names_module(value: Any) -> bool:
    """Returns whether a setting's value holds a "module:Name", however deep."""
    return any(parse_name(text) is not None for text in _strings(freeze(value)))


def untrusted_callbacks(facts: dict[str, Any]) -> tuple[Any, ...]:
    """The callbacks of a run that are imported with `trust` alone; playing leaves them out."""
    values, objects = _checked_facts(facts)
    if "callbacks" in objects:
        return ()
    refused = []
    for entry in _listed(values.get("callbacks", [])):
        try:
            for text in _strings(freeze(entry)):
                check_name(CALLBACKS, text, "", trust=False)
        except UsageError:
            refused.append(entry)
    return tuple(refused)


def output_outside(facts: Mapping[str, Any], folder: str | Path | None) -> str | None:
    """The folder that a run writes its episodes to, if it is not in the run's own `folder`."""
    settings = facts.get("run_settings")
    output = settings.get("output") if isinstance(settings, Mapping) else None
    if output is None:
        return None
    try:
        is_inside = folder and Path(output).resolve().is_relative_to(Path(folder).resolve())
    except (OSError, TypeError, ValueError):  # no path, or none that the system takes
        is_inside = False
    return None if is_inside else output


def check_output(facts: Mapping[str, Any], folder: str | Path | None, *, trust: bool) -> None:
    """Refuses to resume a run that writes, and removes, files outside of its folder."""
    output = output_outside(facts, folder)
    if output is not None and not trust:
        raise UsageError(
            f"the run writes its episodes to {brief(output)}, which is not in its folder: give "
            "--output again (output=... in Python), or --trust (trust=True) if you know its maker"
        )


def check_saved_parts(
    facts: Mapping[str, Any], replacements: Collection[str] = (), *, trust: bool
) -> None:
    """Refuses loggers and hooks that a run's file names where they need `trust`, or were objects.

    Args:
        replacements: settings that replace those of the file.

    Raises:
        UsageError: see `jaxrl.core.trust.check_name`; nothing was imported.
    """
    for name, entry in _saved_parts(facts):
        if isinstance(entry, dict) and name not in replacements:
            raise UsageError(
                f"the run's {name} hold an object, {entry.get('object')!s:.80}, which no file can "
                f"hold: give {name} again, such as {name}=[...] in Python or --{name} module:Class"
            )
        if name not in replacements:
            kind = NAMED_BY_RUNS[name]
            check_name(kind, entry, f"the run's {kind.name}", trust=trust)


def asks_for_trust(
    facts: dict[str, Any], *, to_play: bool, folder: str | Path | None = None
) -> bool:
    """Returns whether playing the run of these facts in `folder`, or resuming it, needs `trust`."""
    values, _ = _checked_facts(facts, to_play=to_play)
    try:
        if not to_play:
            check_output(facts, folder, trust=False)
            check_saved_parts(facts, object_parts(facts), trust=False)
        check_names(read_class(facts.get("config_class"), "", trust=False), values, trust=False)
    except UsageError:
        return True
    return False


def saved_object(facts: dict[str, Any], *, to_play: bool) -> str | None:
    """The first setting that was an object, which playing and resuming need; or None."""
    values, objects = _checked_facts(facts, to_play=to_play)
    parts = [] if to_play else object_parts(facts)
    return _first_object(values, objects, {}, None) or next(iter(parts), None)


def object_parts(facts: Mapping[str, Any]) -> list[str]:
    """The settings of a run by which it had loggers or hooks that no file can hold."""
    return [name for name, entry in _saved_parts(facts) if isinstance(entry, dict)]


def _saved_parts(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(setting, entry) of each logger and hook of a run, as its file names them."""
    for name in NAMED_BY_RUNS:
        for entry in _listed(facts.get("run_settings", {}).get(name, [])):
            yield name, entry


def _listed(value: Any) -> list[Any]:
    """The entries of a setting that is a list, or that may be one entry alone."""
    return list(value) if isinstance(value, list | tuple) else [value]


def saved_numbers(facts: dict[str, Any], config: Any) -> Any:
    """`config` with the numbers of a saved configuration; None where the two do not go together.

    No name of the file is followed: environment, models, optimizers and callbacks are those of
    `config`.
    """
    values, _ = _checked_facts(facts)
    kinds, present = _kinds(config), config.to_dict()
    common = only(present, {*kinds, "env_args"})
    by_policy = {}
    for policy, settings in values.get("per_policy", {}).items():
        by_policy[policy] = without(settings, kinds)
    for policy, settings in present.get("per_policy", {}).items():
        by_policy.setdefault(policy, {}).update(only(settings, kinds))
    by_policy = {policy: settings for policy, settings in by_policy.items() if settings}
    try:
        return type(config).from_dict({**values, **common, "per_policy": by_policy})
    except UsageError:
        return None


def described(value: Any) -> str:
    """An object that JSON has no form for, by its name."""
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{getattr(value, '__module__', type(value).__module__)}:{name}"


def _by_name(value: Any) -> Any:
    """The name of a class or an object if another process can import it, else the value."""
    if value is None or isinstance(value, str):
        return value
    return name_of(value) or value


def _environment_by_name(env: Any) -> dict[str, Any]:
    """Settings that make an equal environment, if an object can be made by class and arguments."""
    if not ENVIRONMENT.fits(type(env)):
        return {}
    path = name_of(type(env))
    arguments = arguments_of(env)
    if path is None or arguments is None:
        return {}
    try:
        again = type(env)(**dict(freeze(json.loads(json.dumps(arguments)))))
        if again != env and dataclasses.is_dataclass(env):
            return {}
    except Exception:  # the class's own code, or arguments that JSON has no form for
        return {}
    return {"env": announced_name(path), "env_args": arguments}


def _checked_facts(
    facts: dict[str, Any], *, to_play: bool = False
) -> tuple[dict[str, Any], set[str]]:
    """(a copy of the settings, the names of those that were objects), once their form is right.

    Args:
        to_play: leave out what no game needs: callbacks, and what only training needs.
    """
    values, objects = facts.get("config"), facts.get("objects")
    by_policy = values.get("per_policy", {}) if isinstance(values, dict) else None
    is_sound = isinstance(by_policy, dict) and isinstance(objects, list)
    is_sound = is_sound and all(isinstance(overrides, dict) for overrides in by_policy.values())
    if not is_sound or not all(isinstance(name, str) for name in objects):
        raise UsageError("the run's file is damaged: its configuration is not one that jaxrl wrote")
    owners = {name.removeprefix("per_policy.").rpartition(".")[0] for name in objects}
    if unknown := owners - {"", *by_policy}:
        raise UsageError(
            f"the run's file is damaged: per_policy lacks {sorted(unknown)}, which its objects name"
        )
    return _without(values, {*ONLY_TRAINING, "callbacks"} if to_play else set()), set(objects)


def _without(values: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """The settings but these, of policies as well."""
    remaining = without(values, names)
    by_policy = {}
    for policy, overrides in remaining.get("per_policy", {}).items():
        by_policy[policy] = _without(overrides, names)
    if by_policy:
        remaining["per_policy"] = by_policy
    return remaining


def _first_object(
    values: Mapping[str, Any], objects: set[str], changes: Mapping[str, Any], alone: str | None
) -> str | None:
    """The first needed setting that was an object; with `alone`, of the policy that plays."""
    by_policy = {"": values, **values.get("per_policy", {})}
    for path in sorted(objects):
        policy, _, name = path.removeprefix("per_policy.").rpartition(".")
        if (alone and name in ENVIRONMENT_SETTINGS) or (name in changes and (alone or not policy)):
            continue
        if name in by_policy.get(policy, {}):
            return name
    return None


def _saved_value(facts: dict[str, Any], name: str) -> Any:
    """The value of an object that the file has under that name, on any level."""
    values = facts["config"]
    groups = (values, *values.get("per_policy", {}).values())
    return next(settings[name] for settings in groups if name in settings)


def _texts(settings: Any, within: str = "") -> Iterator[tuple[str, str]]:
    """(path, text) of every text in frozen settings, however deep it stands."""
    for name, value in _named(settings, within or "its settings"):
        path = f"{within}{name}"
        if not within and path.partition(".")[0] == "env_args":
            continue  # the environment's own to read, which is checked itself
        if name == "per_policy" and not within:
            for policy, overrides in _named(value, name):
                yield from _texts(overrides, f"{policy}.")
            continue
        yield from ((path, text) for text in _strings(value))


def _named(settings: Any, what: str) -> Iterator[tuple[str, Any]]:
    """(name, value) of frozen settings."""
    for pair in settings:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise UsageError(f"the run's file is damaged: {what} are no settings by name")
        yield pair


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _strings(part)
