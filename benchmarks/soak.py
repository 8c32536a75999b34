"""Memory of long trainings outside JAX: the RSS of every process, each minute of an hour.

    python benchmarks/soak.py                                # both, one after the other: two hours
    python benchmarks/soak.py --only workers --minutes 60    # Gymnasium's CartPole, two processes
    python benchmarks/soak.py --only external --minutes 60   # eight clients of `--env external`

Every step of an environment also sleeps, so that a training costs little of the machine and still
has many iterations, checkpoints and episodes. Of the eight clients one plays the policies itself,
and one connects again and leaves an episode open after each ten. Each minute has a line; the slope
at the end is that of the line with the least squared distance to the second half's minutes: in the
first half, caches and the allocator's arenas fill.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import report

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "client" / "python"))

SLEEP_S = {"workers": 5e-3, "external": 20e-3}  # in each step
SMALL = {"num_envs": 8, "rollout_length": 64, "minibatch_size": 128, "num_epochs": 4}
SPACES = {"observation_space": "Box(-inf, inf, 4)", "action_space": "Discrete(2)"}
TRAININGS = {
    "workers": {"env": "soak:sleeping_cartpole", "workers": 2, **SMALL},
    "external": {"env": "external", **SPACES, **SMALL},
}


class Sleeping(gymnasium.Wrapper):
    """An environment that also sleeps in every step."""

    def __init__(self, env: gymnasium.Env, seconds: float):
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> tuple:
        time.sleep(self.seconds)
        return self.env.step(action)


def sleeping_cartpole(kind: str = "workers") -> gymnasium.Env:
    return Sleeping(gymnasium.make("CartPole-v1"), SLEEP_S[kind])


def main() -> None:
    parser = report.arguments_of("soak", __doc__, {"minutes": 1, "minute_s": 12.0})
    parser.add_argument("--only", nargs="+", choices=TRAININGS, default=list(TRAININGS))
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--minute-s", type=float, default=60.0, help="seconds between two lines")
    args = parser.parse_args()
    # A shell's background ignores Ctrl-C, and so would the trainings, which it ends.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for kind in args.only:
        measure(kind, args)


def measure(kind: str, args: Any) -> None:
    """Prints and keeps the memory of a training's processes."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run = Path(folder) / "run"
        settings = {**TRAININGS[kind], "run_dir": run, "pictures": False}
        settings |= {"total_env_steps": 10**9, "checkpoint_frequency": 100}
        if kind == "external":
            port = free_port()
            settings["serve"] = f"port={port}"
            clients = multiprocessing.get_context("spawn").Process(target=play, args=(port,))
            clients.start()
            stack.callback(clients.terminate)
        words = []
        for name, value in settings.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        training = subprocess.Popen(
            [sys.executable, "-m", "jaxrl", "train", *words],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
        )
        stack.callback(training.kill)
        began, rss = time.monotonic(), {}
        for minute in range(1, args.minutes + 1):
            while time.monotonic() < began + args.minute_s * minute:
                assert training.poll() is None, f"{kind}: the training ended"
                time.sleep(0.5)
            pids = {"training": training.pid}
            pids |= {f"worker {i}": pid for i, pid in enumerate(children(training.pid))}
            if kind == "external":
                pids["clients"] = clients.pid
            for name, pid in pids.items():
                rss.setdefault(name, []).append(megabytes(pid))
            row = {"kind": kind, "minute": minute, "iterations": lines_of(run / "metrics.jsonl")}
            row |= {"rss_mb": {name: values[-1] for name, values in rss.items()}}
            row |= {"files": {name: num_files(pid) for name, pid in pids.items()}}
            report.keep([{**row, **report.circumstances()}], args.out)
            shown = ", ".join(f"{name} {values[-1]:.1f}" for name, values in rss.items())
            print(
                f"{kind}, minute {minute}: {shown} MB; {row['iterations']:,} iterations", flush=True
            )
        workers = children(training.pid)
        training.send_signal(signal.SIGINT)
        code = training.wait(60)
        left = [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    print(f"\n{kind}: {row['iterations']:,} iterations, exit code {code}, left behind: {left}\n")
    minutes = [minute for minute in (5, 30, 60) if minute <= args.minutes]
    titles = ["process", *(f"minute {minute}, MB" for minute in minutes), "second half, MB an hour"]
    lines = []
    for name, values in rss.items():
        at = [f"{values[minute - 1]:.1f}" for minute in minutes]
        lines.append([name, *at, f"{slope(values):.2f}" if len(values) > 2 else ""])
    print(report.markdown(titles, lines), flush=True)


def slope(values: list[float]) -> float:
    """MB an hour in the second half, of values by minute."""
    values = values[len(values) // 2 :]
    if len(values) < 2:
        return float("nan")
    return 60 * float(np.polyfit(np.arange(len(values)), values, 1)[0])


def children(pid: int) -> list[int]:
    """The processes that a process started and that still run."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended since
            found += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    return sorted(map(int, found))


def megabytes(pid: int) -> float:
    """The memory of a process, RSS."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def num_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def play(port: int) -> None:
    """A process with eight clients, each with an environment of its own."""
    threads = [threading.Thread(target=play_one, args=(port, i)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def play_one(port: int, number: int) -> None:
    from jaxrl_client import PolicyClient

    env, count = sleeping_cartpole("external"), 0
    env.reset(seed=number)
    with contextlib.suppress(ConnectionError):  # the server has gone
        while True:
            mode = "local" if number == 1 else "remote"
            address = f"ws://127.0.0.1:{port}"
            with PolicyClient(address, mode, reconnect_seconds=120) as client:
                while True:
                    play_episode(client, env)
                    count += 1
                    if number == 0 and count % 10 == 0:
                        client.get_action(client.start_episode(), env.reset()[0])
                        break


def play_episode(client: Any, env: gymnasium.Env) -> None:
    obs, _ = env.reset()
    episode, done = client.start_episode(), False
    while not done:
        obs, reward, terminated, truncated, _ = env.step(client.get_action(episode, obs))
        client.log_returns(episode, reward)
        done = terminated or truncated
    client.end_episode(episode, obs, truncated=truncated and not terminated)


if __name__ == "__main__":
    main()
