"""The setting `callbacks`: its entries, and the feature that is made of those with traced hooks.

Hooks are looked at by modules that are imported where the setting has entries.
"""

from collections.abc import Iterable
from typing import Any, Self

from jaxrl.core.types import PyTree
from jaxrl.rollout.callbacks_kind import CALLBACKS_NAME
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.feature import Feature


def traced(entries: Iterable[Any]) -> tuple[Any, ...]:
    """The entries that a compiled program depends on: those that have a traced hook.

    Raises:
        UsageError: as `jaxrl.rollout.episode_callbacks.resolve_callbacks`.
    """
    if not entries:
        return ()
    from jaxrl.rollout.episode_callbacks import traced_entries

    return traced_entries(entries)


class CallbacksFeature(Feature):
    """The feature that calls traced hooks (`jaxrl.rollout.episode_callbacks.TracedCallbacks`)."""

    name = CALLBACKS_NAME

    @classmethod
    def of(cls, spec: RolloutSpec, config: Any, env_params: PyTree) -> Self | None:
        """The feature of the configuration's callbacks.

        Raises:
            UsageError: callbacks that break their contract, or clash with each other.
        """
        if not config.callbacks:
            return None
        from jaxrl.rollout.episode_callbacks import TracedCallbacks

        return TracedCallbacks.of(spec, config, env_params)
