"""Environments outside JAX: what one declares, in the form that training traces for its shapes.

An environment in Python, in other processes or on other machines cannot be part of a compiled
program. It declares its agents and spaces here, and `vector` makes E copies of it that the host
steps (`jaxrl.outside.host_rollout`). Its `reset_env` and `step_env` give zeros of the right shapes
and types: a program's start is traced with them, and nothing is ever learned from them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl.core.env import Environment, MultiAgentEnvironment
from jaxrl.core.errors import UsageError
from jaxrl.core.program_spaces import mask_length
from jaxrl.core.spaces import Space, tree_of
from jaxrl.core.types import ALL, DEFAULT_AGENT, AgentId, Key, PolicyId, PyTree


class NoParams(struct.PyTreeNode):
    """The `params` of an environment outside JAX: it has no numbers that a program could change."""


def _refuse_numbers(params: NoParams, **changes: Any) -> None:
    raise UsageError("env_params: a Python environment has none; see trainer.foreach_env(function)")


NoParams.replace = _refuse_numbers


class OutsideState(struct.PyTreeNode):
    """The state of a copy, as far as a compiled program needs it."""

    copy: jax.Array  # i32[]  its number
    acting: jax.Array | None = None  # bool[M]  who acts next; None where agents never wait
    action_mask: dict[AgentId, jax.Array] | None = None  # bool[A]; None without masks
    critic: PyTree | None = None  # what a centralised critic sees; None where nothing is given


class OutsideSteps(NamedTuple):
    """A step of e copies as those who step them give it; NumPy, or as a compiled call takes it.

    Observations are by agent, [e, ...], or by group of policies, [N, e, M, ...]. Elsewhere agents
    are on axis 1, in the order of `spec.agents`.
    """

    obs: PyTree  # to go on from: a new episode's first where one began
    final_obs: PyTree  # as the step reached it, before any reset
    reward: np.ndarray  # f32[e, M]
    terminated: np.ndarray  # bool[e, M]  the agent's episode ended in this step
    truncated: np.ndarray  # bool[e, M]  it was cut, and had not terminated
    active: np.ndarray  # bool[e, M]  the agent acted in this step
    episode_done: np.ndarray  # bool[e]  the episode ended
    # bool[e]  A fault dropped the episode: none of its rows may count. obs begins a new one;
    # episode_done is false.
    lost: np.ndarray
    metrics: dict[str, np.ndarray]  # f32[e]
    action_mask: dict[AgentId, np.ndarray] | None  # bool[e, A]  of `obs`; None without masks
    acting: np.ndarray | None  # bool[e, M]  who acts next; None where agents never wait
    # bool[e]  Whether final_obs of a copy that ended is what its step reached. Where nobody says
    # that, it is not read: the agent's last observation takes its place. None: all are.
    final_known: np.ndarray | None = None
    critic: PyTree | None = None  # [e, ...]  of `obs`, for a centralised critic
    final_critic: PyTree | None = None  # [e, ...]  of `final_obs`


class _Outside:
    """The part that environments of one agent and of several share.

    Args:
        spec: what it declares, a `jaxrl.outside.workers.vector.VectorSpec`.
        vector: vector(num_envs, **settings) makes E copies of it, a `VectorEnv` of the same module.
    """

    state_outside = True  # see `jaxrl.core.batched_env`
    num_copies: int | None = None  # where `vector` makes so many and no others
    # Whether all that `vector` gives are the same copies: there are none to evaluate in.
    has_one_set = False
    has_tasks = False  # whether `set_task` gives a copy another task
    # Makes a `VectorEnv` of one copy that is rendered while it plays, where it can be.
    pictured: Callable[[], Any] | None = None
    # Parts of observations that no network can read, and of which kind they are: (("mission",
    # "Text"),). They are no part of the spaces.
    unread: tuple[tuple[str, str], ...] = ()
    # Makes the environment without parts of its observations, of their names, where `vector` has to
    # know of it.
    without_parts: Callable[[tuple[str, ...]], Any] | None = None
    default_params = NoParams()

    def __init__(self, spec: Any, vector: Callable[..., Any]):
        self.spec, self.vector = spec, vector

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def twin(self) -> Any:
        return self

    def separate(self, number: int) -> Any:
        return self  # its copies are made where they are stepped

    def reset(self, key: Key, params: PyTree = None) -> tuple:
        refuse_outside(self, "reset")

    def step(self, key: Key, state: PyTree, action: PyTree, params: PyTree = None) -> tuple:
        refuse_outside(self, "step")

    def is_truncated(self, state: OutsideState, params: PyTree) -> jax.Array:
        return jnp.array(False)

    def __getattr__(self, name: str) -> Any:
        """The optional methods, where what they tell is declared."""
        if name == "action_mask" and self.spec.masked:
            return lambda state, params: self._mask_of(state)
        if name == "acting_agents" and self.spec.waits:
            return lambda state, params: dict(zip(self.spec.agents, state.acting, strict=True))
        if name == "global_state" and self.spec.critic_space is not None:
            return lambda state, params: state.critic
        if name == "global_state_space" and self.spec.critic_space is not None:
            return lambda params: self.spec.critic_space
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def _each(self, value: Callable[[AgentId], Any]) -> dict[AgentId, Any]:
        return {agent: value(agent) for agent in self.spec.agents}

    def _state(self) -> OutsideState:
        acting = jnp.ones(len(self.spec.agents), bool) if self.spec.waits else None
        masks = None
        if self.spec.masked:
            masks = self._each(
                lambda agent: jnp.ones(mask_length(self.spec.action_spaces[agent]), bool)
            )
        critic = self.spec.critic_space and zeros_of(self.spec.critic_space)
        return OutsideState(jnp.int32(0), acting, masks, critic)

    def _mask_of(self, state: OutsideState) -> PyTree:
        return state.action_mask

    def _info(self) -> dict[str, Any]:
        return {"metrics": {name: jnp.float32(0) for name in self.spec.metrics}}


class OutsideEnvironment(_Outside, Environment):
    """An environment of one agent outside JAX."""

    def observation_space(self, params: PyTree = None) -> Space:
        return self.spec.observation_spaces[DEFAULT_AGENT]

    def action_space(self, params: PyTree = None) -> Space:
        return self.spec.action_spaces[DEFAULT_AGENT]

    def reset_env(self, key: Key, params: PyTree) -> tuple:
        return zeros_of(self.observation_space()), self._state()

    def step_env(self, key: Key, state: OutsideState, action: PyTree, params: PyTree) -> tuple:
        obs = zeros_of(self.observation_space())
        return obs, state, jnp.float32(0), jnp.array(False), self._info()

    def _mask_of(self, state: OutsideState) -> PyTree:
        return state.action_mask[DEFAULT_AGENT]


class OutsideMultiAgentEnvironment(_Outside, MultiAgentEnvironment):
    """An environment of several agents outside JAX."""

    @property
    def agents(self) -> tuple[AgentId, ...]:
        return self.spec.agents

    @property
    def default_policies(self) -> Mapping[PolicyId, tuple[AgentId, ...]]:
        return dict(self.spec.default_policies)

    def observation_space(self, agent: AgentId, params: PyTree = None) -> Space:
        return self.spec.observation_spaces[agent]

    def action_space(self, agent: AgentId, params: PyTree = None) -> Space:
        return self.spec.action_spaces[agent]

    def reset_env(self, key: Key, params: PyTree) -> tuple:
        return self._each(lambda agent: zeros_of(self.observation_space(agent))), self._state()

    def step_env(self, key: Key, state: OutsideState, action: PyTree, params: PyTree) -> tuple:
        obs, _ = self.reset_env(key, params)
        reward = self._each(lambda agent: jnp.float32(0))
        flags = {**self._each(lambda agent: jnp.array(False)), ALL: jnp.array(False)}
        info = self._info()
        if not (self.spec.always_active or self.spec.waits):
            info["active"] = self._each(lambda agent: jnp.array(True))
        return obs, state, reward, flags, info


def outside_environment(
    spec: Any, vector: Callable[..., Any]
) -> OutsideEnvironment | OutsideMultiAgentEnvironment:
    """The environment that declares `spec`, of one agent or of several."""
    compute_in_the_calling_thread()
    kind = OutsideEnvironment if spec.agents == (DEFAULT_AGENT,) else OutsideMultiAgentEnvironment
    return kind(spec, vector)


def compute_in_the_calling_thread() -> None:
    """Has JAX compute on the CPU in the thread that asks, if JAX has not started yet.

    The environments wait for a small call in each step. By default another thread computes it, and
    to wake that one takes as long as the call itself.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def refuse_evaluation(env: Any) -> None:
    """Raises UsageError where evaluation would play in training's own copies."""
    if env.has_one_set:
        raise UsageError(
            f"{env.name} is an object with copies of its own, in which training plays: give a "
            "function that makes it, so that evaluation and sampling have others"
        )


def is_outside(env: Any) -> bool:
    """Returns whether an environment, lifted or not, runs outside JAX, stepped by the host."""
    return isinstance(getattr(env, "env", env), _Outside)


def refuse_outside(env: Any, what: str) -> None:
    """Raises UsageError for an environment outside JAX where a compiled program would step it."""
    if is_outside(env):
        raise UsageError(
            f"{what}: {env.name} runs outside JAX and cannot be part of a compiled program: "
            "train it with jaxrl.Trainer, or with jaxrl.Learner in a loop of your own"
        )


def zeros_of(space: Space) -> PyTree:
    return jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), tree_of(space))
