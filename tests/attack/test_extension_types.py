"""Parquet files whose columns are of types that this process knows: none of their code runs.

`import ray.data` registers types that unpickle: one each value that is taken out, others what a
file's schema says of them, as soon as the schema is read.
"""

import base64
import os
import pickle

import msgspec
import pyarrow
import pyarrow.parquet
import pytest

from jaxrl.core.errors import UsageError
from jaxrl.episodes import read_episodes
from jaxrl.episodes.bounded_table import read_table
from tests.attack.test_damaged_batches import Runs
from tests.episodes.test_rllib_rows import seen, state, steps, table

RAN = "ran"


class PickledValue(pyarrow.ExtensionScalar):
    """As Ray's: unpickles itself when it is taken out."""

    def as_py(self, **_):
        return pickle.loads(self.value.as_buffer().to_pybytes())


class PickledValues(pyarrow.ExtensionType):
    def __init__(self):
        super().__init__(pyarrow.large_binary(), "ray.data.arrow_pickled_object")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls()

    def __arrow_ext_scalar_class__(self):
        return PickledValue


class PickledType(pyarrow.ExtensionType):
    """As Ray's tensors: unpickles what a schema says of it."""

    def __init__(self, storage, serialized=b""):
        self.serialized = serialized
        super().__init__(storage, "ray.data.arrow_tensor_v2")

    def __arrow_ext_serialize__(self):
        return self.serialized

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        pickle.loads(serialized)
        return cls(storage, serialized)


@pytest.fixture(autouse=True)
def registered(tmp_path, monkeypatch):
    """In an empty folder, with both types as `import ray.data` leaves them."""
    monkeypatch.chdir(tmp_path)
    names = []
    for type_ in (PickledValues(), PickledType(pyarrow.large_binary())):
        pyarrow.register_extension_type(type_)
        names.append(type_.extension_name)
    yield
    for name in names:
        pyarrow.unregister_extension_type(name)


EVIL = pickle.dumps(Runs(os.makedirs, RAN, 0o777, True))


def typed(values, evil):
    """An array of one of the types, whose pickle calls a function."""
    storage = pyarrow.array(values, pyarrow.large_binary())
    type_ = PickledType(storage.type, EVIL) if evil == "schema" else PickledValues()
    return pyarrow.ExtensionArray.from_storage(type_, storage)


def with_column(name, array):
    columns = table(steps(0, 2))
    if name in columns.column_names:
        columns = columns.drop_columns([name])
    return columns.append_column(name, array)


FILES = {
    "packed episodes": lambda evil: pyarrow.table({"item": typed([EVIL], evil)}),
    "observations": lambda evil: with_column("obs", typed([EVIL] * 2, evil)),
    "names": lambda evil: with_column("eps_id", typed([EVIL] * 2, evil)),
    "a column that is left out": lambda evil: with_column("infos", typed([EVIL] * 2, evil)),
    "a column in another": lambda evil: with_column(
        "obs", pyarrow.StructArray.from_arrays([typed([EVIL] * 2, evil)], ["x"])
    ),
    "jaxrl's": lambda evil: pyarrow.table({"t": [0], "eps_id": typed([EVIL], evil)}),
}


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("evil", ["values", "schema"])
def test_a_type_that_unpickles_is_never_called(what, evil):
    pyarrow.parquet.write_table(FILES[what](evil), "a.parquet")
    try:
        assert len(list(read_episodes("a.parquet"))) == 1 and what == "a column that is left out"
    except UsageError as error:
        assert "\n" not in str(error) and what != "a column that is left out"
    assert os.listdir() == ["a.parquet"]


def test_the_file_would_run_its_code_where_arrow_reads_it_alone():
    pyarrow.parquet.write_table(FILES["packed episodes"]("schema"), "a.parquet")
    pyarrow.parquet.read_schema("a.parquet")
    assert os.path.isdir(RAN)


def test_a_column_of_such_a_type_is_read_as_it_is_stored(tmp_path):
    packed = msgspec.msgpack.encode(state(0, 2))
    pyarrow.parquet.write_table(pyarrow.table({"item": typed([packed], "values")}), "a.parquet")
    (episode,) = read_episodes("a.parquet")
    assert seen(episode) == [0, 1, 2]
    (field,) = read_table(tmp_path / "a.parquet").schema
    assert field.type == pyarrow.large_binary()


def forged(schemas):
    """Writes a file whose footer has these schemas, under any keys."""
    keys = {key: base64.b64encode(pyarrow.schema(fields).serialize()) for key, fields in schemas}
    plain = pyarrow.table({"item": pyarrow.array([EVIL], pyarrow.large_binary())})
    with pyarrow.parquet.ParquetWriter("a.parquet", plain.schema, store_schema=False) as writer:
        writer.write_table(plain)
        writer.add_key_value_metadata(keys)


@pytest.mark.parametrize("place", [0, 1])
def test_a_second_schema_does_not_hide_the_first(place):
    plain = [pyarrow.field("item", pyarrow.large_binary())]
    evil = [pyarrow.field("item", PickledType(pyarrow.large_binary(), EVIL))]
    schemas = [("jaxrl:schema", plain)]
    schemas.insert(place, ("ARROW:schema", evil))
    forged(schemas)
    with pytest.raises(UsageError, match=r"a\.parquet is damaged, .* its schema is there twice"):
        list(read_episodes("a.parquet"))
    assert os.listdir() == ["a.parquet"]
