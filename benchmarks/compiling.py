"""Size of the compiled programs, and the processor seconds that tracing and compiling take.

    python benchmarks/compiling.py [--turns 5]
    git worktree add ../before HEAD~1 && python benchmarks/compiling.py ../before

Every figure is of a process of its own, without a compile cache; the programs and the versions take
turns. XLA compiles each fusion to a kernel by itself, so their number is what compiling costs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import report

HERE = Path(__file__).resolve().parents[1]
PROGRAMS = {
    "CartPole 2048 x 32": """PPOConfig(
        env="cartpole", num_envs=2048, rollout_length=32, minibatch_size=16384, num_epochs=4,
        fcnet_hiddens=[64, 64], total_env_steps=10 * 65536,
    )""",
    "tuned CartPole": 'PPOConfig.tuned("cartpole")',
    "tuned arena": 'PPOConfig.tuned("arena")',
}
WORKER = """
import json, re, sys, time
import jax
from jaxrl import PPOConfig, make_train
train, key = make_train(eval(sys.argv[1])), jax.random.key(0)
begun = time.process_time()
lowered = jax.jit(train).lower(key)
traced = time.process_time()
text = lowered.compile().as_text()
ended = time.process_time()
number = lambda kind: len(re.findall(rf" {kind}\\(", text))
counts = {kind: number(kind) for kind in ("fusion", "dot", "conditional", "while", "xor")}
print(json.dumps({"traced_s": traced - begun, "compiled_s": ended - traced, **counts}))
"""
TITLES = ["program", "version", "traced, s", "compiled, s", "fusions", "products", "conditionals"]


def compiled(checkout: Path, program: str) -> dict:
    """The measurements of a program in a version, of a process of its own."""
    command = [sys.executable, "-P", "-c", WORKER, PROGRAMS[program]]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "JAX_ENABLE_COMPILATION_CACHE": "0"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = report.arguments_of("compiling", __doc__, {"turns": 1, "programs": report.first})
    parser.add_argument("others", nargs="*", type=Path, help="checkouts of other versions")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    arguments = parser.parse_args()
    checkouts = {str(other): other.resolve() for other in arguments.others} | {"this": HERE}
    rows = [
        {"program": program, "version": version, **compiled(checkout, program)}
        for _ in range(arguments.turns)
        for program in arguments.programs
        for version, checkout in checkouts.items()
    ]
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    lines = []
    for program in arguments.programs:
        for version in checkouts:
            which = {"program": program, "version": version}
            repeats = [row for row in rows if which.items() <= row.items()]
            seconds = [
                report.spread([row[name] for row in repeats], ".1f")
                for name in ("traced_s", "compiled_s")
            ]
            counts = [f"{repeats[0][name]:,}" for name in ("fusion", "dot", "conditional")]
            lines.append([program, version, *seconds, *counts])
    print(report.markdown(TITLES, lines))


if __name__ == "__main__":
    main()
