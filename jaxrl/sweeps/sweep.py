"""`sweep`: what was asked for, checked, planned and handed on to be trained."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import count, file_path, flag, takes, text
from jaxrl.core.machine import num_cores
from jaxrl.core.plan import labelled
from jaxrl.play.load import CONFIG
from jaxrl.run.devices.mesh import split_cpu, start_jax
from jaxrl.run.logging.console import Progress
from jaxrl.run.results import return_path
from jaxrl.run.storage import checkpoint, runs
from jaxrl.run.storage.config_file import (
    check_names,
    check_saved_parts,
    read_config,
)
from jaxrl.sweeps.options import SweepOptions
from jaxrl.sweeps.outcomes import MAX
from jaxrl.sweeps.population_based_training import PopulationBasedTraining
from jaxrl.sweeps.results import Sweep
from jaxrl.sweeps.saved_sweep import called_damaged, read_plan
from jaxrl.sweeps.scheduler import Scheduler
from jaxrl.sweeps.search import Search, batch_of, check_optuna, check_settings
from jaxrl.sweeps.search_run import SearchRun, first_trials
from jaxrl.sweeps.separate_runs import SeparateRuns
from jaxrl.sweeps.space import as_space, kinds_of, settings_of
from jaxrl.sweeps.sweep_folder import SweepFolder, to_resume
from jaxrl.sweeps.trials import Trial, held_outside, members_of, seeds_of, trials_of, unreached

MOST_VIRTUAL = 8  # devices that a CPU of fewer cores counts as, for trying things out


class OneTrial(UsageError):
    """A sweep of one trial was asked for."""


@takes(
    metric=text("a path in the result tree", optional=True),
    run_dir=file_path("a folder's path", optional=True),
    quiet=flag,
)
def sweep(
    config: AlgorithmConfig,
    space: Mapping[str, Any] | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    num_samples: int = 1,
    search: str | None = None,
    trials: int | None = None,
    stop: Mapping[str, float] | None = None,
    metric: str | None = None,
    mode: str = MAX,
    halving: int | None = None,
    scheduler: PopulationBasedTraining | None = None,
    devices: int | str = "auto",
    batch_size: int | str = "auto",
    run_dir: str | Path | None = "auto",
    quiet: bool = False,
    **run_settings: Any,
) -> Sweep:
    """Trains every combination of settings with every seed; one program for those of equal shape.

    Trials whose environment runs outside JAX are separate runs, one after the other.

    Args:
        config: a configuration such as `PPOConfig`; what every trial has in common.
        space: {setting: values}. A setting is one of the configuration's (`lr`), of a policy's
            (`pol1.lr`) or an argument of the environment (`env_args.width`); a list of values is a
            grid, `jaxrl.uniform`, `quniform`, `loguniform`, `randint`, `lograndint` and `choice`
            draw one, `num_samples` times. A policy's own value (`per_policy`, or `pol1.lr`) wins
            over the value for all policies: a setting that every trained policy has its own value
            of is refused.
        seeds: how many of each, from the configuration's own upwards, or a list of seeds.
        search: "tpe": Optuna proposes the settings, in batches, from the scores of those before
            (`pip install "jaxrl[optuna]"`); a grid is a choice then. None: all are drawn at first.
        trials: how many settings a search tries, each with every seed.
        stop: {path in the result tree: least value}: a trial ends in the iteration that reached it.
        metric: what ranks the trials, a path in the result tree. None: the return of recent
            episodes, or of evaluation where training plays none.
        mode: "max": the highest metric is the best; "min": the lowest.
        halving: keep the best 1 in so many at each rung, 1 / halving of the steps after the one
            before; None: all train to the end.
        scheduler: `jaxrl.PopulationBasedTraining(...)`: the trials are one population, of which the
            worst copy the best at intervals; a number of `seeds` then gives each member its own.
        devices: that programs are shared out over, or the members of one; "auto": all, a CPU's
            cores as well.
        batch_size: members that train at once; "auto": as many as fit. Of a search also how many a
            batch has; "auto": an eighth of all.
        run_dir: the sweep's folder, which must not exist yet; "auto": `runs/<env>/<time>-sweep`;
            None: nothing is kept.
        **run_settings: how each trial is evaluated (`evaluation_interval=50` and the like) and
            logged (`loggers`, by default "jsonl"), as of a `Trainer`: see `RunSettings`. Outside
            JAX also `workers`, `sync`, `env_step_timeout_s` and `max_consecutive_faults`.

    Returns:
        The outcomes of all finished trials; after Ctrl-C those of the batches that were done.

    Raises:
        UsageError: settings that cannot work, before any compiling; or members too large even one
            at a time.
    """
    if not isinstance(config, AlgorithmConfig):
        raise UsageError(
            f"sweep takes a configuration such as PPOConfig(env='arena'), not {brief(config)}"
        )
    if isinstance(scheduler, PopulationBasedTraining):
        scheduler, space = scheduler.with_space(space)
    numbers = seeds, num_samples, batch_size
    searched = _search_of(config, space, search, trials, numbers, mode)
    if searched is None:
        drawn = settings_of(space, num_samples, config.seed)
        planned, warnings = _plan_trials(config, drawn, seeds, scheduler is not None)
    else:
        planned = first_trials(config, searched)
        warnings = unreached(config, planned[0].settings)
    if not isinstance(stop, Mapping | None):
        raise UsageError(f"stop={brief(stop)} must be {{path in the result tree: least value}}")
    stop = {path: least for path, least in (stop or {}).items() if least != math.inf}
    metric = return_path(config) if metric is None else metric
    run_settings = {**config.run_defaults, **run_settings}
    devices = devices_for(planned, devices)
    settled = settled_devices(devices)
    order = SweepOptions(
        *(metric, stop, halving, scheduler, searched, settled, batch_size, run_settings),
        mode=mode,
    )
    # "auto" stays so: it may be resumed where there are others.
    asked = {**order.to_dict(), "devices": devices}
    begin = lambda: SweepFolder.begin(run_dir, config, planned, asked)
    return train(config, planned, order, quiet, begin, warnings)


def _search_of(
    config: AlgorithmConfig,
    space: Mapping[str, Any] | None,
    method: str | None,
    trials: int | None,
    counts: tuple[int | Sequence[int], int, int | str],
    mode: str,
) -> Search | None:
    """The search that was asked for, if one was.

    Args:
        counts: the arguments seeds, num_samples and batch_size.
    """
    seeds, num_samples, batch_size = counts
    if method is None:
        if trials is not None:
            raise UsageError(f'trials={brief(trials)} goes with search="tpe"; see also num_samples')
        return None
    if trials is None:
        raise UsageError(f"search={brief(method)} takes a number of trials, such as trials=64")
    count(2)("trials", trials)
    if not (isinstance(batch_size, str) and batch_size == "auto"):
        count()("batch_size", batch_size)
    if num_samples != 1:
        raise UsageError(
            f"num_samples={brief(num_samples)} draws settings, search={brief(method)} proposes "
            "them: give trials"
        )
    numbers = tuple(seeds_of(config, seeds))
    found = Search(
        method=method,
        trials=trials,
        batch=batch_of(trials, len(numbers), batch_size),
        space=kinds_of(as_space(space)),
        seeds=numbers,
        seed=config.seed,
        mode=mode,
    )
    check_optuna()
    return found


def _plan_trials(
    config: AlgorithmConfig,
    drawn: list[dict[str, Any]],
    seeds: int | Sequence[int],
    is_population: bool,
) -> tuple[list[Trial], list[str]]:
    """(trials, warnings) of the settings that were drawn.

    Repeated settings are left out, except in a population, whose members change theirs.

    Raises:
        OneTrial: there is nothing to compare.
    """
    if is_population:
        return members_of(config, drawn, seeds), unreached(config, drawn[0])
    settings = list({repr(combination): combination for combination in drawn}.values())
    trials = trials_of(config, settings, seeds)
    if len(trials) == 1:
        raise OneTrial(_nothing_to_sweep(trials[0]))
    warnings = unreached(config, drawn[0])
    if repeated := len(drawn) - len(settings):
        warnings.append(
            f"{repeated} of {len(drawn)} samples repeat settings drawn before and are left out"
        )
    return trials, warnings


@takes(config=CONFIG, quiet=flag, trust=flag)
def resume_sweep(
    path: str | Path, *, config: Any = None, quiet: bool = False, trust: bool = False
) -> Sweep:
    """Continues an interrupted sweep: finished trials stay, others start again; with halving, all.

    A population goes on from its last checkpoint, equal to the bit. So does a trial that is a run
    of its own, with new episodes.

    Args:
        config: the configuration, only where its file cannot hold it (an environment object, say).
        trust: import what the sweep names, though it is not jaxrl's or an installed plug-in's; see
            docs/loading.md.

    Raises:
        UsageError: no sweep's folder, a damaged one, or one whose configuration no file can hold.
    """
    store, plan = SweepFolder.again(path)
    try:
        with called_damaged(store.path):
            if config is None:
                config = read_config(plan, "jaxrl.resume_sweep", trust=trust)
            for saved in plan["trials"]:
                check_names(type(config), saved["settings"], trust=trust)
            loggers = plan["run_settings"].get("loggers", ())
            lost = [entry["object"] for entry in loggers if isinstance(entry, dict)]
            if lost:
                named_loggers = [entry for entry in loggers if not isinstance(entry, dict)]
                plan["run_settings"]["loggers"] = named_loggers
            check_saved_parts(plan, trust=trust)
            trials = []
            for number, saved in enumerate(plan["trials"]):
                (trial,) = trials_of(config, [saved["settings"]], [saved["seed"]])
                trials.append(dataclasses.replace(trial, number=number))
            if plan["scheduler"] is not None:
                plan["scheduler"] = PopulationBasedTraining.from_dict(plan["scheduler"])
            if plan["search"] is not None:
                plan["search"] = Search.from_dict(plan["search"])
                check_settings(plan["search"], [saved["settings"] for saved in plan["trials"]])
            order = SweepOptions(
                **{name: plan[name] for name in SweepOptions.__dataclass_fields__ if name in plan}
            )
            saved, here = order.devices, settled_devices(order.devices, or_fewer=True)
            order = dataclasses.replace(order, devices=here)
        fewer = f"the sweep had devices={saved}, JAX has {here} here: it continues over {here}"
        warnings = [] if saved in ("auto", here) else [fewer]
        if lost:
            warnings.append(f"left out: loggers {', '.join(lost)}, which no file can name")
        return train(config, trials, order, quiet, lambda: store, warnings)
    finally:
        store.close()


def train(
    config: AlgorithmConfig,
    trials: list[Trial],
    order: SweepOptions,
    quiet: bool,
    open_store: Callable[[], SweepFolder],
    warnings: Sequence[str] = (),
) -> Sweep:
    """Checks what is still to be checked, and trains what is not finished yet."""
    progress = Progress(quiet=quiet)
    separate = held_outside(trial.config for trial in trials)
    make_run = SeparateRuns if separate else Scheduler
    if order.search is None:
        running = make_run(trials, order, progress)
    else:
        running = SearchRun(trials, order, progress, config, make_run)
    for warning in warnings:
        progress.say(f"warning: {warning}")
    store = open_store()
    done = running.run(store)
    done.outcomes.sort(key=lambda outcome: outcome.trial.number)
    store.draw(done, progress.say)
    if running.interrupt.heard:
        finished = f"{len(done.outcomes)} of {len(running.trials)} trials are finished and kept"
        progress.say(f"stopped; {finished}")
        if store.path is not None and len(done.outcomes) < len(running.trials):
            progress.say(labelled("resume", to_resume(store.path)))
    return done


def saved_devices(path: str | Path) -> Any:
    """The `devices` that the sweep in a folder was asked for."""
    return read_plan(runs.resolve(checkpoint.run_path(path), (runs.PLAN,)))["devices"]


def _nothing_to_sweep(trial: Trial) -> str:
    values = "".join(f", {name}={value!r}" for name, value in trial.settings.items())
    return (
        f"nothing to sweep: this is one trial{values}, seed={trial.config.seed}. "
        "Give lists of several values such as "
        '{"lr": [3e-4, 1e-3]}, or seeds=8, '
        "or draws such as jaxrl.loguniform(1e-5, 1e-2) with num_samples=8; "
        "Trainer(config).fit() is a single training"
    )


def devices_for(trials: Sequence[Trial], devices: int | str) -> int | str:
    """The given devices; one where trials are separate runs.

    Raises:
        UsageError: such trials were to share several.
    """
    name = held_outside(trial.config for trial in trials)
    if name and devices not in ("auto", 1):
        raise UsageError(f"devices={brief(devices)}: {name} trains on one device; choose devices=1")
    return 1 if name else devices


def settled_devices(devices: int | str, or_fewer: bool = False) -> int:
    """The number of devices for the members; a CPU is split into its cores if it still can be.

    Args:
        or_fewer: take what there is where there are fewer, instead of a UsageError.
    """
    if not (isinstance(devices, str) and devices == "auto"):
        count()("devices", devices)
    if jax.config.jax_disable_jit:
        raise UsageError(
            "JAX_DISABLE_JIT is set, but trials train in compiled programs: unset it; a Trainer "
            "trains without compiling"
        )
    split_cpu(num_cores() if devices == "auto" else min(devices, max(MOST_VIRTUAL, num_cores())))
    start_jax()
    available = len(jax.devices())
    if devices != "auto" and devices > available and not or_fewer:
        raise UsageError(
            f"devices={devices}: JAX has {available} here; choose devices={available} or fewer"
        )
    return available if devices == "auto" else min(devices, available)
