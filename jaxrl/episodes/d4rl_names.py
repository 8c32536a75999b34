"""D4RL's names of datasets, such as RLlib's `d4rl.door-human-v1`, and Minari's counterparts."""

import re

from jaxrl.core.errors import UsageError, brief

D4RL = "d4rl."  # begins RLlib's name of such a dataset
COUNTERPARTS = (  # D4RL's name without its version, and Minari's
    (r"(door|hammer|pen|relocate)-(human|cloned|expert)", r"D4RL/\1/\2-v2"),
    (r"maze2d-((?:umaze|medium|large|open)(?:-dense)?)", r"D4RL/pointmaze/\1-v2"),
    (r"antmaze-(umaze|umaze-diverse|(?:medium|large)-(?:play|diverse))", r"D4RL/antmaze/\1-v1"),
    (r"kitchen-(complete|mixed|partial)", r"D4RL/kitchen/\1-v2"),
    (r"minigrid-(fourrooms|fourrooms-random)", r"D4RL/minigrid/\1-v0"),
    (r"(ant|halfcheetah|hopper|walker2d)-(medium|expert)", r"mujoco/\1/\2-v0"),
)


def refusal_of(source: str) -> UsageError:
    """The error on a dataset of D4RL's, which says the name of Minari's.

    These were recorded again in the environments of today: they are not read in silence under the
    name of other data.
    """
    name = re.sub(r"-v\d+$", "", source.removeprefix(D4RL))
    for pattern, counterpart in COUNTERPARTS:
        if found := re.fullmatch(pattern, name):
            dataset = found.expand(counterpart)
            return UsageError(
                f"{source} is 'minari:{dataset}' here, Minari's counterpart in today's "
                f"environments; `minari download {dataset}` brings it"
            )
    return UsageError(
        f"{brief(source)} has no counterpart that is known; `minari list remote` lists Minari's "
        "datasets, which 'minari:NAME' reads"
    )
