"""Exported policies: the time of one action for one observation, by who computes it.

    python benchmarks/export.py                           # CartPole, RLlib's 256 x 256 and tuned
    python benchmarks/export.py --calls 2000 --turns 5

Who computes: `Policy.act`; the .npz file, by the reader in plain NumPy; the .onnx file, by
onnxruntime on one thread, asked for the action and the state alone; the .stablehlo file, by a
jitted call. All take turns; a turn's number is the median of its calls. The networks have random
weights, which the time does not depend on. Formats whose packages are missing are left out.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import report

from jaxrl import PPOConfig
from jaxrl.core.errors import UsageError
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy

CASES = {
    "256 x 256": PPOConfig(env="cartpole"),
    "tuned": PPOConfig.tuned("cartpole"),
    "GRU 256": PPOConfig(env="cartpole", use_gru=True),
}


def main() -> None:
    parser = report.arguments_of("export", __doc__, {"calls": 5, "turns": 1})
    parser.add_argument("--calls", type=int, default=2_000, help="calls of a turn")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, config in CASES.items():
            lines += measure(name, config, Path(folder), args)
    print(report.markdown(["CartPole", "who acts", "us an action", "MB"], lines))


def measure(name: str, config: PPOConfig, folder: Path, args: Any) -> list[list[str]]:
    """Keeps the rows of one policy; its lines of the table."""
    actors = dict(actors_of(untrained(config), folder))
    times: dict[str, list[float]] = {who: [] for who in actors}
    for _ in range(args.turns):
        for who, (act, _) in actors.items():
            times[who].append(median_time(act, args.calls))
    lines = []
    for who, (_, size) in actors.items():
        lines.append([name, who, report.spread(times[who], ".1f"), f"{size / 1e6:.2f}"])
        row = {"policy": name, "who": who, "microseconds": times[who], "bytes": size}
        report.keep([{**row, **report.circumstances()}], args.out)
    return lines


def untrained(config: PPOConfig) -> Policy:
    """The first policy of a configuration, with random weights."""
    spec = config.build().policy_specs[0]
    weights = PolicyWeights(spec.model.init(jax.random.key(0)), spec.initial_filter())
    return Policy(spec, weights, name="policy")


def actors_of(policy: Policy, folder: Path) -> Iterator[tuple[str, tuple[Callable, int]]]:
    """(who acts, (a call, the size of the file)) of every format that is installed."""
    obs = np.array([0.01, -0.02, 0.03, 0.04], np.float32)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(policy.weights))
    yield "Policy.act", (lambda: policy.act(obs), size)
    for ending, make in (
        (".npz", numpy_actor),
        (".onnx", onnx_actor),
        (".stablehlo", stablehlo_actor),
    ):
        try:
            exported = policy.export(folder / f"model{ending}")
        except UsageError as error:
            print(f"left out: {error}")
            continue
        yield ending, (make(exported, obs), exported.path.stat().st_size)


def numpy_actor(exported: Any, obs: np.ndarray) -> Callable:
    player = NumpyPolicy(exported.path)
    inputs = first_inputs(exported, obs)
    return lambda: player(inputs)


def onnx_actor(exported: Any, obs: np.ndarray) -> Callable:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(exported.path), options)
    inputs = first_inputs(exported, obs)
    outputs = [tensor.name for tensor in exported.outputs if tensor.name != "action_dist_inputs"]
    return lambda: session.run(outputs, inputs)


def stablehlo_actor(exported: Any, obs: np.ndarray) -> Callable:
    act = jax.jit(jax.export.deserialize(bytearray(exported.path.read_bytes())).call)
    inputs = first_inputs(exported, obs)
    return lambda: np.asarray(act(inputs)["action"])


def first_inputs(exported: Any, obs: np.ndarray) -> dict[str, np.ndarray]:
    """A batch of one observation, at the beginning of an episode."""
    zeros = {tensor.name: np.zeros((1, *tensor.shape), tensor.dtype) for tensor in exported.inputs}
    return {**zeros, "obs": obs[None]}


def median_time(act: Callable, calls: int) -> float:
    """Microseconds."""
    for _ in range(20):
        act()
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        act()
        times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times)


if __name__ == "__main__":
    main()
