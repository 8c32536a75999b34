"""The trials of a sweep, and the groups of them that share a program."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.algorithms.memory_estimate import check_sizes
from jaxrl.core.env import MultiAgentEnvironment, has_outside_state, strongly_typed
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.types import PyTree
from jaxrl.rollout.rollout import Rollout

UNSAFE = re.compile(r"[^\w.,=+-]+", re.ASCII)  # what not every file system takes in a name
MOST_CHARACTERS = 60  # of the settings in a folder's name
NUM_SEEDS = 2**32  # more have no keys of their own: `jax.random.key` takes a seed modulo this


@dataclass(frozen=True)
class Trial:
    """One training of a sweep."""

    number: int
    settings: dict[str, Any]  # what it was asked to differ by
    config: Any  # the whole configuration, its seed included

    @property
    def name(self) -> str:
        return f"{self.number:04d}"

    @property
    def folder_name(self) -> str:
        """`0003_lr=0.001`: its number and the settings that it differs by, as a folder's name."""
        parts = (f"{name}={_short(value)}" for name, value in self.settings.items())
        named = UNSAFE.sub("-", ",".join(parts))[:MOST_CHARACTERS].rstrip(".-")
        return f"{self.name}_{named}" if named else self.name

    @functools.cached_property
    def numbers(self) -> tuple[PyTree, PyTree]:
        """(hypers, env_params): what it differs from the others of its group by, beside its key."""
        return self.config.hypers(), strongly_typed(self.config.setup().env_params)

    def changed(self, settings: Mapping[str, Any]) -> "Trial":
        """This trial with other values of some settings.

        Raises:
            UsageError: one is not allowed.
        """
        settings = {**self.settings, **settings}
        return Trial(self.number, settings, applied(self.config, settings))


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(map(_short, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class TrialGroup:
    """Trials that differ in numbers alone, and so share a compiled program."""

    static: Any  # the configuration that the program is built of
    env: MultiAgentEnvironment
    trials: tuple[Trial, ...]

    @functools.cached_property
    def algorithm(self) -> Algorithm:
        return _algorithm_of(self.static, self.env)

    @functools.cached_property
    def shapes(self) -> "Shapes":
        """The shapes of one member's first update; only traced, which takes a second."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        # JAX keeps what it traced as long as the function is the same one.
        first_update = _first_update_of(self.static, self.env)
        return jax.eval_shape(first_update, key, *self.trials[0].numbers)


@functools.lru_cache(maxsize=16)
def _algorithm_of(static: Any, env: MultiAgentEnvironment) -> Algorithm:
    """The algorithm of `config.static()`, over the environment that its name means now."""
    algorithm = static.build()
    check_sizes(static, algorithm)
    return algorithm


@functools.lru_cache(maxsize=16)
def _first_update_of(static: Any, env: MultiAgentEnvironment) -> Callable[..., "Shapes"]:
    algorithm = _algorithm_of(static, env)

    def first_update(key, hypers, env_params):
        runner = algorithm.init(key, hypers, env_params)
        played, rollout = algorithm.collect(runner, env_params=env_params)
        return Shapes(runner, rollout, algorithm.learn(played, rollout, hypers)[1])

    return first_update


class Shapes(NamedTuple):
    """`jax.ShapeDtypeStruct` for each array."""

    runner: RunnerState
    rollout: Rollout
    metrics: Metrics


def trials_of(
    config: Any, settings: Sequence[Mapping[str, Any]], seeds: int | Sequence[int]
) -> list[Trial]:
    """A trial for each of the settings and each seed; all that can be refused is refused here.

    Args:
        seeds: how many, from the configuration's own upwards, or which.
    """
    seeds = seeds_of(config, seeds)
    if any("seed" in overrides for overrides in settings):
        raise UsageError(
            "seed is not a setting to sweep: give seeds=[1, 2], or seeds=8 for so many"
        )
    trials = []
    for overrides in settings:
        changed = applied(config, overrides)
        for seed in seeds:
            trials.append(Trial(len(trials), dict(overrides), changed.replace(seed=seed)))
    return trials


def members_of(
    config: Any, settings: Sequence[Mapping[str, Any]], seeds: int | Sequence[int]
) -> list[Trial]:
    """The trials of a population: as `trials_of`, but a number of seeds gives each its own seed."""
    trials = trials_of(config, settings, seeds)
    if hasattr(seeds, "__len__"):
        return trials
    members = []
    for trial in trials:
        seeded = trial.config.replace(seed=config.seed + trial.number)
        members.append(dataclasses.replace(trial, config=seeded))
    return members


def held_outside(configs: Iterable[Any]) -> str:
    """The first environment that no vmapped program can hold, by name; empty if there is none."""
    for config in configs:
        if has_outside_state(config.setup().env):
            return config.env_name
    return ""


def seeds_of(config: Any, seeds: int | Sequence[int]) -> list[int]:
    """The seeds: a number of them from the configuration's upwards, or those of a list."""
    is_number = isinstance(seeds, int | np.integer) and not isinstance(seeds, bool)
    is_list = isinstance(seeds, list | tuple | range | np.ndarray)
    if not is_list and not (is_number and 1 <= seeds <= NUM_SEEDS):
        raise UsageError(f"seeds={brief(seeds)} must be a number of at least 1, or a list of seeds")
    if is_number:
        seeds = range(config.seed, config.seed + int(seeds))
    if not len(seeds):
        raise UsageError("seeds is an empty list: give at least one")
    for seed in seeds:
        if (
            isinstance(seed, bool)
            or not isinstance(seed, int | np.integer)
            or not 0 <= seed < NUM_SEEDS
        ):
            raise UsageError(
                f"seeds: seed {brief(seed)} must be an integer from 0 to {NUM_SEEDS - 1}"
            )
    seeds = [int(seed) for seed in seeds]
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds {seeds} hold one twice, which would be the same training twice")
    return seeds


def applied(config: Any, settings: Mapping[str, Any]) -> Any:
    """The configuration with settings by name: `lr`, `pol1.lr`, `env_args.NAME` of the environment.

    A policy's own value, from `per_policy` or as `pol1.lr`, wins over the value for all policies.

    Raises:
        UsageError: there is no such setting, policy or argument, or the values clash; or every
            policy that is trained has its own value of a setting.
    """
    common, by_policy, arguments = {}, {}, {}
    for name, value in settings.items():
        first, dot, rest = name.partition(".")
        if not dot:
            common[name] = value
        elif first == "env_args":
            arguments[rest] = value
        else:
            by_policy.setdefault(first, {})[rest] = value
    if arguments:
        common["env_args"] = _merged(common.get("env_args", config.env_args), arguments)
    if by_policy:
        per_policy = _merged(common.get("per_policy", config.per_policy), {})
        if isinstance(per_policy, dict):
            for policy, overrides in by_policy.items():
                per_policy[policy] = _merged(per_policy.get(policy, {}), overrides)
        common["per_policy"] = per_policy
    try:
        changed = config.replace(**common)
        changed.setup()
        for name in common:
            if name not in ("env_args", "per_policy"):
                check_reaches(changed, name)
    except UsageError as error:
        values = ", ".join(f"{name}={value}" for name, value in settings.items())
        raise UsageError(f"{error} (in the trial {values})" if values else str(error)) from None
    return changed


def _merged(values: Any, changes: Mapping[str, Any]) -> Any:
    """A mapping, or its pairs, with changes; anything else as it is, for its check to refuse."""
    try:
        return {**dict(() if values is None else values), **changes}
    except (TypeError, ValueError):
        return values


def check_reaches(config: Any, name: str) -> None:
    """Refuses a setting that changes nothing, since every trained policy has a value of its own."""
    refusal, _ = config.overridden(name)
    if refusal:
        raise UsageError(refusal)


def unreached(config: Any, settings: Mapping[str, Any]) -> list[str]:
    """A warning for each setting that some policies do not use, since `per_policy` has theirs."""
    warnings = []
    for name in settings:
        if "." not in name:
            named = [path.partition(".")[0] for path in settings if path.endswith(f".{name}")]
            warnings += filter(None, config.overridden(name, named))
    return warnings


def groups_of(trials: Sequence[Trial]) -> list[TrialGroup]:
    """The trials by their program: arguments that are numbers to the environment do not matter."""
    groups: dict[Any, list[Trial]] = {}
    for trial in trials:
        static = trial.config.static()
        static = static.replace(env_args=()) if static.env_args else static
        shapes = str(
            jax.tree.map(lambda leaf: (jnp.shape(leaf), jnp.result_type(leaf)), trial.numbers)
        )
        groups.setdefault((static, trial.config.setup().env, shapes), []).append(trial)
    return [
        TrialGroup(members[0].config.static(), env, tuple(members))
        for (_, env, _), members in groups.items()
    ]


def programs_of_equal_environments(groups: Sequence[TrialGroup]) -> int:
    """The number of groups if those that differ in their environments' objects alone were one."""
    alike = {(group.static, group.env) for group in groups}
    return len(groups) - len(alike) + len({group.static for group in groups})
