"""Tune's search spaces and schedulers, read as the arguments of `jaxrl.sweep`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import field_names, field_values
from jaxrl.core.foreign_names import criterion
from jaxrl.rllib.context import ENV_KEYS
from jaxrl.rllib.env_names import argument_names
from jaxrl.rllib.form import NESTED
from jaxrl.rllib.policies import POLICY_KEYS
from jaxrl.rllib.rows import CHANGES, Row, changes, given_of, harmless, taken
from jaxrl.run.results import ITERATIONS
from jaxrl.run.settings import RunSettings
from jaxrl.sweeps.options import TRIAL_SETTINGS
from jaxrl.sweeps.outcomes import MAX
from jaxrl.sweeps.population_based_training import PopulationBasedTraining
from jaxrl.sweeps.space import DRAWS, INTEGERS, Draw, Grid, choice, grid_search, quniform, values_of

KEYS = (
    "num_samples",
    "scheduler",
    "search_alg",
    "metric",
    "mode",
)  # of Tune's, which a sweep has too
SIZES = ("num_envs", "rollout_length")  # settings that decide on each other
OF_TRIALS = (*TRIAL_SETTINGS, "stop", "devices")  # settings of a run that a sweep takes
OF_ONE_RUN = frozenset(field_names(RunSettings)).difference(OF_TRIALS)
HALVING = {  # Tune's schedulers that drop trials at rungs, and where each has its factor
    "AsyncHyperBandScheduler": "_reduction_factor",
    "ASHAScheduler": "_reduction_factor",
    "HyperBandScheduler": "_eta",
    "HyperBandForBOHB": "_eta",
}
SAMPLERS = {  # Tune's (domain, sampler) and their names here
    ("Float", "Uniform"): "uniform",
    ("Float", "LogUniform"): "loguniform",
    ("Integer", "Uniform"): "randint",
    ("Integer", "LogUniform"): "lograndint",
}
DRAWING = ("BasicVariantGenerator", "variant_generator", "random")  # Tune's own, without a search
OPTUNA = ("OptunaSearch", "optuna")
TPE_SAMPLERS = ("NoneType", "TPESampler")  # of Optuna; the first is its default
FURTHER = ("_space", "_points_to_evaluate", "_evaluated_rewards")  # that OptunaSearch may be given
QUANTISED = ("Float", "Uniform")  # the one whose quantised form is known here, `quniform`
KNOWN = "grid_search, choice, uniform, quniform, loguniform, randint and lograndint are known"
# Gives the `Translation` of a configuration with some of RLlib's values, by path, in place.
Read = Callable[[Mapping[str, Any]], Any]


class Searches(NamedTuple):
    """The several values that a configuration tries, by RLlib's paths."""

    kinds: dict[str, Grid | Draw]
    rows: list[Row]  # of what is drawn in no way that is known here

    @property
    def firsts(self) -> dict[str, Any]:
        """A value for each path: the first of a list, or the lower bound."""
        return {path: _ends(kind)[0] for path, kind in self.kinds.items()}


def is_search(value: Any) -> bool:
    """Returns whether this stands for several values: Tune's `grid_search`, or ours."""
    is_grid = isinstance(value, Mapping) and set(value) == {"grid_search"}
    is_read = isinstance(value, Grid | Draw)
    return is_grid or is_read or type(value).__module__.startswith("ray.tune.search")


def read_searches(values: Mapping[str, Any], settings_beside: Mapping[str, Any]) -> Searches:
    """The paths at which there are several values.

    Args:
        settings_beside: those that win over the configuration.

    Raises:
        UsageError: a sweep cannot try what is there.
    """
    found = Searches({}, [])
    for path, value in _with_arguments(values):
        if path not in settings_beside:
            _check_place(path, value)
        if not is_search(value):
            continue
        kind = _kind_of(path, value)
        if kind is None:
            found.rows.append(changes({path: value}, KNOWN))
        else:
            found.kinds[path] = kind
    return found


def _check_place(path: str, value: Any) -> None:
    """Refuses a search where a sweep has one value for all trials, or within another value."""
    folder, _, name = path.rpartition("/")
    is_group = name == "grid_search" or (path in NESTED and is_search(value))
    if path in (*ENV_KEYS, *POLICY_KEYS) and _has_search(value):
        if path != "env_config" or is_search(value):
            raise UsageError(
                f"{path}: a sweep has one environment and one set of policies: choose one of the "
                "values, and sweep once for each"
            )
    elif is_group or (not is_search(value) and _has_search(value)):
        raise UsageError(
            f"{folder if name == 'grid_search' else path}: a search is read where it stands for "
            "the value of one setting, or of one argument of the environment"
        )


def _has_search(value: Any) -> bool:
    """Returns whether a value is a search, or holds one at any depth."""
    if is_search(value):
        return True
    value = getattr(value, "config", value)  # of a PolicySpec
    parts = value.values() if isinstance(value, Mapping) else value
    return isinstance(value, Mapping | list | tuple) and any(map(_has_search, parts))


def without_searches(values: Mapping[str, Any], searches: Searches) -> dict[str, Any]:
    """The values with one in place of each search; none where it is not known."""
    chosen = {path: value for path, value in values.items() if not is_search(value)}
    if isinstance(arguments := chosen.get("env_config"), Mapping):
        chosen["env_config"] = {
            name: part for name, part in arguments.items() if not is_search(part)
        }
    for path, value in searches.firsts.items():
        if (argument := _argument(path)) is not None:
            chosen["env_config"] = {**chosen["env_config"], argument: value}
        else:
            chosen[path] = value
    return chosen


def _argument(path: str) -> str | None:
    """The environment's argument that a path means; None if it means another thing."""
    folder, _, name = path.rpartition("/")
    return name if folder == "env_config" else None


def _with_arguments(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path, value) of all values, those of the environment's arguments as well."""
    for path, value in values.items():
        yield path, value
        if path == "env_config" and isinstance(value, Mapping):
            yield from ((f"{path}/{name}", part) for name, part in value.items())


def _kind_of(path: str, value: Any) -> Grid | Draw | None:
    """A grid or a draw of RLlib's values; None for one of Tune's that is not known here."""
    if isinstance(value, Grid | Draw):
        return value
    try:
        if isinstance(value, Mapping):
            return grid_search(value["grid_search"])
        if hasattr(value, "categories"):
            return choice(value.categories)
        return _drawn(type(value).__name__, value.get_sampler(), value)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _drawn(domain: str, sampler: Any, value: Any) -> Draw | None:
    """A draw of Tune's numbers; None where it is not known here."""
    name = type(sampler).__name__.lstrip("_")
    if name == "Quantized":
        inner = type(sampler.sampler).__name__.lstrip("_")
        is_known = (domain, inner) == QUANTISED
        return quniform(value.lower, value.upper, sampler.q) if is_known else None
    name = SAMPLERS.get((domain, name))
    return DRAWS[name](value.lower, value.upper) if name else None


def _ends(kind: Grid | Draw) -> tuple:
    """Every value, or the least and the most of what is drawn."""
    if (values := values_of(kind)) is not None:
        return values
    low, high, *_ = kind.arguments
    return (low, high - 1) if kind.kind in INTEGERS else (low, high)


def space_of(
    kinds: Mapping[str, Grid | Draw], read: Read, settings_beside: Mapping[str, Any]
) -> dict[str, Grid | Draw]:
    """The space of a sweep, by the names of settings here.

    Searches are left out that are the same training here, or whose setting is given beside them.

    Args:
        kinds: several values by path.
        settings_beside: those that win over the configuration.

    Raises:
        UsageError: a sweep with this space would train with other settings than RLlib.
    """
    base, space, lasts = read({}), {}, {}
    for path, kind in kinds.items():
        if (argument := _argument(path)) is not None:
            argument = argument_names(base.config.env).get(argument, argument)
            beside = dict(settings_beside.get("env_args") or {})
            if argument in dict(base.config.env_args) and argument not in beside:
                space[f"env_args.{argument}"] = kind
            continue
        found = _translated(path, kind, base, read)
        for name in found:
            if name in space:
                raise UsageError(f"{path}: another search changes {name}, too: search over one")
        space |= found
        lasts |= {path: _ends(kind)[-1]} if found else {}
    changes = {name: _ends(kind)[-1] for name, kind in space.items() if "." not in name}
    if len(lasts) > 1 and _replaced(base.config, changes) != read(lasts).config:
        raise UsageError(
            f"{', '.join(lasts)}: their values change each other's settings here; search over one"
        )
    return space


def without_iterations(rows: Iterable[Row], searches: Mapping[str, Any]) -> list[Row]:
    """The rows but for the iterations to train, which all trials of a sweep have in common.

    They are so many steps of the environment, by the size of each trial's batch.

    Args:
        searches: several values by path; a search over the iterations stays.
    """
    is_common = lambda row: searches.keys().isdisjoint(row.entries) and _is_of_iterations(row)
    return [row for row in rows if not is_common(row)]


def batch_sizes(config: Any, space: Mapping[str, Grid | Draw]) -> tuple[int, int]:
    """(the smallest, the largest) batch of the trials, in steps of the environment."""
    ends = {name: _ends(space[name]) for name in (*SIZES, "train_batch_size") if name in space}
    least = {name: min(values) for name, values in ends.items()}
    most = {name: max(values) for name, values in ends.items()}
    return config.replace(**least).train_batch_size, config.replace(**most).train_batch_size


def ends_by_iterations(row: Row) -> Row:
    """The row of the iterations to train where they are other steps in each trial."""
    if not _is_of_iterations(row):
        return row
    return row._replace(why="each trial by its own batch")


def _is_of_iterations(row: Row) -> bool:
    return ITERATIONS in row.settings.get("stop", {})


def with_limits(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with a scheduler's longest time of a trial as a criterion that ends training."""
    scheduler = values.get("scheduler")
    name, limit = getattr(scheduler, "_time_attr", None), getattr(scheduler, "_max_t", None)
    limit = getattr(scheduler, "_max_t_attr", limit)
    if type(scheduler).__name__ not in HALVING or not isinstance(name, str) or limit is None:
        return dict(values)
    least = values.get(f"stop/{name}", limit)
    is_number = isinstance(least, int | float)
    return {**values, f"stop/{name}": min(limit, least) if is_number else least}


def noted(row: Row, searches: Mapping[str, Any], tried: Mapping[str, Any]) -> Row:
    """A row that says so where its value is the first of several.

    Args:
        searches: several values by path.
        tried: those of them that are not to be ignored.
    """
    if row.kind == CHANGES or searches.keys().isdisjoint(row.entries):
        return row
    is_tried = not tried.keys().isdisjoint(row.entries)
    several = "the first of several" + (", which jaxrl.sweep tries" if is_tried else "")
    return row._replace(why="; ".join(filter(None, (row.why, several))))


def of_a_sweep(row: Row) -> Row:
    """The row of a configuration that several trials are trained by.

    Settings of one run that no sweep takes are not taken over, and the row says so.
    """
    left = sorted(OF_ONE_RUN.intersection(row.settings))
    if not left:
        return row
    if left == ["checkpoint_at_end"]:
        return harmless(row.entries, "a sweep writes a checkpoint at the end of each trial")
    return changes(row.entries, f"{', '.join(left)}: a setting of one run, which no sweep takes")


def check_for_a_sweep(settings: Mapping[str, Any]) -> None:
    """Refuses settings of one run, which a sweep of several would leave out."""
    for name, value in settings.items():
        if name in OF_ONE_RUN:
            raise UsageError(
                f"{name}={brief(value)} is a setting of one run, which no sweep takes: leave it out"
            )


def _translated(path: str, kind: Grid | Draw, base: Any, read: Read) -> dict[str, Grid | Draw]:
    """The space here of several of RLlib's values for one path; empty if they are one training.

    Args:
        base: the translation of the whole configuration with one value for every path.
    """
    ends = _ends(kind)
    found = [read({path: value}) for value in ends]
    runs = _differing(base.run_settings, [translation.run_settings for translation in found])
    if runs:
        raise UsageError(
            f"{path}: its values differ here in {', '.join(runs)}, which all trials of a sweep "
            "have in common"
        )
    configs = [translation.config for translation in found]
    names = _differing(field_values(base.config), [field_values(config) for config in configs])
    for fixed in ({}, {name: getattr(base.config, name) for name in SIZES if name not in names}):
        for name in names:
            values = [getattr(config, name) for config in configs]
            changes = [{**fixed, name: value} for value in values]
            if [_replaced(base.config, change) for change in changes] == configs:
                searched = _kind_here(path, kind, values)
                return {**{name: Grid((size,)) for name, size in fixed.items()}, name: searched}
    if names:
        raise UsageError(
            f"{path}: its values differ here in {', '.join(names)}, which a sweep over one of them "
            "does not give: translate the configuration with each value"
        )
    return {}


def _differing(base: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of settings that are not in all the same."""
    others = list(others)
    names = dict.fromkeys(name for settings in (base, *others) for name in settings)
    absent = object()
    return [
        name
        for name in names
        if any(settings.get(name, absent) != base.get(name, absent) for settings in others)
    ]


def _replaced(config: Any, changes: Mapping[str, Any]) -> Any:
    """The configuration with changes as a sweep makes them; None if it cannot have them."""
    try:
        return config.replace(**changes)
    except UsageError:
        return None


def _kind_here(path: str, kind: Grid | Draw, values: Sequence[Any]) -> Grid | Draw:
    """The same grid or draw of the values that a setting has here."""
    try:
        if isinstance(kind, Grid):
            return grid_search(values)
        if kind.kind == "choice":
            return choice(values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    if tuple(values) != _ends(kind):
        raise UsageError(f"{path}: numbers drawn for it are others here: give a list of values")
    return kind


def sweep_settings(
    values: Mapping[str, Any],
    space: Mapping[str, Any],
    mutations: Callable[[Mapping[str, Grid | Draw]], dict[str, Grid | Draw]],
) -> tuple[dict[str, Any], list[Row]]:
    """Tune's settings of its trials as arguments of `jaxrl.sweep`, and their rows.

    Args:
        values: those of `KEYS`.
        mutations: gives the space here of several values by RLlib's paths.
    """
    settings, rows = _ranking(values)
    if (seeds := space.get("seed")) is not None:
        if not isinstance(seeds, Grid):
            raise UsageError("seed: a sweep draws no seeds: list them with grid_search")
        settings["seeds"] = list(seeds.values)
    number = values.get("num_samples") or 1
    is_searched = bool(space.keys() - {"seed"})
    search, of_search = _search(values.get("search_alg"), number, is_searched)
    rows += of_search if "search_alg" in values else []
    settings |= search
    if search:
        rows.append(taken(given_of(values, "num_samples"), "trials of jaxrl.sweep"))
    elif number != 1:
        is_drawn = any(isinstance(kind, Draw) for kind in space.values())
        if "seeds" in settings and not is_drawn:
            rows.append(harmless(given_of(values, "num_samples"), "each seed is trained once"))
        else:
            settings["num_samples" if is_drawn else "seeds"] = number
            rows.append(taken(given_of(values, "num_samples"), "trials that jaxrl.sweep trains"))
    scheduler = values.get("scheduler")
    name = getattr(scheduler, "__name__", type(scheduler).__name__)
    if scheduler is None or name == "FIFOScheduler":
        rows += [harmless({"scheduler": scheduler}, "")] if "scheduler" in values else []
    elif name in HALVING and not isinstance(scheduler, type):
        settings["halving"] = max(2, round(getattr(scheduler, HALVING[name])))
        why = "halving of jaxrl.sweep: rungs of its own, all trials of one side by side"
        rows.append(taken({"scheduler": name}, why))
    elif name == "PopulationBasedTraining" and hasattr(scheduler, "_perturbation_interval"):
        settings["scheduler"] = _population(scheduler, mutations)
        rows.append(taken({"scheduler": name}, "scheduler of jaxrl.sweep"))
    else:
        names = ["FIFOScheduler", *HALVING, "PopulationBasedTraining"]
        rows.append(changes({"scheduler": scheduler}, f"the schedulers are {', '.join(names)}"))
    return settings, rows


def _search(value: Any, number: int, is_searched: bool) -> tuple[dict[str, Any], list[Row]]:
    """Tune's searcher as arguments of `jaxrl.sweep`, and its row.

    Args:
        number: how many settings are tried.
        is_searched: whether anything but seeds is tried.
    """
    searcher = getattr(value, "searcher", value)  # of a ConcurrencyLimiter
    name = searcher if isinstance(searcher, str) else type(searcher).__name__
    read = {"search_alg": name}
    if value is None or name in DRAWING:
        return {}, [harmless({"search_alg": value}, "")]
    sampler = type(getattr(searcher, "_sampler", None)).__name__
    why = ""
    if name not in OPTUNA:
        why = "a sweep tries a grid, draws at random, or has OptunaSearch as search='tpe'"
    elif sampler not in TPE_SAMPLERS:
        why = f"of Optuna's samplers TPESampler is here, not {sampler}"
    elif any(getattr(searcher, part, None) for part in FURTHER):
        why = "a search begins without points, and its space is in param_space"
    elif is_searched and number < 2:
        why = "num_samples says how many settings it tries, 2 or more"
    if why:
        return {}, [changes(read, why)]
    if not is_searched:
        return {}, [harmless(read, "no setting is searched")]
    found = {"search": "tpe", "trials": number}
    return found, [taken(read, "search='tpe' of jaxrl.sweep, by Optuna as well")]


def _ranking(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Row]]:
    """The metric that ranks the trials, which Tune, a scheduler or a searcher names; its rows."""
    read = given_of(values, "metric", "mode")
    for key in ("metric", "mode"):
        for source in (values.get("scheduler"), values.get("search_alg")):
            found = getattr(source, f"_{key}", None)
            if read.get(key) is None and isinstance(found, str):
                read[key] = found
    settings = {name: read[name] for name in read if read[name] is not None}
    if settings.get("mode") == MAX:
        del settings["mode"]
    elif "mode" in settings and "metric" not in settings:
        return {}, [changes(read, "of which metric the lowest is best, nothing says: give metric")]
    if "metric" in settings and (found := criterion(str(settings["metric"]))):
        settings["metric"] = found[1].here
    return settings, [taken(read, "of jaxrl.sweep")] if settings else []


def _population(
    scheduler: Any, mutations: Callable[[Mapping[str, Grid | Draw]], dict[str, Grid | Draw]]
) -> PopulationBasedTraining:
    """Tune's population-based training as ours."""
    if (unit := scheduler._time_attr) != "training_iteration":
        raise UsageError(f"scheduler: its time is {unit!r}; here it is training_iteration")
    kinds = dict(_mutations(scheduler._hyperparam_mutations.items()))
    return PopulationBasedTraining(
        hyperparam_mutations=mutations(kinds),
        perturbation_interval=int(scheduler._perturbation_interval),
        burn_in_period=int(scheduler._burn_in_period),
        quantile_fraction=scheduler._quantile_fraction,
        resample_probability=scheduler._resample_probability,
    )


def _mutations(pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Grid | Draw]]:
    for path, value in pairs:
        kind = grid_search(value) if isinstance(value, list | tuple) else None
        kind = _kind_of(path, value) if is_search(value) else kind
        if kind is None:
            raise UsageError(
                f"scheduler: hyperparam_mutations of {path}={brief(value)} must be a list, or "
                "Tune's choice, uniform, quniform, loguniform, randint or lograndint"
            )
        yield path, kind
