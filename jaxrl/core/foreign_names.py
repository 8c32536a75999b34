"""Tables of other libraries' names for settings and results, with their counterparts here.

Sources: Stable-Baselines3's `PPO` and `ActorCriticPolicy`, CleanRL's `ppo.py` and
`ppo_continuous_action.py`; RLlib's are in `rllib_names`. Names that mean the same here are not
listed. `docs/from-rllib.md` and `docs/from-sb3.md` show these tables.
"""

import re

from jaxrl.core.counterparts import Counterpart, none, same
from jaxrl.core.rllib_names import (
    FLAT,
    ONE_PROGRAM,
    RLLIB,
    RLLIB_RESULTS,
    SCHEDULE,
    STEPS,
    TOGETHER,
)

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
