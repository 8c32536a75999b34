"""How fast the environments step: random actions, resets and observations included, beside each one's reference.

    python benchmarks/throughput.py                                   # all four, several numbers of environments
    python benchmarks/throughput.py --envs waterworld --num-envs 512 --devices 2
    python benchmarks/throughput.py --scaling                         # what more pursuers and sensors cost

One call steps every environment `--num-steps` times in one compiled program; every observation is added up, so that
none is left out. On the CPU the environments are split over `--devices` virtual devices, by default one for each core.
Ours and the reference take turns, `--pairs` times; the figures are medians [least, most], compilation apart.
PettingZoo's environments come with `pip install -e ".[sisl]"`; CartPole's reference is Gymnasium's own vectorised one.
"""

import argparse
import importlib.util
import json
import math
import os
import statistics
import time
from pathlib import Path

CORES = len(os.sched_getaffinity(0))
NUM_ENVS = {
    "cartpole": (1024, 16384),
    "arena": (1024, 16384),
    "waterworld": (128, 512, 2048),
    "pursuit": (128, 512, 2048),
}
REFERENCE = {
    "cartpole": ("Gymnasium CartPole-v1, vectorised", "gymnasium"),
    "waterworld": ("PettingZoo waterworld_v4", "pymunk"),
    "pursuit": ("PettingZoo pursuit_v4", "pettingzoo"),
}
SCALING = {
    "waterworld": [
        *({"n_pursuers": n} for n in (1, 2, 4, 8, 16)),
        *({"n_sensors": n} for n in (10, 20, 60)),
        *({"n_poisons": n} for n in (20, 40)),
    ],
    "pursuit": [
        *({"n_pursuers": n} for n in (2, 4, 8, 16)),
        *({"n_evaders": n} for n in (10, 20)),
        *({"obs_range": n} for n in (5, 11)),
    ],
}


def stepper(name: str, env_args: dict, num_envs: int, num_steps: int, devices: int):
    """A compiled function from a number to a sum over all observations and rewards of num_envs * num_steps steps."""
    import jax
    import jax.numpy as jnp

    from jaxrl import make
    from jaxrl.core.env import lift, raw_reset, raw_step
    from jaxrl.core.quick import ordinary, quick
    from jaxrl.loop.stage import restart_ended

    env, params = make(name, **env_args)
    env = lift(env)
    space, shape = env.action_space(env.agents[0], params), (num_envs // devices, len(env.agents))

    def run(number):
        key = jax.random.fold_in(jax.random.key(number), jax.lax.axis_index("devices"))
        start_key, reset_key, play_key = jax.random.split(key, 3)
        reset_keys = jax.random.split(reset_key, shape[0])

        def step(carry, counted):
            obs, state = carry
            index, key = counted
            action_key, step_key = jax.random.split(key)
            keys = ordinary(jax.random.split(quick(step_key), shape[0]))
            action = random_actions(space, quick(action_key), shape)
            raw = jax.vmap(lambda key, state, action: raw_step(env, key, state, action, params))(keys, state, action)
            obs, state = restart_ended(env, reset_keys, index, raw, params)
            return (obs, state), jnp.sum(obs.astype(jnp.float32)) + jnp.sum(raw.reward)

        start = jax.vmap(lambda key: raw_reset(env, key, params))(jax.random.split(start_key, shape[0]))
        counted = jnp.arange(num_steps, dtype=jnp.int32), jax.random.split(play_key, num_steps)
        return jnp.sum(jax.lax.scan(step, start, counted)[1])[None]

    mesh, split = jax.make_mesh((devices,), ("devices",)), jax.sharding.PartitionSpec("devices")
    everywhere = jax.sharding.PartitionSpec()
    run = jax.shard_map(run, mesh=mesh, in_specs=everywhere, out_specs=split, check_vma=False)
    return jax.jit(run).lower(0).compile()


def random_actions(space, key, shape):
    """Uniform actions [*shape, *space.shape] of one block of random numbers; integers up to n in 65,536."""
    import jax
    import jax.numpy as jnp

    from jaxrl.core.spaces import Discrete

    if isinstance(space, Discrete):
        width, count = 8 if space.n & space.n - 1 == 0 else 16, math.prod(shape)
        words = jax.random.bits(key, (-(-count * width // 32),))
        parts = jnp.concatenate([words >> shift & 2**width - 1 for shift in range(0, 32, width)])[:count]
        return (parts.reshape(shape) * space.n >> width).astype(jnp.int32)
    return jax.random.uniform(key, (*shape, *space.shape), minval=space.low, maxval=space.high)


def reference(name: str, env_args: dict):
    """(its own number of environments, a function that steps it that often and resets it where it ended)."""
    if name == "cartpole":
        import gymnasium

        size = 1024
        envs = gymnasium.make_vec("CartPole-v1", size, vectorization_mode="vector_entry_point")
        envs.reset(seed=0)

        def step(count):
            for _ in range(count):
                envs.step(envs.action_space.sample())

        return size, step
    from pettingzoo import sisl

    env = {"waterworld": sisl.waterworld_v4, "pursuit": sisl.pursuit_v4}[name].parallel_env(**env_args)
    env.reset(seed=0)
    spaces = {agent: env.action_space(agent) for agent in env.possible_agents}

    def step(count):
        for _ in range(count):
            if not env.agents:
                env.reset()
            env.step({agent: spaces[agent].sample() for agent in env.agents})

    return 1, step


def timed(work, argument: int) -> float:
    import jax

    begin = time.perf_counter()
    jax.block_until_ready(work(argument))
    return time.perf_counter() - begin


def measure(name: str, env_args: dict, sizes, arguments) -> list[dict]:
    """A row for each number of environments, and one of the reference, measured in turns."""
    import jax

    from jaxrl.run.folder import metadata

    programs = {}
    for size in sizes:
        begin = time.perf_counter()
        programs[size] = stepper(name, env_args, size, arguments.num_steps, arguments.devices)
        print(f"{name} {env_args or ''} x {size}: compiled in {time.perf_counter() - begin:.1f} s", flush=True)
        jax.block_until_ready(programs[size](1))
    label, package = REFERENCE.get(name, (None, None))
    peer = None
    if label and not arguments.no_reference:
        if importlib.util.find_spec(package) is None:
            print(f"{label} is not installed here, so it is missing from the table")
        else:
            peer = reference(name, env_args)
            peer[1](20)
    times = {size: [] for size in (*sizes, *(["reference"] if peer else []))}
    for turn in range(arguments.pairs):
        for size, program in programs.items():
            times[size].append(timed(program, turn + 2))
        if peer:
            times["reference"].append(timed(peer[1], arguments.reference_steps))
    rows = []
    for size, seconds in times.items():
        ours = size != "reference"
        steps = size * arguments.num_steps if ours else peer[0] * arguments.reference_steps
        rows.append(
            {
                "env": name,
                "env_args": env_args,
                "who": "jaxrl" if ours else label,
                "num_envs": size if ours else peer[0],
                "devices": arguments.devices if ours else 1,
                "steps_per_s": [steps / second for second in seconds],
                "machine": metadata(),
                "cores": CORES,
                "load": os.getloadavg()[0],
            }
        )
    return rows


def table(rows: list[dict]) -> str:
    """Medians, and their ratio to the reference of the same environment and arguments."""
    lines = [
        "| environment | who | environments | devices | environment steps/s | times the reference |",
        "|" + "---|" * 6,
    ]
    for row in rows:
        alike = [other for other in rows if (other["env"], other["env_args"]) == (row["env"], row["env_args"])]
        peers = [other for other in alike if other["who"] != "jaxrl"]
        speed = statistics.median(row["steps_per_s"])
        spread = f"{speed:,.0f} [{min(row['steps_per_s']):,.0f}, {max(row['steps_per_s']):,.0f}]"
        ratio = f"{speed / statistics.median(peers[0]['steps_per_s']):,.0f}" if peers and row["who"] == "jaxrl" else ""
        what = " ".join([row["env"], *(f"{key}={value}" for key, value in row["env_args"].items())])
        lines.append(f"| {what} | {row['who']} | {row['num_envs']:,} | {row['devices']} | {spread} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", choices=NUM_ENVS, default=list(NUM_ENVS))
    parser.add_argument("--num-envs", nargs="+", type=int, help="environments side by side; default by environment")
    parser.add_argument("--num-steps", type=int, default=200, help="steps of each environment in one call")
    parser.add_argument("--devices", type=int, default=CORES, help="virtual CPU devices; 1 on a GPU")
    parser.add_argument("--pairs", type=int, default=5, help="turns that ours and the reference take")
    parser.add_argument("--reference-steps", type=int, default=300, help="calls of the reference in one turn")
    parser.add_argument("--no-reference", action="store_true")
    parser.add_argument("--scaling", action="store_true", help="more pursuers, sensors and bodies, without reference")
    parser.add_argument("--out", type=Path, help="append the rows to this file of JSON lines")
    arguments = parser.parse_args()

    import jax

    jax.config.update("jax_num_cpu_devices", arguments.devices)
    arguments.no_reference |= arguments.scaling
    if any(size % arguments.devices for size in arguments.num_envs or ()):
        parser.error(f"--num-envs {arguments.num_envs} must be multiples of --devices {arguments.devices}")
    rows = []
    for name in arguments.envs:
        plans = [{}, *SCALING.get(name, [])] if arguments.scaling else [{}]
        sizes = arguments.num_envs or (NUM_ENVS[name][1:2] if arguments.scaling else NUM_ENVS[name])
        for env_args in plans:
            rows += measure(name, env_args, sizes, arguments)
    if arguments.out is not None:
        with arguments.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    print(table(rows))


if __name__ == "__main__":
    main()
