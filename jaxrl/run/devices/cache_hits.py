"""Programs that JAX loaded from its persistent cache, counted."""

import functools

import jax

HIT = "/jax/compilation_cache/cache_hits"  # JAX's name of the event


def num_hits() -> int:
    """The number of programs that this process has loaded from a cache since it first asked."""
    return len(_hits())


@functools.cache
def _hits() -> list[str]:
    """JAX's reports of programs that it loaded, from the first call on."""
    hits = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if event == HIT else None
    )
    return hits
