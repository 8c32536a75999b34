"""Where the time of a training goes, kernel by kernel, beside the same PPO written plainly.

    python benchmarks/kernel_times.py                                     # CartPole, 4 x 128
    python benchmarks/kernel_times.py --num-envs 2048 --rollout-length 32

XLA's own record of a compiled training on a CPU: networks of 64 x 64, 4 epochs of 4 minibatches.
A kernel counts without those inside it; what a loop, a branch or a call spends beside its kernels
is "between". One with a product in it counts as a product. Parts of an update are told apart by how
often a kernel runs. The recording makes everything longer, by about as much for each kernel: the
time of an update without it is measured too, and the difference, shared out equally, is taken off
again, which leaves some short kernels with a little less than nothing.
"""

import itertools
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import report
from engine import configuration
from kernels import BRANCH, CALLED, CALLS, LOOP, OPCODE, computations
from plain import Settings, make_plain_train
from programs import whole

from jaxrl import make_train

GRADIENT_STEPS = 16  # of an update
RESULT = re.compile(r"^\s*(?:ROOT )?%([\w.$-]+) = (\([^)]*\)|[a-z0-9]+\[[\d,]*\])")
SOURCE = re.compile(r'op_name="([^"]*)"')
PRODUCTS = (" dot(", "__onednn$matmul")
BETWEEN = {LOOP, BRANCH, *CALLS}
PARTS = ("a step of the rollout or of GAE", "a gradient step", "the rest of an update")
TOTALS = ["program", "part", "runs of it", "kernels", "products, us", "others, us", "between, us"]
KERNELS = ["kernel", "part", "result", "runs in an update", "us of a run", "share"]
SMALLEST = {"num_envs": 4, "rollout_length": 32, "updates": 2}


class Kernel(NamedTuple):
    """An instruction of a program and its time."""

    name: str
    what: str  # the operation of JAX that it comes from
    result: str  # such as f32[64,64]
    kind: str  # "product", "other" or "between"
    runs: float  # in an update
    seconds: float  # of an update

    def part(self, length: int) -> str:
        """The part of an update that it belongs to, by how often it runs."""
        if self.runs >= 0.9 * length:
            return PARTS[0]
        return PARTS[1] if self.runs >= 0.9 * GRADIENT_STEPS else PARTS[2]


def main() -> None:
    parser = report.arguments_of("kernel_times", __doc__, SMALLEST)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--rollout-length", type=int, default=128)
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--longest", type=int, default=15, help="kernels of the second table")
    arguments = parser.parse_args()
    if arguments.rollout_length <= GRADIENT_STEPS:  # parts are told apart by how often they run
        parser.error(f"--rollout-length must be over {GRADIENT_STEPS}, the steps of learning")
    sizes = arguments.num_envs, arguments.rollout_length, arguments.updates
    trainings = {
        "jaxrl": make_train(configuration(*sizes)),
        "plain": make_plain_train(Settings(*sizes)),
    }
    found = {name: recorded(train, arguments.updates) for name, train in trainings.items()}
    rows = [
        {"program": name, **kernel._asdict(), "part": kernel.part(arguments.rollout_length)}
        for name, (_, kernels) in found.items()
        for kernel in kernels
    ]
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    for name, (seconds, kernels) in found.items():
        number = sum(kernel.runs for kernel in kernels)
        print(f"{name}: {1e6 * seconds:,.0f} us an update, {number:,.0f} kernels")
    lines = [line for name in found for line in totals(name, rows, arguments.rollout_length)]
    print(f"\n{report.markdown(TOTALS, lines)}\n")
    print(report.markdown(KERNELS, longest(found["jaxrl"][1], sizes[1], arguments.longest)))


def recorded(train: Callable, updates: int) -> tuple[float, list[Kernel]]:
    """(seconds of an update without recording, its kernels)."""
    work = whole(train)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        work()
        seconds.append((time.perf_counter() - begin) / updates)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            work()
        [file] = Path(folder).glob("**/*.xplane.pb")
        spent = own_times(jax.profiler.ProfileData.from_file(str(file)))
    known = instructions(work.compiled.as_text())
    spent = {name: times for name, times in spent.items() if name in known}
    recording = sum(map(sum, spent.values())) - statistics.median(seconds) * updates
    recording = max(0.0, recording) / sum(map(len, spent.values()))  # of a kernel
    kernels = [
        Kernel(
            name,
            *known[name],
            len(times) / updates,
            (sum(times) - len(times) * recording) / updates,
        )
        for name, times in spent.items()
    ]
    return statistics.median(seconds), kernels


def own_times(record: Any) -> dict[str, list[float]]:
    """{event: seconds of each time, without those of the events inside it}."""
    spent: dict[str, list[float]] = {}
    for plane in record.planes:
        for line in plane.lines:
            events = sorted(line.events, key=lambda event: (event.start_ns, -event.duration_ns))
            open_events: list[list[Any]] = []  # [name, its end, nanoseconds of its own]
            for event in events:
                end = event.start_ns + event.duration_ns
                while open_events and open_events[-1][1] <= event.start_ns:
                    close(open_events, spent)
                if open_events:
                    open_events[-1][2] -= event.duration_ns
                open_events.append([event.name, end, event.duration_ns])
            while open_events:
                close(open_events, spent)
    return spent


def close(open_events: list[list[Any]], spent: dict[str, list[float]]) -> None:
    """Notes the last of the open events."""
    name, _, nanoseconds = open_events.pop()
    spent.setdefault(name, []).append(max(0, nanoseconds) / 1e9)


def instructions(text: str) -> dict[str, tuple[str, str, str]]:
    """{instruction: (the operation of JAX, its result, its kind)} of a program's text."""
    inside, _ = computations(text)
    return {
        found[1]: (operation(line), found[2], kind(line, inside))
        for line in itertools.chain(*inside.values())
        if (found := RESULT.match(line)) and OPCODE.search(line)
    }


def operation(line: str) -> str:
    """The last part of the name that JAX gave an instruction, or its opcode."""
    source = SOURCE.search(line)
    return source[1].rsplit("/", 1)[-1] if source else OPCODE.search(line)[1]


def kind(line: str, inside: Mapping[str, list[str]]) -> str:
    """How an instruction counts: as a product, as another kernel, or as what runs kernels."""
    opcode = OPCODE.search(line)[1]
    if opcode in BETWEEN:
        return "between"
    fused = [part for name in CALLED.findall(line) for part in inside.get(name, ())]
    texts = [part.split(", metadata=")[0] for part in (line, *fused)]
    product = any(word in text for text in texts for word in PRODUCTS)
    return "product" if product else "other"


def totals(program: str, rows: list[dict], length: int) -> Iterator[list[str]]:
    """A line for each part of an update, microseconds of a run of the part."""
    for part, runs in zip(PARTS, (length, GRADIENT_STEPS, 1), strict=True):
        chosen = [row for row in rows if (row["program"], row["part"]) == (program, part)]
        kernels = sum(row["runs"] for row in chosen if row["kind"] != "between") / runs
        spent = [
            sum(row["seconds"] for row in chosen if row["kind"] == kind) / runs
            for kind in ("product", "other", "between")
        ]
        yield [program, part, f"{runs}", f"{kernels:.0f}", *(f"{round(1e6 * s):,}" for s in spent)]


def longest(kernels: list[Kernel], length: int, number: int) -> Iterator[list[str]]:
    """A line for each of the kernels that take most time of an update."""
    whole_time = sum(kernel.seconds for kernel in kernels)
    for kernel in sorted(kernels, key=lambda kernel: -kernel.seconds)[:number]:
        each = f"{1e6 * kernel.seconds / kernel.runs:.1f}"
        share = f"{kernel.seconds / whole_time:.0%}"
        runs = f"{kernel.runs:.0f}"
        yield [kernel.what, kernel.part(length), kernel.result[:60], runs, each, share]


if __name__ == "__main__":
    main()
