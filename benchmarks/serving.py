"""Policy server: the round trip of one client, the actions per second of many, and learning.

    python benchmarks/serving.py                          # a minute
    python benchmarks/serving.py --seconds 10 --turns 5
    python benchmarks/serving.py --learn 0 1 2 --turns 0  # CartPole to 475, a minute for each seed

The server has RLlib's CartPole network of 256 x 256, random weights, and runs in a process of its
own. One client: `jaxrl_client.PolicyClient` asks again as soon as it has its answer, in msgpack and
in JSON; the time is that of `get_action`. Many: connections of one process, which is as busy as the
server; each sends its next observation when it has its action.

Learning: `jaxrl train --env external --stop-return 475`, whose only experience are the episodes of
eight clients in another process, with Gymnasium's CartPole-v1. The seconds are of the whole
command, its start and its compiling too.
"""

import asyncio
import contextlib
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import threading
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

SMALLEST = {
    **{"clients": report.first, "seconds": 0.2, "turns": lambda given: min(given, 1)},
    **{"learn": report.first, "stop_return": 10.0},
}
OBS = np.array([0.01, -0.02, 0.03, 0.04], np.float32)


def main() -> None:
    parser = report.arguments_of("serving", __doc__, SMALLEST)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64], help="at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--learn", type=int, nargs="*", default=[], help="seeds to train with")
    parser.add_argument("--stop-return", type=float, default=475.0, help="of --learn")
    args = parser.parse_args()
    if args.turns:
        measure_server(args)
    if args.learn:
        lines = [measure_learning(seed, args) for seed in args.learn]
        print(report.markdown(["seed", "return", "steps", "whole, s", "training, s"], lines))


def measure_server(args: Any) -> None:
    """Round trips and actions per second."""
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


def measure_learning(seed: int, args: Any) -> list[str]:
    """Keeps the seconds until CartPole is solved through a server; a line of the table."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    clients = context.Process(target=live, args=(port, seed), daemon=True)
    with tempfile.TemporaryDirectory() as folder:
        run, began = Path(folder) / "run", time.perf_counter()
        clients.start()
        spaces = ["--observation-space", "Box(-inf, inf, 4)", "--action-space", "Discrete(2)"]
        words = ["--env", "external", *spaces, "--serve", f"port={port}"]
        words += ["--stop-return", str(args.stop_return)]
        words += ["--num-envs", "2", "--rollout-length", "32"] if args.smoke else []
        words += ["--seed", str(seed), "--run-dir", str(run), "--pictures", "False"]
        subprocess.run([sys.executable, "-m", "jaxrl", "train", *words], check=True)
        seconds = time.perf_counter() - began
        clients.terminate()
        clients.join()
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    steps, training = last["num_env_steps_sampled_lifetime"], last["time_total_s"]
    mean = last["env_runners"]["episode_return_mean"]
    row = {"seed": seed, "return": mean, "steps": steps, "seconds": seconds, "training": training}
    report.keep([{**row, **report.circumstances()}], args.out)
    return [f"{seed}", f"{mean:.0f}", f"{steps:,}", f"{seconds:.0f}", f"{training:.0f}"]


def live(port: int, seed: int) -> None:
    """A process with eight clients, each with an environment of its own."""
    threads = [threading.Thread(target=live_one, args=(port, 8 * seed + i)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def live_one(port: int, seed: int) -> None:
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    env.reset(seed=seed)
    with contextlib.suppress(ConnectionError):  # the server has gone
        client = PolicyClient(f"ws://127.0.0.1:{port}", reconnect_seconds=120)
        while True:
            obs, _ = env.reset()
            episode, done = client.start_episode(), False
            while not done:
                obs, reward, terminated, truncated, _ = env.step(client.get_action(episode, obs))
                client.log_returns(episode, reward)
                done = terminated or truncated
            client.end_episode(episode, obs, truncated=truncated and not terminated)


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
