"""The policies of a trainer, one by one: acting with them, reading and replacing their weights."""

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.algorithms.base import Algorithm, RunnerState
from jaxrl.algorithms.task_settings import RANDOM
from jaxrl.core.errors import UsageError, brief, named_policy, nearest, unknown_name, unlike
from jaxrl.core.fields import UINT32, count, instance_of, text
from jaxrl.core.program_spaces import is_alike_inside
from jaxrl.core.spaces import to_json
from jaxrl.core.types import DEFAULT_AGENT, AgentId, PolicyId
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.run.devices.mesh import copy_here
from jaxrl.run.storage import checkpoint
from jaxrl.run.storage.runs import LATEST

if TYPE_CHECKING:
    from jaxrl.run.inference.policy import Policy


class PolicyAccess:
    """The methods of a trainer with an `algorithm` and a `runner` for single policies."""

    num_draws = 0  # calls of `compute_actions` so far: each draws anew

    @property
    def iteration(self) -> int:
        """The number of iterations so far."""
        return self.lifetime.training_iteration

    def get_policy(self, policy: PolicyId | None = None, *, seed: int = 0) -> "Policy":
        """A copy of a policy, which further training does not change.

        Args:
            policy: its name; may be left out if there is one alone.
            seed: of the actions that it draws.
        """
        from jaxrl.play.host_episodes import Players
        from jaxrl.play.sampling import env_of
        from jaxrl.run.inference.policy import Origin, Policy

        text("a policy's name", optional=True)("policy", policy)
        count(0, UINT32)("seed", seed)
        what = f"the {type(self).__name__.lower()}"
        if policy in self.config.setup().idle:
            raise UsageError(f"policy {policy!r} plays nobody, so it has no spaces and no weights")
        policy = named_policy(policy, self.algorithm.grouping.policies, what)
        g, index = self.algorithm.grouping.locate(policy)
        agents = self.algorithm.grouping.groups[g].agents[index]
        runner = with_weights_here(self.runner)
        weights = self.algorithm.policy_weights(runner, policy)
        all_weights = tuple(learner.weights for learner in runner.learners)
        env_params, env = self.env_params, env_of(self.config)
        players = functools.partial(Players, self.algorithm, all_weights, env_params, env)
        return Policy(
            self.algorithm.policy_specs[g],
            jax.device_put(weights),
            name=policy,
            agents=agents,
            masked=self.algorithm.rollout_spec.masked,
            seed=seed,
            origin=Origin(self.config.env_name, what, players),
        )

    def compute_actions(
        self,
        observations: Mapping[AgentId, Any],
        *,
        explore: bool = False,
        action_masks: Mapping[AgentId, Any] = MappingProxyType({}),
    ) -> dict[AgentId, Any]:
        """The actions of the agents' policies, {agent: action}; observations may be batches."""
        instance_of(Mapping, "a mapping {agent: observation}")("observations", observations)
        owner = {
            agent: policy
            for group in self.algorithm.grouping.groups
            for policy, agents in zip(group.policies, group.agents, strict=True)
            for agent in agents
        }
        if free := list(owner) == [DEFAULT_AGENT]:  # a single agent goes by any names, as in RLlib
            owner = dict.fromkeys(observations, owner[DEFAULT_AGENT])
        key = self._next_key()
        actions, acting, places = {}, {}, list(owner)
        for agent, observation in observations.items():
            if agent not in owner:
                raise unknown_name("agent", agent, owner)
            policy = acting.setdefault(owner[agent], self.get_policy(owner[agent]))
            agent_key = jax.random.fold_in(key, places.index(agent))
            _refuse_memory("compute_actions", policy)
            name, mask = DEFAULT_AGENT if free else agent, action_masks.get(agent)
            actions[agent] = policy.act(
                observation, explore=explore, key=agent_key, agent=name, action_mask=mask
            )
        return actions

    def compute_single_action(
        self,
        observation: Any,
        state: Any = None,
        *,
        prev_action: Any = None,
        info: Any = None,
        policy_id: PolicyId | None = None,
        explore: bool | None = None,
        full_fetch: bool = False,
        **inputs: Any,
    ) -> Any:
        """The action of a policy, by RLlib's name; `get_policy(policy).act` does the same faster.

        Args:
            state: not taken: `get_policy(policy).act` remembers by itself.
            prev_action, info: not read: a policy that remembers its last action keeps it.
            policy_id: its name; may be left out if there is one alone.
            explore: whether the action is drawn; None: the setting `explore` of the policy.
            full_fetch: not taken: `get_policy(policy).distribution` and `value` give the rest.
            **inputs: `prev_reward`, `action_mask` and `agent`, as of `Policy.act`.
        """
        if state or full_fetch:
            what = "state" if state else "full_fetch"
            instead = "act remembers by itself" if state else "distribution and value have the rest"
            raise UsageError(f"compute_single_action takes no {what}: get_policy(policy).{instead}")
        policy = self.get_policy(policy_id)
        _refuse_memory("compute_single_action", policy)
        explores = self.config.for_policy(policy.name).explore if explore is None else explore
        return policy.act(observation, explore=explores, key=self._next_key(), **inputs)

    compute_action = compute_single_action  # by RLlib's older name

    def _next_key(self) -> jax.Array:
        from jaxrl.run.inference.policy import acting_key

        key = jax.random.fold_in(acting_key(self.config.seed, "compute_actions"), self.num_draws)
        self.num_draws += 1
        return key

    def get_weights(self, policies: Iterable[PolicyId] = ()) -> dict[PolicyId, PolicyWeights]:
        """The policies' weights as NumPy arrays; those of all where none is named."""
        runner, every = with_weights_here(self.runner), self.algorithm.grouping.policies
        names = [named_policy(policy, every, "the run") for policy in policies or every]
        return {policy: self.algorithm.policy_weights(runner, policy) for policy in names}

    def set_weights(self, weights: Mapping[PolicyId, PolicyWeights]) -> None:
        """Replaces weights, also by a `Policy`'s, in all processes alike; optimiser states stay.

        Raises:
            UsageError: an unknown policy; another structure, shape or kind of number; NaN or
                infinity.
        """
        if not isinstance(weights, Mapping):
            raise UsageError(
                f"set_weights takes {{policy: weights}} as get_weights gives them, not "
                f"{brief(weights)}"
            )
        if self.processes.inside:
            raise UsageError(
                "several processes train: a callback, in process 0, cannot set weights"
            )
        runner = with_learners_here(self.runner)
        for policy, new in weights.items():
            new = getattr(new, "weights", new)  # of a `Policy`
            _check_alike(policy, self.algorithm.policy_weights(runner, policy), new)
            new = jax.tree.map(np.asarray, new)  # wherever they lie
            runner = self.algorithm.with_policy_weights(runner, policy, new)
        self._runner = runner


def _refuse_memory(call: str, policy: "Policy") -> None:
    if policy.remembers:
        raise UsageError(
            f"{call}: policy {policy.name!r} remembers, and this forgets between calls; "
            f"get_policy({policy.name!r}).act does not"
        )


def with_learners_here(runner: RunnerState) -> RunnerState:
    """`runner` with its learners in this process's arrays, for what one process computes alone."""
    return runner.replace(learners=jax.tree.map(copy_here, runner.learners))


def with_weights_here(runner: RunnerState) -> RunnerState:
    """`runner` with its policies' weights as NumPy arrays, parts of which compile nothing."""
    here = lambda leaf: np.asarray(copy_here(leaf))
    learners = (
        learner.with_weights(jax.tree.map(here, learner.weights)) for learner in runner.learners
    )
    return runner.replace(learners=tuple(learners))


def begun_with(
    algorithm: Algorithm, runner: RunnerState, weights: Mapping[PolicyId, PolicyWeights]
) -> RunnerState:
    """A first state with some policies' weights replaced."""
    runner = with_learners_here(runner) if weights else runner
    for policy, new in weights.items():
        runner = algorithm.with_policy_weights(runner, policy, new)
    return runner


def initial_weights(algorithm: Algorithm, init_from: Any) -> dict[PolicyId, PolicyWeights]:
    """Weights for the policies of `init_from`, {policy: path} or {policy: path#policy}, checked."""
    weights = {}
    for policy, source in dict(init_from).items():
        path, source_policy = _path_and_policy(str(source), policy)
        group, _ = algorithm.grouping.locate(policy)
        weights[policy] = _saved_weights(
            checkpoint.open_found(Path(path)), source_policy, algorithm.policy_specs[group]
        )
    return weights


def _saved_weights(
    saved: checkpoint.Checkpoint, policy: PolicyId, policy_spec: PolicySpec
) -> PolicyWeights:
    if policy not in saved.facts["policies"]:
        raise unknown_name("policy", policy, saved.facts["policies"], f"in {saved.path}")
    return checkpoint.saved_weights(saved, policy, policy_spec)


def weights_of_runs(algorithm: Algorithm) -> dict[int, PolicyWeights]:
    """The opponents that a configuration takes from runs, {member: weights}, checked.

    Raises:
        UsageError: no such run, or one of other spaces or networks.
    """
    pool, weights = algorithm.opponents, {}
    for name, source in () if pool is None else pool.settings.runs.items():
        group = algorithm.grouping.groups[pool.group]
        path, policy = _path_and_policy(source, pool.learner or pool.policy)
        _check_is_folder(name, source, Path(path))
        saved = checkpoint.open_found(Path(path))
        for what in ("observation_space", "action_space"):
            here = json.loads(json.dumps(to_json(getattr(group, what))))
            there = saved.facts["policies"].get(policy, {}).get(what, here)
            if not is_alike_inside(there, here):
                difference = unlike(f"{what} of policy {policy!r}", there, here)
                raise UsageError(f"opponents: {name}: {difference}")
        policy_spec = algorithm.policy_specs[pool.group]
        weights[pool.members.index(name)] = _saved_weights(saved, policy, policy_spec)
    return weights


def _check_is_folder(name: str, source: str, path: Path) -> None:
    """Refuses what is no folder, and may have been meant for another kind of opponent."""
    if checkpoint.run_path(path).exists() or path.name == LATEST:
        return
    hint = f"; did you mean {RANDOM!r}?" if nearest(str(path), [RANDOM]) else ""
    raise UsageError(
        f"opponents: {name}={source!r} must be {RANDOM!r}, module:function or a run's folder, and "
        f"there is no folder {path}{hint}"
    )


def with_opponents(
    algorithm: Algorithm, runner: RunnerState, weights: Mapping[int, PolicyWeights]
) -> RunnerState:
    """A first state with members of its pool replaced."""
    opponents = runner.opponents
    for member, new in weights.items():
        opponents = algorithm.opponents.with_weights(opponents, member, new, 0)
    return runner.replace(opponents=opponents)


def _path_and_policy(source: str, policy: PolicyId) -> tuple[str, PolicyId]:
    """`path#policy` in two; a path may hold a "#" itself, and the policy's name may be left out."""
    path, mark, source_policy = source.rpartition("#")
    if not mark or Path(source).exists():
        return source, policy
    return path, source_policy or policy


def _check_alike(policy: PolicyId, old: PolicyWeights, new: PolicyWeights) -> None:
    what = f"weights of policy {policy!r}"
    if jax.tree.structure(old) != jax.tree.structure(new):
        raise UsageError(f"{what} have another structure than those of `get_weights`")
    for before, after in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
        after = np.asarray(after)
        if before.shape != after.shape:
            raise UsageError(f"{what}: {list(after.shape)} where {list(before.shape)} belong")
        if not np.can_cast(after.dtype, before.dtype, "same_kind"):
            raise UsageError(f"{what}: {after.dtype} where {before.dtype} belongs")
        with np.errstate(over="ignore"):
            after = after.astype(before.dtype)
        if np.issubdtype(after.dtype, np.floating) and not np.all(np.isfinite(after)):
            raise UsageError(f"{what} must be finite numbers; they hold NaN or infinity")
