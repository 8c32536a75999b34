"""Rollouts of environments outside JAX that Ray actors collect, on one machine or on many.

Each actor holds some of the copies and acts in them itself (`rollout_actor`). Once for a rollout
the weights go to the machines, through Ray's object store, and what each actor played comes back.

An actor that is lost, alone or with its machine, is replaced where Ray has room. The rollout does
without its part where that is small, and the new one plays new episodes from the next rollout on;
else the new one plays the part again, with the same weights and new episodes. The same holds for
one that does not answer for a while, as when its process is frozen. An actor for which Ray has no
core to spare shares one with others, until there is: a machine that joins is used so.
"""

import functools
import itertools
import logging
import pickle
import platform
import socket
import threading
import time
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.core.errors import UsageError, one_line
from jaxrl.core.fast_prng import to_standard_key
from jaxrl.core.types import Key
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.outside.fragments import Fragment, joined, unplayed
from jaxrl.outside.host_rollout import Seconds, Stopped
from jaxrl.outside.rollout_actor import Collected
from jaxrl.outside.workers.env_functions import EnvFunction
from jaxrl.outside.workers.pool import START_TIMEOUT_S
from jaxrl.outside.workers.vector import FaultCount
from jaxrl.rollout.env_step import EnvBatch, RolloutSpec
from jaxrl.rollout.rollout import Rollout

POLL_S = 1.0
PATIENCE_S = 30.0  # for a core that others use
ANSWER_TIMEOUT_S = 60.0  # to say that it still runs, which an actor does while it plays
ASKS_IN_TIMEOUT = 4  # each costs the training about a millisecond
MOST_LEFT_OUT = 0.1  # of the copies in a rollout
CLOSE_TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class RayEnded(RuntimeError):
    """The Ray cluster has ended: training cannot continue."""


@dataclass
class Candidate:
    """An actor that was asked to start."""

    actor: Any
    started: Any  # Ray's reference: "", or why it cannot
    asked: float  # when it was asked last, by `time.monotonic`
    has_started: bool = False
    answer: Any = None  # Ray's reference to that of one that has started: it still runs


@dataclass
class Share:
    """The copies that one actor holds.

    Attributes:
        player: the actor that plays, or will when it has started.
        successor: one with a core to itself, which takes over when Ray has found it.
        begins: whether new episodes begin with the next rollout.
        first_seeds: of the episodes that the first player began, u32[e].
        num_players: how many have begun episodes in these copies.
        num_lost: how many of its actors were lost since one of them played a rollout.
    """

    copies: slice
    player: Candidate
    successor: Candidate | None = None
    begins: bool = True
    first_seeds: np.ndarray | None = None
    num_players: int = 1
    num_lost: int = 0

    def __str__(self):
        return f"copies {self.copies.start} to {self.copies.stop - 1}"

    @property
    def size(self) -> int:
        return self.copies.stop - self.copies.start

    @property
    def is_new(self) -> bool:
        """True if its actor was lost, and the next one is not known to have started."""
        return self.num_lost > 0 and not self.player.has_started

    @property
    def seeds(self) -> np.ndarray | None:
        """The seeds of the episodes of the next rollout; None: the present ones continue."""
        if not self.begins:
            return None
        if self.num_players == 1:
            return self.first_seeds
        sequence = np.random.SeedSequence([self.num_players, *self.first_seeds.tolist()])
        return sequence.generate_state(self.size, np.uint32)

    def hand_to(self, player: Candidate) -> None:
        """Another actor is to play, in episodes of other seeds."""
        self.player, self.begins = player, True
        self.num_players += 1


class _Order(NamedTuple):
    """A rollout that is asked for."""

    weights: Any  # Ray's reference
    env_keys: np.ndarray  # u32[E, ...], the numbers of the keys: slices of keys cost a call of JAX
    key_impl: str
    env_steps: float


class RayRollouts:
    """Rollouts of E copies, one after the other, with the methods of `HostRollouts`.

    Args:
        spec: who plays where.
        start: the pickled `rollout_actor.Start`.
        sizes: (copies, actors), the second at most the first.
    """

    def __init__(self, spec: RolloutSpec, start: bytes, sizes: tuple[int, int], faults: FaultCount):
        import ray

        self._spec, (num_envs, num_actors) = spec, sizes
        self._ray, self._faults, self.num_restarts = ray, faults, 0
        self.stopping = threading.Event()  # set: the rollout under way is given up
        if not ray.is_initialized():
            _connect()
        self._servers, self._has_ended = _servers(), False
        self._lost_at = float("-inf")  # when the last actor was replaced
        self._start = ray.put(start)
        self._has_played = False
        self._examples: dict[int, Fragment] = {}  # by the number of copies
        bounds = [num_envs * i // num_actors for i in range(num_actors + 1)]
        self._shares = []
        for first, end in itertools.pairwise(bounds):
            self._shares.append(Share(slice(first, end), self._asked(end - first, 1)))
        for share in self._shares:
            if self._lacks_cores():
                self._squeeze_in(share)

    @property
    def num_faults(self) -> int:
        return self._faults.total

    def foreach_env(self, function: EnvFunction, seeds: np.ndarray | None) -> list[Any]:
        raise UsageError(
            f"{self._spec.env.name}: its copies are in Ray actors, which take no calls: workers=8 "
            "are processes of this machine, and those do"
        )

    def reset(self, weights: tuple[PolicyWeights, ...], seeds: np.ndarray) -> None:
        """New episodes begin in all copies with the next rollout; `seeds` is u32[E]."""
        for share in self._shares:
            share.first_seeds, share.begins = seeds[share.copies], True

    def collect(
        self, weights: tuple[PolicyWeights, ...], env_keys: Key, env_steps: float = 0.0
    ) -> tuple[EnvBatch, Rollout, Seconds]:
        """Plays on for a rollout; arguments and results are those of `HostRollouts.collect`."""
        self._check_cluster()
        keys = to_standard_key(env_keys)
        numbers, impl = np.asarray(jax.random.key_data(keys)), jax.random.key_impl(keys)
        order = _Order(self._ray.put(jax.device_get(weights)), numbers, impl, env_steps)
        played: dict[int, Fragment] = {}
        waiting: dict[Any, Share] = {}
        left_out: list[Share] = []
        for share in self._shares:
            self._let_successor_play(share)
            if share.is_new:
                self._look_after(share)
            if share.is_new and self._can_leave_out(share, left_out):
                left_out.append(share)
            else:
                waiting[self._next_step(share, order)] = share
        while waiting:
            if self.stopping.is_set():
                raise Stopped
            # Of all at once: Ray looks at every reference in each call.
            done, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=POLL_S)
            late = []
            if not done:
                self._check_cluster()
                lacks = self._lacks_cores()
                late = [ref for ref, share in waiting.items() if self._is_late(share, lacks)]
            for ref in (*done, *late):
                share = waiting.pop(ref)
                fragment = self._taken(share, ref) if ref in done else self._given_up(share)
                if fragment is not None:
                    played[share.copies.start] = fragment
                elif not share.player.has_started and self._can_leave_out(share, left_out):
                    left_out.append(share)
                else:
                    waiting[self._next_step(share, order)] = share
        for share in left_out:
            played[share.copies.start] = unplayed(self._examples[share.size])
        self._has_played = True
        return joined(self._spec, [played[share.copies.start] for share in self._shares])

    def close(self) -> None:
        """Closes the environments, and ends the actors."""
        ray, self._shares, shares = self._ray, [], self._shares
        if self._has_ended or not ray.is_initialized():  # and the actors with it
            return
        players = [share.player for share in shares]
        closed = [player.actor.close.remote() for player in players if player.has_started]
        if closed:
            ray.wait(closed, num_returns=len(closed), timeout=CLOSE_TIMEOUT_S)
        for candidate in (*players, *(share.successor for share in shares)):
            if candidate is not None:
                ray.kill(candidate.actor)

    # ---- one share

    def _next_step(self, share: Share, order: _Order) -> Any:
        """Ray's reference to the player's start, then to what it plays."""
        if not share.player.has_started:
            return share.player.started
        randomness = order.env_keys[share.copies], order.key_impl, order.env_steps
        return share.player.actor.collect.remote(order.weights, randomness, share.seeds)

    def _taken(self, share: Share, ref: Any) -> Fragment | None:
        """The share's fragment, if that is what is done; replaces a player that failed."""
        is_new = self._has_played and share.begins
        try:
            result = self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            if not is_new:
                raise error.cause from error
            # On a machine that joined, say, which lacks a library: the others continue.
            return self._replace(share, one_line(error.cause))
        except self._ray.exceptions.RayError as error:
            return self._replace(share, f"its Ray actor was lost ({type(error).__name__})")
        if share.player.has_started:
            return self._counted(share, result)
        if not result:
            share.player.has_started = True
            return None
        if not is_new:
            raise UsageError(f"a Ray actor cannot start {result}")
        return self._replace(share, f"its Ray actor cannot start {result}")

    def _counted(self, share: Share, collected: Collected) -> Fragment:
        """The fragment that an actor returned; its faults are counted, its messages logged."""
        share.begins, share.num_lost = False, 0
        self._examples[share.size] = collected.fragment
        self._faults.total += collected.num_faults
        self._faults.see(collected.fragment.rollout)
        self.num_restarts += collected.num_restarts
        for name, level, message in collected.said:
            logging.getLogger(name).log(level, "%s: %s", share, message)
        return collected.fragment

    def _can_leave_out(self, share: Share, left_out: list[Share]) -> bool:
        """Returns whether a rollout may also end without this part, whose actor was lost.

        It waits for a part of which the next actor was lost too: an environment that starts nowhere
        has to end the training.
        """
        size_of = lambda shares: sum(share.size for share in shares)
        is_small = size_of((*left_out, share)) <= MOST_LEFT_OUT * size_of(self._shares)
        return is_small and self._has_played and share.num_lost == 1

    def _look_after(self, share: Share) -> None:
        """Sees to it that the successor of a lost actor starts, between two rollouts."""
        started = share.player.started
        if self._ray.wait([started], timeout=0)[0]:
            self._taken(share, started)
        elif self._is_late(share, self._lacks_cores()):
            self._given_up(share)

    def _is_late(self, share: Share, lacks_cores: bool) -> bool:
        """Returns whether a player is late to start or to answer, or lacks a core to start."""
        if share.player.has_started:
            return self._is_silent(share.player)
        waited = time.monotonic() - share.player.asked
        if share.successor is not None:
            return waited > START_TIMEOUT_S
        return waited > PATIENCE_S or lacks_cores

    def _is_silent(self, player: Candidate) -> bool:
        """Returns whether a player has not answered for long; asks it now and then."""
        waited = time.monotonic() - player.asked
        if waited < ANSWER_TIMEOUT_S / ASKS_IN_TIMEOUT:
            return False
        if player.answer is None or self._ray.wait([player.answer], timeout=0)[0]:
            player.answer, player.asked = player.actor.answer.remote(), time.monotonic()
            return False
        return waited > ANSWER_TIMEOUT_S

    def _given_up(self, share: Share) -> None:
        """Puts another actor in the place of one that has not started, or does not answer."""
        if share.player.has_started:
            self._replace(share, f"its Ray actor did not answer within {ANSWER_TIMEOUT_S:g} s")
        elif share.successor is None:
            self._squeeze_in(share)
        else:
            self._replace(share, f"its Ray actor did not start within {START_TIMEOUT_S:g} s")

    def _replace(self, share: Share, reason: str) -> None:
        """Puts a new actor, with new episodes, in the place of one that was lost."""
        if time.monotonic() - self._lost_at > PATIENCE_S:
            time.sleep(POLL_S)  # a cluster that ends ends its actors first
        self._check_cluster()
        self._lost_at = time.monotonic()
        self._ray.kill(share.player.actor)
        self._faults.add(f"{share}: {reason}", share.size if share.player.has_started else 0)
        self.num_restarts += 1
        share.num_lost += 1
        share.hand_to(self._asked(share.size, 1 if share.successor is None else 0))

    def _let_successor_play(self, share: Share) -> None:
        """Lets a successor that has started take the player's place between two rollouts."""
        successor = share.successor
        if successor is None or not self._ray.wait([successor.started], timeout=0)[0]:
            return
        share.successor = None
        try:
            reason = self._ray.get(successor.started)
        except self._ray.exceptions.RayError:  # lost, with the machine that it was on
            share.successor = self._asked(share.size, 1)
            return
        if reason:
            log.warning("%s stay where they are: a Ray actor cannot start %s", share, reason)
            return
        self._ray.kill(share.player.actor)
        successor.has_started = True
        share.hand_to(successor)
        log.warning("%s moved to a core that is free now: their episodes begin again", share)

    def _squeeze_in(self, share: Share) -> None:
        """Lets an actor without a core to itself play, until Ray has found the other a core."""
        share.successor, share.player = share.player, self._asked(share.size, 0)

    # ---- Ray

    def _check_cluster(self) -> None:
        """Raises RayEnded where Ray has ended: its own calls would end this process."""
        for name, address in self._servers.items():
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
            except OSError as error:
                self._has_ended = True
                raise RayEnded(
                    f"the Ray cluster has ended: {name} {address} cannot be reached "
                    f"({error.strerror or error})"
                ) from None

    def _asked(self, num_envs: int, num_cores: int) -> Candidate:
        actor = _actor_class().options(num_cpus=num_cores).remote()
        started = actor.start.remote(self._start, num_envs)
        return Candidate(actor, started, time.monotonic())

    def _lacks_cores(self) -> bool:
        """Returns whether another share must do without a core to itself."""
        cores = self._ray.cluster_resources().get("CPU", 0.0)
        num_squeezed = sum(share.successor is not None for share in self._shares)
        return num_squeezed < len(self._shares) - cores


def _connect() -> None:
    """Connects to the cluster that there is, else starts Ray here."""
    import ray

    with warnings.catch_warnings():  # by JAX, of a fork that runs another program at once
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
        try:
            ray.init(logging_level="warning", log_to_driver=False)
        except Exception as error:  # Ray raises errors of many kinds
            raise UsageError(f"Ray cannot be used: {one_line(error)}") from None


def _servers() -> dict[str, str]:
    """The addresses of what this process needs of the cluster."""
    import ray

    context = ray.get_runtime_context()
    servers, here = {"its head node": context.gcs_address}, context.get_node_id()
    for node in ray.nodes():
        if node["NodeID"] == here:
            address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
            servers["this machine's part of it"] = address
    return servers


@functools.cache
def _actor_class() -> Any:
    import ray

    class Actor:  # a local class travels by value, so it can say what its machine lacks
        def start(self, start: bytes, num_envs: int) -> str:
            """Makes the copies; "", or the machine and the reason why that failed."""
            try:
                import jax

                jax.config.update("jax_platforms", "cpu")  # before an array is unpickled
                from jaxrl.outside.rollout_actor import RolloutActor

                self._actor = RolloutActor(pickle.loads(start), num_envs)
                return ""
            except Exception as error:
                kind = type(error).__name__
                kind = "" if kind == "UsageError" else f"{kind}: "
                return f"on {platform.node()}: {kind}{error}".partition("\n")[0]

        def collect(self, *arguments: Any) -> Any:
            return self._actor.collect(*arguments)

        def close(self) -> None:
            self._actor.close()

        @ray.method(concurrency_group="answers")
        def answer(self) -> None:
            """Returns, in a thread of its own, while the actor plays."""

    return ray.remote(
        max_restarts=0,
        max_task_retries=0,
        scheduling_strategy="SPREAD",
        concurrency_groups={"answers": 1},
    )(Actor)
