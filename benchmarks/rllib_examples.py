"""The settings of fifteen of RLlib's tuned examples of PPO, in our own words: names and numbers.

They are public files of Ray 2.x, `rllib/tuned_examples/ppo`; the form of each is RLlib's: an
experiment of Tune, or what a `PPOConfig` says. Functions make what they make there.
"""

from typing import Any

PAIR = ("p0", "p1")
OF_RAY = "ray.rllib.examples.envs.classes"  # where Ray has its environments now
NEW_STACK = {"enable_rl_module_and_learner": True, "enable_env_runner_and_connector_v2": True}
RETURN, OLD_RETURN = "env_runners/episode_return_mean", "episode_reward_mean"
SAMPLED_RETURN = "sampler_results/episode_reward_mean"  # between the two


def mean_std_filter(env: Any, spaces: Any = None, device: Any = None) -> Any:
    from ray.rllib.connectors.env_to_module import MeanStdFilter

    return MeanStdFilter()


def policy_of(agent: Any, *args: Any, **kwargs: Any) -> str:
    return f"p{agent}"


def experiment(env: Any, config: dict[str, Any], stop: dict | None = None, **tune: Any) -> dict:
    """An experiment as Tune's files have it."""
    return {"run": "PPO", "env": env, "stop": stop or {}, "config": config, **tune}


SMALL_LINEAR = {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True}
CARTPOLE = {
    **{"framework": "torch", "num_workers": 1, "enable_connectors": True},
    **{"gamma": 0.99, "lr": 3e-4, "num_sgd_iter": 6, "vf_loss_coeff": 0.01},
    **{"observation_filter": "MeanStdFilter", "model": SMALL_LINEAR},
}
SIX_TRIALS = {
    "num_sgd_iter": {"grid_search": [1, 4]},
    "sgd_minibatch_size": {"grid_search": [128, 256, 512]},
}
PENDULUM = {
    **{"train_batch_size": 512, "sgd_minibatch_size": 64, "num_sgd_iter": 6},
    **{"lambda": 0.1, "gamma": 0.95, "lr": 3e-4, "vf_clip_param": 10.0},
    "observation_filter": "MeanStdFilter",
}
LARGE_BATCHES = {  # of Hopper and Humanoid
    **{"framework": "torch", "gamma": 0.995, "kl_coeff": 1.0, "num_sgd_iter": 20, "lr": 1e-4},
    **{"sgd_minibatch_size": 32_768, "batch_mode": "complete_episodes"},
    "observation_filter": "MeanStdFilter",
}

EXAMPLES: dict[str, dict[str, Any]] = {
    "cartpole-ppo": experiment(
        "CartPole-v1", CARTPOLE, {OLD_RETURN: 150, "timesteps_total": 100_000}
    ),
    "cartpole-ppo-grid-search-example": experiment(
        "CartPole-v1",
        {"framework": "torch", "num_env_runners": 2, **SIX_TRIALS},
        {RETURN: 200, "time_total_s": 180},
    ),
    "cartpole-ppo-hyperband": experiment(
        "CartPole-v0",
        {
            **{"use_pytorch": False, "num_workers": 1, **SIX_TRIALS},
            "observation_filter": "MeanStdFilter",
        },
        {OLD_RETURN: 200, "time_total_s": 180},
        num_samples=3,
    ),
    "cartpole-ppo-with-rl-module": experiment(
        "CartPole-v1",
        {
            **{**CARTPOLE, "_enable_rl_module_api": True, "_enable_learner_api": True},
            "eager_tracing": False,
        },
        {SAMPLED_RETURN: 150, "timesteps_total": 100_000},
    ),
    "pendulum-ppo": experiment(
        "Pendulum-v1",
        {
            **{"framework": "tf", "num_workers": 0, "num_envs_per_worker": 20, **PENDULUM},
            "model": {"fcnet_hiddens": [256, 256]},
        },
        {OLD_RETURN: -500, "timesteps_total": 400_000},
    ),
    "pendulum_ppo.py": {
        **{"env": "Pendulum-v1", "num_env_runners": 2, "num_envs_per_env_runner": 10},
        **{"lr": 3e-4, "lambda_": 0.1, "vf_clip_param": 10.0, "num_epochs": 6},
        "model_config": {"fcnet_activation": "relu", "uses_new_env_runners": True},
        **NEW_STACK,
        "stop": {RETURN: -300, "num_env_steps_sampled_lifetime": 400_000},
    },
    "pendulum-transformed-actions-ppo": experiment(
        f"{OF_RAY}.transformed_action_space_env.TransformedActionPendulum",
        {
            **{"framework": "torch", "num_envs_per_env_runner": 20, **PENDULUM},
            **{"env_config": {"config": {"low": 300.0, "high": 500.0}}},
            **{"normalize_actions": True, "clip_actions": False},
            "model": {"fcnet_activation": "relu"},
        },
        {SAMPLED_RETURN: -500, "timesteps_total": 400_000},
    ),
    "halfcheetah-ppo": experiment(
        "HalfCheetah-v2",
        {
            **{"framework": "tf", "num_workers": 16, "num_gpus": 1},
            "num_envs_per_worker": {"grid_search": [16, 32]},
            **{"gamma": 0.99, "lambda": 0.95, "kl_coeff": 1.0, "clip_param": 0.2, "lr": 3e-4},
            **{"num_sgd_iter": 32, "sgd_minibatch_size": 4096, "train_batch_size": 65_536},
            **{"vf_loss_coeff": 0.5, "grad_clip": 0.5, "batch_mode": "truncate_episodes"},
            "observation_filter": "MeanStdFilter",
        },
        {OLD_RETURN: 9800, "time_total_s": 10_800},
    ),
    "hopper-ppo": experiment(
        "Hopper-v1",
        {**LARGE_BATCHES, "train_batch_size": 160_000, "num_workers": 64, "num_accs": 4},
    ),
    "humanoid-ppo-gae": experiment(
        "Humanoid-v1",
        {
            **{**LARGE_BATCHES, "train_batch_size": 320_000, "num_env_runners": 64},
            **{"num_gpus": 4, "lambda": 0.95, "clip_param": 0.2, "horizon": 5000},
            "model": {"free_log_std": True},
        },
        {RETURN: 6000},
    ),
    "repeatafterme-ppo-lstm": experiment(
        "ray.rllib.examples.env.repeat_after_me_env.RepeatAfterMeEnv",  # as Ray called it then
        {
            **{"framework": "tf", "num_workers": 0, "num_envs_per_worker": 20},
            "env_config": {"config": {"repeat_delay": 2}},
            **{"gamma": 0.9, "lr": 3e-4, "num_sgd_iter": 5, "entropy_coeff": 1e-5},
            "model": {
                **{"use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 20},
                **{"fcnet_hiddens": [64], "vf_share_layers": True},
            },
        },
        {OLD_RETURN: 50, "timesteps_total": 100_000},
    ),
    "stateless_cartpole_ppo.py": {
        **{"env": "StatelessCartPole", "num_env_runners": 3},
        "env_to_module_connector": mean_std_filter,
        **{"lr": 3e-4, "gamma": 0.99, "num_epochs": 6, "vf_loss_coeff": 0.05},
        "model_config": {
            **{"vf_share_layers": True, "use_lstm": True, "max_seq_len": 50},
            "uses_new_env_runners": True,
        },
        **NEW_STACK,
        "stop": {RETURN: 350, "num_env_steps_sampled_lifetime": 2_000_000},
    },
    "multi_agent_cartpole_ppo.py": {
        **{"env": "multi_agent_cartpole", "env_config": {"num_agents": 2}},
        **{"gamma": 0.99, "lr": 3e-4, "num_epochs": 6, "vf_loss_coeff": 0.01},
        **{"model_config": SMALL_LINEAR, "policies": set(PAIR), "policy_mapping_fn": policy_of},
        **NEW_STACK,
        "stop": {RETURN: 800, "num_env_steps_sampled_lifetime": 300_000},
    },
    "atari-ppo": experiment(
        {
            "grid_search": [
                *("ALE/Breakout-v5", "ALE/BeamRider-v5", "ALE/Qbert-v5", "ALE/SpaceInvaders-v5")
            ]
        },
        {
            **{"framework": "torch", "num_env_runners": 10, "num_envs_per_env_runner": 5},
            "env_config": {
                **{"frameskip": 1, "full_action_space": False, "repeat_action_probability": 0.0}
            },
            **{"lambda": 0.95, "kl_coeff": 0.5, "clip_param": 0.1, "vf_clip_param": 10.0},
            **{"clip_rewards": True, "entropy_coeff": 0.01, "batch_mode": "truncate_episodes"},
            **{"train_batch_size": 5000, "rollout_fragment_length": 100, "num_gpus": 1},
            **{"sgd_minibatch_size": 500, "num_sgd_iter": 10, "observation_filter": "NoFilter"},
            "model": {"vf_share_layers": True},
        },
    ),
    "unity3d-soccer-strikers-vs-goalie-ppo": experiment(
        "ray.rllib.env.wrappers.unity3d_env.Unity3DEnv",
        {
            **{"framework": "tf", "num_workers": 10, "rollout_fragment_length": 200},
            "env_config": {"file_name": "soccer.x86_64", "episode_horizon": 3000},
            **{"lr": 3e-4, "lambda": 0.95, "gamma": 0.99, "clip_param": 0.2},
            **{"sgd_minibatch_size": 256, "train_batch_size": 4000, "num_sgd_iter": 20},
            **{"no_done_at_end": True, "model": {"fcnet_hiddens": [512, 512]}},
            **{"evaluation_interval": 0, "evaluation_duration": 1},
        },
        {"timesteps_total": 1_000_000},
    ),
}
