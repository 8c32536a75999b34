"""Size of the compiled programs, and the processor seconds that tracing and compiling take.

    python benchmarks/compiling.py [--turns 5]
    git worktree add ../before HEAD~1 && python benchmarks/compiling.py ../before
    python benchmarks/compiling.py --purejaxrl ../purejaxrl/purejaxrl/ppo.py
    python benchmarks/compiling.py --lines

Every figure is of a process of its own, without a compile cache; the programs and the versions take
turns. XLA compiles each fusion to a kernel by itself. PureJaxRL's program is that of its own file
(purejaxrl_program.py), at the settings of "CartPole 2048 x 32".
--lines compiles each once more, for the lines of LLVM's code: they are the same however busy the
machine is.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import purejaxrl_program
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
STANDARD = next(iter(PROGRAMS))
OURS = "from jaxrl import PPOConfig, make_train\ntrain = make_train({})"
PUREJAXRL = "from purejaxrl_program import make_train\ntrain = make_train({path!r}, {settings})"
PUREJAXRL_SETTINGS = purejaxrl_program.cartpole_settings(2048, 32, 10)
PUREJAXRL_SETTINGS |= {"LR": 2.5e-3, "ANNEAL_LR": True}
WORKER = """
import json, re, sys, time
import jax
exec(sys.argv[1])
key = jax.random.key(0)
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
CODE = "*jit_train*.ir-with-opt.ll"  # of the kernels, as XLA dumps it


class Version(NamedTuple):
    """What compiles programs: a folder on Python's path, and the programs by their names."""

    folder: Path
    programs: dict[str, str]

    def compiled(self, program: str, flags: str = "") -> dict:
        """The measurements of a program, of a process of its own.

        flags: XLA's, beside those of the environment.
        """
        command = [sys.executable, "-P", "-c", WORKER, self.programs[program]]
        of_process = {"PYTHONPATH": str(self.folder), "JAX_ENABLE_COMPILATION_CACHE": "0"}
        of_process["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        done = subprocess.run(
            command, env=os.environ | of_process, check=True, stdout=subprocess.PIPE, text=True
        )
        return json.loads(done.stdout.splitlines()[-1])

    def lines(self, program: str) -> int:
        """The lines of LLVM's code of all kernels."""
        with tempfile.TemporaryDirectory() as folder:
            self.compiled(program, f"--xla_dump_to={folder}")
            return sum(file.read_text().count("\n") for file in Path(folder).glob(CODE))


def main() -> None:
    smallest = {"turns": 1, "programs": report.first, "purejaxrl": None}
    parser = report.arguments_of("compiling", __doc__, smallest)
    parser.add_argument("others", nargs="*", type=Path, help="checkouts of other versions")
    purejaxrl_program.add_argument(parser, "compile")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--lines", action="store_true", help="count the lines of LLVM's code too")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    arguments = parser.parse_args()
    codes = {name: OURS.format(settings) for name, settings in PROGRAMS.items()}
    versions = {str(other): Version(other.resolve(), codes) for other in arguments.others}
    versions["this"] = Version(HERE, codes)
    if arguments.purejaxrl is not None:
        code = PUREJAXRL.format(path=str(arguments.purejaxrl), settings=PUREJAXRL_SETTINGS)
        versions["PureJaxRL's"] = Version(HERE / "benchmarks", {STANDARD: code})
    rows = [
        {"program": program, "version": name, **version.compiled(program)}
        for _ in range(arguments.turns)
        for program in arguments.programs
        for name, version in versions.items()
        if program in version.programs
    ]
    report.keep([{**row, **report.circumstances()} for row in rows], arguments.out)
    lines = []
    for program in arguments.programs:
        for version in (name for name, each in versions.items() if program in each.programs):
            which = {"program": program, "version": version}
            repeats = [row for row in rows if which.items() <= row.items()]
            seconds = [
                report.spread([row[name] for row in repeats], ".1f")
                for name in ("traced_s", "compiled_s")
            ]
            counts = [f"{repeats[0][name]:,}" for name in ("fusion", "dot", "conditional")]
            if arguments.lines:
                counts.append(f"{versions[version].lines(program):,}")
            lines.append([program, version, *seconds, *counts])
    titles = [*TITLES, "lines of LLVM"] if arguments.lines else TITLES
    print(report.markdown(titles, lines))


if __name__ == "__main__":
    main()
