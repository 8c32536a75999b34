"""Tune's search spaces and schedulers, read as the arguments of `jaxrl.sweep`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.foreign_names import RESULTS, counterpart
from jaxrl.rllib.rows import Row, changes, given_of, harmless, taken
from jaxrl.sweeps.population_based_training import PopulationBasedTraining
from jaxrl.sweeps.space import DRAWS, Draw, Grid, choice, grid_search, values_of

KEYS = ("num_samples", "scheduler", "metric", "mode")  # of Tune's, which a sweep has too
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
}
# Gives the settings here of some of RLlib's values, by path.
Translate = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Searches(NamedTuple):
    """The several values that a configuration tries, by RLlib's paths."""

    kinds: dict[str, Grid | Draw]
    rows: list[Row]  # of what is drawn in no way that is known here

    @property
    def firsts(self) -> dict[str, Any]:
        """A value for each path: the first of a list, or the lower bound."""
        return {path: _ends(kind)[0] for path, kind in self.kinds.items()}


def is_search(value: Any) -> bool:
    """Returns whether this stands for several values, as Tune's `grid_search` and `choice` do."""
    is_grid = isinstance(value, Mapping) and set(value) == {"grid_search"}
    return is_grid or type(value).__module__.startswith("ray.tune.search")


def read_searches(values: Mapping[str, Any]) -> Searches:
    """The paths at which there are several values."""
    found = Searches({}, [])
    for path, value in _with_arguments(values):
        if not is_search(value):
            continue
        kind = _kind_of(path, value)
        if kind is None:
            hint = "grid_search, choice, uniform, loguniform and randint are known"
            found.rows.append(changes({path: value}, hint))
        else:
            found.kinds[path] = kind
    return found


def without_searches(values: Mapping[str, Any], searches: Searches) -> dict[str, Any]:
    """The values with one in place of each search; none where it is not known."""
    chosen = {path: value for path, value in values.items() if not is_search(value)}
    for path, value in searches.firsts.items():
        folder, _, name = path.rpartition("/")
        if folder == "env_config":
            chosen[folder] = {**chosen[folder], name: value}
        else:
            chosen[path] = value
    return chosen


def _with_arguments(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path, value) of all values, those of the environment's arguments as well."""
    for path, value in values.items():
        yield path, value
        if path == "env_config" and isinstance(value, Mapping):
            yield from ((f"{path}/{name}", part) for name, part in value.items())


def _kind_of(path: str, value: Any) -> Grid | Draw | None:
    """A grid or a draw of RLlib's values; None for one of Tune's that is not known here."""
    try:
        if isinstance(value, Mapping):
            return grid_search(value["grid_search"])
        if hasattr(value, "categories"):
            return choice(value.categories)
        sampler = type(value.get_sampler()).__name__.lstrip("_")
        name = SAMPLERS.get((type(value).__name__, sampler))
        return DRAWS[name](value.lower, value.upper) if name else None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _ends(kind: Grid | Draw) -> tuple:
    """Every value, or the two bounds."""
    values = values_of(kind)
    return kind.arguments if values is None else values


def space_of(searches: Searches, translate: Translate) -> dict[str, Grid | Draw]:
    """The space of a sweep, by the names of settings here."""
    found = [_translated(path, kind, translate) for path, kind in searches.kinds.items()]
    return {name: kind for name, kind in found if name}


def noted(row: Row, searches: Searches) -> Row:
    """A row that says so where its value is the first of several."""
    if searches.kinds.keys().isdisjoint(row.entries):
        return row
    several = "the first of several, which jaxrl.sweep tries"
    return row._replace(why="; ".join(filter(None, (row.why, several))))


def _translated(path: str, kind: Grid | Draw, translate: Translate) -> tuple[str, Grid | Draw]:
    """(the setting here, its values or bounds) of several of RLlib's values for one path.

    The name is empty if they are the same training here.
    """
    ends = _ends(kind)
    folder, _, argument = path.rpartition("/")
    if folder == "env_config":
        return f"env_args.{argument}", kind
    found = [_layers(translate({path: value})) for value in ends]
    names = [name for name in found[0] if any(layers[name] != found[0][name] for layers in found)]
    if len(ends) == 1:
        names = [name for name, value in found[0].items() if value == ends[0]][:1]
    if not names:
        return "", kind
    if len(names) > 1:
        raise UsageError(
            f"{path}: its values differ here in {', '.join(names)}, which a grid would combine; "
            "jaxrl.sweep(config, space) takes a list of values for each"
        )
    values = [layers[names[0]] for layers in found]
    if isinstance(kind, Grid):
        return names[0], grid_search(values)
    return names[0], DRAWS[kind.kind](*([values] if kind.kind == "choice" else values))


def _layers(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }


def sweep_settings(
    values: Mapping[str, Any], space: Mapping[str, Any], translate: Translate
) -> tuple[dict[str, Any], list[Row]]:
    """Tune's settings of its trials as arguments of `jaxrl.sweep`, and their rows."""
    settings, rows = {}, []
    if values.get("mode") == "min":
        rows.append(changes(given_of(values, "metric", "mode"), "the highest metric is best"))
    elif values.get("metric") is not None:
        found = counterpart(str(values["metric"]), RESULTS)
        settings["metric"] = found[1].here if found else values["metric"]
        rows.append(taken(given_of(values, "metric", "mode"), "of jaxrl.sweep"))
    number = values.get("num_samples") or 1
    if number != 1:
        is_drawn = any(isinstance(kind, Draw) for kind in space.values())
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
        settings["scheduler"] = _population(scheduler, translate)
        rows.append(taken({"scheduler": name}, "scheduler of jaxrl.sweep"))
    else:
        names = ["FIFOScheduler", *HALVING, "PopulationBasedTraining"]
        rows.append(changes({"scheduler": scheduler}, f"the schedulers are {', '.join(names)}"))
    return settings, rows


def _population(scheduler: Any, translate: Translate) -> PopulationBasedTraining:
    """Tune's population-based training as ours."""
    if (unit := scheduler._time_attr) != "training_iteration":
        raise UsageError(f"scheduler: its time is {unit!r}; here it is training_iteration")
    kinds = dict(_mutations(scheduler._hyperparam_mutations.items()))
    return PopulationBasedTraining(
        hyperparam_mutations=space_of(Searches(kinds, []), translate),
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
                "Tune's choice, uniform, loguniform or randint"
            )
        yield path, kind
