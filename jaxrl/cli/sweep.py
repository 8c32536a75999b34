"""`jaxrl sweep` and `scripts/sweep.py`: many trainings from one command line."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.cli.algorithms import (
    ALGORITHM,
    OF_THE_ENV,
    TUNED,
    config_of,
    every_flag,
    example,
    named_in,
)
from jaxrl.cli.ending import ends_in_one_line
from jaxrl.cli.flags import (
    CompileFlags,
    Flag,
    flag_name,
    flags_of,
    given_flags,
    read_flags,
)
from jaxrl.cli.help import HELP_FLAGS, show_help
from jaxrl.cli.rllib_file import (
    IGNORE,
    RLLIB_CONFIG,
    is_in_rllibs_words,
    results_here,
    translation_of,
    with_env_here,
)
from jaxrl.cli.saved_config import check_flags_beside, config_from, source_in
from jaxrl.core.errors import UsageError, one_line
from jaxrl.core.fields import flag, one_of, only, setting
from jaxrl.core.plan import labelled, laid_out
from jaxrl.core.words import any_value, shown_as, text_of
from jaxrl.run import advice
from jaxrl.run.command_line import command, program
from jaxrl.run.devices import compile_cache
from jaxrl.run.logging.console import duration, print_answer
from jaxrl.run.results import return_path
from jaxrl.run.settings import RunSettings, stop_criteria
from jaxrl.run.stopping import check_goal
from jaxrl.run.storage import run_folder
from jaxrl.sweeps.options import TRIAL_SETTINGS
from jaxrl.sweeps.outcomes import MAX, MIN, TrialResult, shown
from jaxrl.sweeps.population_based_training import PopulationBasedTraining
from jaxrl.sweeps.results import Sweep
from jaxrl.sweeps.space import DRAWS, GRID, RANDOM, disjoint, draws_of, grid_of
from jaxrl.sweeps.sweep import OneTrial, resume_sweep, saved_devices, settled_devices, sweep
from jaxrl.sweeps.trials import held_outside

OF_THE_BASE = ("algorithm", "tuned", "rllib_config", "ignore")  # flags of the configuration to vary
BESIDE_RESUME = ("trust", "quiet", "compile_cache")  # flags
MOST_STRETCHES = 8  # of a lineage that are printed


@dataclasses.dataclass(frozen=True)
class SweepFlags(CompileFlags):
    """Flags of `jaxrl sweep` beside the settings of a configuration and of its trials."""

    algorithm: Any = ALGORITHM
    tuned: Any = TUNED
    rllib_config: Any = RLLIB_CONFIG
    ignore: Any = IGNORE
    grid: Any = setting(
        (),
        "settings and the values to try, such as lr=1e-4,1e-3; a list is written [64,64]",
        any_value(grid_of, GRID),
    )
    random: Any = setting(
        (),
        f"settings and draws ({', '.join(DRAWS)}), as in lr=loguniform:1e-5:1e-2",
        any_value(draws_of, RANDOM),
    )
    num_samples: Any = setting(1, "how often the grid is tried, each time with new draws")
    search: Any = setting(
        None, "tpe: Optuna proposes settings; None: all are drawn at first", text_of("tpe")
    )
    trials: Any = setting(None, "settings that --search tries; None: no search", shown_as("N"))
    seeds: Any = setting(1, "seeds of each setting, from --seed upwards")
    metric: Any = setting(
        None,
        "what ranks the trials, a path in the result tree; None: the return",
        shown_as("PATH"),
    )
    mode: str = setting(MAX, "whether the highest metric is best, or the lowest", one_of(MAX, MIN))
    halving: Any = setting(
        None, "keep the best 1 in so many at each rung; None: all train to the end", shown_as("N")
    )
    batch_size: Any = setting(
        "auto", "trials that train at once; auto: as many as fit", shown_as("N")
    )
    pbt: bool = setting(
        False,
        "population-based training: at intervals the worst trials copy the best, see the flags "
        "--perturbation-interval to --burn-in-period",
        flag,
    )
    stop: Any = setting(
        (), "what ends a trial before its steps do: a result and its least value", stop_criteria
    )
    stop_return: Any = setting(
        None,
        "end a trial when the mean return of its recent episodes reaches this",
        shown_as("NUMBER"),
    )
    devices: Any = setting(
        "auto",
        "devices for the programs, or for the trials of one; auto: all, of a CPU its cores",
        shown_as("N"),
    )
    run_dir: Any = setting(
        "auto",
        "the sweep's folder, which must not exist yet; auto: runs/<env>/<time>-sweep",
        text_of("FOLDER"),
    )
    resume: Any = setting(
        None,
        "a sweep's folder to resume; takes no other flags but "
        + ", ".join(map(flag_name, BESIDE_RESUME)),
        text_of("SWEEP"),
    )
    quiet: bool = setting(False, "print nothing but mistakes", flag)
    trust: bool = setting(
        False,
        "with --resume or --config RUN/config.json: import the code that these name, though it is "
        "neither jaxrl's nor an installed plug-in's",
        flag,
    )


PBT_FLAGS = flags_of(PopulationBasedTraining())
OF_TRIALS = flags_of(RunSettings(loggers="jsonl"))
SWEEP_FLAGS = {
    **flags_of(SweepFlags()),
    **PBT_FLAGS,
    **{name: OF_TRIALS[name] for name in TRIAL_SETTINGS},
}
NOTHING_TO_SWEEP = (
    "nothing to sweep, this is one trial: give several values in --grid lr=3e-4,1e-3, --random "
    "lr=loguniform:1e-5:1e-2 --num-samples 8, or --seeds 8; `jaxrl train` is a single training"
)


def sweep_flags(config: AlgorithmConfig | None = None, algorithm: str = "ppo") -> dict[str, Flag]:
    """The command's flags; see `train_flags`."""
    return {**(every_flag(algorithm) if config is None else flags_of(config)), **SWEEP_FLAGS}


def run_sweep(argv: Sequence[str] | None = None) -> None:
    """Train every combination of settings with several seeds, a program for each shape."""
    words = list(sys.argv[1:] if argv is None else argv)
    with ends_in_one_line("sweep", "stopped; the finished trials are kept"):
        try:
            done, is_quiet = _sweep(words)
        except OSError as error:  # of what could not be written
            sys.exit(f"{program('sweep')}: {one_line(error)}; --resume trains what is missing")
    if not is_quiet:
        print_answer(summary(done))


def _sweep(argv: list[str]) -> tuple[Sweep, bool]:
    """(what was trained, whether nothing is to be printed)."""
    saved = source_in(argv, SWEEP_FLAGS)
    path, trust = saved.resume, saved.trust
    algorithm = (saved.class_name() if saved.copied else None) or named_in(argv, "ppo")
    flags = sweep_flags(algorithm=algorithm if path is None else "ppo")
    texts = given_flags(argv, flags)
    options = read_flags(texts, flags)
    sweep_options = {name: options.pop(name) for name in list(options) if name in SWEEP_FLAGS}
    cache = sweep_options.pop("compile_cache", "auto")
    for name in ("resume", "trust"):  # read already
        sweep_options.pop(name, None)
    base_names = [name for name in OF_THE_BASE if name in sweep_options]
    of_the_base = {name: sweep_options.pop(name) for name in base_names}
    if path is not None:
        if extra := [name for name in texts if name not in ("resume", *BESIDE_RESUME)]:
            raise UsageError(f"--resume continues the sweep as it was: it takes no {extra[0]}")
        # Before the cache's test, which computes something.
        settled_devices(saved_devices(path), or_fewer=True)
        compile_cache.use(cache)
        is_quiet = sweep_options.get("quiet", False)
        return resume_sweep(path, trust=trust, quiet=is_quiet), is_quiet
    if trust and saved.copied is None:
        raise UsageError("--trust goes with --resume SWEEP or --config RUN/config.json")
    tried, tuned = tried_of(sweep_options), of_the_base.get("tuned", True)
    if set(HELP_FLAGS) & set(argv):  # it shows the values that the environment has by itself
        of_env = only(options, OF_THE_ENV)
        base, _ = config_of(of_env, tuned, algorithm)
        show_help(argv, sweep_flags(base), program("sweep"), run_sweep.__doc__)
    given_flags(argv, sweep_flags(example(algorithm)))  # refuses those of other algorithms
    translation = None if saved.copied else translation_of(of_the_base, options)
    if saved.copied:
        check_flags_beside(saved, of_the_base)
        config = config_from(saved.facts, options, {}, trust=trust).replace(**options)
    elif translation is None:
        if is_in_rllibs_words(argv):
            options, note = with_env_here(options)
            _say(note, sweep_options)
        config, _ = config_of(options, tuned, algorithm, tried)
    else:
        _say(translation, sweep_options)
        translation.check_for_a_sweep()
        config, tried = translation.config, {**translation.space, **tried}
        sweep_options = {**translation.sweep_settings, **sweep_options}
    stop = dict(sweep_options.pop("stop", {}))
    if translation is not None or is_in_rllibs_words(argv):
        stop = results_here(stop)
    if (goal := sweep_options.pop("stop_return", None)) is not None:
        check_goal("stop_return", goal)
        stop[return_path(config)] = goal
    if (scheduler := scheduler_of(sweep_options)) is not None:
        sweep_options["scheduler"] = scheduler
    if not held_outside([config]):
        settled_devices(sweep_options.get("devices", "auto"))
    compile_cache.use(cache)
    try:
        return sweep(config, tried, stop=stop, **sweep_options), sweep_options.get("quiet", False)
    except OneTrial:
        raise UsageError(NOTHING_TO_SWEEP) from None


def _say(what: object, options: dict[str, Any]) -> None:
    """Prints what became of RLlib's words, if there is something and nobody asked for quiet."""
    if str(what) and not options.get("quiet"):
        print(what)


def scheduler_of(options: dict[str, Any]) -> PopulationBasedTraining | None:
    """The scheduler for --pbt and its flags, which are taken out of `options`."""
    asked = {name: options.pop(name) for name in PBT_FLAGS if name in options}
    by_population = options.pop("pbt", False)
    flag("pbt", by_population)
    if asked and not by_population:
        raise UsageError(f"{flag_name(next(iter(asked)))} goes with --pbt")
    return PopulationBasedTraining(**asked) if by_population else None


def tried_of(options: dict[str, Any]) -> dict[str, Any]:
    """The values to try from --grid and --random together, which are taken out of `options`."""
    grid, draws = options.pop("grid", {}), options.pop("random", {})
    return disjoint(grid, draws, "--grid and in --random")


def _to_evaluate(best: TrialResult) -> str:
    try:
        return advice.to_evaluate(best.folder, run_folder.read(Path(best.folder)))
    except UsageError:  # its folder is gone, or damaged: the command says so
        return command("evaluate", best.folder)


def lineage_lines(done: Sweep, best: TrialResult) -> list[str]:
    """The numbers that the best policy of a population was trained with, a line for each stretch.

    The first and the last few where there are many.
    """
    if done.lineage is None:
        return []
    stretches = done.lineage_of(best)
    lines = [
        f"  {part.begin + 1:,} to {part.end:,}, trial {part.trial:04d}: {shown(part.settings)}"
        for part in stretches
    ]
    if len(lines) > MOST_STRETCHES:
        left_out = len(lines) - MOST_STRETCHES + 1
        lines[1 : 1 + left_out] = [f"  ... {left_out} more, see lineage_of(best_trial())"]
    copies = f"{len(done.lineage.takeovers):,} copies in all"
    return [labelled("lineage", f"of its policy, by iterations ({copies}):"), *lines]


def summary(done: Sweep) -> str:
    """The end of a sweep: its tables and where things are."""
    if not done.outcomes:
        return "no trial is finished"
    parts = [done.table(), done.statistics_table()]
    steps = sum(
        outcome.result["num_env_steps_sampled_lifetime"]
        for outcome in done.outcomes
        if outcome.result
    )
    if done.seconds:
        parts.append(
            f"{len(done.outcomes):,} trials, {steps:,} environment steps; "
            f"this time {duration(done.whole_seconds)}: {duration(done.seconds)} of training, "
            f"{done.compile_seconds:.1f} s of compiling, programs added up"
        )
    if done.folder is not None and any(outcome.score is not None for outcome in done.outcomes):
        best = done.best_trial()
        lines = [("best trial", f"{best.trial.name}, {best.score:.2f}")]
        lines += [(None, line) for line in lineage_lines(done, best)]
        if text := done.best_setting_text():
            lines.append(("best setting", text))
        parts.append(laid_out([*lines, ("evaluate", _to_evaluate(best))]))
    return "\n\n".join(part for part in parts if part)
