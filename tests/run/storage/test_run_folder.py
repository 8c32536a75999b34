"""A run's folder: what it needs to hold, and who gets which one."""

import json
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from jaxrl import UsageError
from jaxrl.run.storage import run_folder
from jaxrl.run.storage.migrate import present_facts
from jaxrl.run.storage.run_folder_lock import RunFolderLock


def test_a_folder_whose_files_lack_something_is_called_damaged(tmp_path):
    rest = {"config_class": "", "env_name": "", "objects": [], "policies": {}}
    rest |= {"run_settings": {}, "versions": {}}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metadata.json").write_text(json.dumps(rest))
    assert run_folder.read(tmp_path) == present_facts({**rest, "config": {}})
    for damaged, message in (
        (
            {name: rest[name] for name in rest if name != "objects"},
            "metadata.json has no 'objects'",
        ),
        ({name: rest[name] for name in rest if name != "env_name"}, "json has no 'env_name'"),
        ({**rest, "panels": 5}, "panels in metadata.json is 5"),
        ([], "metadata.json holds no settings"),
        ({**rest, "objects": 7}, "objects in metadata.json is 7"),
        (b"\x00\xff\xfe", "metadata.json is not JSON"),
        (b"[" * 100_000, "metadata.json is not JSON"),
    ):
        text = damaged if isinstance(damaged, bytes) else json.dumps(damaged).encode()
        (tmp_path / "metadata.json").write_bytes(text)
        with pytest.raises(UsageError, match=f"is damaged: .*{message}"):
            run_folder.read(tmp_path)


FACTS = {"config": {"lr": 1e-3}, "objects": []}


def claim_several(root, number, barrier, names=None):
    """Makes `number` folders under the automatic name of one second; their names."""
    claimed = []
    for i in range(number):
        barrier.wait()
        candidates = [
            Path(root) / f"time-s{i}",
            *(Path(root) / f"time-s{i}-{j}" for j in range(2, 50)),
        ]
        path, lock = run_folder.first_free(candidates, lambda path: run_folder.create(path, FACTS))
        assert json.loads((path / "config.json").read_text()) == FACTS["config"]
        lock.release()
        claimed.append(path.name)
    return claimed if names is None else names.put(claimed)


def test_threads_that_start_in_the_same_second_get_a_folder_each(tmp_path):
    threads, rounds = 6, 10
    barrier = Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        names = list(pool.map(lambda _: claim_several(tmp_path, rounds, barrier), range(threads)))
    names = [name for claimed in names for name in claimed]
    assert len(set(names)) == threads * rounds
    assert sorted(os.listdir(tmp_path)) == sorted(names)  # nothing unfinished stays


@pytest.mark.long
def test_processes_that_start_in_the_same_second_get_a_folder_each(tmp_path):
    context, number, rounds = multiprocessing.get_context("forkserver"), 3, 5
    context.set_forkserver_preload([__name__])  # imported once for all of them
    barrier, names = context.Barrier(number), context.Queue()
    processes = [
        context.Process(target=claim_several, args=(tmp_path, rounds, barrier, names))
        for _ in range(number)
    ]
    for process in processes:
        process.start()
    claimed = [name for _ in processes for name in names.get(timeout=120)]
    for process in processes:
        process.join()
    assert len(set(claimed)) == number * rounds
    assert sorted(os.listdir(tmp_path)) == sorted(claimed)


def test_what_a_kill_left_of_a_folder_goes_with_the_next_one_after_a_day(tmp_path):
    old, young, other = (
        tmp_path / name
        for name in (".unfinished-12-0123abcd", ".unfinished-34-0123abcd", ".unfinished-mine")
    )
    for folder in (old, young, other):
        folder.mkdir()
        (folder / "config.json").touch()
    for folder in (old, other):
        os.utime(folder, (0, 0))
    run_folder.create(tmp_path / "run", FACTS).release()
    assert sorted(tmp_path.iterdir()) == sorted((young, other, tmp_path / "run"))


def test_automatic_names_go_on_beside_those_that_are_taken(tmp_path):
    names = [
        path for path, _ in zip(run_folder.run_folders("a/b", 3, tmp_path), range(3), strict=False)
    ]
    assert names[0].parent == tmp_path / "a-b"
    assert names[0].name.endswith("-s3")
    assert [path.name.removeprefix(names[0].name) for path in names] == ["", "-2", "-3"]


def test_a_folder_that_exists_is_refused_and_left_as_it_was(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "file").touch()
    for name in ("run", "file"):
        with pytest.raises(run_folder.FolderExists, match=f"{name} exists already"):
            run_folder.create(tmp_path / name, FACTS)
    assert sorted(os.listdir(tmp_path)) == ["file", "run"]
    assert os.listdir(tmp_path / "run") == []


def test_a_path_too_long_for_checkpoints_is_refused_before_anything_is_made(tmp_path):
    longest = os.pathconf("/", "PC_PATH_MAX")
    path = tmp_path
    while len(str(path)) < longest - 100:
        path = path / ("x" * 90)
    with pytest.raises(
        UsageError, match=f"has a path of {len(str(path))} bytes; at most {longest - 200}"
    ):
        run_folder.create(path, FACTS)
    assert os.listdir(tmp_path) == []


def test_a_held_folder_stays_the_same_one_when_the_process_changes_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("runs") / "one"
    held = RunFolderLock(path, run_folder.create(path, FACTS), FACTS, is_new=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert held.ensure() is None
    assert os.listdir() == []
    (tmp_path / path / "config.json").unlink()
    assert held.ensure().startswith("config.json was removed from runs/one;")
    held.lock.release()
