"""gymnax's spaces as ours, and its observations in the types that they declare."""

import os
import subprocess
import sys
from urllib.error import URLError

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from jaxrl.adapters.from_gymnax import convert_space, typed
from jaxrl.core.env_contract import require_trainable
from jaxrl.core.errors import UsageError
from jaxrl.core.registry import make
from jaxrl.core.spaces import Box, Dict, Discrete, Tuple

THEIRS = spaces.Dict(
    {
        "map": spaces.Box(0.0, 1.0, (2, 2)),
        "bag": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 9, (1,), jnp.int32))),
    }
)


def test_dicts_and_tuples_of_gymnax_are_ours_part_by_part():
    expected = Dict(
        {"map": Box(0.0, 1.0, (2, 2)), "bag": Tuple((Discrete(3), Box(0, 9, (1,), "int32")))}
    )
    assert convert_space(THEIRS, "observation") == expected


def test_every_part_of_an_observation_gets_the_type_that_its_space_declares():
    obs = typed(THEIRS, {"bag": (jnp.int32(2), jnp.array([4.0])), "map": jnp.eye(2, dtype=bool)})
    assert convert_space(THEIRS, "observation").contains(obs)
    assert (obs["map"].dtype, obs["bag"][1].dtype) == (np.float32, np.int32)


def test_a_part_that_is_no_known_space_is_named():
    class Graph(spaces.Space):
        pass

    with pytest.raises(
        UsageError, match=r"observation\['net'\]: gymnax's Graph space is not supported"
    ):
        convert_space(spaces.Dict({"net": Graph()}), "observation")


@pytest.mark.parametrize("name", ["PointRobot-misc", "Reacher-misc", "Swimmer-misc"])
def test_spaces_whose_bounds_are_made_as_arrays_are_read_while_a_program_is_traced(name):
    env, params = make(f"gymnax:{name}")
    with jax.numpy_rank_promotion("allow"):  # which gymnax's own code needs
        require_trainable(env, params)
    for which in ("observation_space", "action_space"):
        seen = []
        jax.eval_shape(
            lambda _, which=which, seen=seen: seen.append(getattr(env, which)(params)), 0
        )
        assert seen == [getattr(env, which)(params)]


def test_data_that_cannot_be_loaded_is_said_in_one_line(monkeypatch):
    def offline(name, **args):
        raise URLError("no route to host")

    monkeypatch.setattr(gymnax, "make", offline)
    with pytest.raises(
        UsageError,
        match=r"gymnax environment 'MNISTBandit-bsuite' needs data that could .*no route",
    ):
        make("gymnax:MNISTBandit-bsuite")


@pytest.mark.long
def test_without_gymnax_its_names_are_refused_in_one_line_and_ours_are_made(tmp_path):
    (tmp_path / "gymnax.py").write_text("raise ImportError('no module gymnax here')\n")
    code = (
        "import jaxrl\n"
        "jaxrl.make('cartpole')\n"
        "for _ in range(2):\n    try:\n        jaxrl.make('gymnax:CartPole-v1')\n"
        "    except jaxrl.UsageError as error:\n        print(error)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.count("\n")) == (0, 2), done.stderr
    assert done.stdout.startswith(
        "gymnax's environments are not available: ImportError: no module gymnax here; "
    )
