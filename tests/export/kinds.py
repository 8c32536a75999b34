"""Policies of every kind of network and action, and a comparison of their files with `act`."""

import functools

import jax
import numpy as np

from jaxrl import PPOConfig
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple, parts_of, tree_of
from jaxrl.export.policy_step import STATE_IN, STATE_OUT
from jaxrl.models.policy_spec import MASK, PolicyWeights
from jaxrl.run.inference.policy import Policy

ROW, PAIR, IMAGE = Box(-2.0, 2.0, (3,)), MultiDiscrete((4, 5)), Box(0, 255, (5, 4, 2), "uint8")
PIXELS = Box(0, 255, (2, 5, 4), "uint8")  # channels first
ARM = Box((-1.0, 0.0), (1.0, 5.0))
CONV = {"conv_filters": ((4, 3, 2), (3, 2, 1)), "conv_activation": "relu"}
TOLD = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
KINDS = {  # (observation space, action space, settings)
    "dense": (ROW, Discrete(3), {"fcnet_activation": "relu"}),
    "tables": (
        PAIR,
        MultiDiscrete((2, 3)),
        {"vf_share_layers": True, "head_fcnet_hiddens": (7,), "agent_id_obs": True},
    ),
    "gaussian": (ROW, ARM, {"observation_filter": "MeanStdFilter", "free_log_std": True}),
    "clipped": (ROW, ARM, {"normalize_actions": False, "clip_actions": True}),
    "squashed": (ROW, ARM, {"action_distribution": "squashed_gaussian"}),
    "beta": (ROW, ARM, {"action_distribution": "beta"}),
    "convolutions": (IMAGE, Discrete(3), {**CONV, "fcnet_activation": "elu"}),
    "tree": (
        Dict({"near": IMAGE, "speed": ROW, "place": PAIR, "gear": Discrete(3)}),
        Discrete(3),
        {**CONV, "fcnet_activation": "silu"},
    ),
    "channels first": (PIXELS, Discrete(3), {**CONV, "normalize_images": True}),
    "filtered tree": (
        Dict({"near": PIXELS, "speed": ROW, "wide": ARM, "gear": Discrete(3)}),
        Box((0.0, -1.0, -np.inf), (np.inf, 5.0, 2.0)),
        {**CONV, "observation_filter": "MeanStdFilter"},
    ),
    "filtered, masked": (
        Dict({"observation": ROW, MASK: Box(0, 1, (3,), "int8")}),
        Discrete(3),
        {"observation_filter": "MeanStdFilter", "use_gru": True, "lstm_cell_size": 4, **TOLD},
    ),
    "mask": (
        Dict({"observation": ROW, MASK: Box(0, 1, (3,), "int8")}),
        Discrete(3),
        {"fcnet_activation": "gelu"},
    ),
    "gru": (
        ROW,
        MultiDiscrete((2, 3)),
        {"use_gru": True, "lstm_cell_size": 6, "head_fcnet_hiddens": (7, 5), **TOLD},
    ),
    "lstm": (
        ROW,
        ARM,
        {"use_lstm": True, "lstm_cell_size": 6, "observation_filter": "MeanStdFilter", **TOLD},
    ),
    "attention": (
        PAIR,
        Discrete(3),
        {
            **{"use_attention": True, "attention_dim": 8, "attention_num_transformer_units": 2},
            **{"attention_num_heads": 2, "attention_head_dim": 4},
            **{"attention_memory_inference": 5},
        },
    ),
    "mixed": (ROW, Dict({"push": ARM, "move": Discrete(3, start=-1)}), {"free_log_std": True}),
    "mixed, told": (
        ROW,
        Tuple((PAIR, Dict({"push": ARM, "turn": Box(1, 3, (2, 1), "int8")}))),
        {"use_gru": True, "lstm_cell_size": 6, "action_distribution": "beta", **TOLD},
    ),
}
MASKED = (
    "dense",
    "gru",
    "mixed",
    "mixed, told",
)  # whose environment says which actions are possible


@functools.cache
def policy_of_kind(kind, network_dtype="float32"):
    """A policy of random weights, which has no environment."""
    observation_space, action_space, settings = KINDS[kind]
    layers = {"fcnet_hiddens": (8, 8), "network_dtype": network_dtype}
    config = PPOConfig(env="cartpole", **layers, **settings)
    spec = config.policy_spec("mover", observation_space, action_space, 2)
    rng = np.random.default_rng(3)
    shapes = jax.eval_shape(lambda: spec.model.init(jax.random.key(0)))
    params = jax.tree.map(lambda leaf: np.float32(0.5 * rng.normal(size=leaf.shape)), shapes)
    moments = jax.tree.map(lambda leaf: np.asarray(leaf) + np.float32(0.5), spec.initial_filter())
    agents = ("left", "right")
    masked = kind in MASKED
    return Policy(spec, PolicyWeights(params, moments), name="mover", agents=agents, masked=masked)


def differences(policy, run, *, explore, num_steps=8, batch=3):
    """The largest difference of an action from `policy.act`'s, over steps with an episode's end.

    Each side is fed its state and its action's reward.
    """
    spec, rng = policy.policy_spec, np.random.default_rng(5)
    names, state, worst = None, None, 0.0
    policy.reset()
    for time in range(num_steps):
        parts = jax.tree.map(
            lambda part: np.stack([_member(part, rng) for _ in range(batch)]),
            tree_of(policy.observation_space),
        )
        begins = np.array([time == 0, time in (0, 3), time in (0, 5)])
        told, inputs = {"begins": begins}, _by_name(policy, parts)
        if policy.masked:
            size = mask_length(policy.action_space)
            told["action_mask"] = inputs["mask"] = _mask(rng, batch, size)
        if spec.inputs_spec.num_agents:
            told["agent"], inputs["agent"] = "right", np.full(batch, 1, np.int32)
        if spec.inputs_spec.prev_reward:
            reward = np.where(begins, 0.0, rng.normal(size=batch)).astype(np.float32)
            told["prev_reward"] = inputs["prev_reward"] = reward
        key = jax.random.key(time)
        if explore:
            told["key"], inputs["noise"] = key, np.asarray(spec.noise(key, (batch,)))
        expected = policy.act(parts, explore=explore, **told)
        if names is None:
            names = run.state_names
            state = {name: np.zeros((batch, *shape), dtype) for name, shape, dtype in names}
        state = {
            name: np.where(begins.reshape(-1, *[1] * (value.ndim - 1)), 0, value).astype(
                value.dtype
            )
            for name, value in state.items()
        }
        found = run({**inputs, **state})
        state = {name: found[STATE_OUT + name.removeprefix(STATE_IN)] for name, *_ in names}
        for path, _, part in parts_of(policy.action_space, expected):
            action = found[f"action_{path.replace('/', '_')}" if path else "action"]
            assert action.shape == part.shape and action.dtype == part.dtype
            worst = max(worst, float(np.max(np.abs(action - part.astype(np.float64)))))
    return worst


class NamedRun:
    """A function of named arrays, and the state that it takes."""

    def __init__(self, run, inputs):
        self.run = run
        self.state_names = [tensor for tensor in inputs if tensor[0].startswith(STATE_IN)]

    def __call__(self, inputs):
        return {name: np.asarray(value) for name, value in self.run(inputs).items()}


def _member(part, rng):
    if isinstance(part, Box):
        return rng.uniform(part.low, part.high, part.shape).astype(part.dtype)
    return rng.integers(0, part.nvec if isinstance(part, MultiDiscrete) else part.n, dtype=np.int32)


def _mask(rng, batch, size):
    mask = rng.random((batch, size)) < 0.6
    mask[0] = True
    return mask


def _by_name(policy, parts):
    """The inputs of an observation, named by hand."""
    if not isinstance(parts, dict):
        return {"obs": parts}
    if MASK in parts:
        return {"obs": parts["observation"], "mask": parts[MASK].astype(bool)}
    return {f"obs_{name}": value for name, value in parts.items()}
