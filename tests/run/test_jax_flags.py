"""Training under flags of JAX that other people's code sets, each in a process of its own."""

import subprocess
import sys

import pytest

from tests.by_hand import by_hand

PROGRAM = """
import math, sys
import jax
for flag in sys.argv[1:]:
    name, value = flag.split("=")
    jax.config.update(name, {"True": True, "False": False}.get(value, value))
import jaxrl
from tests.run.test_jax_flags import configs
for config in configs():
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        result, policy = trainer.fit(), trainer.get_policy()
        observation = config.setup().env.observation_space(policy.agents[0], None).sample(
            jax.random.key(0)
        )
        policy.act(observation, begins=True)
        policy.act(observation, explore=True)
        episodes = trainer.evaluate(episodes=2)["env_runners"]
    assert episodes["num_episodes"] == 2
    assert math.isfinite(result["learners"][policy.name]["total_loss"])
print("finished")
"""


def configs():
    """Memory, a filter, scaled rewards; actions of a Box, an environment of another library."""
    from jaxrl import PPOConfig
    from tests.probes import Target

    small = {
        "num_envs": 2,
        "rollout_length": 16,
        "minibatch_size": 16,
        "num_epochs": 1,
        "fcnet_hiddens": (4,),
        "total_env_steps": 32,
    }
    memory = {"use_gru": True, "lstm_cell_size": 4, "max_seq_len": 4}
    scaled = {"observation_filter": "MeanStdFilter", "normalize_returns": True}
    yield PPOConfig(env="cartpole", **small, **memory, **scaled)
    yield PPOConfig(env="gymnax:Pendulum-v1", **small, **scaled)
    yield PPOConfig(env=Target(), **small)


def run_with(*flags):
    command = [sys.executable, "-c", PROGRAM, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.process
@pytest.mark.parametrize(
    "flag",
    [
        "jax_enable_x64=True",
        "jax_numpy_dtype_promotion=strict",
        "jax_debug_nans=True",
        *by_hand(
            "jax_numpy_rank_promotion=raise",
            "jax_default_prng_impl=rbg",
            "jax_threefry_partitionable=False",
            "jax_default_matmul_precision=bfloat16",
        ),
    ],
)
def test_training_works_under_a_flag_that_others_set(flag):
    pytest.importorskip("gymnax")
    done = run_with(flag)
    assert done.stdout.strip() == "finished", done.stderr[-2000:]
