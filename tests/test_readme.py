"""The README shows what its first command really prints."""

import re
from pathlib import Path

import pytest

import jaxrl
from jaxrl.run.console import LOG_WIDTH, result_line

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"<!-- output of the first command -->\n```\n(.*?)```\n<!-- end -->", re.DOTALL)
NUMBER = re.compile(r"-?[\d,]+\.?\d*")


@pytest.fixture(scope="module")
def shown():
    (block,) = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    return block.splitlines()


def numbers(line):
    """Those up to the speed, which every machine has its own of."""
    told = re.split(r"\s[\d,]+ steps/s", line)[0]
    return [float(number.replace(",", "")) for number in NUMBER.findall(told)]


def test_the_readme_shows_the_numbers_of_the_first_iteration_as_training_gives_them(shown):
    first = next(line for line in shown if line.startswith("iter     1 "))
    with jaxrl.Trainer(jaxrl.PPOConfig.tuned("arena"), run_dir=None, quiet=True) as trainer:
        line = result_line(trainer.train(), 1.0, LOG_WIDTH)
    assert re.sub(r"\d", "0", first.split(" steps/s")[0])[:70] == re.sub(r"\d", "0", line.split(" steps/s")[0])[:70]
    assert numbers(first) == pytest.approx(numbers(line), abs=0.02)  # the last digits are the processor's own


def test_the_lines_of_the_readme_fit_the_width_of_a_log(shown):
    assert max(map(len, shown)) <= LOG_WIDTH
