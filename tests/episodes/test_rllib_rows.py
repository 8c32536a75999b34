"""RLlib's Parquet files: a step in each row, or an episode packed, as Ray Data writes them."""

import msgspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from jaxrl.core.errors import UsageError
from jaxrl.episodes import read_episodes
from tests.episodes.rllib_batch_files import batch, packed
from tests.messages import refusal

RUN = "cartpole-v1/run-000000-00004"  # the folder of a run below RLlib's `output`
TENSOR = {b"ARROW:extension:name": b"ray.data.arrow_tensor_v2"}


def steps(first, count, name="7", **columns):
    """The columns of `count` steps, as `batch` has them, of an episode with this name."""
    rows = batch(first, count, **columns)
    del rows["infos"], rows["t"]
    return {**rows, "eps_id": [name] * count, "action_logp": np.full(count, -0.5, np.float32)}


def table(columns):
    """A table whose arrays are lists with the shape of each beside them, as those of Ray Data."""
    arrays, fields = [], []
    for name, values in columns.items():
        if isinstance(values, np.ndarray) and values.ndim > 1:
            flat = pyarrow.array(values.reshape(-1))
            offsets = np.arange(len(values) + 1) * values[0].size
            arrays.append(pyarrow.LargeListArray.from_arrays(pyarrow.array(offsets), flat))
            shape = str(list(values.shape[1:])).encode()
            metadata = {**TENSOR, b"ARROW:extension:metadata": shape}
        else:
            arrays.append(pyarrow.array(values))
            metadata = None
        fields.append(pyarrow.field(name, arrays[-1].type, metadata=metadata))
    return pyarrow.table(arrays, schema=pyarrow.schema(fields))


def written(folder, columns, number=0):
    (folder / RUN).mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table(columns), folder / RUN / f"0354_{number:06}-0.parquet")
    return folder


def seen(episode):
    """The first numbers of an episode's observations."""
    return episode.observations.arrays()[:, 0].tolist()


def test_rows_are_episodes_however_many_files_they_are_in(tmp_path):
    written(tmp_path, steps(0, 3, last=None))
    written(tmp_path, steps(3, 1), number=1)
    written(tmp_path, steps(9, 2, "8", last="truncateds"), number=2)
    for path in (tmp_path, tmp_path / "cartpole-v1", tmp_path / RUN / "*.parquet"):
        first, second = read_episodes(path)
        assert (seen(first), seen(second)) == ([0, 1, 2, 3, 4], [9, 10, 11])
        assert (first.id_, first.is_terminated, second.is_truncated) == ("7", True, True)
        assert first.actions.arrays().tolist() == [0, 1, 0, 0]
        np.testing.assert_array_equal(first.get_extra_model_outputs("action_logp"), [-0.5] * 4)


def test_rows_are_unpacked_one_by_one(tmp_path):
    pytest.importorskip("lz4", reason="the extra `offline`")
    columns = steps(0, 3)
    for name in ("obs", "new_obs"):
        columns[name] = [packed(row) for row in columns[name]]
    (episode,) = read_episodes(written(tmp_path, columns))
    assert seen(episode) == [0, 1, 2, 3]


def test_the_rows_of_each_module_are_episodes_of_its_policy(tmp_path):
    columns = steps(0, 4, last=None)
    columns |= {"agent_id": ["a", "b", "a", "b"], "module_id": ["red", "blue", "red", "blue"]}
    columns["obs"] = np.float32([[0], [10], [1], [11]])
    columns["new_obs"] = columns["obs"] + 1
    red, blue = read_episodes(written(tmp_path, columns))
    assert (red.module_id, blue.module_id) == ("red", "blue")
    assert (seen(red), seen(blue)) == ([0, 1, 2], [10, 11, 12])


def number(value):
    """A number or an array in MessagePack, as RLlib's packer has it."""
    value = np.asarray(value)
    facts = {b"nd": value.ndim > 0, b"type": value.dtype.str, b"data": value.tobytes()}
    return facts | ({b"kind": b"", b"shape": list(value.shape)} if value.ndim else {})


def column(values, lookback=0):
    return {"data": values, "lookback": lookback, "finalized": not isinstance(values, list)}


def state(first, count, *, lookback=0, terminated=True, name="7"):
    """An episode's state; observation t is (t, 0). `lookback` steps stand before the first."""
    times = range(first - lookback, first + count)
    obs = [number(np.float32([t, 0])) for t in (*times, first + count)]
    return {
        "id_": name,
        "observations": column(obs, lookback),
        "actions": column([number(np.int32(t % 2)) for t in times], lookback),
        "rewards": column([float(t) for t in times], lookback),
        "extra_model_outputs": {
            "action_logp": column([number(np.float32(-t)) for t in times], lookback),
            "weights_seq_no": column([0 for _ in times], lookback),
        },
        "is_terminated": terminated,
        "is_truncated": False,
        "t_started": first,
        "agent_id": None,
    }


def of_states(folder, *states):
    return written(folder, {"item": [msgspec.msgpack.encode(state) for state in states]})


def test_packed_episodes_are_joined_from_their_pieces(tmp_path):
    cut = state(0, 3, terminated=False)
    only_reset = state(0, 0, name="8")
    (episode,) = read_episodes(of_states(tmp_path, cut, only_reset, state(3, 2, lookback=1)))
    assert seen(episode) == [0, 1, 2, 3, 4, 5] and episode.is_terminated
    assert episode.rewards.arrays().tolist() == [0, 1, 2, 3, 4]
    assert episode.get_extra_model_outputs("action_logp").tolist() == [0, -1, -2, -3, -4]


def test_packed_episodes_may_be_arrays(tmp_path):
    arrays = state(0, 2)
    arrays["observations"] = column(number(np.float32([[0, 0], [1, 0], [2, 0]])))
    arrays["actions"], arrays["rewards"] = map(column, (number([0, 1]), number([1.0, 2.0])))
    (episode,) = read_episodes(of_states(tmp_path, arrays))
    assert (seen(episode), episode.get_return()) == ([0, 1, 2], 3.0)


def test_packed_observations_may_be_dicts_and_tuples(tmp_path):
    parts = state(0, 2)
    pairs = [{"a": [number(np.float32([t])), number(np.float32([-t]))]} for t in range(3)]
    parts["observations"] = column(pairs)
    (episode,) = read_episodes(of_states(tmp_path, parts))
    first, second = episode.get_observations(slice(None))["a"]
    assert (first.tolist(), second.tolist()) == ([[0], [1], [2]], [[0], [-1], [-2]])


def test_rllibs_episodes_are_read_as_it_packs_them(tmp_path):
    rllib = pytest.importorskip("ray.rllib.env.single_agent_episode").SingleAgentEpisode
    msgpack = pytest.importorskip("msgpack")
    numpy_in_msgpack = pytest.importorskip("msgpack_numpy")
    source = rllib(id_="7")
    source.add_env_reset(np.float32([0, 0]))
    for t in (1, 2, 3):
        outputs = {"action_logp": np.float32(-t)}
        source.add_env_step(
            np.float32([t, 0]),
            np.int32(1),
            float(t),
            terminated=t == 3,
            extra_model_outputs=outputs,
        )
    for form in (source, source.to_numpy()):
        item = msgpack.packb(form.get_state(), default=numpy_in_msgpack.encode)
        (episode,) = read_episodes(written(tmp_path, {"item": [item]}))
        assert (seen(episode), episode.get_return()) == ([0, 1, 2, 3], 6.0)
        assert episode.actions.arrays().tolist() == [1, 1, 1] and episode.is_terminated


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item": [b"\xc1"]}, r"0\.parquet: episode 1 cannot be read: DecodeError"),
        ({"item": [msgspec.msgpack.encode({"agents": 2})]}, "cannot be read: KeyError"),
        ({"eps_id": ["7"], "obs": [[1.0]]}, "it has no column 'new_obs'"),
        ({**steps(0, 2), "obs": [[1.0], [1.0, 2.0]]}, "column 'obs': setting an array element"),
    ],
)
def test_what_is_damaged_is_one_line(tmp_path, columns, message):
    with refusal(message):
        list(read_episodes(written(tmp_path, columns)))


def reshaped(folder, shape):
    """Steps in rows, whose observations have this text for the shape of each."""
    rows = table(steps(0, 2))
    field = rows.schema.field("obs").with_metadata({**TENSOR, b"ARROW:extension:metadata": shape})
    rows = rows.set_column(rows.column_names.index("obs"), field, rows["obs"])
    (folder / RUN).mkdir(parents=True)
    pyarrow.parquet.write_table(rows, folder / RUN / "a.parquet")
    return folder


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (b"5", "the shape of its rows is 5, which is no list of sizes"),
        (b'{"shape":[2]}', r"the shape of its rows is {'shape': \[2\]}, which is no list"),
        (b"[-1]", r"the shape of its rows is \[-1\], which"),
        (b"[1e400]", r"the shape of its rows is \[inf\], which"),
        (b"[" * 100_000, "it is nested more than 100 deep"),
        (b"\xff", "it is not UTF-8"),
        (b"[3]", "cannot reshape array of size"),
        (b"[18446744073709551616]", "Maximum allowed dimension exceeded"),
    ],
    ids=lambda part: str(part)[:16],
)
def test_a_shape_that_is_none_is_one_line(tmp_path, shape, message):
    with refusal(f"column 'obs': {message}"):
        list(read_episodes(reshaped(tmp_path, shape)))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"extra_model_outputs": [1]}, "AttributeError"),
        ({"t_started": float("inf")}, "OverflowError"),
        ({"agent_episodes": {}}, "ValueError: it is of several agents"),
        ({"actions": column([msgspec.msgpack.Ext(5, b"x")])}, "it has an object .*, Ext"),
    ],
    ids=lambda part: next(iter(part)) if isinstance(part, dict) else None,
)
def test_a_damaged_episode_is_one_line_and_the_other_files_are_read(tmp_path, facts, message):
    of_states(tmp_path, {**state(0, 1), **facts})
    with refusal(f"episode 1 cannot be read: .*{message}"):
        list(read_episodes(tmp_path))
    written(tmp_path, {"item": [msgspec.msgpack.encode(state(0, 2))]}, number=1)
    with pytest.warns(UserWarning, match="episode 1 cannot be read"):
        (episode,) = read_episodes(tmp_path, skip_damaged=True)
    assert seen(episode) == [0, 1, 2]


def test_two_columns_of_one_name_are_refused(tmp_path):
    twice = table({"item": [b"", b""]})
    pyarrow.parquet.write_table(twice.append_column("item", twice["item"]), tmp_path / "a.parquet")
    with refusal("has two columns called 'item'"):
        list(read_episodes(tmp_path))


def test_an_object_in_a_packed_episode_is_never_unpickled(tmp_path):
    evil = state(0, 1)
    evil["rewards"] = column([{b"nd": True, b"type": "|O", b"kind": b"O", b"data": b"cos\nsystem"}])
    with refusal("it has an array of '|O', which is no number"):
        list(read_episodes(of_states(tmp_path, evil)))


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("door-human-v1", "D4RL/door/human-v2"),
        ("antmaze-large-diverse-v2", "D4RL/antmaze/large-diverse-v1"),
        ("maze2d-umaze-dense-v1", "D4RL/pointmaze/umaze-dense-v2"),
        ("kitchen-mixed-v0", "D4RL/kitchen/mixed-v2"),
        ("hopper-medium-v2", "mujoco/hopper/medium-v0"),
        ("minigrid-fourrooms-v0", "D4RL/minigrid/fourrooms-v0"),
    ],
)
def test_a_dataset_of_d4rl_is_answered_with_minaris_name(name, dataset):
    with refusal(f"d4rl.{name} is 'minari:{dataset}' here"):
        read_episodes(f"d4rl.{name}")


def test_a_dataset_without_a_counterpart_says_where_to_look():
    with pytest.raises(UsageError, match="has no counterpart that is known; `minari list remote`"):
        read_episodes("d4rl.hopper-medium-replay-v2")
