"""What a sweep says of its outcomes, from scores made up by hand."""

import math
import sys
from xml.etree import ElementTree

import pytest

from jaxrl import UsageError
from jaxrl.run.results import RETURN
from jaxrl.sweeps.lineage import Lineage, Stretch
from jaxrl.sweeps.outcomes import DIVERGED, TERMINATED, TrialResult, thinned
from jaxrl.sweeps.results import Sweep
from jaxrl.sweeps.trials import trials_of
from tests.programs import SMALL_CARTPOLE

FAILED = None  # in place of a score


def swept(**scores):
    """A sweep of a setting for each name, `lr` 1, 2, ..., with a seed for each score."""
    outcomes = []
    for lr, by_seed in enumerate(scores.values(), start=1):
        for trial, score in zip(
            trials_of(SMALL_CARTPOLE, [{"lr": float(lr)}], len(by_seed)), by_seed, strict=True
        ):
            result = {
                "training_iteration": 6,
                "num_env_steps_sampled_lifetime": 384,
                "time_total_s": 1.0,
            }
            result |= {"env_runners": {"episode_return_mean": score}}
            status, result = (DIVERGED, None) if score is FAILED else (TERMINATED, result)
            outcomes.append(TrialResult(trial, status, result, score))
    return Sweep(outcomes, RETURN, None)


def test_the_best_setting_is_that_of_the_best_median_and_not_of_the_luckiest_trial():
    done = swept(lucky=[10.0, 10.0, 500.0], steady=[90.0, 100.0, 110.0])
    assert done.best_trial().score == 500.0
    settings, outcomes = done.best_setting()
    assert settings == {"lr": 2.0}
    assert [outcome.score for outcome in outcomes] == [90.0, 100.0, 110.0]


def test_trials_that_differ_by_their_seeds_alone_are_shown_by_these():
    (trial,) = trials_of(SMALL_CARTPOLE.replace(seed=7), [{}], 1)
    outcome = TrialResult(trial, TERMINATED, {"training_iteration": 6}, 20.0)
    assert repr(outcome) == "<TrialResult seed=7: terminated, 6 iterations, score 20>"
    assert "seed" in repr(Sweep([outcome], RETURN, None))


def test_with_mode_min_the_lowest_is_the_best_everywhere():
    done = swept(lucky=[300.0, 20.0, 310.0], steady=[90.0, 100.0, 110.0], lost=[FAILED])
    done.mode = "min"
    assert done.best_trial().score == 20.0 and "score 20" in repr(done)
    assert done.best_trial(mode="max").score == 310.0
    assert done.best_setting()[0] == {"lr": 2.0}  # medians 300 and 100
    assert done.best_setting(mode="max")[0] == {"lr": 1.0}
    scores = [row.split()[-3] for row in done.table().splitlines()[1:-1]]
    assert scores == ["20.00", "90.00", "100.00", "110.00", "300.00", "310.00"]
    assert done.table().splitlines()[-1].split()[3] == DIVERGED
    with pytest.raises(UsageError, match="unknown mode 'mim'; known: max, min"):
        done.best_trial(mode="mim")


def test_a_seed_without_a_score_counts_as_the_worst():
    done = swept(fragile=[FAILED, FAILED, 500.0], steady=[90.0, 100.0, 110.0])
    assert done.best_setting()[0] == {"lr": 2.0}
    with pytest.raises(UsageError, match="no trial has a"):
        swept(lost=[FAILED]).best_setting()


def test_the_probability_of_improvement_counts_seeds_without_a_score_as_the_worst():
    done = swept(fragile=[FAILED, 95.0, 120.0], steady=[90.0, 100.0, 110.0], lost=[FAILED])
    found = done.probability_of_improvement({"lr": 1.0}, {"lr": 2.0})
    assert found.value == pytest.approx(4 / 9)  # 95 beats 90, and 120 all three
    assert done.best_setting_text() == (
        "lr=2, median 100.00 of 3 seeds; a seed of it beats one of lr=1 with probability 0.56"
    )
    done.mode = "min"
    assert done.probability_of_improvement({"lr": 1.0}, {"lr": 2.0}).value == pytest.approx(2 / 9)
    with pytest.raises(UsageError, match=r"no trial has the settings .*; tried: lr=1, lr=2, lr=3"):
        done.probability_of_improvement({"lr": 7.0}, {"lr": 1.0})


def test_seeds_without_a_score_are_counted_as_failed_and_the_table_says_so():
    done = swept(fragile=[FAILED, 50.0, 60.0], steady=[90.0, 100.0, 110.0], lost=[FAILED, FAILED])
    fragile, steady, lost = done.statistics()
    assert (fragile.seeds, fragile.failed, fragile.median.value) == (3, 1, 55.0)
    assert (steady.seeds, steady.failed) == (3, 0)
    assert (lost.seeds, lost.failed, lost.median, lost.iqm) == (2, 2, None, None)
    table = done.statistics_table().splitlines()
    assert table[0].split()[:3] == ["settings", "seeds", "failed"]
    assert table[1].split()[1:] == ["3", "1", "55.00", "55.00", "50.00", "...", "60.00", "(range)"]
    assert table[3].split() == ["lr=3", "2", "2"]
    assert "failed: seeds that ended before any episode did" in table[-1]
    assert "failed" not in swept(steady=[90.0, 100.0]).statistics_table()


def test_eight_seeds_have_an_interval():
    assert (
        "(95 % interval)" in swept(steady=[float(score) for score in range(8)]).statistics_table()
    )


def test_a_table_of_one_seed_each_is_left_out():
    assert swept(lr=[1.0], gamma=[2.0]).statistics_table() == ""


def test_rows_have_the_settings_the_seed_and_the_last_result_by_path():
    first, second = swept(a=[3.0, FAILED]).rows()
    assert (first["trial"], first["lr"], first["seed"], first["score"]) == ("0000", 1.0, 0, 3.0)
    assert (first[RETURN], first["training_iteration"], first["folder"]) == (3.0, 6, None)
    assert (second["status"], second["score"]) == (DIVERGED, None)


def test_a_dataframe_is_pandas_and_says_so_where_there_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        UsageError, match=r"dataframe needs pandas: pip install pandas; rows\(\) gives the same"
    ):
        swept(a=[3.0]).dataframe()
    monkeypatch.undo()
    frame = pytest.importorskip("pandas") and swept(a=[3.0], b=[4.0]).dataframe()
    assert frame.groupby("lr")["score"].max().to_dict() == {1.0: 3.0, 2.0: 4.0}


def test_the_best_lineage_is_the_best_trials_and_empty_where_there_is_no_population_or_score():
    done, none = swept(few=[1.0, 3.0, 2.0]), swept(none=[FAILED, FAILED])
    assert done.best_lineage() == []
    for of in (done, none):
        of.lineage = Lineage([outcome.trial.settings for outcome in of.outcomes])
    assert done.best_lineage() == [Stretch(0, 6, 1, {"lr": 1.0})]
    assert none.best_lineage() == []


def rows_in(element):
    """The texts of the cells of each row of an HTML table."""
    return [["".join(cell.itertext()) for cell in row] for row in element]


def test_a_notebook_shows_a_sweep_as_a_table_of_its_trials_the_best_first():
    done = swept(worse=[10.0, 12.0], better=[90.0, FAILED])
    element = ElementTree.fromstring(done._repr_html_())
    assert element.find("strong").text == "Sweep of 4 trials"
    lines, table = element.findall("table")
    assert rows_in(lines) == [["ranked by", RETURN]]
    titles, *rows = rows_in(table)
    assert titles[:4] == ["trial", "lr", "seed", "status"] and titles[-2] == "episode_return_mean"
    assert [row[-2] for row in rows] == ["90.00", "12.00", "10.00", ""]
    assert "interquartile mean" in "".join(element.find("details").itertext())


def test_a_notebook_shows_the_best_fifty_trials_of_many():
    done = swept(many=[float(score) for score in range(60)])
    lines, table = ElementTree.fromstring(done._repr_html_()).findall("table")
    assert ["shown", "the best 50; rows() has the other 10"] in rows_in(lines)
    assert [row[-2] for row in rows_in(table)[1:]] == [f"{score}.00" for score in range(59, 9, -1)]


def test_a_notebook_shows_a_trial_with_its_settings_and_its_score():
    best = swept(only=[90.0]).best_trial()
    element = ElementTree.fromstring(best._repr_html_())
    assert element.find("strong").text == "Trial 0000"
    lines = dict(rows_in(element.find("table")))
    assert lines == {"lr": "1.0", "seed": "0", "status": "terminated", "score": "90"}
    assert len(repr(best.trial)) < 500


def test_a_long_curve_keeps_some_of_its_scores_and_its_last_one():
    steps = list(range(1, 3001))
    assert thinned((steps[:500], steps[:500])) == (steps[:500], steps[:500])
    assert thinned((steps, steps)) == (steps[5::6], steps[5::6])
    evaluated = [step if step % 10 == 0 else math.nan for step in steps]
    assert thinned((steps, evaluated)) == (steps[9::10], steps[9::10])
    assert thinned((steps, [math.nan] * 3000)) == ([], [])
