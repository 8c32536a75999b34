"""The metrics logger: the values of RLlib's reductions, by hand, and what is refused."""

import json
import math

import numpy as np
import pytest

from jaxrl import UsageError
from jaxrl.core.metrics_logger import MetricsLogger, UnknownMetric, merge, tree_of
from tests.messages import refused, refused_by


def logged(values, **settings):
    """The results of iterations in which these values were logged, {iteration: [values]}."""
    logger, results = MetricsLogger(), []
    for of_iteration in values:
        for value in of_iteration:
            logger.log_value("x", value, **settings)
        results.append(logger.next_result().get("x"))
    return results


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
    again.restore(json.loads(json.dumps(logger.state())))
    for each_logger in (logger, again):
        each_logger.log_value("x", 5)
        each_logger.log_value("y", 2)
    assert again.next_result() == logger.next_result() == {"x": 3.5, "y": 1.5}


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
    ],
)


test_what_means_nothing_is_refused_in_one_line = refused(
    [
        (lambda: MetricsLogger().log_value("x", 1, reduce="median"), "unknown reduction 'median'"),
        (lambda: MetricsLogger().log_value("x", [1, 2]), r"metric 'x' must be one number"),
        (lambda: MetricsLogger().log_value("", 1), "name must not be empty"),
        (lambda: MetricsLogger().log_value(3, 1), "name must be a text or a tuple of texts"),
        (lambda: MetricsLogger().log_value("x", 1, window=0), "window=0 must be an integer"),
        (lambda: MetricsLogger().log_value("x", 1, reduce="ema", window=2), "takes no window"),
        (lambda: MetricsLogger().log_value("x", 1, reduce="sum", ema_coeff=0.1), "no ema_coeff"),
        (lambda: MetricsLogger().log_value("x", 1, percentiles=True), "takes no percentiles"),
        (lambda: MetricsLogger().log_dict(3), "log_dict takes {name: number}, not 3"),
    ]
)


def test_a_name_is_a_number_or_a_group_of_numbers():
    logger = MetricsLogger()
    logger.log_value("a/b", 1)
    with pytest.raises(UsageError, match="metric 'a' cannot be logged beside 'a/b'"):
        logger.log_value("a", 1)
