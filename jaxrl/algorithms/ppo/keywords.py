"""The keyword arguments of `PPOConfig.tuned`, `fast` and `replace`, for editors and type checkers.

These repeat the fields of `PPOConfig`, since type checkers cannot derive them; `python
docs/tables.py` writes them.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict


class TunedKeywords(TypedDict, total=False):
    """Every setting of `PPOConfig` but the environment and its arguments."""

    policies: Any
    policies_to_train: Any
    per_policy: Any
    seed: int
    total_env_steps: int
    num_envs: int | None
    rollout_length: int | None
    train_batch_size: int | None
    metrics_num_episodes_for_smoothing: int
    callbacks: Any
    ignore_observations: Sequence[str]
    curriculum: Any
    env_task_fn: Any
    env_task_interval: int
    opponents: Any
    observation_filter: str | None
    normalize_images: bool
    action_distribution: str
    normalize_actions: bool
    clip_actions: bool
    explore: bool
    exploration_config: Any
    model: Any
    fcnet_hiddens: Sequence[int]
    fcnet_activation: str
    fcnet_kernel_initializer: str
    fcnet_kernel_initializer_kwargs: Any
    fcnet_bias_initializer: str | None
    fcnet_bias_initializer_kwargs: Any
    vf_share_layers: bool
    head_fcnet_hiddens: Sequence[int]
    free_log_std: bool
    log_std_init: float
    conv_filters: Any
    conv_activation: str
    conv_channels: str | None
    network_dtype: str
    use_lstm: bool
    use_gru: bool
    lstm_cell_size: int
    lstm_use_prev_action: bool
    lstm_use_prev_reward: bool
    max_seq_len: int
    use_attention: bool
    attention_num_transformer_units: int
    attention_dim: int
    attention_num_heads: int
    attention_head_dim: int
    attention_memory_inference: int
    attention_position_wise_mlp_dim: int
    attention_init_gru_gate_bias: float
    agent_id_obs: bool
    critic_observation: str
    minibatch_size: int
    num_epochs: int
    shuffle_blocks: int | None
    lr: Any
    gamma: float
    lambda_: float
    use_critic: bool
    clip_param: float
    vf_clip_param: float | None
    value_clip: str | None
    vf_loss_coeff: float
    entropy_coeff: Any
    use_kl_loss: bool
    kl_coeff: float
    kl_target: float
    normalize_advantages: str | None
    clip_rewards: float | str | None
    normalize_returns: bool
    center_values: bool
    dual_clip: float | None
    target_kl: float | None
    intrinsic_reward_coeff: Any
    normalize_intrinsic_rewards: bool
    optimizer: Callable | str | None
    adam_epsilon: float
    grad_clip: float | None
    grad_clip_by: str


class PPOKeywords(TunedKeywords, total=False):
    """Every setting of `PPOConfig`."""

    env: Any
    env_args: Any
