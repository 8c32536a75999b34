"""What an environment is: the contract for one agent and for many, and the one place that resets ended episodes.

An environment object holds what sets a shape (a frozen, hashable dataclass); `params` holds
numbers, which may be traced. `step_env` and `reset_env` are the raw pair that an author writes;
`reset` and `step`, which resets by itself, are made from them here. One agent's contract is gymnax
1.0's, so that environments of either library run in the other.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError
from jaxrl.core.fast_prng import with_fast_keys
from jaxrl.core.types import ALL, DEFAULT_AGENT, DEFAULT_POLICY, AgentId, Key, PyTree


class Environment:
    """One agent. An author writes the five methods that raise here; `tuned`, `render` and `action_mask` are optional.

    So are `check_params(params)`, which `make` calls to have numbers refused that make no game
    (UsageError), and for the captions of pictures `agent_colors` and `legend`, {agent or thing:
    (red, green, blue)}. `info["metrics"]`, if given, is a dict of scalars per step; they are summed
    over the episode and reported. `action_mask(state, params)` says which actions are possible
    there, bool[A] (of MultiDiscrete actions one entry's after the other's), of stacked agents [M,
    A], of others a dict by agent id.
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
        """Returns (obs, state, reward f32[], terminated bool[], info), with no reset; `terminated`: the world ended."""
        raise _missing(self, "step_env(key, state, action, params)")

    def is_truncated(self, state: PyTree, params: PyTree) -> jax.Array:
        """bool[]: the clock has run out."""
        return state.time >= params.max_steps_in_episode

    def reset(self, key: Key, params: PyTree = None) -> tuple[PyTree, PyTree]:
        """Returns (obs, state)."""
        params = self.default_params if params is None else params
        return with_fast_keys(self.reset_env, key, params)

    def step(self, key: Key, state: PyTree, action: PyTree, params: PyTree = None) -> tuple:
        """One step that starts a new episode where the old one ended.

        Returns:
            (obs, state, reward, terminated, truncated, info). obs and state are the new episode's
            where one began; info["final_observation"] is what the step itself reached. An end that
            is both is `terminated` alone.
        """
        params = self.default_params if params is None else params
        step_key, reset_key = jax.random.split(key)
        stepped = with_fast_keys(self.step_env, step_key, state, action, params)
        obs, state, reward, terminated, info = stepped
        terminated = jnp.asarray(terminated)  # of a Python bool ~ would make a number
        truncated = self.is_truncated(state, params) & ~terminated
        info = {**info, "final_observation": obs}
        fresh = with_fast_keys(self.reset_env, reset_key, params)
        obs, state = restart(terminated | truncated, fresh, (obs, state))
        return obs, state, reward, terminated, truncated, info


class MultiAgentEnvironment:
    """Many agents, in dicts by agent id; the agents may differ in their spaces and leave before the episode ends.

    `step_env` returns (obs, state, reward, terminated, info): obs, reward, terminated and, if
    given, info["active"] are dicts by agent id, `terminated` also with "__all__". active[agent]
    says that it acted in this transition; an agent that terminates is inactive from then on until
    the reset. `is_truncated` is one clock for everybody.

    Agents that wait without having ended (games of turns, agents that join late) need one more
    method, `acting_agents(state, params)`: which agents act in this state, a dict of bool[] by
    agent id, of stacked agents bool[M]. The actions of the others are ignored, and `info["active"]`
    is not needed. An agent that waits may be rewarded, which counts for its last action, and may be
    terminated; one that has ended neither acts nor is rewarded. The episode ends with "__all__", or
    in a step in which `terminated` is set for every agent.
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
        """Which policy plays which agents, unless the user says otherwise: one of its own for each."""
        return {agent: (agent,) for agent in self.agents}

    def step(
        self, key: Key, state: PyTree, action: dict[AgentId, PyTree], params: PyTree = None
    ) -> tuple:
        """As `Environment.step`, in dicts by agent id; `terminated` and `truncated` also have "__all__"."""
        params = self.default_params if params is None else params
        step_key, reset_key = jax.random.split(key)
        raw = raw_step(self, step_key, state, action, params)
        final_obs = self.by_agent(raw.obs)
        fresh = with_fast_keys(self.reset_env, reset_key, params)
        obs, state = restart(raw.over, fresh, (final_obs, raw.state))
        terminated = {**split_agents(self, raw.terminated), ALL: raw.world_ended}
        truncated = {**split_agents(self, raw.truncated), ALL: raw.over & ~raw.world_ended}
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
    """Alike agents on arrays [M, ...]: an author writes `reset_stacked` and `step_stacked`, the dict face follows.

    The training loop steps the stacked arrays themselves; 128 agents split to dicts and stacked
    again inside a compiled loop would take far longer to compile. In the stacked face `terminated`
    is bool[M] with no "__all__": the world that ends sets every entry.
    """

    def reset_stacked(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        """Returns (obs [M, ...], state)."""
        raise _missing(self, "reset_stacked(key, params)")

    def step_stacked(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple:
        """Returns (obs [M, ...], state, reward f32[M], terminated bool[M], info); info["active"], if given, bool[M]."""
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
        # The clock is the caller's to read here, so the world's end is that of its agents alone.
        terminated = {**split_agents(self, raw.terminated), ALL: raw.world_ended}
        return (
            split_agents(self, raw.obs),
            raw.state,
            split_agents(self, raw.reward),
            terminated,
            info,
        )


class Solo(StackedEnvironment):
    """One agent's environment (ours, or anything of gymnax 1.0's contract) as a multi-agent one with M = 1."""

    agents = (DEFAULT_AGENT,)

    def __init__(self, env):
        for method in (
            "reset_env",
            "step_env",
            "is_truncated",
            "observation_space",
            "action_space",
            "default_params",
        ):
            if not hasattr(env, method):
                old = (
                    ": an old five-value step, whose done mixes both ends?"
                    if method == "is_truncated"
                    else ""
                )
                raise UsageError(
                    f"{type(env).__name__} is no environment: it has no `{method}`{old}"
                )
        if agents_may_wait(env):
            raise UsageError(
                f"{type(env).__name__} has one agent, which cannot wait: remove `acting_agents`"
            )
        self.env = env

    def __eq__(self, other):
        return isinstance(other, Solo) and self.env == other.env

    def __hash__(self):
        return hash((Solo, self.env))

    def __getattr__(self, name):
        """The optional methods (`render`, `tuned`, `action_mask`) are the wrapped environment's own."""
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
        return _one_agent(obs), state

    def step_stacked(self, key: Key, state: PyTree, action: PyTree, params: PyTree) -> tuple:
        action = jax.tree.map(lambda leaf: leaf[0], action)
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return _one_agent(obs), state, _one_agent(reward), _one_agent(terminated), info


class RawStep(NamedTuple):
    """What one raw step of any multi-agent environment did; per-agent values in the order of `env.agents`."""

    obs: (
        PyTree  # [M, ...] of a stacked environment, dict by agent id of any other; before any reset
    )
    state: PyTree
    reward: jax.Array  # f32[M]
    terminated: jax.Array  # bool[M]  this agent's part in the world ended in this step
    truncated: (
        jax.Array
    )  # bool[M]  it was still there when the clock ran out, and had not terminated
    active: jax.Array  # bool[M]  it acted in this step
    world_ended: jax.Array  # bool[]  the episode ended, and not by the clock
    over: jax.Array  # bool[]  the episode ended
    info: dict[str, Any]


def raw_step(
    env: MultiAgentEnvironment, key: Key, state: PyTree, action: PyTree, params: PyTree
) -> RawStep:
    """One step without a reset, on the stacked face where there is one, with the ends of agents and world resolved.

    `action` is a dict by agent id, or stacked [M, ...] where the environment is. The world has
    ended when it says so ("__all__") or when nobody is left; what both world and clock ended counts
    as terminated. Where agents may wait, the flags and rewards of those who do are theirs too.
    """
    acting = acting_agents(env, state, params) if agents_may_wait(env) else None
    if is_stacked(env):
        action = stack_agents(env, action) if isinstance(action, dict) else action
        stepped = with_fast_keys(env.step_stacked, key, state, action, params)
        obs, state, reward, terminated, info = stepped
        everybody = jnp.array(False)
    else:
        stepped = with_fast_keys(env.step_env, key, state, action, params)
        obs, state, reward, terminated, info = stepped
        everybody = terminated[ALL]
        reward, terminated = stack_agents(env, reward), stack_agents(env, terminated)
    clock = env.is_truncated(state, params)
    if acting is not None:
        active = acting
        world_ended = everybody | jnp.all(terminated)
        terminated = terminated | world_ended
        truncated = clock & ~terminated
    else:
        active = info.get("active", jnp.ones_like(terminated, dtype=bool))
        active = stack_agents(env, active) if isinstance(active, dict) else active
        world_ended = everybody | jnp.all(terminated | ~active)
        terminated = active & (terminated | world_ended)
        truncated = active & clock & ~terminated
        reward = jnp.where(active, reward, 0)
    return RawStep(
        obs=obs,
        state=strongly_typed(state),
        reward=reward.astype(jnp.float32),
        terminated=terminated,
        truncated=truncated,
        active=active,
        world_ended=world_ended,
        over=world_ended | clock,
        info=info,
    )


def raw_reset(env: MultiAgentEnvironment, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
    """(obs, state) of a new episode; obs stacked [M, ...] where the environment is, else a dict by agent id."""
    reset = env.reset_stacked if is_stacked(env) else env.reset_env
    obs, state = with_fast_keys(reset, key, params)
    return obs, strongly_typed(state)


def restart(ended: jax.Array, fresh: PyTree, reached: PyTree) -> PyTree:
    """`fresh` where the episode ended and `reached` elsewhere: automatic reset, everywhere. `ended` is bool[]."""
    return jax.tree.map(
        lambda new, old: jnp.where(ended, jnp.asarray(new, jnp.asarray(old).dtype), old),
        fresh,
        reached,
    )


def is_multi_agent(env) -> bool:
    return hasattr(env, "agents")


def is_stacked(env) -> bool:
    return hasattr(env, "step_stacked")


def agents_may_wait(env) -> bool:
    """Whether agents may be inactive without having ended: a static fact, said by the method `acting_agents`."""
    return hasattr(env, "acting_agents")


def acting_agents(env: MultiAgentEnvironment, state: PyTree, params: PyTree) -> jax.Array:
    """Which agents act in a state, bool[M], of an environment that says so."""
    acting = env.acting_agents(state, params)
    return stack_agents(env, acting) if isinstance(acting, dict) else jnp.asarray(acting)


def lift(env) -> MultiAgentEnvironment:
    """The environment as the training loop takes it: multi-agent ones as they are, one agent's as `Solo`."""
    return env if is_multi_agent(env) else Solo(env)


def stack_agents(env: MultiAgentEnvironment, values: dict[AgentId, PyTree]) -> PyTree:
    """A dict by agent id as arrays [M, ...], in the order of `env.agents`."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(values[agent] for agent in env.agents))


def split_agents(env: MultiAgentEnvironment, values: PyTree) -> dict[AgentId, PyTree]:
    """Arrays [M, ...] as a dict by agent id."""
    return {
        agent: jax.tree.map(lambda leaf, i=i: leaf[i], values) for i, agent in enumerate(env.agents)
    }


def _one_agent(values: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], values)


def strongly_typed(tree: PyTree) -> PyTree:
    """Python numbers as arrays of a fixed type: neither a scan's carry nor a program's argument may change its type."""
    return jax.tree.map(
        lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), tree
    )


def _missing(env, method: str) -> NotImplementedError:
    return NotImplementedError(f"{type(env).__name__} must define {method}")
