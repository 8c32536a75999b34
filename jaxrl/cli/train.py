"""The command lines, made from the configuration's own fields."""

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.ppo.config import PPOConfig
from jaxrl.run.console import duration
from jaxrl.run.results import Result
from jaxrl.run.trainer import Trainer, device_name

# Flags that take several values; all others take one. Every value arrives as text and is read by `_setting`, so that
# the configuration's own checks speak, in one line.
SEVERAL = {
    "env_args": "NAME=VALUE ...",
    "per_policy": "POLICY.SETTING=VALUE ...",
    "policies_to_train": "POLICY ...",
    "fcnet_hiddens": "SIZE ...",
    "conv_filters": "FILTERS,KERNEL,STRIDE ...",
    "lr": "NUMBER | STEP:NUMBER ...",
    "entropy_coeff": "NUMBER | STEP:NUMBER ...",
}
NOT_FLAGS = ("optimizer",)  # a function: for notebooks
RUN_FLAGS = {
    "tuned": ("True", "begin with the environment's tuned settings; False: with RLlib's defaults"),
    "stop_return": ("None", "stop when the mean return of the recent episodes reaches this"),
    "run_dir": ("auto", "the run's folder, which must not exist yet; auto: runs/<env>/<time>-s<seed>"),
}


def train_ppo(argv: Sequence[str] | None = None) -> None:
    """Train policies with PPO in one compiled program."""
    started, trainer = time.perf_counter(), None
    try:
        config, source, options = parse(sys.argv[1:] if argv is None else argv)
        plan = config.describe()
        trainer = Trainer(config, run_dir=options["run_dir"])
        say = trainer.progress.say
        say(f"{plan}\nsettings     {source}\ndevice       {device_name()}\nrun folder   {trainer.run_dir}")
        stop = {} if options["stop_return"] is None else {"env_runners/episode_return_mean": options["stop_return"]}
        trainer.fit(stop)
    except UsageError as error:
        print(f"train_ppo.py: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        pass
    if trainer is None or trainer.last_result is None:
        sys.exit("train_ppo.py: stopped before the first result")
    say(summary(trainer, trainer.last_result, time.perf_counter() - started))


def parse(argv: Sequence[str]) -> tuple[PPOConfig, str, dict[str, Any]]:
    """(configuration, where its values come from, the run's own options) of a command line.

    Raises:
        UsageError: in one line.
    """
    given = _given(argv)
    env = (given.get("env") or ["arena"])[-1]
    env_args = _pairs("env_args", given.get("env_args", []))
    base, source = PPOConfig(env=env, env_args=env_args), "RLlib's defaults"
    if given.get("tuned", ["True"]) not in (["True"], ["False"]):
        raise UsageError(f"tuned={given['tuned'][0]!r} must be True or False")
    if given.get("tuned") != ["False"]:
        tuned = PPOConfig.tuned(env, env_args)
        source = f"tuned for {env}" if tuned != base else f"RLlib's defaults ({env} has no tuned ones)"
        base = tuned
    flags = tyro.cli(_flags(base), args=list(argv), prog="train_ppo.py", description=train_ppo.__doc__)
    changes = {
        name: _setting(name, getattr(flags, name)) for name in given if name not in (*RUN_FLAGS, "env", "env_args")
    }
    if changes:
        source += ", but " + ", ".join(f"{name}={value}" for name, value in changes.items())
    options = {"stop_return": _value(flags.stop_return), "run_dir": None if flags.run_dir == "None" else flags.run_dir}
    goal = options["stop_return"]
    if goal is not None and (isinstance(goal, bool) or not isinstance(goal, int | float) or not math.isfinite(goal)):
        raise UsageError(f"stop_return={goal!r} must be a finite number")
    return base.replace(**changes), source, options


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
        lines.append(f"every iteration: {trainer.run_dir / 'metrics.jsonl'}")
    return "\n".join(lines)


def _flags(base: PPOConfig) -> type:
    """A dataclass with a text field for each flag, for tyro; the defaults shown are those of `base`."""
    fields = []
    for field in dataclasses.fields(PPOConfig):
        if field.name not in NOT_FLAGS:
            fields.append(_flag(field.name, field.metadata["help"], _shown(getattr(base, field.name))))
    fields += [_flag(name, text, default) for name, (default, text) in RUN_FLAGS.items()]
    return dataclasses.make_dataclass("Flags", fields)


def _flag(name: str, text: str, default: Any) -> tuple:
    several = name in SEVERAL
    argument = tyro.conf.arg(name=name.rstrip("_"), help=text, metavar=SEVERAL.get(name, "VALUE"))
    default = tuple(default.split()) if several else default
    return name, Annotated[tuple[str, ...] if several else str, argument], dataclasses.field(default=default)


def _shown(value: Any) -> str:
    """A setting's value as its flag would be written."""
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        if len(value[0]) == 3:  # conv_filters
            return " ".join(",".join(map(str, layer)) for layer in value)
        sign = ":" if isinstance(value[0][0], int | float) else "="
        return " ".join(f"{key}{sign}{part}" for key, part in value)
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)


def _given(argv: Sequence[str]) -> dict[str, list[str]]:
    """The values after each flag that is there, by the setting's name; an unknown flag is refused."""
    known = {field.name for field in dataclasses.fields(PPOConfig)} - set(NOT_FLAGS) | set(RUN_FLAGS)
    by_flag = {_flag_name(name): name for name in known}
    given: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in argv:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if word in ("-h", "--help"):
            continue
        if word.startswith("--"):
            if flag not in by_flag:
                raise unknown_name("flag", flag, by_flag)
            current = given[by_flag[flag]] = [value] if equals else []
        elif current is None:
            raise UsageError(f"unexpected argument {word!r}; flags begin with --, for example --env {word}")
        else:
            current.append(word)
    for name, values in given.items():
        if not values or (len(values) > 1 and name not in SEVERAL):
            raise UsageError(f"{_flag_name(name)} takes {'values' if name in SEVERAL else 'one value'}, not {values}")
    return given


def _flag_name(name: str) -> str:
    """`lambda_` as `--lambda`."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def _setting(name: str, value: str | tuple[str, ...]) -> Any:
    """A flag's text as the setting's value; whether it is allowed is the configuration's to say."""
    if name == "per_policy":
        return _per_policy(value)
    if name in ("lr", "entropy_coeff"):
        return _schedule(name, value)
    if name == "policies" and value not in ("shared", "per-agent", "None"):
        return _policy_file(value)
    if isinstance(value, tuple) and len(value) == 1 and value[0].startswith("["):
        return _value(value[0])
    if name == "conv_filters" and value != ("None",):
        return tuple(tuple(map(_value, layer.split(","))) for layer in value)
    if isinstance(value, tuple):
        return tuple(map(_value, value)) if value != ("None",) else None
    return _value(value)


def _value(text: str) -> Any:
    """A number, True, False, None or a list in brackets if the text is one, else the text."""
    if text.startswith("["):
        try:
            return json.loads(text)
        except ValueError as error:
            raise UsageError(f"{text!r} is no list such as [1,2] or [[1,2],[3,4]], without blanks: {error}") from None
    plain = text.replace("_", "")
    for read in (int, float):
        try:
            number = read(plain)
        except ValueError:
            continue
        return (
            int(number) if "e" in plain.lower() and "." not in plain and number % 1 == 0 else number
        )  # 1e6 is a count
    return {"True": True, "False": False, "None": None}.get(text, text)


def _pairs(name: str, words: Sequence[str], read: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """`height=6 width=8` as a dict."""
    pairs = dict(word.partition("=")[::2] for word in words)
    for key, value in pairs.items():
        if not key or not value:
            raise UsageError(f"{name} takes NAME=VALUE, not {key!r}")
    return {key: (read or _value)(value) for key, value in pairs.items()}


def _per_policy(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`pol1.lr=3e-4 pol2.lr=4e-4` by policy."""
    settings: dict[str, dict[str, Any]] = {}
    for path, value in _pairs("per_policy", words, read=str).items():
        policy, dot, name = path.partition(".")
        if not dot:
            raise UsageError(f"per_policy takes POLICY.SETTING=VALUE, not {path!r}")
        settings.setdefault(policy, {})[name] = (
            _value(value) if name not in SEVERAL or value[0] == "[" else _setting(name, tuple(value.split(",")))
        )
    return settings


def _schedule(name: str, words: Sequence[str]) -> Any:
    """`3e-4`, or `0:3e-4 1000000:0`."""
    if len(words) == 1 and ":" not in words[0]:
        return _value(words[0])
    if not all(word.count(":") == 1 for word in words):
        raise UsageError(f"{name} takes one number, or a schedule STEP:NUMBER STEP:NUMBER ..., not {' '.join(words)!r}")
    return tuple(tuple(map(_value, word.split(":"))) for word in words)


def _policy_file(path: str) -> dict[str, list[str]]:
    """A JSON file {policy: [agents]}."""
    try:
        policies = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"policies={path!r}: allowed are shared, per-agent, or a JSON file; {error.strerror}"
        ) from None
    except ValueError as error:
        raise UsageError(f"policies file {path} is no JSON: {error}") from None
    if not isinstance(policies, dict):
        raise UsageError(f"policies file {path} must hold {{policy: [agents]}}")
    return policies
