"""`scripts/train_ppo.py`: a training from the command line, begun or gone on with."""

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from jaxrl.cli.flags import Flag, find_modules_here, flag_name, flags_of, given_flags, setting_of, show_help
from jaxrl.core.errors import UsageError
from jaxrl.ppo.config import PPOConfig
from jaxrl.run import folder, resume
from jaxrl.run.console import device_name, duration
from jaxrl.run.health import Diverged
from jaxrl.run.results import Result
from jaxrl.run.settings import RunSettings
from jaxrl.run.trainer import Trainer

NOT_FLAGS = ("optimizer",)  # a function: for notebooks
RUN_FLAGS = {
    "tuned": Flag("begin with the environment's tuned settings; False: with RLlib's defaults", True),
    "stop_return": Flag("stop when the mean return of the recent episodes reaches this", None),
    "run_dir": Flag("the run's folder, which must not exist yet; auto: runs/<env>/<time>-s<seed>", "auto"),
    "resume": Flag("a run's folder, or one of its checkpoints, to go on with; other flags change its settings", None),
}
RETURN = "env_runners/episode_return_mean"


@dataclasses.dataclass(frozen=True)
class Order:
    """What a command line asks for."""

    config: PPOConfig
    source: str  # where the configuration's values come from, for people
    settings: dict[str, Any]  # of the run, those given
    run_dir: str | None
    resume: str | None = None


def train_ppo(argv: Sequence[str] | None = None) -> None:
    """Train policies with PPO in one compiled program."""
    started, trainer = time.perf_counter(), None
    find_modules_here()
    try:
        order = parse(sys.argv[1:] if argv is None else argv)
        plan = order.config.describe()
        trainer = begin(order)
        say = trainer.progress.say
        say(f"{plan}\nsettings     {order.source}\ndevice       {device_name()}\nrun folder   {trainer.run_dir}")
        if order.resume:
            say(f"resumed      after iteration {trainer.lifetime.training_iteration:,}")
        trainer.fit()
    except UsageError as error:
        print(f"train_ppo.py: {error}", file=sys.stderr)
        sys.exit(2)
    except Diverged as error:
        trainer.stop()
        sys.exit(f"train_ppo.py: training has diverged: {error}")
    except KeyboardInterrupt:
        pass
    if trainer is None or trainer.last_result is None:
        sys.exit("train_ppo.py: stopped before the first result")
    failed = trainer.stop()
    say(summary(trainer, trainer.last_result, time.perf_counter() - started))
    if failed:
        sys.exit(f"train_ppo.py: {failed}")


def begin(order: Order) -> Trainer:
    if order.resume is None:
        return Trainer(order.config, run_dir=order.run_dir, **order.settings)
    run_dir = "same" if order.run_dir == "auto" else order.run_dir
    return Trainer.from_checkpoint(order.resume, config=order.config, run_dir=run_dir, **order.settings)


def parse(argv: Sequence[str]) -> Order:
    """What a command line asks for.

    Raises:
        UsageError: in one line.
    """
    known = {**flags_of(PPOConfig(env="arena"), NOT_FLAGS), **flags_of(RunSettings()), **RUN_FLAGS}
    given = given_flags(argv, known)
    options = {name: setting_of(name, words) for name, words in given.items()}
    run = {name: options.pop(name) for name in list(options) if name in RUN_FLAGS}
    settings = {name: options.pop(name) for name in list(options) if name in RunSettings.__dataclass_fields__}
    if run.get("resume") is None:
        base, source = _base(options, run.get("tuned", True))
    else:
        facts = resume.read_run(run["resume"]).facts
        base, source = folder.read_config(facts), f"those of {run['resume']}"
    show_help(
        argv,
        {**flags_of(base, NOT_FLAGS), **flags_of(RunSettings()), **RUN_FLAGS},
        "train_ppo.py",
        train_ppo.__doc__,
    )
    changes = {name: value for name, value in options.items() if getattr(base, name) != value}
    shown = [f"{name}={value}" for name, value in {**options, **settings}.items() if name not in ("env", "env_args")]
    if shown:
        source += ", but " + ", ".join(shown)
    goal = run.get("stop_return")
    if goal is not None:
        if isinstance(goal, bool) or not isinstance(goal, int | float) or not math.isfinite(goal):
            raise UsageError(f"stop_return={goal!r} must be a finite number")
        settings["stop"] = {**settings.get("stop", {}), RETURN: goal}
    RunSettings(**settings)
    return Order(base.replace(**changes), source, settings, run.get("run_dir", "auto"), run.get("resume"))


def _base(options: dict[str, Any], tuned: Any) -> tuple[PPOConfig, str]:
    """The configuration that the flags change, and what it is called."""
    if not isinstance(tuned, bool):
        raise UsageError(f"tuned={tuned!r} must be True or False")
    env, env_args = options.pop("env", "arena"), options.pop("env_args", {})
    plain = PPOConfig(env=env, env_args=env_args)
    if not tuned:
        return plain, "RLlib's defaults"
    base = PPOConfig.tuned(env, env_args)
    return base, f"tuned for {env}" if base != plain else f"RLlib's defaults ({env} has no tuned ones)"


def summary(trainer: Trainer, result: Result, seconds: float) -> str:
    """The end of a run: the return and its spread, the time, and where things lie."""
    episodes = result["env_runners"]
    lines = []
    if "episode_return_mean" in episodes:
        agents = episodes["agent_episode_returns_mean"]
        each = ", ".join(f"{agent} {value:.2f}" for agent, value in agents.items()) if len(agents) > 1 else ""
        window = min(trainer.config.metrics_num_episodes_for_smoothing, episodes["num_episodes_lifetime"])
        lines.append(
            f"return {episodes['episode_return_mean']:.2f} over the last {max(window, episodes['num_episodes'])} "
            f"episodes (from {episodes['episode_return_min']:.2f} to {episodes['episode_return_max']:.2f})"
            + (f": {each}" if each else "")
        )
    else:
        lines.append("no episode has ended")
    steps, training = result["num_env_steps_sampled_lifetime"], result["time_total_s"]
    lines.append(
        f"{steps:,} environment steps in {duration(training)} of training ({steps / training:,.0f} steps/s), "
        f"{duration(seconds)} in all, {trainer.compile_seconds:.1f} s of it compiling"
    )
    if trainer.run_dir is not None:
        here = trainer.run_dir
        pictures = [name for name in ("curves.png", "episode.gif") if (here / name).exists()]
        lines += [f"look at      {here / name}" for name in pictures]
        lines += [
            f"evaluate     python scripts/evaluate.py {here}",
            f"go on        python scripts/train_ppo.py --resume {here} {flag_name('total_env_steps')} {2 * steps}",
        ]
    return "\n".join(lines)
