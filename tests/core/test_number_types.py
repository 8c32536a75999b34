"""Numbers change their type as they are, or are refused: on every way in and out."""

import functools
import logging
import math

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import jaxrl
from jaxrl import UsageError
from jaxrl.core.number_types import NotHeldError, as_type, common_type, flag_in, store
from jaxrl.core.spaces import Box, Discrete
from jaxrl.episodes import SingleAgentEpisode
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.outside.workers.space_forms import _tell_once, form_of, writer
from jaxrl.run.inference.act_inputs import checked_part
from jaxrl.serving.message_values import read_observation
from tests.export.kinds import policy_of_kind

TYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
TYPES += ["float16", "float32", "float64"]
ARRAYS = st.sampled_from(TYPES).flatmap(
    lambda dtype: arrays_of.arrays(
        dtype,
        st.sampled_from([(), (1,), (3,), (2, 40)]),
        elements=None if "float" in dtype else st.one_of(st.integers(0, 1), _integers(dtype)),
    )
)


def _integers(dtype):
    if dtype == "bool":
        return st.booleans()
    limits = np.iinfo(dtype)
    return st.integers(int(limits.min), int(limits.max))


def exact(number):
    """A number of NumPy as Python's, which compares exactly."""
    return number.item()


def is_kept(before, after):
    """Whether numbers are the same, floats rounded; computed number by number in Python."""
    for old, new in zip(map(exact, before.flat), map(exact, after.flat), strict=True):
        if after.dtype.kind == "f":
            if math.isinf(new) and math.isfinite(old):
                return False
        elif old != new:
            return False
    return True


def wrapped(array, dtype):
    with np.errstate(all="ignore"):
        return array.astype(dtype)


@settings(max_examples=150)
@given(ARRAYS, st.sampled_from(TYPES))
def test_numbers_are_kept_or_refused(array, dtype):
    cast, view = wrapped(array, dtype), np.zeros(array.shape, dtype)
    if is_kept(array, cast):
        np.testing.assert_array_equal(as_type(array, dtype), cast)
        store(view, array)
        np.testing.assert_array_equal(view, cast)
        return
    refused = f"which {np.dtype(dtype)} cannot hold"
    with pytest.raises(NotHeldError, match=refused):
        as_type(array, dtype)
    if array.dtype.kind == view.dtype.kind == "f":
        with np.errstate(over="ignore"):
            store(view, array)
        np.testing.assert_array_equal(view, cast)  # infinite, which the caller looks for
        return
    with pytest.raises(NotHeldError, match=refused):
        store(view, array)


@pytest.mark.parametrize(
    ("values", "dtype", "words"),
    [
        ([-1], "uint8", "^-1, which uint8 cannot hold"),
        ([3.0, 3.9], "int32", "^3.9, which int32 cannot hold"),
        (2**33 + 7, "int32", "^8589934599, which int32"),
        (1e5, "float16", "^100000.0, which float16"),
        (1e39, "float32", r"^1e\+39, which float32"),
        ([math.nan], "int32", "^nan, which int32"),
        ([2], "bool", "^2, which bool"),
        ([2**70], "float32", "which is no array of float32"),
        (["1"], "float32", "which is no array of float32"),
    ],
)
def test_the_first_number_that_is_lost_is_named(values, dtype, words):
    with pytest.raises(NotHeldError, match=words):
        as_type(values, dtype)


def test_fractions_are_rounded_and_infinity_is_a_number_of_floats():
    assert as_type([0.1, math.inf], "float32").tolist() == [np.float32(0.1), math.inf]
    assert as_type([3.0, -2.0], "int8").tolist() == [3, -2]
    assert as_type(np.uint64(2**33 + 7), "float32") == np.float32(2**33)


@pytest.mark.parametrize(
    ("value", "flag"),
    [
        *((True, True), (np.bool_(False), False), (1, True), (np.array([0]), False)),
        *((2, None), (0.0, None), ("no", None), (None, None), ([True, True], None), ([], None)),
    ],
)
def test_a_flag_is_true_or_false_zero_or_one(value, flag):
    assert flag_in(value) is flag


def test_a_common_type_loses_no_integer():
    assert common_type([np.array([1]), np.array([0.5])]) == np.float64
    with pytest.raises(NotHeldError, match="9007199254740993 of int64 is lost beside float64"):
        common_type([np.array([2**53 + 1]), np.array([0.5])])
    with pytest.raises(NotHeldError, match="of uint64 is lost beside float64"):
        common_type([np.array([2**63 + 1], np.uint64), np.array([-1])])


# The ways in: an observation of Box(0, 255, (2,), uint8)

observed = functools.partial(form_of, is_observed=True)
BYTES = gymnasium.spaces.Box(0, 255, (2,), np.uint8)


def by_worker(value):
    form, view = observed(BYTES, "a test"), np.zeros(2, np.uint8)
    writer(form, [view])(value)
    return view


def by_policy(value):
    return checked_part(Box(0, 255, (2,), "uint8"), np.asarray(value), "p")


def by_message(value):
    (part,) = read_observation(Box(0, 255, (2,), "uint8"), np.asarray(value).tolist(), "p")
    return part


def by_learner(value):
    config = jaxrl.PPOConfig(env="external", num_envs=1, rollout_length=2, minibatch_size=2)
    learner = jaxrl.Learner(config.replace(fcnet_hiddens=(2,)), BYTES, Discrete(2))
    episode = SingleAgentEpisode(observations=[value, value], actions=[0], rewards=[1.0])
    episode.set_lookback(0)
    learner.add(episode)
    (lanes,), _, _ = learner._lanes.take()
    return lanes.obs[0, 0, 0, 0]


WAYS = [by_worker, by_policy, by_message, by_learner]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "uint64"])
def test_what_the_space_holds_arrives_in_any_type(way, dtype):
    found = way(np.array([7, 255], dtype))
    assert found.tolist() == [7, 255] and found.dtype == np.uint8


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("values", [[-1, 0], [0, 300], [3.9, 0], [2**40, 0], [math.nan, 0]])
def test_what_the_space_does_not_hold_is_refused_in_a_line(way, values):
    with pytest.raises(ValueError) as raised:
        way(np.array(values))
    assert "\n" not in str(raised.value) and "uint8" in str(raised.value)


def test_the_numpy_reader_refuses_what_its_inputs_do_not_hold(tmp_path):
    tables = NumpyPolicy(policy_of_kind("tables").export(tmp_path / "model.npz").path)
    dense = NumpyPolicy(policy_of_kind("gaussian").export(tmp_path / "other.npz").path)
    assert tables.act([0, 0], agent=1).shape == (2,)
    for obs in ([0, 99], [-1, 0]):
        with pytest.raises(ValueError, match="out of its range"):
            tables.act(obs, agent=1)
    with pytest.raises(ValueError, match=r"obs holds 0\.5, which int32 cannot hold"):
        tables.act([0, 0.5], agent=1)
    with pytest.raises(ValueError, match="which float32 cannot hold"):
        dense.act([1e39, 0, 0])


# Spaces beyond 32 bits


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (gymnasium.spaces.Box(0, 2**63, (1,), np.uint64), "float32"),
        (gymnasium.spaces.Box(-(2**62), 2**62, (1,), np.int64), "float32"),
        (gymnasium.spaces.Box(0, 4, (1,), np.int64), "int32"),
        (gymnasium.spaces.Box(0, 2**32 - 1, (1,), np.uint64), "uint32"),
        (gymnasium.spaces.Box(-1, 1, (1,), np.float64), "float32"),
    ],
)
def test_boxes_of_64_bits_have_the_type_that_holds_them(space, dtype, caplog):
    _tell_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        forms = [observed(gymnasium.spaces.Dict(money=space), "observation of bank") for _ in "12"]
    assert forms[0].leaves[0].dtype == dtype
    line = "observation of bank['money']: {} beyond 32 bits is learned from as float32, rounded"
    is_told = np.dtype(space.dtype).kind in "iu" and dtype == "float32"
    assert caplog.messages == [line.format(space.dtype)] * is_told
    view = np.zeros(1, dtype)
    writer(forms[0], [view])({"money": space.high.astype(space.dtype)})
    assert float(view[0]) == pytest.approx(float(space.high[0]), rel=1e-6)


def test_actions_beyond_32_bits_are_refused_with_the_way_out():
    space = gymnasium.spaces.Box(0, 2**63, (1,), np.uint64)
    with pytest.raises(UsageError, match="cannot be chosen; declare bounds within them"):
        form_of(space, "action of bank")
