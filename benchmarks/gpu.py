"""One GPU: how fast it steps, acts and learns, what limits it, whether its numbers are right.

    python benchmarks/gpu.py                     # on one card; it tries to stay within nine minutes
    python benchmarks/gpu.py --envs cartpole --num-envs 131072 --fcnet-hiddens 64
    python benchmarks/gpu.py --dry-run           # without a card
    python benchmarks/gpu.py --platform cpu      # all of it, on the CPU

--network-dtype bfloat16   the setting `network_dtype` of every network
--command-buffers          adds --xla_gpu_enable_command_buffer=+WHILE to XLA_FLAGS: XLA may then
                           launch a whole loop at once

Every row has both, as `network_dtype` and `command_buffers`.

The columns and their settings are those of benchmarks/throughput.py. The programs of an environment
are compiled side by side, then timed one after the other. First the losses of a small training of
every environment are compared with the CPU's, products in full float32: after one update they are
expected to agree to about 1e-5; later the first action that rounding flips sets the two apart. With
bfloat16 they differ by its rounding from the first update. All of these are compiled side by side,
and none begins after a quarter of `--minutes`.

memory     of the program, as XLA planned it
kernels    in one step of the environments, random actions and resets included (those of stepping
           with its start, divided by `--num-steps`), and in one update, of its 32 steps and 16
           minibatches. They are counted in XLA's text with the trips of its loops; XLA may launch
           many of them at once (command buffers)
each, us   the time of an update divided by its number of kernels
of peak    operations in products, beside those of a product of the minibatch's rows alone, both as
           JAX multiplies by default (on NVIDIA's cards TF32), or both in bfloat16
busy       share of a profiled update in which the card ran a kernel; the profile is kept beside
           --out
limit      launches: the card is busy for less than 60 % (without a profile: a kernel takes no more
           than 4 us); products: more than 40 % of peak; else memory

Without a card, or with --dry-run, nothing is timed: an update is lowered for CUDA, its loops, sorts
and callbacks to the host are counted, and the kernels of a step and of an update as the CPU has
them.
"""

import contextlib
import itertools
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
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
from jaxrl.models.mixed_precision import PRECISION
from jaxrl.models.networks import BFLOAT16, FLOAT32, NETWORK_DTYPES
from jaxrl.run.devices.compiled import peak_of

ENVS = ("cartpole", "arena", "waterworld", "pursuit", "gymnax:Breakout-MinAtar")
NUM_ENVS, HIDDENS = (2_048, 16_384, 131_072), (64, 256)
COMPARED, UPDATES = 256, 3  # environments and updates of the training that the CPU does as well
SMALL_LOSS = 1e-2  # a difference of smaller losses is taken as a share of this
LAUNCH_US, BUSY, OF_PEAK = 4.0, 0.6, 0.4
COMPILERS = 4  # programs that are compiled at the same time
COMPARING = 0.25  # of the minutes, after which no other losses are compared
OPERATIONS = {"cpu": 2e9}  # of products alone, in one call
SMALLEST = {
    **{"envs": ["cartpole"], "num_envs": [8], "fcnet_hiddens": [8], "pairs": 1},
    **{"num_steps": 4, "compared": 4},
}
SHOWN = {"compiled_s": ".1f", "memory_mib": ",.0f", "step_kernels": ",.1f", "kernels": ","}
SHOWN |= {"kernel_us": ".1f", "of_peak": ".0%", "busy": ".0%", "limit": ""}
MEASURED = ["environment", "environments", "network", *throughput.COLUMNS, "compiled, s"]
MEASURED += ["memory, MiB", "kernels of a step", "kernels of an update", "each, us"]
MEASURED += ["of peak", "busy", "limit"]
COUNTS = {"while": ",", "sort": ",", "callbacks": ",", "dot_general": ","}
COUNTS |= {"step_kernels_cpu": ",.1f", "kernels_cpu": ","}
COUNTED = ["environment", "network", "loops", "sorts", "callbacks", "products"]
COUNTED += ["kernels of a step (CPU)", "kernels of an update (CPU)"]
COMMAND_BUFFERS = "--xla_gpu_enable_command_buffer=+WHILE"
NO_TIME = "not measured, no time left (--minutes, --envs)"


def card() -> jax.Device | None:
    return next((device for device in jax.devices() if device.platform != "cpu"), None)


def configuration(name: str, num_envs: int, hiddens: list[int], arguments: Any) -> PPOConfig:
    dtype = arguments.network_dtype
    return throughput.configuration(name, num_envs, hiddens, network_dtype=dtype)


def facts_of(arguments: Any) -> dict:
    """What set a row's numbers besides its work."""
    names = ("network_dtype", "command_buffers")
    return {**{name: getattr(arguments, name) for name in names}, **report.circumstances()}


def training_losses(name: str, arguments: Any, device: jax.Device) -> Callable[[], np.ndarray]:
    """A small training, compiled for the device; returns its losses [updates, losses]."""
    config = configuration(name, arguments.compared, [64], arguments)
    config = config.replace(total_env_steps=UPDATES * config.train_batch_size)
    key = jax.device_put(jax.random.key(0), device)
    with jax.default_matmul_precision("highest"):
        program = jax.jit(make_train(config)).lower(key).compile()

    def train() -> np.ndarray:
        _, metrics = program(key)
        losses = itertools.product(metrics.learners, ("policy_loss", "vf_loss", "entropy"))
        by_policy = [np.asarray(policy[loss]) for policy, loss in losses]
        return np.concatenate(by_policy, axis=1)

    return train


def differences(arguments: Any, is_over: Callable[[], bool]) -> dict[str, list[float] | None]:
    """The largest relative difference of a loss from the CPU's, after each update, by environment.

    None of those that failed, or for which there was no time.
    """
    devices = dict.fromkeys((jax.devices("cpu")[0], jax.devices()[0]))

    def compiled_for(case: tuple[str, jax.Device]) -> Callable | None:
        name, device = case
        with failing(name):
            return None if is_over() else training_losses(name, arguments, device)

    cases = [*itertools.product(arguments.envs, devices)]
    with ThreadPoolExecutor(min(len(cases), COMPILERS)) as threads:
        trainings = dict(zip(cases, threads.map(compiled_for, cases), strict=True))
    found = {}
    for name in arguments.envs:
        of_devices = [trainings[name, device] for device in devices]
        found[name] = None
        if None not in of_devices and not is_over():
            with failing(name):
                on_cpu, here = of_devices[0](), of_devices[-1]()
                shares = np.abs(here - on_cpu) / np.maximum(np.abs(on_cpu), SMALL_LOSS)
                found[name] = np.max(shares, axis=1).tolist()
    return found


@contextlib.contextmanager
def failing(name: str) -> Iterator[None]:
    """Says in one line why the losses of an environment could not be computed."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        print(f"{name}: losses: {str(error).splitlines()[0]}", flush=True)


def table_of_differences(by_env: dict[str, list[float] | None]) -> str:
    """A line for each environment that was compared."""
    lines = [
        [name, *(f"{share:.1e}" for share in shares)] for name, shares in by_env.items() if shares
    ]
    titles = ["losses beside the CPU's, environment"]
    titles += [f"after update {update + 1}" for update in range(UPDATES)]
    return report.markdown(titles, lines) if lines else ""


@cache
def peak(rows: int, width: int, network_dtype: str) -> float:
    """Operations/s of a product of so many rows and columns."""
    operations = OPERATIONS.get(jax.default_backend(), 2e12)
    with jax.default_matmul_precision(PRECISION if network_dtype == BFLOAT16 else None):
        work, operations = programs.product(rows, width, operations)
    rates = programs.in_turns({"product": work}, {"product": operations}, 3)["product"]
    return statistics.median(rates)


@cache
def operations_of(name: str, width: int) -> float:
    """Operations in products for an environment step of training, whatever its size."""
    return programs.flops_of(throughput.configuration(name, 32, [width] * 2))


def cases(name: str, arguments: Any) -> list[tuple[str, int, int, str]]:
    """(environment, its number, width, column); stepping has no network: it is measured once."""
    stepping, *with_network = throughput.COLUMNS
    columns = [(arguments.fcnet_hiddens[0], stepping)]
    columns += itertools.product(arguments.fcnet_hiddens, with_network)
    return [(name, size, *column) for size in arguments.num_envs for column in columns]


def compiled(case: tuple[str, int, int, str], arguments: Any, is_over: Callable[[], bool]) -> dict:
    """A row with the work but without times; or with what went wrong."""
    name, num_envs, width, column = case
    row = {"env": name, "num_envs": num_envs, "fcnet_hiddens": [width] * 2, "column": column}
    if is_over():
        return row | {"error": NO_TIME}
    begin = time.perf_counter()
    sizes = {"fcnet_hiddens": [width] * 2, "devices": 1, "num_steps": arguments.num_steps}
    dtype, sizes = arguments.network_dtype, SimpleNamespace(**sizes)
    try:
        work, steps, _ = throughput.compiled(name, num_envs, column, sizes, network_dtype=dtype)
    except jax.errors.JaxRuntimeError as error:  # no memory on the card
        return row | {"error": str(error).splitlines()[0]}
    launches, memory = kernels.launches(work.compiled.as_text()), peak_of(work.compiled)
    return row | {
        "work": work,
        "steps": steps,
        "compiled_s": time.perf_counter() - begin,
        "memory_mib": None if memory is None else memory / 2**20,
        "kernels": launches.kernels,
        "step_kernels": launches.kernels / (steps // num_envs),
        "kinds": dict(launches.kinds),
    }


def measured(name: str, arguments: Any, is_over: Callable[[], bool]) -> list[dict]:
    """The rows of an environment."""
    listed = cases(name, arguments)
    with ThreadPoolExecutor(min(len(listed), COMPILERS)) as threads:
        rows = list(threads.map(lambda case: compiled(case, arguments, is_over), listed))
    for row in rows:
        work = row.pop("work", None)
        if work is not None and is_over():
            row["error"] = NO_TIME
        elif work is not None:
            try:
                time_one(row, work, arguments)
            except jax.errors.JaxRuntimeError as error:
                row["error"] = str(error).splitlines()[0]
        print(line_of(row), flush=True)
    return rows


def time_one(row: dict, work: programs.Work, arguments: Any) -> None:
    """Adds the speed, and of a training what limits it."""
    rates = programs.in_turns({"work": work}, row["steps"], arguments.pairs)["work"]
    row["steps_per_s"] = rates
    if row["column"] != "training":
        return
    width, num_envs = row["fcnet_hiddens"][0], row["num_envs"]
    seconds = row["steps"] / statistics.median(rates)
    rows = configuration(row["env"], num_envs, [width] * 2, arguments).minibatch_size
    flops = operations_of(row["env"], width) * row["steps"]
    row["kernel_us"] = 1e6 * seconds / max(1, row["kernels"])
    row["of_peak"] = flops / seconds / peak(rows, width, arguments.network_dtype)
    row["busy"] = None
    if num_envs == max(arguments.num_envs):
        which = f"{row['env']}-{num_envs}-{width}".replace(":", "-")
        row["busy"] = busy_share(work, arguments.out.with_suffix("") / which)
    row["limit"] = limit(row["kernel_us"], row["of_peak"], row["busy"])


def network_of(row: dict) -> str:
    first, second = row["fcnet_hiddens"]
    return f"{first} x {second}"


def line_of(row: dict) -> str:
    what = f"{row['env']} x {row['num_envs']:,}, {network_of(row)}, {row['column']}"
    speed = f"{report.spread(row['steps_per_s'])} steps/s" if "steps_per_s" in row else ""
    return f"{what}: {', '.join(filter(None, [speed, row.get('error')]))}"


def limit(kernel_us: float, of_peak: float, busy: float | None) -> str:
    """The thing to work on first."""
    idle = kernel_us <= LAUNCH_US if busy is None else busy < BUSY
    if idle:
        return "launches"
    return "products" if of_peak > OF_PEAK else "memory"


def busy_share(work: programs.Work, folder: Path) -> float | None:
    """The share of a profiled run in which the card ran a kernel; None without such a profile."""
    with jax.profiler.trace(str(folder)):
        work()
    files = sorted(folder.glob("**/*.xplane.pb"), key=os.path.getmtime)
    if not files:
        print(f"{folder}: JAX wrote no profile")
        return None
    spans = []
    for plane in jax.profiler.ProfileData.from_file(str(files[-1])).planes:
        if plane.name.startswith("/device:GPU"):
            streams = (line for line in plane.lines if line.name.startswith("Stream"))
            events = itertools.chain.from_iterable(stream.events for stream in streams)
            spans += [(event.start_ns, event.end_ns) for event in events]
    if not spans:
        return None
    begin, end = min(first for first, _ in spans), max(last for _, last in spans)
    return covered(spans) / (end - begin)


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of what spans cover together."""
    total, reached = 0.0, -np.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def counted(name: str, width: int, arguments: Any) -> dict:
    """An update as it is for a GPU, without one."""
    num_envs = min(arguments.num_envs)
    config = configuration(name, num_envs, [width] * 2, arguments)
    update, runner = programs.update_of(config)
    lowered = jax.jit(update).trace(runner).lower(lowering_platforms=("cuda",))
    text = lowered.as_text()
    number = lambda kind: len(re.findall(rf"stablehlo\.{kind}\b", text))
    on_cpu = kernels.launches(programs.training(config).compiled.as_text())
    num_steps = arguments.num_steps
    return {
        "env": name,
        "fcnet_hiddens": [width] * 2,
        "num_envs": num_envs,
        **{kind: number(kind) for kind in ("while", "sort", "dot_general")},
        "callbacks": len(re.findall(r"custom_call @\w*callback", text)),
        "step_kernels_cpu": stepping_kernels(name, num_envs, num_steps) / num_steps,
        "kernels_cpu": on_cpu.kernels,
        "kinds_cpu": dict(on_cpu.kinds),
    }


@cache
def stepping_kernels(name: str, num_envs: int, num_steps: int) -> int:
    """The kernels of so many steps of the environments; no network is part of them."""
    stepping = programs.stepping(name, {}, num_envs, num_steps)
    return kernels.launches(stepping.compiled.as_text()).kernels


def table_of_counts(rows: list[dict]) -> str:
    lines = [
        [row["env"], network_of(row), *(format(row[name], form) for name, form in COUNTS.items())]
        for row in rows
    ]
    return report.markdown(COUNTED, lines)


def table(rows: list[dict]) -> str:
    """A line for each size and network; the stepping of that size stands in each of them."""
    stepping, *_ = throughput.COLUMNS

    def case(row: dict, column: str) -> tuple:
        network = None if column == stepping else network_of(row)
        return row["env"], row["num_envs"], column, network

    by_case, lines = {case(row, row["column"]): row for row in rows}, []
    for row in rows:
        if row["column"] != "training":
            continue
        cells = [row["env"], f"{row['num_envs']:,}", network_of(row)]
        for column in throughput.COLUMNS:
            rates = by_case[case(row, column)].get("steps_per_s")
            cells.append(report.spread(rates) if rates else "failed")
        of_stepping = by_case[case(row, stepping)].get("step_kernels")
        for name, form in SHOWN.items():
            value = of_stepping if name == "step_kernels" else row.get(name)
            cells.append("" if value is None else format(value, form))
        lines.append(cells)
    return report.markdown(MEASURED, lines)


def measure(device: jax.Device, arguments: Any) -> None:
    begin = time.perf_counter()
    spent = lambda: time.perf_counter() - begin
    is_over = lambda: spent() > 60 * arguments.minutes
    print(f"{device.device_kind}, jax {jax.__version__}, {arguments.network_dtype}", flush=True)
    facts = {"device": device.device_kind, **facts_of(arguments)}
    found = differences(arguments, lambda: spent() > 60 * arguments.minutes * COMPARING)
    rows = [{"env": name, "differences": shares, **facts} for name, shares in found.items()]
    report.keep(rows, arguments.out)
    print(table_of_differences(found), flush=True)
    for name in (name for name, shares in found.items() if shares is None):
        print(f"{name}: its losses were not compared (for want of time: --minutes, --envs)")
    for name in arguments.envs:
        if is_over():
            print(f"{name}: {NO_TIME}", flush=True)
            continue
        rows = measured(name, arguments, is_over)
        report.keep([{**row, **facts} for row in rows], arguments.out)
        print(table(rows), flush=True)
    print(f"profiles: {arguments.out.with_suffix('')}; {spent():.0f} s")


def main() -> None:
    parser = report.arguments_of("gpu", __doc__, SMALLEST)
    parser.add_argument("--envs", nargs="+", default=list(ENVS))
    parser.add_argument("--num-envs", nargs="+", type=int, default=list(NUM_ENVS))
    parser.add_argument(
        "--fcnet-hiddens", nargs="+", type=int, default=list(HIDDENS), help="width of both layers"
    )
    parser.add_argument("--num-steps", type=int, default=200, help="of stepping, in one call")
    parser.add_argument("--pairs", type=int, default=3, help="times that each program runs")
    parser.add_argument("--minutes", type=float, default=8.0, help="after which nothing begins")
    parser.add_argument(
        "--platform", choices=("gpu", "cpu"), help="default: a card, if there is one"
    )
    parser.add_argument(
        "--network-dtype", choices=NETWORK_DTYPES, default=FLOAT32, help="of the networks' products"
    )
    parser.add_argument(
        "--command-buffers", action="store_true", help=f"{COMMAND_BUFFERS} in XLA_FLAGS"
    )
    parser.add_argument("--dry-run", action="store_true", help="lower and count, as without a card")
    parser.set_defaults(compared=COMPARED)
    arguments = parser.parse_args()
    if arguments.command_buffers:  # XLA reads its flags with the first device
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {COMMAND_BUFFERS}".strip()
    if arguments.dry_run or arguments.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")  # before the first device is asked for
    try:
        for case in itertools.product(arguments.envs, arguments.num_envs, arguments.fcnet_hiddens):
            configuration(*case[:2], [case[2]] * 2, arguments)
    except UsageError as error:
        parser.error(str(error))
    device = jax.devices()[0] if arguments.platform == "cpu" else card()
    if device is None and arguments.platform == "gpu":
        raise SystemExit("--platform gpu: JAX sees no card here; --dry-run needs none")
    if device is not None and not arguments.dry_run:
        measure(device, arguments)
        return
    print("a dry run: nothing is timed" if arguments.dry_run else "no card: a dry run")
    by_size = itertools.product(arguments.envs, arguments.fcnet_hiddens)
    rows = [counted(name, width, arguments) for name, width in by_size]
    report.keep([{**row, **facts_of(arguments)} for row in rows], arguments.out)
    print(table_of_counts(rows))


if __name__ == "__main__":
    main()
