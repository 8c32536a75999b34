"""Baseline: PPO in JAX written plainly, as tutorials do, on the same CartPole.

One scan as everywhere, but a sorted permutation of the rows in each epoch, a key split for each
environment and step, a whole reset computed in every step, the value of each observation as the
network gives it, one device. Time limits count as ends of the world. Separate networks of `hiddens`
tanh units for policy and value.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxrl import make


class Settings(NamedTuple):
    num_envs: int
    rollout_length: int
    num_updates: int
    num_epochs: int = 4
    num_minibatches: int = 4
    hiddens: tuple[int, ...] = (64, 64)
    lr: float = 2.5e-4
    gamma: float = 0.99
    lambda_: float = 0.95
    clip_param: float = 0.2
    entropy_coeff: float = 0.01
    vf_loss_coeff: float = 0.5
    grad_clip: float = 0.5


class Step(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


def make_plain_train(settings: Settings, env_name: str = "cartpole"):
    """Returns train(key) -> (params, returns f32[num_updates]).

    The mean return of each update's ended episodes.
    """
    env, env_params = make(env_name)
    sizes = (env.observation_space(env_params).size, *settings.hiddens)
    num_actions = env.action_space(env_params).n
    optimizer = optax.chain(
        optax.clip_by_global_norm(settings.grad_clip), optax.adam(settings.lr, eps=1e-5)
    )

    def train(key):
        key, actor_key, critic_key, reset_key = jax.random.split(key, 4)
        params = {
            "actor": init_network(actor_key, (*sizes, num_actions), 0.01),
            "critic": init_network(critic_key, (*sizes, 1), 1.0),
        }
        obs, state = jax.vmap(env.reset, (0, None))(
            jax.random.split(reset_key, settings.num_envs), env_params
        )

        def env_step(carry, _):
            params, obs, state, returns, key = carry
            key, action_key, step_key = jax.random.split(key, 3)
            logits, value = network(params["actor"], obs), network(params["critic"], obs)[:, 0]
            action = jax.random.categorical(action_key, logits)
            log_prob = log_prob_of(logits, action)
            keys = jax.random.split(step_key, settings.num_envs)
            next_obs, state, reward, terminated, truncated, _ = jax.vmap(env.step, (0, 0, 0, None))(
                keys, state, action, env_params
            )
            done = terminated | truncated
            returns = returns + reward
            step = Step(obs, action, log_prob, value, reward, done)
            return (params, next_obs, state, jnp.where(done, 0.0, returns), key), (step, returns)

        def update(carry, _):
            params, opt_state, obs, state, returns, key = carry
            carry, (steps, reached) = jax.lax.scan(
                env_step, (params, obs, state, returns, key), None, settings.rollout_length
            )
            _, obs, state, returns, key = carry
            last_value = network(params["critic"], obs)[:, 0]
            advantages = plain_gae(steps, last_value, settings)
            rows = (steps, advantages, advantages + steps.value)
            rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)

            params, opt_state, key = learn(optimizer, params, opt_state, key, rows, settings)
            ended = jnp.sum(steps.done)
            mean = jnp.sum(jnp.where(steps.done, reached, 0.0)) / jnp.maximum(ended, 1)
            return (params, opt_state, obs, state, returns, key), jnp.where(
                ended > 0, mean, jnp.nan
            )

        carry = (params, optimizer.init(params), obs, state, jnp.zeros(settings.num_envs), key)
        carry, returns = jax.lax.scan(update, carry, None, settings.num_updates)
        return carry[0], returns

    return train


def learn(optimizer, params, opt_state, key, rows, settings: Settings):
    """(params, opt_state, key) after all epochs over the rows [B, ...], each in a new order."""

    def epoch(carry, _):
        params, opt_state, key = carry
        key, order_key = jax.random.split(key)
        order = jax.random.permutation(order_key, settings.num_envs * settings.rollout_length)
        minibatches = jax.tree.map(
            lambda leaf: leaf[order].reshape(settings.num_minibatches, -1, *leaf.shape[1:]), rows
        )

        def step(carry, minibatch):
            params, opt_state = carry
            grads = jax.grad(loss)(params, *minibatch, settings)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        (params, opt_state), _ = jax.lax.scan(step, (params, opt_state), minibatches)
        return (params, opt_state, key), None

    return jax.lax.scan(epoch, (params, opt_state, key), None, settings.num_epochs)[0]


def plain_gae(steps: Step, last_value: jax.Array, settings: Settings) -> jax.Array:
    def backward(carry, step):
        advantage, next_value = carry
        delta = step.reward + settings.gamma * next_value * (1 - step.done) - step.value
        advantage = delta + settings.gamma * settings.lambda_ * (1 - step.done) * advantage
        return (advantage, step.value), advantage

    return jax.lax.scan(backward, (jnp.zeros_like(last_value), last_value), steps, reverse=True)[1]


def loss(
    params, steps: Step, advantages: jax.Array, targets: jax.Array, settings: Settings
) -> jax.Array:
    logits, value = network(params["actor"], steps.obs), network(params["critic"], steps.obs)[:, 0]
    ratio = jnp.exp(log_prob_of(logits, steps.action) - steps.log_prob)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - settings.clip_param, 1 + settings.clip_param)
    policy_loss = -jnp.minimum(ratio * advantages, clipped * advantages).mean()
    value_clipped = steps.value + jnp.clip(
        value - steps.value, -settings.clip_param, settings.clip_param
    )
    value_loss = 0.5 * jnp.maximum((value - targets) ** 2, (value_clipped - targets) ** 2).mean()
    log_probs = jax.nn.log_softmax(logits)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1).mean()
    return policy_loss + settings.vf_loss_coeff * value_loss - settings.entropy_coeff * entropy


def log_prob_of(logits: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], axis=-1)[:, 0]


def init_network(
    key: jax.Array, sizes: tuple[int, ...], last_gain: float
) -> list[dict[str, jax.Array]]:
    layers = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        key, layer_key = jax.random.split(key)
        gain = last_gain if i == len(sizes) - 2 else 2**0.5
        kernel = jax.nn.initializers.orthogonal(gain)(layer_key, (fan_in, fan_out))
        layers.append({"kernel": kernel, "bias": jnp.zeros(fan_out)})
    return layers


def network(layers: list[dict[str, jax.Array]], inputs: jax.Array) -> jax.Array:
    for layer in layers[:-1]:
        inputs = jnp.tanh(inputs @ layer["kernel"] + layer["bias"])
    return inputs @ layers[-1]["kernel"] + layers[-1]["bias"]
