"""Episodes as objects, beside playing them: what getting 10,000 out of the compiled program costs.

    python benchmarks/episodes.py                   # CartPole; untrained policies, and trained ones
    python benchmarks/episodes.py --env arena --episodes 1000
    python benchmarks/episodes.py --output          # what writing training's own episodes costs

Three ways take turns in one process, each of the same episodes: `evaluate`, which counts them and
keeps nothing; the arrays of all steps, with values, log-probabilities and distributions, which
evaluation does not compute; and the objects of `Trainer.sample`. Times are CPU seconds of all
threads, since others may use the machine as well; compilation is not in them.

With `--output`, three trainers of one seed take turns: one writes nothing, one the episodes of a
tenth of its environments, one all. They train the same numbers, `--train` steps in each turn.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import report

from jaxrl import PPOConfig, Trainer
from jaxrl.play.evaluate import evaluate_and_record
from jaxrl.play.host_episodes import EpisodeRange, Players, play_episodes
from jaxrl.play.sampling import episodes_of


def main() -> None:
    parser = report.arguments_of("episodes", __doc__, {"episodes": 8, "turns": 1, "train": 8192})
    parser.add_argument("--env", default="cartpole")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--train", type=int, default=300_000, help="steps of the trained policies")
    parser.add_argument("--output", action="store_true", help="measure training with `output`")
    args = parser.parse_args()
    if args.output:
        print(training(args.env, args.train, args.turns, args.out))
        return
    lines = []
    with Trainer(
        PPOConfig.tuned(args.env, fcnet_hiddens=(64, 64)), run_dir=None, quiet=True
    ) as trainer:
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
        return evaluate_and_record(players, wanted)["env_runners"]["num_env_steps_sampled"]

    def arrays() -> int:
        batches = play_episodes(players, wanted, keeps_steps=True)
        return sum(int(batch.finished.length.sum()) for batch in batches)

    def objects() -> int:
        batches = play_episodes(players, wanted, keeps_steps=True)
        return sum(len(each) for batch in batches for each in episodes_of(players, 0, batch))

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


SHARES = {
    "none": None,
    "a tenth": 0.1,
    "all": 1.0,
}  # of the environments whose episodes are written


def training(env: str, steps: int, turns: int, out: Path | None) -> str:
    """A table of CPU and wall seconds for each share, of `turns` times `steps` training steps."""
    cpu, wall = ({share: [] for share in SHARES} for _ in range(2))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trainers = {}
        for name, share in SHARES.items():
            told = {} if share is None else {"output": folder / name, "output_share": share}
            trainer = Trainer(
                PPOConfig.tuned(env, fcnet_hiddens=(64, 64)), run_dir=None, quiet=True, **told
            )
            trainers[name] = stack.enter_context(trainer)
            trainer.fit({"training_iteration": 2})  # compiles, and imports what writes
        for turn in range(1, turns + 1):
            for name, trainer in trainers.items():
                began = time.process_time(), time.perf_counter()
                trainer.fit({"num_env_steps_sampled_lifetime": turn * steps})
                cpu[name].append(time.process_time() - began[0])
                wall[name].append(time.perf_counter() - began[1])
        written = [sum(file.stat().st_size for file in folder.rglob("*.parquet"))]
        done = trainers["all"].last_result["env_runners"]
    row = {"env": env, "steps": steps, "cpu_s": cpu, "wall_s": wall, "bytes": written}
    report.keep([row | report.circumstances()], out)
    length = f"{turns * steps / done['num_episodes_lifetime']:.0f}"
    lines = []
    for name in SHARES:
        ratios = [
            report.spread(
                [x / y for x, y in zip(seconds[name], seconds["none"], strict=True)], ".2f"
            )
            for seconds in (cpu, wall)
        ]
        lines.append([name, report.spread(cpu[name], ".2f"), *ratios])
    titles = [f"{env}, {steps:,} steps, {length} in an episode", "CPU s", "CPU", "wall"]
    return report.markdown([*titles[:2], *(f"{title} / none" for title in titles[2:])], lines)


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
