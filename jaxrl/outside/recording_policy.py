"""A policy that acts and says what learning needs to know of its actions."""

import functools
from typing import Any

import jax
import numpy as np

from jaxrl.core.types import Key, PyTree
from jaxrl.models.policy_spec import PolicySpec, PolicyState
from jaxrl.rollout.recorded_steps import model_outputs
from jaxrl.run.inference.act_inputs import ActInputs
from jaxrl.run.inference.policy import Policy

# Among an episode's extra model outputs: the action as it was sampled, where the episode holds the
# environment's.
POLICY_ACTIONS = "policy_actions"


class RecordingPolicy(Policy):
    """A `Policy` that acts as in training, and whose actions come with their probabilities."""

    def decide(
        self,
        observation: Any,
        *,
        explore: bool = True,
        begins: Any = False,
        prev_reward: Any = 0.0,
        env_steps: int = 0,
        **mask_and_agent: Any,
    ) -> tuple[np.ndarray, dict[str, PyTree]]:
        """(the environment's action, the model's outputs to record with it); see `Policy.act`.

        Args:
            explore: whether the action is drawn, from the exploration where there is one; else it
                is the distribution's mode.
            env_steps: of training so far, for explorations.
        """
        arguments = {"begins": begins, "prev_reward": prev_reward, **mask_and_agent}
        batch_shape, inputs = self._reader.read(observation, arguments, masked=self.masked)
        key = jax.random.fold_in(self._key, self._draws)
        self._draws += 1
        step = self.policy_spec, batch_shape, explore
        key_and_steps = key, np.float32(env_steps)
        action, outputs, after = _decide(step, self.weights, inputs, key_and_steps)
        self._memory[mask_and_agent.get("agent")] = after
        action, outputs = jax.device_get((action, outputs))
        return action, outputs


@functools.partial(jax.jit, static_argnums=0)
def _decide(
    step: tuple[PolicySpec, tuple[int, ...], bool],
    weights: PyTree,
    inputs: ActInputs,
    key_and_steps: tuple[Key, jax.Array],
) -> tuple[PyTree, dict[str, PyTree], PolicyState]:
    policy_spec, batch_shape, explore = step
    key, env_steps = key_and_steps
    sampling = {}
    if explore:
        sampling = {"noise": policy_spec.noise(key, batch_shape), "env_steps": env_steps}
    output = policy_spec.act(weights, *inputs, **sampling)
    outputs, after = model_outputs(output, None), policy_spec.next_state(output)
    sampled, env_action = policy_spec.action_form.recorded(output.action)
    if env_action is None:
        return sampled, outputs, after
    outputs[POLICY_ACTIONS] = sampled
    return env_action, outputs, after
