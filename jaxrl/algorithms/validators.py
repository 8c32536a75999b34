"""Checks of settings: schedules, layers, policies, and the three sizes that give each other."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxrl.core import words
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import Check, as_count, count, names, number, pairs
from jaxrl.core.json_text import read_json
from jaxrl.core.registry import adapter_of, of_library

# Limits of a layer's width, the number of layers, and the steps that memory looks back.
WIDEST, DEEPEST, LONGEST = 2**20, 2**10, 2**16
LARGEST_KERNEL = 2**8  # each of its cells is a slice of the program
DEFAULT_SIZES = {"num_envs": 40, "rollout_length": 100, "train_batch_size": 4000}


def schedule() -> Check:
    """A number of at least 0, or [[step, value], ...] with growing steps from 0."""
    is_number = is_step = number(0)

    @words.written(words.schedule, "NUMBER|STEP:NUMBER")
    def check(name, value):
        if not isinstance(value, tuple):
            return is_number(name, value)
        if not value or not all(isinstance(knot, tuple) and len(knot) == 2 for knot in value):
            raise UsageError(
                f"{name}={brief(value)} must be a number or a schedule [[step, value], ...]"
            )
        for step, at_step in value:
            is_step(f"{name}: step", step)
            is_number(f"{name}: value", at_step)
        steps = [step for step, _ in value]
        if steps[0] != 0 or any(later <= earlier for earlier, later in itertools.pairwise(steps)):
            raise UsageError(
                f"{name}: the steps of a schedule must begin at 0 and grow, not {steps}"
            )

    check.schedule = True
    return check


@words.written(words.one_value, None, False, "NAME")
def environment(name: str, value: Any) -> None:
    """A name or an instance; of other libraries' environments also what makes one."""
    if isinstance(value, type | tuple) and adapter_of(value) is None:
        meant = (
            f"{value.__name__}()" if isinstance(value, type) else "the first of what make() returns"
        )
        raise UsageError(
            f"{name} must be a name or an environment object, not {brief(value)}; perhaps {meant}?"
        )


def held_environment(name: str, value: Any) -> Any:
    """An object of a library that cannot be hashed, as its adapter, which can; else unchanged."""
    try:
        hash(value)
    except TypeError:
        return of_library(value)
    return value


def _policy_file(name: str, texts: Sequence[str]) -> Any:
    """A word, or a JSON file {policy: [agents]}."""
    path = texts[0]
    if path in ("shared", "per-agent", "None"):
        return words.value_of(path)
    try:
        policies = read_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"policies={brief(path)}: allowed are shared, per-agent, or a JSON file; "
            f"{error.strerror}"
        ) from None
    except ValueError as error:
        raise UsageError(f"policies file {brief(path)} is not JSON: {error}") from None
    if not isinstance(policies, dict):
        raise UsageError(f"policies file {brief(path)} must hold {{policy: [agents]}}")
    return policies


@words.written(_policy_file, None, False, "POLICIES")
def policies(name: str, value: Any) -> None:
    """None, a word, a function, or a frozen mapping; which words, the environment decides."""
    named = isinstance(value, tuple) and value and all(isinstance(policy, str) for policy in value)
    if value is not None and not isinstance(value, str) and not callable(value) and not named:
        pairs("{policy: [agents]}, 'shared', 'per-agent', or a function from agent to policy")(
            name, value
        )


@words.written(words.several, "POLICY")
def to_train(name: str, value: Any) -> None:
    """None, names, or a function."""
    if not callable(value):
        names(name, value)


@words.written(words.one_value, None, False, "[NAME,NAME]")
def part_names(name: str, value: Any) -> None:
    """A tuple of names."""
    names(name, value)
    if not all(value):
        raise UsageError(f"{name}={brief(value)}: a part has a name, such as 'mission'")


def several(name: str, value: Any) -> tuple:
    """One alone as a tuple; None as none."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


@words.written(words.or_none(words.pairs_of_texts), "POLICY.SETTING=VALUE")
def per_policy(name: str, value: Any) -> None:
    """A frozen mapping of mappings."""
    pairs("{policy: {setting: value}}")(name, value)
    for policy, overrides in value:
        pairs("{setting: value}")(f"{name}[{policy!r}]", overrides)


@words.written(words.several, "SIZE")
def sizes(name: str, value: Any) -> None:
    """A tuple of layer widths."""
    if not isinstance(value, tuple):
        raise UsageError(f"{name}={brief(value)} must be a list of layer sizes")
    for size in value:
        count(most=WIDEST)(f"{name}: layer size", size)


def _layers(name: str, texts: Sequence[str]) -> Any:
    """`16,8,4 32,4,2` as layers of filters, or a list in brackets."""
    if words.is_one_value(texts):
        return words.value_of(texts[0])
    return tuple(tuple(map(words.value_of, layer.split(","))) for layer in texts)


@words.written(_layers, "FILTERS,KERNEL,STRIDE")
def filters(name: str, value: Any) -> None:
    """None, or a tuple of (number of filters, kernel size, stride)."""
    layers = value if isinstance(value, tuple) else ()
    if value is not None and not (
        layers and all(isinstance(layer, tuple) and len(layer) == 3 for layer in layers)
    ):
        raise UsageError(
            f"{name}={brief(value)} must be a list of layers [filters, kernel, stride], or None"
        )
    for layer in layers:
        for size, most in zip(layer, (WIDEST, LARGEST_KERNEL, WIDEST), strict=True):
            count(most=most)(f"{name}: layer {list(layer)}", size)


def resolve_sizes(chosen: dict[str, int], tuned: dict[str, int]) -> dict[str, int]:
    """num_envs, rollout_length and train_batch_size from those given, else the tuned ones.

    A batch alone keeps the tuned rollout's length, or takes the divisor nearest to it.
    """
    chosen = {name: as_count(size) for name, size in chosen.items()}
    for name, size in chosen.items():
        count()(name, size)
    envs, length, batch = (chosen.get(name) for name in DEFAULT_SIZES)
    if batch is None:
        if envs is None and length is None:
            return dict(tuned)
        length = length or max(1, round(tuned["train_batch_size"] / envs))
        envs = envs or max(1, round(tuned["train_batch_size"] / length))
    elif envs is None:
        length = length or _fitting_length(batch, tuned["rollout_length"])
        envs = _divide(batch, "rollout_length", length)
    elif length is None:
        length = _divide(batch, "num_envs", envs)
    elif envs * length != batch:
        raise UsageError(
            f"train_batch_size={batch} is not num_envs={envs} * rollout_length={length} = "
            f"{envs * length}"
        )
    return {"num_envs": envs, "rollout_length": length, "train_batch_size": envs * length}


def _fitting_length(batch: int, target: int) -> int:
    """The divisor of `batch` nearest to `target`, within a factor of 2; a small batch itself."""
    if batch < target // 2:
        return batch
    fitting = [n for n in range(max(1, target // 2), 2 * target + 1) if batch % n == 0]
    if not fitting:
        near = batch - batch % target or target
        raise UsageError(
            f"train_batch_size={batch} is no product of environments and a rollout of about "
            f"{target} steps: give num_envs or rollout_length as well, or a batch such as {near}"
        )
    return min(fitting, key=lambda n: (max(n / target, target / n), -n))


def _divide(batch: int, name: str, size: int) -> int:
    if batch % size:
        raise UsageError(f"train_batch_size={batch} is no multiple of {name}={size}")
    return batch // size
