"""Policy server: policies act for programs that own the loop, over WebSockets."""

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from websockets.asyncio.server import ServerConnection, broadcast
from websockets.asyncio.server import serve as serve_websockets
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.fields import UINT32, count, flag, instance_of, takes
from jaxrl.core.troubles import Troubles
from jaxrl.core.types import PolicyId
from jaxrl.export.export import npz_bytes
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy
from jaxrl.serving import protocol
from jaxrl.serving.batched_inference import HELD_SECONDS, BatchedPolicy, Batcher
from jaxrl.serving.godot import Scene, SceneClient, SceneFailed, Scenes
from jaxrl.serving.guesses import Guesses, network_of
from jaxrl.serving.session import WRONG_TOKEN, Experience, ServedPolicies, Session
from jaxrl.serving.settings import ServerSettings

HELLO_SECONDS = 5.0  # for a client's first message
# For the answer to a ping: it comes after what a client has sent, of which nothing is read while it
# waits for learning.
PING_SECONDS = 600.0
SWEEP_SECONDS = 1.0  # between two looks for unused episodes
IDLE_SECONDS = 5.0  # without a message and an episode, after which a client gives way to another
MAX_REASON_BYTES = 123  # of a WebSocket's last frame
MAX_UNREAD_BYTES = 8 * 2**20  # of answers that a client has not read

logger = logging.getLogger("jaxrl.serving")
logger.addHandler(logging.NullHandler())
logger.propagate = False  # what a stranger sends is no news
log = logging.getLogger("jaxrl.server")


class PolicyServer:
    """Serves policies to programs that ask for actions; docs/serving.md has the protocol.

    As a context manager it serves in a thread:

        with PolicyServer({"default_policy": jaxrl.load_policy(RUN)}) as server:
            print(server.address)

    Args:
        policies: by name, with the agents that they play.
        settings: where it listens, and its limits.
        explore: whether actions are sampled, where an episode does not say.
        seed: of the actions that are sampled.
        experience: gets the chunks of the episodes that clients live through, to learn from.
        scenes: where scenes of Godot RL Agents connect to, if it was opened before.
    """

    @takes(
        settings=instance_of(ServerSettings, "ServerSettings", optional=True),
        explore=flag,
        seed=count(0, UINT32),
    )
    def __init__(
        self,
        policies: Mapping[PolicyId, Policy],
        settings: ServerSettings | None = None,
        *,
        explore: bool = False,
        seed: int = 0,
        experience: Experience | None = None,
        scenes: Scenes | None = None,
    ):
        if not isinstance(policies, Mapping) or not policies:
            raise UsageError(f"policies={brief(policies)} must be a mapping {{name: Policy}}")
        for name, policy in policies.items():
            instance_of(Policy, "a Policy, as jaxrl.load_policy returns")(
                f"policies[{name!r}]", policy
            )
        self.settings = ServerSettings() if settings is None else settings
        batched = {name: BatchedPolicy(policy, seed) for name, policy in policies.items()}
        self.served = ServedPolicies(batched, explore=explore)
        if not self.served.players:
            raise UsageError("the policies play no agent")
        self.served.experience = experience
        is_held = (lambda: False) if experience is None else (lambda: experience.is_full)
        self.batcher = Batcher(self.served.policies, is_held)
        self.counts: Counter[str] = Counter()
        self.troubles = Troubles(log.warning)
        self.sessions: dict[Hashable, Session] = {}  # by connection, or by scene
        self.scenes = scenes
        self.port = self.settings.port
        _ = self.settings.token, self.settings.tls  # refused here, if they are wrong
        self._guesses = Guesses()
        self._files: dict[tuple[PolicyId, bool, int], asyncio.Future[bytes]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"ws{'s' if self.settings.certificate else ''}://{host}:{self.port}"

    def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serves until `stop` or Ctrl-C; calls `ready` when clients can connect.

        Raises:
            UsageError: the port cannot be had, or the certificate not be used.
        """
        for batched in self.served.policies.values():
            batched.warm_up()
        asyncio.run(self._serve(ready))

    def stop(self) -> None:
        """Ends `serve`, from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopping.set)

    def __enter__(self) -> "PolicyServer":
        started, failed = threading.Event(), []

        def run() -> None:
            try:
                self.serve(started.set)
            except BaseException as error:
                failed.append(error)
            finally:
                started.set()

        self._thread = threading.Thread(target=run, name="policy server", daemon=True)
        self._thread.start()
        started.wait()
        if failed:
            raise failed[0]
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()
        self._thread.join()

    def set_weights(self, weights: Mapping[PolicyId, PolicyWeights]) -> None:
        """Acts with these from now on; from any thread."""
        for name, new in weights.items():
            self.served.policies[name].set_weights(new)
        self.served.weights_version += 1

    def summary(self) -> str:
        """The server's counts of actions, episodes, clients and refusals, for people."""
        counts = self.counts
        return (
            f"{counts['actions']:,} actions in {counts['episodes']:,} episodes of "
            f"{counts['clients']:,} clients; {counts['dropped']:,} episodes dropped, "
            f"{counts['refused']:,} messages refused"
            + "".join(
                f"; {often}" for troubles in self._all_troubles() if (often := troubles.summary)
            )
        )

    def _all_troubles(self) -> list[Troubles]:
        return [self.troubles, *([] if self.scenes is None else [self.scenes.troubles])]

    def _say_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tells what the event loop meets, such as connections for which no descriptor is left."""
        kind, error = str(context["message"]), context.get("exception")
        self.troubles.tell(kind, kind if error is None else f"{kind}: {one_line(error)}")

    async def _serve(self, ready: Callable[[], None]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(self._say_trouble)
        settings = self.settings
        if self.scenes is None and settings.godot_port is not None:
            self.scenes = Scenes(settings.godot_port)
        options = {
            "origins": [None, *settings.origins],  # None: a program that is no browser
            "max_size": settings.max_message_bytes,
            "compression": None,  # small messages, and a small one may not become a large one
            "ssl": settings.tls,
            "open_timeout": HELLO_SECONDS,
            "ping_timeout": PING_SECONDS,
            "server_header": "jaxrl",
            "logger": logger,
        }
        try:
            server = await serve_websockets(
                self._connected, settings.host, settings.port, **options
            )
        except OSError as error:
            raise UsageError(
                f"port {settings.port} of {settings.host} cannot be used "
                f"({error.strerror or error}); choose another, --port 0 any that is free"
            ) from None
        self.port = next(iter(server.sockets)).getsockname()[1]
        tasks = [asyncio.create_task(self._sweep())]
        if self.scenes is not None:
            tasks.append(asyncio.create_task(self._accept_scenes()))
        try:
            ready()
            await self._stopping.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            server.close()
            await server.wait_closed()

    async def _sweep(self) -> None:
        """Drops what nobody uses."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._guesses.forget_old()
            before = time.monotonic() - self.settings.episode_timeout
            for session in list(self.sessions.values()):
                session.drop_unused(before)

    async def _connected(self, connection: ServerConnection) -> None:
        """A client, from its first message to its end."""
        if not self._has_room_for(connection):
            await connection.close(1013, "too many clients")
            return
        send = lambda frame, is_text: self._send(connection, frame, is_text)
        session = self._begin(connection, send)
        pace = Pace(self.settings.max_messages_per_second)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await connection.recv()
            await self._greet(session, hello, _network_of(connection))
            async for frame in connection:
                session.handle(frame)
                if session.is_closed:
                    break
                if (pause := pace.pause(time.monotonic())) > 0:
                    await asyncio.sleep(pause)
                while session.is_ahead and connection.state is State.OPEN:  # nothing is read
                    await asyncio.sleep(HELD_SECONDS)
        except (ConnectionClosed, TimeoutError):
            pass
        finally:
            self.sessions.pop(connection, None)  # it may have given way to another
            reason = session.close_reason
            session.close("")
            short = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
            await connection.close(1008 if reason else 1000, short)

    async def _greet(self, session: Session, hello: str | bytes, network: str) -> None:
        """Takes a first message, late where its network has just said a wrong token."""
        await self._guesses.turn(network)
        session.handle(hello)
        if session.close_reason == WRONG_TOKEN:
            self._guesses.was_wrong(network)

    def _has_room_for(self, connection: ServerConnection) -> bool:
        """Returns whether one more client may come; an idle one gives way if there is no room."""
        network = _network_of(connection)
        alike = [client for client in self.sessions if _network_of(client) == network]
        if len(alike) >= self.settings.max_clients_per_address:
            candidates = alike
        elif len(self.sessions) >= self.settings.max_clients:
            candidates = list(self.sessions)
        else:
            return True
        before = time.monotonic() - IDLE_SECONDS
        idle = [client for client in candidates if self.sessions[client].is_idle(before)]
        if not idle:
            return False
        longest = min(idle, key=lambda client: self.sessions[client].last_used)
        self.sessions.pop(longest).close("idle, while another client waits")
        if isinstance(longest, ServerConnection):
            longest.transport.abort()
        return True

    def _begin(self, client: Hashable, send: Callable[[Any, bool], None]) -> Session:
        """The session of a new client."""
        self.sessions[client] = session = Session(
            self.served,
            self.batcher,
            send=send,
            send_weights=self._send_weights,
            count=self._count,
            limits=self.settings,
        )
        self._count("clients")
        return session

    async def _accept_scenes(self) -> None:
        playing: set[asyncio.Task] = set()
        try:
            while True:
                scene = await self.scenes.accept()
                if len(self.sessions) >= self.settings.max_clients:
                    scene.close()
                    continue
                playing.add(task := asyncio.create_task(self._play(scene)))
                task.add_done_callback(playing.discard)
        finally:
            self.scenes.close()
            for task in playing:
                task.cancel()
            await asyncio.gather(*playing, return_exceptions=True)

    async def _play(self, scene: Scene) -> None:
        """A scene, from its description to its end."""
        try:
            await scene.describe()
            client = SceneClient(scene, self.served, self.scenes.troubles)
            session = self._begin(scene, client.receive)
            await client.play(session)
        except SceneFailed as error:
            self.scenes.say_ended(scene, error)
        finally:
            if (session := self.sessions.pop(scene, None)) is not None:
                session.close("")
            scene.close()

    def _send(self, connection: ServerConnection, frame: bytes, is_text: bool) -> None:
        """Sends without waiting; a client that does not read its answers is cut off."""
        if connection.transport.is_closing():  # what is written now, asyncio only complains of
            return
        if connection.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            connection.transport.abort()
            return
        broadcast([connection], frame.decode() if is_text else frame)

    def _count(self, name: str) -> None:
        self.counts[name] += 1

    def _send_weights(self, session: Session, message: protocol.GetWeights) -> None:
        version = self.served.weights_version
        if message.known == version:
            session.send(protocol.Weights(message.id, message.policy, version, None))
            return
        explore = self.served.explore if message.explore is None else message.explore
        key = (message.policy, explore, version)
        if key not in self._files:
            self._files = {old: file for old, file in self._files.items() if old[2] == version}
            policy = self.served.policies[message.policy].policy
            self._files[key] = self._loop.run_in_executor(
                None, functools.partial(npz_bytes, policy, explore=explore)
            )

        def done(file: asyncio.Future[bytes]) -> None:
            if error := file.exception():
                session.refuse(message, one_line(error))
            else:
                weights = protocol.Weights(message.id, message.policy, version, file.result())
                session.send(weights)

        self._files[key].add_done_callback(done)


def _network_of(client: Hashable) -> str:
    """The network that a client connects from; "" of a scene."""
    address = getattr(client, "remote_address", None)
    return network_of(str(address[0])) if address else ""


class Pace:
    """The pace of a client's messages: those of a second at once, then as many in each second."""

    def __init__(self, per_second: int):
        self.per_second, self._left, self._last = per_second, float(per_second), None

    def pause(self, now: float) -> float:
        """Counts a message; how many seconds to wait before the next is read."""
        if self._last is not None:
            gained = (now - self._last) * self.per_second
            self._left = min(self._left + gained, float(self.per_second))
        self._last = now
        self._left -= 1
        return max(-self._left / self.per_second, 0.0)
