"""Speed of the environments: random steps, with policies acting, and training; and references.

    python benchmarks/throughput.py                     # all four, several numbers of environments
    python benchmarks/throughput.py --envs waterworld --num-envs 512
    python benchmarks/throughput.py --only stepping --devices 1
    python benchmarks/throughput.py --num-envs 4096 131072 --fcnet-hiddens 256 256     # on a GPU

Stepping: random actions, resets and observations included. Stepping + inference: the rollouts of
the training loop, a policy for every agent or as the environment groups them, with all that is
recorded of them. Training: the whole loop, 32 steps a rollout, 4 epochs of 4 minibatches. The
environments are split over `--devices` of the CPU, by default one for each core; training takes as
many as its own rule gives it. Everything takes turns, `--pairs` times; the figures are medians
[least, most] of environment steps/s, compilation apart; agent steps/s are so many times more as
there are agents. PettingZoo's environments come with `pip install -e ".[sisl]"`; CartPole's
reference is Gymnasium's own vectorised one.
"""

import itertools
import statistics
import time

import report

from jaxrl.algorithms.sharding import devices_worth_using

NUM_ENVS = {
    "cartpole": (1024, 16384),
    "arena": (1024, 16384),
    "waterworld": (128, 512, 2048),
    "pursuit": (128, 512, 2048),
}
REFERENCE = {
    "cartpole": "Gymnasium CartPole-v1, vectorised",
    "waterworld": "PettingZoo waterworld_v4",
    "pursuit": "PettingZoo pursuit_v4",
}
SMALLEST = {
    **{"envs": ["cartpole"], "num_envs": [2 * report.CORES], "fcnet_hiddens": [8]},
    "only": ["stepping", "stepping + inference", "training"],
    **{"num_steps": 4, "pairs": 1, "no_reference": True, "devices": report.CORES},
}
COLUMNS = ("stepping", "stepping + inference", "training")
ROLLOUT_LENGTH, NUM_EPOCHS, NUM_MINIBATCHES = 32, 4, 4


def reference(name: str, num_envs: int = 1024):
    """(its number of environments, a function that steps it so often and resets ended episodes)."""
    if name == "cartpole":
        import gymnasium

        envs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
        envs.reset(seed=0)

        def step(count):
            for _ in range(count):
                envs.step(envs.action_space.sample())

        return num_envs, step
    from pettingzoo import sisl

    env = getattr(sisl, f"{name}_v4").parallel_env()
    env.reset(seed=0)
    spaces = {agent: env.action_space(agent) for agent in env.possible_agents}

    def step(count):
        for _ in range(count):
            if not env.agents:
                env.reset()
            env.step({agent: spaces[agent].sample() for agent in env.agents})

    return 1, step


def configuration(name: str, num_envs: int, hiddens: list[int], **network):
    """The environment's tuned settings, but for the sizes and with dense layers.

    `network` are more settings of these layers.
    """
    from jaxrl import PPOConfig

    # A setting of the built-in networks takes the place of a tuned model.
    tuned = PPOConfig.tuned(name, fcnet_hiddens=tuple(hiddens), **network)
    batch = num_envs * ROLLOUT_LENGTH
    rows = min(len(agents) for agents in tuned.setup().policies.values()) * batch
    return tuned.replace(
        num_envs=num_envs,
        rollout_length=ROLLOUT_LENGTH,
        num_epochs=NUM_EPOCHS,
        minibatch_size=rows // NUM_MINIBATCHES,
        total_env_steps=batch,
    )


def compiled(name: str, num_envs: int, column: str, arguments, **network):
    """(the work, environment steps in it, the devices that it is split over).

    `network` are settings for `configuration`.
    """
    import programs

    config = configuration(name, num_envs, arguments.fcnet_hiddens, **network)
    devices = arguments.devices
    if column == "stepping":
        work = programs.stepping(name, {}, num_envs, arguments.num_steps, devices)
        return work, num_envs * arguments.num_steps, devices
    if column == "stepping + inference":
        return programs.collecting(config, 1, devices), config.train_batch_size, devices
    devices = min(devices, devices_worth_using(config, report.CORES))
    return programs.training(config, devices), config.train_batch_size, devices


def measure(name: str, sizes, arguments) -> list[dict]:
    """A row for each number of environments and column, and one of the reference, in turns."""
    from programs import in_turns

    works, steps, about = {}, {}, {}
    for size, column in itertools.product(sizes, arguments.only):
        begin, key = time.perf_counter(), f"{name} x {size:,}, {column}"
        works[key], steps[key], devices = compiled(name, size, column, arguments)
        about[key] = {"who": "jaxrl", "num_envs": size, "devices": devices, "column": column}
        print(f"{key}: compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    label = REFERENCE.get(name)
    if label and not arguments.no_reference and "stepping" in arguments.only:
        try:
            size, step = reference(name)
        except (ImportError, AttributeError) as error:  # or another version of the library
            print(f"{label} is not installed here ({error}), so it is missing from the table")
        else:
            works[label], steps[label] = (
                lambda: step(arguments.reference_steps),
                size * arguments.reference_steps,
            )
            about[label] = {"who": label, "num_envs": size, "devices": 1, "column": "stepping"}
    rates = in_turns(works, steps, arguments.pairs)
    facts = {"env": name, "fcnet_hiddens": arguments.fcnet_hiddens, **report.circumstances()}
    return [{**about[key], "steps_per_s": values, **facts} for key, values in rates.items()]


def table(rows: list[dict]) -> str:
    """A line for each number of environments; the ratio is of stepping, to the reference."""
    cells, titles = (
        [],
        [
            "environment",
            "who",
            "environments",
            *COLUMNS,
            "devices",
            "stepping, times the reference",
        ],
    )
    for name, who, size in dict.fromkeys((row["env"], row["who"], row["num_envs"]) for row in rows):
        by_column = {
            row["column"]: row
            for row in rows
            if (row["env"], row["who"], row["num_envs"]) == (name, who, size)
        }
        peers = [row for row in rows if row["env"] == name and row["who"] != "jaxrl"]
        ratio = ""
        if peers and who == "jaxrl" and "stepping" in by_column:
            medians = [
                statistics.median(row["steps_per_s"]) for row in (by_column["stepping"], peers[0])
            ]
            ratio = f"{medians[0] / medians[1]:,.3g}"
        speeds = [
            report.spread(by_column[column]["steps_per_s"]) if column in by_column else ""
            for column in COLUMNS
        ]
        devices = ", ".join(
            str(by_column[column]["devices"]) for column in COLUMNS if column in by_column
        )
        cells.append([name, who, f"{size:,}", *speeds, devices, ratio])
    return report.markdown(titles, cells)


def draw(rows: list[dict], out) -> None:
    groups = {}
    for row in rows:
        group = groups.setdefault(f"{row['env']}, {row['num_envs']:,} environments", {})
        group[row["column"] if row["who"] == "jaxrl" else row["who"]] = row["steps_per_s"]
    report.bars(out, "Throughput", "environment steps/s", groups, log=True)


def main() -> None:
    parser = report.arguments_of("throughput", __doc__, SMALLEST)
    parser.add_argument("--envs", nargs="+", choices=NUM_ENVS, default=list(NUM_ENVS))
    parser.add_argument("--only", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument(
        "--num-envs", nargs="+", type=int, help="environments side by side; default by environment"
    )
    parser.add_argument(
        "--num-steps",
        type=int,
        default=200,
        help="steps of each environment in one call of stepping",
    )
    parser.add_argument("--fcnet-hiddens", nargs="+", type=int, default=[64, 64])
    parser.add_argument(
        "--devices", type=int, default=report.CORES, help="virtual CPU devices; 1 on a GPU"
    )
    parser.add_argument("--pairs", type=int, default=5, help="turns that everything takes")
    parser.add_argument(
        "--reference-steps", type=int, default=300, help="calls of the reference in one turn"
    )
    parser.add_argument("--no-reference", action="store_true")
    arguments = parser.parse_args()
    if any(size % arguments.devices for size in arguments.num_envs or ()):
        parser.error(
            f"--num-envs {arguments.num_envs} must be multiples of --devices {arguments.devices}"
        )
    report.use_devices(arguments.devices)
    rows = []
    for name in arguments.envs:
        new = measure(name, arguments.num_envs or NUM_ENVS[name], arguments)
        report.keep(new, arguments.out)
        rows += new
    print(table(rows))
    draw(rows, arguments.out)


if __name__ == "__main__":
    main()
