"""Every name out of a file or message that becomes a path, tried with names that lead elsewhere.

`PLACES` is the table of docs/security.md, "Names that become paths", and a test holds it to that.
"""

import contextlib
import io
import json
import os
import re
import shutil
import socket
import struct
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

import jaxrl
from jaxrl.core.spaces import Box
from jaxrl.episodes import EpisodeWriter, MultiAgentEpisode, SingleAgentEpisode, read_episodes
from jaxrl.episodes.minari_datasets import to_minari
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.publishing.publish import MARK, _move
from jaxrl.replay.live_run import LiveRun
from jaxrl.replay.server import LiveServer
from jaxrl.run.logging.tracker import known_id
from jaxrl.run.storage import checkpoint, run_folder, runs
from jaxrl.serving.server import ServerSettings
from jaxrl.serving.session import BatchedPolicy, ServedPolicies, Session
from tests.attack.forged import forged
from tests.attack.test_forged_sweeps import LONGEST
from tests.programs import SMALL_ARENA, SMALL_CARTPOLE
from tests.serving.served import small_policy

PLANE = Box(-1.0, 1.0, (2,))
QUIET = {"quiet": True, "pictures": False}
SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
NAMES = {
    "dots": "../victim",
    "dots behind a folder": "x/../../victim",
    "dots alone": "..",
    "absolute": "{victim}",
    "any name": "*",
    "one of some letters": "[a-z]*",
    "question marks": "v?????",
    "link": "link",
    "file behind a link": "link/notes.txt",
    "NUL": "a\0b",
    "megabyte": "a" * 1_000_000,
    "empty": "",
    "new line": "a\nb",
    "drive": "C:\\victim",
    "backslash": "..\\victim",
    "surrogate": "\udc80",
}


class Attack:
    """A stranger's folder, with a link to that of a victim, and a name to put into it."""

    def __init__(self, run, swept, root, name):
        self.run, self.swept, self.name = run, swept, name
        self.folder = root / "theirs"
        self.folder.mkdir()

    def resume(self, folder="run", **settings):
        with jaxrl.Trainer.from_checkpoint(
            self.folder / folder, **{**QUIET, **settings}
        ) as trainer:
            trainer.train()

    def forged(self, **changes):
        """The run, its settings changed by `run_settings`, and with its own output."""
        copy = self.folder / "run"
        known = checkpoint.read_facts(checkpoint.find(self.run))["run_settings"]
        settings = {**known, "output": str(copy / "episodes"), **changes.pop("run_settings", {})}
        return forged(self.run, copy, run_settings=settings, **changes)


def output(attack):
    copy = attack.forged(run_settings={"output": attack.name})
    (copy / "elsewhere").symlink_to(attack.folder.parent / "victim")
    attack.resume()


def position(attack):
    for place in ({"prefix": attack.name, "number": 0}, {"prefix": "0" * 8, "number": attack.name}):
        attack.forged(episodes=place)
        with pytest.raises(jaxrl.UsageError, match=r"damaged: "):
            attack.resume()
        shutil.rmtree(attack.folder / "run")


def environments_folder(attack):
    made = lambda path: run_folder.create(path, {"config": {}}).release()
    folders = run_folder.run_folders(attack.name, 0, attack.folder / "runs")
    path, _ = run_folder.first_free(folders, made)
    assert path.resolve().parents[1] == (attack.folder / "runs").resolve()


def other_runs(attack):
    """Weights are read from there, and nothing else is done."""
    one_learns = {"policies": "per-agent", "policies_to_train": ["agent1"]}
    pool = {"size": 2, "every": 1, "fixed": {"them": attack.name}}
    attack.forged(run_settings={"init_from": [["default_policy", attack.name]]})
    for attempt in (
        lambda: jaxrl.Trainer(SMALL_CARTPOLE, init_from={"default_policy": attack.name}),
        lambda: jaxrl.Trainer(SMALL_ARENA.replace(**one_learns, opponents=pool)),
    ):
        with pytest.raises(jaxrl.UsageError):
            attempt()
    attack.resume()


def recorded(attack):
    with pytest.raises(jaxrl.UsageError):
        jaxrl.Trainer(jaxrl.BCConfig(env="cartpole", input=attack.name))


def of_two_steps(agent=None, policy=None):
    return SingleAgentEpisode(
        "e",
        observations=[np.zeros(2, np.float32)] * 3,
        observation_space=PLANE,
        actions=[np.zeros(2, np.float32)] * 2,
        action_space=PLANE,
        rewards=[0.0, 1.0],
        terminated=True,
        len_lookback_buffer=0,
        agent_id=agent,
        module_id=policy,
    )


def minari_dataset(attack):
    pytest.importorskip("minari", reason="the extra `offline`")
    with pytest.raises(jaxrl.UsageError):
        list(read_episodes(f"minari:{attack.name}"))
    zeros = {"a": np.zeros(2, np.float32)}
    spaces = {"observation_space": {"a": PLANE}, "action_space": {"a": PLANE}}
    game = MultiAgentEpisode("e", agent_module_ids={"a": attack.name}, **spaces)
    game.add_env_reset(observations=zeros)
    game.add_env_step(zeros, zeros, {"a": 1.0}, terminateds={"__all__": True})
    for episode, name in ((of_two_steps(), f"{attack.name}/x-v0"), (game, "games/x-v0")):
        with contextlib.suppress(jaxrl.UsageError):
            to_minari([episode], name)


def tracker_id(attack):
    file = attack.folder / "mlflow_run_id"
    file.write_text(attack.name, errors="surrogatepass")
    if attack.name != "link":
        with pytest.raises(jaxrl.UsageError, match="no id of a run"):
            known_id(file, "MLflow")


def checkpoints_files(attack):
    digest = "0" * 64
    for changes in ({"files": {attack.name: digest}}, {"arrays": [attack.name]}):
        attack.forged(**changes)
        with pytest.raises(jaxrl.UsageError):
            attack.resume()
        shutil.rmtree(attack.folder / "run")


def trials(attack):
    copy = attack.folder / "sweep"
    shutil.copytree(attack.swept, copy)
    row = json.loads((copy / "results.jsonl").read_text().splitlines()[0])
    (copy / "results.jsonl").write_text(json.dumps({**row, "trial": attack.name}) + "\n")
    assert "trials/0000" in runs.contents(copy)
    plan = json.loads((copy / "sweep.json").read_text())
    plan["trials"][0]["number"] = plan["trials"][0]["folder"] = attack.name
    (copy / "sweep.json").write_text(json.dumps(plan))
    jaxrl.resume_sweep(copy, quiet=True)


def folders_beside(attack):
    """A folder of that name among the checkpoints, the runs and the logs, where there can be."""
    copy = attack.forged()
    for name in (attack.name, f"{attack.name}000001", f"best-{attack.name}"):
        if "/" in name:
            continue
        for folder in (copy / "checkpoints", attack.folder):
            try:
                (folder / name).mkdir()
            except (OSError, ValueError):
                continue
    try:
        (copy / f"events.out.tfevents.{attack.name}").touch()
    except (OSError, ValueError):
        (copy / f"events.out.tfevents.{'9' * 200}").touch()
    assert checkpoint.find(attack.folder / "latest") == copy / "checkpoints" / "000002"
    attack.resume(loggers=("jsonl", "tensorboard"))


class Unanswered:
    """Instead of a batcher: nobody acts."""

    def ask(self, client, rows, answer):
        pass

    def forget(self, client):
        pass


def messages(attack):
    served = ServedPolicies({"mover": BatchedPolicy(small_policy())}, explore=False)
    hooks = {"send_weights": lambda *_: None, "count": lambda _: None, "limits": ServerSettings()}
    sent = []
    session = Session(served, Unanswered(), send=lambda frame, _: sent.append(frame), **hooks)
    for message in (
        {"type": "hello", "protocol": 1, "token": ""},
        {"type": "start_episode", "id": 1, "episode": attack.name, "explore": True},
        {"type": "get_action", "id": 2, "episode": attack.name, "obs": [0.1, 0.2, 0.3]},
        {"type": "get_weights", "id": 3, "policy": attack.name, "known": 0},
        {"type": "end_episode", "id": 4, "episode": attack.name, "obs": {attack.name: [0]}},
    ):
        session.handle(json.dumps(message))
    assert b"welcome" in sent[0] and max(map(len, sent)) < 1000


def page_address(attack):
    server = LiveServer(LiveRun(attack.run), port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = attack.name.encode(errors="surrogateescape")
    try:
        for address in (path, b"/" + path, b"/live?episode=" + path, b"/../" + path):
            with socket.create_connection(("127.0.0.1", server.server_port)) as client:
                host = f"Host: 127.0.0.1:{server.server_port}".encode()
                client.sendall(b"GET " + address + b" HTTP/1.0\r\n" + host + b"\r\n\r\n")
                answer = b""
                try:
                    client.shutdown(socket.SHUT_WR)
                    while part := client.recv(65536):
                        answer += part
                except OSError:  # what it did not read of a megabyte
                    continue
                assert b"mine" not in answer
    finally:
        server.shutdown()
        server.server_close()


def exported(attack):
    """Arrays of these names are unpacked into memory alone."""
    content = io.BytesIO((attack.run / "policy.npz").read_bytes())
    try:
        with zipfile.ZipFile(content, "a") as file:
            file.writestr(f"{attack.name}.npy", b"forged")
    except (UnicodeEncodeError, struct.error):  # no zip file has it
        return
    (attack.folder / "policy.npz").write_bytes(content.getvalue())
    with contextlib.suppress(ValueError):
        NumpyPolicy(attack.folder / "policy.npz")


def published_again(attack):
    """A stranger's folder that is taken for an earlier publication."""
    folder, unfinished = attack.folder / "published", attack.folder / "unfinished"
    for made in (folder, unfinished):
        made.mkdir()
    (folder / MARK).write_text(json.dumps({"files": [attack.name, f"../{attack.name}"]}))
    (unfinished / "README.md").write_text("new")
    _move(unfinished, folder)
    assert (folder / "README.md").read_text() == "new"


def of_episodes(attack):
    """Agents, policies and environments of an episode file, which is read and written again."""
    try:
        with EpisodeWriter(attack.folder / "first") as writer:
            writer.write(of_two_steps(attack.name or None, attack.name))
    except jaxrl.UsageError:
        return
    with EpisodeWriter(attack.folder / "second") as writer:
        for episode in read_episodes(attack.folder / "first"):
            episode.custom_data["origin"] = {"env": attack.name}
            writer.write(episode)
            with pytest.raises(jaxrl.UsageError):
                jaxrl.replay_episode(episode)


PLACES = {
    "`output`": output,
    "`prefix`, `number` of episode files": position,
    "environment's name, for a new folder below `runs/`": environments_folder,
    "`opponents`, `init_from`: policies of other runs": other_runs,
    "`input`: recorded episodes": recorded,
    "`minari:NAME`, a policy's name in a dataset's": minari_dataset,
    "id of a run at a tracker": tracker_id,
    "files and arrays of a checkpoint, with their digests": checkpoints_files,
    "trials of a sweep": trials,
    "folders of runs and checkpoints, event files of TensorBoard": folders_beside,
    "arrays of an exported `.npz`": exported,
    "files of a published folder that is published to again": published_again,
    "agents, policies and environments of an episode file": of_episodes,
    "policies, episodes": messages,
    "address of the page of `jaxrl watch`": page_address,
}


def held(root):
    """{path: (content or where a link leads, time of its last change)} below a folder."""
    found = {}
    for path in (root, *sorted(root.rglob("*"))):
        link = path.readlink() if path.is_symlink() else None
        content = path.read_bytes() if link is None and path.is_file() else link
        found[path] = content, path.lstat().st_mtime_ns
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("place", PLACES.values(), ids=lambda place: place.__name__)
def test_a_name_out_of_a_file_leads_nowhere(place, name, run, swept, tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    for folder in (tmp_path / "victim", outside):
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
        (folder / "episodes-00000000-000000.parquet").write_text("mine")
    (outside / "link").symlink_to(tmp_path / "victim")
    monkeypatch.chdir(outside)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "theirs" / "minari"))
    attack = Attack(run, swept, tmp_path, name.format(victim=tmp_path / "victim"))
    (attack.folder / "link").symlink_to(tmp_path / "victim")
    before = held(tmp_path / "victim"), held(outside)
    try:
        place(attack)
    except jaxrl.UsageError as error:
        assert "\n" not in str(error) and len(str(error)) < LONGEST
    assert (held(tmp_path / "victim"), held(outside)) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"victim", "outside", "theirs"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes")
@pytest.mark.parametrize(
    "file", ["metrics.jsonl", "config.json", "metadata.json", "checkpoints/000002/checkpoint.json"]
)
def test_a_pipe_in_place_of_a_runs_file_is_not_waited_for(file, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / file).unlink()
    os.mkfifo(tmp_path / "run" / file)
    readers = [
        lambda folder: jaxrl.load_run(folder).results(),
        lambda folder: LiveRun(folder).status(0),
        lambda folder: checkpoint.read(checkpoint.find(folder)),
        lambda folder: jaxrl.Trainer.from_checkpoint(folder, **QUIET).stop(),
    ]
    refused = 0
    for read in readers:
        try:
            read(tmp_path / "run")
        except jaxrl.UsageError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused


def test_the_docs_list_the_same_places():
    table = SECURITY.read_text().partition("## Names that become paths")[2].partition("\n## ")[0]
    _, _, *rows = re.findall(r"^\|(.*?)\|", table, re.MULTILINE)
    assert [row.strip() for row in rows] == list(PLACES)
