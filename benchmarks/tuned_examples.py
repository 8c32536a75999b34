"""RLlib's tuned examples of PPO: which go through `from_rllib` as they are, and what they learn.

    python benchmarks/tuned_examples.py
    python benchmarks/tuned_examples.py --train cartpole-ppo pendulum-ppo --seeds 0 1 2

`rllib_examples.py` holds the settings of fifteen of them. The first table says what becomes of each
and, with `--iterations`, its return after so many. With `--train` the named ones train to the end
that they set themselves: a return or a number of steps, whichever comes first. Some need Ray,
MuJoCo (`pip install "gymnasium[mujoco]"`) or ale-py, and say so. Of a search the first trial is
trained.
"""

import time
from typing import Any

import report
from rllib_examples import EXAMPLES, RETURN

import jaxrl
from jaxrl.rllib.translation import Translation


def translated(name: str) -> Translation | str:
    """The example as jaxrl reads it, or the reason why it does not."""
    try:
        return jaxrl.from_rllib(EXAMPLES[name])
    except jaxrl.UsageError as error:
        return str(error)


def train(found: Translation, steps: int, **settings: Any) -> dict[str, Any]:
    """A training of at most so many steps of the environment, as the columns of a row."""
    limit = min(steps, found.config.total_env_steps)
    config = found.config.replace(total_env_steps=limit, **settings)
    began = time.perf_counter()
    with jaxrl.Trainer(config, run_dir=None, quiet=True, **found.run_settings) as trainer:
        result = trainer.fit()
    played = result["env_runners"]
    goal = found.run_settings.get("stop", {}).get(RETURN)
    reached = played.get("episode_return_mean")
    return {
        "steps": result["num_env_steps_sampled_lifetime"],
        "return": reached,
        "goal": goal,
        "is reached": None not in (goal, reached) and reached >= goal,
        "s": time.perf_counter() - began,
    }


def read(name: str, iterations: int) -> dict[str, Any]:
    """What becomes of an example, and its first iterations."""
    found = translated(name)
    if isinstance(found, str):
        return {"example": name, "goes through": False, "why": found}
    row = {"example": name, "goes through": True, "env": str(found.config.env)}
    if iterations:
        row |= train(found, iterations * found.config.train_batch_size)
    return row


def table_of_all(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        if row["goes through"]:
            trained = f"{row['return']:,.1f}" if row.get("return") is not None else ""
            lines.append([row["example"], "yes", row["env"], trained])
        else:
            lines.append([row["example"], "no", row["why"].replace("|", "/"), ""])
    return report.markdown(["example", "goes through", "environment, or why not", "return"], lines)


def table_of_trained(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            *(row["example"], str(row["seed"]), f"{row['steps']:,}"),
            *(f"{row['return']:.1f}", f"{row['goal']}", "yes" if row["is reached"] else "no"),
            f"{row['s']:.0f}",
        ]
        for row in rows
    ]
    titles = ["example", "seed", "steps", "return", "its own goal", "reached", "s"]
    return report.markdown(titles, lines)


def learn(name: str, seeds: list[int], steps: int) -> list[dict[str, Any]]:
    found = translated(name)
    if isinstance(found, str):
        raise SystemExit(f"{name}: {found}")
    return [{"example": name, "seed": seed, **train(found, steps, seed=seed)} for seed in seeds]


def main() -> None:
    smallest = {"examples": report.first, "train": report.first, "seeds": report.first}
    parser = report.arguments_of("tuned_examples", __doc__, {**smallest, "steps": 4000})
    parser.add_argument("--examples", nargs="+", choices=EXAMPLES, default=list(EXAMPLES))
    parser.add_argument("--iterations", type=int, default=0, help="that each example trains for")
    parser.add_argument("--train", nargs="+", choices=EXAMPLES, default=[], metavar="EXAMPLE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=10**9, help="environment steps, at most")
    arguments = parser.parse_args()
    if arguments.train:
        rows = []
        for name in arguments.train:
            rows += learn(name, arguments.seeds, arguments.steps)
            print(rows[-1], flush=True)
        text = table_of_trained(rows)
    else:
        rows = [read(name, arguments.iterations) for name in arguments.examples]
        text = table_of_all(rows)
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    print(text)


if __name__ == "__main__":
    main()
