"""Episodes up to a number of steps, by hand."""

import itertools

import numpy as np
import pytest

from jaxrl.play.whole_episodes import PlayedBatch, with_steps
from jaxrl.rollout.episode_stats import EpisodeStats


def batch(first, lengths, done):
    finished = EpisodeStats(np.zeros((len(lengths), 1)), np.array(lengths), {})
    return PlayedBatch(first, np.array(done), None, 9, finished)


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [
        (None, [3, 4, 0, 5]),
        (1, [3]),
        (3, [3]),
        (4, [3, 4]),
        (7, [3, 4]),
        (16, [3, 4, 0]),
        (17, [3, 4, 0, 5]),
    ],
)
def test_no_episode_is_counted_after_the_one_that_reaches_the_steps(steps, lengths):
    """Episodes of 3, 4 and 5 steps, and one that was cut after 9."""
    batches = iter([batch(0, [3, 4], [True, True]), batch(2, [0, 5], [False, True])])
    counted = [part.finished.length.tolist() for part in with_steps(batches, steps)]
    assert list(itertools.chain.from_iterable(counted)) == lengths
