"""Settings of a run, whatever the algorithm: checkpoints, evaluation, logs, pictures, devices."""

import dataclasses
from pathlib import Path
from typing import Any, TypedDict

from jaxrl.algorithms.validators import several
from jaxrl.core import words
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import (
    UINT32,
    check_all,
    checked,
    count,
    file_path,
    flag,
    frozen_fields,
    number,
    one_of,
    pairs,
    setting,
    text,
)
from jaxrl.core.frozen import freeze_arguments, thawed
from jaxrl.run.every import Every
from jaxrl.run.hooks import HOOK
from jaxrl.run.logging.loggers import LOGGER, check_loggers, saved_form
from jaxrl.run.results import RETURN
from jaxrl.run.stopping import check_stop

# Those of environments outside JAX alone.
HOST_SETTINGS = ("workers", "sync", "env_step_timeout_s", "max_consecutive_faults")
MAX_STEPS = 1_000_000  # of one episode that is played, where nobody says otherwise
RAY = "ray:"  # before a number of actors


@words.written(words.or_none(words.pairs), "RESULT=VALUE")
def stop_criteria(name: str, value: Any) -> None:
    pairs("{path in the result tree: least value}")(name, value)
    check_stop(dict(value), None)


@words.written(words.or_none(words.pairs_of_texts), "POLICY=RUN")
def _runs(name: str, value: Any) -> None:
    pairs("{policy: path}")(name, value)
    for policy, path in value:
        if not isinstance(path, str | Path):
            raise UsageError(f"{name}: policy {policy!r} must name a run's path, not {brief(path)}")


@words.written(words.one_value, None, False, "N")
def _devices(name: str, value: Any) -> None:
    if value != "auto":
        count()(name, value)


@words.written(words.or_none(words.several, tuple), "MODULE:CLASS")
def _hooks(name: str, entries: Any) -> None:
    if entries:
        from jaxrl.run.user_hooks import check_entries

        check_entries(entries)


_checkpoint_frequency = words.written(words.one_value, None, False, "N", ("--checkpoint-freq",))(
    count(optional=True)
)


@words.written(words.one_value, None, False, "N|ray:N")
def _workers(name: str, value: Any) -> None:
    if isinstance(value, str) and value.startswith(RAY):
        number = value.removeprefix(RAY)
        if not number.isdigit() or not int(number):
            raise UsageError(f"{name} must be ray:N with a number of actors, not {value!r}")
    elif isinstance(value, str):
        raise UsageError(f"{name}={value!r} must be a number of processes, or ray:N for Ray actors")
    elif value is not None:
        count(0)(name, value)


@checked(
    "Trainer",
    example="Trainer(config, NAME=...)",
    also=("run_dir",),
    in_python=("env_params", "quiet"),
)
@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Settings of a `Trainer` next to its configuration; none of them changes what is learned."""

    stop: Any = setting(
        (),
        "what ends training before its steps do: {path in the result tree: least value}",
        stop_criteria,
    )
    checkpoint_interval_s: float | None = setting(
        60.0,
        "seconds of training between two checkpoints; None: not by the clock",
        number(0, optional=True),
    )
    checkpoint_frequency: int | None = setting(
        None, "iterations between two checkpoints; None: by the clock alone", _checkpoint_frequency
    )
    checkpoint_at_end: bool = setting(True, "whether the state that training ends in is kept", flag)
    checkpoint_score_attribute: str | None = setting(
        None,
        "the result that decides which checkpoint is best; None: the evaluation's return, else "
        "training's",
        text("a path in the result tree", optional=True),
    )
    keep: int = setting(
        3, "how many checkpoints are kept, newest first; the best one as well", count()
    )
    evaluation_interval: int | None = setting(
        None, "iterations between two evaluations; None: no evaluation", count(optional=True)
    )
    evaluation_duration: int = setting(10, "whole episodes of one evaluation", count())
    evaluation_duration_unit: str = setting(
        "episodes",
        "timesteps: evaluation_duration counts steps, and the last episode is whole",
        one_of("episodes", "timesteps"),
    )
    evaluation_explore: bool = setting(
        False, "whether evaluation samples its actions; False: the likeliest", flag
    )
    evaluation_env_args: Any = setting(
        (),
        "arguments of the environment that differ in evaluation",
        pairs("{name: value}", freeze_arguments),
    )
    evaluation_seed: int = setting(
        0, "the evaluation's own random seed; each one plays the same episodes", count(0, UINT32)
    )
    evaluation_max_steps: int = setting(
        MAX_STEPS,
        "steps at which an episode of an evaluation or a sampling is cut, and does not count",
        count(),
    )
    sampling_interval: int | None = setting(
        None,
        "iterations between two samplings of episodes, for hooks (*, episode); None: one "
        "after each second of training or so",
        count(optional=True),
    )
    sampling_duration: int = setting(1, "whole episodes of one sampling", count())
    hooks: Any = setting(
        (),
        "work of the host after chunks of training, in order: module:Class; see jaxrl.Hook",
        _hooks,
        read=several,
        kind=HOOK,
    )
    output: Any = setting(
        None,
        "folder that the played episodes are written to, as Parquet files; None: nowhere",
        file_path("a folder's path", optional=True),
    )
    output_share: float = setting(
        1.0,
        "share of the environments whose episodes are written, the first ones",
        number(0, 1, open_low=True),
    )
    loggers: Any = setting(
        ("jsonl", "csv", "tensorboard"),
        "where results go: jsonl, csv, tensorboard, wandb, trackio, mlflow, or module:Class",
        check_loggers,
        read=several,
        kind=LOGGER,
    )
    pictures: bool = setting(
        True, "whether the run's folder gets curves.png, episode.gif and episode.html", flag
    )
    debug: bool = setting(
        False,
        "when a number is not finite, run that iteration again, uncompiled, and name the operation",
        flag,
    )
    devices: Any = setting(
        "auto",
        "devices that the environments are split over; auto: a CPU's cores where the work is large",
        _devices,
    )
    workers: Any = setting(
        None,
        "processes that step an environment outside JAX; 0: training's own; None: one for each "
        "core, or 0 where a step takes microseconds; ray:8: Ray actors, on one machine or many",
        _workers,
    )
    sync: bool = setting(
        False,
        "whether rollouts outside JAX wait for the newest weights; False: the next one is played "
        "while the learner works",
        flag,
    )
    env_step_timeout_s: float = setting(
        60.0,
        "seconds that a step outside JAX may take before it counts as a fault",
        number(0, open_low=True),
    )
    max_consecutive_faults: int = setting(
        20,
        "faults outside JAX with no episode that ended in between, after which training ends",
        count(0),
    )
    init_from: Any = setting(
        (), "policies that begin with another run's weights: {policy: path, or path#policy}", _runs
    )

    def __post_init__(self):
        frozen_fields(self)
        check_all(self)
        object.__setattr__(
            self, "init_from", tuple((policy, str(path)) for policy, path in self.init_from)
        )

    @property
    def of_copies(self) -> dict[str, Any]:
        """The arguments of `vector`, by which an environment outside JAX makes its copies."""
        return {
            "num_workers": self.workers,
            "step_timeout_s": self.env_step_timeout_s,
            "max_consecutive_faults": self.max_consecutive_faults,
        }

    def refuse_for_jax(self, env_name: str) -> None:
        """Refuses settings of environments outside JAX, where the environment is one of JAX."""
        for name in HOST_SETTINGS:
            value = getattr(self, name)
            if value != type(self).__dataclass_fields__[name].default:
                raise UsageError(f"{name}={value} changes nothing: {env_name} runs in JAX")

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name, as JSON can hold them."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        mappings = ("stop", "evaluation_env_args", "init_from")
        return {
            **values,
            **{name: thawed(values[name]) for name in mappings},
            "loggers": saved_form(self.loggers),
            "hooks": saved_form(self.hooks),
            "output": None if self.output is None else str(self.output),
        }

    @property
    def evaluations(self) -> Every:
        """The moments at which policies are evaluated, beside the end of training."""
        return Every(self.evaluation_interval)

    @property
    def samplings(self) -> Every:
        """The moments at which episodes are sampled; after each chunk unless an interval is set."""
        interval = self.sampling_interval
        return Every(seconds=0.0) if interval is None else Every(interval)

    @property
    def num_ray_actors(self) -> int:
        """The number of Ray actors in `workers`; 0: none."""
        is_ray = isinstance(self.workers, str)
        return int(self.workers.removeprefix(RAY)) if is_ray else 0

    @property
    def score_attribute(self) -> str:
        """The result that decides which checkpoint is best."""
        evaluated = "evaluation/" if self.evaluation_interval is not None else ""
        return self.checkpoint_score_attribute or f"{evaluated}{RETURN}"


class RunKeywords(TypedDict, total=False):
    """Keyword arguments of `Trainer` for editors and type checkers: the fields of `RunSettings`."""

    stop: Any
    checkpoint_interval_s: float | None
    checkpoint_frequency: int | None
    checkpoint_at_end: bool
    checkpoint_score_attribute: str | None
    keep: int
    evaluation_interval: int | None
    evaluation_duration: int
    evaluation_duration_unit: str
    evaluation_explore: bool
    evaluation_env_args: Any
    evaluation_seed: int
    evaluation_max_steps: int
    sampling_interval: int | None
    sampling_duration: int
    hooks: Any
    output: Any
    output_share: float
    loggers: Any
    pictures: bool
    debug: bool
    devices: Any
    workers: Any
    sync: bool
    env_step_timeout_s: float
    max_consecutive_faults: int
    init_from: Any
