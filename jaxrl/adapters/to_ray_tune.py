"""Trainables for Ray Tune (https://docs.ray.io/en/latest/tune, 2.60), with many members per trial.

    trainable = to_ray_tune.trainable(PPOConfig(env="cartpole"), seeds=8)
    tune.Tuner(trainable, param_space={"lr": tune.loguniform(1e-4, 1e-2)}).fit()

Ray is imported when a trainable is made. Each trial is a separate process, which must find the
environment and the callbacks: by an entry point, as `module:Class`, or as an object.
"""

import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.fields import count
from jaxrl.run.devices import compile_cache
from jaxrl.run.devices.mesh import split_cpu
from jaxrl.run.results import RETURN, Result, flatten, lookup
from jaxrl.run.settings import RunSettings
from jaxrl.sweeps.space import settings_of
from jaxrl.sweeps.trial_batch import NOT_CALLED, TrialBatch
from jaxrl.sweeps.trial_view import check_callbacks
from jaxrl.sweeps.trials import Trial, applied, held_outside, trials_of, unreached

NAN = float("nan")
ARGUMENTS = ("members", "seeds", "metric", "iterations", "devices", "compile_cache")
# A trial reports the median of its members, except for these metrics.
SUMMED_METRICS = ("perf/env_steps_per_s",)
MAXIMUM_METRICS = ("training_iteration", "num_env_steps_sampled_lifetime")


def trainable(
    config: Any,
    members: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    *,
    seeds: int | Sequence[int] = 1,
    metric: str = RETURN,
    iterations: int = 1,
    devices: int = 1,
    compile_cache: str | None = "auto",
    **evaluation_settings: Any,
) -> type:
    """A class for `ray.tune.Tuner`; each trial trains its members in one compiled program.

    The trial's config, which Tune chooses from `param_space`, changes settings by name: `lr`,
    `pol1.lr` of a policy, `env_args.width` of the environment; {"pol1": {"lr": ...}} means the
    same. A trial ends at `total_env_steps`, or before by
    `RunConfig(stop={"env_runners/episode_return_mean": 475})`.

    A trial reports RLlib's result tree, with the median over its members of every number (the sum
    of `perf/env_steps_per_s`). "best" is the tree of the member with the highest metric, with its
    number in "member". "members" has the metric of every member by number. The host hooks of
    `callbacks` are called for each member, as in `jaxrl.sweep`: `result["done"]` ends that member.

    A checkpoint is a folder with a run's folder for each member, so that
    `load_policy(f"{checkpoint.path}/0000")` is the first member's policy. A trial that loads
    another's checkpoint, as in PBT, also takes its random keys, but keeps its hyperparameters.

    Args:
        config: a configuration such as `PPOConfig`, shared by all trials.
        members: the numbers in which the members of a trial differ: {setting: values} as in
            `jaxrl.sweep`, with every combination a member, or a list of settings. They override
            the trial's config.
        seeds: the number of seeds of each, from the configuration's upwards, or a list of seeds.
        metric: ranks the members; a path in the result tree, higher is better.
        iterations: between two reports; Tune's schedulers and stop criteria see no others.
        devices: to split the members over: a CPU's cores, with as many in
            `tune.with_resources(..., {"cpu": 2})`.
        compile_cache: where to store compiled programs for trials of the same shapes: "auto", a
            folder, or "off".
        **evaluation_settings: `evaluation_interval`, `evaluation_duration` and the others of a
            `Trainer`: how members are evaluated. Each report has the newest evaluation.

    Raises:
        UsageError: settings that cannot work; those of a trial are rejected before it starts.
    """
    try:
        from ray import tune
    except ImportError:
        raise UsageError("to_ray_tune needs Ray Tune: pip install 'jaxrl[ray]'") from None
    settings = evaluations_of(evaluation_settings)
    plan = Plan(config, members, seeds, metric, iterations, devices, compile_cache, settings)
    return _class_of(plan, tune.Trainable, f"PPO_{config.env_name}".replace(":", "_"))


def evaluations_of(evaluation_settings: Mapping[str, Any]) -> RunSettings:
    """The settings of a member's evaluations."""
    allowed = [name for name in RunSettings.__dataclass_fields__ if name.startswith("evaluation_")]
    for name in evaluation_settings:
        if name not in allowed:
            raise unknown_name("argument", name, [*ARGUMENTS, *allowed], "of trainable")
    return RunSettings(loggers=(), devices=1, **evaluation_settings)


def _class_of(plan: "Plan", base: type, name: str) -> type:
    class Packed(base):
        @classmethod
        def default_resource_request(cls, config):
            """Rejects a trial's settings early: Tune calls this in its process, before a trial."""
            plan.trials(config)
            for warning in plan.warnings(config):
                warnings.warn(warning, stacklevel=2)
            return None

        def setup(self, config):
            self.block = plan.block(config)

        def reset_config(self, new_config):
            self.block.end()
            self.block = plan.block(new_config)
            return True

        def step(self):
            return report(self.block, plan.iterations)

        def save_checkpoint(self, checkpoint_dir):
            self.block.save(Path(checkpoint_dir))

        def load_checkpoint(self, checkpoint):
            self.block.load(Path(checkpoint))

        def cleanup(self):
            self.block.end()

    Packed.__name__ = Packed.__qualname__ = name
    return Packed


@dataclass(frozen=True)
class Plan:
    """The arguments of `trainable`, shared by all its trials."""

    config: Any
    members: Any
    seeds: int | Sequence[int]
    metric: str
    iterations: int
    devices: int
    compile_cache: str | None
    settings: RunSettings = RunSettings(loggers=(), devices=1)

    def __post_init__(self):
        if not isinstance(self.config, AlgorithmConfig):
            raise UsageError(
                "trainable takes a configuration such as PPOConfig(env='arena'), "
                f"not {brief(self.config)}"
            )
        count()("iterations", self.iterations)
        count()("devices", self.devices)
        evaluated = self.settings.evaluation_interval is not None
        check_callbacks(self.config, never=() if evaluated else NOT_CALLED)
        if name := held_outside([self.trials({})[0].config]):
            raise UsageError(
                f"a trial of Ray Tune trains its members in one program, which {name} cannot be "
                "part of: jaxrl.sweep trains them one after the other"
            )

    def trials(self, config: Mapping[str, Any]) -> list[Trial]:
        """The members of a Tune trial with this config."""
        dotted = self._dotted(config)
        if "seed" in dotted and not isinstance(self.seeds, int):
            seed = dotted["seed"]
            raise UsageError(
                f"seed={seed!r} clashes with seeds={self.seeds}: leave one of them out"
            )
        changed = applied(self.config, dotted)
        if isinstance(self.members, Sequence):
            settings = [dict(member) for member in self.members] or [{}]
        else:
            settings = settings_of(self.members, 1, changed.seed)
        return trials_of(changed, settings, self.seeds)

    def warnings(self, config: Mapping[str, Any]) -> list[str]:
        """Warnings about a Tune trial with this config."""
        return unreached(self.config, self._dotted(config))

    def _dotted(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return dotted(config, {field.name for field in fields(self.config)})

    def block(self, config: Mapping[str, Any]) -> TrialBatch:
        split_cpu(self.devices)
        compile_cache.use(self.compile_cache)
        options = {"metric": self.metric, "devices": self.devices, "settings": self.settings}
        return TrialBatch(self.trials(config), **options)


def dotted(config: Mapping[str, Any], settings: set[str]) -> dict[str, Any]:
    """A Tune trial's config as settings by name.

    Args:
        settings: the names of the configuration's fields; a dict with another name is a policy's.
    """
    found = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and (name == "env_args" or name not in settings):
            for part, inner in value.items():
                found[f"{name}.{part}"] = _plain(inner)
        else:
            found[name] = _plain(value)
    return found


def report(block: TrialBatch, iterations: int) -> Result:
    """Trains for some iterations; the result for Tune, with every possible path, NaN if unknown.

    Tune and its searchers treat a metric that is missing in the first result as an error.
    """
    tree = medians([result for result in block.train(iterations) if result is not None])
    best = max(range(len(block.trials)), key=lambda i: _score(block, i))
    for path in block.result_names:
        if "/" in path and lookup(tree, path) is None:
            _put(tree, path, NAN)
    # Tune sums the seconds of its steps, each of which may be several iterations.
    tree |= {
        "time_this_iter_s": block.seconds,
        "done": block.is_over,
        "diverged": sum(block.diverged),
    }
    tree["timers"]["compile"] = block.compile_seconds
    tree["best"] = {"member": best, **(block.results[best] or {})}
    tree["members"] = {trial.name: _member(block, i) for i, trial in enumerate(block.trials)}
    return tree


def medians(results: Sequence[Result]) -> Result:
    """A tree of the medians of all numbers in `results`; lists come from the first result."""
    paths: dict[str, None] = {}
    for result in results:
        paths |= dict.fromkeys(path for path, _ in flatten(result))
    tree: Result = {}
    for path in paths:
        values = [lookup(result, path) for result in results]
        _put(tree, path, _combined([value for value in values if value is not None], path))
    return tree


def _combined(values: Sequence[Any], path: str) -> Any:
    if isinstance(values[0], bool) or not isinstance(values[0], int | float):
        return values[0]
    if path in SUMMED_METRICS:
        return sum(values)
    if path in MAXIMUM_METRICS or min(values) == max(values):  # an int that all share stays one
        return max(values)
    return statistics.median(values)


def _member(block: TrialBatch, member: int) -> dict[str, Any]:
    result = block.results[member] or {}
    return {
        "training_iteration": result.get("training_iteration", 0),
        "diverged": block.diverged[member],
        block.metric.split("/")[-1]: lookup(result, block.metric) if result else NAN,
    }


def _score(block: TrialBatch, member: int) -> float:
    value = lookup(block.results[member], block.metric)
    return -np.inf if value is None or np.isnan(value) else value


def _put(tree: Result, path: str, value: Any) -> None:
    *folders, name = path.split("/")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[name] = value


def _plain(value: Any) -> Any:
    """A Python number for a NumPy number, which Tune's searchers give."""
    return value.item() if isinstance(value, np.generic) else value
