"""Episodes on disk: what is read back is what was written, and damage is told in one line."""

import json
import re
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings

from jaxrl.core.errors import UsageError
from jaxrl.core.machine import process_memory
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.episodes.from_arrays import multi_agent_episode
from jaxrl.episodes.parquet import EpisodeWriter, read_episodes
from tests.episodes.test_from_arrays import FACTS, histories
from tests.messages import refusal

pyarrow = pytest.importorskip("pyarrow", reason="the extra `offline`")
import pyarrow.parquet as parquet  # noqa: E402

NO_SPACES = {"observation_space": None, "action_space": None}


def assert_equal(left, right):
    """Two states, arrays of the same type; lists are those arrays' rows."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for name in left:
            assert_equal(left[name], right[name])
    elif isinstance(left, tuple | list):
        assert len(left) == len(right)
        for one_part, other in zip(left, right, strict=True):
            assert_equal(one_part, other)
    elif isinstance(left, np.ndarray):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype
    else:
        assert left == right


def written_and_read(path, *episodes, **settings):
    with EpisodeWriter(path, **settings) as writer:
        for episode in episodes:
            writer.write(episode)
    return list(read_episodes(path))


def of_steps(count, id_="id", **data):
    """An episode of one agent whose observations are an integer."""
    steps = np.arange(count)
    arguments = {
        "observations": np.arange(count + 1),
        "actions": steps % 2,
        "rewards": np.ones(count, np.float32),
        "terminated": True,
        "len_lookback_buffer": 0,
    }
    return SingleAgentEpisode(id_, **{**arguments, **data})


def turns():
    """White and black take turns; black is paid before it moves, and nobody moves at the end."""
    game = MultiAgentEpisode("game", agent_to_module_mapping_fn=lambda agent, _: f"of {agent}")
    game.add_env_reset(observations={"white": np.zeros((2, 3), np.float32)})
    game.add_env_step({"black": 1}, {"white": 10}, {"white": 0.5, "black": 0.25})
    game.add_env_step({"white": np.ones((2, 3), np.float32)}, {"black": 11}, {"white": 1.0})
    last = {"white": np.full((2, 3), 2, np.float32), "black": 3}
    game.add_env_step(
        last, {"white": 12}, {"black": 2.0, "white": 0.0}, terminateds={"__all__": True}
    )
    game.agent_to_module_mapping_fn = None  # no file holds a function
    game.custom_data["origin"] = {"env": "chess", "seed": 3}
    return game


ROWS = 4
OBSERVATIONS = {
    "integers": np.arange(ROWS),
    "vectors of integers": np.arange(3 * ROWS, dtype=np.int32).reshape(ROWS, 3),
    "pictures": np.arange(12 * ROWS, dtype=np.uint8).reshape(ROWS, 2, 2, 3),
    "bools": np.arange(ROWS) % 2 == 0,
    "halves": np.linspace(0, 1, ROWS, dtype=np.float16),
    "doubles": np.array([np.nan, np.inf, 1e300, -0.0]),
    "empty": np.zeros((ROWS, 0), np.float32),
    "a dict": {"mask": np.ones((ROWS, 2), bool), "x": {"y": np.arange(ROWS, dtype=np.float32)}},
    "a tuple": (np.arange(ROWS), {"z": np.zeros((ROWS, 1))}),
}


@pytest.mark.parametrize("observations", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_observations_of_every_space_are_read_as_they_were_written(tmp_path, observations):
    steps = np.arange(ROWS - 1)
    episode = SingleAgentEpisode(
        "id",
        observations=observations,
        actions=np.stack([steps, steps], axis=1).astype(np.float32),
        rewards=steps.astype(np.float32),
        truncated=True,
        extra_model_outputs={"action_logp": steps / 2, "action_dist_inputs": np.ones((3, 5))},
        len_lookback_buffer=0,
        module_id="policy",
    )
    (read,) = written_and_read(tmp_path, episode)
    assert_equal(read.get_state(), episode.get_state())


@settings(max_examples=30)
@given(histories())
def test_agents_that_wait_join_late_or_leave_are_read_as_they_were(history):
    arrays, world_ends = history
    episode = multi_agent_episode(arrays, FACTS, world_ends)
    if not episode.agent_ids:
        return
    with tempfile.TemporaryDirectory() as path:
        (read,) = written_and_read(path, episode)
    assert_equal(read.get_state() | NO_SPACES, episode.get_state() | NO_SPACES)


def test_agents_of_different_spaces_share_a_file(tmp_path):
    game = turns()
    (read,) = written_and_read(tmp_path, game)
    assert_equal(read.get_state(), game.to_numpy().get_state())
    assert read.get_return(include_hanging_rewards=True) == 3.75
    assert read.custom_data == {"origin": {"env": "chess", "seed": 3}}


def test_a_folders_name_that_looks_like_an_address_is_a_folders_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(written_and_read("a:b", of_steps(3))) == 1


def test_rows_have_rllibs_column_names(tmp_path):
    outputs = {"action_logp": np.zeros(3), "vf_preds": np.ones(3)}
    written_and_read(tmp_path, of_steps(3, extra_model_outputs=outputs))
    table = parquet.read_table(next(tmp_path.glob("*.parquet")))
    rows = table.drop_columns(["episode"]).to_pylist()
    assert rows[2] == {
        "eps_id": "id",
        "agent_id": None,
        "module_id": None,
        "t": 2,
        "env_t": 2,
        "obs": 2,
        "actions": 0,
        "rewards": 1.0,
        "new_obs": 3,
        "action_logp": 0.0,
        "vf_preds": 1.0,
        "terminateds": True,
        "truncateds": False,
    }
    assert [row["terminateds"] for row in rows] == [False, False, True]


def remarked(custom_data):
    episode = of_steps(1)
    episode.custom_data = custom_data
    return episode


def test_of_infos_plain_data_are_kept_and_a_line_says_what_is_left_out(tmp_path):
    info = {"x": np.float32(0.5), "place": np.array([[1, 2]]), "env": object(), "all": {"n": 1}}
    episode = of_steps(1, infos=[{}, info])
    with pytest.warns(UserWarning, match="'env', of type object, is left out"):
        (read,) = written_and_read(tmp_path, episode)
    assert read.get_infos() == [{}, {"x": 0.5, "place": [[1, 2]], "all": {"n": 1}}]
    assert episode.get_infos(-1)["env"] is info["env"]


def nested(depth):
    return [nested(depth - 1)] if depth else 1


def test_infos_that_a_reader_would_refuse_are_left_out_and_all_others_are_read_again(tmp_path):
    refused = {
        "half": "\ud800",
        "\ud800": 1.0,
        "deep": nested(120),
        "too deep in the file": nested(96),
        "long": 10**400,
        "longer": 10**5000,
    }
    held = {"deep": nested(95), "long": 10**299, "text": "\U0001f600", "none": None, "é": 0.5}
    with pytest.warns(UserWarning) as warned:
        (read,) = written_and_read(tmp_path, of_steps(1, infos=[refused, held]))
    assert read.get_infos() == [{}, held]
    found = [str(warning.message) for warning in warned]
    for name, text in zip(refused, found, strict=True):
        assert f"{name!r}, of type" in text and "\n" not in text
    assert "is left out: it has half of a character" in found[0]


def test_infos_and_an_episode_that_goes_on_are_kept(tmp_path):
    infos = [{}, {"lives": 2}, {}]
    episode = of_steps(2, infos=infos, terminated=False)
    episode.custom_data["who"] = ["me"]
    (read,) = written_and_read(tmp_path, episode)
    assert_equal(read.get_state(), episode.get_state())
    assert not read.is_done and read.get_infos() == infos


def test_files_are_bounded_and_hold_whole_episodes(tmp_path):
    episodes = [of_steps(4, str(i)) for i in range(7)]
    assert [e.id_ for e in written_and_read(tmp_path, *episodes, max_rows=10)] == list("0123456")
    rows = [parquet.read_metadata(file).num_rows for file in sorted(tmp_path.glob("*.parquet"))]
    assert rows == [12, 12, 4]


def test_episodes_of_another_form_begin_another_file(tmp_path):
    odd = of_steps(2, "odd", observations=np.zeros((3, 2), np.float32))
    read = written_and_read(tmp_path, of_steps(2, "a"), odd, of_steps(3, "b"))
    assert [episode.id_ for episode in read] == ["a", "odd", "b"]
    assert [episode.get_observations(0).shape for episode in read] == [(), (2,), ()]


@pytest.mark.long
def test_memory_stays_flat_while_a_million_steps_are_recorded(tmp_path):
    """The last 800,000, of 32 numbers each, are 100 MB; the process grows by less than half."""
    episode, used = of_steps(10_000, observations=np.zeros((10_001, 32), np.float32)), []
    with EpisodeWriter(tmp_path) as writer:
        for _ in range(10):
            for _ in range(10):
                writer.write(SingleAgentEpisode.from_state(episode.get_state()))
            used.append(process_memory())
    assert len(list(tmp_path.glob("*.parquet"))) == 10
    assert used[-1] - used[1] < 48 * 2**20


def test_one_episode_may_be_written_twice(tmp_path):
    assert [len(e) for e in written_and_read(tmp_path, of_steps(3), of_steps(3))] == [3, 3]
    assert [len(e) for e in written_and_read(tmp_path / "games", turns(), turns())] == [3, 3]


def test_what_was_written_can_be_read_while_the_writer_goes_on(tmp_path):
    """A killed process leaves the files so far, and perhaps a part of one that nobody reads."""
    writer = EpisodeWriter(tmp_path, max_seconds=0)
    writer.write(of_steps(3, "first"))
    (tmp_path / ".episodes-x-000001.parquet.part").write_bytes(b"PAR1 half a file")
    assert [episode.id_ for episode in read_episodes(tmp_path)] == ["first"]
    waiting = EpisodeWriter(tmp_path)
    waiting.write(of_steps(3, "waits"))
    assert len(list(read_episodes(tmp_path))) == 1
    waiting.close()
    assert {episode.id_ for episode in read_episodes(tmp_path)} == {"first", "waits"}


def damage(file, how):
    content = file.read_bytes()
    if how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "changed":
        file.write_bytes(content[:40] + bytes(60) + content[100:])
    elif how == "foreign":
        parquet.write_table(pyarrow.table({"x": [1]}), file)
    else:
        table = parquet.read_table(file)
        key = b"jaxrl.episodes"
        stored = json.loads(table.schema.metadata[key])
        if how == "later":
            stored["format"] += 1
        rows = {"a row less": [*range(49)], "a row twice": [*range(50), 49]}
        rows |= {"the first row less": [*range(1, 50)], "rows exchanged": [*range(48), 49, 48]}
        table = table.take(rows[how]) if how in rows else table
        table = table.drop_columns(["actions"]) if how == "a column less" else table
        parquet.write_table(table.replace_schema_metadata({key: json.dumps(stored)}), file)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", "is damaged, or no Parquet file"),
        ("empty", "is damaged, or no Parquet file"),
        ("changed", "is damaged"),
        ("foreign", "holds no episodes that jaxrl wrote"),
        ("later", "was written by a later version of jaxrl: format 2"),
        ("a column less", "is damaged"),
        ("a row less", "is damaged: ValueError episode '1' has 49 rows, and 50 were written"),
        ("a row twice", "is damaged: ValueError episode '1' has 51 rows, and 50 were written"),
        ("the first row less", "is damaged: ValueError the first episode does not begin with"),
        ("rows exchanged", "is damaged: ValueError episode '1' has 50 rows"),
    ],
)
def test_a_damaged_or_foreign_file_is_named_in_one_line_and_the_others_are_read(
    tmp_path, how, message
):
    written_and_read(tmp_path, *[of_steps(50, str(i)) for i in range(3)], max_rows=1)
    broken = sorted(tmp_path.glob("*.parquet"))[1]
    damage(broken, how)
    with refusal(f"{re.escape(str(broken))} {message}"):
        list(read_episodes(tmp_path))
    with pytest.warns(UserWarning, match=message):
        read = list(read_episodes(tmp_path, skip_damaged=True))
    assert [episode.id_ for episode in read] == ["0", "2"]


def test_a_file_with_one_bit_changed_is_refused_or_read_as_it_was_written(tmp_path):
    """Two hundred bits, drawn alike; some lie where nothing is stored, in names of the writer."""
    written_and_read(tmp_path, *[of_steps(20, str(i)) for i in range(3)])
    (file,) = tmp_path.glob("*.parquet")
    content, states = file.read_bytes(), [e.get_state() for e in read_episodes(tmp_path)]
    refused = 0
    for bit in np.random.default_rng(0).integers(8 * len(content), size=200).tolist():
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        try:
            read = list(read_episodes(tmp_path))
        except UsageError:
            refused += 1
            continue
        for episode, state in zip(read, states, strict=True):
            assert_equal(episode.get_state(), state)
    assert refused > 100


@pytest.mark.parametrize(
    ("episode", "message"),
    [
        (lambda: SingleAgentEpisode("id"), "id cannot be stored: it does not begin with its reset"),
        (lambda: of_steps(4)[2:], "id cannot be stored: it does not begin with its reset"),
        (lambda: remarked({"x": {1}}), "its custom_data must be what JSON holds"),
        (lambda: remarked({"x": "\ud800"}), "its custom_data must be what JSON holds: it has half"),
        (lambda: remarked(nested(120)), "its custom_data must be what JSON holds: it is nested"),
        (lambda: remarked(10**5000), "its custom_data must be what JSON holds: Exceeds the limit"),
        (lambda: turns()[:1], "agent 'white' has no step, or an action that waits"),
        (lambda: of_steps(1, agent_id=3), "agent 3 is not named by a string"),
        (lambda: of_steps(1, extra_model_outputs={"obs": [1]}), "'obs' is no name for an extra"),
        (lambda: of_steps(1, extra_model_outputs={"x": [{3: 1}]}), "the key 3 in x is no string"),
        (
            lambda: of_steps(1, extra_model_outputs={"x": [{"a": {"b": 1}, "a.b": 2}]}),
            "two of its parts would share the column 'x.a.b'",
        ),
        (lambda: {"obs": 1}, "expected an episode of jaxrl.episodes, not"),
    ],
)
def test_what_cannot_be_stored_is_refused_in_one_line(tmp_path, episode, message):
    with EpisodeWriter(tmp_path) as writer:
        writer.write(of_steps(2, "before"))
        with pytest.raises(UsageError, match=message) as error:
            writer.write(episode())
    assert "\n" not in str(error.value)
    assert [episode.id_ for episode in read_episodes(tmp_path)] == ["before"]


def test_folders_that_cannot_be_used_are_refused_in_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"no episodes in .*: there is no \.parquet file"):
        read_episodes(tmp_path)
    with pytest.raises(UsageError, match="no episodes in"):
        read_episodes(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="episodes cannot be written to"):
        EpisodeWriter(tmp_path / "file")
