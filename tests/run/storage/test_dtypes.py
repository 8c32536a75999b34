"""Numbers set on a trainer get the types that the program expects, or are refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxrl import Trainer, UsageError
from jaxrl.run.storage import checkpoint
from jaxrl.run.storage.dtypes import narrowed, typed_like
from tests.run.test_resume import CARTPOLE


class Params(struct.PyTreeNode):
    limit: jax.Array
    gravity: jax.Array
    windy: jax.Array
    place: jax.Array


NOW = Params(jnp.int32(500), jnp.float32(9.8), jnp.bool_(False), jnp.zeros(2))


@pytest.mark.parametrize(
    ("value", "dtype"), [(1e300, np.float32), (2**40, np.int32), (0.5, np.int32)]
)
def test_a_saved_number_that_its_type_cannot_hold_stays_as_it_was(value, dtype):
    saved = np.asarray(value)
    assert narrowed(saved, np.dtype(dtype)) is saved


@pytest.mark.parametrize(
    ("value", "dtype"), [(0.1, np.float32), (np.inf, np.float32), (7, np.int32), (7, np.float32)]
)
def test_a_saved_number_is_narrowed(value, dtype):
    np.testing.assert_array_equal(
        narrowed(np.asarray(value), np.dtype(dtype)), np.asarray(value, dtype), strict=True
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"limit": 20}, np.int32(20)),
        ({"limit": 20.0}, np.int32(20)),
        ({"limit": np.int64(20)}, np.int32(20)),
        ({"limit": jnp.float32(20)}, np.int32(20)),
        ({"gravity": 10}, np.float32(10)),
        ({"gravity": np.float64(0.1)}, np.float32(0.1)),
        ({"gravity": jnp.asarray(1.5)}, np.float32(1.5)),
        ({"gravity": float("inf")}, np.float32(np.inf)),
        ({"windy": True}, np.bool_(True)),
        ({"place": [1, 2]}, np.float32([1, 2])),
        ({"place": np.array([1.0, 2.0])}, np.float32([1, 2])),
    ],
)
def test_numbers_get_the_type_that_they_had_before(changes, expected):
    typed = getattr(typed_like(NOW, NOW.replace(**changes), "env_params"), next(iter(changes)))
    assert isinstance(typed, jax.Array)
    assert not typed.weak_type
    np.testing.assert_array_equal(np.asarray(typed), expected, strict=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit": 30.5}, "env_params: limit=30.5 must be an integer that int32 holds"),
        ({"limit": 2**31}, "env_params: limit=2147483648 must be an integer"),
        ({"limit": float("nan")}, "env_params: limit=nan must be an integer"),
        ({"limit": True}, "env_params: limit=True must be an integer"),
        ({"gravity": "9.8"}, "env_params: gravity='9.8' must be a number"),
        ({"gravity": 1j}, "env_params: gravity=1j must be a number"),
        ({"gravity": np.zeros(3)}, r"env_params: gravity must have the shape \[\], not \[3\]"),
        ({"windy": 1}, "env_params: windy=1 must be True or False"),
        ({"place": np.zeros(3)}, r"env_params: place must have the shape \[2\], not \[3\]"),
        ({"gravity": None}, "env_params: gravity=None must be a number"),
        ({"gravity": 1e39}, r"env_params: gravity=1e\+39 must be a number that float32 holds"),
        (7, "env_params must be a Params with the same fields as before, not 7"),
    ],
)
def test_numbers_that_their_type_cannot_hold_are_refused_by_name(changes, message):
    new = NOW.replace(**changes) if isinstance(changes, dict) else changes
    with pytest.raises(UsageError, match=message):
        typed_like(NOW, new, "env_params")


@pytest.mark.long
def test_python_numbers_set_on_a_trainer_train_save_and_resume_without_compiling_again(
    start, resume, tmp_path
):
    trainer = start(CARTPOLE)
    trainer.train()
    programs = len(trainer.program.executables)
    trainer.env_params = trainer.env_params.replace(max_steps_in_episode=20, gravity=10)
    trainer.hypers = jax.tree.map(
        lambda leaf: leaf, {"default_policy": trainer.hypers["default_policy"].replace(gamma=0.9)}
    )
    trainer.train()
    assert len(trainer.program.executables) == programs
    with pytest.raises(UsageError, match=r"hypers: default_policy\.gamma must have the shape"):
        trainer.hypers = {
            "default_policy": trainer.hypers["default_policy"].replace(gamma=np.ones(2))
        }
    with pytest.raises(UsageError, match=r"max_steps_in_episode=30\.5"):
        trainer.env_params = trainer.env_params.replace(max_steps_in_episode=30.5)
    trainer.stop()
    again = resume()
    assert again.env_params.max_steps_in_episode == 20
    assert again.env_params.gravity == 10
    assert again.hypers["default_policy"].gamma == np.float32(0.9)


def test_a_trainer_begun_with_a_number_of_the_wrong_kind_is_refused(tmp_path):
    params = CARTPOLE.setup().env_params.replace(max_steps_in_episode=30.5)
    with pytest.raises(UsageError, match=r"env_params: max_steps_in_episode=30\.5"):
        Trainer(CARTPOLE, run_dir=tmp_path / "run", quiet=True, env_params=params)
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_that_hold_python_numbers_are_read_as_the_numbers_that_trained():
    shapes = {
        "limit": jax.ShapeDtypeStruct((), jnp.int32),
        "gravity": jax.ShapeDtypeStruct((), jnp.float32),
    }
    saved = {"p.limit": np.int64(20), "p.gravity": np.int64(10)}
    read = checkpoint.filled(shapes, saved, "p", "checkpoint x")
    assert (read["limit"], read["limit"].dtype, read["gravity"].dtype) == (
        20,
        jnp.int32,
        jnp.float32,
    )
    read = checkpoint.filled(
        shapes, {"p.limit": np.float64(20), "p.gravity": np.float64(0.1)}, "p", "checkpoint x"
    )
    assert (read["limit"], read["gravity"]) == (20, np.float32(0.1))
    for wrong in (np.float64(30.5), np.int64(2**40), np.bool_(True), np.float32(20)):
        with pytest.raises(
            UsageError, match=r"limit: the checkpoint has .*, this configuration needs int32"
        ):
            checkpoint.filled(shapes, {**saved, "p.limit": wrong}, "p", "checkpoint x")
