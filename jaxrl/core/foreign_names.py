"""Tables of other libraries' names for settings and results, with their counterparts here.

Sources: RLlib 2.60 (`AlgorithmConfig`, `PPOConfig`, `MODEL_DEFAULTS`) and its older names, Tune's
checkpoint and stop settings, Stable-Baselines3's `PPO` and `ActorCriticPolicy`, CleanRL's `ppo.py`
and `ppo_continuous_action.py`. Names that mean the same here are not listed. `docs/from-rllib.md`
and `docs/from-sb3.md` show these tables.
"""

import re
from typing import NamedTuple


class Counterpart(NamedTuple):
    """The name here for another library's name, and a note."""

    here: str = ""  # the name here; "" if there is none
    note: str = ""  # the difference, or what to do instead


def same(*names: str, here: str, note: str = "") -> dict[str, Counterpart]:
    """`names` are called `here` in this library."""
    return dict.fromkeys(names, Counterpart(here, note))


def none(*names: str, note: str) -> dict[str, Counterpart]:
    """`names` have no counterpart; `note` says what to do instead, or why nothing is needed."""
    return dict.fromkeys(names, Counterpart(note=note))


SCHEDULE = "a schedule is a value of it: [[0, 3e-4], [1000000, 0]]"
TOGETHER = "all environments together, side by side in one program"
FLAT = "network settings are flat: fcnet_hiddens=[64, 64], use_lstm=True, ..."
ONE_PROGRAM = "nothing to set: acting and learning are one compiled program"
FILES = "no counterpart: output writes played episodes, and BCConfig(input=...) learns from them"

RLLIB = {
    # environments
    **same("env_config", here="env_args"),
    **same("horizon", "max_episode_steps", here="env_args", note='{"max_steps_in_episode": 50}'),
    **none(
        "observation_space", "action_space", note="nothing to set: the environment says its spaces"
    ),
    **none("disable_env_checking", note="nothing to set; jaxrl.check_env(env) checks all it can"),
    **none(
        *("soft_horizon", "no_done_at_end", "is_atari", "preprocessor_pref", "framestack", "dim"),
        *("grayscale", "zero_mean", "custom_preprocessor", "observation_fn", "action_mask_key"),
        note="no counterpart: the environment itself gives observations as the policy reads them",
    ),
    **none(
        "render_env",
        "record_env",
        note="no counterpart: a run draws episode.gif, and scripts/render.py any episode",
    ),
    **none(
        "clip_rewards",
        note="no counterpart: Callbacks.on_postprocess_trajectory may change rewards",
    ),
    # sampling
    **same(
        *("num_workers", "num_rollout_workers", "num_env_runners", "num_envs_per_worker"),
        *("num_envs_per_env_runner",),
        here="num_envs",
        note=TOGETHER,
    ),
    **same("rollout_fragment_length", "sample_batch_size", here="rollout_length"),
    **none("batch_mode", note="no counterpart: rollouts have a fixed length and cut episodes"),
    **none("count_steps_by", note="no counterpart: batches count environment steps"),
    **none(
        *("remote_worker_envs", "remote_env_batch_wait_ms", "sample_async", "sample_timeout_s"),
        *("sample_collector", "enable_connectors", "create_env_on_driver", "worker_cls"),
        *("create_env_on_local_worker", "create_local_env_runner", "env_runner_cls"),
        *("compress_observations", "gym_env_vectorize_mode", "synchronize_filters"),
        *("update_worker_filter_stats", "use_worker_filter_stats", "rollout_workers"),
        *("max_requests_in_flight_per_env_runner", "broadcast_env_runner_states"),
        *("merge_env_runner_states", "episodes_to_numpy", "episode_lookback_horizon"),
        note=ONE_PROGRAM,
    ),
    **same("explore", here="evaluation_explore", note="training always samples its actions"),
    **none(
        "exploration_config", note="no counterpart: PPO explores by sampling; see entropy_coeff"
    ),
    **none(
        *("env_to_module_connector", "module_to_env_connector", "learner_connector"),
        *("add_default_connectors_to_env_to_module_pipeline",),
        *("add_default_connectors_to_module_to_env_pipeline",),
        *("add_default_connectors_to_learner_pipeline",),
        note="no counterpart: see observation_filter, normalize_actions and callbacks",
    ),
    # training
    **same("train_batch_size_per_learner", here="train_batch_size"),
    **same(
        *("sgd_minibatch_size", "mini_batch_size", "mini_batch_size_per_learner"),
        *("minibatch_size_per_learner",),
        here="minibatch_size",
    ),
    **same("num_sgd_iter", here="num_epochs"),
    **same("lambda", here="lambda_"),
    **same("lr_schedule", "learning_rate_schedule", here="lr", note=SCHEDULE),
    **same("entropy_coeff_schedule", here="entropy_coeff", note=SCHEDULE),
    **none(
        "use_gae",
        note="nothing to set: advantages are always generalised advantage estimation; lambda_=1 "
        "sums rewards to the end",
    ),
    **none("use_critic", note="no counterpart: there is always a value function"),
    **none("grad_clip_by", note="nothing to set: grad_clip is a bound of the global norm"),
    **none(
        "shuffle_sequences",
        "shuffle_batch_per_epoch",
        note="nothing to set: rows are always shuffled",
    ),
    **none(
        *("simple_optimizer", "learner_class", "learner_config_dict", "policy", "_learner_class"),
        note="no counterpart: see optimizer, and a model's own loss(params, batch)",
    ),
    # networks
    **none("model_config", "model_config_dict", note=FLAT),
    **same("custom_model", "rl_module_spec", "rl_module_class", here="model"),
    **same("custom_model_config", here="model", note="give it made: model=Net(layers=2)"),
    **same("custom_action_dist", here="model", note="your own model returns its distribution"),
    **same(
        *("fcnet_weights_initializer", "fcnet_initializer"),
        here="fcnet_kernel_initializer",
        note="orthogonal or uniform",
    ),
    **same("post_fcnet_hiddens", here="fcnet_hiddens", note="layers above the convolutions too"),
    **same("post_fcnet_activation", here="fcnet_activation"),
    **same("head_fcnet_hiddens", here="fcnet_hiddens", note="with vf_share_layers=False"),
    **same("head_fcnet_activation", here="fcnet_activation"),
    **none(
        *("fcnet_weights_initializer_config", "fcnet_kernel_initializer_kwargs"),
        *("fcnet_bias_initializer", "fcnet_bias_initializer_config"),
        *("fcnet_bias_initializer_kwargs", "conv_kernel_initializer", "conv_bias_initializer"),
        *(
            "post_fcnet_weights_initializer",
            "post_fcnet_bias_initializer",
            "head_fcnet_kernel_initializer",
        ),
        *("head_fcnet_bias_initializer", "lstm_weights_initializer", "lstm_kernel_initializer"),
        *("lstm_bias_initializer", "encoder_latent_dim", "no_final_linear", "log_std_clip_param"),
        *("attention_use_n_prev_actions", "attention_use_n_prev_rewards", "_time_major"),
        *("attention_memory_training",),
        note="no counterpart: write a model of your own (model=...)",
    ),
    # policies
    **same("policy_mapping_fn", here="policies", note="policies=lambda agent: 'pol1'"),
    **same(
        *("algorithm_config_overrides_per_module", "algorithm_config_overrides_per_policy"),
        here="per_policy",
        note='per_policy={"pol1": {"lr": 1e-3}}',
    ),
    **none(
        "multiagent",
        "multi_agent",
        note="policies={policy: [agents]}, policies_to_train, per_policy",
    ),
    **none(
        *("policy_map_capacity", "policy_map_cache", "policy_states_are_swappable"),
        note="nothing to set: all policies stay in memory",
    ),
    # evaluation
    **same("evaluation_num_episodes", here="evaluation_duration", note="in episodes"),
    **none("evaluation_duration_unit", note="nothing to set: evaluation_duration is in episodes"),
    **none(
        "evaluation_config", note="evaluation_explore=..., evaluation_env_args={...} of Trainer"
    ),
    **none(
        *("custom_eval_function", "custom_evaluation_function"),
        note="no counterpart: Callbacks.on_evaluate_end may add to what an evaluation found",
    ),
    **none(
        *("evaluation_num_workers", "evaluation_num_env_runners", "evaluation_sample_timeout_s"),
        *("evaluation_parallel_to_training", "evaluation_force_reset_envs_before_iteration"),
        *("evaluation_auto_duration_min_env_steps_per_sample", "in_evaluation"),
        *("enable_async_evaluation", "always_attach_evaluation_results"),
        note="nothing to set: episodes of an evaluation are played side by side, "
        "then training resumes",
    ),
    # results, logs, checkpoints
    **same(
        *("metrics_smoothing_episodes", "smoothing_episodes"),
        here="metrics_num_episodes_for_smoothing",
    ),
    **none(
        *("min_time_s_per_iteration", "min_iter_time_s", "timesteps_per_iteration"),
        *("min_sample_timesteps_per_iteration", "min_train_timesteps_per_iteration"),
        *("metrics_episode_collection_timeout_s",),
        note="nothing to set: an iteration is one batch of train_batch_size steps",
    ),
    **none(
        "keep_per_episode_custom_metrics",
        note="no counterpart: custom metrics are mean, min and max",
    ),
    **same("callbacks_class", here="callbacks"),
    **same("checkpoint_freq", here="checkpoint_frequency"),
    **same("keep_checkpoints_num", "num_to_keep", here="keep"),
    **same("checkpoint_score_attr", "checkpoint_metric", here="checkpoint_score_attribute"),
    **none(
        "checkpoint_score_order",
        note="nothing to set: the highest checkpoint_score_attribute is best",
    ),
    **none(
        *("export_native_model_files", "checkpoint_trainable_policies_only"),
        note="no counterpart: trainer.get_weights() gives the weights as NumPy arrays",
    ),
    **same("local_dir", "storage_path", "logdir", here="run_dir"),
    **same("logger_config", "logger_creator", here="loggers"),
    **none("log_level", "log_sys_usage", note="no counterpart; Trainer(quiet=True) prints nothing"),
    **none("restore", note="jaxrl.Trainer.from_checkpoint(path), or --resume PATH"),
    **same("stop_timesteps", here="total_env_steps"),
    **same("stop_iters", here="stop", note='{"training_iteration": 100}'),
    **same("stop_reward", here="stop", note='{"env_runners/episode_return_mean": 30}'),
    # machinery
    **same(
        *("num_gpus", "num_gpus_per_worker", "num_gpus_per_learner", "num_gpus_per_env_runner"),
        *("num_learners", "num_learner_workers"),
        here="devices",
        note="an accelerator that JAX sees is used; JAX_PLATFORMS=cpu keeps to the CPU",
    ),
    **none(
        *("framework", "eager_tracing", "eager_max_retraces", "tf_session_args", "fake_sampler"),
        *("local_tf_session_args", "torch_compile_learner", "torch_compile_worker"),
        *("torch_compile_learner_what_to_compile", "torch_compile_learner_dynamo_backend"),
        *("torch_compile_learner_dynamo_mode", "torch_compile_worker_dynamo_backend"),
        *("torch_compile_worker_dynamo_mode", "torch_ddp_kwargs", "torch_skip_nan_gradients"),
        *("num_cpus_per_worker", "num_cpus_for_driver", "num_cpus_for_local_worker"),
        *("num_cpus_for_main_process", "num_cpus_per_env_runner", "num_cpus_per_learner"),
        *("num_cpus_per_learner_worker", "custom_resources_per_worker", "placement_strategy"),
        *("custom_resources_per_env_runner", "local_gpu_idx", "num_aggregator_actors_per_learner"),
        *("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2"),
        *("extra_python_environs_for_driver", "extra_python_environs_for_worker"),
        *("ignore_worker_failures", "ignore_env_runner_failures", "recreate_failed_workers"),
        *("recreate_failed_env_runners", "restart_failed_env_runners", "max_num_worker_restarts"),
        *("restart_failed_sub_environments", "max_num_env_runner_restarts"),
        *("delay_between_worker_restarts_s", "delay_between_env_runner_restarts_s"),
        *("num_consecutive_worker_failures_tolerance", "worker_restore_timeout_s"),
        *("num_consecutive_env_runner_failures_tolerance", "env_runner_restore_timeout_s"),
        *("worker_health_probe_timeout_s", "env_runner_health_probe_timeout_s"),
        *("validate_workers_after_construction", "validate_env_runners_after_construction"),
        *("keep_per_worker_stats",),
        note="nothing to set: there are no worker processes and no other framework",
    ),
    **same("input_", here="input", note="of BCConfig and MARWILConfig: folders of episodes"),
    **same("dataset_num_iters_per_learner", here="train_batch_size", note="minibatches together"),
    **none(
        "moving_average_sqd_adv_norm_start",
        note="nothing to set: the average begins with the first minibatch",
    ),
    **none(
        *("output_config", "output_compress_columns", "output_max_file_size"),
        *("output_max_rows_per_file", "output_write_episodes", "input_config"),
        *("actions_in_input_normalized", "postprocess_inputs", "shuffle_buffer_size"),
        *("offline_sampling", "offline_data_class"),
        note=FILES,
    ),
    **none(
        *("input_evaluation", "off_policy_estimation_methods", "ope_split_batch_by_episode"),
        note="no setting: jaxrl.estimate_return(episodes, policy) judges a policy from episodes",
    ),
}

SB3 = {
    **same("learning_rate", here="lr"),
    **same("n_steps", here="rollout_length"),
    **same("n_envs", here="num_envs", note=TOGETHER),
    **same("batch_size", here="minibatch_size"),
    **same("n_epochs", here="num_epochs"),
    **same("gae_lambda", here="lambda_"),
    **same("clip_range", here="clip_param"),
    **same("clip_range_vf", here="vf_clip_param", note='with value_clip="prediction"'),
    **same("normalize_advantage", here="normalize_advantages", note='"minibatch", "batch" or None'),
    **same("ent_coef", here="entropy_coeff"),
    **same("vf_coef", here="vf_loss_coeff"),
    **same("max_grad_norm", here="grad_clip"),
    **same("total_timesteps", here="total_env_steps"),
    **same("stats_window_size", here="metrics_num_episodes_for_smoothing"),
    **same("tensorboard_log", here="run_dir"),
    **same("device", here="devices", note="how many; JAX_PLATFORMS=cpu keeps to the CPU"),
    **same("net_arch", here="fcnet_hiddens"),
    **same("activation_fn", here="fcnet_activation", note='its name: "tanh", "relu", ...'),
    **same("ortho_init", here="fcnet_kernel_initializer", note="orthogonal or uniform"),
    **same("share_features_extractor", here="vf_share_layers"),
    **same("features_extractor_class", "features_extractor_kwargs", here="model"),
    **same("optimizer_class", "optimizer_kwargs", here="optimizer"),
    **same("squash_output", here="action_distribution", note='"squashed_gaussian"'),
    **same("norm_obs", here="observation_filter", note='"MeanStdFilter"'),
    **same("norm_reward", here="normalize_returns"),
    **same("lstm_hidden_size", here="lstm_cell_size"),
    **same("eval_freq", here="evaluation_interval", note="in iterations"),
    **same("n_eval_episodes", here="evaluation_duration"),
    **same("save_freq", here="checkpoint_frequency", note="in iterations"),
    **none("policy_kwargs", note=FLAT),
    **none("verbose", note="no counterpart; Trainer(quiet=True) prints nothing"),
    **none(
        *("use_sde", "sde_sample_freq", "log_std_init", "full_std", "use_expln"),
        note="no counterpart: exploration is the action distribution's; see free_log_std",
    ),
    **none("rollout_buffer_class", "rollout_buffer_kwargs", note=ONE_PROGRAM),
}

CLEANRL = {
    **same("env_id", here="env"),
    **same("num_steps", here="rollout_length"),
    **same("update_epochs", here="num_epochs"),
    **same("clip_coef", here="clip_param"),
    **same("norm_adv", here="normalize_advantages", note='"minibatch", "batch" or None'),
    **same("clip_vloss", here="value_clip", note='"prediction"'),
    **same("num_minibatches", here="minibatch_size", note="rows, not how many minibatches"),
    **same("anneal_lr", here="lr", note=SCHEDULE),
    **same("track", "wandb_project_name", "wandb_entity", here="loggers", note='["wandb"]'),
    **same("exp_name", here="run_dir"),
    **same("capture_video", here="pictures"),
    **same("cuda", here="devices", note="JAX_PLATFORMS=cpu keeps to the CPU"),
    **same("num_iterations", here="total_env_steps"),
    **none(
        "torch_deterministic",
        note="nothing to set: the same seed gives the same numbers, bit for bit",
    ),
}

SETTINGS = {"RLlib": RLLIB, "SB3": SB3, "CleanRL": CLEANRL}

MEAN = "env_runners/episode_return_mean"
RETURNS = "env_runners/episode_return"
STEPS = "num_env_steps_sampled_lifetime"

RLLIB_RESULTS = {
    "episode_reward_<statistic>": Counterpart(RETURNS + "_<statistic>"),
    "env_runners/episode_reward_<statistic>": Counterpart(RETURNS + "_<statistic>"),
    "sampler_results/episode_reward_<statistic>": Counterpart(RETURNS + "_<statistic>"),
    "evaluation/episode_reward_<statistic>": Counterpart(f"evaluation/{RETURNS}_<statistic>"),
    "evaluation/env_runners/episode_reward_<statistic>": Counterpart(
        f"evaluation/{RETURNS}_<statistic>"
    ),
    **same("episodes_total", here="env_runners/num_episodes_lifetime"),
    **same("episodes_this_iter", here="env_runners/num_episodes"),
    **same(
        "timesteps_total",
        "num_env_steps_sampled",
        here=STEPS,
    ),
    **same(
        "agent_timesteps_total",
        "num_agent_steps_sampled",
        here=STEPS,
        note="steps of the environment, each counted once for all its agents",
    ),
    **same("num_env_steps_trained", here="num_env_steps_trained_lifetime"),
    **same(
        "timesteps_since_restore",
        here=STEPS,
        note="counted from the start of the run, not since it was resumed",
    ),
    "policy_reward_<statistic>/<policy>": Counterpart(
        "env_runners/module_episode_returns_mean/<policy>", "the mean is all there is"
    ),
    "env_runners/policy_reward_<statistic>/<policy>": Counterpart(
        "env_runners/module_episode_returns_mean/<policy>", "the mean is all there is"
    ),
    "env_runners/agent_episode_return_mean/<agent>": Counterpart(
        "env_runners/agent_episode_returns_mean/<agent>"
    ),
    "env_runners/module_episode_return_mean/<policy>": Counterpart(
        "env_runners/module_episode_returns_mean/<policy>"
    ),
    "custom_metrics/<name>": Counterpart("env_runners/custom_metrics/<name>"),
    "info/learner/<policy>/learner_stats/kl": Counterpart("learners/<policy>/mean_kl_loss"),
    "info/learner/<policy>/learner_stats/<name>": Counterpart("learners/<policy>/<name>"),
}

SB3_RESULTS = {
    **same("rollout/ep_rew_mean", "ep_rew_mean", here=MEAN),
    **same("rollout/ep_len_mean", "ep_len_mean", here="env_runners/episode_len_mean"),
    **same("eval/mean_reward", here=f"evaluation/{MEAN}"),
    **same("eval/mean_ep_length", here="evaluation/env_runners/episode_len_mean"),
    **same("time/total_timesteps", "total_timesteps", here=STEPS),
    **same("time/iterations", here="training_iteration"),
    **same("time/time_elapsed", here="time_total_s"),
    **same("time/fps", here="perf/env_steps_per_s"),
}

CLEANRL_RESULTS = {
    **same("charts/episodic_return", "episodic_return", here=MEAN),
    **same("charts/episodic_length", "episodic_length", here="env_runners/episode_len_mean"),
    **same("charts/SPS", here="perf/env_steps_per_s"),
    **same("global_step", here=STEPS),
}

RESULTS = {"RLlib": RLLIB_RESULTS, "SB3": SB3_RESULTS, "CleanRL": CLEANRL_RESULTS}


def counterpart(
    name: str, tables: dict[str, dict[str, Counterpart]]
) -> tuple[str, Counterpart] | None:
    """(the library, the counterpart here) from `SETTINGS` or `RESULTS`; None if there is none."""
    for library, table in tables.items():
        if name in table:
            return library, table[name]
        for pattern, found in table.items():
            if "<" in pattern and (match := _match(pattern, name)):
                here = found.here
                for part, value in match.groupdict().items():
                    here = here.replace(f"<{part}>", value)
                return library, found._replace(here=here)
    if name.startswith("_") and tables is SETTINGS:
        return "RLlib", Counterpart(note="nothing to set: a private switch of RLlib's")
    return None


def _match(pattern: str, name: str) -> re.Match | None:
    """A match of a pattern such as `policy_reward_<statistic>/<policy>`.

    Only a last part that is a whole placeholder may match a slash.
    """
    pattern = re.sub(r"/<(\w+)>$", r"/(?P<\1>.+)", pattern)
    return re.fullmatch(re.sub(r"(?<!\?P)<(\w+)>", r"(?P<\1>[^/]+)", pattern), name)
