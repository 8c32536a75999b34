"""Batched inference: the requests of many clients, answered by one compiled call."""

import asyncio
import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.core.program_spaces import mask_length
from jaxrl.core.spaces import tree_of
from jaxrl.core.types import Key, PolicyId, PyTree
from jaxrl.models.policy_spec import PolicySpec, PolicyState, PolicyWeights
from jaxrl.run.inference.policy import Policy, acting_key

MAX_BATCH = 64  # rows of one compiled call; more are answered by several
MAX_WAIT = 0.5e-3  # seconds that a request waits for others
HELD_SECONDS = 2e-3  # between two looks whether answers still have to wait
RECENT = 0.05  # seconds; a client that asked this long ago is expected to ask again


class Row(NamedTuple):
    """A request for one agent's action."""

    obs: Sequence[np.ndarray]  # the parts of the observation, in JAX's order
    state: PolicyState  # of NumPy arrays
    mask: np.ndarray | None
    agent_id: int  # among the agents of its policy
    explore: bool


class Acted(NamedTuple):
    """The answer to a row."""

    action: Any  # in the environment's units, as plain numbers and lists
    sampled: PyTree | None  # as of `PolicySpec.recorded`, where it differs
    log_prob: float
    state: PolicyState


class BatchedPolicy:
    """A policy that acts on rows, in compiled calls of 1, 2, 4 to 64 of them.

    Its weights may be replaced at any time, from another thread too.
    """

    def __init__(self, policy: Policy, seed: int = 0):
        self.policy, self.policy_spec = policy, policy.policy_spec
        self.weights = jax.device_put(policy.weights)
        self._structure = jax.tree.structure(tree_of(policy.observation_space))
        self._key, self._calls = acting_key(seed, policy.name), 0
        fresh = policy.policy_spec.initial_state((1,))
        self.fresh_state = jax.tree.map(lambda leaf: np.asarray(leaf)[0], fresh)
        self.remembers = bool(jax.tree.leaves(fresh))

    def tree_of(self, parts: Sequence[np.ndarray]) -> PyTree:
        """An observation of its parts."""
        return jax.tree.unflatten(self._structure, parts)

    def set_weights(self, weights: PolicyWeights) -> None:
        """Acts with these from the next call on."""
        self.policy.weights = weights
        self.weights = jax.device_put(weights)

    def warm_up(self) -> None:
        """Compiles the calls of every size."""
        parts = jax.tree.leaves(tree_of(self.policy.observation_space))
        obs = [np.zeros(part.shape, part.dtype) for part in parts]
        mask = None
        if self.policy.masked:
            mask = np.ones(mask_length(self.policy.action_space), bool)
        size = 1
        while size <= MAX_BATCH:
            self.act([Row(obs, self.fresh_state, mask, 0, False)] * size)
            size *= 2

    def act(self, rows: Sequence[Row]) -> list[Acted]:
        """The answers to some rows, in their order."""
        answers = []
        for first in range(0, len(rows), MAX_BATCH):
            answers += self._act(rows[first : first + MAX_BATCH])
        return answers

    def _act(self, rows: Sequence[Row]) -> list[Acted]:
        size = 1 << (len(rows) - 1).bit_length()
        padded = [*rows, *[rows[-1]] * (size - len(rows))]
        obs = [np.stack(part) for part in zip(*(row.obs for row in padded), strict=True)]
        state = self.fresh_state
        if self.remembers:
            state = jax.tree.map(lambda *leaves: np.stack(leaves), *(row.state for row in padded))
        mask = np.stack([row.mask for row in padded]) if self.policy.masked else None
        agent_id = np.array([row.agent_id for row in padded], np.int32)
        explore = np.array([row.explore for row in padded])
        self._calls += 1
        request = self.tree_of(obs), state, mask, agent_id
        draw = self._key, np.uint32(self._calls % 2**32)
        outputs = jax.device_get(_act(self.policy_spec, self.weights, request, explore, draw))
        actions, sampled, log_probs, after = outputs
        actions = jax.tree.map(np.ndarray.tolist, actions)
        lists, structure = jax.tree.flatten(actions, is_leaf=lambda node: isinstance(node, list))
        log_probs, answers = log_probs.tolist(), []
        for i in range(len(rows)):
            action = structure.unflatten([values[i] for values in lists])
            row_state = self.fresh_state
            if self.remembers:
                row_state = jax.tree.map(lambda leaf, i=i: leaf[i], after)
            drawn = jax.tree.map(lambda leaf, i=i: leaf[i], sampled)
            answers.append(Acted(action, drawn, log_probs[i], row_state))
        return answers


@functools.partial(jax.jit, static_argnums=0)
def _act(
    policy_spec: PolicySpec,
    weights: PolicyWeights,
    request: tuple[PyTree, PolicyState, PyTree, jax.Array],
    explore: jax.Array,
    draw: tuple[Key, jax.Array],
) -> tuple[PyTree, PyTree, jax.Array, PolicyState]:
    """(the environment's actions, the sampled ones or None, log-probabilities, the next states).

    Actions are drawn where `explore`, bool[B], is set, and are else the likeliest.
    """
    obs, state, mask, agent_id = request
    inputs = policy_spec.inputs(state, mask, agent_id)
    noise = policy_spec.noise(jax.random.fold_in(*draw), explore.shape)
    output = policy_spec.act(weights, obs, state, inputs, noise=noise, is_drawn=explore)
    sampled, env_action = policy_spec.action_form.recorded(output.action)
    action, drawn = (sampled, None) if env_action is None else (env_action, sampled)
    return action, drawn, output.log_prob, policy_spec.next_state(output)


class _Request(NamedTuple):
    rows: Sequence[tuple[PolicyId, Row]]
    answer: Callable[[list[Acted] | Exception], None]


class Batcher:
    """The requests of all clients, collected for half a millisecond, or until all have asked.

    It belongs to the thread of an event loop. The clients that are waited for are those that asked
    within the last 50 ms.

    Args:
        is_held: whether answers have to wait, since learning does not keep up with the clients.
    """

    def __init__(
        self,
        policies: Mapping[PolicyId, BatchedPolicy],
        is_held: Callable[[], bool] = lambda: False,
    ):
        self.policies, self.is_held = policies, is_held
        self.num_calls = 0
        self._requests: list[_Request] = []
        self._asking: set[Hashable] = set()
        self._asked: dict[Hashable, float] = {}
        self._expected, self._deadline = 0, 0.0

    def ask(
        self,
        client: Hashable,
        rows: Sequence[tuple[PolicyId, Row]],
        answer: Callable[[list[Acted] | Exception], None],
    ) -> None:
        """Calls `answer` with the actions of the rows, or with what went wrong."""
        now = time.perf_counter()
        self._asked[client] = now
        self._asking.add(client)
        self._requests.append(_Request(rows, answer))
        if len(self._requests) == 1:
            self._expected = sum(asked > now - RECENT for asked in self._asked.values())
            self._deadline = now + MAX_WAIT
            asyncio.get_running_loop().call_soon(self._wait)

    def when_free(self, answer: Callable[[], None]) -> None:
        """Calls `answer` once answers do not have to wait."""
        if self.is_held():
            asyncio.get_running_loop().call_later(HELD_SECONDS, self.when_free, answer)
        else:
            answer()

    def forget(self, client: Hashable) -> None:
        """No longer waits for a client."""
        self._asked.pop(client, None)

    def _wait(self) -> None:
        if self.is_held():
            asyncio.get_running_loop().call_later(HELD_SECONDS, self._wait)
        elif len(self._asking) >= self._expected or time.perf_counter() >= self._deadline:
            self._run()
        else:  # not `call_later`, whose clock has milliseconds
            asyncio.get_running_loop().call_soon(self._wait)

    def _run(self) -> None:
        requests, self._requests = self._requests, []
        self._asking.clear()
        self.num_calls += 1
        by_policy: dict[PolicyId, list[Row]] = {}
        for request in requests:
            for policy, row in request.rows:
                by_policy.setdefault(policy, []).append(row)
        try:
            acted = {policy: self.policies[policy].act(rows) for policy, rows in by_policy.items()}
        except Exception as error:  # of a user's network
            for request in requests:
                request.answer(error)
            return
        answers = {policy: iter(rows) for policy, rows in acted.items()}
        for request in requests:
            request.answer([next(answers[policy]) for policy, _ in request.rows])
