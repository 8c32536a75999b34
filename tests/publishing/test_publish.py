"""Published runs: a folder that jaxrl loads, a card that Hugging Face reads, and refusals."""

import json
import platform
import re
import socket
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import Trainer, UsageError, load_policy, publish
from jaxrl.cli.main import main
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.publishing.card import MeanReturn
from jaxrl.publishing.publish import _stem
from jaxrl.run.storage import hub
from tests.programs import SMALL_CARTPOLE

safetensors = pytest.importorskip("safetensors.numpy", reason="the extra `hub`")
FILTERED = SMALL_CARTPOLE.replace(observation_filter="MeanStdFilter")
QUIET = {"quiet": True, "loggers": ["jsonl"], "pictures": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of CartPole with an observation filter, whose moments are weights too."""
    with Trainer(FILTERED, run_dir=tmp_path_factory.mktemp("runs") / "run", **QUIET) as trainer:
        trainer.fit()
    return trainer.run_dir


@pytest.fixture(scope="module")
def published(run, tmp_path_factory):
    return publish(run, tmp_path_factory.mktemp("published") / "cart", episodes=20)


@pytest.fixture(scope="module")
def folder(published):
    return jaxrl.load_run(published.where).run_dir


def refusal_of(call, *arguments, **settings):
    """The one line with which a call is refused."""
    with pytest.raises(UsageError) as refused:
        call(*arguments, **settings)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def front_matter(folder):
    """The values between the two lines of dashes."""
    yaml = pytest.importorskip("yaml")
    _, text, _ = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(text)


# The folder


@pytest.mark.long
def test_every_file_of_a_publication_is_there_and_is_listed(folder, published):
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(json.loads((folder / "published.json").read_text())["files"]) == names
    assert set(published.files) == {
        *("README.md", "checkpoints/", "config.json", "curves.png", "metadata.json"),
        *("metrics.jsonl", "policies/default_policy.npz", "policies/default_policy.safetensors"),
        *("published.json", "report.html"),
    }
    assert published.notes == ()


def test_a_loaded_policy_acts_as_the_runs_own_and_so_does_numpys(run, folder):
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    acts = load_policy(run).act(observations)
    assert len(set(acts.tolist())) == 2
    np.testing.assert_array_equal(load_policy(folder).act(observations), acts)
    player = NumpyPolicy(folder / "policies/default_policy.npz")
    np.testing.assert_array_equal(player.act(observations), acts)


def test_safetensors_hold_every_parameter_and_the_filters_moments(run, folder):
    tensors = safetensors.load_file(folder / "policies/default_policy.safetensors")
    policy = load_policy(run)
    kernel = policy.params["policy"][0]["kernel"]
    np.testing.assert_array_equal(tensors["params.policy.0.kernel"], kernel)
    assert any(name.startswith("filter") or "mean" in name for name in tensors)
    parameters = [array.size for name, array in tensors.items() if name.startswith("params.")]
    assert sum(parameters) == sum(leaf.size for leaf in jax.tree.leaves(policy.params))


def test_episodes_of_the_folder_are_those_of_the_run_and_the_cards_return_is_theirs(
    run, folder, published
):
    before, after = (jaxrl.evaluate(path, episodes=20)["env_runners"] for path in (run, folder))
    returns = after["hist_stats"]["episode_reward"]
    assert returns == before["hist_stats"]["episode_reward"]
    assert published.mean_return.value == pytest.approx(np.mean(returns))
    assert published.mean_return.episodes == 20
    assert published.mean_return.low < np.mean(returns) < published.mean_return.high
    assert str(published.mean_return) in (folder / "README.md").read_text()


def test_curves_and_settings_read_back(run, folder):
    before, after = jaxrl.load_run(run), jaxrl.load_run(folder)
    assert len(after.results()) == len(before.results()) == 6
    assert after.facts["config"] == before.facts["config"]
    assert after.facts["time"] == before.facts["time"]


def test_neither_the_machine_nor_a_process_nor_a_folder_is_published(run, folder):
    logged = (run / "metrics.jsonl").read_text()
    assert socket.gethostname() in logged or platform.node() in logged
    for path in (folder / "metrics.jsonl", *folder.rglob("checkpoint.json")):
        text = path.read_text()
        assert '"hostname"' not in text and '"pid"' not in text
        assert str(run.parent) not in text
    facts = json.loads((folder / "metadata.json").read_text())
    assert facts["run_settings"]["init_from"] == {} and facts["run_settings"]["output"] is None


def test_the_checkpoint_has_what_playing_needs_and_is_refused_to_resume(run, folder):
    (facts,) = folder.rglob("checkpoint.json")
    arrays = json.loads(facts.read_text())["arrays"]
    assert {name.split(".")[0] for name in arrays} <= {"weights", "env_params"}
    with pytest.raises(UsageError, match=r"does not fit: it has no runner\."):
        Trainer.from_checkpoint(folder, **{**QUIET, "loggers": []})
    weights = []
    for path in (run, folder):
        begun = {"quiet": True, "init_from": {"default_policy": str(path)}}
        with Trainer(FILTERED, run_dir=None, **begun) as trainer:
            weights.append(trainer.get_weights())
    jax.tree.map(np.testing.assert_array_equal, *weights)


# The card


def test_the_front_matter_is_what_hugging_face_reads(folder, published):
    found = front_matter(folder)
    assert found["library_name"] == "jaxrl"
    assert found["pipeline_tag"] == "reinforcement-learning"
    assert {"reinforcement-learning", "jax", "ppo", "cartpole"} <= set(found["tags"])
    (result,) = found["model-index"][0]["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"] == {"type": "cartpole", "name": "cartpole"}
    (metric,) = result["metrics"]
    assert metric["type"] == "mean_reward"
    assert metric["value"] == pytest.approx(published.mean_return.value, abs=1e-4)


def test_hugging_faces_own_reader_reads_the_card(folder):
    huggingface_hub = pytest.importorskip("huggingface_hub", reason="the extra `hub`")
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    (result,) = card.data.eval_results
    assert (result.metric_type, result.dataset_name) == ("mean_reward", "cartpole")


def test_the_card_says_how_to_load_what_was_trained_and_links_what_is_there(folder):
    text = (folder / "README.md").read_text()
    assert "jaxrl.load_policy('cart', 'default_policy')" in text
    assert "# cartpole: a policy trained with PPO" in text
    assert "6 iterations, 384 environment steps" in text
    assert "| `observation_filter` | MeanStdFilter |" in text
    assert "| `gamma` |" not in text  # it has its default
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (folder / link).is_file()


def test_a_card_shows_names_of_users_as_text(tmp_path):
    from jaxrl.publishing.card import _text

    assert _text("a|b\n<script>`x`") == r"a\|b \<script>\`x\`"


def test_the_interval_is_that_of_the_mean_of_episodes():
    found = MeanReturn.of([0.0, 1.0] * 50)
    assert found.value == 0.5
    half = 1.96 * 0.5 / np.sqrt(100)  # of the normal distribution
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half), abs=0.02)
    assert MeanReturn.of([3.0] * 5) == MeanReturn(3.0, 3.0, 3.0, 5)
    assert str(MeanReturn.of([2.0])) == "2.00, of 1 episode"
    assert MeanReturn.of([]) is None


# Several policies, networks of one's own, trust


@pytest.mark.long
def test_each_policy_has_files_and_a_network_of_its_own_is_named_where_numpy_has_no_part(
    trained, tmp_path
):
    done = publish(trained.run_dir, tmp_path / "arena", episodes=2)
    assert {f"policies/pol{i}.safetensors" for i in (1, 2)} <= set(done.files)
    text = (tmp_path / "arena/README.md").read_text()
    assert "- agent1: " in text and "- agent2: " in text
    for policy in ("pol1", "pol2"):
        before, after = (load_policy(path, policy) for path in (trained.run_dir, done.where))
        for i in range(5):
            assert before.act([i, i + 1]) == after.act([i, i + 1])


@pytest.mark.long
def test_a_published_run_that_names_code_is_refused_without_trust(tmp_path, monkeypatch):
    module = "from jaxrl.envs.cartpole import CartPole as Mine\n\nclass Pole(Mine):\n    pass\n"
    (tmp_path / "strange_module.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = SMALL_CARTPOLE.replace(env="strange_module:Pole", total_env_steps=64)
    with Trainer(config, run_dir=tmp_path / "run", **QUIET) as trainer:
        trainer.fit()
    with pytest.raises(UsageError, match=r"strange_module:Pole.*--trust"):
        publish(tmp_path / "run", tmp_path / "out")
    done = publish(tmp_path / "run", tmp_path / "out", episodes=2, trust=True)
    monkeypatch.delitem(sys.modules, "strange_module")
    with pytest.raises(UsageError, match=r"strange_module:Pole.*--trust"):
        jaxrl.evaluate(done.where)
    assert "strange_module" not in sys.modules
    assert jaxrl.evaluate(done.where, episodes=1, trust=True)["env_runners"]["num_episodes"] == 1
    card = (tmp_path / "out/README.md").read_text()
    assert "trust=True" in card and "jaxrl evaluate out --episodes 100 --trust" in card


def test_onnx_is_written_where_it_is_asked_for(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx`")
    pytest.importorskip("jax2onnx", reason="the extra `onnx`")
    done = publish(run, tmp_path / "out", episodes=2, onnx=True)
    assert "policies/default_policy.onnx" in done.files
    onnxruntime.InferenceSession(tmp_path / "out/policies/default_policy.onnx")


# A folder that is there


@pytest.mark.long
def test_a_second_publication_replaces_the_first_and_leaves_other_files(run, tmp_path):
    out = tmp_path / "out"
    publish(run, out, episodes=2, checkpoint=1)
    (out / "notes.txt").write_text("mine")
    (out / ".git").mkdir()
    (out / ".git/config").write_text("mine")
    (out / ".git/refs/heads").mkdir(parents=True)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["000001"]
    publish(run, out, episodes=2)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["000006"]
    assert (out / "notes.txt").read_text() == (out / ".git/config").read_text() == "mine"
    assert (out / ".git/refs/heads").is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_list_of_files_that_leads_out_of_the_folder_removes_nothing_there(run, tmp_path):
    outside = tmp_path / "precious.txt"
    outside.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    names = ["../precious.txt", str(outside), "published.json", "."]
    (out / "published.json").write_text(json.dumps({"files": names}))
    publish(run, out, episodes=2)
    assert outside.read_text() == "mine"


# Refusals, each before anything is played


@pytest.fixture
def played_nothing(monkeypatch):
    def fails(*_, **__):
        raise AssertionError("it began to play")

    monkeypatch.setattr("jaxrl.publishing.publish.evaluate", fails)


@pytest.mark.parametrize(
    ("to", "line"),
    [
        ("taken", "taken exists and was not made by jaxrl publish: give a new or an empty folder"),
        ("file", "file is a file, not a folder to publish to"),
        ("hf:me", "'hf:me' is no name at Hugging Face: give hf:USER/NAME"),
        ("hf:me/a--b", "'hf:me/a--b' is no name at Hugging Face"),
        ("hf:me/" + "a" * 94, "96 characters at most"),
        ("hf:me/../x", "is no name at Hugging Face"),
        ("hf:me/x@main", "'hf:me/x@main' names a revision: publish to hf:USER/NAME alone"),
        ("", "to='' must be a folder's path or hf:USER/NAME"),
    ],
)
def test_a_place_that_cannot_be_published_to_is_one_line(
    run, to, line, tmp_path, monkeypatch, played_nothing
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/thesis.tex").write_text("mine")
    (tmp_path / "file").write_text("mine")
    assert line in refusal_of(publish, run, to)
    assert (tmp_path / "taken/thesis.tex").read_text() == "mine"


def test_a_run_that_cannot_be_published_is_one_line(run, folder, tmp_path, played_nothing):
    empty = tmp_path / "empty"
    with Trainer(SMALL_CARTPOLE, run_dir=empty, **QUIET):
        pass
    for path, line in (
        (empty, "has no checkpoint yet"),
        (tmp_path / "none", "does not exist"),
        (folder, "is a published folder already"),
        ("hf:me/cart", "is published already"),
    ):
        assert line in refusal_of(publish, path, tmp_path / "out")
    assert "has no checkpoint 99" in refusal_of(publish, run, tmp_path / "out", checkpoint=99)
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named_with_its_extra(run, tmp_path, monkeypatch, played_nothing):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    assert '"jaxrl[onnx]"' in refusal_of(publish, run, tmp_path / "out", onnx=True)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call, *words in ((publish, run, "hf:me/cart"), (load_policy, "hf:me/cart")):
        line = refusal_of(call, *words)
        assert line.endswith('is not installed: pip install "jaxrl[hub]"')
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert "publish needs safetensors" in refusal_of(publish, run, tmp_path / "out")


# Hugging Face, by a stand-in


class FakeHub:
    """Keeps what is uploaded in a folder, and hands it out as links, as its cache does."""

    def __init__(self, root):
        self.root, self.calls, self.private = root, [], True
        self.HfApi = lambda: self

    def create_repo(self, repo_id, *, private=None, exist_ok=False):
        self.calls.append(("create_repo", repo_id, private, exist_ok))
        return f"https://huggingface.co/{repo_id}"

    def list_repo_files(self, repo_id):
        blobs = self.root / "blobs"
        return [str(path.relative_to(blobs)) for path in blobs.rglob("*") if path.is_file()]

    def repo_info(self, repo_id):
        return SimpleNamespace(private=self.private)

    def upload_folder(self, *, repo_id, folder_path, commit_message, delete_patterns):
        self.calls.append(("upload_folder", repo_id, commit_message, delete_patterns))
        for path in folder_path.rglob("*"):
            if path.is_file():
                copy = self.root / "blobs" / path.relative_to(folder_path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())

    def snapshot_download(self, repo_id, *, revision, allow_patterns):
        from fnmatch import fnmatch

        self.calls.append(("snapshot_download", repo_id, revision))
        snapshot = self.root / "snapshot"
        for blob in (self.root / "blobs").rglob("*"):
            name = blob.relative_to(self.root / "blobs").as_posix()
            if blob.is_file() and any(fnmatch(name, pattern) for pattern in allow_patterns):
                link = snapshot / name
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    link.symlink_to(blob)
        return str(snapshot)


@pytest.fixture
def fake_hub(tmp_path, monkeypatch):
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


@pytest.mark.long
def test_an_upload_creates_the_repository_and_sends_the_whole_folder(run, fake_hub):
    done = publish(run, "hf:me/cart", episodes=2, private=True)
    created, uploaded = fake_hub.calls
    assert created == ("create_repo", "me/cart", True, True)
    assert uploaded == ("upload_folder", "me/cart", "Published by jaxrl", list(hub.REPLACED))
    assert done.where == "https://huggingface.co/me/cart"
    blobs = fake_hub.root / "blobs"
    assert (blobs / "report.html").is_file() and (blobs / "policies").is_dir()
    assert "jaxrl.load_policy('hf:me/cart', 'default_policy')" in (blobs / "README.md").read_text()
    assert str(done).endswith("load         jaxrl.load_policy('hf:me/cart')")


@pytest.mark.long
def test_a_policy_of_the_hub_is_that_of_the_run_and_only_what_playing_reads_is_fetched(
    run, fake_hub, capsys
):
    publish(run, "hf:me/cart", episodes=2)
    observations = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    policy = load_policy("hf:me/cart@main")
    np.testing.assert_array_equal(policy.act(observations), load_policy(run).act(observations))
    assert fake_hub.calls[-1] == ("snapshot_download", "me/cart", "main")
    fetched = {path.name for path in (fake_hub.root / "snapshot").iterdir()}
    assert fetched == {"config.json", "metadata.json", "metrics.jsonl", "checkpoints"}
    before, after = (jaxrl.evaluate(path, episodes=3) for path in (run, "hf:me/cart"))
    assert before["env_runners"] == after["env_runners"]
    main(["evaluate", "hf:me/cart", "--episodes", "2", "--compile-cache", "off"])
    assert "2 episodes of" in capsys.readouterr().out


@pytest.mark.long
def test_a_repository_of_another_kind_or_a_public_one_is_left_as_it_is(run, fake_hub):
    public = "hf:me/cart cannot be uploaded: it is public already, and private was asked for"
    fake_hub.private = False
    assert refusal_of(publish, run, "hf:me/cart", episodes=2, private=True) == public
    (fake_hub.root / "blobs").mkdir(parents=True)
    (fake_hub.root / "blobs" / "model.bin").write_text("theirs")
    foreign = "hf:me/cart cannot be uploaded: its files were not made by jaxrl publish"
    assert refusal_of(publish, run, "hf:me/cart", episodes=2) == foreign
    assert "upload_folder" not in {call[0] for call in fake_hub.calls}


def test_policies_of_like_names_have_files_of_their_own():
    names = ["a-b-1", "a b", "a-b", "A-b", "c"]
    stems = [_stem(name, names) for name in names]
    assert len({stem.lower() for stem in stems}) == 5 and stems[4] == "c"


def test_what_hugging_face_refuses_is_one_line(run, fake_hub, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("401 Client Error:\nUnauthorized")

    monkeypatch.setattr(fake_hub, "create_repo", refuse)
    monkeypatch.setattr(fake_hub, "snapshot_download", refuse)
    line = "401 Client Error: Unauthorized"
    uploading = refusal_of(publish, run, "hf:me/cart", episodes=2)
    assert uploading == f"hf:me/cart cannot be uploaded: {line}"
    assert refusal_of(load_policy, "hf:me/cart") == f"hf:me/cart cannot be downloaded: {line}"


def test_the_stand_in_has_the_calls_of_hugging_faces_own_package():
    import inspect

    real = pytest.importorskip("huggingface_hub", reason="the extra `hub`")
    of_the_api = ("create_repo", "upload_folder", "list_repo_files", "repo_info")
    for owner, name in (*((real.HfApi, name) for name in of_the_api), (real, None)):
        name = name or "snapshot_download"
        known = inspect.signature(getattr(owner, name)).parameters
        used = inspect.signature(getattr(FakeHub, name)).parameters
        assert set(used) - {"self"} <= set(known)


# The command


def test_the_command_publishes_and_says_where_and_how_to_load(run, tmp_path, capsys):
    out = tmp_path / "out"
    main(["publish", str(run), "--to", str(out), "--episodes", "2", "--compile-cache", "off"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"published    {out}"
    assert lines[1].startswith("return ") and lines[1].endswith("of 2 episodes")
    assert lines[-1] == f"load         jaxrl.load_policy('{out}')"


def test_the_command_without_a_place_says_what_it_takes(run, capsys):
    with pytest.raises(SystemExit):
        main(["publish", str(run), "--compile-cache", "off"])
    line = "jaxrl publish: where to? --to FOLDER or --to hf:USER/NAME\n"
    assert capsys.readouterr().err == line
