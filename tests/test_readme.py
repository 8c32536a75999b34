"""The README shows what its first command really prints."""

import re
from pathlib import Path

import pytest

import jaxrl
from jaxrl.algorithms.ppo.ppo import HEADLINE_METRICS
from jaxrl.run.logging.console import LOG_WIDTH, result_line

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"<!-- output of the first command -->\n```\n(.*?)```\n<!-- end -->", re.DOTALL)
FIELD = re.compile(r"(iter|steps|return|kl) +(-?[\d,.]+(?: -?[\d.]+)*)")


@pytest.fixture(scope="module")
def shown():
    (block,) = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    return block.splitlines()


def fields(line):
    """{name: numbers} of those that no machine changes; the others depend on its speed."""
    return {
        name: [float(number) for number in text.replace(",", "").split()]
        for name, text in FIELD.findall(line)
    }


@pytest.mark.docs
def test_the_readme_shows_the_numbers_of_the_first_iteration_as_training_gives_them(shown):
    first = fields(next(line for line in shown if line.startswith("iter     1 ")))
    with jaxrl.Trainer(jaxrl.PPOConfig.tuned("arena"), run_dir=None, quiet=True) as trainer:
        trained = fields(result_line(trainer.train(), HEADLINE_METRICS, 1.0, LOG_WIDTH))
    assert set(first) == set(trained) == {"iter", "steps", "return", "kl"}
    for name, numbers in first.items():  # the last digits are the processor's own
        assert numbers == pytest.approx(trained[name], abs=0.02), name


def test_the_iterations_in_the_readme_fit_the_width_of_a_log(shown):
    assert max(len(line) for line in shown if line.startswith("iter ")) <= LOG_WIDTH
