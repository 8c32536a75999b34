"""Trainers, policies, runs and results as a notebook shows them."""

from collections.abc import Mapping
from typing import Any

from jaxrl.algorithms.base import environment_line, idle_lines, policy_lines
from jaxrl.algorithms.config_display import config_display
from jaxrl.core.displays import Display
from jaxrl.core.errors import brief
from jaxrl.core.plan import Line
from jaxrl.models.model import model_table, num_parameters
from jaxrl.run.logging.console import agent_returns, duration
from jaxrl.run.logging.result_rows import read_result
from jaxrl.run.results import ENV_STEPS, ITERATIONS, RETURN, Result, flatten, lookup
from jaxrl.run.storage.json_lines import whole_lines
from jaxrl.run.storage.runs import METRICS

FIGURES = (  # (label, path, form) of the results that most people look at
    ("iteration", ITERATIONS, "{:,}"),
    ("steps", ENV_STEPS, "{:,}"),
    ("return", RETURN, "{:.2f}"),
    ("length", "env_runners/episode_len_mean", "{:.1f} steps"),
    ("evaluation", f"evaluation/{RETURN}", "return {:.2f}"),
    ("speed", "perf/env_steps_per_s", "{:,.0f} steps/s"),
)
AGENT_RETURNS = "env_runners/agent_episode_returns_mean"
NUMBER = int | float
MOST_SHOWN = 10  # numbers of a list


def trainer_display(trainer: Any) -> Display:
    """A trainer: where it writes, what plays, how far it is."""
    config, lifetime = trainer.config, trainer.lifetime
    total = config.num_updates * config.train_batch_size
    trained = f"{lifetime.num_env_steps:,} of {total:,} steps"
    if lifetime.time_total_s:
        trained += f" in {duration(lifetime.time_total_s)}"
    lines = [
        ("run folder", trainer.run_dir or "none, nothing is written"),
        environment_line(config),
        *policy_lines(trainer.algorithm),
        *idle_lines(config),
        ("trained", trained),
    ]
    title = f"{type(trainer).__name__} of {config.env_name}"
    lines += _figures(trainer.last_result or {}, ("return", "evaluation"))
    return Display(title, lines, folded=config_display(config))


def policy_display(policy: Any) -> Display:
    """A policy: its spaces, its network and where it comes from."""
    model = policy.policy_spec.model
    hiddens = " x ".join(map(str, getattr(model, "hiddens", ())))
    network = f"{type(model).__name__} {hiddens}".strip()
    lines: list[Line] = []
    if policy.origin is not None:
        lines += [("from", policy.origin.source), ("environment", policy.origin.env_name)]
    if policy.agents:
        lines.append(("plays", ", ".join(policy.agents)))
    if policy.remembers:
        lines.append(("memory", "of earlier observations: say where episodes begin"))
    lines += [
        ("observations", policy.observation_space),
        ("actions", policy.action_space),
        ("network", f"{network}, {num_parameters(model):,} parameters"),
    ]
    layers = Display("its parameters", [(None, model_table(model))])
    return Display(f"Policy {policy.name}", lines, folded=layers)


def run_display(run: Any) -> Display:
    """A run's folder: what was trained in it and how far."""
    env_name = run.facts.get("env_name", "")
    lines: list[Line] = [("run folder", run.run_dir), ("environment", env_name)]
    for policy, facts in run.facts["policies"].items():
        lines.append(("policy", f"{policy} plays {', '.join(facts['agents'])}"))
    newest = b""
    for _, line in whole_lines(run.run_dir / METRICS):
        newest = line
    result = read_result(newest)
    return Display(f"Run of {env_name}", [*lines, *_figures(result or {})])


def result_display(result: Result) -> Display:
    """A result: the figures that most people look at, and folded below them all the others."""
    every = [(path, _shown(value)) for path, value in flatten(result)]
    if ITERATIONS not in result and lookup(result, RETURN) is None:  # a part of a result
        return Display("Result", every)
    folded = Display(f"all {len(every)} results, by their paths", every)
    return Display("Result", _figures(result), folded=folded)


def _figures(result: Mapping[str, Any], labels: tuple[str, ...] = ()) -> list[Line]:
    """The lines of a result's figures, of all or of those with these labels.

    A log may hold anything: what is no number is left out.
    """
    lines: list[Line] = []
    for label, path, form in FIGURES:
        value = lookup(result, path)
        if isinstance(value, NUMBER) and (not labels or label in labels):
            lines.append((label, form.format(value)))
    returns = lookup(result, AGENT_RETURNS)
    if isinstance(returns, Mapping) and len(returns) > 1:
        numbers = {name: value for name, value in returns.items() if isinstance(value, NUMBER)}
        lines.append(("by agent", agent_returns(numbers)))
    return lines


def _shown(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MOST_SHOWN:
        return f"{len(value):,} values, the last {brief(value[-1])}"
    return value
