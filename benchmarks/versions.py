"""This version beside others, training in turns: what a change costs those who do not use it.

    git worktree add ../before HEAD~1
    python benchmarks/versions.py ../before

CartPole 4 x 128, 64 x 128 and 2048 x 32, and the arena, with networks of 64 x 64; the arena as it
is tuned, with networks of its own. Each version has a process of its own, which compiles
`make_train` of its package and trains whenever it is told to; one trains at a time. The random
numbers may differ, the amount of work does not.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import report

HERE = Path(__file__).resolve().parents[1]
NETWORK = {"fcnet_hiddens": [64, 64], "num_epochs": 4}
CARTPOLE, ARENA = {"env": "cartpole", **NETWORK}, {"env": "arena", **NETWORK}
WORKS = {
    "CartPole 4 x 128": {
        **CARTPOLE,
        "num_envs": 4,
        "rollout_length": 128,
        "minibatch_size": 128,
        "updates": 200,
    },
    "CartPole 64 x 128": {
        **CARTPOLE,
        "num_envs": 64,
        "rollout_length": 128,
        "minibatch_size": 2048,
        "updates": 20,
    },
    "CartPole 2048 x 32": {
        **CARTPOLE,
        "num_envs": 2048,
        "rollout_length": 32,
        "minibatch_size": 16384,
        "updates": 4,
    },
    "arena 40 x 100": {
        **ARENA,
        "num_envs": 40,
        "rollout_length": 100,
        "minibatch_size": 1000,
        "updates": 12,
    },
    "arena 256 x 25, tuned": {
        "env": "arena",
        "tuned": True,
        "num_envs": 256,
        "rollout_length": 25,
        "updates": 8,
    },
}
SMALLEST = {
    "CartPole 4 x 8": CARTPOLE
    | {"num_envs": 4, "rollout_length": 8, "minibatch_size": 8, "updates": 2}
}
WORKER = """
import json, sys
import jax, jaxrl
from jaxrl import PPOConfig, make_train
works = {}
for name, settings in json.loads(sys.argv[1]).items():
    steps = settings.pop("updates") * settings["num_envs"] * settings["rollout_length"]
    config = (PPOConfig.tuned if settings.pop("tuned", False) else PPOConfig)(**settings)
    train, key = make_train(config.replace(total_env_steps=steps)), jax.random.key(0)
    works[name] = jax.jit(train).lower(key).compile()
print(jaxrl.__file__, flush=True)
for name in sys.stdin:
    jax.block_until_ready(works[name.strip()](key))
    print("trained", flush=True)
"""


class Version:
    """A process that trains with the package of one checkout."""

    def __init__(self, checkout: Path, works: dict[str, dict]):
        command = [
            sys.executable,
            "-P",
            "-c",
            WORKER,
            json.dumps(works),
        ]  # -P: not the package of the folder we are in
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.checkout = checkout
        self.process = subprocess.Popen(command, **pipes, text=True, env=environment)
        self.expect(str(checkout / "jaxrl" / "__init__.py"))

    def train(self, work: str) -> None:
        self.process.stdin.write(work + "\n")
        self.process.stdin.flush()
        self.expect("trained")

    def expect(self, line: str) -> None:
        said = self.process.stdout.readline().rstrip("\n")
        if said != line:
            sys.exit(
                f"versions: {self.checkout} said {said!r} instead of {line!r}; its errors are above"
            )

    def close(self) -> None:
        """Ends the process, which waits for what to train next."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def commit(self) -> str:
        command = ["git", "-C", str(self.checkout), "rev-parse", "HEAD"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = report.arguments_of("versions", __doc__, {"turns": 1})
    parser.add_argument("others", nargs="+", type=Path, help="checkouts of other versions")
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    for other in arguments.others:
        if not (other / "jaxrl" / "__init__.py").is_file():
            parser.error(f"{other} is no checkout of jaxrl: it has no jaxrl/__init__.py")

    from programs import in_turns, ratio

    works_of_all = SMALLEST if arguments.smoke else WORKS
    checkouts = {str(other): other.resolve() for other in arguments.others} | {"this": HERE}
    versions = {name: Version(path, works_of_all) for name, path in checkouts.items()}
    rows, lines = [], []
    for work, settings in works_of_all.items():
        steps = settings["updates"] * settings["num_envs"] * settings["rollout_length"]
        works = {
            name: lambda version=version, work=work: version.train(work)
            for name, version in versions.items()
        }
        for name, rates in (measured := in_turns(works, steps, arguments.turns)).items():
            commit = versions[name].commit()
            rows.append(
                {"work": work, "version": commit, "steps_per_s": rates, **report.circumstances()}
            )
            lines.append(
                [work, name, report.spread(rates), f"{ratio(measured['this'], rates):.2f}"]
            )
    for version in versions.values():
        version.close()
    report.keep(rows, arguments.out)
    print(report.markdown(["work", "version", "environment steps/s", "this one, times it"], lines))


if __name__ == "__main__":
    main()
