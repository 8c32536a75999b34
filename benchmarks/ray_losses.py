"""A thousand Ray actors of which some are lost: throughput, lost work, time to recover.

    python benchmarks/ray_losses.py
    python benchmarks/ray_losses.py --actors 100 --minutes 5
    python benchmarks/ray_losses.py --most-left-out 0  # each rollout waits for the new actors

The actors are simulated (`simulated_ray`), and so is the time that passes: each holds two copies of
CartPole, whose steps are said to take 20 ms, as a simulator's, and plays rollouts of 128 steps. Now
and then one is lost, or a machine with 16 of them; another is there at once, and a new actor needs
ten seconds to start and two to compile. What jaxrl does is real: it waits, replaces actors and
joins what they played. Ray's own calls are not.

    speed            steps/s of collecting, as a share of what the steps' own time would allow
    left out         share of the steps that rollouts lack, since an actor was lost
    without a loss   seconds of a rollout in which nothing is lost: the median, and the longest
    with a loss      the same where something is lost
    this process     its seconds for a rollout, without the simulation; real ones
"""

import logging
import pickle
import statistics
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import report
from simulated_ray import Machines, SimulatedRay

import jaxrl
from jaxrl.algorithms.on_policy import rollout_keys
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.outside import ray_rollouts
from jaxrl.outside.fragments import Fragment
from jaxrl.outside.host_rollout import HostRollouts
from jaxrl.outside.rollout_actor import Collected
from jaxrl.outside.workers.vector import FaultCount

COPIES, STEPS, STEP_S = 2, 128, 0.02  # of an actor; steps of a rollout; what a step takes
SPREAD = 0.1  # of an actor's time for a rollout
MACHINE = 16  # actors
START_S, COMPILING_S = 10.0, 2.0  # of a new actor
PROCESS_NOTICED_S, MACHINE_NOTICED_S = 1.0, 15.0  # until Ray says that they are lost
# What is lost, how many actors at once, how often a minute.
CASES = (
    ("nothing", 1, 0.0),
    ("an actor a minute", 1, 1.0),
    ("ten actors a minute", 1, 10.0),
    ("a machine a minute", MACHINE, 1.0),
)
SMALLEST: dict[str, Any] = {"actors": 4, "minutes": 0.5}


class Played(NamedTuple):
    """What the actors of a training need, and what each gives for a rollout."""

    algorithm: Any
    weights: tuple[PolicyWeights, ...]
    collected: Collected


def played(num_actors: int) -> Played:
    """A rollout of one actor, that was really played."""
    num_envs = COPIES * num_actors
    sizes = {"num_envs": num_envs, "rollout_length": STEPS, "minibatch_size": num_envs * STEPS}
    algorithm = jaxrl.PPOConfig(env="gym:CartPole-v1", **sizes).build()
    spec = algorithm.rollout_spec
    runner = jax.jit(algorithm.init)(jax.random.key(0))
    weights = tuple(learner.weights for learner in runner.learners)
    copies = spec.env.vector(COPIES, num_workers=0)
    rollouts = HostRollouts(spec, copies, STEPS, algorithm.env_params)
    rollouts.reset(weights, np.arange(COPIES, dtype=np.uint32))
    keys = rollout_keys(jax.random.key(0), 1, jnp.arange(COPIES))
    fragment = Fragment(*jax.device_get(rollouts.collect(weights, keys)))
    rollouts.close()
    return Played(algorithm, weights, Collected(fragment, num_faults=0, num_restarts=0, said=[]))


def measured(found: Played, machines: Machines, minutes: float) -> dict[str, Any]:
    """Rollouts for so many simulated minutes, after the first one."""
    num_actors, spec = machines.cores, found.algorithm.rollout_spec
    ray = SimulatedRay(machines, lambda: found.collected, seed=0)
    sys.modules["ray"], ray_rollouts.time = ray, ray.clock
    ray_rollouts._actor_class.cache_clear()  # it is of the last one
    sizes, faults = (COPIES * num_actors, num_actors), FaultCount(spec.env.name, num_actors)
    rollouts = ray_rollouts.RayRollouts(spec, b"", sizes, faults)
    rollouts.reset((), np.arange(sizes[0], dtype=np.uint32))
    clean, hit, real_seconds, num_env_steps = [], [], [], 0
    end = None  # of the time that counts
    while end is None or ray.clock.now < end:
        keys = rollout_keys(jax.random.key(0), 1, jnp.arange(sizes[0]))
        began, losses, now = ray.clock.now, ray.num_losses, time.perf_counter()
        in_ray = ray.seconds
        _, rollout, _ = rollouts.collect(found.weights, keys)
        if end is None:  # the first has to start the actors
            end, ray.num_losses = ray.clock.now + 60 * minutes, 0
            continue
        num_env_steps += int(rollout.num_env_steps)
        real_seconds.append(time.perf_counter() - now - (ray.seconds - in_ray))
        (clean if losses == ray.num_losses else hit).append(ray.clock.now - began)
    seconds = clean + hit
    asked = COPIES * num_actors * STEPS * len(seconds)
    return {
        "share": num_env_steps * STEP_S / num_actors / sum(seconds),
        "left_out": 1 - num_env_steps / asked,
        "losses": ray.num_losses,
        "clean": clean,
        "hit": hit,
        "real_seconds": real_seconds,
        "num_faulty_episodes": rollouts.num_faults,
        "num_worker_restarts": rollouts.num_restarts,
    }


def main() -> None:
    parser = report.arguments_of("ray_losses", __doc__, SMALLEST)
    parser.add_argument("--actors", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=20.0, help="of simulated time")
    parser.add_argument(
        "--most-left-out",
        type=float,
        default=ray_rollouts.MOST_LEFT_OUT,
        help="share of the copies that a rollout may lack",
    )
    args = parser.parse_args()
    ray_rollouts.MOST_LEFT_OUT = args.most_left_out
    logging.getLogger("jaxrl").setLevel(logging.ERROR)  # each loss is a line otherwise
    found, lines = played(args.actors), []
    brought, weights = (len(pickle.dumps(part)) for part in (found.collected, found.weights))
    for name, at_once, a_minute in CASES[: 2 if args.smoke else None]:
        noticed = MACHINE_NOTICED_S if at_once > 1 else PROCESS_NOTICED_S
        machines = Machines(
            cores=args.actors,
            start=START_S,
            compiling=COMPILING_S,
            rollout=COPIES * STEPS * STEP_S,
            spread=SPREAD,
            actors_lost=at_once,
            lost_per_minute=a_minute,
            until_noticed=noticed,
        )
        row = measured(found, machines, args.minutes)
        case = {"actors": args.actors, "lost": name, "minutes": args.minutes}
        case |= {"most_left_out": args.most_left_out, "brought": brought, "weights": weights}
        report.keep([case | row | report.circumstances()], args.out)
        longest = [
            f"{statistics.median(part):.1f}, {max(part):.1f}" if part else "none"
            for part in (row["clean"], row["hit"])
        ]
        shares = f"{row['share']:.2f}", f"{100 * row['left_out']:.2f} %"
        lines.append([name, *shares, *longest, report.spread(row["real_seconds"], ".2f")])
        print(*lines[-1], f"{row['losses']} lost", flush=True)
    titles = ["what is lost", "speed", "left out", "without a loss, s", "with a loss, s"]
    print(f"\n{args.actors:,} actors, {args.minutes:g} minutes")
    print(f"an actor brings {brought:,} bytes for a rollout, and gets {weights:,} of weights\n")
    print(report.markdown([*titles, "this process, s"], lines))


if __name__ == "__main__":
    main()
