"""The metrics logger: the values of RLlib's reductions, by hand, and what is refused."""

import io
import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from jaxrl import UsageError
from jaxrl.core.metric import REDUCTIONS, percentile_name
from jaxrl.core.metrics_logger import MetricsLogger, UnknownMetric, merge, tree_of
from jaxrl.core.pictures import png
from jaxrl.run.results import ResultTree
from tests.messages import refusal, refused, refused_by


def logged(values, **settings):
    """The results of iterations in which these values were logged, {iteration: [values]}."""
    logger, results = MetricsLogger(), []
    for of_iteration in values:
        for value in of_iteration:
            logger.log_value("x", value, **settings)
        results.append(logger.next_result().get("x"))
    return results


# between 1 and 3, then of 5 alone
QUARTILES = [{"25": 1.5, "100": 3.0}, {"25": 5.0, "100": 5.0}, None]
MEDIANS = [{"50": 2.0}, {"50": 4.0}, {"50": 4.0}]  # of the last two


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"reduce": "mean"}, [2.0, 5.0, None]),  # (1 + 3) / 2, 5, nothing
        ({"reduce": "sum"}, [4.0, 5.0, None]),
        ({"reduce": "min"}, [1.0, 5.0, None]),
        ({"reduce": "max"}, [3.0, 5.0, None]),
        ({"reduce": "item"}, [3.0, 5.0, None]),
        ({"window": 2}, [2.0, 4.0, 4.0]),  # a mean: (3 + 5) / 2
        ({"reduce": "max", "window": 2}, [3.0, 5.0, 5.0]),
        ({"window": 2, "clear_on_reduce": True}, [2.0, 5.0, None]),
        ({"window": math.inf}, [2.0, 5.0, None]),
        ({"reduce": "lifetime_sum"}, [4.0, 9.0, 9.0]),
        ({"reduce": "sum", "clear_on_reduce": False}, [4.0, 9.0, 9.0]),
        ({"reduce": "max", "clear_on_reduce": False}, [3.0, 5.0, 5.0]),
        ({"reduce": "ema", "ema_coeff": 0.5}, [2.0, 3.5, 3.5]),  # 1 -> 2, 2 -> 3.5
        ({"reduce": "mean", "ema_coeff": 0.5}, [2.0, 3.5, 3.5]),
        ({}, [1.02, 1.0598, 1.0598]),  # 0.99 * 1 + 0.01 * 3, 0.99 * 1.02 + 0.01 * 5
        ({"clear_on_reduce": True}, [2.0, 5.0, None]),
        ({"reduce": "item_series"}, [[1, 3], [5], None]),
        ({"reduce": "item_series", "window": 1}, [[3], [5], [5]]),
        ({"reduce": "percentiles", "percentiles": [25, 100]}, QUARTILES),
        ({"percentiles": [25, 100.0], "clear_on_reduce": True}, QUARTILES),
        ({"percentiles": np.array([25, 100])}, QUARTILES),
        ({"reduce": "percentiles", "percentiles": [50], "window": 2}, MEDIANS),
    ],
    ids=str,
)
def test_what_is_logged_in_two_iterations_becomes_what_rllib_makes_of_it(settings, expected):
    assert logged([[1, 3], [5], []], **settings) == [
        None if value is None else pytest.approx(value) for value in expected
    ]


def test_a_name_keeps_the_settings_of_its_first_value_and_nan_counts_for_nothing():
    logger = MetricsLogger()
    logger.log_value("x", 1.0, reduce="max")
    logger.log_value("x", np.float32(0.5), reduce="sum")
    logger.log_value("x", float("nan"))
    assert logger.peek("x") == 1.0


def test_a_block_of_code_is_timed_as_a_value_is_logged(monkeypatch):
    seconds = iter([10.0, 12.0, 20.0, 25.0])
    clock = SimpleNamespace(perf_counter=lambda: next(seconds))
    monkeypatch.setattr("jaxrl.core.metrics_logger.time", clock)
    logger = MetricsLogger()
    for _ in range(2):
        with logger.log_time(("mine", "seconds"), reduce="max"):
            pass
    assert logger.next_result() == {"mine": {"seconds": 5.0}}


LIKE_RLLIB = [
    *({"reduce": reduce} for reduce in REDUCTIONS),
    {},
    {"reduce": "ema", "ema_coeff": 0.5},
    {"reduce": "percentiles", "percentiles": [0, 12.5, 50, 99.9]},
]


@pytest.mark.parametrize("settings", LIKE_RLLIB, ids=str)
def test_rllibs_logger_makes_the_same_of_the_same_values(settings):
    logger = pytest.importorskip("ray.rllib.utils.metrics.metrics_logger").MetricsLogger(root=True)
    iterations = [[4.0, -1.0, 2.5], [3.0, 8.0], [], [0.5, 0.25]]
    for values, value in zip(iterations, logged(iterations, **settings), strict=True):
        for number in values:
            logger.log_value("x", number, **settings)
        expected = logger.compile()["x"]
        if isinstance(expected, dict):
            expected = {percentile_name(name): part for name, part in expected.items()}
        if values or settings.get("reduce") in (None, "ema", "lifetime_sum"):
            assert value == pytest.approx(expected)
        else:
            assert value is None  # RLlib has nan, None or an empty list


def test_a_percentile_is_found_by_its_number_or_its_name():
    logger = MetricsLogger()
    for value in (1, 3):
        logger.log_value("x", value, reduce="percentiles")
    peeked = logger.peek("x")
    assert list(peeked) == ["0", "50", "75", "90", "95", "99", "100"]
    result = ResultTree()
    merge(result, logger.next_result(), "on_train_result")
    for values in (peeked, result["x"]):
        assert values[75] == values[75.0] == values["75"] == 2.5
        for name in (60, "75.0"):  # a text is the name alone
            with pytest.raises(KeyError):
                values[name]


def test_a_throughput_is_the_sum_per_second_of_training():
    logger = MetricsLogger()
    found = []
    for now, seconds, steps in ((12.0, 2.0, (30, 10)), (16.0, 4.0, (20,)), (17.0, 1.0, ())):
        logger.set_time(now, seconds)  # the run was resumed after 10 s
        for count in steps:
            logger.log_value(("a", "steps"), count, reduce="sum", with_throughput=True)
            logger.log_value("all", count, reduce="lifetime_sum", with_throughput=True)
        peeked = logger.peek("a/steps", 0.0, throughput=True)
        result = logger.next_result()
        assert peeked == result.get("a", {}).get("steps_throughput", 0.0)
        found.append((peeked, *result["all_throughput"].values()))
    assert found == [(20.0, 20.0, 20.0), (5.0, 5.0, 60 / 6), (0.0, 0.0, 60 / 7)]
    logger.log_value("all", 6)
    assert logger.peek(throughput=True) == {}  # no time has passed since the last result


def test_what_a_throughput_adds_to_a_result_is_no_other_metric():
    settings = {"a": {"reduce": "sum", "with_throughput": True}, "a_throughput": {"reduce": "sum"}}
    for first, second in itertools.permutations(settings):
        logger = MetricsLogger()
        logger.log_value(first, 1, **settings[first])
        with refusal(
            f"{second!r} cannot be logged beside .*: with_throughput=True adds 'a_through"
        ):
            logger.log_value(second, 5, **settings[second])
    logger.log_value("c", 1, reduce="lifetime_sum", with_throughput=True)
    with refusal("'c_throughput/mean' cannot be logged beside 'c': one of them would be both"):
        logger.log_value("c_throughput/mean", 1)


def test_an_item_is_what_json_holds_or_a_picture():
    logger, frame = MetricsLogger(), np.zeros((3, 4, 5), np.float32)
    frame[0, 1, 2] = 1.0  # red, channels first
    for name, value in {"phase": "warm up", "pair": np.arange(2), "frame": frame}.items():
        logger.log_value(name, value, reduce="item")
    logger.log_value("actions", np.int32(2), reduce="item_series")
    logger.log_value("actions", {"left": [np.float32(0.5)]})
    frame[:] = 0.0
    state = json.loads(json.dumps(logger.state()))
    result = logger.next_result()
    assert result["frame"].shape == (4, 5, 3) and result["frame"].dtype == np.uint8
    assert np.argwhere(result.pop("frame")).tolist() == [[1, 2, 0]]
    assert result == {"phase": "warm up", "pair": [0, 1], "actions": [2, {"left": [0.5]}]}
    logger.restore(state)
    assert logger.peek() == result  # a checkpoint holds no pictures
    for _ in range(2):
        logger.log_value("frames", frame, reduce="item_series")
    assert [picture.shape for picture in logger.next_result()["frames"]] == [(4, 5, 3)] * 2


def test_a_pictures_png_is_read_back_pixel_by_pixel():
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    for channels in (1, 3, 4):
        pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
        shown = np.asarray(image.open(io.BytesIO(png(pixels))))
        np.testing.assert_array_equal(shown.reshape(pixels.shape), pixels)


def test_names_are_paths_and_peek_changes_nothing():
    logger = MetricsLogger()
    logger.log_value(("a", "b"), 1, reduce="sum")
    logger.log_dict({"c": 2, "d": {"e": 3}}, key="a", reduce="sum")
    assert logger.peek("a/b") == logger.peek(("a", "b")) == 1
    assert logger.peek("a") == {"b": 1, "c": 2, "d": {"e": 3}}
    assert logger.peek("z", default=7) == 7
    assert logger.next_result() == {"a": {"b": 1, "c": 2, "d": {"e": 3}}}
    assert logger.peek() == {}
    with pytest.raises(KeyError, match="unknown metric 'a/f'; known: a/b"):
        logger.peek("a/f")
    with pytest.raises(UnknownMetric):
        logger.peek("nothing")


def test_what_counts_later_is_restored_from_json():
    logger, again = MetricsLogger(), MetricsLogger()
    logger.log_value("x", 1, window=2)
    logger.log_value("x", 2)
    logger.log_value("y", 1, ema_coeff=0.5)
    logger.log_value("z", 1, percentiles=[50], window=3)
    logger.log_value("all", 1, reduce="lifetime_sum", with_throughput=True)
    again.restore(json.loads(json.dumps(logger.state())))
    for each_logger in (logger, again):
        each_logger.log_value("x", 5)
        each_logger.log_value("y", 2)
        each_logger.log_value("z", 2)
    expected = {"x": 3.5, "y": 1.5, "z": {"50": 1.5}, "all": 1.0}
    assert again.next_result() == logger.next_result() == expected


def test_values_are_added_to_a_result_and_take_the_place_of_those_that_hooks_logged():
    result = {"a": {"b": 1, "c": 2}, "d": 3}
    merge(result, {"a": {"b": 5}, "e": {"f": 6}}, "on_train_result", replaced={"a/b"})
    assert result == {"a": {"b": 5, "c": 2}, "d": 3, "e": {"f": 6}}


def added(values):
    merge({"a": {"b": 1}, "d": 3}, values, "on_train_result")


test_a_name_that_a_result_has_is_refused_with_its_hook = refused_by(
    added,
    [
        ({"a": {"b": 5}}, "on_train_result logs 'a/b', which the result has already"),
        ({"a": 5}, "on_train_result logs 'a', which"),
        ({"d": {"e": 5}}, "on_train_result logs 'd', which"),
    ],
)


def test_paths_become_a_tree_in_which_none_lies_under_another():
    tree = tree_of({("a", "b"): 1, ("c",): 2, ("a", "d"): 3})
    assert tree == {"a": {"b": 1, "d": 3}, "c": 2}
    for paths in ([("a",), ("a", "b")], [("a", "b"), ("a",)]):
        with pytest.raises(UsageError, match="logs 'a', which the result has already"):
            tree_of(dict.fromkeys(paths, 1))


@pytest.mark.parametrize("window", [2.0, np.float32(2), np.array([2])], ids=str)
def test_a_window_may_be_a_whole_number_of_another_type(window):
    assert logged([[1, 3, 5]], window=window) == [4.0]


test_settings_that_are_no_numbers_in_their_range_are_refused_in_one_line = refused_by(
    lambda settings: MetricsLogger().log_value("x", 1, **settings),
    [
        ({"window": "abc"}, "window='abc' must be an integer of at least 1 or None"),
        ({"window": math.nan}, "window=nan must be an integer of at least 1"),
        ({"window": -math.inf}, "window=-inf must be an integer of at least 1"),
        ({"window": 2.5}, r"window=2\.5 must be an integer of at least 1"),
        ({"window": True}, "window=True must be an integer of at least 1"),
        ({"ema_coeff": "x"}, r"ema_coeff='x' must be a number in \[0, 1\]"),
        ({"ema_coeff": 5}, r"ema_coeff=5 must be a number in \[0, 1\]"),
        ({"ema_coeff": math.nan}, r"ema_coeff=nan must be a number in \[0, 1\]"),
        ({"percentiles": [101]}, r"percentiles=101 must be a number in \[0, 100\]"),
        ({"percentiles": 50}, r"percentiles=50 must be a list of numbers in \[0, 100\]"),
        (
            {"reduce": "sum", "percentiles": [50]},
            "'sum' takes no percentiles: reduce='percentiles'",
        ),
        ({"reduce": "item_series", "clear_on_reduce": False}, "needs a window to keep values"),
        ({"with_throughput": True}, "for reduce='sum' and 'lifetime_sum', not 'ema'"),
    ],
)


FRAME = np.zeros((2, 5, 3), np.uint8)


def log_item(value):
    MetricsLogger().log_value("x", value, reduce="item")


test_what_means_nothing_is_refused_in_one_line = refused(
    [
        (lambda: MetricsLogger().log_value("x", 1, reduce="median"), "unknown reduction 'median'"),
        (lambda: MetricsLogger().log_value("x", [1, 2]), r"metric 'x' must be one number"),
        (lambda: MetricsLogger().log_value("", 1), "name must not be empty"),
        (lambda: MetricsLogger().log_value(3, 1), "name must be a text or a tuple of texts"),
        (lambda: MetricsLogger().log_value("x", 1, window=0), "window=0 must be an integer"),
        (lambda: MetricsLogger().log_value("x", 1, reduce="ema", window=2), "takes no window"),
        (lambda: MetricsLogger().log_value("x", 1, reduce="sum", ema_coeff=0.1), "no ema_coeff"),
        (
            lambda: MetricsLogger().log_value("x", 1, windows=2),
            "of log_value; did you mean 'window'?",
        ),
        (lambda: log_item(np.zeros((2, 5, 5))), r"a picture u8.*, not float64\[2, 5, 5\]"),
        (
            lambda: MetricsLogger().log_value("x", FRAME),
            r"one number, .*: reduce='item' logs the last",
        ),
        (lambda: log_item(FRAME[None]), r"must be a picture .*, not uint8\[1, 2, 5, 3\]"),
        (lambda: log_item(object()), "metric 'x' must be what JSON holds, and <object object"),
        (lambda: MetricsLogger().log_dict(3), "log_dict takes {name: number}, not 3"),
    ]
)


def test_a_name_is_a_number_or_a_group_of_numbers():
    logger = MetricsLogger()
    logger.log_value("a/b", 1)
    with pytest.raises(UsageError, match="metric 'a' cannot be logged beside 'a/b'"):
        logger.log_value("a", 1)
