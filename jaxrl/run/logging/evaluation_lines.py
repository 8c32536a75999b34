"""The line on an evaluation, and a hint where it surprises."""

from collections.abc import Mapping
from typing import Any

from jaxrl.run.logging.console import fitted, returns_of
from jaxrl.run.results import lookup


def evaluation_line(
    iteration: int, episodes: Mapping[str, Any], *, explore: bool, width: int | None = None
) -> str:
    """The results of an evaluation: return and its spread, per agent, length.

    Args:
        explore: whether its actions were sampled.
        width: as in `result_line`.
    """
    actions = "sampled" if explore else "greedy"
    if not episodes["num_episodes"]:
        return f"evaluation after iteration {iteration:,}: no {actions} episode has ended"
    mean, spread, least, most = (
        f"{episodes[f'episode_return_{name}']:.2f}" for name in ("mean", "std", "min", "max")
    )
    returns, by_agent = returns_of(episodes, f"{mean} +- {spread}")
    parts = {
        "what": f"evaluation after iteration {iteration:,}:",
        "episodes": f"{episodes['num_episodes']:,} {actions} episodes",
        "return": returns,
        "range": f"(from {least} to {most})",
        "agents": by_agent,
        "length": f"len {episodes['episode_len_mean']:.1f}",
    }
    return fitted(parts, ("range", "length", "agents"), width)


def greedy_hint(result: Mapping[str, Any], episodes: Mapping[str, Any]) -> str | None:
    """A line where greedy play is worse than every recent episode, which looks like a bug."""
    least = lookup(result, "env_runners/episode_return_min")
    mean = episodes.get("episode_return_mean")
    if least is None or mean is None or mean >= least:
        return None
    return (
        "evaluation takes the likeliest actions, training samples them: a policy that has learned "
        "little, or several "
        "that need chance to avoid each other, can do much worse so (evaluation_explore=True "
        "samples)"
    )
