"""A program that trains an environment for one iteration as users compile it, and prints the cost.

    python tests/compile_and_train.py NAME '{"argument": value, ...}' [tuned | rollout]

No test can do this in the suite's process, whose compiler flags are not the ones that users have.
The policy is tiny, so that compiling is mostly the environment's; with `tuned` it is the
environment's own, and with `rollout` nothing is learned. Limits, which a healthy environment stays
far from: CPU_SECONDS of processor time, and MEMORY of address space.
"""

import json
import resource
import sys

CPU_SECONDS = 240
MEMORY = 10 * 2**30
TINY = {
    "num_envs": 2,
    "rollout_length": 4,
    "minibatch_size": 8,
    "num_epochs": 1,
    "fcnet_hiddens": (8,),
}


def main(name: str, args: str, *rest: str) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    import jax

    from jaxrl import PPOConfig, Trainer

    config = PPOConfig.tuned(name, env_args=json.loads(args)) if "tuned" in rest else None
    config = config or PPOConfig(env=name, env_args=json.loads(args), **TINY)
    config = config.replace(total_env_steps=config.train_batch_size)
    if "rollout" in rest:
        algorithm = config.build()
        play = jax.jit(lambda key: algorithm.collect(algorithm.init(key)))
        jax.block_until_ready(play(jax.random.key(0)))
    else:
        result = Trainer(config, run_dir=None, quiet=True).fit()
        assert result["training_iteration"] == 1
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {"cpu_seconds": used.ru_utime + used.ru_stime, "peak_mebibytes": used.ru_maxrss / 2**10}
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
