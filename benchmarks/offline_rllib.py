"""RLlib's behaviour cloning and MARWIL on recorded episodes of CartPole, for benchmarks/offline.py.

    pip install "ray[rllib,data]" torch
    python benchmarks/offline_rllib.py DIR [DIR ...]

As many drawn steps, minibatches, the network and the learning rate as BC and MARWIL have here; the
rest is RLlib's default. Returns are of 100 other episodes of Gymnasium's CartPole-v1. It needs no
jaxrl: the files are read by RLlib itself.
"""

import argparse
import json
import time

import gymnasium
import numpy as np

ITERATIONS, MINIBATCHES, MINIBATCH = 245, 16, 256
EPISODES = 100
# The others would become model outputs, and the text among them no tensor.
COLUMNS = ["eps_id", "t", "obs", "actions", "rewards", "new_obs", "terminateds", "truncateds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+")
    args = parser.parse_args()

    import ray
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.algorithms.marwil import MARWILConfig

    # More than there are: RLlib reserves some for reading that never compute at once.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="error")
    for folder in args.folders:
        for name, kind in (("BC", BCConfig), ("MARWIL", MARWILConfig)):
            began = time.perf_counter()
            module = learn(kind(), folder)
            row = {"folder": folder, "algorithm": name, "seconds": time.perf_counter() - began}
            row |= {
                "sampled": played(module, explore=True),
                "greedy": played(module, explore=False),
            }
            print(json.dumps(row), flush=True)


def learn(config, folder: str):
    """The policy's module after all iterations."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    env = gymnasium.make("CartPole-v1")
    config = (
        config.environment(observation_space=env.observation_space, action_space=env.action_space)
        .offline_data(
            input_=[folder],
            input_read_method_kwargs={"columns": COLUMNS},
            dataset_num_iters_per_learner=MINIBATCHES,
        )
        .training(lr=1e-3, train_batch_size_per_learner=MINIBATCH)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .learners(num_learners=0)
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    for _ in range(ITERATIONS):
        algorithm.train()
    module = algorithm.learner_group._learner.module["default_policy"]
    algorithm.stop()
    return module


def played(module, *, explore: bool) -> float:
    """The mean return."""
    import torch

    env, returns = gymnasium.make("CartPole-v1"), []
    for seed in range(EPISODES):
        obs, _ = env.reset(seed=10_000 + seed)
        total, done = 0.0, False
        while not done:
            with torch.no_grad():
                batch = {"obs": torch.as_tensor(obs)[None]}
                logits = module.forward_inference(batch)["action_dist_inputs"]
            drawn = torch.distributions.Categorical(logits=logits).sample()
            action = int(drawn if explore else logits.argmax())
            obs, reward, terminated, truncated, _ = env.step(action)
            total, done = total + reward, terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


if __name__ == "__main__":
    main()
