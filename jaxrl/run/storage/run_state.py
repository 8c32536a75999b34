"""The facts of a run and its whole state between two chunks, as checkpoints hold them."""

import json
from dataclasses import asdict
from typing import Any

import jax

from jaxrl.algorithms.base import Algorithm
from jaxrl.core.spaces import to_json
from jaxrl.core.types import PyTree
from jaxrl.models.policy_spec import PolicySpec
from jaxrl.run.devices.mesh import num_processes, on_host
from jaxrl.run.logging.panels import panel_facts
from jaxrl.run.results import Snapshot
from jaxrl.run.storage import run_folder
from jaxrl.run.storage.config_file import config_facts
from jaxrl.run.storage.json_lines import dumped


def state_facts(
    facts: dict[str, Any], snapshot: Snapshot, score: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The facts of a checkpoint beside its arrays."""
    return {
        **facts,
        "lifetime": asdict(snapshot.lifetime),
        "result": json.loads(dumped(snapshot.result)),
        "hooks": snapshot.hooks,
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
