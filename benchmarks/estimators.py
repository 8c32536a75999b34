"""Off-policy estimators beside the true return: how often 95 % intervals hold it.

    python benchmarks/estimators.py                       # CartPole and the arena
    python benchmarks/estimators.py --only near --draws 50

A policy is trained for a while and plays the data (behaviour). It is trained on, and judged from
the data (target): part of the way to the next iteration (near), more of it (further), or after
several (far). The truth is the mean of many episodes of the target. Each draw is a new data set; of
all draws the table has the estimates' mean and standard deviation, the intervals' median width, the
share of them that hold the truth, and the median of the effective episodes.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import report

from jaxrl import PPOConfig, Trainer
from jaxrl.offline.estimators import ReturnEstimates, estimate_return


@dataclass(frozen=True)
class Case:
    """A behaviour, a target and the size of a data set."""

    env: str
    distance: str
    iterations: int  # until the behaviour
    more: int  # until the target
    share: float  # of the way there, in weights, that the target has gone
    episodes: int

    @property
    def name(self) -> str:
        return f"{self.env} {self.distance}, {self.episodes} episodes"


CASES = (
    Case("cartpole", "near", 3, 1, 0.25, 200),
    Case("cartpole", "further", 3, 1, 1.0, 200),
    Case("cartpole", "far", 3, 5, 1.0, 200),
    Case("arena", "near", 10, 1, 0.25, 200),
    Case("arena", "further", 10, 1, 0.5, 200),
    Case("arena", "far", 10, 5, 1.0, 200),
)


def main() -> None:
    parser = report.arguments_of(
        "estimators", __doc__, {"draws": 2, "truth": 20, "only": "cartpole near"}
    )
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--truth", type=int, default=20_000, help="episodes of the target")
    parser.add_argument("--only", default="", help="cases whose name has these letters")
    args = parser.parse_args()
    lines = []
    for case in CASES:
        if args.only in case.name:
            lines += lines_of(case, args)
    titles = ["case", "method", "true return", "estimates", "width", "holds it", "effective"]
    print(report.markdown(titles, lines))


def lines_of(case: Case, args: argparse.Namespace) -> list[list[str]]:
    began = time.perf_counter()
    with Trainer(
        PPOConfig.tuned(case.env, fcnet_hiddens=(64, 64)), run_dir=None, quiet=True
    ) as trainer:
        trainer.fit({"training_iteration": case.iterations})
        behaviour = trainer.get_weights()
        trainer.fit({"training_iteration": case.iterations + case.more})
        part = lambda old, new: old + case.share * (new - old)
        trainer.set_weights(jax.tree.map(part, behaviour, trainer.get_weights()))
        policies = {name: trainer.get_policy(name) for name in behaviour}
        played = trainer.evaluate(episodes=args.truth, explore=True, seed=1)["env_runners"]
        trainer.set_weights(behaviour)
        tables = [draw(trainer, policies, case.episodes, i) for i in range(args.draws)]
    truth = played["episode_return_mean"]
    error = played["episode_return_std"] / args.truth**0.5
    recorded = statistics.mean(table.mean_return for table in tables)
    print(f"{case.name}: {time.perf_counter() - began:.0f} s, behaviour {recorded:.1f}, "
          f"target {truth:.2f} +- {error:.2f}")  # fmt: skip
    lines = []
    for i, row in enumerate(tables[0]):
        rows = [list(table)[i] for table in tables]
        summary = summary_of(rows, truth)
        about = {"case": case.name, "method": row.method, "truth": truth, "truth_error": error}
        about |= {"behaviour": recorded, "draws": args.draws}
        report.keep([about | summary | report.circumstances()], args.out)
        lines.append([
            case.name if i == 0 else "", row.method.replace("_", " "),
            f"{truth:.2f}" if i == 0 else "", f"{summary['mean']:.1f} +- {summary['std']:.1f}",
            f"{summary['width']:.1f}", f"{summary['holds']:.0%}", f"{summary['effective']:.0f}",
        ])  # fmt: skip
    return lines


def draw(trainer: Trainer, policies: dict[str, Any], episodes: int, number: int) -> ReturnEstimates:
    data = trainer.sample(episodes, first=number * episodes, seed=0)
    return estimate_return(data, policies, seed=number, resamples=1000)


def summary_of(rows: list, truth: float) -> dict[str, float]:
    """Of one method's estimates."""
    estimates = np.array([row.estimate for row in rows])
    return {
        "mean": float(estimates.mean()),
        "std": float(estimates.std()),
        "width": statistics.median(row.high - row.low for row in rows),
        "holds": statistics.mean(row.low <= truth <= row.high for row in rows),
        "effective": statistics.median(row.effective_sample_size for row in rows),
    }


if __name__ == "__main__":
    main()
