"""Diagnostics of PPO: what deserves a warning if it lasts, as clipped values or a large KL."""

import functools
import math
from typing import Any, NamedTuple

# Share of clipped value targets worth a warning: the arena without memory learns well around 0.5.
MAX_CLIPPED_FRACTION = 0.6
FAR = 4.0  # times kl_target; the penalty's coefficient rises from twice the target on


class Limits(NamedTuple):
    """The settings of one policy that its numbers are held against."""

    value_clip: str | None
    vf_clip_param: float | None
    kl_target: float  # infinity where no penalty pulls towards it


def concerns(config: Any, result: dict[str, Any]) -> list[tuple[str, str]]:
    """(kind, text) of each concern, a kind at most once, for the first policy that it is true of.

    Args:
        config: a `PPOConfig`.
        result: an iteration's result tree.
    """
    limits = _limits(config)
    found: dict[str, tuple[str, list[str]]] = {}
    for policy, numbers in result.get("learners", {}).items():
        limit = limits.get(policy, limits[None])
        share, kl = numbers.get("vf_clip_fraction", 0.0), numbers.get("mean_kl_loss", 0.0)
        if share > MAX_CLIPPED_FRACTION:
            found.setdefault("vf_clip_param", (_clipped(share, limit), []))[1].append(policy)
        if kl > FAR * limit.kl_target:
            text = (
                f"the KL of an iteration stays far above its target (mean_kl_loss {kl:.3g}, "
                "kl_target "
                f"{limit.kl_target:.3g}): the steps are too large; lower lr, or num_epochs"
            )
            found.setdefault("kl_target", (text, []))[1].append(policy)
    return [(kind, f"{_names(policies)}: {text}") for kind, (text, policies) in found.items()]


def _clipped(share: float, limits: Limits) -> str:
    bound = f"vf_clip_param={limits.vf_clip_param:g}"
    if limits.value_clip == "prediction":
        return (
            f"most values ({share:.0%}) move by more than {bound} and are clipped; raise "
            "vf_clip_param, or lower lr"
        )
    return (
        f"most value targets ({share:.0%}) are clipped: their squared error is above {bound}, and "
        "from those the value "
        "learns nothing; raise vf_clip_param (towards the square of a usual return), or scale the "
        "rewards down"
    )


def _names(policies: list[str]) -> str:
    others = f" and {len(policies) - 1} more" if len(policies) > 1 else ""
    return f"policy {policies[0]!r}{others}"


@functools.lru_cache(maxsize=16)
def _limits(config: Any) -> dict[str | None, Limits]:
    """The limits of the policies with settings of their own, and under None of all others."""
    views = {None: config, **{policy: config.for_policy(policy) for policy, _ in config.per_policy}}
    return {
        policy: Limits(
            view.value_clip,
            view.vf_clip_param,
            view.kl_target if view.use_kl_loss and view.kl_coeff > 0 else math.inf,
        )
        for policy, view in views.items()
    }
