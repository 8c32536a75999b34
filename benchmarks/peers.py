"""jaxrl beside its peers: CartPole stepping, PettingZoo, PPO at each peer's settings.

    pip install -e ".[peers]" && python benchmarks/peers.py
    python benchmarks/peers.py --quick                                # two pairs of short turns
    python benchmarks/peers.py --only sb3 envpool --out rows.jsonl
    python benchmarks/peers.py --python pufferlib=puffer/bin/python   # a peer with its own packages

Every stack of peer_stacks.py runs in a process of its own. A peer whose threads can be set
(PyTorch, EnvPool) is first tried with one and with as many as there are cores; it keeps the faster
number, which the table names. Ours and each peer take turns, A B A B, `--pairs` times. Steps/s are
medians [least, most]; "ours, times" is the ratio of medians [least, most of the pairs]. What comes
before the first turn stands apart: imports, building, compiling and one unit of work. Ours runs on
one device, as gymnax and rejax do, unless its row says otherwise; actions are random, drawn within
what is timed, and resets are part of it. The load stands above each table: on a busy machine the
ratios are no figures, for libraries whose threads wait for each other (PyTorch) lose far more than
others. How well the settings learn is another question: learning.py. Not in the extra `peers`:
rejax 0.1.3, which runs with gymnax 0.0.9, not with ours, and PufferLib 3.0, which pip compiles,
with PyTorch there beforehand and further downloads.
"""

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import report
from report import CORES

STACKS = Path(__file__).with_name("peer_stacks.py")
OURS = "jaxrl"


class Entrant(NamedTuple):
    """A stack of peer_stacks.py with its arguments, and how the table calls it."""

    peer: str  # the name that --only and --python know it by
    who: str
    stack: str
    arguments: dict
    has_threads: bool = False  # whether the stack takes a number of `threads`

    def on(self, threads: int) -> "Entrant":
        who = f"{self.who}, {threads} thread{'s' if threads > 1 else ''}"
        return self._replace(who=who, arguments={**self.arguments, "threads": threads})


class Contest(NamedTuple):
    """One piece of work: ours takes turns with each of the others."""

    question: str
    work: str
    jaxrl: Entrant
    others: tuple[Entrant, ...]


def _jaxrl_step(env: str, num_envs: int, devices: int = 1) -> Entrant:
    who = OURS if devices == 1 else f"{OURS}, {devices} devices"
    return Entrant(OURS, who, "jaxrl_step", {"env": env, "num_envs": num_envs, "devices": devices})


def _gymnasium(num_envs: int, mode: str) -> Entrant:
    kind = {"sync": "Sync", "vector_entry_point": "its own vectorised"}[mode]
    return Entrant(
        "gymnasium", f"Gymnasium, {kind}", "gymnasium_step", {"num_envs": num_envs, "mode": mode}
    )


def _envpool(num_envs: int) -> Entrant:
    return Entrant("envpool", "EnvPool (C++)", "envpool_step", {"num_envs": num_envs}, True)


def _pufferlib(num_envs: int) -> Entrant:
    return Entrant(
        "pufferlib", "PufferLib (C; 200-step episodes)", "pufferlib_step", {"num_envs": num_envs}
    )


def _gymnax(num_envs: int) -> Entrant:
    return Entrant("gymnax", "gymnax", "gymnax_step", {"num_envs": num_envs})


def _pettingzoo(env: str) -> Entrant:
    return Entrant("pettingzoo", "PettingZoo, 1 environment", "pettingzoo_step", {"env": env})


def _jaxrl_train(settings: str) -> Entrant:
    return Entrant(OURS, OURS, "jaxrl_train", {"settings": settings})


def _rllib_train(task: str) -> Entrant:
    return Entrant("rllib", "RLlib, one process", "rllib_train", {"task": task}, True)


STEPPING, SISL, TRAINING = "CartPole, stepping", "PettingZoo's environments, stepping", "PPO"
CARTPOLE_PEERS = {
    16: (_gymnasium(16, "sync"), _gymnasium(16, "vector_entry_point")),
    256: (_envpool(256), _pufferlib(256)),
    1024: (_gymnax(1024),),
    16384: (
        _gymnasium(16384, "vector_entry_point"),
        _gymnax(16384),
        _pufferlib(16384),
        _jaxrl_step("cartpole", 16384, CORES),
    ),
}
PPO_PEERS = {
    "CartPole, 1 x 2048 steps, minibatch 64, 10 epochs, 64 x 64": (
        _jaxrl_train("sb3"),
        Entrant("sb3", "Stable-Baselines3", "sb3_train", {}, True),
        Entrant("sbx", "SBX", "sbx_train", {}),
    ),
    "CartPole, 8 x 32 steps, minibatch 256, 20 epochs, 64 x 64 (RL Baselines3 Zoo's settings)": (
        _jaxrl_train("sb3-zoo"),
        Entrant("sb3", "Stable-Baselines3", "sb3_train", {"zoo": True}, True),
    ),
    "CartPole, 5 x 100 steps, minibatch 100, 5 epochs, 64 x 64": (
        _jaxrl_train("rejax"),
        Entrant("rejax", "rejax", "rejax_train", {}),
    ),
    "CartPole, 8 x 500 steps, minibatch 128, 5 epochs, 256 x 256": (
        _jaxrl_train("rllib"),
        _rllib_train("cartpole"),
    ),
    **{
        f"arena, two policies, 4,000 steps, minibatch 128, {epochs} epochs, 256 x 256": (
            _jaxrl_train(f"arena-{epochs}-epochs"),
            _rllib_train(f"arena-{epochs}-epochs"),
        )
        for epochs in (5, 30)
    },
}
CONTESTS = (
    *(
        Contest(STEPPING, f"{num_envs:,} environments", _jaxrl_step("cartpole", num_envs), others)
        for num_envs, others in CARTPOLE_PEERS.items()
    ),
    *(
        Contest(
            SISL,
            f"{env}; ours {num_envs} environments",
            _jaxrl_step(env, num_envs),
            (_pettingzoo(env), _jaxrl_step(env, num_envs, CORES)),
        )
        for env, num_envs in {"waterworld": 512, "pursuit": 512}.items()
    ),
    *(
        Contest(TRAINING, work, jaxrl, tuple(others))
        for work, (jaxrl, *others) in PPO_PEERS.items()
    ),
)
PEERS = tuple(
    dict.fromkeys(
        other.peer for contest in CONTESTS for other in contest.others if other.peer != OURS
    )
)


class Process:
    """A stack at work. `failure` says in one line why it is not, if it is not."""

    def __init__(self, entrant: Entrant, interpreter: str, patience: float):
        self.entrant, self.patience, self.failure = entrant, patience, None
        self.turns: list[tuple[float, float]] = []  # steps/s of ours and of this one, pair by pair
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  close() closes it
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            [interpreter, str(STACKS), entrant.stack, json.dumps(entrant.arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            # On an accelerator two stacks share the memory, so neither may take it all beforehand.
            env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ},
        )
        self.facts = self._answer() or {}
        self.start_s = time.perf_counter() - begin
        print(f"{entrant.who}: {self.failure or f'ready after {self.start_s:.1f} s'}", flush=True)

    def go(self, least_seconds: float) -> float | None:
        """Environment steps/s of one turn; None if it failed."""
        if self.failure:
            return None
        try:
            self._process.stdin.write(f"go {least_seconds}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: the missing answer says how
        answer = self._answer()
        return answer and answer["steps_per_s"]

    def close(self) -> None:
        """Ends it, by force if it does not end by itself."""
        try:
            self._process.communicate(timeout=20 if not self.failure else 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict | None:
        if not select.select([self._process.stdout], [], [], self.patience)[0]:
            self._process.kill()
            self.failure = f"failed: no answer within {self.patience:.0f} s"
            return None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": self._last_words()}
        if "missing" in answer:
            self.failure = f"not installed (no module {answer['missing']})"
        elif "error" in answer:
            self.failure = f"failed: {answer['error']}"
        return None if self.failure else answer

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or ["it said nothing"]
        return f"ended with status {status}; {said[-1]}"


def measure(contest: Contest, arguments: argparse.Namespace) -> list[dict]:
    """A row for ours and one for each other entrant."""
    print(f"\n{contest.question}, {contest.work}", flush=True)
    begin = {"pairs": arguments.pairs, "turn_s": arguments.seconds, "flags": report.flags()}
    begin |= {"cores": CORES, "load": os.getloadavg()[0]}
    processes = []
    try:
        for entrant in (contest.jaxrl, *contest.others):
            processes.append(started(entrant, arguments))
        jaxrl, *others = processes
        if jaxrl.failure:
            sys.exit(f"our own stack {jaxrl.failure}")
        for _ in range(arguments.pairs):
            for other in others:
                if not other.failure:
                    pair = jaxrl.go(arguments.seconds), other.go(arguments.seconds)
                    other.turns += [pair] if None not in pair else []
        alone = [] if others else [jaxrl.go(arguments.seconds)]
        beside = [speed for other in others for speed, _ in other.turns]
        jaxrl.turns = [(speed, speed) for speed in beside + alone if speed]
        begin["machine"] = jaxrl.facts["machine"]
        rows = [_row(contest, process) | begin for process in processes]
    finally:
        for process in processes:
            process.close()
    report.keep(rows, arguments.out)
    return rows


def started(entrant: Entrant, arguments: argparse.Namespace) -> Process:
    """The process of a stack, with the number of threads that it is fastest with."""
    interpreter = arguments.python.get(entrant.peer, sys.executable)
    numbers = sorted({1, CORES}) if entrant.has_threads else []
    entrants = [entrant.on(number) for number in numbers] or [entrant]
    fastest, best = None, -1.0
    for candidate in entrants:
        process = Process(candidate, interpreter, arguments.patience)
        turns = [process.go(arguments.seconds) or 0.0 for _ in range(2)] if numbers else [0.0]
        if numbers and not process.failure:
            print(f"{candidate.who}: {max(turns):,.0f} steps/s when tried", flush=True)
        slower = process
        if fastest is None or max(turns) > best:
            slower, fastest, best = fastest, process, max(turns)
        if slower is not None:
            slower.close()
    return fastest


def _row(contest: Contest, process: Process) -> dict:
    row = {"question": contest.question, "work": contest.work, **process.entrant._asdict()}
    row |= {
        "failure": process.failure,
        "start_s": process.start_s,
        "versions": process.facts.get("versions"),
    }
    row |= {name: process.facts.get(name) for name in ("build_s", "first_unit_s")}
    jaxrl, peer = ([turn[i] for turn in process.turns] for i in (0, 1))
    row |= {"ours_steps_per_s": jaxrl, "steps_per_s": peer, "ratio": None}
    if peer and process.entrant.peer != OURS:
        pairs, of_medians = (
            [a / b for a, b in process.turns],
            statistics.median(jaxrl) / statistics.median(peer),
        )
        row["ratio"] = {"of_medians": of_medians, "least": min(pairs), "most": max(pairs)}
    return row


def table(rows: list[dict]) -> str:
    """One for each question."""
    tables = []
    for question in dict.fromkeys(row["question"] for row in rows):
        answers = [row for row in rows if row["question"] == question]
        least, most = (bound(row["load"] for row in answers) for bound in (min, max))
        tables.append(
            f"{question} (load {least:.1f} to {most:.1f} on {answers[0]['cores']} "
            f"cores)\n\n{_table(answers)}"
        )
    return "\n\n".join(tables)


def _table(rows: list[dict]) -> str:
    titles, lines = (
        ["work", "who", "environment steps/s", "ours, times", "before the first turn, s"],
        [],
    )
    for row in rows:
        cells = [row["work"], row["who"], row["failure"] or "", "", ""]
        if row["steps_per_s"] and not row["failure"]:
            cells[2] = report.spread(row["steps_per_s"])
            cells[3] = (
                "{} [{}, {}]".format(*map(_short, row["ratio"].values())) if row["ratio"] else ""
            )
            cells[4] = f"{row['start_s']:.1f}"
        lines.append(cells)
    return report.markdown(titles, lines)


def draw(rows: list[dict], out: Path) -> None:
    groups = {}
    for row in rows:
        if row["steps_per_s"] and not row["failure"]:
            groups.setdefault(f"{row['question']}: {row['work']}", {})[row["who"]] = row[
                "steps_per_s"
            ]
    report.bars(out, "Beside other libraries", "environment steps/s", groups, log=True)


def _short(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def chosen(arguments: argparse.Namespace) -> list[Contest]:
    """The contests with those peers in them that were asked for."""
    alone = arguments.quick or arguments.smoke
    names = arguments.only if alone else [OURS, *arguments.only]
    contests = [
        contest._replace(others=tuple(other for other in contest.others if other.peer in names))
        for contest in CONTESTS
    ]
    if arguments.smoke:  # one of each question; ours alone, where no peer is left
        by_question = {contest.question: contest for contest in reversed(contests)}
        return [contest._replace(others=contest.others[:1]) for contest in by_question.values()]
    return [contest for contest in contests if any(other.peer != OURS for other in contest.others)]


def main() -> None:
    parser = report.arguments_of(
        "peers", __doc__, {"only": ["gymnasium"], "pairs": 1, "seconds": 0.05}
    )
    parser.add_argument(
        "--quick", action="store_true", help="2 pairs of turns of 0.5 s, ours on one device only"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PEERS,
        default=list(PEERS),
        metavar="NAME",
        help=", ".join(PEERS),
    )
    parser.add_argument("--pairs", type=int, help="turns that ours and a peer take; default 5")
    parser.add_argument("--seconds", type=float, help="least length of a turn; default 2")
    parser.add_argument(
        "--python",
        nargs="+",
        default=[],
        metavar="NAME=PATH",
        help="interpreters of peers elsewhere",
    )
    parser.add_argument(
        "--read", type=Path, help="measure nothing: the tables of the rows in this file"
    )
    arguments = parser.parse_args()
    arguments.pairs = arguments.pairs or (2 if arguments.quick else 5)
    arguments.seconds = arguments.seconds or (0.5 if arguments.quick else 2.0)
    hurries = arguments.quick and not arguments.smoke
    arguments.patience = 90 if hurries else 300  # seconds for one answer
    arguments.python = dict(entry.split("=", 1) for entry in arguments.python)
    if set(arguments.python) - set(PEERS):
        parser.error(
            f"--python knows {', '.join(PEERS)}, not "
            f"{', '.join(set(arguments.python) - set(PEERS))}"
        )
    if arguments.read is not None:
        rows = report.read([arguments.read])
    else:
        rows = [row for contest in chosen(arguments) for row in measure(contest, arguments)]
    print(f"\n{table(rows)}")
    draw(rows, arguments.out)


if __name__ == "__main__":
    main()
