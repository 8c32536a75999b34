"""Environments: the base classes for one agent and for many, with automatic reset.

An environment object holds what sets a shape (a frozen, hashable dataclass); `params` holds
numbers, which may be traced. An author writes `reset_env` and `step_env`, which do not reset;
`reset` and `step`, which resets by itself, are derived from them here. The contract for one agent
is that of gymnax 1.0, so that environments of either library run in the other.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core.errors import SpaceMethods, UsageError
from jaxrl.core.fast_prng import with_fast_keys
from jaxrl.core.types import ALL, DEFAULT_AGENT, DEFAULT_POLICY, AgentId, Key, PyTree

SINGLE_AGENT_METHODS = (
    *("reset_env", "step_env", "is_truncated"),
    *("observation_space", "action_space", "default_params"),
)


class Environment(SpaceMethods):
    """An environment of one agent. An author writes the five methods that raise here.

    Optional:
        tuned: a mapping of settings that suit the environment.
        fast_changes: without `tuned`, what differs from `PPOConfig.fast` for it.
        render(state, params): a picture, u8[H, W, 3].
        draw(state, params): shapes for the replay page, a `jaxrl.core.drawing.Drawing`.
        action_names: for that page, a word for each discrete action or element of a Box.
        action_mask(state, params): which actions are possible, bool[A] (the entries of
            MultiDiscrete actions are concatenated); [M, A] for stacked agents, else a dict by
            agent id.
        global_state(state, params): what a centralised critic sees with critic_observation="state";
            global_state_space(params): its space, if it is not a Box without bounds.
        check_params(params): rejects invalid parameters (UsageError); `make` calls it.
        agent_colors, legend: captions of pictures, {agent or thing: (red, green, blue)}.
        info["metrics"]: a dict of scalars per step, summed over the episode and reported.
    """

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def default_params(self) -> PyTree:
        raise _missing(self, "default_params")

    def observation_space(self, params: PyTree = None):
        raise _missing(self, "observation_space(params)")

    def action_space(self, params: PyTree = None):
        raise _missing(self, "action_space(params)")

    @property
    def num_actions(self) -> int:
        return self.action_space(self.default_params).n

    def reset_env(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        """Returns (obs, state) of a new episode."""
        raise _missing(self, "reset_env(key, params)")

    def step_env(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple:
        """One step without a reset; `terminated` excludes the time limit.

        Returns:
            (obs, state, reward f32[], terminated bool[], info).
        """
        raise _missing(self, "step_env(key, state, action, params)")

    def is_truncated(self, state: PyTree, params: PyTree) -> jax.Array:
        """bool[]: the time limit is reached."""
        return state.time >= params.max_steps_in_episode

    def reset(self, key: Key, params: PyTree = None) -> tuple[PyTree, PyTree]:
        """Returns (obs, state)."""
        params = self.default_params if params is None else params
        return with_fast_keys(self.reset_env, key, params)

    def step(self, key: Key, state: PyTree, action: PyTree, params: PyTree = None) -> tuple:
        """One step that starts a new episode where the old one ended.

        Returns:
            (obs, state, reward, terminated, truncated, info). obs and state are the new episode's
            where one began; info["final_observation"] is what the step itself reached. Where both
            hold, only `terminated` is set.
        """
        params = self.default_params if params is None else params
        step_key, reset_key = jax.random.split(key)
        stepped = with_fast_keys(self.step_env, step_key, state, action, params)
        obs, state, reward, terminated, info = stepped
        terminated = jnp.asarray(terminated)  # ~ of a Python bool is a number
        truncated = self.is_truncated(state, params) & ~terminated
        info = {**info, "final_observation": obs}
        fresh = with_fast_keys(self.reset_env, reset_key, params)
        obs, state = restart(terminated | truncated, fresh, (obs, state))
        return obs, state, reward, terminated, truncated, info


class MultiAgentEnvironment(SpaceMethods):
    """An environment of many agents, in dicts by agent id.

    The agents may have different spaces and may leave before the episode ends.

    `step_env` returns (obs, state, reward, terminated, info): obs, reward, terminated and, if
    given, info["active"] are dicts by agent id, `terminated` also with "__all__". active[agent]
    says that the agent acted in this transition; after it terminates it is inactive until the
    reset. `is_truncated` is one time limit for all agents.

    Agents that wait without having ended (turn-based games, agents that join late) need one more
    method, `acting_agents(state, params)`: which agents act in this state, a dict of bool[] by
    agent id, or bool[M] for stacked agents. The actions of the others are ignored, and
    `info["active"]` is not needed. A waiting agent may be rewarded, which counts for its last
    action, and may be terminated. After its end it neither acts nor is rewarded. The episode ends
    with "__all__", or in a step in which `terminated` is set for every agent.
    """

    agents: tuple[AgentId, ...] = ()
    default_params = Environment.default_params
    name = Environment.name
    is_truncated = Environment.is_truncated
    reset_env = Environment.reset_env
    step_env = Environment.step_env
    reset = Environment.reset

    def observation_space(self, agent: AgentId, params: PyTree = None):
        raise _missing(self, "observation_space(agent, params)")

    def action_space(self, agent: AgentId, params: PyTree = None):
        raise _missing(self, "action_space(agent, params)")

    @property
    def default_policies(self) -> dict[str, tuple[AgentId, ...]]:
        """The agents of each policy where the user gives no mapping; a policy for each agent."""
        return {agent: (agent,) for agent in self.agents}

    def step(
        self, key: Key, state: PyTree, action: dict[AgentId, PyTree], params: PyTree = None
    ) -> tuple:
        """One step like `Environment.step`, in dicts by agent id; the flags also have "__all__"."""
        params = self.default_params if params is None else params
        step_key, reset_key = jax.random.split(key)
        raw = raw_step(self, step_key, state, action, params)
        final_obs = self.by_agent(raw.obs)
        fresh = with_fast_keys(self.reset_env, reset_key, params)
        obs, state = restart(raw.episode_done, fresh, (final_obs, raw.state))
        terminated = {**split_agents(self, raw.terminated), ALL: raw.all_terminated}
        truncated = {
            **split_agents(self, raw.truncated),
            ALL: raw.episode_done & ~raw.all_terminated,
        }
        info = {
            **raw.info,
            "final_observation": final_obs,
            "active": split_agents(self, raw.active),
        }
        return obs, state, split_agents(self, raw.reward), terminated, truncated, info

    def by_agent(self, values: PyTree) -> dict[AgentId, PyTree]:
        """Raw observations or actions in dicts by agent id."""
        return values


class StackedEnvironment(MultiAgentEnvironment):
    """An environment of agents with equal spaces, computed on arrays [M, ...].

    An author writes `reset_stacked` and `step_stacked`; the dict interface is derived from them.
    The training loop steps the stacked arrays: splitting 128 agents into dicts and stacking them
    again inside a compiled loop takes far longer to compile. In the stacked interface `terminated`
    is bool[M] with no "__all__": set every entry to end the episode.
    """

    def reset_stacked(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        """Returns (obs [M, ...], state)."""
        raise _missing(self, "reset_stacked(key, params)")

    def step_stacked(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple:
        """One step without a reset.

        Returns:
            (obs [M, ...], state, reward f32[M], terminated bool[M], info). info["active"], if
            given, is bool[M].
        """
        raise _missing(self, "step_stacked(key, state, action, params)")

    def by_agent(self, values: PyTree) -> dict[AgentId, PyTree]:
        return split_agents(self, values)

    def reset_env(self, key: Key, params: PyTree) -> tuple[dict[AgentId, PyTree], PyTree]:
        obs, state = self.reset_stacked(key, params)
        return split_agents(self, obs), state

    def step_env(
        self, key: Key, state: PyTree, action: dict[AgentId, PyTree], params: PyTree
    ) -> tuple:
        raw = raw_step(self, key, state, action, params)
        info = {**raw.info, "active": split_agents(self, raw.active)}
        # The caller reads the time limit, so "__all__" is set by the agents' ends alone.
        terminated = {**split_agents(self, raw.terminated), ALL: raw.all_terminated}
        obs, reward = split_agents(self, raw.obs), split_agents(self, raw.reward)
        return obs, raw.state, reward, terminated, info


class Solo(StackedEnvironment):
    """A single-agent environment (of this library or of gymnax 1.0) with a multi-agent interface.

    It has one agent, DEFAULT_AGENT, so M = 1.
    """

    agents = (DEFAULT_AGENT,)

    def __init__(self, env):
        name = type(env).__name__
        for method in SINGLE_AGENT_METHODS:
            if not hasattr(env, method):
                is_old = method == "is_truncated"
                old = ": an old five-value step, whose done mixes both ends?" if is_old else ""
                raise UsageError(f"{name} is no environment: it has no `{method}`{old}")
        if agents_may_wait(env):
            raise UsageError(f"{name} has one agent, which cannot wait: remove `acting_agents`")
        self.env = env

    def __eq__(self, other):
        return isinstance(other, Solo) and self.env == other.env

    def __hash__(self):
        return hash((Solo, self.env))

    def __getattr__(self, name):
        """The optional methods (`render`, `tuned`, `action_mask`) come from the wrapped `env`."""
        if name.startswith("__") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def name(self) -> str:
        return self.env.name

    @property
    def default_params(self) -> PyTree:
        return self.env.default_params

    @property
    def default_policies(self) -> dict[str, tuple[AgentId, ...]]:
        return {DEFAULT_POLICY: (DEFAULT_AGENT,)}

    def observation_space(self, agent: AgentId = DEFAULT_AGENT, params: PyTree = None):
        return self.env.observation_space(params)

    def action_space(self, agent: AgentId = DEFAULT_AGENT, params: PyTree = None):
        return self.env.action_space(params)

    def is_truncated(self, state: PyTree, params: PyTree) -> jax.Array:
        return self.env.is_truncated(state, params)

    def reset_stacked(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        obs, state = self.env.reset_env(key, params)
        return batch_of_one(obs), state

    def step_stacked(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple:
        action = jax.tree.map(lambda leaf: leaf[0], action)
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return batch_of_one(obs), state, batch_of_one(reward), batch_of_one(terminated), info


class RawStep(NamedTuple):
    """The results of a step without reset, of any multi-agent environment.

    Values per agent are in the order of `env.agents`.
    """

    # [M, ...] of a stacked environment, else a dict by agent id; before any reset
    obs: PyTree
    state: PyTree
    reward: jax.Array  # f32[M]
    terminated: jax.Array  # bool[M]  the agent's episode ended in this step
    truncated: jax.Array  # bool[M]  the agent reached the time limit and had not terminated
    active: jax.Array  # bool[M]  the agent acted in this step
    all_terminated: jax.Array  # bool[]  the episode ended for everybody, not by the time limit
    episode_done: jax.Array  # bool[]  the episode ended
    info: dict[str, Any]


def raw_step(
    env: MultiAgentEnvironment, key: Key, state: PyTree, action: PyTree, params: PyTree
) -> RawStep:
    """One step without a reset, by `step_stacked` where there is one, with all flags resolved.

    `action` is a dict by agent id, or stacked [M, ...] where the environment is. The episode
    terminates with "__all__" or when no agent is left; `terminated` wins over the time limit. Where
    agents may wait, waiting agents keep their flags and rewards.
    """
    acting = acting_agents(env, state, params) if agents_may_wait(env) else None
    if is_stacked(env):
        is_by_agent = isinstance(action, dict) and action.keys() == set(env.agents)
        action = stack_agents(env, action) if is_by_agent else action
        step = env.step_stacked
    else:
        step = env.step_env
    return resolve_step(env, with_fast_keys(step, key, state, action, params), acting, params)


def resolve_step(
    env: MultiAgentEnvironment, stepped: tuple, acting: jax.Array | None, params: PyTree
) -> RawStep:
    """Turns the result of an environment's raw step into a `RawStep`.

    Args:
        acting: bool[M], who acted, where agents may wait.
    """
    obs, state, reward, terminated, info = stepped
    if is_stacked(env):
        everybody = jnp.array(False)
    else:
        everybody = terminated[ALL]
        reward, terminated = stack_agents(env, reward), stack_agents(env, terminated)
    clock = env.is_truncated(state, params)
    if acting is not None:
        active = acting
        all_terminated = everybody | jnp.all(terminated)
        terminated = terminated | all_terminated
        truncated = clock & ~terminated
    else:
        active = info.get("active", jnp.ones_like(terminated, dtype=bool))
        active = stack_agents(env, active) if isinstance(active, dict) else active
        all_terminated = everybody | jnp.all(terminated | ~active)
        terminated = active & (terminated | all_terminated)
        truncated = active & clock & ~terminated
        reward = jnp.where(active, reward, 0)
    return RawStep(
        obs=obs,
        state=strongly_typed(state),
        reward=reward.astype(jnp.float32),
        terminated=terminated,
        truncated=truncated,
        active=active,
        all_terminated=all_terminated,
        episode_done=all_terminated | clock,
        info=info,
    )


def raw_reset(
    env: MultiAgentEnvironment, key: Key, params: PyTree, ended: tuple | None = None
) -> tuple[PyTree, PyTree]:
    """(obs, state) of a new episode; obs is [M, ...] if stacked, else a dict by agent id.

    Args:
        ended: (state, whether the world terminated it) of the episode before, if `remembers(env)`.
    """
    reset = env.reset_stacked if is_stacked(env) else env.reset_env
    reset = reset if ended is None else env.reset_after
    obs, state = with_fast_keys(reset, key, *(ended or ()), params)
    return obs, strongly_typed(state)


def reset_all(env: MultiAgentEnvironment, keys: Key, params: PyTree) -> tuple[PyTree, PyTree]:
    """(obs, state) [E, ...] of new episodes, obs as `raw_reset` has it."""
    if not is_batched(env):
        return jax.vmap(lambda key: raw_reset(env, key, params))(keys)
    obs, state = with_fast_keys(env.reset_batch, keys, params)
    return _with_agent_axis(obs), strongly_typed(state)


def step_all(
    env: MultiAgentEnvironment, keys: Key, state: PyTree, action: PyTree, params: PyTree
) -> RawStep:
    """One step of E environments without a reset, [E, ...]."""
    if not is_batched(env):
        return jax.vmap(lambda key, state, action: raw_step(env, key, state, action, params))(
            keys, state, action
        )
    action = _without_agent_axis(action)
    stepped = with_fast_keys(env.step_batch, keys, state, action, params)
    obs, state, reward, terminated, info = stepped
    stepped = (*_with_agent_axis((obs, reward, terminated)), state, info)

    def resolve(obs, reward, terminated, state, info):
        return resolve_step(env, (obs, state, reward, terminated, info), None, params)

    return jax.vmap(resolve)(*stepped)


def restart_all(
    env: MultiAgentEnvironment, keys: Key, raw: RawStep, params: PyTree
) -> tuple[PyTree, PyTree]:
    """(obs, state) [E, ...] that a batched environment goes on from after a step."""
    reached = _without_agent_axis(raw.obs), raw.state
    obs, state = with_fast_keys(env.restart_batch, keys, raw.episode_done, reached, params)
    return _with_agent_axis(obs), strongly_typed(state)


def restart(ended: jax.Array, fresh: PyTree, reached: PyTree) -> PyTree:
    """Automatic reset: `fresh` where the episode ended (`ended`, bool[]), `reached` elsewhere."""

    def choose(new, old):
        return jnp.where(ended, jnp.asarray(new, jnp.asarray(old).dtype), old)

    return jax.tree.map(choose, fresh, reached)


def is_multi_agent(env) -> bool:
    return hasattr(env, "agents")


def is_stacked(env) -> bool:
    return hasattr(env, "step_stacked")


def remembers(env) -> bool:
    """Returns whether a new episode follows from the one before, as with a curriculum."""
    return hasattr(env, "reset_after")


def is_batched(env) -> bool:
    """Returns whether one call steps all its copies: `jaxrl.core.batched_env`."""
    return hasattr(env, "step_batch")


def has_outside_state(env) -> bool:
    """Returns whether the environment's episodes are held outside the compiled program."""
    return getattr(env, "state_outside", False)


def agents_may_wait(env) -> bool:
    """Returns whether agents may be inactive before their end: `acting_agents` is defined."""
    return hasattr(env, "acting_agents")


def raw_action_mask(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> PyTree:
    """The environment's `action_mask`, bool[A] by agent: [M, A] if it is stacked, else a dict."""
    mask = jax.tree.map(lambda leaf: jnp.asarray(leaf, bool), env.action_mask(state, params))
    return mask[None] if isinstance(env, Solo) else mask


def acting_agents(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> jax.Array:
    """The agents that act in a state, bool[M]; only for an environment with `acting_agents`."""
    acting = env.acting_agents(state, params)
    return stack_agents(env, acting) if isinstance(acting, dict) else jnp.asarray(acting)


def has_pictures(env: Any) -> bool:
    """Returns whether it has the optional `render(state, params)`, or renders outside JAX."""
    return hasattr(env, "render") or getattr(env, "pictured", None) is not None


def lift(env) -> MultiAgentEnvironment:
    """The multi-agent environment that training uses; a single-agent one is wrapped in `Solo`."""
    return env if is_multi_agent(env) else Solo(env)


def stack_agents(env: MultiAgentEnvironment, values: dict[AgentId, PyTree]) -> PyTree:
    """A dict by agent id as arrays [M, ...], in the order of `env.agents`."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(values[agent] for agent in env.agents))


def split_agents(env: MultiAgentEnvironment, values: PyTree) -> dict[AgentId, PyTree]:
    """Arrays [M, ...] as a dict by agent id."""
    return {
        agent: jax.tree.map(lambda leaf, i=i: leaf[i], values) for i, agent in enumerate(env.agents)
    }


def batch_of_one(values: PyTree) -> PyTree:
    """[...] as [1, ...]: of one agent, or of one copy."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], values)


def _with_agent_axis(tree: PyTree) -> PyTree:
    """[E, ...] as [E, 1, ...]."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[:, None], tree)


def _without_agent_axis(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:, 0], tree)


def strongly_typed(tree: PyTree) -> PyTree:
    """Python numbers as arrays of a fixed type, for a scan's carry and a program's arguments."""
    return jax.tree.map(
        lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), tree
    )


def _missing(env, method: str) -> NotImplementedError:
    return NotImplementedError(f"{type(env).__name__} must define {method}")
