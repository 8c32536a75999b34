"""The state of a run: everything that a checkpoint holds, and its fit to whoever resumes from it.

Each part of the saved state has a rule:

    learners, key, num_updates   must fit: weights, optimiser states, filters and counts are kept
    opponents                    must fit; new if the run had none
    envs, window                 start from scratch if they do not fit
    hypers, env_params           those saved if the settings are the same, else the configuration's

Where nothing changed, every array is taken as it was saved, and training continues bit for bit. The
states of hooks are not among these: each hook restores its own state (`run/resume.py`).
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.algorithms.task_settings import OpponentPool
from jaxrl.core.errors import UsageError, unlike
from jaxrl.core.program_spaces import is_alike_inside
from jaxrl.core.spaces import to_json
from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.rollout.callbacks_kind import CALLBACKS_NAME
from jaxrl.rollout.env_step import env_axes
from jaxrl.run.devices.mesh import num_processes, on_host
from jaxrl.run.logging.panels import panel_facts
from jaxrl.run.results import Snapshot
from jaxrl.run.storage import checkpoint, run_folder
from jaxrl.run.storage.checkpoint import Checkpoint
from jaxrl.run.storage.config_file import config_facts, saved_numbers
from jaxrl.run.storage.json_lines import dumped

NEW_BATCH = 0x62617463  # folded into the key of a run whose batch size changes
ENVIRONMENTS = "the environments and the callbacks' data"
OUTSIDE = "new episodes"  # of an environment that holds them outside the program
STATISTICS = "the statistics of recent episodes"
OPPONENTS = "the pool of opponents"


def write(
    folder: Path,
    algorithm: Algorithm,
    facts: dict[str, Any],
    snapshot: Snapshot,
    score: dict[str, Any] | None = None,
) -> Path:
    """Writes a checkpoint into a folder of such; returns its path.

    Args:
        facts: of the run, as `facts_of` gives them.
        score: {"metric", "value"} of a best state.

    Raises:
        OSError, ValueError: it could not be written; nothing of it stays.
    """
    facts = {
        **facts,
        "lifetime": asdict(snapshot.lifetime),
        "result": json.loads(dumped(snapshot.result)),
        "hooks": snapshot.hooks,
        "score": score,
    }
    tree = state_tree(algorithm, snapshot)
    return checkpoint.write(folder, tree, facts, best=score is not None)


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


def facts_of(config: Any, algorithm: Algorithm, settings: dict[str, Any]) -> dict[str, Any]:
    """The facts of the run in a checkpoint, in addition to its state."""
    policies = {
        policy: {
            "agents": list(agents),
            "observation_space": to_json(group.observation_space),
            "action_space": to_json(group.action_space),
            **_critic_facts(policy_spec),
        }
        for group, policy_spec in zip(
            algorithm.grouping.groups, algorithm.policy_specs, strict=True
        )
        for policy, agents in zip(group.policies, group.agents, strict=True)
    }
    agents = {policy: tuple(values["agents"]) for policy, values in policies.items()}
    return {
        **config_facts(config, agents),
        "env_name": config.env_name,
        "versions": run_folder.versions(),
        # Alike policies are stacked in this order; `policies_to_train` is part of the likeness.
        "groups": [list(group.policies) for group in algorithm.grouping.groups],
        # Steps of an iteration: schedules and counts are in these.
        "num_env_steps": algorithm.num_env_steps,
        # Whether acting needs to know which actions are possible.
        "action_masks": algorithm.rollout_spec.masked,
        "policies": json.loads(json.dumps(policies)),  # as it will be read back: lists for tuples
        # For whom opponents are drawn; its weights are those of the newest copy.
        "opponents_of": None if algorithm.opponents is None else algorithm.opponents.policy,
        "panels": panel_facts(  # of its curves
            algorithm.headline_metrics, has_opponents=algorithm.opponents is not None
        ),
        "run_settings": settings,
        "num_processes": num_processes(),
    }


def _critic_facts(policy_spec: PolicySpec) -> dict[str, Any]:
    """The space of a centralised critic, without which its network could not be made again."""
    critic = policy_spec.critic
    return {} if critic is None else {"critic_space": to_json(critic.space)}


class Fresh(NamedTuple):
    """A part of the state that starts from scratch, and why the saved one does not fit."""

    part: str
    reason: str


class Restored(NamedTuple):
    """The state with which training continues."""

    runner: RunnerState
    hypers: PyTree
    env_params: PyTree
    fresh: tuple[Fresh, ...]  # empty after an exact resume


def restore(
    saved: Checkpoint,
    facts: dict[str, Any],
    config: Any,
    algorithm: Algorithm,
    start: tuple[Key, PyTree, PyTree],
    *,
    strict: bool = False,
) -> Restored:
    """The saved state, with the numbers that `config` says otherwise.

    Args:
        facts: of `config` and `algorithm`, as `facts_of` gives them.
        start: (key, hypers, env_params) that a run of `config` would begin with.
        strict: refuse a state of which a part would start from scratch.

    Raises:
        UsageError: the checkpoint is another environment's, or its weights have other shapes; what
            differs.
    """
    where = f"checkpoint {saved.path}"
    _check_same_run(saved.facts, facts, where)
    hypers, env_params = _unchanged_numbers(saved, facts, config, start[1:])
    key, shapes = start[0], jax.eval_shape(algorithm.init, start[0], hypers, env_params)
    groups = saved.facts["groups"], facts["groups"]
    arrays = regrouped(saved.arrays, groups, _parts_by_group(algorithm))
    # What must fit.
    learners = checkpoint.filled(shapes.learners, arrays, "runner.learners", where)
    counts = {"key": shapes.key, "num_updates": shapes.num_updates}
    counts = checkpoint.filled(counts, arrays, "runner", where, others_allowed=True)
    opponents, new_pool = _opponents(saved, facts, algorithm, (shapes, learners), arrays)
    # What starts from scratch if it does not fit.
    envs, window, fresh = _episodes(saved, facts, algorithm, shapes, arrays)
    fresh += new_pool
    sizes = saved.facts["num_env_steps"], facts["num_env_steps"]
    if sizes[0] != sizes[1]:
        fresh.append(Fresh("the random keys", unlike("num_env_steps", *sizes)))
        counts = _counts_in_other_batches(saved.facts["lifetime"], sizes[1], counts["key"])
    if strict and fresh:
        raise UsageError(f"{where} does not fit: {fresh[0].reason}")
    if envs is None or window is None:
        # Not the run's first episodes again.
        init_key = jax.random.fold_in(key, saved.facts["lifetime"]["training_iteration"])
        begin = jax.jit(lambda *start: _episodes_of(algorithm.init(*start)))
        new_envs, new_window = begin(init_key, hypers, env_params)
        envs = new_envs if envs is None else envs
        window = new_window if window is None else window
    runner = RunnerState(learners=learners, envs=envs, window=window, opponents=opponents, **counts)
    return Restored(runner, hypers, env_params, tuple(fresh))


def restore_exactly(
    saved: Checkpoint, algorithm: Algorithm, start: tuple[Key, PyTree, PyTree]
) -> RunnerState:
    """The saved state with each array as it was saved.

    Raises:
        UsageError: one does not fit; the first difference.
    """
    shapes = jax.eval_shape(algorithm.init, *start)
    return checkpoint.filled(shapes, saved.arrays, "runner", f"checkpoint {saved.path}")


def _unchanged_numbers(
    saved: Checkpoint, facts: dict[str, Any], config: Any, numbers: tuple[PyTree, PyTree]
) -> tuple[PyTree, PyTree]:
    """(hypers, env_params): `numbers`, but the saved ones where the settings say the same."""
    where = f"checkpoint {saved.path}"
    hypers, env_params = numbers
    before = saved_numbers(saved.facts, config)
    if before is not None and _equal(config.hypers(), before.hypers()):
        hypers = checkpoint.filled(hypers, saved.arrays, "hypers", where)
    is_same_object = "env" in saved.facts["objects"] and not isinstance(config.env, str)
    if facts["config"]["env_args"] == saved.facts["config"]["env_args"] or is_same_object:
        env_params = checkpoint.filled(env_params, saved.arrays, "env_params", where)
    return hypers, env_params


def fresh_line(fresh: tuple[Fresh, ...], saved: dict[str, Any], current: dict[str, Any]) -> str:
    """A line on what starts from scratch, and why; `saved`, `current`: facts of the two runs."""
    changed = changed_settings(saved["config"], current["config"])
    why = "saved by an older version of jaxrl or of the environment"
    if fresh[0].part == OUTSIDE:
        why = f"checkpoints do not hold the episodes of {current['env_name']}"
    elif changed or current["objects"]:
        why = f"resumed with other {', '.join(changed) or 'objects'}"
    parts = " and ".join(part for part, _ in fresh)
    rest = "weights, optimiser states, filters and counts are kept"
    return f"{why}: {parts} start from scratch; {rest}"


def changed_settings(saved: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """The names of the settings that two configurations, as JSON holds them, do not share."""
    return [name for name in current if current[name] != saved.get(name)]


def _parts_by_group(algorithm: Algorithm) -> tuple[str, ...]:
    """The names of the arrays that are stored by group, [N, ...], or how they begin."""
    axes = checkpoint.named_arrays({"runner": {"envs": env_axes(algorithm.rollout_spec)}})
    return ("runner.learners", *(name for name, axis in axes.items() if axis == 1))


def regrouped(
    arrays: dict[str, np.ndarray],
    groups: tuple[list[list[str]], list[list[str]]],
    parts: tuple[str, ...],
) -> dict[str, np.ndarray]:
    """Saved arrays with those by group stacked for other groups of the same policies.

    Which policies are alike, and so stacked, depends on which of them are trained.

    Args:
        groups: (saved, current), the policies of each.
        parts: as of `_parts_by_group`.
    """
    saved, current = groups
    if saved == current:
        return arrays
    others = {
        name: array
        for name, array in arrays.items()
        if not name.startswith(tuple(f"{part}." for part in parts))
    }
    for part in parts:
        rows = _rows_by_policy(arrays, part, saved)
        for g, policies in enumerate(current):
            for rest in rows[policies[0]]:
                stacked = [rows[policy][rest] for policy in policies if rest in rows[policy]]
                others[f"{part}.{g}{rest}"] = np.stack(stacked)
    return others


def _rows_by_policy(
    arrays: dict[str, np.ndarray], part: str, groups: list[list[str]]
) -> dict[str, dict[str, np.ndarray]]:
    """{policy: {the rest of a name: its row}} of a part's arrays by group, [N, ...]."""
    rows: dict[str, dict[str, np.ndarray]] = {}
    for g, policies in enumerate(groups):
        for i, policy in enumerate(policies):
            rows[policy] = {}
            for name, array in arrays.items():
                if f"{name}.".startswith(f"{part}.{g}."):
                    rows[policy][name.removeprefix(f"{part}.{g}")] = array[i]
    return rows


def _check_same_run(saved: dict[str, Any], current: dict[str, Any], where: str) -> None:
    """Refuses another environment, other policies, and another seed."""
    if not _is_same_environment(saved, current):
        names = repr(saved["env_name"]), repr(current["env_name"])
        raise UsageError(f"{where} does not fit: {unlike('env_name', *names)}")
    if list(saved["policies"]) != list(current["policies"]):
        names = list(saved["policies"]), list(current["policies"])
        raise UsageError(f"{where} does not fit: {unlike('policies', *names)}")
    for policy, present in current["policies"].items():
        for name in ("observation_space", "action_space"):
            old = saved["policies"][policy].get(name)
            if not is_alike_inside(old, present[name]):
                what = unlike(f"{name} of policy {policy!r}", old, present[name])
                raise UsageError(f"{where} does not fit: {what}")
    seeds = saved["config"].get("seed"), current["config"].get("seed")
    if seeds[0] != seeds[1]:
        raise UsageError(
            f"{where} does not fit: {unlike('seed', *seeds)}; a run keeps its random keys"
        )


def _episodes(
    saved: Checkpoint,
    facts: dict[str, Any],
    algorithm: Algorithm,
    shapes: RunnerState,
    arrays: dict[str, np.ndarray],
) -> tuple[PyTree, PyTree, list[Fresh]]:
    """(envs, window, fresh): the saved episodes; None for a part that has to start from scratch."""
    parts, fresh = {}, []
    for name, what in (("envs", ENVIRONMENTS), ("window", STATISTICS)):
        parts[name] = None
        if name == "envs" and algorithm.plays_outside:
            reason = f"it does not hold the episodes of {facts['env_name']}"
            fresh.append(Fresh(OUTSIDE, reason))
            continue
        reason = _other_meaning(saved.facts, facts, shapes, name)
        if reason is None:
            where, template = f"checkpoint {saved.path}", getattr(shapes, name)
            try:
                parts[name] = checkpoint.filled(template, arrays, f"runner.{name}", where)
            except UsageError as error:
                reason = str(error).partition("does not fit: ")[2] or str(error)
        if reason is not None:
            fresh.append(Fresh(what, reason))
    return parts["envs"], parts["window"], fresh


def _opponents(
    saved: Checkpoint,
    facts: dict[str, Any],
    algorithm: Algorithm,
    state: tuple[RunnerState, tuple[PyTree, ...]],
    arrays: dict[str, np.ndarray],
) -> tuple[PyTree, list[Fresh]]:
    """The saved pool of opponents; a run that had none begins with one.

    Args:
        state: the shapes of the state, and the learners.
    """
    pool, (shapes, learners) = algorithm.opponents, state
    if pool is None:
        return None, []
    where = f"checkpoint {saved.path}"
    saved_pool, current_pool = (run["config"].get("opponents") for run in (saved.facts, facts))
    if saved_pool is None:
        begun = pool.init(learners[pool.group].weights)
        return begun, [Fresh(OPPONENTS, "the run had no pool of them")]
    names = [list((settings or {}).get("fixed", {})) for settings in (saved_pool, current_pool)]
    if names[0] != names[1]:
        raise UsageError(
            f"{where} does not fit: its pool has the fixed opponents {names[0]} and not {names[1]}"
        )
    sizes = [(pool or {}).get("size", OpponentPool.size) for pool in (saved_pool, current_pool)]
    if sizes[0] != sizes[1]:
        raise UsageError(
            f"{where} does not fit: its pool of opponents has size={sizes[0]} and not {sizes[1]}"
        )
    return checkpoint.filled(shapes.opponents, arrays, "runner.opponents", where), []


def _other_meaning(
    saved: dict[str, Any], current: dict[str, Any], shapes: RunnerState, part: str
) -> str | None:
    """The reason why a part of equal shape has another meaning now; None if it has the same."""
    for policy, present in current["policies"].items():
        old = saved["policies"][policy].get("agents")
        if old != present["agents"]:
            return unlike(f"agents of policy {policy!r}", old, present["agents"])
    callbacks = [facts["config"].get("callbacks") for facts in (saved, current)]
    data = shapes.envs.features.get(CALLBACKS_NAME)
    if part == "envs" and jax.tree.leaves(data) and callbacks[0] != callbacks[1]:
        return unlike("callbacks", *callbacks)
    return None


def _counts_in_other_batches(
    lifetime: dict[str, Any], num_env_steps: int, key: Key
) -> dict[str, jax.Array]:
    """Key and update count for another batch size: schedules are read at count times steps.

    Counts may come again then, so the key changes, or the same random numbers would be drawn twice.
    """
    key = jax.random.fold_in(jax.random.fold_in(key, NEW_BATCH), lifetime["training_iteration"])
    return {"key": key, "num_updates": jnp.int32(-(-lifetime["num_env_steps"] // num_env_steps))}


def _episodes_of(runner: RunnerState) -> tuple[PyTree, PyTree]:
    return runner.envs, runner.window


def _is_same_environment(saved: dict[str, Any], current: dict[str, Any]) -> bool:
    """Returns whether both share an environment's own name or the name by which it is made.

    Of an object that no file holds only the class is noted, which two different ones may share.
    """
    names = [{facts["env_name"]} for facts in (saved, current)]
    if not any("env" in facts["objects"] for facts in (saved, current)):
        names = [
            env_names | {facts["config"].get("env")}
            for env_names, facts in zip(names, (saved, current), strict=True)
        ]
    return bool((names[0] & names[1]) - {None})


def _equal(first: PyTree, second: PyTree) -> bool:
    if jax.tree.structure(first) != jax.tree.structure(second):
        return False
    return all(
        np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    )
