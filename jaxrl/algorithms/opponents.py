"""Opponent pools: self-play against earlier copies, policies of other runs, and functions.

`Pool` is what a configuration makes of an `OpponentPool`. `PoolState` is the pool itself: arrays
within the state of training.
"""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.algorithms.task_settings import ACT, COPY, EVERYBODY, RANDOM, OpponentPool, takes_mask
from jaxrl.core.errors import UsageError, brief, reason_of, unknown_name
from jaxrl.core.fields import field_names
from jaxrl.core.program_spaces import action_from_program, mask_length
from jaxrl.core.spaces import Box, Space, is_tree, tree_of
from jaxrl.core.trust import load, parse_name
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.mixed_precision import MixedPrecision
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights, has_mask
from jaxrl.ops.collectives import over_axis
from jaxrl.ops.distributions import from_logits, num_logits
from jaxrl.rollout.env_step import RolloutSpec
from jaxrl.rollout.grouping import Grouping
from jaxrl.rollout.opponents import Opponents, SelfPlay
from jaxrl.rollout.rollout import Rollout

LEAST_CHANCE = 0.01  # of a member that always loses, where one that always wins has 1.01


def copy_label(iteration: int) -> str:
    return f"copy of iteration {iteration}"


KINDS = (jnp.bool_, jnp.floating, jnp.integer)  # of the numbers of an action


@dataclasses.dataclass(frozen=True)
class Scripted:
    """A user's function as act(obs, key, action_mask)."""

    function: Callable[..., Any]
    takes_mask: bool

    def __call__(self, obs: PyTree, key: Key, action_mask: PyTree) -> jax.Array:
        mask = (action_mask,) if self.takes_mask else ()
        return self.function(obs, key, *mask)


@dataclasses.dataclass(frozen=True)
class RandomActions:
    """Any possible action, all alike."""

    action_space: Space

    def __call__(self, obs: PyTree, key: Key, action_mask: PyTree) -> jax.Array:
        if isinstance(self.action_space, Box):
            return self.action_space.sample(key)
        actions = from_logits(self.action_space, jnp.zeros(num_logits(self.action_space)))
        if action_mask is not None:
            actions = actions.masked(action_mask)
        drawn = action_from_program(self.action_space, actions.sample(key), jnp)
        if not is_tree(self.action_space):
            return drawn
        anywhere, parts = self.action_space.sample(key), tree_of(self.action_space)
        choose = lambda part, drawn, any_: any_ if isinstance(part, Box) else drawn
        return jax.tree.map(choose, parts, drawn, anywhere)


class Scores(struct.PyTreeNode):
    """Sums over finished episodes, [...]; old ones count less, see `OpponentPool.window`."""

    episodes: jax.Array  # f32
    points: jax.Array  # f32  1 of a won one, 1/2 of a draw
    returns: jax.Array  # f32  of the policy that learns

    @property
    def win_rate(self) -> jax.Array:
        """0 where nothing was played."""
        return self.points / jnp.maximum(self.episodes, 1.0)

    @classmethod
    def none(cls, *shape: int) -> "Scores":
        return cls(jnp.zeros(shape), jnp.zeros(shape), jnp.zeros(shape))


class PoolState(struct.PyTreeNode):
    """The members, [K, ...] of weights and S functions, and the results against them."""

    weights: PolicyWeights  # [K, ...]
    # i32[K]  the iteration that a copy was made after; -1: no member yet
    iteration: jax.Array
    num_copies: jax.Array  # i32[]  so far, the first member included
    scores: Scores  # [K + S]
    since_copy: Scores  # []


class PoolMetrics(struct.PyTreeNode):
    """The metrics of the pool in an iteration."""

    iteration: jax.Array  # i32[K]
    num_copies: jax.Array  # i32[]
    scores: Scores  # [K + S]


class Sides(NamedTuple):
    """The two sides of a game: numbers of agents in the environment's order."""

    learners: tuple[int, ...]
    opponents: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Pool:
    """A pool for the policies of a configuration: everything static."""

    settings: OpponentPool
    policy: PolicyId  # whom the members play for
    group: int
    learner: PolicyId | None  # the policy that is copied, if one is
    copied: tuple[int, int] | None  # its (group, index)
    sides: Sides
    scripted: tuple[Callable[..., Any], ...]

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the members, in the order of the arrays."""
        settings = self.settings
        copies = (f"{COPY}{i}" for i in range(settings.size))
        return (*copies, *settings.runs, *settings.functions)

    def describe(self) -> str:
        """The members of the pool, in a few words."""
        settings, often = self.settings, []
        if settings.every is not None:
            often.append(f"every {settings.every} iterations")
        if settings.at_win_rate is not None:
            often.append(f"at a win rate of {settings.at_win_rate:g}")
        parts = [f"{self.policy} at its start"]
        if often:
            parts = [f"{settings.size} copies of {self.learner}, {' or '.join(often)}"]
        parts += [name for name, _ in settings.fixed]
        return f"a pool: {'; '.join(parts)} ({settings.draw})"

    @property
    def num_weights(self) -> int:
        return self.settings.size + len(self.settings.runs)

    def init(self, weights: PolicyWeights) -> PoolState:
        """One copy, the policy's present weights; what runs bring is loaded later.

        Args:
            weights: of the policy's group, [1, ...].
        """
        rows = self.num_weights
        fill = lambda leaf: jnp.broadcast_to(leaf, (rows, *leaf.shape[1:]))
        return PoolState(
            weights=jax.tree.map(fill, weights),
            iteration=jnp.full(rows, -1, jnp.int32).at[0].set(0),
            num_copies=jnp.int32(1),
            scores=Scores.none(len(self.members)),
            since_copy=Scores.none(),
        )

    def newest(self, state: PoolState) -> jax.Array:
        """The number of the newest copy, i32[]."""
        return (state.num_copies - 1) % self.settings.size

    def opponents(self, state: PoolState) -> Opponents:
        """The opponents that act in training."""
        return Opponents(state.weights, self.chances(state), self.scripted)

    def present(self, state: PoolState) -> dict[str, int]:
        """The numbers of the members that are there, by name; read on the host."""
        is_empty = (np.asarray(state.iteration) < 0).tolist()
        is_empty += [False] * len(self.scripted)
        return {name: i for i, name in enumerate(self.members) if not is_empty[i]}

    def player(self, state: PoolState, name: str) -> PolicyWeights | Opponents:
        """The opponents that act outside of training: one member, or with "pool" all of them.

        Raises:
            UsageError: there is no such member.
        """
        if name == EVERYBODY:
            return self.opponents(state)
        present = self.present(state)
        if name not in present:
            raise unknown_name("opponent", name, (*present, EVERYBODY))
        number = present[name]
        is_function = number >= self.num_weights
        row = 0 if is_function else number
        weights = jax.tree.map(lambda leaf: leaf[row : row + 1], state.weights)
        if not is_function:
            return weights
        act = self.scripted[number - self.num_weights]
        return Opponents(weights, jnp.array([0.0, 1.0]), (act,))

    def label(self, state: PoolState, name: str | None = None) -> str:
        """A member for people; None: the newest copy."""
        if name is not None and not name.startswith(COPY):
            return name
        member = self.newest(state) if name is None else self.members.index(name)
        return copy_label(int(state.iteration[member]))

    def chances(self, state: PoolState) -> jax.Array:
        """The relative frequency with which each member is drawn, f32[K + S]."""
        is_there = jnp.append(state.iteration >= 0, jnp.ones(len(self.scripted), bool))
        if self.settings.draw == "uniform":
            return jnp.float32(is_there)
        if self.settings.draw == "latest":
            return jax.nn.one_hot(self.newest(state), len(self.members))
        return jnp.where(is_there, (1.0 - state.scores.win_rate) ** 2 + LEAST_CHANCE, 0.0)

    def with_weights(
        self, state: PoolState, member: jax.Array | int, weights: PolicyWeights, iteration: Any
    ) -> PoolState:
        """The pool with the weights of one member, which begins without results."""
        put = lambda rows, new: rows.at[member].set(new)
        return state.replace(
            weights=jax.tree.map(put, state.weights, weights),
            iteration=state.iteration.at[member].set(iteration),
            scores=jax.tree.map(lambda rows: rows.at[member].set(0.0), state.scores),
        )

    def after(
        self,
        state: PoolState,
        learners: tuple[PyTree, ...],
        rollout: Rollout,
        num_updates: jax.Array,
        axis_name: str | None,
    ) -> tuple[PoolState, tuple[PyTree, ...], PoolMetrics]:
        """(pool, learners, metrics) after update number `num_updates` and its rollout.

        The policy that the pool plays for has the weights of the newest copy outside of training.
        """
        new = over_axis(self._results(rollout), axis_name)
        since_copy = jax.tree.map(jnp.add, state.since_copy, jax.tree.map(jnp.sum, new))
        is_due = self._is_due(since_copy, num_updates)
        scores = self._shrunk(jax.tree.map(jnp.add, state.scores, new))
        state = state.replace(scores=scores, since_copy=self._shrunk(since_copy))
        metrics = PoolMetrics(state.iteration, state.num_copies, state.scores)
        if self.copied is None:
            return state, learners, metrics
        group, index = self.copied
        copy = jax.tree.map(lambda leaf: leaf[index], learners[group].weights)
        grown = state.replace(num_copies=state.num_copies + 1, since_copy=Scores.none())
        grown = self.with_weights(grown, self.newest(grown), copy, num_updates)
        player = learners[self.group]
        renewed = player.with_weights(jax.tree.map(lambda leaf: leaf[None], copy))
        choose = lambda new, old: jnp.where(is_due, new, old)
        state, player = jax.tree.map(choose, (grown, renewed), (state, player))
        learners = (*learners[: self.group], player, *learners[self.group + 1 :])
        return state, learners, metrics

    def _is_due(self, since_copy: Scores, num_updates: jax.Array) -> jax.Array:
        """Returns whether the policy is copied now, bool[].

        Args:
            since_copy: with this iteration's results, before they are shrunk: while there are no
                others they are whole and half numbers, which no rounding has touched.
        """
        is_due, settings = jnp.array(False), self.settings
        if settings.every is not None:
            is_due |= num_updates % settings.every == 0
        if settings.at_win_rate is not None:
            has_won = since_copy.win_rate >= settings.at_win_rate
            is_due |= has_won & (since_copy.episodes >= settings.window)
        return is_due

    def _results(self, rollout: Rollout) -> Scores:
        """The scores of the episodes that ended in a rollout, by member, [K + S]."""
        returns, points = self.points(rollout.reached.returns)

        def against(member):
            counts = rollout.episode_done & (rollout.shown[SelfPlay.name] == member)
            values = jnp.ones_like(returns), points, returns
            return Scores(*(jnp.sum(jnp.where(counts, value, 0.0)) for value in values))

        return jax.vmap(against)(jnp.arange(len(self.members)))

    def points(self, returns: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(return of the side that learns, its points) of episodes with f32[..., M] returns."""
        learner, others = (returns[..., np.array(side)].sum(axis=-1) for side in self.sides)
        if self.settings.won_at is None:
            is_won, is_draw = learner > others, learner == others
            return learner, is_won.astype(np.float32) + 0.5 * is_draw.astype(np.float32)
        return learner, (learner >= self.settings.won_at).astype(np.float32)

    def _shrunk(self, scores: Scores) -> Scores:
        """The sums with the weight of `window` episodes where they are more.

        Whole numbers stay whole where they can: n * (window / n) is often less than `window`.
        """
        window, episodes = float(self.settings.window), scores.episodes
        is_more = episodes > window
        shrink = lambda leaf: jnp.where(is_more, leaf * window / episodes, leaf)
        return Scores(jnp.minimum(episodes, window), shrink(scores.points), shrink(scores.returns))


def pool_policy(
    pool: OpponentPool | None, policies: Collection[PolicyId], trained: tuple[PolicyId, ...]
) -> PolicyId | None:
    """Whom the pool plays for; None without a pool.

    Raises:
        UsageError: there is no such policy, or gradients train it.
    """
    if pool is None:
        return None
    others = [policy for policy in policies if policy not in trained]
    if pool.policy is not None and pool.policy not in policies:
        raise unknown_name("policy", pool.policy, policies, "of opponents")
    if pool.policy in trained or not others:
        named = "every policy" if pool.policy is None else f"policy {pool.policy!r}"
        raise UsageError(
            f"opponents: {named} is trained, and a pool plays for a policy that is not: name the "
            f"policies that learn by policies_to_train, of {', '.join(policies)}"
        )
    if pool.policy is None and len(others) > 1:
        raise UsageError(
            f"opponents: {', '.join(others)} are not trained: say which by "
            f"OpponentPool(policy={others[0]!r})"
        )
    return others[0] if pool.policy is None else pool.policy


def make_pool(
    settings: OpponentPool | None, rollout_spec: RolloutSpec, trained: tuple[PolicyId, ...]
) -> Pool | None:
    """The pool of a configuration, whose functions are traced once, and not computed.

    Raises:
        UsageError: policies of other spaces or networks, or functions that break their contract.
    """
    grouping = rollout_spec.grouping
    policy = pool_policy(settings, grouping.policies, trained)
    if policy is None:
        return None
    if not trained:
        raise UsageError("opponents: no policy is trained, so there is nobody to play against")
    copied = _copied(settings, trained)
    if copied is not None:
        _check_alike(rollout_spec, policy, copied)
    sides = (trained if copied is None else (copied,)), (policy,)
    group = grouping.locate(policy)[0]
    return Pool(
        settings,
        policy,
        group,
        copied,
        None if copied is None else grouping.locate(copied),
        Sides(*(_agents_of(grouping, policies) for policies in sides)),
        tuple(
            _resolved(name, entry, rollout_spec, group)
            for name, entry in settings.functions.items()
        ),
    )


def _copied(settings: OpponentPool, trained: tuple[PolicyId, ...]) -> PolicyId | None:
    """The policy that is copied, if any is."""
    if settings.copies is not None and settings.copies not in trained:
        raise unknown_name("policy", settings.copies, trained, "to copy, of those that are trained")
    if not settings.grows:
        return settings.copies
    if settings.copies is None and len(trained) > 1:
        raise UsageError(
            f"opponents: {', '.join(trained)} are trained: say which is copied by "
            f"OpponentPool(copies={trained[0]!r})"
        )
    return trained[0] if settings.copies is None else settings.copies


def _check_alike(rollout_spec: RolloutSpec, policy: PolicyId, copied: PolicyId) -> None:
    """Refuses a policy whose copies cannot play for `policy`."""
    specs = []
    for name in (policy, copied):
        group, _ = rollout_spec.grouping.locate(name)
        specs.append(rollout_spec.policy_specs[group])
    names = ["observation_space", "action_space"]  # first: networks depend on them
    names += field_names(PolicySpec)
    for name in names:
        if name == "exploration":  # a learner may explore where its opponents do not
            continue
        here, there = (getattr(spec, name) for spec in specs)
        if here != there:
            raise UsageError(
                f"opponents: copies of {copied!r} cannot play for {policy!r}: "
                f"{_difference(name, there, here)}; a pool of fixed members needs no copies"
            )


def _difference(name: str, there: Any, here: Any) -> str:
    """`they have model.hiddens=(64, 64), it needs (32,)`: the first that is not equal."""
    is_model = name.startswith("model")
    rounds = [isinstance(model, MixedPrecision) for model in (there, here)]
    if rounds[0] != rounds[1]:
        dtypes = ("bfloat16" if is_rounded else "float32" for is_rounded in rounds)
        return _they_have("network_dtype", *dtypes)
    if is_model and type(there) is type(here) and dataclasses.is_dataclass(here):
        for field in dataclasses.fields(here):
            pair = getattr(there, field.name, None), getattr(here, field.name, None)
            if field.name not in ("parent", "name") and pair[0] != pair[1]:
                return _difference(f"{name}.{field.name}", *pair)
    if is_model and type(there) is not type(here):
        classes = (type(getattr(model, "inner", model)).__name__ for model in (there, here))
        return _they_have(name, *classes)
    return _they_have(name, brief(there), brief(here))


def _they_have(name: str, there: str, here: str) -> str:
    return f"they have {name}={there}, it needs {here}"


def _agents_of(grouping: Grouping, policies: tuple[PolicyId, ...]) -> tuple[int, ...]:
    """The numbers of these policies' agents, in the environment's order."""
    names = {
        agent
        for group in grouping.groups
        for policy, agents in zip(group.policies, group.agents, strict=True)
        for agent in (agents if policy in policies else ())
    }
    return tuple(i for i, agent in enumerate(grouping.agents) if agent in names)


def _resolved(
    name: str, entry: Any, rollout_spec: RolloutSpec, group: int
) -> Callable[[PyTree, Key, PyTree], jax.Array]:
    """The function act(obs, key, action_mask) of a fixed opponent, checked."""
    policy_spec = rollout_spec.policy_specs[group]
    space = policy_spec.action_space
    if entry == RANDOM:
        return RandomActions(space)
    function = load(ACT, parse_name(entry)) if isinstance(entry, str) else entry
    act = Scripted(function, takes_mask(name, function))
    masked = rollout_spec.masked or has_mask(policy_spec.observation_space)

    def first_action(key):
        mask = jnp.ones(mask_length(space), bool) if masked else None
        action = act(policy_spec.observation_space.sample(key), key, mask)
        return action if is_tree(space) else jnp.asarray(action)

    try:
        action = jax.eval_shape(first_action, jax.eval_shape(lambda: jax.random.key(0)))
    except Exception as error:
        raise UsageError(f"opponents: {name} fails as it is traced: {reason_of(error)}") from error
    kind = lambda part: next(k for k in KINDS if jnp.issubdtype(part.dtype, k))
    is_like = lambda part, leaf: leaf.shape == part.shape and jnp.issubdtype(leaf.dtype, kind(part))
    parts, structure = jax.tree.flatten(tree_of(space))
    is_same = jax.tree.structure(action) == structure
    if not (is_same and all(map(is_like, parts, jax.tree.leaves(action)))):
        found = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", action)
        raise UsageError(f"opponents: {name} must return an action of {space}, not {found}")
    return act
