"""Trainers, policies and runs as a notebook shows them."""

from typing import Any

from jaxrl.algorithms.base import environment_line, idle_lines, policy_lines
from jaxrl.core.displays import Display
from jaxrl.core.plan import Line
from jaxrl.core.settings_display import settings_display
from jaxrl.models.mixed_precision import MixedPrecision
from jaxrl.models.model import model_table, num_parameters
from jaxrl.run.logging.console import agent_returns, duration
from jaxrl.run.logging.result_rows import read_result
from jaxrl.run.result_display import figures_of
from jaxrl.run.results import RETURN, flatten, lookup
from jaxrl.run.storage.json_lines import whole_lines
from jaxrl.run.storage.runs import METRICS


def trainer_display(trainer: Any) -> Display:
    """A trainer: where it writes, what plays, how far it is."""
    config, lifetime = trainer.config, trainer.lifetime
    total = config.num_updates * config.train_batch_size
    trained = f"{lifetime.num_env_steps:,} of {total:,} steps"
    if lifetime.time_total_s:
        trained += f" in {duration(lifetime.time_total_s)}"
    lines: list[Line] = [
        ("run folder", trainer.run_dir or "none, nothing is written"),
        environment_line(config),
        *policy_lines(trainer.algorithm),
        *idle_lines(config),
        ("trained", trained),
    ]
    result = trainer.last_result or {}
    lines += figures_of(dict(flatten(result)), (RETURN, f"evaluation/{RETURN}"))
    by_agent = agent_returns(lookup(result, "env_runners/agent_episode_returns_mean") or {})
    if by_agent:
        lines.append(("by agent", by_agent))
    title = f"{type(trainer).__name__} of {config.env_name}"
    return Display(title, lines, folded=settings_display(config))


def policy_display(policy: Any) -> Display:
    """A policy: its spaces, its network and where it comes from."""
    model = policy.policy_spec.model
    lines: list[Line] = []
    if policy.origin is not None:
        lines += [("from", policy.origin.source), ("environment", policy.origin.env_name)]
    if policy.agents:
        lines.append(("plays", ", ".join(policy.agents)))
    lines += [
        ("observations", policy.observation_space),
        ("actions", policy.action_space),
        ("network", f"{layers_of(model)}, {num_parameters(model):,} parameters"),
    ]
    if policy.remembers:
        lines.append(("memory", "of earlier observations: say where episodes begin"))
    layers = Display("its parameters", [(None, model_table(model))])
    return Display(f"Policy {policy.name}", lines, folded=layers)


def layers_of(model: Any) -> str:
    """`64 x 64, LSTM of 256`: the sizes of a built-in network, or the name of a user's."""
    if isinstance(model, MixedPrecision):
        return f"{layers_of(model.network)}, products in bfloat16"
    torso = getattr(model, "torso", model)
    hiddens = getattr(getattr(torso, "mlp", torso), "hiddens", None)
    if hiddens is None:
        return getattr(model, "name", type(model).__name__)
    parts = []
    for filters, kernel, _ in getattr(torso, "conv_filters", ()):
        parts.append(f"{filters} filters of {kernel} x {kernel}")
    parts.append(" x ".join(map(str, hiddens)) or "no hidden layer")
    if hasattr(model, "core"):
        parts.append(f"{type(model.core).__name__} of {model.core.num_outputs}")
    return ", ".join(parts)


def run_display(run: Any) -> Display:
    """A run's folder: what was trained in it and how far."""
    env_name = run.facts.get("env_name", "")
    lines: list[Line] = [("run folder", run.run_dir), ("environment", env_name)]
    for policy, facts in run.facts["policies"].items():
        lines.append(("policy", f"{policy} plays {', '.join(facts['agents'])}"))
    newest = b""
    for _, line in whole_lines(run.run_dir / METRICS):
        newest = line
    lines += figures_of(dict(flatten(read_result(newest) or {})))
    return Display(f"Run of {env_name}", lines)
