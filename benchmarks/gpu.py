"""One GPU: how fast it steps, acts and learns, what limits it, whether its numbers are right.

    python benchmarks/gpu.py                     # on one card, within nine minutes
    python benchmarks/gpu.py --envs cartpole --num-envs 131072 --fcnet-hiddens 64
    python benchmarks/gpu.py --dry-run           # without a card
    python benchmarks/gpu.py --platform cpu      # all of it, on the CPU

The columns and their settings are those of benchmarks/throughput.py, each environment's programs
compiled side by side. Environments that the time does not suffice for are named, not measured.

kernels    launches in one update, of its 32 steps and 16 minibatches, counted in XLA's text with
           the trips of its loops
each, us   the time of an update by its kernels: where it is about 3, launching them is what limits
of peak    operations in products, beside those of the update's largest product alone
busy       share of the time in which the card ran a kernel, of a profile that is kept beside --out
CPU        largest relative difference of a loss from the CPU's after one update and after three,
           products in full float32

Without a card, or with --dry-run, nothing is timed: the training is lowered for CUDA, its loops,
sorts and callbacks to the host are counted, and the kernels of an update as the CPU has them.
"""

import itertools
import os
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import kernels
import numpy as np
import programs
import report
import throughput

from jaxrl import PPOConfig, UsageError, make_train

ENVS = ("cartpole", "arena", "waterworld", "pursuit", "gymnax:Breakout-MinAtar")
NUM_ENVS, HIDDENS = (2_048, 16_384, 131_072), (64, 256)
COMPARED = 256  # environments of the training that runs on the CPU as well
LAUNCH_US = 4.0  # a kernel that takes no longer is mostly its launch
BUSY, OF_PEAK = 0.6, 0.4  # below the first launches limit, above the second products do
SMALLEST = {
    **{"envs": ["cartpole"], "num_envs": [8], "fcnet_hiddens": [8], "pairs": 1},
    **{"num_steps": 4, "compared": 4, "operations": 1e6},
}
MEASURED = ["environment", "environments", "network", *throughput.COLUMNS, "compiled, s"]
MEASURED += ["memory, MiB", "kernels", "each, us", "of peak", "busy", "limit"]
SHOWN = {"compiled_s": ".1f", "memory_mib": ",.0f", "kernels": ",", "kernel_us": ".1f"}
SHOWN |= {"of_peak": ".0%", "busy": ".0%", "limit": ""}
COUNTED = ["environment", "network", "loops", "sorts", "callbacks", "products"]
COUNTED += ["kernels of an update (CPU)"]


def card() -> jax.Device | None:
    return next((device for device in jax.devices() if device.platform != "cpu"), None)


def peaks(arguments: Any) -> dict[tuple[str, int], float]:
    """{(type, width): operations/s of a product of so many columns}, of the widths asked for."""
    found = {}
    for dtype, width in itertools.product(("float32", "bfloat16"), arguments.fcnet_hiddens):
        rows = max(arguments.num_envs) * throughput.ROLLOUT_LENGTH // throughput.NUM_MINIBATCHES
        work, operations = programs.product(rows, width, arguments.operations, dtype)
        rates = programs.in_turns({"": work}, {"": operations}, arguments.pairs)[""]
        found[dtype, width] = statistics.median(rates)
        shape = f"({rows:,} x {width}) @ ({width} x {width})"
        print(f"{dtype} {shape}: {found[dtype, width] / 1e12:.2f} TFLOP/s", flush=True)
    return found


def differences(name: str, num_envs: int, updates: int = 3) -> list[float]:
    """The largest relative difference of a loss from the CPU's, after each update."""
    config = throughput.configuration(name, num_envs, [64])
    config = config.replace(total_env_steps=updates * config.train_batch_size)
    losses = []
    for device in (jax.devices("cpu")[0], jax.devices()[0]):
        with jax.default_matmul_precision("highest"):
            key = jax.device_put(jax.random.key(0), device)
            _, metrics = jax.jit(make_train(config))(key)
        names = ("policy_loss", "vf_loss", "entropy")
        by_policy = [np.asarray(policy[name]) for policy in metrics.learners for name in names]
        losses.append(np.concatenate(by_policy, axis=1))  # [updates, losses]
    on_cpu, here = losses
    return np.max(np.abs(here - on_cpu) / np.abs(on_cpu), axis=1).tolist()


def compiled(case: tuple[str, int, int, str], arguments: Any) -> dict:
    """A row without times, and the work; or what went wrong."""
    name, num_envs, width, column = case
    begin = time.perf_counter()
    row = {"env": name, "num_envs": num_envs, "fcnet_hiddens": [width] * 2, "column": column}
    sizes = {"fcnet_hiddens": [width] * 2, "devices": 1, "num_steps": arguments.num_steps}
    try:
        work, steps, _ = throughput.compiled(name, num_envs, column, SimpleNamespace(**sizes))
    except jax.errors.JaxRuntimeError as error:  # no memory on the card
        return row | {"error": str(error).splitlines()[0]}
    memory, launches = work.compiled.memory_analysis(), kernels.launches(work.compiled.as_text())
    bytes_ = memory.argument_size_in_bytes + memory.output_size_in_bytes
    return row | {
        "work": work,
        "steps": steps,
        "compiled_s": time.perf_counter() - begin,
        "memory_mib": (bytes_ + memory.temp_size_in_bytes) / 2**20,
        "kernels": launches.kernels,
        "kinds": dict(launches.kinds),
    }


def measured(name: str, peak: dict, arguments: Any) -> list[dict]:
    """The rows of an environment: compiled side by side, timed in turns."""
    columns = [
        (size, width, column) for size in arguments.num_envs for width, column in which(arguments)
    ]
    cases = [(name, *rest) for rest in columns]
    with ThreadPoolExecutor(min(len(cases), report.CORES)) as threads:
        rows = list(threads.map(lambda case: compiled(case, arguments), cases))
    for row in rows:
        work = row.pop("work", None)
        if work is None:
            continue
        try:
            rates = programs.in_turns({"": work}, row["steps"], arguments.pairs)[""]
            row["steps_per_s"] = rates
            if row["column"] == "training":
                row |= training_of(row, work, peak, arguments)
        except jax.errors.JaxRuntimeError as error:
            row["error"] = str(error).splitlines()[0]
        print(said(row), flush=True)
    return rows


def which(arguments: Any) -> list[tuple[int, str]]:
    """(width, column): stepping has no network, so it is measured once."""
    first, *_ = arguments.fcnet_hiddens
    with_network = itertools.product(arguments.fcnet_hiddens, throughput.COLUMNS[1:])
    return [(first, throughput.COLUMNS[0]), *with_network]


def network_of(row: dict) -> str:
    first, second = row["fcnet_hiddens"]
    return f"{first} x {second}"


def said(row: dict) -> str:
    what = f"{row['env']} x {row['num_envs']:,}, {network_of(row)}, {row['column']}"
    if "error" in row:
        return f"{what}: {row['error']}"
    return f"{what}: {report.spread(row['steps_per_s'])} steps/s"


def training_of(row: dict, work: programs.Work, peak: dict, arguments: Any) -> dict:
    """What limits a training."""
    width = row["fcnet_hiddens"][0]
    seconds = row["steps"] / statistics.median(row["steps_per_s"])
    flops = operations_of(row["env"], width) * row["steps"]
    folder = arguments.out.with_suffix("") / f"{row['env']}-{row['num_envs']}-{width}".replace(
        ":", "-"
    )
    busy = busy_share(work, folder) if row["num_envs"] == max(arguments.num_envs) else None
    facts = {
        "kernel_us": 1e6 * seconds / max(1, row["kernels"]),
        "of_peak": flops / seconds / peak["float32", width],
        "busy": busy,
    }
    return facts | {"limit": limit(**facts)}


def limit(kernel_us: float, of_peak: float, busy: float | None) -> str:
    """What to work at first."""
    idle = kernel_us <= LAUNCH_US if busy is None else busy < BUSY
    if idle:
        return "launches"
    return "products" if of_peak > OF_PEAK else "memory"


def operations_of(name: str, width: int) -> float:
    """Operations in products for an environment step, of a small training: they are the same."""
    return programs.flops_of(throughput.configuration(name, 32, [width] * 2))


def busy_share(work: programs.Work, folder: Path) -> float | None:
    """The share of a run in which the card ran a kernel; None where the profile has no card."""
    begin = time.perf_counter()
    with jax.profiler.trace(str(folder)):
        work()
        seconds = time.perf_counter() - begin
    files = sorted(folder.glob("**/*.xplane.pb"), key=os.path.getmtime)
    profile = jax.profiler.ProfileData.from_file(str(files[-1]))
    spans = [
        (event.start_ns, event.end_ns)
        for plane in profile.planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]
    return covered(spans) / 1e9 / seconds if spans else None


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of what spans cover together."""
    total, reached = 0.0, -np.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def counted(name: str, width: int, num_envs: int) -> dict:
    """What a training is for a GPU, without one."""
    config: PPOConfig = throughput.configuration(name, num_envs, [width] * 2)
    traced = jax.jit(make_train(config)).trace(jax.random.key(0))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    number = lambda kind: len(re.findall(rf"stablehlo\.{kind}\b", text))
    here = kernels.launches(programs.training(config).compiled.as_text())
    return {
        "env": name,
        "fcnet_hiddens": [width] * 2,
        "num_envs": num_envs,
        **{kind: number(kind) for kind in ("while", "sort", "dot_general")},
        "callbacks": len(re.findall(r"custom_call @\w*callback", text)),
        "kernels_cpu": here.kernels,
        "kinds_cpu": dict(here.kinds),
    }


def table_of_counts(rows: list[dict]) -> str:
    names = ("while", "sort", "callbacks", "dot_general", "kernels_cpu")
    lines = [[row["env"], network_of(row), *(f"{row[name]:,}" for name in names)] for row in rows]
    return report.markdown(COUNTED, lines)


def table(rows: list[dict]) -> str:
    """A line for each size and network; what stepping does stands in each of them."""
    stepping, *_ = throughput.COLUMNS

    def case(row: dict, column: str) -> tuple:
        network = None if column == stepping else network_of(row)
        return row["env"], row["num_envs"], column, network

    found, lines = {case(row, row["column"]): row for row in rows}, []
    for row in rows:
        if row["column"] != "training":
            continue
        cells = [row["env"], f"{row['num_envs']:,}", network_of(row)]
        for column in throughput.COLUMNS:
            rates = found[case(row, column)].get("steps_per_s")
            cells.append(report.spread(rates) if rates else "failed")
        for name, form in SHOWN.items():
            cells.append("" if row.get(name) is None else format(row[name], form))
        lines.append(cells)
    return report.markdown(MEASURED, lines)


def on_a_card(device: jax.Device, arguments: Any) -> None:
    begun, longest = time.perf_counter(), 0.0
    left = lambda: 60 * arguments.minutes - (time.perf_counter() - begun)
    print(f"{device.device_kind}, jax {jax.__version__}", flush=True)
    facts = {"device": device.device_kind, **report.circumstances()}
    peak, rows = peaks(arguments), []
    for name in arguments.envs[:2]:
        found = differences(name, arguments.compared)
        report.keep([{"env": name, "differences": found, **facts}], arguments.out)
        print(f"{name}: losses differ from the CPU's by {found[0]:.1e}, then {found[-1]:.1e}")
    for name in arguments.envs:
        if left() < longest:
            print(f"{name}: not measured, the time is over (--minutes, --envs)", flush=True)
            continue
        begin = time.perf_counter()
        new = measured(name, peak, arguments)
        longest = max(longest, time.perf_counter() - begin)
        report.keep([{**row, **facts} for row in new], arguments.out)
        rows += new
    print(table(rows))
    print(f"profiles: {arguments.out.with_suffix('')}; {60 * arguments.minutes - left():.0f} s")


def main() -> None:
    parser = report.arguments_of("gpu", __doc__, SMALLEST)
    parser.add_argument("--envs", nargs="+", default=list(ENVS))
    parser.add_argument("--num-envs", nargs="+", type=int, default=list(NUM_ENVS))
    parser.add_argument(
        "--fcnet-hiddens", nargs="+", type=int, default=list(HIDDENS), help="width of both layers"
    )
    parser.add_argument("--num-steps", type=int, default=200, help="of stepping, in one call")
    parser.add_argument("--pairs", type=int, default=3, help="turns of each program")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument(
        "--platform", choices=("gpu", "cpu"), help="default: a card, if one is there"
    )
    parser.add_argument("--dry-run", action="store_true", help="lower and count, as without a card")
    parser.set_defaults(compared=COMPARED, operations=2e12)
    arguments = parser.parse_args()
    if arguments.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")  # before the first device is asked for
    try:
        for case in itertools.product(arguments.envs, arguments.num_envs, arguments.fcnet_hiddens):
            throughput.configuration(*case[:2], [case[2]] * 2)
    except UsageError as error:
        parser.error(str(error))
    device = jax.devices()[0] if arguments.platform == "cpu" else card()
    if device is None and arguments.platform == "gpu":
        raise SystemExit("--platform gpu: JAX sees no card here; --dry-run needs none")
    if device is not None and not arguments.dry_run:
        on_a_card(device, arguments)
        return
    print("a dry run: nothing is timed" if arguments.dry_run else "no card: a dry run")
    cases = itertools.product(arguments.envs, arguments.fcnet_hiddens)
    rows = [counted(name, width, min(arguments.num_envs)) for name, width in cases]
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    print(table_of_counts(rows))


if __name__ == "__main__":
    main()
