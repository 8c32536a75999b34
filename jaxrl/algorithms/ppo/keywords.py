"""The keyword arguments of `PPOConfig.tuned`, `fast` and `replace`, for editors and type checkers.

These repeat the fields of `PPOConfig`, since type checkers cannot derive them; a test holds the two
equal.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict


class TunedKeywords(TypedDict, total=False):
    """Every setting of `PPOConfig` but the environment and its arguments."""

    ignore_observations: Sequence[str]
    policies: Any
    policies_to_train: Any
    per_policy: Any
    seed: int
    total_env_steps: int
    num_envs: int | None
    rollout_length: int | None
    train_batch_size: int | None
    minibatch_size: int
    num_epochs: int
    lr: Any
    gamma: float
    lambda_: float
    clip_param: float
    vf_clip_param: float | None
    vf_loss_coeff: float
    entropy_coeff: Any
    intrinsic_reward_coeff: Any
    use_kl_loss: bool
    kl_coeff: float
    kl_target: float
    grad_clip: float | None
    adam_epsilon: float
    normalize_advantages: str | None
    value_clip: str | None
    observation_filter: str | None
    normalize_images: bool
    normalize_actions: bool
    clip_actions: bool
    explore: bool
    exploration_config: Any
    optimizer: Callable | str | None
    shuffle_blocks: int | None
    metrics_num_episodes_for_smoothing: int
    callbacks: Any
    env_task_fn: Any
    env_task_interval: int
    curriculum: Any
    opponents: Any
    action_distribution: str
    dual_clip: float | None
    target_kl: float | None
    normalize_returns: bool
    center_values: bool
    normalize_intrinsic_rewards: bool
    model: Any
    fcnet_hiddens: Sequence[int]
    fcnet_activation: str
    fcnet_kernel_initializer: str
    vf_share_layers: bool
    head_fcnet_hiddens: Sequence[int]
    free_log_std: bool
    conv_filters: Any
    conv_activation: str
    conv_channels: str | None
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


class PPOKeywords(TunedKeywords, total=False):
    """Every setting of `PPOConfig`."""

    env: Any
    env_args: Any
