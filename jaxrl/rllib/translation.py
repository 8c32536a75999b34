"""`from_rllib`: an RLlib configuration as a `PPOConfig`, and a table of what became of each key."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.core.errors import UsageError, nearest, unknown_name
from jaxrl.core.fields import field_names, instance_of, only, unknown_setting, without
from jaxrl.core.foreign_names import SETTINGS, Counterpart, names_of
from jaxrl.core.frozen import freeze
from jaxrl.rllib import form
from jaxrl.rllib import searches as searching
from jaxrl.rllib.context import ENV_KEYS, Context, read_environment
from jaxrl.rllib.env_names import is_name_elsewhere
from jaxrl.rllib.files import read_file
from jaxrl.rllib.policies import POLICY_KEYS, fixed_rows, mapping, read_specs, trained
from jaxrl.rllib.rows import CHANGES, Row, asks_nothing, changes, given_of, harmless, shown, taken
from jaxrl.rllib.runs import RUN_RULES
from jaxrl.rllib.settings import POLICY_RULES, Rule
from jaxrl.rllib.table import table
from jaxrl.rollout.policy_map import resolve_policies
from jaxrl.run.results import ITERATIONS
from jaxrl.run.settings import RunSettings
from jaxrl.run.trainer import Trainer
from jaxrl.sweeps.results import Sweep
from jaxrl.sweeps.sweep import sweep

RULES = (*POLICY_RULES, *RUN_RULES)
DEFAULTS = {
    field.name: field.default
    for cls in (PPOConfig, RunSettings)
    for field in dataclasses.fields(cls)
}
OF_RUN = frozenset(field_names(RunSettings))
MAPPINGS = ("env_args", "stop")  # settings that several keys may have a part of


@dataclasses.dataclass(frozen=True)
class Translation:
    """An RLlib configuration in this library's settings; `print` shows what became of each key.

    config: the `PPOConfig`; where several values are tried, of the first ones.
    run_settings: keywords of `Trainer`: when to evaluate, what ends training, ...
    space: what is tried, for `jaxrl.sweep(config, space, **sweep_settings)`; empty: one training.
    sweep_settings: further keywords of `jaxrl.sweep`.
    rows: RLlib's keys, and what became of them.
    """

    config: PPOConfig
    run_settings: dict[str, Any]
    space: dict[str, Any]
    sweep_settings: dict[str, Any]
    rows: tuple[Row, ...] = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return table(self.rows, DEFAULTS)

    @property
    def tried(self) -> list[str]:
        """The settings of which a sweep tries several values."""
        seeds = self.sweep_settings.get("seeds")
        return [*self.space, *(["seed"] if isinstance(seeds, list) else [])]

    def trainer(self, **run_settings: Any) -> Trainer:
        """A `Trainer` of it; settings given here win over its own.

        Raises:
            UsageError: the configuration tries several values, of which one run has the first.
        """
        if self.tried:
            raise UsageError(
                f"the configuration tries {', '.join(self.tried)}: use .sweep(), or give one value"
            )
        return Trainer(self.config, **{**self.run_settings, **run_settings})

    def sweep(self, **sweep_settings: Any) -> Sweep:
        """Trains what it tries, by `jaxrl.sweep`; settings given here win over its own.

        Raises:
            UsageError: it has settings of one run, which no sweep takes.
        """
        self.check_for_a_sweep()
        return sweep(self.config, self.space, **{**self.sweep_settings, **sweep_settings})

    def check_for_a_sweep(self) -> None:
        """Refuses settings of one run, such as `output`, which a sweep would leave out."""
        searching.check_for_a_sweep(without(self.run_settings, ("checkpoint_at_end",)))


def from_rllib(config: Any, *, ignore: Iterable[str] = (), **settings: Any) -> Translation:
    """An RLlib configuration of PPO as this library's, and a table of what became of each key.

        translation = jaxrl.from_rllib("params.json")
        print(translation)
        trainer = jaxrl.Trainer(translation.config, **translation.run_settings)

    Args:
        config: RLlib's `PPOConfig`; a dict of its settings, by old or new names; the arguments of
            `tune.run` or `tune.Tuner`; or the path of a JSON or YAML file of these (FILE#NAME for
            one of several experiments), or of a result's folder.
        ignore: keys that have no counterpart and change the result, to leave out all the same; of
            a key with several values the first is taken.
        **settings: of `PPOConfig` and `Trainer`, which win. `env` and `stop` may have RLlib's
            names, too.

    Raises:
        UsageError: in one line, with the reason of each key that changes the result.
    """
    settings_beside = _checked_names(settings)
    config = read_file(config) if isinstance(config, str | Path) else config
    values = form.flat(config)
    if is_name_elsewhere(settings_beside.get("env")):
        values["env"] = settings_beside.pop("env")
    if "stop" in settings_beside:
        _, values = _parted(values, ("stop",))
        values |= form.flat({"stop": settings_beside.pop("stop")})
    values = searching.with_limits(values)
    of_tune, values = _parted(values, searching.KEYS)
    searches = searching.read_searches(values, settings_beside)
    values = searching.without_searches(values, searches)
    context, of_env = read_environment(values, settings_beside, new_stack=form.is_new_stack(config))

    def rows_with(chosen: Mapping[str, Any]) -> list[Row]:
        changed = {**values, **chosen}
        _, left = _parted(changed, (*ENV_KEYS, *POLICY_KEYS))
        rows = [*of_env, *_of_policies(changed, settings_beside, context)]
        rows += _read(left, context.counted_by(changed.get("count_steps_by")), RULES)
        return [_answered(row, settings_beside) for row in rows]

    def translate(chosen: Mapping[str, Any]) -> Translation:
        rows = rows_with(chosen)
        _refuse(rows, ignore)
        rows = searching.without_iterations(rows, searches.kinds)
        return _translation(rows, settings_beside, {}, {})

    rows = [*searches.rows, *rows_with({})]
    rows = [_answered(row, settings_beside) for row in rows]
    paths = {key for row in rows for key in row.entries}
    ignore = _checked_ignore(ignore, {*paths, *values, *of_tune, *searches.kinds})
    kinds = _without_ignored(searches.kinds, ignore)
    rows = [searching.noted(row, searches.kinds, kinds) for row in rows]
    _refuse(rows, ignore)
    space_of = lambda kinds: searching.space_of(kinds, translate, settings_beside)
    space = space_of(kinds)
    sweep_settings, of_sweep = searching.sweep_settings(of_tune, space, space_of)
    if space:
        searching.check_for_a_sweep(settings_beside)
    rows = [searching.of_a_sweep(row) if space or _leaves_out(ignore, row) else row for row in rows]
    _refuse([*rows, *of_sweep], ignore)
    space.pop("seed", None)
    return _translation([*rows, *of_sweep], settings_beside, space, sweep_settings)


def rllib_names() -> dict[str, Counterpart]:
    """The counterparts of RLlib's settings."""
    return names_of("RLlib", SETTINGS)


def known_keys() -> set[str]:
    """All keys of RLlib's PPO that have a rule or stand in the table of names."""
    ruled = (key.rpartition("/")[2] for rule in RULES for key in rule.keys)
    return {*rllib_names(), *form.copied(), *ENV_KEYS, *POLICY_KEYS, *form.MODEL, *ruled}


def is_part(path: str, *keys: str) -> bool:
    """Returns whether a path is one of `keys`, or below one."""
    return any(path == key or path.startswith(f"{key}/") for key in keys)


def _parted(values: Mapping[str, Any], keys: Iterable[str]) -> tuple[dict, dict]:
    """(the values of `keys` and of what is below them, the others)."""
    below, others = {}, {}
    for path, value in values.items():
        side = below if is_part(path, *keys) else others
        side[path] = value
    return below, others


def _checked_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    for name in settings:
        if name not in DEFAULTS:
            raise unknown_setting(name, DEFAULTS, owner="PPOConfig")
    return dict(settings)


def _read(values: Mapping[str, Any], context: Context, rules: Iterable[Rule]) -> Iterator[Row]:
    """The rows of all values: by their rule, else copied, else as the table of names says."""
    left = dict(values)
    for rule in rules:
        read, left = _parted(left, rule.keys)
        if read or rule.always:
            yield from rule.read(read, context)
    for key, value in left.items():
        yield _single(key, value)


def _single(path: str, value: Any) -> Row:
    """The row of a key that no rule reads."""
    name, read = path.rpartition("/")[2], {path: value}
    found = rllib_names().get(name)
    here = name if found is None else found.here
    if here in form.copied():
        return taken(read, **{here: value})
    if found is None:
        near = nearest(name, known_keys(), 1)
        is_of_model = near == [path]
        hint = f"; did you mean {near[0]!r}?" if near else ""
        hint = f"; it is a part of model: model={{{name!r}: ...}}" if is_of_model else hint
        return changes(read, f"no setting of RLlib's PPO that is known{hint}")
    note = found.note.removeprefix("no counterpart: ").removeprefix("nothing to set: ")
    why = "; ".join(filter(None, (here and f"see {here}", note)))
    if found.harmless is None:
        return harmless(read, why)
    return harmless(read, "") if asks_nothing(value, found.harmless) else changes(read, why)


def _of_policies(
    values: Mapping[str, Any], settings_beside: Mapping[str, Any], context: Context
) -> Iterator[Row]:
    """The rows of who plays whom, and of the settings that policies have of their own."""
    specs = read_specs(values)
    yield from specs.rows
    if "_rl_module_spec" in values and not specs.has_modules:
        yield _single("_rl_module_spec", values["_rl_module_spec"])
    if settings_beside.get("policies") is not None:
        read = given_of(values, "policies", "policy_mapping_fn")
        yield harmless(read, "policies are given beside it")
        policies = freeze(settings_beside["policies"])
        policies = dict(policies) if isinstance(settings_beside["policies"], Mapping) else policies
        played = resolve_policies(context.env, policies, context.env_params)
    else:
        played, rows = mapping(values, specs.names, context)
        yield from rows
    yield from fixed_rows(values, specs, list(played))
    learning = [policy for policy in played if policy not in specs.fixed]
    chosen = values.get("policies_to_train")
    if specs.fixed and chosen is None:
        chosen = learning
    if chosen is not None or "policies_to_train" in values:
        yield trained(chosen, learning, specs.names)
    common = _settings(_read(values_of_policy(values), context, POLICY_RULES))
    for policy, overrides in specs.settings.items():
        if specs.names and policy not in specs.names:
            raise unknown_name("policy", policy, specs.names)
        if overrides and policy in played:
            yield from _of_policy(policy, overrides, values, context, common)


def values_of_policy(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that a policy may have of its own."""
    keys = [key for rule in POLICY_RULES for key in rule.keys]
    return {key: values[key] for key in values if key in keys or _here(key) in form.copied()}


def _here(path: str) -> str:
    name = path.rpartition("/")[2]
    names = rllib_names()
    return names[name].here if name in names else name


def _of_policy(
    policy: str,
    overrides: Mapping[str, Any],
    values: Mapping[str, Any],
    context: Context,
    common: Mapping[str, Any],
) -> Iterator[Row]:
    """The rows of a policy's own settings, on top of those of all."""
    path, keys = f"policies/{policy}", [*ENV_KEYS, *POLICY_KEYS]
    for rule in RUN_RULES:
        keys += rule.keys
    for_all, overrides = _parted(form.flat(overrides), keys)
    if for_all:
        yield harmless(for_all, "one for all policies").below(path)
    for row in _read({**values_of_policy(values), **overrides}, context, POLICY_RULES):
        read = only(row.entries, overrides)
        if not read:
            continue
        row = row._replace(entries=read).below(path)
        changed = {}
        for name, value in row.settings.items():
            if common.get(name, DEFAULTS[name]) != value:
                changed[name] = value
        yield row._replace(settings={"per_policy": {policy: changed}} if changed else {})


def _answered(row: Row, settings_beside: Mapping[str, Any]) -> Row:
    """A row without a counterpart is harmless where a setting beside it takes its place."""
    answers = [_here(key) for key in row.entries if _here(key) in settings_beside]
    if row.kind != CHANGES or not answers:
        return row
    return harmless(row.entries, f"{answers[0]} is given beside it")


def _checked_ignore(ignore: Any, paths: set[str]) -> list[str]:
    """The keys to ignore, each of which is in the configuration."""
    instance_of(str | list | tuple | set, "a list of keys")("ignore", ignore)
    ignore = [ignore] if isinstance(ignore, str) else list(ignore)
    for name in ignore:
        if not any(is_named(path, name) for path in paths):
            raise unknown_name("key to ignore", name, paths, look="it is not in the configuration")
    return ignore


def _without_ignored(kinds: Mapping[str, Any], ignore: list[str]) -> dict[str, Any]:
    """The searches that are tried; of one to ignore the first value is taken."""
    tried = {}
    for path, kind in kinds.items():
        if not _is_ignored(path, ignore):
            tried[path] = kind
    return tried


def _refuse(rows: list[Row], ignore: list[str]) -> None:
    """Refuses what changes the result and is not to be ignored."""
    names, reasons = [], []
    for row in rows:
        if row.kind == CHANGES and not _leaves_out(ignore, row):
            names.append(next(iter(row.entries)))
            reasons.append(f"{shown(row.entries)} ({row.why})")
    if names:
        raise UsageError(
            f"no counterpart, and it changes the result: {'; '.join(reasons)}; "
            f"to leave it out: ignore={names}, or --ignore {' '.join(names)}"
        )


def _leaves_out(ignore: list[str], row: Row) -> bool:
    return any(_is_ignored(key, ignore) for key in row.entries)


def _is_ignored(path: str, ignore: list[str]) -> bool:
    return any(is_named(path, name) for name in ignore)


def is_named(path: str, name: str) -> bool:
    """Returns whether a name means this key: its whole path, or its end."""
    return path == name or path.endswith(f"/{name}")


def _settings(rows: Iterable[Row]) -> dict[str, Any]:
    """The settings of all rows together."""
    settings: dict[str, Any] = {}
    for row in rows:
        for name, value in row.settings.items():
            if name in MAPPINGS:
                value = {**settings.get(name, {}), **value}
            elif name == "per_policy":
                policy, values = next(iter(value.items()))
                held = settings.get(name, {})
                value = {**held, policy: {**held.get(policy, {}), **values}}
            elif name == "total_env_steps":
                value = min(value, settings.get(name, value))
            settings[name] = value
    return settings


def _translation(
    rows: list[Row],
    settings_beside: Mapping[str, Any],
    space: dict[str, Any],
    sweep_settings: dict[str, Any],
) -> Translation:
    settings = _settings(rows)
    limit = settings.pop("total_env_steps", None)
    changed = without(settings_beside, OF_RUN)
    first = {name: changed.pop(name) for name in ("env", "env_args") if name in changed}
    if "env_args" in first:
        first["env_args"] = {**settings.get("env_args", {}), **dict(first["env_args"])}
    ppo = without(settings, OF_RUN)
    config = PPOConfig(**{**ppo, **first}).replace(**changed)
    criteria = settings.get("stop", {})
    if ITERATIONS in criteria:
        least, most = searching.batch_sizes(config, space)
        steps = criteria[ITERATIONS] * most
        limit = steps if limit is None else min(limit, steps)
        if least == most or "total_env_steps" in settings_beside:
            del criteria[ITERATIONS]
        else:
            rows = [searching.ends_by_iterations(row) for row in rows]
    if not criteria:
        settings.pop("stop", None)
    if "total_env_steps" not in settings_beside:
        if limit is None:
            limit = config.total_env_steps
            rows.append(taken({}, "RLlib trains until it is stopped", total_env_steps=limit))
        config = config.replace(total_env_steps=limit)
    if settings_beside:
        rows.append(taken(dict(settings_beside), "given beside it, and wins", **settings_beside))
    run = only({**settings, **settings_beside}, OF_RUN)
    RunSettings(**run)
    trials = only(run, searching.OF_TRIALS)
    return Translation(config, run, space, {**trials, **sweep_settings}, tuple(rows))
