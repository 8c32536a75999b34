"""Environments of jaxrl for RLlib (https://docs.ray.io/en/latest/rllib, 2.60).

    ray.tune.register_env("arena", lambda config: jaxrl.to_rllib("arena"))
    PPOConfig().environment("arena")      a MultiAgentEnv
        .env_runners(env_runner_cls=jaxrl.rllib_env_runner(), num_envs_per_env_runner=64)

A step of all agents is one compiled program, and with that env runner one of all environments too:
RLlib's makes several environments by calling the function again and steps them one by one. Ray is
imported when an environment is made.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.adapters import to_numpy
from jaxrl.adapters.to_numpy import as_actions, by_agent, derived, require_started, resolve
from jaxrl.adapters.to_pettingzoo import PettingZooEnv, leaving, no_action
from jaxrl.core.env import MultiAgentEnvironment, acting_agents, agents_may_wait, is_stacked
from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.fields import count, only, takes
from jaxrl.core.spaces import Space, is_tree
from jaxrl.core.types import ALL, AgentId, PyTree

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_env import MultiAgentEnv
    from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
    from ray.rllib.env.vector.vector_multi_agent_env import VectorMultiAgentEnv

ByAgent = dict[AgentId, Any]


@takes()
def to_rllib(env: Any, params: PyTree = None, *, render_mode: str | None = None) -> "MultiAgentEnv":
    """A `MultiAgentEnv` of RLlib, of an environment with any number of agents.

    Seeds, infos and agents that leave are as for `to_pettingzoo`. An agent that waits is given no
    observation until it acts again, as RLlib expects.

    Args:
        env: an environment or its name.
        params: its parameters; None: the default ones.
        render_mode: "rgb_array", or None.

    Raises:
        UsageError: RLlib is not installed, an unknown `render_mode`.
    """
    try:
        from ray.rllib.env.multi_agent_env import MultiAgentEnv
    except ImportError as error:  # Ray may be installed without what RLlib needs
        raise _not_installed("to_rllib", error) from None
    env, params = resolve(env, params)
    return derived(RllibEnv, MultiAgentEnv)(env, params, render_mode)


@takes(num_envs=count())
def to_rllib_vector(
    env: Any, num_envs: int, params: PyTree = None, *, render_mode: str | None = None
) -> "VectorMultiAgentEnv":
    """A `VectorMultiAgentEnv` of RLlib: many copies of an environment, which step together.

    Copy i of `reset(seed=s)` plays the episodes of `to_rllib` with seed s + i. Actions and results
    are lists with a dict for each copy. The step after an end is the reset, as in RLlib's
    `SyncVectorMultiAgentEnv`: actions are ignored and rewards are 0. `envs` are the copies' spaces,
    agents and pictures; they do not step by themselves.

    Args:
        env, params, render_mode: as for `to_rllib`.
        num_envs: how many.

    Raises:
        UsageError: as for `to_rllib`, and no whole `num_envs`.
    """
    return to_rllib(env, params, render_mode=render_mode).many(num_envs)


def rllib_env_runner() -> "type[MultiAgentEnvRunner]":
    """RLlib's `MultiAgentEnvRunner`, stepping all its environments by one compiled program.

    For `config.env_runners(env_runner_cls=...)`, with an environment made by `to_rllib`.

    Raises:
        UsageError: RLlib is not installed.
    """
    try:
        from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
    except ImportError as error:
        raise _not_installed("rllib_env_runner", error) from None
    return derived(RllibEnvRunner, MultiAgentEnvRunner)


def _not_installed(function: str, error: ImportError) -> UsageError:
    return UsageError(f'{function} needs RLlib: pip install "jaxrl[rllib]" ({one_line(error)})')


# ---- one environment


@functools.partial(jax.jit, static_argnums=0)
def acting(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> jax.Array:
    """bool[M]: the agents that act in a state."""
    return acting_agents(env, state, params)


class RllibEnv(PettingZooEnv):
    """A `MultiAgentEnv` of RLlib; see `to_rllib`."""

    def __init__(self, env: Any, params: PyTree, render_mode: str | None):
        super().__init__(env, params, render_mode)
        self._agent_ids = set(self.possible_agents)  # RLlib checks no environment without it

    def reset(
        self, *, seed: int | None = None, options: dict | None = None
    ) -> tuple[dict[AgentId, PyTree], dict[AgentId, dict]]:
        """Returns (obs, infos) of a new episode, of the agents that act."""
        obs, infos = super().reset(seed, options)
        due = self._due()
        return only(obs, due), only(infos, due)

    def step(self, action_dict: Mapping[AgentId, PyTree]) -> tuple[dict, dict, dict, dict, dict]:
        """Returns (obs, rewards, terminateds, truncateds, infos), by agent."""
        waiting = set(self.agents) - set(self._due())
        actions = {agent: no_action(self._actions[agent]) for agent in waiting}
        raw, results = self._advance({**actions, **action_dict})
        obs, rewards, terminateds, truncateds, infos = results
        shown = {*self._due(), *(agent for agent in obs if agent not in self.agents)}
        terminateds[ALL] = bool(raw.all_terminated)
        truncateds[ALL] = bool(raw.episode_done and not raw.all_terminated)
        return only(obs, shown), rewards, terminateds, truncateds, only(infos, shown)

    def many(self, num_envs: int) -> "VectorMultiAgentEnv":
        """Copies of this environment that step together."""
        from ray.rllib.env.vector.vector_multi_agent_env import VectorMultiAgentEnv

        return derived(RllibVectorEnv, VectorMultiAgentEnv)(self, self._episodes, num_envs)

    def _due(self) -> list[AgentId]:
        """The agents that act next."""
        env, current = self._episodes.env, self._episodes.current
        if not agents_may_wait(env) or current is None:
            return self.agents
        flags = acting(env, current.state, self._episodes.params).tolist()
        acting_next = set(itertools.compress(env.agents, flags))
        return [agent for agent in self.agents if agent in acting_next]


# ---- many environments


@functools.partial(jax.jit, static_argnums=0)
def acting_of_many(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> jax.Array:
    """bool[E, M]: the agents that act in states [E]."""
    return jax.vmap(lambda state: acting_agents(env, state, params))(state)


class RllibVectorEnv:
    """A `VectorMultiAgentEnv` of RLlib; see `to_rllib_vector`."""

    def __init__(self, single: RllibEnv, played: to_numpy.Episodes, num_envs: int):
        from gymnasium.spaces import Dict

        self.num_envs = num_envs
        self.metadata = {**single.metadata, "autoreset_mode": "next_step"}
        self.render_mode = single.render_mode
        self.possible_agents = single.possible_agents
        self.single_observation_spaces = single.observation_spaces
        self.single_action_spaces = single.action_spaces
        self.single_observation_space = Dict(single.observation_spaces)
        self.single_action_space = Dict(single.action_spaces)
        copy = derived(RllibCopy, type(single))
        self.envs = [copy(self, i) for i in range(num_envs)]
        env, params = played.env, played.params
        self._actions = {agent: env.action_space(agent, params) for agent in env.agents}
        self._episodes = to_numpy.ManyEpisodes(env, params, num_envs, to_numpy.NEXT_STEP)
        self._random = np.random.default_rng()
        self._ended = np.zeros(num_envs, bool)  # episodes that the next step resets
        self.present = np.zeros((num_envs, len(self.possible_agents)), bool)  # have not ended
        self._due = self.present

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict | None = None
    ) -> tuple[list[ByAgent], list[ByAgent]]:
        """Returns (obs, infos) of new episodes, of the agents that act."""
        everywhere = np.ones(self.num_envs, bool)
        obs, masks = self._episodes.reset(seed, everywhere, self._random)
        self._ended, self.present = ~everywhere, np.ones_like(self.present)
        self._due = self._next_due()
        return self._rows(obs, self._due), self._infos([{}] * self.num_envs, masks, self._due)

    def step(self, actions: Sequence[Mapping[AgentId, PyTree]]) -> tuple[list[ByAgent], ...]:
        """Returns (obs, rewards, terminateds, truncateds, infos), for each copy by agent."""
        require_started(self._episodes.current, "step")
        begun = self._ended
        results = self._episodes.step(self._joint_action(actions))
        raw = results.raw
        playing = self.present | begun[:, None]
        left = raw.truncated | leaving(self._episodes.env, raw)
        self._ended, self.present = raw.episode_done, playing & ~left
        self._due = self._next_due()
        shown = self._due | (playing & left)
        metrics = _rows_of(only(raw.info, {"metrics"}), list) or [{}] * self.num_envs
        for i in np.flatnonzero(begun):
            metrics[i] = {}
        cut = raw.episode_done & ~raw.all_terminated
        return (
            self._rows(results.obs, shown),
            self._numbers(raw.reward, playing),
            self._numbers(leaving(self._episodes.env, raw), playing, raw.all_terminated),
            self._numbers(raw.truncated, playing, cut),
            self._infos(metrics, results.masks, shown),
        )

    def render(self) -> tuple[np.ndarray, ...] | None:
        """A picture u8[H, W, 3] of each copy, with render_mode "rgb_array"."""
        return None if self.render_mode is None else tuple(self._episodes.render())

    def _next_due(self) -> np.ndarray:
        """bool[E, M]: the agents that act next."""
        env, params = self._episodes.env, self._episodes.params
        if not agents_may_wait(env):
            return self.present
        state = self._episodes.current.keyed.state
        return self.present & np.asarray(acting_of_many(env, state, params))

    def _joint_action(self, actions: Sequence[Mapping[AgentId, PyTree]]) -> PyTree:
        """The actions of all agents as the environment takes them; zeros of those that wait."""
        if len(actions) != self.num_envs:
            raise UsageError(f"step() needs {self.num_envs} dicts of actions, not {len(actions)}")
        needed = self._due & ~self._ended[:, None]
        joint = {}
        for (agent, space), acts in zip(self._actions.items(), needed.T.tolist(), strict=True):
            idle, rows = no_action(space), []
            for action, due in zip(actions, acts, strict=True):
                if due and agent not in action:
                    raise UsageError(
                        f"step() needs an action for agent {agent!r}, which has not ended"
                    )
                rows.append(action[agent] if due else idle)
            joint[agent] = as_actions(space, _stacked(space, rows), (self.num_envs,))
        if not is_stacked(self._episodes.env):
            return joint
        return jax.tree.map(lambda *leaves: np.stack(leaves, 1), *joint.values())

    def _rows(self, values: PyTree, where: np.ndarray) -> list[ByAgent]:
        """The values of the agents of `where`, bool[E, M], for each copy."""
        values = by_agent(self._episodes.env, values, axis=1)
        columns = [_rows_of(values[agent], _plain) for agent in self.possible_agents]
        return self._dicts(columns, where)

    def _numbers(
        self, values: np.ndarray, where: np.ndarray, everybody: np.ndarray | None = None
    ) -> list[ByAgent]:
        """The numbers [E, M] of the agents of `where`, and "__all__", for each copy."""
        rows = self._dicts(values.T.tolist(), where)
        if everybody is not None:
            for row, value in zip(rows, everybody.tolist(), strict=True):
                row[ALL] = value
        return rows

    def _infos(self, infos: list[dict], masks: PyTree, where: np.ndarray) -> list[ByAgent]:
        if masks is None:
            columns = [[dict(info) for info in infos] for _ in self.possible_agents]
            return self._dicts(columns, where)
        masks = by_agent(self._episodes.env, masks, axis=1)
        columns = []
        for agent in self.possible_agents:
            pairs = zip(infos, _rows_of(masks[agent], _plain), strict=True)
            columns.append([{**info, "action_mask": mask} for info, mask in pairs])
        return self._dicts(columns, where)

    def _dicts(self, columns: Sequence[Sequence], where: np.ndarray) -> list[ByAgent]:
        """A dict for each copy, of a column for each agent."""
        if where.all():
            agents = self.possible_agents
            return [dict(zip(agents, row, strict=True)) for row in zip(*columns, strict=True)]
        found = []
        for row, here in zip(zip(*columns, strict=True), where.tolist(), strict=True):
            cells = zip(self.possible_agents, row, here, strict=True)
            found.append({agent: value for agent, value, is_here in cells if is_here})
        return found


def _stacked(space: Space, actions: Sequence[PyTree]) -> PyTree:
    """Actions of one agent, one for each copy, as arrays [E, ...]."""
    try:
        if not is_tree(space):
            return np.array(actions)
        return jax.tree.map(lambda *leaves: np.array(leaves), *actions)
    except ValueError:
        raise UsageError(f"actions must have the structure and shape of {space}") from None


def _rows_of(values: PyTree, split: Callable[[np.ndarray], list]) -> list[PyTree]:
    """The part of each copy of arrays [E, ...], which `split` takes apart."""
    leaves, structure = jax.tree.flatten(values)
    return [structure.unflatten(row) for row in zip(*map(split, leaves), strict=True)]


def _plain(leaf: np.ndarray) -> list:
    """Each copy's part as `to_numpy.plain` has it."""
    if leaf.ndim == 1 and np.issubdtype(leaf.dtype, np.integer):
        return leaf.tolist()
    leaf = np.array(leaf)
    return [leaf[i, ...] for i in range(len(leaf))]


class RllibCopy:
    """One of the environments of an `RllibVectorEnv`: its spaces, agents and picture."""

    def __init__(self, together: RllibVectorEnv, index: int):
        self._together, self._index = together, index
        self.metadata, self.render_mode = together.metadata, together.render_mode
        self.possible_agents = together.possible_agents
        self.observation_spaces = together.single_observation_spaces
        self.action_spaces = together.single_action_spaces

    @property
    def agents(self) -> list[AgentId]:
        """The agents whose episodes have not ended."""
        present = self._together.present[self._index].tolist()
        return [agent for agent, here in zip(self.possible_agents, present, strict=True) if here]

    def reset(self, **_: Any) -> None:
        raise UsageError("copies reset together: call reset() of the vector environment")

    def step(self, action_dict: Any) -> None:
        raise UsageError("copies step together: call step() of the vector environment")

    def render(self) -> np.ndarray | None:
        """u8[H, W, 3] with render_mode "rgb_array"."""
        pictures = self._together.render()
        return None if pictures is None else pictures[self._index]


class RllibEnvRunner:
    """A `MultiAgentEnvRunner` of RLlib; see `rllib_env_runner`."""

    def make_env(self) -> None:
        """Makes `self.env`, as RLlib's runner does but for the copies that step together."""
        from ray.rllib.callbacks.utils import make_callback
        from ray.rllib.env.env_context import EnvContext
        from ray.rllib.utils.pre_checks.env import check_multiagent_environments

        if self.env is not None:
            self.env.close()
        config = self.config
        context = config.env_config
        if not isinstance(context, EnvContext):
            places = {"worker_index": self.worker_index, "num_workers": config.num_env_runners}
            context = EnvContext(context, **places)
        single = _made(config.env, context)
        if not config.disable_env_checking:
            check_multiagent_environments(single)
        self.num_envs = config.num_envs_per_env_runner
        self.env = single.many(self.num_envs)
        self._needs_initial_reset = True
        make_callback(
            "on_environment_created",
            callbacks_objects=self._callbacks,
            callbacks_functions=config.callbacks_on_environment_created,
            kwargs={
                "env_runner": self,
                "metrics_logger": self.metrics,
                "env": self.env,
                "env_context": context,
            },
        )


def _made(env: Any, context: Any) -> RllibEnv:
    """The environment of `config.environment(env)`."""
    from ray.rllib.env.utils import _gym_env_creator
    from ray.tune.registry import ENV_CREATOR, _global_registry

    if isinstance(env, str) and _global_registry.contains(ENV_CREATOR, env):
        made = _global_registry.get(ENV_CREATOR, env)(context)
    else:
        made = _gym_env_creator(context, env)
    made = getattr(made, "unwrapped", made)
    if not isinstance(made, RllibEnv):
        raise UsageError(
            f"the env runner of jaxrl needs an environment of jaxrl.to_rllib, not {brief(made)}"
        )
    return made
