"""Proximal policy optimisation: `make_train`, and `make_ppo`, its init, collect and learn."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig, Setup
from jaxrl.algorithms.memory_estimate import check_sizes
from jaxrl.algorithms.model_config import make_policy_spec
from jaxrl.algorithms.on_policy import empty_window, env_index, update_keys
from jaxrl.algorithms.ppo.config import PPOConfig
from jaxrl.algorithms.ppo.diagnostics import concerns
from jaxrl.algorithms.ppo.hypers import Hypers, LearnerSpec
from jaxrl.algorithms.ppo.metrics import HEADLINE_METRICS, ROOT_CAUSE_METRICS
from jaxrl.algorithms.ppo.summary import describe
from jaxrl.algorithms.ppo.update import Iteration, LearnerState, init_learner, update_policy
from jaxrl.algorithms.sharding import blocks_of
from jaxrl.algorithms.validators import optimizer_of
from jaxrl.core.env import strongly_typed
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Space
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.ops.collectives import over_axis
from jaxrl.rollout.env_step import EnvBatch, make_rollout_spec, reset_envs
from jaxrl.rollout.episode_callbacks import postprocess, traced_callbacks
from jaxrl.rollout.episode_stats import report
from jaxrl.rollout.policy_map import Grouping, PolicyGroup, each_policy, group_policies
from jaxrl.rollout.rollout import Rollout, play
from jaxrl.rollout.turns import nothing_open, undeclared_waits

HypersByPolicy = dict[PolicyId, Hypers] | None
REPORTS = {
    "headline_metrics": HEADLINE_METRICS,
    "root_cause_metrics": ROOT_CAUSE_METRICS,
    "diagnostics": concerns,
    "describe": describe,
}


def make_train(
    config: AlgorithmConfig | Mapping[str, Any],
) -> Callable[..., tuple[RunnerState, Metrics]]:
    """Returns `train(key, hypers=None, env_params=None) -> (runner, metrics)`: all iterations.

    Pure, so jit, vmap over keys and vmap over `config.hypers(...)` apply; the metrics lead with the
    iterations, [U].

    Args:
        config: a configuration such as `PPOConfig`, or a mapping of the names of `PPOConfig`.
    """
    if not isinstance(config, AlgorithmConfig | Mapping):
        raise UsageError(
            "make_train takes a PPOConfig or a mapping of settings such as {'env': 'arena'}, "
            f"not {config!r}"
        )
    config = config if isinstance(config, AlgorithmConfig) else PPOConfig.from_dict(config)
    algorithm = config.build()
    check_sizes(config, algorithm)

    def train(
        key: Key, hypers: HypersByPolicy = None, env_params: PyTree = None
    ) -> tuple[RunnerState, Metrics]:
        hypers = config.hypers() if hypers is None else hypers
        env_params = strongly_typed(algorithm.env_params if env_params is None else env_params)
        # Behind the barrier the configuration's own numbers are no constants to fold: given or not,
        # in the Trainer or here, they make the same program, to the bit.
        hypers, env_params = jax.lax.optimization_barrier((hypers, env_params))

        def update(runner, _):
            runner, rollout = algorithm.collect(runner, env_params=env_params)
            return algorithm.learn(runner, rollout, hypers)

        runner = algorithm.init(key, hypers, env_params)
        return jax.lax.scan(update, runner, length=config.num_updates)

    return train


def make_ppo(config: PPOConfig, *, axis_name: str | None = None) -> Algorithm:
    """PPO over the configuration's environment and policies.

    Args:
        axis_name: a mapped axis over which the environments are split: gradients, the advantages'
            moments and the KL are then taken over it as well, and so is what is reported. Each
            member holds num_envs / size of the axis environments.

    Returns:
        An `Algorithm` of pure functions; nothing is computed here.

    Raises:
        UsageError: settings that cannot work, in one line.
    """
    env, default_params, policies, _ = setup = config.setup()
    grouping = group_policies(
        env, default_params, policies, functools.partial(_learner_spec, config, axis_name, setup)
    )
    callbacks = traced_callbacks(config.callbacks)
    policy_specs = tuple(group.structure.policy_spec for group in grouping.groups)
    spec = make_rollout_spec(env, default_params, grouping, policy_specs, callbacks)

    def init(key: Key, hypers: HypersByPolicy = None, env_params: PyTree = None) -> RunnerState:
        env_params = default_params if env_params is None else env_params
        env_key, init_key = jax.random.split(jax.random.fold_in(key, 0))
        learners = tuple(
            jax.vmap(functools.partial(init_learner, group.structure))(hypers, keys)
            for group, hypers, keys in _by_group(grouping, config, hypers, init_key)
        )
        envs = reset_envs(spec, env_key, env_index(config.num_envs, axis_name), env_params)
        unfinished = nothing_open(spec, _weights(learners), envs, env_params)
        envs = envs.replace(returns=_no_returns(grouping, envs), unfinished=unfinished)
        window = empty_window(spec, config.metrics_num_episodes_for_smoothing)
        return RunnerState(key, jnp.int32(0), learners, envs, window)

    def collect(
        runner: RunnerState, weights: PyTree = None, env_params: PyTree = None
    ) -> tuple[RunnerState, Rollout]:
        weights = _weights(runner.learners) if weights is None else weights
        env_params = default_params if env_params is None else env_params
        play_key, _ = update_keys(runner)
        index = env_index(config.num_envs, axis_name)
        env_keys = jax.vmap(lambda i: jax.random.fold_in(play_key, i))(index)
        steps = config.rollout_length
        envs, rollout = play(spec, weights, runner.envs, env_keys, steps, env_params)
        return runner.replace(envs=envs), rollout

    def learn(
        runner: RunnerState, rollout: Rollout, hypers: HypersByPolicy = None
    ) -> tuple[RunnerState, Metrics]:
        _, learn_key = update_keys(runner)
        env_steps = runner.num_updates.astype(jnp.float32) * config.train_batch_size
        learners, returns = list(runner.learners), list(runner.envs.returns)
        metrics = [{} for _ in learners]
        for g, (group, numbers, keys) in enumerate(_by_group(grouping, config, hypers, learn_key)):
            if not group.structure.trained:
                continue
            trajectory = postprocess(spec.callbacks, group.policies, rollout.trajectories[g])
            present = jax.vmap(lambda numbers: numbers.at(env_steps))(numbers)
            learner_spec = group.structure._replace(always_active=spec.always_active)
            update = each_policy(functools.partial(update_policy, learner_spec), in_axes=(0, 1, 0))
            iteration = Iteration(present, keys, returns[g])
            learners[g], returns[g], metrics[g] = update(learners[g], trajectory, iteration)
            metrics[g] |= undeclared_waits(spec, rollout, g, axis_name)
        reached, episode_done = rollout.reached, rollout.episode_done
        window, episodes = report(
            runner.window, reached, episode_done, rollout.hist_data, axis_name
        )
        envs = runner.envs.replace(returns=tuple(returns))
        runner = RunnerState(runner.key, runner.num_updates + 1, tuple(learners), envs, window)
        agent_steps = over_axis(rollout.agent_steps, axis_name)
        return runner, Metrics(episodes, agent_steps, tuple(metrics))

    parts = init, collect, learn, spec, default_params
    return Algorithm(*parts, config.train_batch_size, setup.trained, **REPORTS)


def _learner_spec(
    config: PPOConfig,
    axis_name: str | None,
    setup: Setup,
    policy: PolicyId,
    observation_space: Space,
    action_space: Space,
) -> LearnerSpec:
    """What is static about learning a policy that plays between these spaces."""
    config, num_agents = config.for_policy(policy), len(setup.policies[policy])
    return LearnerSpec(
        policy_spec=make_policy_spec(config, observation_space, action_space, num_agents),
        trained=policy in setup.trained,
        blocks=blocks_of(config),
        minibatch_size=config.minibatch_size,
        num_epochs=config.num_epochs,
        use_kl_loss=config.use_kl_loss,
        normalize_advantages=config.normalize_advantages,
        value_clip=config.value_clip,
        optimizer=optimizer_of(config.optimizer),
        target_kl=config.target_kl,
        normalize_returns=config.normalize_returns,
        axis_name=axis_name,
    )


def _by_group(
    grouping: Grouping, config: PPOConfig, hypers: HypersByPolicy, key: Key
) -> Iterator[tuple[PolicyGroup, Hypers, Key]]:
    """Every group with its policies' numbers and keys, [N, ...].

    A policy's key depends on its place in the policy map, not on its group.
    """
    hypers = config.hypers() if hypers is None else hypers
    for group in grouping.groups:
        numbers = [hypers[policy] for policy in group.policies]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *numbers)
        index = jnp.array([grouping.policies.index(policy) for policy in group.policies])
        yield group, stacked, jax.vmap(lambda i: jax.random.fold_in(key, i))(index)


def _weights(learners: tuple[LearnerState, ...]) -> tuple[PolicyWeights, ...]:
    return tuple(learner.weights for learner in learners)


def _no_returns(grouping: Grouping, envs: EnvBatch) -> tuple[jax.Array | tuple, ...]:
    """By group, f32[N, E, M]; () where rewards are left as they are."""
    num_envs = len(envs.episodes.length)
    return tuple(
        jnp.zeros(group.shape(num_envs)) if group.structure.normalize_returns else ()
        for group in grouping.groups
    )
