"""Records RLlib's answers to random programs: python -m tests.episodes.record_rllib_episodes.

Needs `ray[rllib]`; writes tests/reference/rllib_episodes.json.gz, which the tests replay.
"""

import gzip
import json
import random
from pathlib import Path
from types import SimpleNamespace

from tests.episodes.episode_programs import answers
from tests.episodes.program_drawing import draw_multi, draw_single

RECORDING = Path(__file__).parents[1] / "reference" / "rllib_episodes.json.gz"
PROGRAMS = 400  # of each kind


def rllib():
    """RLlib's classes, with the spaces that they need."""
    import gymnasium.spaces
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    return SimpleNamespace(
        spaces=gymnasium.spaces,
        SingleAgentEpisode=SingleAgentEpisode,
        MultiAgentEpisode=MultiAgentEpisode,
    )


def record():
    library = rllib()
    recorded = {}
    for draw in (draw_single, draw_multi):
        programs = [draw(random.Random(seed)) for seed in range(PROGRAMS)]
        recorded[draw.__name__] = [
            {"program": program, "answers": answers(program, library)} for program in programs
        ]
    text = json.dumps(recorded, separators=(",", ":"), sort_keys=True)
    RECORDING.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    record()
