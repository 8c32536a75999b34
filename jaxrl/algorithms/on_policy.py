"""On-policy algorithms: all that surrounds the update of one policy on its own rollout.

`on_policy` makes an `Algorithm` of two functions: `init_learner`, the start of a policy's learning,
and `update_policy`, an iteration of it. PPO is made of it (`jaxrl.algorithms.ppo.ppo`).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl.algorithms.base import Algorithm, Metrics, RunnerState
from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.algorithms.features import ReturnScaling, with_features
from jaxrl.algorithms.model_config import check_learner
from jaxrl.algorithms.opponents import Pool, PoolState, make_pool, pool_policy
from jaxrl.core.env import has_outside_state, lift
from jaxrl.core.errors import UsageError
from jaxrl.core.fast_prng import to_fast_key, to_standard_key
from jaxrl.core.outside_env import is_outside, refuse_outside
from jaxrl.core.spaces import Space
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.ops.collectives import over_axis, reduced_over_axis
from jaxrl.ops.control_flow import any_true
from jaxrl.ops.packing import pack
from jaxrl.rollout.critic_inputs import critic_spaces
from jaxrl.rollout.env_step import RolloutSpec, draw_randomness, reset_envs
from jaxrl.rollout.episode_stats import Window, no_episodes, report
from jaxrl.rollout.first_step import make_rollout_spec
from jaxrl.rollout.grouping import each_policy, group_policies
from jaxrl.rollout.opponents import Opponents
from jaxrl.rollout.rollout import Rollout, play
from jaxrl.rollout.steps import undeclared_waits

HypersByPolicy = dict[PolicyId, PyTree] | None


class LearnerState(struct.PyTreeNode):
    """The state of a policy that learns: the least that a run needs of an algorithm's own state."""

    params: PyTree
    opt_state: PyTree
    filter: PyTree | None = None  # of the observations; None without a filter

    @property
    def weights(self) -> PolicyWeights:
        return PolicyWeights(self.params, self.filter)

    def with_weights(self, weights: PolicyWeights) -> "LearnerState":
        return self.replace(params=weights.params, filter=weights.filter)


@dataclasses.dataclass(frozen=True)
class LearnerSpec:
    """The static settings of one policy's learning; policies with equal ones are stacked.

    An algorithm with settings of its own derives from it. The last three are filled in by
    `on_policy`.
    """

    policy_spec: PolicySpec
    trained: bool
    normalize_returns: bool = False  # whether `prepare_rewards` keeps the discounted returns
    always_active: bool = True  # every agent acts in every step, so no minibatch is without rows
    axis_name: str | None = None  # a mapped axis over which the environments are split
    drawn: bool = False  # members of the configuration's pool play for it: a group of its own

    @property
    def changes_rewards(self) -> bool:
        """True if other rewards are learned from than the environment's."""
        return self.normalize_returns or self.policy_spec.rewards_itself

    def no_returns(self, shape: tuple[int, ...]) -> PyTree | None:
        """`Iteration.returns` before the first step, f32[*shape] each; None without any."""
        return jnp.zeros(shape) if self.normalize_returns else None


def shared_settings(policy: PolicyId, policy_spec: PolicySpec, trained: bool) -> LearnerSpec:
    """The `LearnerSpec` of an algorithm without settings of its own."""
    return LearnerSpec(policy_spec, trained)


class Iteration(struct.PyTreeNode):
    """The inputs of a policy's iteration beside its trajectory."""

    hypers: PyTree  # the policy's numbers, schedules among them
    env_steps: jax.Array  # f32[]  environment steps of training so far
    key: Key
    returns: PyTree = None  # [E, M]  discounted, before the trajectory; see `prepare_rewards`


def on_policy(
    config: AlgorithmConfig,
    init_learner: Callable[[LearnerSpec, PyTree, Key], PyTree],
    update_policy: Callable[..., tuple[PyTree, dict[str, jax.Array]]],
    *,
    learner_spec: Callable[[PolicyId, PolicySpec, bool], LearnerSpec] = shared_settings,
    prepare_rewards: Callable[..., tuple[PyTree, PyTree, PyTree, dict]] | None = None,
    axis_name: str | None = None,
    **shown: Any,
) -> Algorithm:
    """The algorithm that plays a rollout, and updates each policy on its own rows of it.

    Args:
        init_learner: (spec, hypers, key) -> learner, which has `weights` and
            `with_weights(weights)`, as `LearnerState`.
        update_policy: (spec, learner, trajectory, iteration) -> (learner, {metric: f32[]}); the
            trajectory is [T, E, M, ...]. Sums over rows are to be taken over `spec.axis_name` as
            well, by `jaxrl.ops.collectives.over_axis`.
        learner_spec: (policy, policy_spec, trained) -> `LearnerSpec` or what derives from it.
        prepare_rewards: (spec, learner, trajectory, iteration) -> (learner, trajectory, returns,
            {metric: f32[]}), before the update: the rewards to learn from, and the returns for the
            next iteration. Asked of policies whose `LearnerSpec.changes_rewards`.
        axis_name: a mapped axis over which the environments are split, or None. Each member holds
            num_envs / size of the axis environments, and all that is reported is taken over it.
        **shown: fields of `Algorithm` that say what people are shown, such as `headline_metrics`.

    Returns:
        An `Algorithm` of pure functions; nothing is computed here.

    Raises:
        UsageError: settings that cannot work, in one line.
    """
    parts, trained = parts_of(config, learner_spec, axis_name)

    def learn_policy(spec, learner, trajectory, iteration):
        returns, prepared = iteration.returns, {}
        if prepare_rewards is not None and spec.changes_rewards:
            learner, trajectory, returns, prepared = prepare_rewards(
                spec, learner, trajectory, iteration
            )
        learner, metrics = update_policy(spec, learner, trajectory, iteration)
        return learner, returns, metrics | prepared

    return Loop(*parts, init_learner, learn_policy).algorithm(trained, **shown)


@dataclasses.dataclass(frozen=True)
class Loop:
    """The three functions of an on-policy `Algorithm`."""

    config: AlgorithmConfig
    rollout_spec: RolloutSpec
    env_params: PyTree  # the configuration's
    learner_specs: tuple[LearnerSpec, ...]  # by group
    pool: Pool | None
    init_learner: Callable[..., PyTree]
    # update_policy, with the returns for the next iteration as its second result
    learn_policy: Callable[..., tuple[PyTree, PyTree, dict[str, jax.Array]]]

    def algorithm(self, trained: tuple[PolicyId, ...], **shown: Any) -> Algorithm:
        parts = self.init, self.collect, self.learn, self.rollout_spec, self.env_params
        sizes = self.config.train_batch_size, trained
        return Algorithm(*parts, *sizes, opponents=self.pool, **shown)

    def init(
        self, key: Key, hypers: HypersByPolicy = None, env_params: PyTree = None
    ) -> RunnerState:
        spec, env_params = self.rollout_spec, self._params(env_params)
        env_key, init_key = update_keys(key, 0)
        learners = self.init_learners(init_key, hypers)
        index = self._env_index()
        opponents = None
        if self.pool is not None:
            opponents = self.pool.init(learners[self.pool.group].weights)
        weights = self._acting(learners, opponents)
        envs = reset_envs(spec, env_key, index, env_params, weights)
        return RunnerState(key, jnp.int32(0), learners, envs, self.empty_window(), opponents)

    def collect(
        self,
        runner: RunnerState,
        weights: PyTree = None,
        env_params: PyTree = None,
        num_recorded: int = 0,
    ) -> tuple[RunnerState, Rollout]:
        spec = self.rollout_spec._replace(num_recorded=num_recorded)
        if has_outside_state(spec.env):
            refuse_outside(spec.env, "Algorithm.collect")
        env_params = self._params(env_params)
        if weights is None:
            weights = self._acting(runner.learners, runner.opponents)
        env_keys = rollout_keys(runner.key, runner.num_updates + 1, self._env_index())
        steps = self.config.rollout_length
        randomness = draw_randomness(spec, env_keys, steps)
        if spec.explores:
            done = jnp.arange(steps, dtype=jnp.float32) * self.config.num_envs
            randomness = randomness._replace(env_steps=self.env_steps(runner) + done)
        envs, rollout = play(spec, weights, runner.envs, randomness, env_params)
        return runner.replace(envs=envs), rollout

    def learn(
        self, runner: RunnerState, rollout: Rollout, hypers: HypersByPolicy = None
    ) -> tuple[RunnerState, Metrics]:
        spec, axis_name = self.rollout_spec, self._axis_name
        _, learn_key = update_keys(runner.key, runner.num_updates + 1)
        env_steps = self.env_steps(runner)
        learners, metrics = list(runner.learners), [{} for _ in runner.learners]
        features = runner.envs.features
        returns = list(features.get(ReturnScaling.name, [None] * len(learners)))
        for g, (learner_spec, numbers, keys) in enumerate(self.by_group(hypers, learn_key)):
            if not learner_spec.trained:
                continue
            policies = spec.grouping.groups[g].policies
            trajectory = rollout.trajectories[g]
            logged = {}
            for feature in spec.features:
                trajectory, logged_by_feature = feature.learned(policies, trajectory)
                logged |= logged_by_feature
            if not learner_spec.policy_spec.rewards_itself:
                trajectory = trajectory.replace(next_obs=None)
            steps = jnp.broadcast_to(env_steps, len(policies))
            iteration = Iteration(numbers, steps, keys, returns[g])
            update = each_policy(functools.partial(self.learn_policy, learner_spec), (0, 1, 0))
            learners[g], returns[g], metrics[g] = update(learners[g], trajectory, iteration)
            if not (spec.always_active or spec.waits):
                metrics[g] |= undeclared_waits(spec, rollout, g, axis_name)
            for name, entry in logged.items():
                if name in metrics[g]:
                    raise UsageError(f"{name!r} of {entry.source} is a number of the result itself")
                metrics[g][name] = reduced_over_axis(entry.value, entry.reduce, axis_name)
        ended = rollout.reached, rollout.episode_done, rollout.hist_data
        window, episodes = report(runner.window, *ended, axis_name, spec.grouping.places)
        learners, num_updates = tuple(learners), runner.num_updates + 1
        opponents = report_of_pool = None
        if self.pool is not None:
            opponents, learners, report_of_pool = self.pool.after(
                runner.opponents, learners, rollout, num_updates, axis_name
            )
        if ReturnScaling.name in features:
            features = {**features, ReturnScaling.name: tuple(returns)}
        envs = runner.envs.replace(features=features)
        runner = RunnerState(runner.key, num_updates, learners, envs, window, opponents)
        agent_steps = over_axis(rollout.agent_steps, axis_name)
        return runner, Metrics(episodes, agent_steps, tuple(metrics), report_of_pool)

    def _acting(
        self, learners: tuple[PyTree, ...], opponents: PoolState | None
    ) -> tuple[PolicyWeights | Opponents, ...]:
        """The weights of those who act, by group: the pool where it plays for a policy."""
        weights = [learner.weights for learner in learners]
        if self.pool is not None:
            weights[self.pool.group] = self.pool.opponents(opponents)
        return tuple(weights)

    @property
    def _axis_name(self) -> str | None:
        return self.learner_specs[0].axis_name

    def _params(self, env_params: PyTree) -> PyTree:
        return self.env_params if env_params is None else env_params

    def init_learners(self, key: Key, hypers: HypersByPolicy) -> tuple[PyTree, ...]:
        """The first states of the learners by group, [N, ...]."""
        return tuple(
            jax.vmap(functools.partial(self.init_learner, spec))(numbers, to_standard_key(keys))
            for spec, numbers, keys in self.by_group(hypers, key)
        )

    def by_group(
        self, hypers: HypersByPolicy, key: Key
    ) -> Iterator[tuple[LearnerSpec, PyTree, Key]]:
        """Every group with its policies' numbers and keys, [N, ...]."""
        hypers = self.config.hypers() if hypers is None else hypers
        groups, keys = self.rollout_spec.grouping.groups, self.keys_by_group(key)
        for group, learner_spec, keys_of in zip(groups, self.learner_specs, keys, strict=True):
            numbers = [hypers[policy] for policy in group.policies]
            yield learner_spec, jax.tree.map(lambda *leaves: jnp.stack(leaves), *numbers), keys_of

    def keys_by_group(self, key: Key) -> Iterator[Key]:
        """A key for each policy, [N], by its place in the policy map and not in its group."""
        grouping = self.rollout_spec.grouping
        for group in grouping.groups:
            index = jnp.array([grouping.policies.index(policy) for policy in group.policies])
            yield jax.vmap(lambda i: jax.random.fold_in(key, i))(index)

    def env_steps(self, runner: RunnerState) -> jax.Array:
        """Environment steps of training before this iteration, f32[]."""
        return runner.num_updates.astype(jnp.float32) * self.config.train_batch_size

    def empty_window(self) -> Window:
        """The statistics of recent episodes before the first one."""
        spec, size = self.rollout_spec, self.config.metrics_num_episodes_for_smoothing
        names = (*spec.metrics, *spec.custom_metrics)
        num_agents = len(spec.grouping.agents)
        episodes = no_episodes(num_agents, names, size, always_active=spec.always_active)
        return Window(episodes, jnp.int32(0))

    def _env_index(self) -> jax.Array:
        """The global indices of the environments held here, i32[E]."""
        if self._axis_name is None:
            return jnp.arange(self.config.num_envs)
        held = self.config.num_envs // jax.lax.axis_size(self._axis_name)
        return jnp.arange(held) + jax.lax.axis_index(self._axis_name) * held


def parts_of(
    config: AlgorithmConfig,
    learner_spec: Callable[[PolicyId, PolicySpec, bool], LearnerSpec],
    axis_name: str | None = None,
) -> tuple[tuple, tuple[PolicyId, ...]]:
    """(the first fields of a `Loop`, the policies that learn)."""
    setup = config.setup()
    env, env_params = setup.env, setup.env_params
    policies, trained = setup.policies, setup.trained
    critics = critic_spaces(config, setup)
    if has_outside_state(env):
        env = lift(env.separate(config.seed))  # no two algorithms share episodes

    played_by_pool = pool_policy(config.opponents, policies, trained)

    def structure(policy: PolicyId, observation_space: Space, action_space: Space) -> LearnerSpec:
        spaces = observation_space, action_space
        more = len(policies[policy]), critics[policy]
        policy_spec = config.policy_spec(policy, *spaces, *more)
        if policy in trained:
            check_learner(policy, config.for_policy(policy), policy_spec)
        spec = learner_spec(policy, policy_spec, policy in trained)
        return dataclasses.replace(spec, drawn=policy == played_by_pool)

    grouping = group_policies(env, env_params, policies, structure)
    policy_specs = tuple(group.structure.policy_spec for group in grouping.groups)
    rollout_spec = make_rollout_spec(env, env_params, grouping, policy_specs)
    rollout_spec = with_features(rollout_spec, config, env_params)
    # A fault may take rows out of any rollout that is played outside.
    always_active = rollout_spec.always_active and not is_outside(env)
    shared = {"always_active": always_active, "axis_name": axis_name}
    learner_specs = tuple(
        dataclasses.replace(group.structure, **shared) for group in grouping.groups
    )
    if config.opponents is not None and is_outside(env):
        raise UsageError(
            f"opponents: {config.env_name} runs outside JAX, where no pool plays: leave it out; a "
            "policy that is not in policies_to_train is a fixed opponent"
        )
    pool = make_pool(config.opponents, rollout_spec, trained)
    return (config, rollout_spec, env_params, learner_specs, pool), trained


def update_keys(key: Key, update: jax.Array | int) -> tuple[Key, Key]:
    """Fast keys (play_key, learn_key) of an update; update 0 begins environments and learners."""
    return tuple(jax.random.split(jax.random.fold_in(to_fast_key(key), update)))


def rollout_keys(key: Key, update: jax.Array, env_index: jax.Array) -> Key:
    """The keys of the environments `env_index`, i32[E], for the rollout of a run's update, [E]."""
    play_key, _ = update_keys(key, update)
    return jax.vmap(lambda i: jax.random.fold_in(play_key, i))(env_index)


def all_finite(tree: PyTree) -> jax.Array:
    """Returns whether every floating-point number is finite, bool[]."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    packed = pack(leaves, num_axes=0, widest=None)  # one check compiles faster than many
    return ~any_true(jnp.stack([any_true(~jnp.isfinite(part)) for part in jax.tree.leaves(packed)]))


def promoting(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser under JAX's usual promotion of types.

    Adam divides by powers of a count, which `jax_numpy_dtype_promotion=strict` refuses.
    """

    def init(params: PyTree) -> PyTree:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.init(params)

    def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(grads, state, params)

    return optax.GradientTransformation(init, update)
