"""Table of RLlib's names for settings and results, with their counterparts here.

Sources: RLlib 2.60 (`AlgorithmConfig`, `PPOConfig`, `MODEL_DEFAULTS`, `DefaultModelConfig`) and its
older names, Tune's checkpoint and stop settings. Names that mean the same here are not listed.
`docs/from-rllib.md` shows these tables, and `jaxrl.from_rllib` reads configurations by them.
"""

from jaxrl.core.counterparts import UNSET, Counterpart, none, same

SCHEDULE = "a schedule is a value of it: [[0, 3e-4], [1000000, 0]]"
TOGETHER = "all environments together, side by side in one program"
FLAT = "network settings are flat: fcnet_hiddens=[64, 64], use_lstm=True, ..."
ONE_PROGRAM = "nothing to set: acting and learning are one compiled program"
NO_WORKERS = "nothing to set: there are no worker processes and no other framework"
EVALUATION = (
    "nothing to set: episodes of an evaluation are played side by side, then training resumes"
)
CONNECTORS = "no counterpart: see observation_filter, normalize_actions and callbacks"
GIVE_MADE = "give it made: model=Net(layers=2)"
OWN_MODEL = "no counterpart: write a model of your own (model=...)"
OBSERVATIONS = "no counterpart: the environment itself gives observations as the policy reads them"
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
        *("soft_horizon", "no_done_at_end"),
        note="no counterpart: an episode that reaches its time limit ends, and bootstraps",
        harmless=UNSET,
    ),
    **none("custom_preprocessor", "observation_fn", note=OBSERVATIONS, harmless=UNSET),
    **none("action_mask_key", note=OBSERVATIONS, harmless=("action_mask",)),
    **none(
        *("is_atari", "preprocessor_pref", "framestack", "dim", "grayscale", "zero_mean"),
        *("num_framestacks",),
        note="nothing to set: for Atari's images",
    ),
    **none(
        "render_env",
        "record_env",
        note="no counterpart: a run draws episode.gif, and scripts/render.py any episode",
    ),
    **none(
        "clip_rewards",
        note="no counterpart: Callbacks.on_postprocess_trajectory may change rewards",
        harmless=UNSET,
    ),
    # sampling
    **same(
        *("num_workers", "num_rollout_workers", "num_env_runners", "num_envs_per_worker"),
        *("num_envs_per_env_runner",),
        here="num_envs",
        note=TOGETHER,
    ),
    **same("rollout_fragment_length", "sample_batch_size", here="rollout_length"),
    **none(
        "batch_mode",
        note="no counterpart: rollouts have a fixed length and cut episodes",
        harmless=("truncate_episodes",),
    ),
    **none(
        "count_steps_by",
        note="no counterpart: batches count environment steps",
        harmless=("env_steps",),
    ),
    **none(
        *("remote_worker_envs", "remote_env_batch_wait_ms", "sample_async", "sample_timeout_s"),
        *("sample_collector", "enable_connectors", "create_env_on_driver", "worker_cls"),
        *("create_env_on_local_worker", "create_local_env_runner", "env_runner_cls"),
        *("compress_observations", "gym_env_vectorize_mode", "synchronize_filters"),
        *("update_worker_filter_stats", "use_worker_filter_stats", "rollout_workers"),
        *("max_requests_in_flight_per_env_runner", "broadcast_env_runner_states"),
        *("merge_env_runner_states", "episodes_to_numpy", "episode_lookback_horizon"),
        *("auto_wrap_old_gym_envs", "ignore_final_observation", "sampler_perf_stats_ema_coef"),
        *("use_env_runner_state_server", "env_runner_state_server_max_concurrency"),
        *("max_requests_in_flight_per_aggregator_actor", "max_requests_in_flight_per_learner"),
        *("sync_filters_on_rollout_workers_timeout_s", "replay_sequence_length", "replay_mode"),
        *("straggler_mitigation", "use_exec_api"),
        note=ONE_PROGRAM,
    ),
    **none(
        *("env_to_module_connector", "module_to_env_connector", "learner_connector"),
        *("_env_to_module_connector", "_module_to_env_connector", "_learner_connector"),
        note=CONNECTORS,
        harmless=UNSET,
    ),
    **none(
        *("add_default_connectors_to_env_to_module_pipeline",),
        *("add_default_connectors_to_module_to_env_pipeline",),
        *("add_default_connectors_to_learner_pipeline",),
        note=CONNECTORS,
        harmless=(True,),
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
    **none("use_critic", note="no counterpart: there is always a value function", harmless=(True,)),
    **none(
        "grad_clip_by",
        note="nothing to set: grad_clip is a bound of the global norm",
        harmless=("global_norm",),
    ),
    **none(
        "shuffle_sequences",
        "shuffle_batch_per_epoch",
        note="nothing to set: rows are always shuffled",
    ),
    **none("simple_optimizer", "log_gradients", note="nothing to set: gradients are one program's"),
    **none(
        *("learner_class", "learner_config_dict", "policy", "_learner_class"),
        *("_torch_lr_scheduler_classes", "_torch_grad_scaler_class"),
        note="no counterpart: see optimizer, and a model's own loss(params, batch)",
        harmless=UNSET,
    ),
    # networks
    **none("model_config", "model_config_dict", "_model_config", note=FLAT),
    **same(
        *("custom_model", "rl_module_spec", "rl_module_class", "_rl_module_spec"),
        here="model",
        harmless=UNSET,
    ),
    **same("custom_model_config", "custom_options", here="model", note=GIVE_MADE),
    **same(
        "custom_action_dist",
        here="model",
        note="your own model returns its distribution",
        harmless=UNSET,
    ),
    **same(
        *("fcnet_weights_initializer", "fcnet_initializer"),
        here="fcnet_kernel_initializer",
        note="orthogonal or uniform",
        harmless=UNSET,
    ),
    **same("lstm_use_prev_action_reward", here="lstm_use_prev_action", note="and ..._reward"),
    **same("post_fcnet_hiddens", here="fcnet_hiddens", note="layers above the convolutions too"),
    **same("post_fcnet_activation", here="fcnet_activation"),
    **same("head_fcnet_activation", here="fcnet_activation"),
    **none(
        *("fcnet_weights_initializer_config", "fcnet_kernel_initializer_kwargs"),
        *("fcnet_bias_initializer", "fcnet_bias_initializer_config"),
        *("fcnet_bias_initializer_kwargs", "fcnet_use_layernorm", "head_fcnet_use_layernorm"),
        *("conv_kernel_initializer", "conv_kernel_initializer_config"),
        *("conv_kernel_initializer_kwargs", "conv_bias_initializer"),
        *("conv_bias_initializer_config", "conv_bias_initializer_kwargs"),
        *("post_fcnet_weights_initializer", "post_fcnet_weights_initializer_config"),
        *("post_fcnet_bias_initializer", "post_fcnet_bias_initializer_config"),
        *("head_fcnet_kernel_initializer", "head_fcnet_kernel_initializer_kwargs"),
        *("head_fcnet_bias_initializer", "head_fcnet_bias_initializer_kwargs"),
        *("lstm_weights_initializer", "lstm_weights_initializer_config"),
        *("lstm_kernel_initializer", "lstm_kernel_initializer_kwargs"),
        *("lstm_bias_initializer", "lstm_bias_initializer_config"),
        *("lstm_bias_initializer_kwargs", "encoder_latent_dim", "no_final_linear"),
        *("attention_use_n_prev_actions", "attention_use_n_prev_rewards"),
        note=OWN_MODEL,
        harmless=(*UNSET, 0),
    ),
    **none("log_std_clip_param", note=OWN_MODEL, harmless=(20,)),
    **none("attention_memory_training", note=OWN_MODEL, harmless=(50,)),
    **none(
        *("_time_major", "always_check_shapes", "uses_new_env_runners", "use_state_preprocessor"),
        *("conv_transpose_kernel_initializer", "conv_transpose_kernel_initializer_config"),
        *("conv_transpose_bias_initializer", "conv_transpose_bias_initializer_config"),
        *("fusionnet_hiddens", "fusionnet_activation", "fusionnet_kernel_initializer"),
        *("fusionnet_kernel_initializer_kwargs", "fusionnet_bias_initializer"),
        *("fusionnet_bias_initializer_kwargs",),
        note="nothing to set: PPO's networks for one array have no such part",
    ),
    # policies
    **same("policy_mapping_fn", here="policies", note="policies=lambda agent: 'pol1'"),
    **same(
        *("algorithm_config_overrides_per_module", "algorithm_config_overrides_per_policy"),
        *("_per_module_overrides",),
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
        *("custom_eval_function", "custom_evaluation_function", "custom_async_evaluation_function"),
        note="no counterpart: Callbacks.on_evaluate_end may add to what an evaluation found",
    ),
    **none(
        *("evaluation_num_workers", "evaluation_num_env_runners", "evaluation_sample_timeout_s"),
        *("evaluation_parallel_to_training", "evaluation_force_reset_envs_before_iteration"),
        *("evaluation_auto_duration_min_env_steps_per_sample", "in_evaluation"),
        *("evaluation_auto_duration_max_env_steps_per_sample", "enable_async_evaluation"),
        *("always_attach_evaluation_results", "evaluation_unhealthy_workers_timeout_s"),
        *("evaluation_error_after_n_consecutive_skips",),
        note=EVALUATION,
    ),
    # results, logs, checkpoints
    **same(
        *("metrics_smoothing_episodes", "smoothing_episodes"),
        here="metrics_num_episodes_for_smoothing",
    ),
    **none(
        *("min_time_s_per_iteration", "min_iter_time_s", "timesteps_per_iteration"),
        *("min_sample_timesteps_per_iteration", "min_train_timesteps_per_iteration"),
        *("metrics_episode_collection_timeout_s", "collect_metrics_timeout"),
        note="nothing to set: an iteration is one batch of train_batch_size steps",
    ),
    **none(
        "keep_per_episode_custom_metrics",
        note="no counterpart: custom metrics are mean, min and max",
    ),
    **none("stats_cls_lookup", note="nothing to set: results are RLlib's, by their names"),
    **same("callbacks_class", here="callbacks"),
    **same(
        *("callbacks_on_algorithm_init", "callbacks_on_checkpoint_loaded"),
        *("callbacks_on_env_runners_recreated", "callbacks_on_environment_created"),
        *("callbacks_on_episode_created", "callbacks_on_episode_end", "callbacks_on_episode_start"),
        *("callbacks_on_episode_step", "callbacks_on_evaluate_end", "callbacks_on_evaluate_start"),
        *("callbacks_on_evaluate_offline_end", "callbacks_on_evaluate_offline_start"),
        *("callbacks_on_offline_eval_runners_recreated", "callbacks_on_sample_end"),
        *("callbacks_on_train_result",),
        here="callbacks",
        harmless=UNSET,
    ),
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
        *("keep_per_worker_stats", "custom_resources_for_main_process", "use_pytorch", "eager"),
        *("custom_resources_per_learner", "enable_tf1_exec_eagerly", "no_eager_on_workers"),
        *("memory", "object_store_memory", "memory_per_worker", "object_store_memory_per_worker"),
        *("monitor",),
        note=NO_WORKERS,
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
        *("offline_sampling", "offline_data_class", "output_filesystem", "output_write_method"),
        *("output_filesystem_kwargs", "output_write_method_kwargs", "output_write_remaining_data"),
        *("input_compress_columns", "input_filesystem", "input_filesystem_kwargs"),
        *("input_read_batch_size", "input_read_episodes", "input_read_method"),
        *("input_read_method_kwargs", "input_read_sample_batches", "input_read_schema"),
        *("input_spaces_jsonable", "iter_batches_kwargs", "map_batches_kwargs"),
        *("materialize_data", "materialize_mapped_data", "prelearner_class"),
        *("prelearner_buffer_class", "prelearner_buffer_kwargs"),
        *("prelearner_module_synch_period", "prelearner_use_recorded_module_states"),
        *("dataset_num_iters_per_eval_runner",),
        note=FILES,
    ),
    **none(
        *("input_evaluation", "off_policy_estimation_methods", "ope_split_batch_by_episode"),
        *("offline_evaluation_interval", "offline_evaluation_duration", "offline_evaluation_type"),
        *("offline_evaluation_parallel_to_training", "offline_evaluation_timeout_s"),
        *("offline_eval_batch_size_per_runner", "offline_eval_rl_module_inference_only"),
        *("offline_eval_runner_class", "offline_eval_runner_health_probe_timeout_s"),
        *("offline_eval_runner_restore_timeout_s", "offline_loss_for_module_fn"),
        *("num_offline_eval_runners", "num_cpus_per_offline_eval_runner"),
        *("num_gpus_per_offline_eval_runner", "custom_resources_per_offline_eval_runner"),
        *("broadcast_offline_eval_runner_states", "ignore_offline_eval_runner_failures"),
        *("max_num_offline_eval_runner_restarts", "restart_failed_offline_eval_runners"),
        *("max_requests_in_flight_per_offline_eval_runner",),
        *("validate_offline_eval_runners_after_construction",),
        note="no setting: jaxrl.estimate_return(episodes, policy) judges a policy from episodes",
    ),
}

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
