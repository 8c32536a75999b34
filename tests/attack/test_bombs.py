"""Small files that stand for gigabytes are refused before these are allocated."""

import json
import shutil
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tensorstore

import jaxrl
from jaxrl.episodes import EpisodeWriter, SingleAgentEpisode, bounded_table, read_episodes
from jaxrl.export import numpy_policy
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.run.storage import array_storage, checkpoint
from tests.export.kinds import policy_of_kind
from tests.messages import refusal
from tests.programs import SMALL_CARTPOLE


@pytest.fixture
def small_memory(monkeypatch):
    """A machine of four megabytes."""
    monkeypatch.setattr(bounded_table, "host_memory", lambda: 2**22)


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array(np.zeros(2**20)),
        pyarrow.array(["a" * 10_000] * 2**12),
        pyarrow.array([b"\0" * 2**21, b"\0" * 2**21]),
        pyarrow.array([np.zeros(2**20, np.int8), np.zeros(2**20, np.int8)]),
    ],
    ids=["rows", "one text many times", "long texts", "long lists"],
)
def test_an_episode_file_is_refused_by_what_it_would_take(column, tmp_path, small_memory):
    file = tmp_path / "bomb.parquet"
    table = pyarrow.table({"column": column})
    pyarrow.parquet.write_table(table, file, compression="zstd", write_page_checksum=True)
    assert file.stat().st_size < 2**16
    with refusal("half of this machine's memory"):
        list(read_episodes(tmp_path))


def test_an_episode_file_that_fits_is_read(tmp_path, small_memory):
    episode = SingleAgentEpisode("one", observations=[0, 1], actions=[0], rewards=[1.0])
    with EpisodeWriter(tmp_path) as writer:
        episode.set_lookback(0)
        writer.write(episode)
    assert [each.id_ for each in read_episodes(tmp_path)] == ["one"]


def test_an_exported_policy_is_refused_by_the_size_of_its_arrays(tmp_path, monkeypatch):
    path = tmp_path / "policy.npz"
    policy_of_kind("tables").export(path)
    NumpyPolicy(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("more.npy", b"\0" * 2**22)
    monkeypatch.setattr(numpy_policy, "MOST_BYTES", 2**21)
    with pytest.raises(ValueError, match="it would take more than 2097152 bytes"):
        NumpyPolicy(path)


@pytest.mark.parametrize("shape", [[2**40], [2**20, 2**20], [0, 2**62], [-1], ["a"]], ids=str)
def test_an_exported_array_of_an_impossible_shape_is_refused(shape, tmp_path):
    path = tmp_path / "policy.npz"
    with zipfile.ZipFile(path, "w") as file, file.open("metadata.npy", "w") as entry:
        header = {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(entry, header)
    with pytest.raises(ValueError, match="is damaged, or no exported policy"):
        NumpyPolicy(path)


def forge_shape(folder, name, shape):
    """Says that an array has another shape, of which nothing is stored."""
    base = {"driver": "file", "path": f"{folder}/"}
    index = tensorstore.KvStore.open({"driver": "ocdbt", "base": base}).result()
    key = f"{name}/.zarray".encode()
    form = json.loads(index[key])
    index[key] = json.dumps({**form, "shape": shape, "chunks": shape}).encode()


@pytest.mark.long
def test_a_checkpoint_whose_arrays_would_fill_the_memory_is_refused(tmp_path):
    with jaxrl.Trainer(SMALL_CARTPOLE, run_dir=tmp_path / "run", quiet=True) as trainer:
        trainer.train()
        found = trainer.save()
    copy = tmp_path / "copy"
    shutil.copytree(found, copy)
    arrays = copy / checkpoint.ARRAYS
    names = [name for name in checkpoint.read_facts(copy)["arrays"] if name.startswith("weights")]
    forge_shape(arrays, names[0], [2**40])
    with pytest.raises(ValueError, match="they take 4 TiB, more than half of this machine"):
        array_storage.read(arrays, names)
