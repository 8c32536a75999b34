"""A Ray cluster that is only simulated: actors that play for as long as they are said to, and die.

`SimulatedRay` stands in for the module `ray`, as `jaxrl.outside.ray_rollouts` uses it. Nothing
runs in an actor: what it plays is one fragment that was played once, and a clock of its own says
when it is done. So what is measured of a thousand actors is what jaxrl does with them.
"""

import heapq
import itertools
import math
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

RayError = type("RayError", (Exception,), {})
RayTaskError = type("RayTaskError", (RayError,), {})
ActorDiedError = type("ActorDiedError", (RayError,), {})


@dataclass(frozen=True)
class Machines:
    """Where the actors run, and what happens to them. Times are in seconds.

    Attributes:
        cores: of the cluster; an actor takes one, and what is lost is there again at once.
        start: from the request for an actor until it has started.
        compiling: that an actor's first rollout takes longer.
        actors_lost: at once, when something is lost: 1 is a process, more are a machine.
        lost_per_minute: how often that happens in the whole cluster.
        until_noticed: from a loss until Ray says so.
        spread: of the time of a rollout from one to the next, as the sigma of a log-normal factor.
    """

    cores: int
    start: float
    rollout: float
    compiling: float = 0.0
    spread: float = 0.0
    actors_lost: int = 1
    lost_per_minute: float = 0.0
    until_noticed: float = 1.0


class Clock:
    """Seconds that pass when somebody waits, and what is due at each of them."""

    def __init__(self):
        self.now, self._due, self._order = 0.0, [], itertools.count()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.advance(lambda: False, self.now + seconds)

    def at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (moment, next(self._order), action))

    def advance(self, is_enough: Callable[[], bool], until: float) -> None:
        """Lets what is due happen, until it is enough or the moment has come."""
        while not is_enough():
            if not self._due or self._due[0][0] > until:
                self.now = until
                return
            self.now, _, action = heapq.heappop(self._due)
            action()


@dataclass(eq=False, slots=True)
class Ref:
    """A result that is there at some time."""

    result: Any = None
    error: Exception | None = None
    is_done: bool = False


@dataclass(eq=False)
class Actor:
    """An actor: its calls are done after their time, or fail when it is lost."""

    ray: "SimulatedRay"
    number: int
    num_cpus: float
    open: list[Ref] = field(default_factory=list)
    is_dead: bool = False
    has_core: bool = False
    has_played: bool = False
    waits: list[Callable[[], None]] = field(default_factory=list)  # for a core

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self.ray.call(self, name))


class SimulatedRay:
    """The module `ray`, and the cluster behind it.

    Args:
        machines: the cluster.
        play: gives what an actor returns for a rollout.
        seed: of the times and losses.

    Attributes:
        num_losses: actors that were lost.
        seconds: real ones, that the simulation took.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, machines: Machines, play: Callable[[], Any], seed: int):
        self.machines, self.clock, self._play = machines, Clock(), play
        self._random = random.Random(seed)
        self.actors: list[Actor] = []
        self._spare = float(machines.cores)
        self._in_line: list[Actor] = []  # for a core
        self.num_losses, self.seconds = 0, 0.0
        self._head = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._answer, daemon=True).start()
        self._lose_later()

    # ---- the cluster

    def call(self, actor: Actor, name: str) -> Ref:
        ref = Ref()
        if actor.is_dead:
            self.clock.at(self.clock.now + self.machines.until_noticed, lambda: self._fail(ref))
            return ref
        actor.open.append(ref)
        if name == "start":
            self._when_it_has_a_core(actor, lambda: self._done(actor, ref, "", self.machines.start))
        elif name == "collect":
            seconds = self.machines.rollout
            seconds *= math.exp(self._random.gauss(0.0, self.machines.spread))
            seconds += 0.0 if actor.has_played else self.machines.compiling
            actor.has_played = True
            self._done(actor, ref, self._play(), seconds)
        else:
            self._done(actor, ref, None, 0.0)
        return ref

    def _done(self, actor: Actor, ref: Ref, result: Any, seconds: float) -> None:
        def happens():
            if not actor.is_dead:
                ref.result, ref.is_done = result, True
                actor.open.remove(ref)

        self.clock.at(self.clock.now + seconds, happens)

    def _fail(self, ref: Ref) -> None:
        ref.error, ref.is_done = ActorDiedError(), True

    def _when_it_has_a_core(self, actor: Actor, action: Callable[[], None]) -> None:
        actor.waits.append(action)
        self._in_line.append(actor)
        self._hand_out_cores()

    def _hand_out_cores(self) -> None:
        for actor in list(self._in_line):
            if actor.is_dead:
                self._in_line.remove(actor)
            elif actor.num_cpus <= self._spare:
                self._in_line.remove(actor)
                self._spare -= actor.num_cpus
                actor.has_core = True
                for action in actor.waits:
                    action()

    def _lose_later(self) -> None:
        if self.machines.lost_per_minute:
            seconds = self._random.expovariate(self.machines.lost_per_minute / 60)
            self.clock.at(self.clock.now + seconds, self._lose)

    def _lose(self) -> None:
        """Some of the living actors are gone; their cores are there again at once."""
        living = [actor for actor in self.actors if not actor.is_dead and actor.has_core]
        if living:
            first = self._random.randrange(len(living))
            for actor in living[first : first + self.machines.actors_lost]:
                self.num_losses += 1
                self.kill(actor)
        self._lose_later()

    def _answer(self) -> None:
        """The head node can be reached."""
        while True:
            self._head.accept()[0].close()

    # ---- the module

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        host, port = self._head.getsockname()
        return SimpleNamespace(gcs_address=f"{host}:{port}", get_node_id=lambda: "here")

    def nodes(self) -> list[dict[str, Any]]:
        return []

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.machines.cores)}

    def put(self, value: Any) -> Ref:
        return Ref(value, is_done=True)

    def get(self, ref: Ref) -> Any:
        if ref.error is not None:
            raise ref.error
        return ref.result

    def wait(self, refs: list[Ref], num_returns: int = 1, timeout: float | None = None) -> tuple:
        """At most `num_returns` of them, as Ray's."""
        asked = time.perf_counter()
        until = math.inf if timeout is None else self.clock.now + timeout
        first = lambda: list(itertools.islice((ref for ref in refs if ref.is_done), num_returns))
        self.clock.advance(lambda: len(first()) == num_returns, until)
        done = first()
        taken = set(map(id, done))
        rest = [ref for ref in refs if id(ref) not in taken]
        self.seconds += time.perf_counter() - asked
        return done, rest

    def kill(self, actor: Actor) -> None:
        if actor.is_dead:
            return
        actor.is_dead = True
        if actor.has_core:
            self._spare += actor.num_cpus
            self._hand_out_cores()
        for ref in actor.open:
            moment = self.clock.now + self.machines.until_noticed
            self.clock.at(moment, lambda ref=ref: self._fail(ref))

    def method(self, **options: Any) -> Callable:
        return lambda function: function

    def remote(self, **options: Any) -> Callable:
        def made(num_cpus: float) -> Actor:
            actor = Actor(self, len(self.actors), num_cpus)
            self.actors.append(actor)
            return actor

        options_of = lambda num_cpus: SimpleNamespace(remote=lambda: made(num_cpus))
        return lambda kind: SimpleNamespace(options=options_of)
