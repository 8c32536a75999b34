"""A `VectorEnv` made of a jittable environment: what host rollouts are compared with."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.algorithms.on_policy import rollout_keys
from jaxrl.core.env import (
    acting_agents,
    agents_may_wait,
    is_stacked,
    lift,
    raw_action_mask,
    split_agents,
    step_all,
)
from jaxrl.core.outside_env import OutsideSteps, outside_environment
from jaxrl.outside.workers.vector import FirstObs, VectorSpec
from jaxrl.rollout.env_step import RolloutSpec, auto_reset, draw_randomness


def declared(env: Any, params: Any, spec: RolloutSpec) -> VectorSpec:
    """What a jittable environment would declare if it ran outside JAX."""
    env = lift(env)
    return VectorSpec(
        name=env.name,
        observation_spaces={agent: env.observation_space(agent, params) for agent in env.agents},
        action_spaces={agent: env.action_space(agent, params) for agent in env.agents},
        agents=tuple(env.agents),
        metrics=spec.metrics,
        always_active=spec.always_active,
        waits=agents_may_wait(env),
        masked=hasattr(env, "action_mask"),
    )


class JaxVector:
    """Copies of a jittable environment, with the random numbers that `play` would draw."""

    def __init__(self, spec: RolloutSpec, params: Any, num_parts: int = 1):
        self.spec, self.params, self.env = spec, params, spec.env
        self.num_parts, self.sent = num_parts, {}
        self.lose = set()  # {(step, copy)}: faults
        self._advance = jax.jit(self._advance)

    def begin(self, envs: Any, env_keys: Any, num_steps: int) -> None:
        """The copies in the states of `envs`, and the keys of their next rollout."""
        self.state, self.obs = envs.state, envs.obs
        self.num_envs = len(env_keys)
        size = self.num_envs // self.num_parts
        bounds = [*range(0, size * self.num_parts, size), self.num_envs]
        self.parts = tuple(map(slice, bounds[:-1], bounds[1:]))
        self.randomness = draw_randomness(self.spec, env_keys, num_steps)
        self.steps = {part.start: 0 for part in self.parts}

    def reset(self, seeds: Any) -> FirstObs:
        obs = {}
        for group, values in zip(self.spec.grouping.groups, self.obs, strict=True):
            for i, agents in enumerate(group.agents):
                for j, agent in enumerate(agents):
                    obs[agent] = jax.tree.map(lambda x, i=i, j=j: np.asarray(x[i, :, j]), values)
        return FirstObs(obs, *self._told(self.state))

    def send(self, part: int, actions: dict) -> None:
        self.sent[part] = {a: np.array(action) for a, action in actions.items()}

    def receive(self, part: int) -> OutsideSteps:
        actions = {a: jnp.asarray(action) for a, action in self.sent.pop(part).items()}
        part = self.parts[part]
        if is_stacked(self.env):
            actions = jnp.stack([actions[agent] for agent in self.env.agents], 1)
        step = self.steps[part.start]
        self.steps[part.start] += 1
        draw = jax.tree.map(
            lambda leaf: leaf[step] if leaf.ndim == 1 else leaf[step, part], self.randomness[:3]
        )
        state = jax.tree.map(lambda leaf: leaf[part], self.state)
        raw, obs, after = self._advance(draw, state, actions)
        self.state = jax.tree.map(lambda old, new: old.at[part].set(new), self.state, after)
        lost = np.array([(step, e) in self.lose for e in range(part.start, part.stop)])
        rows = raw.reward, raw.terminated, raw.truncated, raw.active, raw.episode_done
        metrics = {name: np.float32(raw.info["metrics"][name]) for name in self.spec.metrics}
        obs, final = self._by_agent(obs), self._by_agent(raw.obs)
        told = lost, metrics, *self._told(after)
        return OutsideSteps(obs, final, *map(np.asarray, rows), *told)

    def _advance(self, draw: Any, state: Any, actions: Any) -> tuple:
        step_key, reset_key, step = draw
        raw = step_all(self.env, step_key, state, actions, self.params)
        return raw, *auto_reset(self.env, reset_key, step, raw, self.params)

    def _by_agent(self, values: Any) -> dict:
        if not is_stacked(self.env):
            return jax.tree.map(np.asarray, values)
        split = jax.vmap(lambda values: split_agents(self.env, values))
        return jax.tree.map(np.asarray, split(values))

    def _told(self, state: Any) -> tuple:
        """(masks, who acts) of states."""
        masks = acting = None
        if self.spec.masked:
            mask = jax.vmap(lambda state: raw_action_mask(self.env, state, self.params))(state)
            masks = self._by_agent(mask)
        if self.spec.waits:
            acting = jax.vmap(lambda state: acting_agents(self.env, state, self.params))(state)
            acting = np.asarray(acting)
        return masks, acting


def outside_twin(env: Any, params: Any, spec: RolloutSpec) -> Any:
    return outside_environment(declared(env, params, spec), lambda num_envs, **settings: None)


class RunVector(JaxVector):
    """The copies of a whole run: the episodes that the same configuration plays in JAX."""

    num_faults = num_restarts = 0
    is_closed = False

    def __init__(self, config: Any, num_parts: int = 1):
        algorithm = config.build()
        super().__init__(algorithm.rollout_spec, algorithm.env_params, num_parts)
        self.length, self.number = config.rollout_length, 1
        runner = jax.jit(algorithm.init)(jax.random.key(config.seed))
        self.key, self.index = runner.key, jnp.arange(config.num_envs)
        self.begin(runner.envs, self._keys(), self.length)

    def receive(self, part: int) -> OutsideSteps:
        if all(step == self.length for step in self.steps.values()):
            self.number += 1
            self.randomness = draw_randomness(self.spec, self._keys(), self.length)
            self.steps = dict.fromkeys(self.steps, 0)
        return super().receive(part)

    def close(self) -> None:
        self.is_closed = True

    def _keys(self) -> Any:
        return rollout_keys(self.key, self.number, self.index)


def config_outside(config: Any, made: list, num_parts: int = 1) -> Any:
    """The configuration over its environment as if that ran outside JAX; `made` gets its copies."""
    algorithm = config.build()
    spec = declared(algorithm.rollout_spec.env, algorithm.env_params, algorithm.rollout_spec)

    def vector(num_envs: int, **settings: Any) -> RunVector:
        made.append(RunVector(config.replace(num_envs=num_envs), num_parts))
        return made[-1]

    return config.replace(env=outside_environment(spec, vector), env_args={})
