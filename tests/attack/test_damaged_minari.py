"""Damaged Minari datasets: refused in one line, and never read as other data."""

import json
import random

import numpy as np
import pytest

from jaxrl.core.errors import UsageError
from jaxrl.episodes.minari_datasets import from_minari, to_minari
from tests.episodes.test_minari_datasets import of_steps

minari = pytest.importorskip("minari", reason="the extra `offline`")
h5py = pytest.importorskip("h5py", reason="the extra `offline`")

NAME = "plane/damaged-v0"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The folder of a dataset of three episodes."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    to_minari([of_steps(count) for count in (4, 7, 9)], NAME)
    return tmp_path / NAME / "data"


def read():
    """All that a reader gets of the episodes, comparable."""
    return [
        (
            *(getattr(episode, f"get_{what}")().tobytes() for what in PARTS),
            np.asarray(episode.get_extra_model_outputs("action_logp")).tobytes(),
            (len(episode), episode.is_terminated, episode.is_truncated),
        )
        for episode in from_minari(NAME)
    ]


PARTS = ("observations", "actions", "rewards")


@pytest.mark.parametrize("name", ["main_data.hdf5", "metadata.json"])
def test_a_flipped_bit_is_refused_or_changes_nothing(name, written):
    whole, rng, num_refused = (written / name).read_bytes(), random.Random(0), 0
    truth = read()
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        (written / name).write_bytes(damaged)
        try:
            assert read() == truth
        except UsageError as error:
            assert "\n" not in str(error) and NAME in str(error)
            num_refused += 1
    assert num_refused > 30


@pytest.mark.parametrize(("entry", "value"), [("total_episodes", 2), ("total_steps", 19)])
def test_episodes_that_are_fewer_or_more_than_the_metadata_say_are_refused(entry, value, written):
    path = written / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), entry: value}))
    with pytest.raises(UsageError, match=r"damaged-v0' is damaged: its episodes have .* steps"):
        read()


def test_an_episode_whose_columns_differ_in_length_is_refused(written):
    with h5py.File(written / "main_data.hdf5", "a") as file:
        file["episode_1/terminations"].resize((6,))
    with pytest.raises(UsageError, match="episode 1 has 7 rewards, 6 terminations"):
        read()


def test_every_array_of_numbers_has_a_checksum(written):
    sums = {}
    with h5py.File(written / "main_data.hdf5") as file:
        file.visititems(
            lambda name, part: (
                sums.update({name: part.fletcher32}) if isinstance(part, h5py.Dataset) else None
            )
        )
        assert list(file) == ["episode_0", "episode_1", "episode_2"]
    assert len(sums) == 3 * 6 and all(sums.values())
    assert sorted(path.name for path in written.iterdir()) == ["main_data.hdf5", "metadata.json"]
