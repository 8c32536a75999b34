"""Scaling: environments, agents and bodies, policies, seeds, members of a sweep, devices.

    python benchmarks/scaling.py                        # all six
    python benchmarks/scaling.py --over seeds devices --turns 7

environments  training CartPole and the arena: 32-step rollouts, 4 epochs of 4 minibatches, 64 x 64
agents        stepping 512 waterworlds and pursuits with more agents, bodies and sensors
policies      training pursuit with a policy for every agent; and the time to trace and compile that
              program, each time in a new process
seeds         CartPole 4 x 128 vmapped over seeds, on one device and the seeds split over all
members       the same CartPole in the program of `jaxrl.sweep`: more members on one device, as many
              split over all (strong scaling), and as many more as there are devices (weak scaling)
devices       the same CartPole on one device and on all, by the rows of a minibatch (strong
              scaling), and as many environments more as there are devices (weak scaling)

The sizes of a question take turns within one process; figures are medians [least, most] of
environment steps/s, compilation apart.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import report
from report import CORES

from jaxrl.algorithms.sharding import devices_worth_using

AGENTS = {
    "waterworld": [
        *({"n_pursuers": n} for n in (1, 2, 4, 8, 16)),
        *({"n_sensors": n} for n in (10, 20, 30, 60)),
        *({"n_poisons": n} for n in (10, 20, 40)),
    ],
    "pursuit": [
        *({"n_pursuers": n} for n in (2, 4, 8, 16)),
        *({"n_evaders": n} for n in (10, 20, 30)),
        *({"obs_range": n} for n in (5, 7, 11)),
    ],
}
COMPILE = """
import json, sys, time
import jax
from jaxrl import PPOConfig
layers = {"policies": "per-agent", "fcnet_hiddens": (64, 64)}
config = PPOConfig.tuned("pursuit", {"n_pursuers": int(sys.argv[1])}, **layers)
algorithm = config.build()
key, hypers = jax.random.key(0), config.hypers()
update = jax.jit(lambda key, hypers: algorithm.update(algorithm.init(key, hypers), hypers))
begin = time.perf_counter()
lowered = update.lower(key, hypers)
traced = time.perf_counter()
lowered.compile()
print(json.dumps({"trace": traced - begin, "compile": time.perf_counter() - traced}))
"""
Row = dict  # {over, what, number, steps_per_s} and more


def environments(turns: int, *, smoke: bool) -> Iterator[Row]:
    import programs
    import throughput

    for name in ("cartpole", "arena"):
        configs = {
            size: throughput.configuration(name, size, [64, 64])
            for size in ((4,) if smoke else (64, 256, 1024, 4096, 16384))
        }
        devices = {size: devices_worth_using(config, CORES) for size, config in configs.items()}
        works = {size: programs.training(config, devices[size]) for size, config in configs.items()}
        steps = {size: config.train_batch_size for size, config in configs.items()}
        yield from _rows(
            "environments", name, programs.in_turns(works, steps, turns), devices=devices
        )


def agents(turns: int, *, smoke: bool) -> Iterator[Row]:
    import programs

    num_envs, num_steps = (CORES, 2) if smoke else (512, 200)
    for name, plans in AGENTS.items():
        plans = plans[:2] if smoke else plans
        for setting in dict.fromkeys(setting for plan in plans for setting in plan):
            sizes = [plan[setting] for plan in plans if setting in plan]
            works = {
                n: programs.stepping(name, {setting: n}, num_envs, num_steps, CORES) for n in sizes
            }
            rates = programs.in_turns(works, num_envs * num_steps, turns)
            yield from _rows("agents", f"{name}, {setting}", rates)


def policies(turns: int, *, smoke: bool) -> Iterator[Row]:
    import programs

    from jaxrl import PPOConfig

    counts, works, steps = (2,) if smoke else (2, 8, 32), {}, {}
    sizes = {"num_envs": 64, "rollout_length": 64, "minibatch_size": 1024, "num_epochs": 2}
    if smoke:
        sizes |= {"num_envs": 2, "minibatch_size": 128}
    for count in counts:
        layers = {"policies": "per-agent", "fcnet_hiddens": (64, 64)}
        config = PPOConfig.tuned("pursuit", {"n_pursuers": count}, **layers)
        config = config.replace(**sizes, total_env_steps=sizes["num_envs"] * 64)
        works[count], steps[count] = programs.training(config), config.train_batch_size
    seconds = {count: [] for count in counts}
    for _ in range(min(turns, 3)):
        for count in counts:
            command = [sys.executable, "-c", COMPILE, str(count)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            seconds[count].append(json.loads(said.splitlines()[-1]))
    both = {
        count: [run["trace"] + run["compile"] for run in runs] for count, runs in seconds.items()
    }
    lines = [[str(count), report.spread(both[count], ".1f")] for count in counts]
    print(report.markdown(["policies", "trace and compile, s"], lines), end="\n\n")
    yield from _rows(
        "policies",
        "pursuit, one for each agent",
        programs.in_turns(works, steps, turns),
        compiling=both,
    )


def seeds(turns: int, *, smoke: bool) -> Iterator[Row]:
    import programs

    from jaxrl import make_train

    config, counts = _trainings(smoke)
    train = make_train(config)
    for devices in dict.fromkeys((1, CORES)):
        works = {
            count: programs.whole(train, count, devices) for count in counts if count % devices == 0
        }
        steps = {count: count * config.total_env_steps for count in works}
        rates = programs.in_turns(works, steps, turns)
        yield from _rows("seeds", f"CartPole 4 x 128, {_devices(devices)}", rates)


def _trainings(smoke: bool) -> tuple[Any, tuple[int, ...]]:
    """The training of `seeds` and `members`, and how many there are of it."""
    import engine

    if smoke:
        return engine.configuration(4, 8, 2), (1, 2)
    return engine.configuration(4, 128, 60), (1, 2, 4, 8, 16, 32)


def members(turns: int, *, smoke: bool) -> Iterator[Row]:
    import programs

    config, counts = _trainings(smoke)
    plans = [(1, count) for count in counts] + [
        (CORES, CORES * count) for count in counts if CORES > 1
    ]
    works = {plan: programs.sweeping(config, plan[1], plan[0]) for plan in plans}
    steps = {plan: plan[1] * config.total_env_steps for plan in plans}
    rates = programs.in_turns(works, steps, turns)
    alone = {count: rates[1, count] for count in counts}
    yield from _rows("members", f"members, {_devices(1)}", alone)
    if CORES > 1:
        split = {count: rates[CORES, count] for count in counts if (CORES, count) in rates}
        yield from _rows(
            "members", f"strong scaling by members, {_devices(CORES)}", split, base=alone
        )
        weak = {count: rates[CORES, CORES * count] for count in counts}
        yield from _rows(
            "members",
            f"weak scaling by members of each device, {_devices(CORES)}",
            weak,
            base=alone,
        )


def devices(turns: int, *, smoke: bool) -> Iterator[Row]:
    import engine
    import programs

    for kind in ("strong", "weak"):
        works, steps = {}, {}
        for number in dict.fromkeys((1, CORES)):
            for rows in (64,) if smoke else (1024, 2048, 4096, 16384):
                size = rows * (number if kind == "weak" else 1)
                updates = 2 if smoke else max(4, 65_536 // rows)
                config = engine.configuration(size // 8, 32, updates)
                works[number, rows], steps[number, rows] = (
                    programs.training(config, number),
                    config.total_env_steps,
                )
        rates = programs.in_turns(works, steps, turns)
        for number in dict.fromkeys((1, CORES)):
            of_number = {rows: values for (count, rows), values in rates.items() if count == number}
            each = " of each device" if kind == "weak" else ""
            what = f"{kind} scaling by rows of a minibatch{each}"
            base = {rows: rates[1, rows] for rows in of_number}
            yield from _rows("devices", f"{what}, {_devices(number)}", of_number, base=base)


QUESTIONS = {
    question.__name__: question
    for question in (environments, agents, policies, seeds, members, devices)
}


def _devices(number: int) -> str:
    return "1 device" if number == 1 else f"{number} devices"


def _rows(
    over: str, what: str, rates: dict[int, list[float]], base: dict | None = None, **facts
) -> Iterator[Row]:
    """`base`: {number: rates} that the ratios are to; else the first number's.

    `facts` are by number.
    """
    from programs import ratio

    first = next(iter(rates.values()))
    for number, values in rates.items():
        times = ratio(values, base[number] if base else first)
        by_name = {name: by_number[number] for name, by_number in facts.items()}
        yield {
            "over": over,
            "what": what,
            "number": number,
            "steps_per_s": values,
            "times": times,
            **by_name,
        }


def table(rows: list[Row]) -> str:
    lines = [
        [
            row["over"],
            row["what"],
            f"{row['number']:,}",
            report.spread(row["steps_per_s"]),
            f"{row['times']:.2f}",
        ]
        for row in rows
    ]
    return report.markdown(
        ["over", "what", "number", "environment steps/s", "times the first, or one device"], lines
    )


def main() -> None:
    parser = report.arguments_of("scaling", __doc__, {"over": list(QUESTIONS), "turns": 1})
    parser.add_argument("--over", nargs="+", choices=QUESTIONS, default=list(QUESTIONS))
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    report.use_devices()
    rows = []
    for over in arguments.over:
        found = QUESTIONS[over](arguments.turns, smoke=arguments.smoke)
        answers = [{**row, **report.circumstances()} for row in found]
        print(table(answers), flush=True)
        report.keep(answers, arguments.out)
        curves = {}
        for row in answers:
            curves.setdefault(row["what"], {})[row["number"]] = row["steps_per_s"]
        unit = (over, "environment steps/s")
        report.lines(arguments.out, f"More {over}", unit, curves, name=over, log=True)
        rows += answers


if __name__ == "__main__":
    main()
