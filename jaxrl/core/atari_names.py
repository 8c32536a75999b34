"""Names of Atari's games in Gymnasium's registry.

Worker processes use this module, so it must not import JAX.
"""

import re

LIBRARY = "ale_py"  # which registers them
OLD_ATARI = re.compile(r"(\w+?)(NoFrameskip|Deterministic)-v\d")


def is_of_atari(name: str) -> bool:
    """Returns whether this is a game's name, such as "ALE/Pong-v5" or "PongNoFrameskip-v4"."""
    return name.startswith("ALE/") or OLD_ATARI.fullmatch(name) is not None
