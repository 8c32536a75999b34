"""`jaxrl train` and its scripts: a training from the command line, new or resumed."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax

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
from jaxrl.cli.ending import ends_in_one_line, leave
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
from jaxrl.cli.saved_config import Source, check_flags_beside, config_from, source_in
from jaxrl.cluster.hosts import JOIN_SECONDS, THREE, check, join
from jaxrl.core import machine
from jaxrl.core.errors import TooManyFaults, UsageError, require
from jaxrl.core.fields import check_all, flag, only, setting
from jaxrl.core.plan import laid_out
from jaxrl.core.words import any_value, one_value, pairs, shown_as, text_of, written
from jaxrl.outside.ray_rollouts import RayEnded
from jaxrl.rllib.translation import Translation
from jaxrl.run import advice
from jaxrl.run.command_line import command, program
from jaxrl.run.devices import compile_cache
from jaxrl.run.health import Diverged
from jaxrl.run.logging.console import agent_returns, device_name, duration
from jaxrl.run.results import lookup, return_path
from jaxrl.run.settings import RunSettings
from jaxrl.run.stopping import LIMITS, check_goal, unmet
from jaxrl.run.storage.config_file import check_saved_parts
from jaxrl.run.storage.runs import CURVES, EPISODE, PAGE
from jaxrl.run.trainer import Trainer
from jaxrl.serving.external_env import GODOT, is_external
from jaxrl.serving.settings import GODOT_PORT, ServerSettings

SPACES = ("observation_space", "action_space")
ANY_SPACES = ("--observation-space", "Box(-1, 1, 1)", "--action-space", "Discrete(2)")


@written(one_value, None, False, "", ("-v", "-vv"))
def _verbose(name: str, value: Any) -> None:
    flag(name, value)


@dataclasses.dataclass(frozen=True)
class RunFlags(CompileFlags):
    """Flags of `jaxrl train` beside the settings of a configuration and those of a run."""

    algorithm: Any = ALGORITHM
    tuned: Any = TUNED
    rllib_config: Any = RLLIB_CONFIG
    ignore: Any = IGNORE
    stop_return: Any = setting(
        None,
        "stop when the mean return of the recent episodes reaches this; None: not by the return",
        shown_as("NUMBER"),
    )
    run_dir: Any = setting(
        "auto",
        "the run's folder, which must not exist yet; auto: runs/<env>/<time>-s<seed>; without it, "
        "--resume continues in the folder that it names",
        text_of("FOLDER"),
    )
    resume: Any = setting(
        None,
        "a run's folder, or one of its checkpoints, to resume; other flags change its settings",
        text_of("RUN"),
    )
    strict: bool = setting(
        False,
        "refuse to resume with settings that let a part of the state start from scratch",
        flag,
    )
    trust: bool = setting(
        False,
        "with --resume or --config RUN/config.json: import the code that the run names, though it "
        "is neither jaxrl's nor an installed plug-in's",
        flag,
    )
    quiet: bool = setting(False, "print nothing but mistakes", flag)
    verbose: bool = setting(
        False, "print a line for each chunk of iterations, about one a second", _verbose
    )
    profile: bool = setting(
        False, "measure at the end how long sampling and learning take in an iteration", flag
    )
    eager: bool = setting(
        False,
        "compile nothing, so that breakpoint() stops in environments, models and losses with their "
        "numbers; hundreds of times slower",
        flag,
    )
    watch: bool = setting(
        False, "open a page in the browser that shows the run while it trains", flag
    )
    observation_space: Any = setting(
        None,
        "of --env external or godot: 'Box(-1, 1, 4)', 'Discrete(5)', or {'agent1': Box(...), ...} "
        "for several agents",
        text_of("SPACE"),
    )
    action_space: Any = setting(
        None, "of --env external or godot, written as --observation-space", text_of("SPACE")
    )
    serve: Any = setting(
        (),
        "of --env external, settings of its policy server: port=9944 host=127.0.0.1 token_file=... "
        "and the other flags of jaxrl serve; of --env godot also godot_port=11008",
        any_value(pairs, "NAME=VALUE"),
    )
    coordinator: Any = setting(
        None,
        "several processes train together: HOST:PORT where process 0 waits for the others; auto: "
        "this, --num-processes and --process-id as SLURM or a cloud TPU says",
        text_of("HOST:PORT"),
    )
    num_processes: Any = setting(None, "how many processes train together", shown_as("N"))
    process_id: Any = setting(
        None, "the number of this process, from 0; process 0 logs and saves", shown_as("N")
    )
    join_seconds: Any = setting(
        JOIN_SECONDS, "how long the processes wait for each other at the start"
    )


RUN_FLAGS = flags_of(RunFlags())


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(RunFlags):
    """The options of a command line. `run_dir` "same" is that of the run to resume."""

    config: AlgorithmConfig
    source: str  # where the configuration's values come from, for people
    settings: dict[str, Any]  # of the run, those given
    table: str = ""  # what became of RLlib's configuration
    scenes: Any = None  # of --env godot: where they connect to

    @property
    def hosts(self) -> tuple[Any, ...] | None:
        """The coordinator, the number of processes, and which of them this is; None: one alone."""
        asked = tuple(getattr(self, name) for name in THREE)
        return None if asked == (None, None, None) else asked


def train_ppo(argv: Sequence[str] | None = None) -> None:
    """Train policies in one compiled program."""
    _train(sys.argv[1:] if argv is None else argv, "ppo")


def train_bc(argv: Sequence[str] | None = None) -> None:
    """Trains by behaviour cloning of recorded episodes; otherwise the same as `train_ppo`."""
    _train(sys.argv[1:] if argv is None else argv, "bc")


@ends_in_one_line("train", "stopped before the first result")
def _train(argv: Sequence[str], algorithm: str) -> None:
    started, trainer, is_broken_off = time.perf_counter(), None, False
    machine.limit_arenas()
    try:
        order = parse(argv, algorithm)
        if order.hosts:
            join(*order.hosts, seconds=order.join_seconds)
        plan = order.config.describe()
        # It may split the CPU into devices, so nothing may have asked for them before.
        trainer = begin(order)
        say, trainer.progress.is_verbose = trainer.progress.say, order.verbose
        # JAX lets process 0 alone write a cache.
        warn = {} if trainer.processes.is_leader else {"say": lambda line: None}
        compile_cache.use(order.compile_cache, **warn)
        device = device_name(trainer.settings.devices)
        where = [("settings", order.source), ("device", device), ("run folder", trainer.run_dir)]
        if order.resume and trainer.last_result is not None:
            iteration = trainer.lifetime.training_iteration
            where.append(("resumed", f"after iteration {iteration:,}"))
        say(f"{order.table}{plan}\n{laid_out(where)}")
        # Without --eager JAX_DISABLE_JIT decides.
        eager = jax.disable_jit() if order.eager else contextlib.nullcontext()
        with eager, _page(order, trainer):
            trainer.fit()
        if order.profile and not trainer.interrupt.heard:
            trainer.profile()
    except UsageError:
        if trainer is not None:
            trainer.stop()
        raise
    except Diverged as error:
        trainer.stop()
        sys.exit(f"{program('train')}: training has diverged: {error}")
    except (TooManyFaults, RayEnded) as error:
        trainer.stop()
        sys.exit(f"{program('train')}: {error}")
    except KeyboardInterrupt:
        is_broken_off = True
    if trainer is None or trainer.last_result is None:
        raise KeyboardInterrupt
    failed = trainer.stop()
    if not trainer.processes.is_leader:
        return
    whole = "since it was resumed" if order.resume else "in all"
    say(summary(trainer, f"{duration(time.perf_counter() - started)} {whole}"))
    if failed:
        sys.exit(f"{program('train')}: {failed}")
    if is_broken_off:
        leave(0)


def _page(order: TrainOptions, trainer: Trainer) -> contextlib.AbstractContextManager:
    """The page of the run while it trains, if it is asked for."""
    if not (order.watch and trainer.processes.is_leader):
        return contextlib.nullcontext()
    from jaxrl.cli.watching import shown_while_training

    return shown_while_training(trainer.run_dir, str(order.compile_cache), trainer.progress.say)


def train_flags(config: AlgorithmConfig | None = None, algorithm: str = "ppo") -> dict[str, Flag]:
    """The command's flags for a configuration, with its values as defaults.

    None: those for all algorithms of ours and the named one.
    """
    settings = every_flag(algorithm) if config is None else flags_of(config)
    run_settings = RunSettings(**({} if config is None else config.run_defaults))
    return {**settings, **flags_of(run_settings), **RUN_FLAGS}


def begin(order: TrainOptions) -> Trainer:
    trainer, settings = Trainer, order.settings
    if is_external(order.config.env):
        _require_serving()
        from jaxrl.serving.training import ExternalTrainer as trainer

        server = {"godot_port": GODOT_PORT} if order.config.env == GODOT else {}
        served = ServerSettings.named({**server, **dict(order.serve)})
        settings = {**settings, "server_settings": served, "scenes": order.scenes}
    elif order.serve:
        raise UsageError("--serve goes with --env external or godot")
    if order.resume is None:
        return trainer(order.config, run_dir=order.run_dir, quiet=order.quiet, **settings)
    where = {"run_dir": order.run_dir, "strict": order.strict, "trust": order.trust}
    where["quiet"] = order.quiet
    return trainer.from_checkpoint(order.resume, config=order.config, **where, **settings)


def parse(argv: Sequence[str], algorithm: str = "ppo") -> TrainOptions:
    """The options of a command line.

    Args:
        algorithm: where no flag names one.

    Raises:
        UsageError: in one line.
    """
    saved = source_in(argv, RUN_FLAGS)
    algorithm = saved.class_name() or named_in(argv, algorithm)
    flags = train_flags(algorithm=algorithm)
    options, run, settings = _by_kind(read_flags(given_flags(argv, flags), flags))
    scenes, saved_stop, table = _take_spaces(options, run, argv, algorithm), {}, ""
    translation = None if saved.copied else translation_of(run, {**options, **settings})
    if translation is not None:
        goal = {"stop_return": run["stop_return"]} if "stop_return" in run else {}
        source = f"RLlib's of {run['rllib_config']}" + _but({**options, **settings, **goal})
        config, settings, table = translation.config, translation.run_settings, f"{translation}\n"
        _check_alone(translation, run["rllib_config"])
        _check_flags(argv, config)
    elif saved.path is None:
        if "stop" in settings and is_in_rllibs_words(argv):
            settings["stop"] = results_here(settings["stop"])
        config, source = _new(argv, options, run, algorithm)
    else:
        check_flags_beside(saved, run)
        facts, source = saved.facts, f"those of {saved.path}"
        config = config_from(facts, options, settings, trust=saved.trust)
        if saved.resume:
            check_saved_parts(facts, settings, trust=saved.trust)
            saved_stop = unmet(facts["run_settings"].get("stop", {}), facts.get("result"))
        _check_flags(argv, config)
        config = config.replace(**options)
    goal = {return_path(config): run["stop_return"]} if "stop_return" in run else {}
    settings.update(_stop(settings, saved_stop, "total_env_steps" in options, goal))
    source += "" if table else _but({**options, **settings})
    RunSettings(**settings)
    asked = {"run_dir": "same" if saved.resume else "auto", **run}
    asked |= {"config": config, "source": source, "settings": settings, "table": table}
    return _checked(TrainOptions(**asked, scenes=scenes), run, saved)


def _check_alone(translation: Translation, path: str) -> None:
    """Refuses a configuration that stands for several trainings."""
    if translation.space:
        several = f"several values of {', '.join(translation.space)}"
    elif "seeds" in translation.sweep_settings:
        several = "several seeds"
    else:
        return
    raise UsageError(
        f"--rllib-config {path} tries {several}: jaxrl sweep --rllib-config trains them all"
    )


def _new(
    argv: Sequence[str], options: Mapping[str, Any], run: Mapping[str, Any], algorithm: str
) -> tuple[AlgorithmConfig, str]:
    """The configuration of a new run, and where the values come from that no flag gives."""
    tuned, note = run.get("tuned", True), ""
    if is_in_rllibs_words(argv):
        options, note = with_env_here(options)
    if set(HELP_FLAGS) & set(argv):  # it shows the values that the environment has by itself
        of_env = only(options, OF_THE_ENV)
        _check_flags(argv, config_of(of_env, tuned, algorithm)[0])
    _check_flags(argv, example(algorithm))
    config, source = config_of(options, tuned, algorithm)
    return config, "; ".join(filter(None, (note, source)))


def _check_flags(argv: Sequence[str], config: AlgorithmConfig) -> None:
    """Shows help if it is asked for; refuses the flags of other algorithms."""
    show_help(argv, train_flags(config), program("train"), train_ppo.__doc__)
    given_flags(argv, train_flags(config))


def _by_kind(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The given flags as (the configuration's settings, `RUN_FLAGS`, `RunSettings`)."""
    options, run, settings = {}, {}, {}
    for name, value in values.items():
        if name in RUN_FLAGS:
            kind = run
        else:
            kind = settings if name in RunSettings.__dataclass_fields__ else options
        kind[name] = value
    return options, run, settings


def _checked(order: TrainOptions, run: Mapping[str, Any], saved: Source) -> TrainOptions:
    """Returns `order`; refuses flags of `run` that do not go together."""
    if order.hosts:
        check(*order.hosts, order.join_seconds)
    elif "join_seconds" in run:
        raise UsageError(f"--join-seconds goes with {', '.join(map(flag_name, THREE))}")
    check_all(order)
    if order.profile and order.hosts:
        raise UsageError(
            "--profile measures one process alone: leave it out where several train together"
        )
    if order.profile and (order.eager or jax.config.jax_disable_jit):
        raise UsageError(
            "--profile measures compiled programs: leave out --eager, and unset JAX_DISABLE_JIT"
        )
    if order.strict and saved.resume is None:
        raise UsageError("--strict goes with --resume RUN")
    if order.trust and saved.path is None:
        raise UsageError("--trust goes with --resume RUN or --config RUN/config.json")
    if order.watch and order.run_dir is None:
        raise UsageError("--watch shows what the run's folder holds: leave out --run-dir None")
    if order.quiet and order.verbose:
        raise UsageError("--quiet prints less and --verbose more: give one of the two")
    return order


def _take_spaces(
    options: dict[str, Any], run: dict[str, Any], argv: Sequence[str], algorithm: str
) -> Any:
    """Makes the spaces of `--env external` and `godot` arguments of the environment.

    Returns:
        Where scenes connect to, if the first one was waited for, to tell its spaces.
    """
    scenes, spaces = None, {name: run.pop(name) for name in SPACES if name in run}
    if options.get("env") == "godot":
        options["env"] = GODOT
        if not spaces and "resume" not in run and not set(HELP_FLAGS) & set(argv):
            parse([*argv, *ANY_SPACES], algorithm)  # refuses bad settings before it waits
            port = ServerSettings.named(run.get("serve", {})).godot_port
            scenes, spaces = first_scene(port, quiet=run.get("quiet", False))
    if spaces:
        options["env_args"] = {**options.get("env_args", {}), **spaces}
    return scenes


def first_scene(port: int | None, *, quiet: bool) -> tuple[Any, dict[str, str]]:
    """The port for scenes of Godot RL Agents, and the first one's spaces; waits for that scene."""
    _require_serving()
    from jaxrl.serving.godot import Scenes

    scenes = Scenes(GODOT_PORT if port is None else port)
    if not quiet:
        print(f"waiting for a scene on port {scenes.port}: press PLAY in Godot", flush=True)
    return scenes, scenes.first().form.space_texts


def _require_serving() -> None:
    for package in ("msgspec", "websockets"):
        require(package, "--env external", "'jaxrl[serving]'")


def _but(changes: Mapping[str, Any]) -> str:
    """The settings that differ from their source, for people."""
    shown = [
        f"{name}={value}" for name, value in changes.items() if name not in ("env", "env_args")
    ]
    return ", but " + ", ".join(shown) if shown else ""


def _stop(
    settings: Mapping[str, Any],
    saved: Mapping[str, float],
    new_length: bool,
    goal: Mapping[str, Any],
) -> dict[str, dict[str, float]]:
    """The setting `stop`, if flags change it.

    Args:
        settings: those that flags give.
        saved: the criteria of the run that is resumed.
        new_length: whether a flag says how many steps to train, which limits of the saved run must
            not cut short.
        goal: {the return's path: its value to stop at, or None}, if a flag says it.
    """
    stop = settings.get(
        "stop",
        {name: least for name, least in saved.items() if not (new_length and name in LIMITS)},
    )
    for least in goal.values():
        check_goal("stop_return", least)
    stop = {name: least for name, least in {**stop, **goal}.items() if least is not None}
    return {} if stop == saved else {"stop": stop}


def summary(trainer: Trainer, lasted: str) -> str:
    """The end of a run: the return and its spread, the time, and where things are."""
    result = trainer.last_result
    episodes = result.get("env_runners", {})
    lines = []
    if "episode_return_mean" in episodes:
        by_agent = agent_returns(episodes["agent_episode_returns_mean"])
        window = min(
            trainer.config.metrics_num_episodes_for_smoothing, episodes["num_episodes_lifetime"]
        )
        what = (
            f"return {episodes['episode_return_mean']:.2f} over the last "
            f"{max(window, episodes['num_episodes'])} episodes "
            f"(from {episodes['episode_return_min']:.2f} to {episodes['episode_return_max']:.2f})"
            + (f": {by_agent}" if by_agent else "")
        )
        lines.append((None, what))
    elif (mean := lookup(result, return_path(trainer.config))) is not None:
        lines.append((None, f"return {mean:.2f} in the last evaluation"))
    elif not trainer.config.is_offline:
        lines.append((None, "no episode has ended"))
    steps, training = result["num_env_steps_sampled_lifetime"], result["time_total_s"]
    what = (
        f"{steps:,} steps in {duration(training)} of training ({steps / training:,.0f} steps/s), "
        f"{lasted}, {trainer.compile_seconds:.1f} s of it compiling"
    )
    lines.append((None, what))
    if trainer.run_dir is not None:
        here = trainer.run_dir
        finished = trainer.lifetime.num_env_steps >= trainer.config.total_env_steps
        more = (flag_name("total_env_steps"), 2 * steps) if finished else ()
        pictures = [name for name in (CURVES, EPISODE, PAGE) if (here / name).exists()]
        lines += [("look at", here / name) for name in pictures]
        if is_external(trainer.config.env):
            lines.append(("serve", command("serve", here)))
            more = (*more, *trainer.server_settings.flags)
        else:
            lines.append(("evaluate", advice.to_evaluate(here, trainer.facts)))
        lines.append(("resume", advice.to_resume(here, trainer.facts, *more)))
    return laid_out(lines)
