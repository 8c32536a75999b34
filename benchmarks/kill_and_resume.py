"""A training killed at random moments and resumed each time, to see whether anything is lost.

    python benchmarks/kill_and_resume.py                  # 50 kills of an arena run
    python benchmarks/kill_and_resume.py --kills 5 --env cartpole
    python benchmarks/kill_and_resume.py --env cartpole --flags "--env-args gravity=uniform:8:12"

Every kill is SIGKILL at a random moment: three of four while it trains and writes logs and
checkpoints, the others while it imports, reads the run back and compiles. After each, every line of
metrics.jsonl and progress.csv can be read, the run can be resumed, and no iteration is lost but
those since the last checkpoint that was due. At the end the run holds, in every array, what a
training without kills holds, and every iteration once in its logs.
"""

import csv
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import report

from jaxrl.core.errors import UsageError
from jaxrl.run.storage import checkpoint

SCRIPT = Path(__file__).parents[1] / "scripts" / "train_ppo.py"
EVERY = 25  # iterations between checkpoints
SMALLEST = {"kills": 1, "env": "cartpole", "flags": "--env-args gravity=uniform:8:12"}
# Numbers in place of tuned schedules, which reach over the steps that a run begins with.
SMALL = (
    "--num-envs 8 --rollout-length 32 --minibatch-size 128 --num-epochs 1 --fcnet-hiddens 16 "
    "--pictures False --lr 1e-3 --entropy-coeff 0"
)


def main() -> None:
    parser = report.arguments_of("kill_and_resume", __doc__, SMALLEST)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--env", default="arena")
    parser.add_argument("--flags", default="", help="more flags of the training, in one text")
    parser.add_argument(
        "--iterations",
        type=int,
        default=1_000_000,
        help="that the run would have, were it not killed",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    args = parser.parse_args()
    moments = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        run, lost, early, start_seconds = Path(folder) / "run", [], 0, 5.0
        settings = [*SMALL.split(), "--env", args.env, "--checkpoint-frequency", str(EVERY)]
        settings += args.flags.split()
        for kill in range(1, args.kills + 1):
            before = last_line(run)
            begin = time.perf_counter()
            kill_at_random(run, settings, args.iterations * 256, moments, start_seconds)
            reached = last_line(run)
            saved = last_checkpoint(run)
            early += reached <= before
            start_seconds = start_seconds if reached <= before else time.perf_counter() - begin
            lost.append(reached - saved)
            assert 0 <= lost[-1] <= EVERY, f"{lost[-1]} iterations after the last checkpoint"
            print(
                f"kill {kill:3d}: logged {reached:6,d} iterations, {lost[-1]:3d} of them after "
                f"checkpoint {saved:,}"
            )
        end = last_checkpoint(run) + 3 * EVERY
        train(run, settings, end * 256)
        train(Path(folder) / "whole", settings, end * 256)
        compare(run, Path(folder) / "whole", end)
    row = {"env": args.env, "flags_of_training": args.flags, "kills": args.kills, "early": early}
    report.keep([{**row, "lost": lost, "iterations": end} | report.circumstances()], args.out)
    titles = ["kills", "before anything new was logged", "iterations lost at most", "iterations"]
    print(report.markdown(titles, [[str(args.kills), str(early), str(max(lost)), f"{end:,}"]]))
    print(f"checkpoints every {EVERY}; all equal to the uninterrupted run's, to the bit")


def command(run: Path, settings: list[str], steps: int) -> list[str]:
    """Begins the run, or goes on with it."""
    how = ["--run-dir", str(run), *settings]
    if run.exists():  # the settings may name a user's own code
        how = ["--resume", str(run), "--trust"]
    return [sys.executable, str(SCRIPT), *how, "--total-env-steps", str(steps)]


def kill_at_random(
    run: Path, settings: list[str], steps: int, moments: random.Random, start_seconds: float
) -> None:
    """Trains and kills; a process that ends by itself was refused, which is a failure."""
    before = length(run)
    process = subprocess.Popen(
        command(run, settings, steps), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if moments.random() < 0.25:
        time.sleep(moments.uniform(0.0, start_seconds))
    else:
        cut = before
        while length(run) <= cut and process.poll() is None:
            time.sleep(0.01)
            cut = min(cut, length(run))  # resuming cuts the log back first
        time.sleep(moments.uniform(0.0, 3.0))
    assert process.poll() is None, process.communicate()[0].decode()
    process.send_signal(signal.SIGKILL)
    process.communicate()


def length(run: Path) -> int:
    """Bytes of metrics.jsonl."""
    log = run / "metrics.jsonl"
    return log.stat().st_size if log.exists() else 0


def train(run: Path, settings: list[str], steps: int) -> None:
    done = subprocess.run(
        command(run, settings, steps), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def last_line(run: Path) -> int:
    """The last iteration in metrics.jsonl, every line of it and of progress.csv read strictly."""
    if not (run / "metrics.jsonl").exists():
        return 0
    numbers = [
        json.loads(line)["training_iteration"]
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    assert numbers == list(range(1, len(numbers) + 1)), "a gap or a double line in metrics.jsonl"
    with (run / "progress.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert all(len(row) == len(rows[0]) for row in rows), "a broken row in progress.csv"
    return len(numbers)


def last_checkpoint(run: Path) -> int:
    """The iteration of the last checkpoint, read whole."""
    try:
        return checkpoint.read(checkpoint.find(run)).facts["lifetime"]["training_iteration"]
    except UsageError:
        assert not checkpoint.iterations(run / "checkpoints"), "a checkpoint that cannot be read"
        return 0


def compare(run: Path, whole: Path, iteration: int) -> None:
    assert last_line(run) == last_line(whole) == iteration
    arrays, expected = (checkpoint.read(checkpoint.find(folder)).arrays for folder in (run, whole))
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert np.array_equal(array, expected[name]), f"{name} differs"


if __name__ == "__main__":
    main()
