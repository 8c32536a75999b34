"""Policy server: the round trip of one client, and the actions per second of many.

    python benchmarks/serving.py                          # a minute
    python benchmarks/serving.py --seconds 10 --turns 5

The server has RLlib's CartPole network of 256 x 256, random weights, and runs in a process of its
own. One client: `jaxrl_client.PolicyClient` asks again as soon as it has its answer, in msgpack and
in JSON; the time is that of `get_action`. Many: connections of one process, which is as busy as the
server; each sends its next observation when it has its action.
"""

import asyncio
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import report
from websockets.asyncio.client import connect

from jaxrl import PPOConfig
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy
from jaxrl.serving.server import PolicyServer
from jaxrl.serving.settings import ServerSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "client" / "python"))

from jaxrl_client import PolicyClient

OBS = np.array([0.01, -0.02, 0.03, 0.04], np.float32)


def main() -> None:
    parser = report.arguments_of("serving", __doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64], help="at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there,), daemon=True)
    server.start()
    address = here.recv()
    try:
        print("| clients | what | median | 99 % |\n|---|---|---|---|")
        for text in (False, True):
            measure_one(address, text, args)
        for clients in args.clients:
            measure_many(address, clients, args)
    finally:
        here.send("stop")
        server.join()


def serve(pipe: Any) -> None:
    """A process with the server."""
    spec = PPOConfig(env="cartpole").build().policy_specs[0]
    weights = PolicyWeights(spec.model.init(jax.random.key(0)), spec.initial_filter())
    policy = Policy(spec, weights, name="default_policy", agents=("default_agent",))
    settings = ServerSettings(port=0, max_messages_per_second=10**6)
    with PolicyServer({policy.name: policy}, settings) as server:
        pipe.send(server.address)
        pipe.recv()


def measure_one(address: str, text: bool, args: Any) -> None:
    """Prints and keeps the round trips of one client."""
    medians, lates = [], []
    with PolicyClient(address, text=text) as client:
        episode = client.start_episode()
        for _ in range(args.turns):
            times, last = [], time.perf_counter() + args.seconds
            while (began := time.perf_counter()) < last:
                client.get_action(episode, OBS)
                times.append(time.perf_counter() - began)
            medians.append(1e3 * float(np.median(times)))
            lates.append(1e3 * float(np.percentile(times, 99)))
    what = f"a round trip, {'JSON' if text else 'msgpack'}, ms"
    print(f"| 1 | {what} | {report.spread(medians, '.2f')} | {report.spread(lates, '.2f')} |")
    row = {"clients": 1, "text": text, "median_ms": medians, "p99_ms": lates}
    report.keep([{**row, **report.circumstances()}], args.out)


def measure_many(address: str, clients: int, args: Any) -> None:
    """Prints and keeps the actions per second of some clients."""
    rates, lates = [], []
    for _ in range(args.turns):
        times = asyncio.run(play(address, clients, args.seconds))
        rates.append(len(times) / args.seconds)
        lates.append(1e3 * float(np.percentile(times, 99)))
    shown = report.spread(rates), report.spread(lates, ".1f")
    print(f"| {clients} | actions/s; ms of a round trip | {shown[0]} | {shown[1]} |", flush=True)
    row = {"clients": clients, "actions_per_s": rates, "p99_ms": lates}
    report.keep([{**row, **report.circumstances()}], args.out)


async def play(address: str, clients: int, seconds: float) -> list[float]:
    """The seconds of every round trip of some clients."""
    times: list[float] = []
    await asyncio.gather(*(play_one(address, seconds, times) for _ in range(clients)))
    return times


async def play_one(address: str, seconds: float, times: list[float]) -> None:
    encode, decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode
    async with connect(address, compression=None) as socket:
        await socket.send(encode({"type": "hello", "protocol": 1}))
        await socket.recv()
        await socket.send(encode({"type": "start_episode", "id": 0, "episode": "e"}))
        await socket.recv()
        ask = {"type": "get_action", "id": 1, "episode": "e", "obs": OBS.tobytes(), "reward": 1.0}
        last = time.perf_counter() + seconds
        while (began := time.perf_counter()) < last:
            await socket.send(encode(ask))
            answer = decode(await socket.recv())
            assert answer["type"] == "action", answer
            times.append(time.perf_counter() - began)


if __name__ == "__main__":
    main()
