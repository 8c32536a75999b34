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
def test_the_readme_shows_the_first_iteration_as_training_gives_it(shown):
    """No episode has ended then; numbers of later iterations are the processor's own."""
    first = fields(next(line for line in shown if line.startswith("iter ")))
    with jaxrl.Trainer(jaxrl.PPOConfig.tuned("arena"), run_dir=None, quiet=True) as trainer:
        trained = fields(result_line(trainer.train(), HEADLINE_METRICS, 1.0, LOG_WIDTH))
    assert first["iter"] == [1] and first["steps"] == [6400]
    assert "return" not in first and "return" not in trained
    for name, numbers in first.items():  # the last digits are the processor's own
        assert numbers == pytest.approx(trained[name], abs=0.02), name


def test_the_readme_shows_the_whole_training_and_a_return_that_is_the_agents_sum(shown):
    config = jaxrl.PPOConfig.tuned("arena")
    last = fields([line for line in shown if line.startswith("iter ")][-1])
    assert last["iter"] == [config.num_updates]
    assert last["steps"] == [config.num_updates * config.train_batch_size]
    ending = next(line for line in shown if line.startswith("return "))
    returned, agent1, agent2 = re.fullmatch(
        r"return (\S+) over .*: agent1 (\S+), agent2 (\S+)", ending
    ).groups()
    assert last["return"] == [float(returned)]
    assert float(returned) == pytest.approx(float(agent1) + float(agent2), abs=0.011)


def test_the_iterations_in_the_readme_fit_the_width_of_a_log(shown):
    assert max(len(line) for line in shown if line.startswith("iter ")) <= LOG_WIDTH
