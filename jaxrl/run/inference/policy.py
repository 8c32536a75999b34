"""A policy by itself: NumPy in, NumPy out, with no trainer and no environment."""

import functools
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxrl.core.errors import AnswersOtherWords, UsageError, brief
from jaxrl.core.fields import UINT32, count, flag
from jaxrl.core.program_spaces import is_action_of_program, mask_length
from jaxrl.core.types import AgentId, Key, PolicyId, PyTree
from jaxrl.models.model import num_parameters
from jaxrl.models.policy_spec import PolicySpec, PolicyState, PolicyWeights, has_mask
from jaxrl.ops.distributions import Distribution
from jaxrl.ops.environment_actions import InEnvironment
from jaxrl.run.inference.act_inputs import ActInputs, ActReader

if TYPE_CHECKING:
    from jaxrl.export.export import Exported

ACTING = 0x61637469  # folded into the seed's key


class Origin(NamedTuple):
    """The environment that a policy was trained in, and where the policy was taken from."""

    env_name: str
    source: str  # a checkpoint's folder, or what holds the policy
    # Everything that plays there: `algorithm`, `weights` by group, `env_params`.
    players: Callable[[], Any]


class Policy(AnswersOtherWords):
    """A trained policy.

    Observations are one, `[*observation_space.shape]`, or a batch with any leading axes (of a tree
    of spaces every part); actions come back with the same leading axes. A policy with memory
    remembers what it acted on: say which episodes begin (`begins`), or `reset()` it.

    Args:
        policy_spec: what is static about it.
        weights: its numbers.
        agents: that it plays, for one that is told which of them it is.
        masked: whether its environment said which actions are possible; then whoever acts has to
            say it as well.
        seed: of the actions that `act(..., explore=True)` draws when it is given no key; policies
            of different names draw different ones.
        origin: the environment that it was trained in, if that is known; pickle leaves it out.
    """

    def __init__(
        self,
        policy_spec: PolicySpec,
        weights: PolicyWeights,
        *,
        name: PolicyId = "",
        agents: tuple[AgentId, ...] = (),
        masked: bool = False,
        seed: int = 0,
        origin: Origin | None = None,
    ):
        self.policy_spec = policy_spec
        self.origin = origin
        self.weights = weights
        self.name = name
        self.agents = tuple(agents)
        # Otherwise the observation holds the mask.
        self.masked = masked and not has_mask(policy_spec.observation_space)
        self.observation_space = policy_spec.observation_space
        self.action_space = policy_spec.action_space
        self._key, self._draws = acting_key(seed, name), 0
        self._memory: dict[AgentId | None, PolicyState] = {}

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle: arrays as NumPy's, the random key as its words."""
        # Memories one by one: as keys of one tree, None and the names of agents could not be
        # sorted.
        policy_state = {
            agent: jax.tree.map(np.asarray, state) for agent, state in self._memory.items()
        }
        weights = jax.tree.map(np.asarray, self.weights)
        key = np.asarray(jax.random.key_data(self._key))
        portable = {"weights": weights, "_memory": policy_state, "_key": key, "origin": None}
        return {**vars(self), **portable}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _key=jax.random.wrap_key_data(state["_key"], impl="threefry2x32"))

    def __repr__(self) -> str:
        size = num_parameters(self.policy_spec.model)
        where = f" of {self.origin.env_name}" if self.origin is not None else ""
        plays = f" playing {', '.join(self.agents)}" if self.agents else ""
        spaces = f"{self.observation_space} -> {self.action_space}"
        return f"<Policy {self.name!r}{where}{plays}: {spaces}, {size:,} parameters>"

    def _repr_html_(self) -> str:
        from jaxrl.run.displays import policy_display

        return policy_display(self).html

    @property
    def remembers(self) -> bool:
        """True if the actions depend on earlier observations."""
        return bool(jax.tree.leaves(jax.eval_shape(lambda: self.policy_spec.initial_state(()))))

    @property
    def params(self) -> PyTree:
        """The model's parameters, as NumPy arrays."""
        return jax.tree.map(np.asarray, self.weights.params)

    def reset(self) -> None:
        """Forgets the episodes so far; only a policy with memory has anything to forget."""
        self._memory.clear()

    def act(
        self,
        observation: Any,
        *,
        explore: bool = False,
        key: Key | None = None,
        begins: Any = False,
        prev_reward: Any = 0.0,
        **mask_and_agent: Any,
    ) -> PyTree:
        """The action in the environment's units: the likeliest, or with `explore` a drawn one.

        Args:
            begins: whether an episode begins with this observation, a bool or one for each of the
                batch.
            prev_reward: what the last action brought, for a policy that is told.
            **mask_and_agent: `action_mask`, bool[..., A], the actions that are possible, which has
                to be said where training said it, here or as a part "action_mask" of the
                observation; `agent`, which of its agents it plays: each has a memory of its own.

        Raises:
            UsageError: an observation, a mask, `begins` or `prev_reward` of another shape, a mask
                that is missing, an agent that it is not, a key that is none.
        """
        flag("explore", explore)
        arguments = {"begins": begins, "prev_reward": prev_reward, **mask_and_agent}
        batch_shape, inputs = self._reader.read(observation, arguments, masked=self.masked)
        if key is not None:
            self._check_key(key)
        if explore and key is None:
            key = jax.random.fold_in(self._key, self._draws)
            self._draws += 1
        action, after = _act(
            self.policy_spec, batch_shape, self.weights, inputs, key if explore else None
        )
        self._memory[mask_and_agent.get("agent")] = after
        # One number is NumPy's number and no array, which environments could not look up in a dict.
        return jax.tree.map(lambda part: np.asarray(part)[()], action)

    def distribution(self, observation: Any, **arguments: Any) -> Distribution:
        """The distribution of actions, its parameters NumPy arrays with the observation's axes.

        `sample(key)` draws actions, `log_prob(action)` gives their log-probabilities; `mode()`,
        `entropy()`. Integers are the environment's own. The numbers of a Box are the policy's,
        which `act` stretches to the environment's units.
        """
        inside = jax.tree.map(
            np.asarray, self._judged(observation, arguments, masked=self.masked)[0]
        )
        if is_action_of_program(self.action_space) and not mask_length(self.action_space):
            return inside
        return InEnvironment(inside, self.action_space)

    def value(self, observation: Any, **arguments: Any) -> np.ndarray:
        """The return that is expected from here on, discounted; no centralised critic knows it."""
        if self.policy_spec.critic is not None:
            what = f"critic_observation={self.policy_spec.critic.source!r}"
            raise UsageError(f"policy {self.name!r}: with {what} no observation alone has a value")
        return np.asarray(self._judged(observation, arguments, masked=False)[1])

    def export(
        self,
        path: str | Path,
        *,
        explore: bool = False,
        opset: int | None = None,
        names: Mapping[str, str] | None = None,
    ) -> "Exported":
        """Writes the policy to a file that other programs act with; see docs/export.md.

        The file is compared with the policy before it is written, on observations of the policy's
        environment, or on random ones of its observation space where there is no environment.

        Args:
            path: the file; its ending chooses the format: .onnx (read by onnxruntime and the
                loaders of robots and games), .npz (read by one file of plain NumPy) or .stablehlo
                (read by `jax.export.deserialize`).
            explore: whether actions are sampled, from random numbers that are an input; else each
                is its distribution's mode.
            opset: of an .onnx file, the version of its operators; None: 18.
            names: of an .onnx file, other names of inputs and outputs, {"action": "actions"}.

        Returns:
            What was written: `path`, `inputs`, `outputs`, `parity` and `metadata`; `print` shows
            them.

        Raises:
            UsageError: another ending, a package that is missing, a folder that does not exist, or
                a file that does not act as the policy does.
        """
        from jaxrl.export.export import export_policy

        return export_policy(self, path, explore=explore, opset=opset, names=names)

    @property
    def _reader(self) -> ActReader:
        return ActReader(self.policy_spec, self.name, self.agents, self._memory)

    def _judged(
        self, observation: Any, arguments: Mapping[str, Any], *, masked: bool
    ) -> tuple[Distribution, jax.Array, PyTree]:
        """(distribution, value, carry) as of `act`, not remembered; `masked`: a mask is needed."""
        _, inputs = self._reader.read(observation, arguments, masked=masked)
        return _apply(self.policy_spec, self.weights, inputs)

    def _check_key(self, key: Any) -> None:
        try:
            is_single = jax.random.key_data(key).ndim == 1
        except (ValueError, TypeError, AttributeError):
            is_single = False
        if not is_single:
            raise UsageError(
                f"policy {self.name!r}: key must be one jax.random.key(seed), not {brief(key)}"
            )


@functools.partial(jax.jit, static_argnums=0)
def _apply(
    policy_spec: PolicySpec, weights: PolicyWeights, inputs: ActInputs
) -> tuple[Distribution, jax.Array, PyTree]:
    return policy_spec.apply(weights, *inputs)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _act(
    policy_spec: PolicySpec,
    batch_shape: tuple[int, ...],
    weights: PolicyWeights,
    inputs: ActInputs,
    key: Key | None,
) -> tuple[jax.Array, PolicyState]:
    """The likeliest action, or one drawn with `key`, for each of a batch; and the next state."""
    noise = None if key is None else policy_spec.noise(key, batch_shape)
    output = policy_spec.act(weights, *inputs, noise=noise)
    return policy_spec.to_env_action(output.action), policy_spec.next_state(output)


def acting_key(seed: int, name: str) -> Key:
    """The random key of actions outside of training, by the name of who acts.

    It never shares numbers with training.
    """
    count(0, UINT32)("seed", seed)
    root = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), ACTING)
    return jax.random.fold_in(root, np.uint32(zlib.crc32(name.encode())))
