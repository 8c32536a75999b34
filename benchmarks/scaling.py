"""What more policies cost: the time to trace and compile one training program with 2, 8 and 32 policies of one shape.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --env waterworld --policies 2 16 --repeats 5

Every agent has a policy of its own; policies of equal shape are stacked and learn in one vmapped update. The program is
compiled `--repeats` times, the counts in turns, in a process of its own each time; figures are medians [least, most].
"""

import argparse
import json
import statistics
import subprocess
import sys

ONE = """
import json, sys, time
import jax
from jaxrl import PPOConfig
env, count = sys.argv[1], int(sys.argv[2])
config = PPOConfig.tuned(env, {"n_pursuers": count}, policies="per-agent")
algorithm = config.build()
key, hypers = jax.random.key(0), config.hypers()
update = jax.jit(lambda key, hypers: algorithm.update(algorithm.init(key, hypers), hypers))
begin = time.perf_counter()
lowered = update.lower(key, hypers)
traced = time.perf_counter()
lowered.compile()
print(json.dumps({"trace": traced - begin, "compile": time.perf_counter() - traced}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=("pursuit", "waterworld"), default="pursuit")
    parser.add_argument("--policies", nargs="+", type=int, default=[2, 8, 32])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    seconds = {count: [] for count in arguments.policies}
    for _ in range(arguments.repeats):
        for count in arguments.policies:
            command = [sys.executable, "-c", ONE, arguments.env, str(count)]
            line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            seconds[count].append(json.loads(line))
    first = statistics.median(sum(run.values()) for run in seconds[arguments.policies[0]])
    print("| policies | trace, s | compile, s | both, s | times the first |")
    print("|---|---|---|---|---|")
    for count, runs in seconds.items():
        both = [sum(run.values()) for run in runs]
        parts = [statistics.median(run[part] for run in runs) for part in ("trace", "compile")]
        middle = statistics.median(both)
        print(
            f"| {count} | {parts[0]:.1f} | {parts[1]:.1f} | {middle:.1f} [{min(both):.1f}, {max(both):.1f}] | "
            f"{middle / first:.2f} |"
        )


if __name__ == "__main__":
    main()
