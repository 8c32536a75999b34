"""Episodes as objects, beside playing them: what getting 10,000 out of the compiled program costs.

    python benchmarks/episodes.py                   # CartPole; untrained policies, and trained ones
    python benchmarks/episodes.py --env arena --episodes 1000

Three ways take turns in one process, each of the same episodes: `evaluate`, which counts them and
keeps nothing; the arrays of all steps, with values, log-probabilities and distributions, which
evaluation does not compute; and the objects of `Trainer.sample`. Times are CPU seconds of all
threads, since others may use the machine as well; compilation is not in them.
"""

import statistics
import time
from collections.abc import Callable

import report

from jaxrl import PPOConfig, Trainer
from jaxrl.run.inference.evaluate import evaluate
from jaxrl.run.inference.sampling import EpisodeRange, Players, record_batches, sample_batches


def main() -> None:
    parser = report.arguments_of("episodes", __doc__)
    parser.add_argument("--env", default="cartpole")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--train", type=int, default=300_000, help="steps of the trained policies")
    args = parser.parse_args()
    lines = []
    with Trainer(PPOConfig.tuned(args.env), run_dir=None, quiet=True) as trainer:
        for name, steps in (("untrained", 0), (f"{args.train:,} steps", args.train)):
            if steps:
                trainer.fit({"num_env_steps_sampled_lifetime": steps})
            seconds, length = turns_of(trainer, args.episodes, args.turns)
            row = {"env": args.env, "episodes": args.episodes, "trained": steps}
            report.keep([row | {"seconds": seconds} | report.circumstances()], args.out)
            lines.append(line_of(name, length, seconds, args.episodes))
    titles = [
        *(f"{args.env}, {args.episodes:,} episodes", "steps each"),
        *("evaluate, CPU s", "arrays, CPU s", "objects, CPU s"),
        *("objects / evaluate", "objects / arrays", "for each object, us"),
    ]
    print(report.markdown(titles, lines))


def turns_of(trainer: Trainer, episodes: int, turns: int) -> tuple[dict[str, list[float]], float]:
    """({way: seconds of each turn}, the mean length of an episode)."""
    weights = tuple(learner.weights for learner in trainer.runner.learners)
    players = Players(trainer.algorithm, weights, trainer.env_params, {})
    wanted = EpisodeRange(number=episodes, explore=True)

    def count() -> int:
        played = evaluate(*players[:3], episodes=episodes, explore=True)
        return played["num_env_steps_sampled"]

    def arrays() -> int:
        batches = record_batches(players, wanted)
        return sum(int(batch.finished.length.sum()) for batch in batches)

    def objects() -> int:
        return sum(
            len(episode) for batch in sample_batches(players, wanted) for episode in batch.episodes
        )

    ways: dict[str, Callable[[], int]] = {"evaluate": count, "arrays": arrays, "objects": objects}
    seconds, steps = {name: [] for name in ways}, {way() for way in ways.values()}  # compiles
    if len(steps) != 1:
        raise SystemExit(f"the ways played different episodes, of {sorted(steps)} steps in sum")
    for _ in range(turns):
        for name, way in ways.items():
            began = time.process_time()
            way()
            seconds[name].append(time.process_time() - began)
    return seconds, steps.pop() / episodes


def line_of(name: str, length: float, seconds: dict[str, list[float]], episodes: int) -> list[str]:
    ratio = lambda way: [x / y for x, y in zip(seconds["objects"], seconds[way], strict=True)]
    extra = [x - y for x, y in zip(seconds["objects"], seconds["arrays"], strict=True)]
    return [
        *(name, f"{length:.0f}"),
        *(report.spread(values, ".2f") for values in seconds.values()),
        *(report.spread(ratio(way), ".2f") for way in ("evaluate", "arrays")),
        f"{1e6 * statistics.median(extra) / episodes:.0f}",
    ]


if __name__ == "__main__":
    main()
