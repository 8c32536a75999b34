"""The metrics logger: the values of RLlib's reductions, by hand, and what is refused."""

import json
import math

import numpy as np
import pytest

from jaxrl import UsageError
from jaxrl.core.metrics_logger import MetricsLogger, UnknownMetric, merge
from tests.messages import refused


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


def test_values_take_the_place_of_those_of_the_same_name_in_a_result():
    result = {"a": {"b": 1, "c": 2}, "d": 3}
    merge(result, {"a": {"b": 5}, "e": {"f": 6}})
    assert result == {"a": {"b": 5, "c": 2}, "d": 3, "e": {"f": 6}}


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
