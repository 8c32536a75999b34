"""The small configurations that tests share, by name, and what is compiled of them once.

A test takes one where the numbers are not its point: the configurations train in a moment, and
whoever trains the same one shares its compiled program. Trainings and saved runs that tests only
look at are fixtures of tests/conftest.py.
"""

import functools
import json

import jax

from jaxrl import PPOConfig
from jaxrl.episodes import EpisodeWriter
from tests.algorithms.reinforce import ReinforceConfig

SMALL = {
    "num_envs": 4,
    "rollout_length": 16,
    "minibatch_size": 32,
    "num_epochs": 2,
    "fcnet_hiddens": (8,),
}
TINY = {  # for what is traced and compiled, but not learned
    "num_envs": 2,
    "rollout_length": 8,
    "minibatch_size": 16,
    "num_epochs": 1,
    "fcnet_hiddens": (8,),
}

SMALL_ARENA = PPOConfig(
    env="arena",
    env_args={"height": 4, "width": 4, "max_steps_in_episode": 20},
    lr=1e-3,
    total_env_steps=64 * 40,
    **SMALL,
)
SMALL_CARTPOLE = PPOConfig(env="cartpole", lr=3e-3, total_env_steps=64 * 6, **SMALL)
SMALL_CURIOUS = SMALL_CARTPOLE.replace(
    model="tests.probes:Curious",
    normalize_intrinsic_rewards=True,
    intrinsic_reward_coeff=[[0, 0.5], [64 * 3, 0.1]],
    observation_filter="MeanStdFilter",
)
# Compiles in half the time of PPO: for what holds of every algorithm.
SMALL_REINFORCE = ReinforceConfig(
    env="cartpole", num_envs=4, rollout_length=16, fcnet_hiddens=(8,), total_env_steps=64 * 6
)


@functools.cache
def first_rollout(config, key=0):
    """(algorithm, the runner afterwards, the rollout) of an untrained policy."""
    algorithm = config.build()
    play = jax.jit(lambda key: algorithm.collect(algorithm.init(key)))
    return algorithm, *play(jax.random.key(key))


def updated(config, number=2):
    """(the runner, the metrics of the last) after a number of iterations."""
    algorithm = config.build()
    runner, update = algorithm.init(jax.random.key(0)), jax.jit(algorithm.update)
    for _ in range(number):
        runner, metrics = update(runner)
    return runner, metrics


def lines_of(run):
    """The results that the folder of a run logged."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def write_episodes(folder, episodes):
    with EpisodeWriter(folder) as writer:
        for episode in episodes:
            writer.write(episode)
    return str(folder)
