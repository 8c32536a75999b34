"""The numbers of configurations as arrays, which programs are traced with."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.fields import field_names
from jaxrl.core.types import PolicyId, PyTree


def as_hypers(configs: Mapping[PolicyId, Any]) -> dict[PolicyId, PyTree]:
    """The numbers of each policy's configuration: None is infinity, a schedule f32[K, 2].

    K is that of the longest schedule; the others repeat their last knot.
    """
    names = {policy: schedules_of(type(config)) for policy, config in configs.items()}
    values = [getattr(config, name) for policy, config in configs.items() for name in names[policy]]
    num_knots = max((len(_knots_of(value)) for value in values), default=1)

    def as_array(config: Any, name: str, is_schedule: bool) -> jax.Array:
        value = getattr(config, name)
        if is_schedule:
            knots = _knots_of(value)
            return jnp.asarray(knots + knots[-1:] * (num_knots - len(knots)), jnp.float32)
        return jnp.asarray(jnp.inf if value is None else value, jnp.float32)

    return {
        policy: type(config).hypers_class(
            **{name: as_array(config, name, name in names[policy]) for name in config.numbers()}
        )
        for policy, config in configs.items()
    }


def with_all_numbers(config_class: type) -> type:
    """The class of a configuration's numbers, with a field for each that it inherits without one.

    So a setting marked `traced` is all that a coefficient of a subclass needs.
    """
    hypers_class = config_class.hypers_class
    declared = set(field_names(hypers_class))
    missing = [name for name in config_class.numbers() if name not in declared]
    if not missing:
        return hypers_class
    body = {
        "__annotations__": dict.fromkeys(missing, jax.Array),
        "__module__": config_class.__module__,
        "__qualname__": f"{config_class.__qualname__}.hypers_class",  # where pickle finds it
    }
    return type("Hypers", (hypers_class,), body)


def _knots_of(value: float | tuple) -> tuple:
    """A schedule's ((step, value), ...); a number is one from step 0 on."""
    return value if isinstance(value, tuple) else ((0, value),)


def ended_schedules(config: Any, hypers: Mapping[PolicyId, PyTree]) -> list[str]:
    """A line for each schedule that ends before the training does: what stays from then on."""
    ends = {}
    for numbers in hypers.values():
        for name in schedules_of(type(config)):
            knots = numbers[name] if isinstance(numbers, Mapping) else getattr(numbers, name)
            step, value = np.asarray(knots)[-1].tolist()
            if 0 < step < config.total_env_steps:
                ends[name, step, value] = None
    return [
        f"{name} is {value:g} from {step:,.0f} steps on, where its schedule ends"
        + (": nothing more is learned without another lr" if (name, value) == ("lr", 0) else "")
        for name, step, value in ends
    ]


def schedules_of(config_class: type) -> tuple[str, ...]:
    """The settings that may be schedules."""
    fields = dataclasses.fields(config_class)
    return tuple(
        field.name for field in fields if getattr(field.metadata["check"], "schedule", False)
    )
