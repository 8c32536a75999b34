"""A simulator as an environment outside JAX: its spaces, and its copies where they are wanted."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.errors import TooManyFaults, UsageError, brief, reason_of
from jaxrl.core.ignored_parts import without_parts
from jaxrl.core.outside_env import OutsideEnvironment, outside_environment
from jaxrl.core.spaces import Box, Discrete, Space, box_of, from_json, space_of
from jaxrl.core.types import DEFAULT_AGENT, PyTree
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.outside.workers.probing import possible_actions
from jaxrl.outside.workers.shared_generators import preserved
from jaxrl.outside.workers.simulator_copies import SimulatorCopies
from jaxrl.outside.workers.simulators import Simulator, SimulatorResults, group_of_policy, said
from jaxrl.outside.workers.sources import Source, close, make_copy
from jaxrl.outside.workers.space_forms import form_of
from jaxrl.outside.workers.tensors import to_host, to_jax
from jaxrl.outside.workers.vector import FaultCount, VectorSpec

MAX_CONSECUTIVE_FAULTS = 20


class DeclaredSimulator(NamedTuple):
    """A simulator whose spaces are known."""

    source: Source
    spec: VectorSpec
    action_types: PyTree  # see `SimulatorCopies`
    unused: list  # a simulator that was made to see its spaces; [] once it is stepped

    @property
    def takes_number(self) -> bool:
        """True if the constructor makes any number of copies, `num_envs`, and was given none."""
        make = self.source.make
        if self.source.is_given or "num_envs" in getattr(make, "keywords", {}):
            return False
        return "num_envs" in inspect.signature(make).parameters

    def vector(
        self,
        num_envs: int,
        *,
        max_consecutive_faults: int = MAX_CONSECUTIVE_FAULTS,
        created: EnvFunction | None = None,
        **of_processes: Any,
    ) -> SimulatorCopies:
        """All its copies, which step in this process.

        Raises:
            UsageError: it has another number of copies.
        """
        name, env = self.source.name, self.unused.pop() if self.unused else None
        if env is not None and self.takes_number and said(env, "num_envs") != num_envs:
            close(env)
            env = None
        if env is None:
            make = self.source.make
            if self.takes_number:
                make = functools.partial(make, num_envs=num_envs)
            env = make_copy(self.source._replace(make=make))
        simulator = Simulator(env, name)
        if simulator.num_envs != num_envs:
            raise UsageError(
                f"environment {name!r} steps {simulator.num_envs} copies: num_envs must be "
                f"{simulator.num_envs}, not {num_envs}"
            )
        copies = self.copies(simulator, FaultCount(name, max_consecutive_faults))
        if created is not None:
            copies.foreach_env(created, seeds=None)
        return copies

    def copies(self, simulator: Simulator, faults: FaultCount) -> SimulatorCopies:
        closes = not self.source.is_given
        copies = SimulatorCopies(simulator, self.spec, self.action_types, faults, closes=closes)
        copies.context = self.source.context(0)
        return copies

    def environment(self, num_copies: int) -> OutsideEnvironment:
        """The simulator as training takes it.

        Args:
            num_copies: that it has now.
        """
        env = outside_environment(self.spec, self.vector)
        env.has_one_set = self.source.is_given
        env.num_copies = None if self.takes_number else num_copies
        env.without_parts = functools.partial(self._without_parts, num_copies)
        return env

    def _without_parts(self, num_copies: int, names: tuple[str, ...]) -> OutsideEnvironment:
        spaces = self.spec.observation_spaces
        left = {agent: without_parts(space, names) for agent, space in spaces.items()}
        spec = self.spec._replace(observation_spaces=left)
        return self._replace(spec=spec).environment(num_copies)


def declare(source: Source, made: Any) -> DeclaredSimulator:
    """A simulator, which is reset and stepped once to see what it gives.

    Raises:
        UsageError: it cannot be, or gives something else than a simulator gives.
    """
    name, simulator = source.name, Simulator(made, source.name)
    actions, action_types = _action_space(simulator)
    try:
        with preserved():
            first = simulator.reset(0)
    except Exception as error:
        raise UsageError(f"environment {name!r}: its reset failed: {reason_of(error)}") from error
    spec = VectorSpec(
        name=name,
        agents=(DEFAULT_AGENT,),
        observation_spaces={DEFAULT_AGENT: _observation_space(simulator, first)},
        action_spaces={DEFAULT_AGENT: actions},
        metrics=(),
        masked=False,
        always_active=True,
        waits=False,
        time_limit=_time_limit(made),
        critic_space=_critic_space(simulator, first),
    )
    declared = DeclaredSimulator(source, spec, action_types, [made])
    copies = declared.copies(simulator, FaultCount(name, 0))
    try:
        with preserved():
            copies.reset(np.zeros(1, np.uint32))
            copies.send(0, possible_actions(spec, None, simulator.num_envs))
            copies.receive(0)
    except TooManyFaults as error:
        raise UsageError(str(error)) from error
    return declared


def environment(source: Source, made: Any) -> OutsideEnvironment:
    """A simulator as training takes it; see `declare`."""
    return declare(source, made).environment(int(said(made, "num_envs")))


def _time_limit(env: Any) -> int | None:
    limit = said(env, "max_episode_length")
    return limit if isinstance(limit, int) else None


def _action_space(simulator: Simulator) -> tuple[Space, PyTree]:
    """(the action space of a copy, the types of its parts as the simulator takes them)."""
    env, width = simulator.env, said(simulator.env, "num_actions")
    space = said(env, "single_action_space")
    if space is None:
        space = getattr(env, "action_space", None)
        shape = tuple(getattr(space, "shape", None) or ())
        if len(shape) > 1 and shape[0] == simulator.num_envs:  # that of all copies together
            space = None
    named = f"action of {simulator.name}"
    if hasattr(space, "sample"):
        form = form_of(space, named)
        return from_json(form.json), form.build([leaf.given_dtype for leaf in form.leaves])
    if hasattr(space, "low"):  # a Box of mjlab's
        return Box(_bound(space.low), _bound(space.high), tuple(space.shape)), "float32"
    if hasattr(space, "n"):
        return Discrete(int(space.n)), "int64"
    if space is not None:
        raise UsageError(f"{named}: {brief(space)} is no Box and no Discrete space")
    if isinstance(width, int) and not isinstance(width, bool) and width > 0:
        return Box(-np.inf, np.inf, (width,)), "float32"
    raise UsageError(
        f"environment {simulator.name!r} has no action space: give it single_action_space, that of "
        "one copy, or num_actions, the width of continuous actions"
    )


def _bound(bound: Any) -> float | list:
    return np.asarray(to_host(bound), np.float64).tolist()


def _observation_space(simulator: Simulator, first: SimulatorResults) -> Space:
    """The space of what the policy sees: one of Gymnasium, or else as the tensors are."""
    space = said(simulator.env, "single_observation_space")
    groups = getattr(space, "spaces", None)
    if isinstance(groups, Mapping) and (name := group_of_policy(groups)) is not None:
        space = groups[name]
    if hasattr(space, "sample"):
        return from_json(form_of(space, f"observation of {simulator.name}").json)
    return _space_of_tensors(simulator, first.obs, "the observation")


def _critic_space(simulator: Simulator, first: SimulatorResults) -> Space | None:
    if first.critic is None:
        return None
    return _space_of_tensors(simulator, first.critic, "the critic's observation")


def _space_of_tensors(simulator: Simulator, tensors: PyTree, what: str) -> Space:
    number = simulator.num_envs

    def space(tensor):
        array = to_jax(tensor, jax.local_devices()[0])
        if array.ndim < 1 or len(array) != number:
            raise UsageError(
                f"environment {simulator.name!r}: {what} has shape {array.shape}, not "
                f"({number}, ...) for its {number} copies"
            )
        if jnp.issubdtype(array.dtype, jnp.floating):
            return Box(-np.inf, np.inf, array.shape[1:])
        return box_of(jax.ShapeDtypeStruct(array.shape[1:], array.dtype))

    return space_of(jax.tree.map(space, tensors))
