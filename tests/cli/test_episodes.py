"""`jaxrl episodes`: what it says of a folder, checked by hand; mistakes end in one line."""

import numpy as np
import pytest

import jaxrl
from jaxrl.cli import episodes
from jaxrl.core.env import strongly_typed
from jaxrl.episodes import EpisodeWriter, SingleAgentEpisode, read_episodes
from jaxrl.run.storage.checkpoint import named_arrays
from tests.episodes.test_parquet import of_steps, turns

pytest.importorskip("pyarrow", reason="the extra `offline`")


@pytest.fixture
def folder(tmp_path):
    """Two episodes of an agent alone: returns 2 and 4, lengths 2 and 4; one of two players."""
    outputs = {"vf_preds": np.array([0.5, 0.25]), "action_logp": np.array([-1.0, -2.0])}
    with EpisodeWriter(tmp_path / "data") as writer:
        writer.write(of_steps(2, "short", extra_model_outputs=outputs))
        writer.write(of_steps(4, "long", terminated=False, truncated=True))
    with EpisodeWriter(tmp_path / "games") as writer:
        writer.write(turns())
    return tmp_path


def printed(capsys, *words):
    episodes([str(word) for word in words])
    return capsys.readouterr().out


def test_returns_lengths_and_ends_are_summed_up(folder, capsys):
    first, *lines = printed(capsys, folder / "data").splitlines()
    assert first == f"2 episodes in {folder / 'data'}, 6 steps"
    assert [line.split() for line in lines] == [
        ["return", "3.00", "+-", "1.00", "(from", "2.00", "to", "4.00)"],
        ["length", "3.00", "+-", "1.00", "(from", "2.00", "to", "4.00)"],
        ["end", "1", "terminated,", "1", "truncated"],
    ]
    text = printed(capsys, folder / "games")
    assert "1 episodes of chess in" in text
    assert "return of white                1.50" in text
    assert "return                         3.75" in text


def test_an_episode_is_shown_step_by_step(folder, capsys):
    assert printed(capsys, folder / "data", "--show", "0").splitlines() == [
        "step  observation  action  reward  value  log-probability",
        "0     0            0       1.      0.5    -1.",
        "1     1            1       1.      0.25   -2.",
        "short: return 2, 2 steps, terminated",
    ]
    rows = printed(capsys, folder / "games", "--show", "0").splitlines()
    assert [row.split()[:2] for row in rows[1:-1]] == [
        ["0", "white"],
        ["1", "black"],
        ["2", "white"],
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name one folder of episodes, such as data/arena"),
        (["nowhere"], "no episodes in nowhere: there is no .parquet file"),
        (["data", "--show", "2"], "show=2: data holds fewer episodes"),
        (["data", "--show", "-1"], "show=-1 must be an integer of at least 0"),
        (["data", "--out", "episode.gif"], "does not say where it was played"),
        (["data", "--minari", "a/b"], "must end in a version, such as arena/sampled-v0"),
        (["data", "--replay"], "does not say where it was played"),
        (["data", "--shows", "1"], "unknown flag '--shows'; did you mean '--show'?"),
    ],
)
def test_mistakes_end_in_one_line(folder, capsys, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as ended:
        episodes(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and message in said
    assert said.count("\n") == 1 and said.startswith("jaxrl episodes: ")


def test_a_folder_of_damaged_files_alone_holds_no_episodes(tmp_path, capsys):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(SystemExit):
        episodes([str(tmp_path), "--skip-damaged"])
    assert capsys.readouterr().err.endswith(": no file can be read\n")


def test_replays_are_counted_and_differences_named(folder, capsys):
    with EpisodeWriter(folder / "made") as writer:
        writer.write(balancing())
    text = printed(capsys, folder / "made", "--replay").splitlines()
    assert text[0] == "0 of 1 episodes are reproduced to the bit"
    assert text[1].startswith("made up: step 0, agent 'default_agent': observation is ")


def test_a_folder_becomes_a_minari_dataset_with_the_spaces_of_its_environment(
    folder, capsys, monkeypatch
):
    minari = pytest.importorskip("minari", reason="the extra `offline`")
    pytest.importorskip("h5py", reason="the extra `offline`")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    with EpisodeWriter(folder / "made") as writer:
        writer.write(balancing())
    text = printed(capsys, folder / "made", "--minari", "cartpole/made-up-v0")
    assert text == "minari.load_dataset('cartpole/made-up-v0')\n"
    dataset = minari.load_dataset("cartpole/made-up-v0")
    assert dataset.total_steps == 2 and dataset.action_space.n == 2
    text = printed(capsys, "minari:cartpole/made-up-v0", "--parquet", folder / "again")
    assert text == f"written to   {folder / 'again'}\n"
    (again,), first = read_episodes(folder / "again"), balancing()
    np.testing.assert_array_equal(again.get_observations(), first.get_observations())
    np.testing.assert_array_equal(again.get_actions(), first.get_actions())
    with pytest.raises(SystemExit):
        episodes([str(folder / "made"), "--minari", "cartpole/made-up-v0"])
    assert "Minari dataset 'cartpole/made-up-v0': " in capsys.readouterr().err


def balancing():
    """Two steps of CartPole, as nobody played them."""
    origin = {"env": "cartpole", "env_args": {}, "seed": 0, "episode": 0}
    made_up = SingleAgentEpisode(
        "made up",
        observations=np.zeros((3, 4), np.float32),
        actions=np.array([0, 1]),
        rewards=np.ones(2, np.float32),
        len_lookback_buffer=0,
    )
    made_up.custom_data["origin"] = origin | {"env_params": cartpole_numbers()}
    return made_up


def cartpole_numbers():
    numbers = named_arrays(strongly_typed(jaxrl.make("cartpole")[1]))
    return {name: value.tolist() for name, value in numbers.items()}
