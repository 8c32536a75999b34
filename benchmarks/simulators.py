"""A simulator that steps in batches on tensors: where the time of a step of all copies goes.

    python benchmarks/simulators.py                  # 1,024 CartPoles of PyTorch
    python benchmarks/simulators.py --library numpy
    python benchmarks/simulators.py --copies 64 1024 8192

One rollout after another, with an update after each, and nothing beside them. `environment` is the
simulator's own step, `bridge` its tensors on their way to JAX, `inference` choosing actions,
recording the step and giving the actions back, `learning` the update. They are seconds of the
processor, of all threads, so other programs change them little.
"""

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import report

import jaxrl
from jaxrl.algorithms.on_policy import rollout_keys
from jaxrl.outside.host_rollout import HostRollouts

sys.path.append(str(Path(__file__).parents[1]))  # `tests`, with the simulator
from tests.adapters.batched_simulators import CartPole

PARTS = "environment", "bridge", "inference", "learning"
STEPS = 64  # of a rollout
SMALLEST = {"copies": [16], "turns": 1}


class Timed(CartPole):
    """A simulator whose steps are timed."""

    seconds = 0.0

    def step(self, actions: Any) -> tuple:
        results, seconds = timed(super().step, actions)
        Timed.seconds += seconds
        return results


class TimedCopies:
    """Copies whose steps are timed, with their way to JAX."""

    def __init__(self, copies: Any):
        self._copies, self.seconds = copies, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._copies, name)

    def receive(self, part: int) -> Any:
        results, seconds = timed(self._copies.receive, part)
        self.seconds += seconds
        return results


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """(what a call gives, the seconds of the processor)."""
    began = time.process_time()
    results = jax.block_until_ready(call(*arguments))
    return results, time.process_time() - began


def microseconds(library: str, num_copies: int, turns: int) -> dict[str, float]:
    """The microseconds of a step of all copies, by part."""
    config = jaxrl.PPOConfig(
        env=Timed,
        env_args={"library": library},
        num_envs=num_copies,
        rollout_length=STEPS,
        minibatch_size=max(64, num_copies * STEPS // 16),
        num_epochs=4,
        fcnet_hiddens=(64, 64),
    )
    algorithm, index = config.build(), jnp.arange(num_copies)
    spec, runner = algorithm.rollout_spec, jax.jit(algorithm.init)(jax.random.key(0))
    learn, hypers = jax.jit(algorithm.learn), config.hypers()
    copies = TimedCopies(spec.env.vector(num_copies))
    host = HostRollouts(spec, copies, STEPS, algorithm.env_params)
    host.reset(tuple(learner.weights for learner in runner.learners), np.zeros(1, np.uint32))
    spent = dict.fromkeys(PARTS, 0.0)
    for turn in range(-2, turns):  # the first two compile
        before = Timed.seconds, copies.seconds
        keys = rollout_keys(runner.key, turn + 3, index)
        weights = tuple(learner.weights for learner in runner.learners)
        (_, rollout, _), collecting = timed(host.collect, weights, keys)
        (runner, _), learning = timed(learn, runner, rollout.replace(num_env_steps=None), hypers)
        if turn >= 0:
            environment, arriving = Timed.seconds - before[0], copies.seconds - before[1]
            seconds = environment, arriving - environment, collecting - arriving, learning
            for part, value in zip(PARTS, seconds, strict=True):
                spent[part] += value
    host.close()
    return {part: 1e6 * seconds / (STEPS * turns) for part, seconds in spent.items()}


def main() -> None:
    parser = report.arguments_of("simulators", __doc__, SMALLEST)
    installed = "torch" if importlib.util.find_spec("torch") else "numpy"
    parser.add_argument("--library", choices=("torch", "numpy"), default=installed)
    parser.add_argument("--copies", nargs="+", type=int, default=[1024])
    parser.add_argument("--turns", type=int, default=10)
    args = parser.parse_args()
    rows, lines = [], []
    for copies in args.copies:
        found = microseconds(args.library, copies, args.turns)
        line, total = [f"{copies:,}"], sum(found.values())
        for value in found.values():
            line.append(f"{value:,.0f} ({100 * value / total:.0f} %)")
        lines.append(line)
        rows.append({"library": args.library, "copies": copies, "microseconds": found})
    report.keep([row | report.circumstances() for row in rows], args.out)
    load = report.circumstances()["load"]
    print(f"\nus of a step of all copies, {args.library}, load {load:.1f}, {report.CORES} cores\n")
    print(report.markdown(["copies", *PARTS], lines), flush=True)


if __name__ == "__main__":
    main()
