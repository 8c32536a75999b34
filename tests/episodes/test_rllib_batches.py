"""Files of RLlib's batches in JSON: the episodes that they hold, and damage in one line."""

import json
import pickle
import sys

import numpy as np
import pytest

from jaxrl.episodes.packed_arrays import Unpacker, unpickle
from jaxrl.episodes.parquet import read_episodes
from tests.episodes.rllib_batch_files import batch, line, packed, written
from tests.messages import refusal


def read(folder, *lines):
    return list(read_episodes(written(folder, *lines)))


def seen(episode):
    """The first numbers of an episode's observations."""
    return episode.observations.arrays()[:, 0].tolist()


def test_a_line_is_an_episode_with_its_actions_rewards_and_log_probabilities(tmp_path):
    (episode,) = read(tmp_path, line(batch(0, 3, action_prob=[0.5, 0.25, 1.0])))
    assert seen(episode) == [0, 1, 2, 3]
    assert episode.actions.arrays().tolist() == [0, 1, 0]
    assert episode.get_return() == 3 and episode.id_ == "7"
    assert (episode.is_terminated, episode.is_truncated) == (True, False)
    logp = episode.get_extra_model_outputs("action_logp")
    np.testing.assert_allclose(logp, np.log([0.5, 0.25, 1.0]))


def test_fragments_of_an_episode_are_joined_over_lines_and_files(tmp_path):
    written(tmp_path, line(batch(0, 2, last=None)), name="output-a_0.json")
    written(tmp_path, line(batch(2, 3, last=None)), line(batch(5, 1)), name="output-a_1.json")
    (tmp_path / "params.json").write_text("{}")  # a trial's folder has it too
    (episode,) = read_episodes(tmp_path)
    assert seen(episode) == [0, 1, 2, 3, 4, 5, 6] and episode.begins_with_reset


def test_a_batch_of_several_episodes_is_cut_where_one_ends_and_where_another_begins(tmp_path):
    parts = [batch(0, 2), batch(10, 2, last=None, t=[0, 1]), batch(20, 1, last="truncateds")]
    joined = {}
    for name in parts[0]:
        joined[name] = np.concatenate([part[name] for part in parts])
    joined |= {"eps_id": ["a", "a", "b", "b", "c"], "t": np.array([0, 1, 0, 1, 0])}
    episodes = {episode.id_: episode for episode in read(tmp_path, line(joined | {"infos": None}))}
    assert [seen(episodes[name]) for name in "abc"] == [[0, 1, 2], [10, 11, 12], [20, 21]]
    assert [episode.is_terminated for episode in episodes.values()] == [True, False, False]
    assert episodes["c"].is_truncated and not episodes["b"].is_done


def test_a_fragment_says_that_its_begin_is_missing(tmp_path):
    (episode,) = read(tmp_path, line(batch(5, 2)))
    assert episode.t_started == 5 and not episode.begins_with_reset
    without = batch(0, 4, eps_id=None, t=None)
    without["new_obs"] = without["new_obs"].copy()
    without["new_obs"][1] = 9  # rows that do not follow each other, as of a shuffled batch
    cut, rest = sorted(read(tmp_path, line(without)), key=lambda episode: episode.t_started)
    assert (seen(cut), cut.is_done, cut.begins_with_reset) == ([0, 1, 9], False, True)
    assert (seen(rest), rest.is_done, rest.begins_with_reset) == ([2, 3, 4], True, False)
    assert cut.id_ == rest.id_ and cut.id_.endswith("line 1, row 0")


def test_nan_in_an_observation_is_no_break(tmp_path):
    rows = batch(0, 3, eps_id=None, t=None)
    for name in ("obs", "new_obs"):
        rows[name] = np.array(rows[name])
        rows[name][:, 3] = np.nan
    (episode,) = read(tmp_path, line(rows))
    assert seen(episode) == [0, 1, 2, 3] and np.isnan(episode.get_observations()[:, 3]).all()


def test_a_fragment_that_does_not_continue_the_one_before_is_an_episode_of_its_own(tmp_path):
    lines = line(batch(0, 2, last=None)), line(batch(4, 2))
    assert [seen(episode) for episode in read(tmp_path, *lines)] == [[0, 1, 2], [4, 5, 6]]


def test_dones_of_older_files_are_terminations(tmp_path):
    columns = batch(0, 2, terminateds=None, truncateds=None, dones=[False, True])
    assert read(tmp_path, line(columns))[0].is_terminated


def test_policies_of_a_batch_of_several_agents_are_told_apart(tmp_path):
    rows = {"pol1": json.loads(line(batch(0, 2))), "pol2": json.loads(line(batch(4, 1, t=[0])))}
    text = json.dumps({"type": "MultiAgentBatch", "count": 2, "policy_batches": rows})
    episodes = {episode.module_id: seen(episode) for episode in read(tmp_path, text)}
    assert episodes == {"pol1": [0, 1, 2], "pol2": [4, 5]}


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize(
    "array",
    [np.arange(6, dtype=np.float32).reshape(2, 3), np.eye(3)[:, 1:], np.array([True, False]),
     np.zeros((0, 4), np.uint8), np.asfortranarray(np.arange(6).reshape(2, 3))],
)  # fmt: skip
def test_pickled_arrays_are_read_as_numpy_wrote_them(array, protocol):
    found = unpickle(pickle.dumps({"a": array, "b": (array, array)}, protocol))
    for part in (found["a"], *found["b"]):
        np.testing.assert_array_equal(part, array)
        assert part.dtype == array.dtype


def test_packed_columns_are_the_plain_ones(tmp_path):
    pytest.importorskip("lz4", reason="the extra `offline`")
    plain, packs = batch(0, 3), ("obs", "new_obs", "rewards")
    (episode,) = read(tmp_path, line(plain, packs))
    assert seen(episode) == [0, 1, 2, 3] and episode.get_return() == 3
    assert episode.observations.arrays().dtype == np.float32
    nested = batch(0, 3, obs={"x": plain["obs"]}, new_obs={"x": plain["new_obs"]})
    (episode,) = read(tmp_path, line(nested, packs))
    np.testing.assert_array_equal(episode.get_observations(-1)["x"], plain["new_obs"][-1])


def test_packed_columns_without_lz4_name_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4", None)
    text = line(batch(0, 1, obs=packed(np.zeros((1, 4)), compress=bytes)))
    with refusal(".*line 1: column 'obs': .* lz4, which is not installed: pip install lz4"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged, or no JSON"),
        ('{"type": "Episode"}', "is no batch of RLlib: its type is none of"),
        ('{"type": "MultiAgentBatch", "policy_batches": {"p": 1}}', "has no columns by policy"),
        (line(batch(0, 2, new_obs=None)), r"it has no column 'new_obs', but \['type', 'obs'"),
        (line(batch(0, 2, actions=[0])), "column 'actions' has not the 2 rows of 'rewards'"),
        (line(batch(0, 2, rewards=[[1.0], [2.0]])), "column 'rewards' is no row of single values"),
        (line(batch(0, 2, obs=[{}, {}])), "column 'obs' holds no arrays of numbers"),
        (line(batch(0, 2, obs=[[1.0], [1.0, 2.0]])), "setting an array element"),
        (line(batch(0, 2, terminateds=[0, 2])), "2, which bool cannot hold"),
        (line(batch(0, 2, rewards=[float("nan"), 1.0])), "rewards are a row of numbers"),
    ],
)
def test_a_damaged_line_is_named_and_the_other_files_are_read(text, message, tmp_path):
    written(tmp_path, line(batch(0, 1)), text, name="output-a.json")
    with refusal(f".*output-a.json, line 2:? .*{message}"):
        list(read_episodes(tmp_path))
    written(tmp_path, line(batch(4, 1)), name="output-b.json")
    with pytest.warns(UserWarning, match="line 2"):
        episodes = list(read_episodes(tmp_path, skip_damaged=True))
    assert [seen(episode) for episode in episodes] == [[0, 1], [4, 5]]


def test_a_packed_column_that_is_cut_is_refused():
    frame = pytest.importorskip("lz4.frame", reason="the extra `offline`")
    with pytest.raises(ValueError, match="it is cut, or holds more than"):
        Unpacker().unpack(packed(np.zeros(8), lambda data: frame.compress(data)[:-6]))
