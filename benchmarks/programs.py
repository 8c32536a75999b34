"""Programs that the benchmarks time: stepping, stepping with inference, training.

Each function compiles and returns another that does a fixed amount of work and waits for it.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import kernels
from jax.sharding import PartitionSpec

from jaxrl import PPOConfig, make
from jaxrl.core.env import lift, raw_reset, raw_step
from jaxrl.core.fast_prng import to_fast_key, to_standard_key
from jaxrl.core.spaces import Discrete
from jaxrl.core.types import PyTree
from jaxrl.rollout.env_step import auto_reset
from jaxrl.run.devices.compiled import program_of
from jaxrl.run.devices.mesh import AXIS, by_environment, mesh_of, placed
from jaxrl.run.results import RETURN
from jaxrl.sweeps.trial_state import numbers_for
from jaxrl.sweeps.trials import groups_of, trials_of
from jaxrl.sweeps.vmapped import program_of as program_of_members


class Work(NamedTuple):
    """Some work, which each call does and waits for, and the compiled program that it is of."""

    run: Callable[[], object]
    compiled: jax.stages.Compiled

    def __call__(self) -> object:
        return self.run()


def stepping(name: str, env_args: dict, num_envs: int, num_steps: int, devices: int = 1) -> Work:
    """`num_steps` steps of every environment: random actions, resets; observations are added up.

    The environments are split over `devices`. Random numbers are drawn as the training loop draws
    them.
    """
    env, params = make(name, **env_args)
    env = lift(env)
    space, shape = env.action_space(env.agents[0], params), (num_envs // devices, len(env.agents))

    def run(number):
        key = jax.random.fold_in(jax.random.key(number), jax.lax.axis_index(AXIS))
        start_key, reset_key, play_key = jax.random.split(key, 3)
        reset_keys = jax.random.split(reset_key, shape[0])

        def step(carry, counted):
            obs, state = carry
            index, key = counted
            action_key, step_key = jax.random.split(key)
            keys = to_standard_key(jax.random.split(to_fast_key(step_key), shape[0]))
            action = random_actions(space, to_fast_key(action_key), shape)
            raw = jax.vmap(lambda key, state, action: raw_step(env, key, state, action, params))(
                keys, state, action
            )
            obs, state = auto_reset(env, reset_keys, index, raw, params)
            return (obs, state), jnp.sum(obs.astype(jnp.float32)) + jnp.sum(raw.reward)

        start = jax.vmap(lambda key: raw_reset(env, key, params))(
            jax.random.split(start_key, shape[0])
        )
        counted = jnp.arange(num_steps, dtype=jnp.int32), jax.random.split(play_key, num_steps)
        return jnp.sum(jax.lax.scan(step, start, counted)[1])[None]

    everywhere, split = PartitionSpec(), PartitionSpec(AXIS)
    run = jax.shard_map(
        run, mesh=mesh_of(devices), in_specs=everywhere, out_specs=split, check_vma=False
    )
    compiled, number = jax.jit(run).lower(0).compile(), iter(range(2**31))
    return Work(lambda: jax.block_until_ready(compiled(next(number))), compiled)


def random_actions(space, key, shape):
    """Uniform actions [*shape, *space.shape] of one block of random numbers.

    Integers up to n in 65,536.
    """
    if isinstance(space, Discrete):
        width, count = 8 if space.n & space.n - 1 == 0 else 16, math.prod(shape)
        words = jax.random.bits(key, (-(-count * width // 32),))
        parts = jnp.concatenate([words >> shift & 2**width - 1 for shift in range(0, 32, width)])[
            :count
        ]
        return (parts.reshape(shape) * space.n >> width).astype(jnp.int32)
    return jax.random.uniform(key, (*shape, *space.shape), minval=space.low, maxval=space.high)


def collecting(config: PPOConfig, rollouts: int, devices: int = 1) -> Work:
    """So many rollouts of the training loop, its policies acting.

    All that they record is added up.
    """
    plain, key = config.static().build(), jax.random.key(0)
    algorithm = config.static().build(axis_name=AXIS) if devices > 1 else plain

    def collect(runner, _):
        runner, rollout = algorithm.collect(runner)
        return runner, sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree.leaves(rollout))

    def run(runner):
        return jnp.sum(jax.lax.scan(collect, runner, length=rollouts)[1])[None]

    specs = by_environment(plain.rollout_spec) if devices > 1 else PartitionSpec()
    run = jax.shard_map(
        run,
        mesh=mesh_of(devices),
        in_specs=(specs,),
        out_specs=PartitionSpec(AXIS),
        check_vma=False,
    )
    runner = jax.jit(lambda key: plain.init(key, config.hypers()))(key)
    compiled = jax.jit(run).lower(runner).compile()
    (runner,) = placed((runner,), compiled.input_shardings[0])
    return Work(lambda: jax.block_until_ready(compiled(runner)), compiled)


def training(config: PPOConfig, devices: int = 1) -> Work:
    """The Trainer's program for all of the configuration's updates.

    The state is where it was each time.
    """
    setup, hypers, key = config.setup(), config.hypers(), jax.random.key(0)
    executable = program_of(config.static(), setup.env, devices).executable(
        key, hypers, setup.env_params
    )
    executable.compile(start=True)
    runner = executable.start(key, hypers, setup.env_params)
    return Work(
        lambda: executable.chunk(runner, hypers, setup.env_params, None, config.num_updates),
        executable.chunk_program,
    )


def whole(train: Callable, seeds: int = 1, devices: int = 1) -> Work:
    """A training as one compiled function of its key, or of many keys, split over the devices."""
    key = jax.random.key(0)
    if seeds > 1:
        train, key = jax.vmap(train), jax.random.split(key, seeds)
    if devices > 1:
        split = PartitionSpec(AXIS)
        train = jax.shard_map(
            train, mesh=mesh_of(devices), in_specs=split, out_specs=split, check_vma=False
        )
    compiled = jax.jit(train).lower(key).compile()
    return Work(lambda: jax.block_until_ready(compiled(key)), compiled)


def sweeping(config: PPOConfig, members: int, devices: int = 1) -> Callable[[], object]:
    """A sweep's program for so many seeds, split over the devices: all of their updates."""
    group = groups_of(trials_of(config, [{}], members))[0]
    numbers = numbers_for(group.trials, [config.num_updates] * members, [])
    program = program_of_members(group, numbers, RETURN, (), devices)
    return lambda: program.chunk(program.start(numbers), numbers, config.num_updates)


def product(
    rows: int, width: int, flops: float = 2e9, dtype: str = "float32"
) -> tuple[Work, float]:
    """(a product [rows, width] @ [width, width] repeated for about `flops`, its operations)."""
    times = max(1, round(flops / (2 * rows * width**2)))
    weights = jnp.eye(width, dtype=dtype)

    def run(x):
        return jax.lax.fori_loop(0, times, lambda _, x: x @ weights, x)

    x = jnp.ones((rows, width), dtype)
    compiled = jax.jit(run).lower(x).compile()
    work = Work(lambda: jax.block_until_ready(compiled(x)), compiled)
    return work, times * 2 * rows * width**2


def update_of(config: PPOConfig) -> tuple[Callable, PyTree]:
    """(one update of the training loop, shapes of the state that it takes)."""
    algorithm = config.static().build()
    start = lambda key: algorithm.init(key, config.hypers())
    return algorithm.update, jax.eval_shape(start, jax.random.key(0))


def flops_of(config: PPOConfig) -> float:
    """Operations in products for an environment step of training."""
    return kernels.flops(*update_of(config)) / config.train_batch_size


def in_turns(
    works: Mapping[str, Callable[[], object]], steps: dict[str, int] | int, turns: int
) -> dict[str, list[float]]:
    """Steps/s of each work in each turn; the first one warms up and does not count."""
    rates = {name: [] for name in works}
    for turn in range(turns + 1):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            seconds = time.perf_counter() - begin
            if turn:
                rates[name].append((steps if isinstance(steps, int) else steps[name]) / seconds)
    return rates


def ratio(times: list[float], peer_times: list[float]) -> float:
    """The median of the turns' own ratios."""
    return statistics.median(a / b for a, b in zip(times, peer_times, strict=True))
