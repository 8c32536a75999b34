"""A run taken up again: what its folder holds, held against the configuration that goes on with it."""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import to_json
from jaxrl.core.types import Key, PyTree
from jaxrl.loop.runner import Algorithm, Runner
from jaxrl.run import checkpoint, folder
from jaxrl.run.checkpoint import Checkpoint
from jaxrl.run.folder import config_facts
from jaxrl.run.recorder import CHECKPOINTS
from jaxrl.run.results import Lifetime


@dataclass(frozen=True)
class Saved:
    """A run to go on with."""

    run_dir: Path | None  # the folder that it lies in; None for a checkpoint by itself
    facts: dict[str, Any]
    checkpoint: Checkpoint | None  # None: it was stopped before the first one
    newest: bool  # whether no later checkpoint lies beside it

    @property
    def lifetime(self) -> Lifetime:
        return Lifetime(**self.facts["lifetime"]) if self.checkpoint else Lifetime()

    def other_versions(self) -> str:
        """A warning if the numbers were made by other versions than those here; mostly empty."""
        here, there = folder.versions(), self.facts["versions"]
        changed = [f"{name} {there[name]}, here {here[name]}" for name in here if there.get(name, "") != here[name]]
        return f"saved with {'; '.join(changed)}: the last bits may differ from then on" if changed else ""

    def folder_to_go_on_in(self) -> Path:
        """The run's own folder, which only its last checkpoint goes on in: what came later is not to be overwritten."""
        if self.run_dir is None or not self.newest:
            what = "lies in no run's folder" if self.run_dir is None else "is not the last one of its run"
            raise UsageError(f"checkpoint {self.checkpoint.path} {what}: give a new --run-dir to go on from it")
        return self.run_dir

    def best_value(self, attribute: str) -> float:
        """What a new best state has to beat."""
        scores = [
            checkpoint.read_facts(path)["score"]
            for path in checkpoint.iterations(self.checkpoint.path.parent, best=True).values()
        ]
        return max((score["value"] for score in scores if score["metric"] == attribute), default=-math.inf)


def read_run(path: str | Path, which: str | int = "last") -> Saved:
    """A run's folder, or one checkpoint's.

    Raises:
        UsageError: neither, or damaged, in one line that names what can be gone on with.
    """
    path = Path(path)
    is_run = (path / folder.CONFIG).exists()
    if is_run and which == "last" and not checkpoint.iterations(path / CHECKPOINTS):
        return Saved(path, folder.read(path), None, True)
    found = checkpoint.find(path, which)
    run_dir = path if is_run else found.parents[1] if (found.parents[1] / folder.CONFIG).exists() else None
    regular = checkpoint.iterations(found.parent)
    try:
        read = checkpoint.read(found)
    except UsageError as error:
        raise UsageError(f"{error}{_intact(regular, found)}") from None
    return Saved(run_dir, read.facts, read, bool(regular) and found == regular[max(regular)])


def facts_of(config: Any, algorithm: Algorithm, settings: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of the run beside its state."""
    policies = {
        policy: {
            "agents": list(agents),
            "observation_space": to_json(group.observation_space),
            "action_space": to_json(group.action_space),
        }
        for group in algorithm.grouping.groups
        for policy, agents in zip(group.policies, group.agents, strict=True)
    }
    agents = {policy: tuple(values["agents"]) for policy, values in policies.items()}
    return {
        **config_facts(config, agents),
        "env_name": config.env_name,
        "versions": folder.versions(),
        "policies": json.loads(json.dumps(policies)),  # as it will be read back: lists for tuples
        "run_settings": settings,
    }


def restore(
    saved: Saved, facts: dict[str, Any], config: Any, algorithm: Algorithm, key: Key, hypers: PyTree, env_params: PyTree
) -> tuple[Runner, PyTree, PyTree]:
    """(runner, hypers, env_params) to go on with: those saved, but numbers that `config` says otherwise.

    Args:
        facts: of `config` and `algorithm`, as `facts_of` gives them.
        key, hypers, env_params: what a run of `config` would begin with.

    Raises:
        UsageError: the checkpoint is another environment's, or of other shapes; what differs.
    """
    where = f"checkpoint {saved.checkpoint.path}"
    for name in ("env_name", "policies"):
        ours, theirs = facts[name], saved.facts[name]
        if ours != theirs:
            differs = f"{name} {theirs!r} there and {ours!r} here"
            if name == "policies":
                differs = _difference(theirs, ours)
            raise UsageError(f"{where} does not fit: {differs}")
    arrays = saved.checkpoint.arrays
    shapes = jax.eval_shape(algorithm.init, key, hypers, env_params)
    runner = checkpoint.filled(shapes, arrays, "runner", where)
    theirs = None if saved.facts["objects"] else folder.read_config(saved.facts)
    if theirs is not None and _equal(config.hypers(), theirs.hypers()):
        hypers = checkpoint.filled(hypers, arrays, "hypers", where)
    if facts["config"]["env_args"] == saved.facts["config"]["env_args"]:
        env_params = checkpoint.filled(env_params, arrays, "env_params", where)
    return runner, hypers, env_params


def branch(saved: Saved, run_dir: Path) -> None:
    """Brings the logs so far into the new folder of a run that goes on from an older checkpoint."""
    for name in ("metrics.jsonl", "progress.csv"):
        if saved.run_dir is not None and (saved.run_dir / name).exists():
            shutil.copyfile(saved.run_dir / name, run_dir / name)


def _intact(regular: dict[int, Path], damaged: Path) -> str:
    """What else can be gone on with, for the end of an error."""
    for path in reversed(regular.values()):
        if path != damaged:
            try:
                checkpoint.read(path)
            except UsageError:
                continue
            return f"; {path} is intact: go on from it with a new --run-dir"
    return "; no other checkpoint lies beside it"


def _difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """The first difference between two tables of policies."""
    if list(theirs) != list(ours):
        return f"policies {list(theirs)} there and {list(ours)} here"
    policy = next(policy for policy in ours if ours[policy] != theirs[policy])
    name = next(name for name in ours[policy] if ours[policy][name] != theirs[policy].get(name))
    return f"{name} of policy {policy!r} is {theirs[policy].get(name)} there and {ours[policy][name]} here"


def _equal(one: PyTree, other: PyTree) -> bool:
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    return all(
        x.shape == y.shape and bool(jnp.all(x == y))
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )
