"""The kind of objects that the setting `callbacks` names, and the name of their part of a run."""

from typing import Any

from jaxrl.core.trust import Kind

CALLBACKS_NAME = "callbacks"  # of the feature's slice, and of the host's state in checkpoints
HISTOGRAMS = "hist_data"  # the hook whose name does not begin with "on_"


def _is_callbacks(found: Any) -> bool:
    """A class or an object with hooks."""
    hooks = [HISTOGRAMS, *(name for name in dir(found) if name.startswith("on_"))]
    return any(callable(getattr(found, hook, None)) for hook in hooks)


CALLBACKS = Kind(
    CALLBACKS_NAME, "jaxrl.callbacks", "a class derived from jaxrl.Callbacks", _is_callbacks
)
