"""The whole state of a run between two chunks, as a checkpoint holds it: arrays and facts."""

import json
from dataclasses import asdict
from typing import Any, NamedTuple

import jax

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.core.types import PyTree
from jaxrl.run.devices.mesh import on_host
from jaxrl.run.results import Lifetime, Result
from jaxrl.run.storage.json_lines import dumped


class Snapshot(NamedTuple):
    """The whole state of a run between two chunks; its arrays are never written to."""

    runner: RunnerState
    hypers: PyTree
    env_params: PyTree
    lifetime: Lifetime
    result: Result | None  # of its last iteration
    callbacks: list[Any]  # the host callbacks' own states


def state_facts(
    facts: dict[str, Any], snapshot: Snapshot, score: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What a checkpoint says beside its arrays."""
    return {
        **facts,
        "lifetime": asdict(snapshot.lifetime),
        "result": json.loads(dumped(snapshot.result)),
        "callbacks": snapshot.callbacks,
        "score": score,
    }


def state_tree(algorithm: Algorithm, snapshot: Snapshot) -> PyTree:
    """The arrays of a checkpoint: the whole state, and every policy's weights by its name."""
    runner = jax.tree.map(on_host, snapshot.runner)
    policies = algorithm.grouping.policies
    return {
        "runner": runner,
        "hypers": snapshot.hypers,
        "env_params": snapshot.env_params,
        "weights": {policy: algorithm.policy_weights(runner, policy) for policy in policies},
    }
