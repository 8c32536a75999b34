"""Environments outside JAX in Ray actors: steps/s of training by the number of actors.

    python benchmarks/ray_actors.py                               # about ten minutes
    python benchmarks/ray_actors.py --actors 1 4 --turns 2        # shorter
    python benchmarks/ray_actors.py --ways ray processes          # beside as many local processes

CartPole waits so many milliseconds in each step, as for a simulator, so that cores are no limit at
first: each actor steps its copies one after the other, and can step 1,000 or 200 of them a second.
All are on this machine; benchmarks/ray_losses.py simulates a thousand workers, of which some fail.
The light learner takes some milliseconds, the heavy one about as long as the rollout of two actors.
An iteration cannot be shorter than what it learns.
"""

import functools
import statistics
import time
from typing import Any

import gymnasium
import report
from report import CORES

import jaxrl

LEARNERS = {
    "light": {"num_epochs": 1, "fcnet_hiddens": (32, 32)},
    "heavy": {"num_epochs": 300, "fcnet_hiddens": (256, 256)},
}
BATCH = {"num_envs": 16, "rollout_length": 32, "minibatch_size": 128}
SMALLEST = {"ways": ["processes"], "actors": [1], "turns": 1}
CASES = (("light", 5.0), ("heavy", 5.0), ("light", 1.0))  # the learner, and ms a step


class Waits(gymnasium.Wrapper):
    """An environment that waits in each step."""

    def __init__(self, env: gymnasium.Env, milliseconds: float):
        super().__init__(env)
        self._seconds = milliseconds / 1000

    def step(self, action: Any) -> tuple:
        time.sleep(self._seconds)
        return self.env.step(action)


def cartpole(milliseconds: float) -> gymnasium.Env:
    return Waits(gymnasium.make("CartPole-v1", disable_env_checker=True), milliseconds)


def measured(learner: str, milliseconds: float, workers: int | str, turns: int) -> dict[str, Any]:
    """Steps/s of each turn, and the medians of where an iteration's time went."""
    env = functools.partial(cartpole, milliseconds)
    config = jaxrl.PPOConfig(env=env, **BATCH, **LEARNERS[learner])
    with jaxrl.Trainer(config, run_dir=None, quiet=True, workers=workers) as trainer:
        for _ in range(3):  # compiles, and the first rollouts in which all actors play
            trainer.train()
        results = [trainer.train() for _ in range(turns)]
    timers = {
        name: statistics.median(result["timers"][name] for result in results)
        for name in ("env", "inference", "recording", "learning", "waiting")
    }
    return timers | {
        "steps": [config.train_batch_size / result["time_this_iter_s"] for result in results]
    }


def main() -> None:
    parser = report.arguments_of("ray_actors", __doc__, SMALLEST)
    parser.add_argument("--actors", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--ways", nargs="+", choices=["ray", "processes"], default=["ray"])
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    if "ray" in args.ways:
        import ray

        # A core for each, as on as many machines; what they do not wait for, they share.
        ray.init(num_cpus=max(args.actors), logging_level="warning", log_to_driver=False)
    lines = []
    for learner, milliseconds in CASES[: 1 if args.smoke else None]:
        for way in args.ways:
            for number in args.actors:
                workers = f"ray:{number}" if way == "ray" else number
                found = measured(learner, milliseconds, workers, args.turns)
                case = {"learner": learner, "ms": milliseconds, "way": way, "number": number}
                report.keep([case | found | report.circumstances()], args.out)
                lines.append(
                    [
                        *(learner, f"{milliseconds:g} ms", f"{number} {way}"),
                        report.spread(found["steps"]),
                        f"{statistics.median(found['steps']) * milliseconds / 1000 / number:.2f}",
                        *(f"{found[name]:.2f}" for name in ("learning", "waiting")),
                    ]
                )
                print(*lines[-1], f"load {report.circumstances()['load']:.1f}", flush=True)
    titles = [
        "learner",
        "a step",
        "actors",
        "steps/s",
        "of the waits' own",
        "learning, s",
        "waiting",
    ]
    print(f"\nload {report.circumstances()['load']:.1f}, {CORES} cores\n")
    print(report.markdown(titles, lines))


if __name__ == "__main__":
    main()
