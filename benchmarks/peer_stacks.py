"""Stacks that peers.py times, one a process: "ready", then to each "go" how fast it went.

    python benchmarks/peer_stacks.py gymnasium_step '{"num_envs": 16, "mode": "sync"}'

Each function below builds a stack and returns a function that does one unit of its work and returns
the environment steps in it. Whatever a stack imports, it imports there: a peer's process holds
nothing of `jaxrl` or of other peers. Steppers draw uniform actions, a block of NUM_STEPS at a time,
within what is timed; resets are part of it as well. Where a library spends a call of its own on
resetting (Gymnasium, EnvPool), that call counts as a step, in its favour.
"""

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_STEPS = 200  # steps of each environment in one unit of stepping
UNIT_STEPS = 40_000  # environment steps in one unit of compiled training, in whole iterations
VERSIONS_OF = (
    *(
        "jaxrl",
        "jax",
        "jaxlib",
        "numpy",
        "torch",
        "gymnasium",
        "gymnax",
        "envpool",
        "pufferlib",
        "pettingzoo",
    ),
    *("stable_baselines3", "sbx-rl", "rejax", "ray"),
)

Unit = Callable[[], int]


# Stepping


def jaxrl_step(env: str, num_envs: int, devices: int = 1) -> Unit:
    """Ours, split over so many virtual CPU devices.

    Every observation is added up, so that none is left out.
    """
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import programs

    work = programs.stepping(env, {}, num_envs, NUM_STEPS, devices)

    def unit():
        work()
        return num_envs * NUM_STEPS

    return unit


def gymnasium_step(num_envs: int, mode: str) -> Unit:
    """Gymnasium's vectors of CartPole-v1.

    "sync" is a loop over single ones, "vector_entry_point" one in NumPy.
    """
    import gymnasium

    envs = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode=mode)
    envs.reset(seed=0)
    return _random_steps(envs.step, num_envs)


def envpool_step(num_envs: int, threads: int) -> Unit:
    """EnvPool's CartPole-v1, in C++, on so many threads."""
    import envpool
    import numpy as np

    envs = envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, seed=0, num_threads=threads)
    envs.reset()
    return _random_steps(envs.step, num_envs, np.int32)


def pufferlib_step(num_envs: int) -> Unit:
    """PufferLib's CartPole, in C, on one thread."""
    from pufferlib.ocean.cartpole.cartpole import Cartpole

    envs = Cartpole(num_envs=num_envs)
    envs.reset(seed=0)
    return _random_steps(envs.step, num_envs)


def _random_steps(step: Callable, num_envs: int, dtype: type = int) -> Unit:
    import numpy as np

    generator = np.random.default_rng(0)

    def unit():
        for actions in generator.integers(0, 2, (NUM_STEPS, num_envs), dtype):
            step(actions)
        return NUM_STEPS * num_envs

    return unit


def gymnax_step(num_envs: int) -> Unit:
    """gymnax's CartPole-v1 under scan and vmap, its own automatic reset.

    Observations added up as ours are.
    """
    import gymnax
    import jax
    import jax.numpy as jnp

    env, params = gymnax.make("CartPole-v1")
    reset, step = jax.vmap(env.reset, (0, None)), jax.vmap(env.step, (0, 0, 0, None))

    @jax.jit
    def run(state, key):
        def advance(state, key):
            action_key, step_key = jax.random.split(key)
            actions = jax.random.randint(action_key, (num_envs,), 0, 2)
            obs, state, reward, *_ = step(
                jax.random.split(step_key, num_envs), state, actions, params
            )
            return state, jnp.sum(obs) + jnp.sum(reward)

        state, sums = jax.lax.scan(advance, state, jax.random.split(key, NUM_STEPS))
        return state, jnp.sum(sums)

    _, state = reset(jax.random.split(jax.random.key(0), num_envs), params)
    calls = iter(range(1, 2**31))

    def unit():
        nonlocal state
        state, _ = jax.block_until_ready(run(state, jax.random.key(next(calls))))
        return num_envs * NUM_STEPS

    return unit


def pettingzoo_step(env: str) -> Unit:
    """One environment of PettingZoo's SISL, by its parallel interface."""
    import throughput

    num_envs, step = throughput.reference(env)
    count = {"waterworld": 100, "pursuit": 20}[env]

    def unit():
        step(count)
        return num_envs * count

    return unit


# PPO


def jaxrl_train(settings: str) -> Unit:
    """Ours at a peer's sizes.

    The Trainer's program for UNIT_STEPS, metrics brought back, nothing written.
    """
    import jax
    import programs

    from jaxrl import PPOConfig

    config = PPOConfig(**{"env": "cartpole", "total_env_steps": UNIT_STEPS, **SETTINGS[settings]})
    work = programs.training(config)

    def unit():
        jax.device_get(work()[1])
        return config.num_updates * config.train_batch_size

    return unit


# Ours in the words of each peer's settings. Their mean squared errors have a factor 1/2 where ours
# has none.
SB3_SIZES = {"num_envs": 1, "rollout_length": 2048, "minibatch_size": 64, "num_epochs": 10}
RLLIB_ARENA = {"env": "arena", "num_envs": 40, "rollout_length": 100, "total_env_steps": 4000}
RLLIB_ARENA |= {"per_policy": {"pol1": {"lr": 3e-4}, "pol2": {"lr": 4e-4}}}
REJAX_SIZES = {"num_envs": 5, "rollout_length": 100, "minibatch_size": 100, "num_epochs": 5}
PPO2 = {
    "gamma": 0.99,
    "lambda_": 0.95,
    "clip_param": 0.2,
    "fcnet_hiddens": (64, 64),
    "use_kl_loss": False,
    "grad_clip": 0.5,
    "normalize_advantages": "minibatch",
}
SB3_LOSS = {"vf_loss_coeff": 0.5, "value_clip": None, "adam_epsilon": 1e-5}
ZOO_SIZES = {"num_envs": 8, "rollout_length": 32, "minibatch_size": 256, "num_epochs": 20}
ZOO_STEPS = 100_000  # over which RL Baselines3 Zoo's learning rate and clipping fall to 0
SETTINGS = {
    "sb3": {**PPO2, **SB3_SIZES, **SB3_LOSS, "lr": 3e-4},
    "sb3-zoo": {**PPO2, **ZOO_SIZES, **SB3_LOSS, "lr": 1e-3, "gamma": 0.98, "lambda_": 0.8},
    "rejax": {
        **{**PPO2, **REJAX_SIZES, "lr": 7.5e-4, "vf_loss_coeff": 0.25, "value_clip": "prediction"},
        **{"vf_clip_param": 0.2, "entropy_coeff": 0.01},
    },
    **{f"arena-{epochs}-epochs": {**RLLIB_ARENA, "num_epochs": epochs} for epochs in (5, 30)},
    "rllib": {
        "num_envs": 8,
        "rollout_length": 500,
        "minibatch_size": 128,
        "num_epochs": 5,
        "lr": 3e-4,
    },
}


def sb3_train(threads: int, zoo: bool = False) -> Unit:
    """Stable-Baselines3's PPO on CartPole, as `sb3_cartpole` makes it, at a constant rate."""
    return _learns(sb3_cartpole(threads, zoo, falls=False))


def sb3_cartpole(
    threads: int, zoo: bool, seed: int = 0, *, falls: bool = True, **others: Any
) -> Any:
    """Its PPO with its defaults, or RL Baselines3 Zoo's settings; PyTorch on so many threads.

    On the CPU, as its documentation advises for small networks. `falls`: the zoo's learning rate
    and clipping fall to 0 within a call of `learn`.
    """
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(threads)
    settings = {}
    if zoo:
        settings = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98}
        settings |= {"gae_lambda": 0.8, "learning_rate": 1e-3, "clip_range": 0.2}
        if falls:
            settings["learning_rate"] = lambda left: 1e-3 * left
            settings["clip_range"] = lambda left: 0.2 * left
    envs = make_vec_env("CartPole-v1", n_envs=8 if zoo else 1, seed=seed)
    return PPO("MlpPolicy", envs, seed=seed, device="cpu", **settings, **others)


def sbx_train() -> Unit:
    """SBX's PPO with its defaults."""
    from sbx import PPO

    return _learns(PPO("MlpPolicy", "CartPole-v1", seed=0))


def _learns(model) -> Unit:
    def unit():
        model.learn(model.n_steps * model.n_envs, reset_num_timesteps=False)
        return model.n_steps * model.n_envs

    return unit


def rejax_train() -> Unit:
    """rejax's PPO as its configuration for gymnax's CartPole has it, without the evaluations."""
    import jax
    import rejax

    num_envs, num_steps = REJAX_SIZES["num_envs"], REJAX_SIZES["rollout_length"]
    algorithm = rejax.get_algo("ppo").create(
        **{"env": "CartPole-v1", "agent_kwargs": {"activation": "tanh"}},
        **{"num_envs": num_envs, "num_steps": num_steps, "num_epochs": 5, "num_minibatches": 5},
        **{"learning_rate": 7.5e-4, "max_grad_norm": 0.5, "gamma": 0.99, "gae_lambda": 0.95},
        **{"clip_eps": 0.2, "ent_coef": 0.01, "vf_coef": 0.5},
        **{"total_timesteps": UNIT_STEPS, "eval_freq": UNIT_STEPS, "skip_initial_evaluation": True},
    )
    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: ())
    train, calls = jax.jit(algorithm.train), iter(range(2**31))

    def unit():
        jax.block_until_ready(train(jax.random.key(next(calls))))
        return UNIT_STEPS  # 80 whole iterations

    return unit


def rllib_train(task: str, threads: int) -> Unit:
    """RLlib's PPO as rllib_peer.py has it, PyTorch on so many threads.

    8 CartPoles or 20 arenas in the process that learns, 4,000 steps a batch.
    """
    import ray
    import rllib_peer
    import torch

    sys.path.insert(
        0, str(Path(__file__).parents[1])
    )  # `tests`, with the plain arena, is beside this folder
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    algorithm, sampled = rllib_peer.make_config(rllib_peer.TASKS[task], seed=0).build_algo(), 0
    torch.set_num_threads(threads)  # building may have set it

    def unit():
        nonlocal sampled
        before, metrics = sampled, algorithm.train()["env_runners"]
        sampled = int(metrics["num_env_steps_sampled_lifetime"])
        return sampled - before

    return unit


STACKS = {
    stack.__name__: stack
    for stack in (
        *(jaxrl_step, gymnasium_step, envpool_step, pufferlib_step, gymnax_step, pettingzoo_step),
        *(jaxrl_train, sb3_train, sbx_train, rejax_train, rllib_train),
    )
}


# The process


def facts() -> dict:
    """Versions of what is installed beside this stack; for jaxrl also what its runs record."""
    versions = {}
    for name in VERSIONS_OF:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    machine = None
    if "jaxrl.run" in sys.modules:
        from jaxrl.run.storage.run_folder import metadata

        machine = metadata()
    return {"versions": versions, "machine": machine}


def timed(unit: Unit, least_seconds: float) -> dict:
    """Whole units for at least so long."""
    steps, begin = 0, time.perf_counter()
    while (seconds := time.perf_counter() - begin) < least_seconds:
        steps += unit()
    return {"steps_per_s": steps / seconds}


def serve(stack: str, arguments: dict, reply: Callable[[dict], None]) -> None:
    """Builds, warms up by one unit, and goes whenever told.

    A line of standard input holds the least seconds.
    """
    try:
        begin = time.perf_counter()
        unit = STACKS[stack](**arguments)
        built = time.perf_counter()
        unit()
        seconds = {"build_s": built - begin, "first_unit_s": time.perf_counter() - built}
        reply({"ready": True, **seconds, **facts()})
        for line in sys.stdin:
            reply(timed(unit, float(line.removeprefix("go"))))
    except ModuleNotFoundError as error:
        reply({"missing": error.name})
    except (
        Exception
    ) as error:  # a peer may raise anything: it is one line in the table, and the others go on
        reply({"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"})


def main() -> None:
    # Replies have the standard output to themselves: what a library prints goes where its errors
    # go.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    serve(
        sys.argv[1], json.loads(sys.argv[2]), lambda answer: print(json.dumps(answer), file=replies)
    )


if __name__ == "__main__":
    main()
