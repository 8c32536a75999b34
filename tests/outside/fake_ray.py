"""Ray without processes: what `ray_rollouts` uses of it, with cores and losses as a test wants."""

import socket
import time
from types import SimpleNamespace


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class ActorDiedError(RayError):
    pass


class Ref:
    """A result: there are none until the actor has a core."""

    def __init__(self, result=None):
        self.result, self.error, self.is_done = result, None, result is not None


class Actor:
    """An actor whose calls run at once, in the calling thread, when it has the cores it needs."""

    def __init__(self, cluster, kind, num_cpus):
        self.cluster, self.body, self.num_cpus = cluster, kind(), num_cpus
        self.number, self.calls, self.is_dead = len(cluster.actors), [], False
        self.has_cores = False
        self.names = []  # of the calls that were made
        cluster.actors.append(self)

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *arguments: self.call(name, arguments))

    def call(self, name, arguments):
        ref = Ref()
        self.calls.append((ref, name, arguments))
        self.cluster.schedule()
        return ref

    def run(self):
        for call in [each for each in self.calls if not self.cluster.is_held(self, each[1])]:
            self.calls.remove(call)
            ref, name, arguments = call
            self.names.append(name)
            ref.is_done = True
            try:
                self.cluster.before_call(self, name)
                values = [each.result if isinstance(each, Ref) else each for each in arguments]
                ref.result = getattr(self.body, name)(*values)
            except ActorDiedError as error:
                ref.error = error
            except Exception as error:
                ref.error = RayTaskError(error)


class FakeRay:
    """A cluster, and the module `ray` of a program that is connected to it.

    Attributes:
        address: of its head node, where something must listen.
        before_call: before_call(actor, method) is called first, and may raise `ActorDiedError`.
        is_held: is_held(actor, method): whether a call has to wait.
    """

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, cores=8):
        self.cores, self.actors = cores, []
        self._head = socket.create_server(("127.0.0.1", 0), backlog=1000)  # nobody accepts
        self.address = f"127.0.0.1:{self._head.getsockname()[1]}"
        self.before_call = lambda actor, name: None
        self.is_held = lambda actor, name: False

    @property
    def living(self):
        return [actor for actor in self.actors if not actor.is_dead]

    def schedule(self):
        for actor in self.living:
            if not actor.has_cores and actor.num_cpus <= self.spare():
                actor.has_cores = True
            if actor.has_cores:
                actor.run()

    def spare(self):
        return self.cores - sum(actor.num_cpus for actor in self.living if actor.has_cores)

    # ---- the module

    def is_initialized(self):
        return True

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address=self.address, get_node_id=lambda: "here")

    def nodes(self):
        host, _, port = self.address.partition(":")
        return [{"NodeID": "here", "NodeManagerAddress": host, "NodeManagerPort": int(port)}]

    def cluster_resources(self):
        return {"CPU": float(self.cores)}

    def put(self, value):
        return Ref(value)

    def get(self, ref):
        assert ref.is_done
        if ref.error is not None:
            raise ref.error
        return ref.result

    def wait(self, refs, num_returns=1, timeout=None):
        self.schedule()
        done = [ref for ref in refs if ref.is_done]
        if not done and timeout:
            time.sleep(timeout)
        return done, [ref for ref in refs if not ref.is_done]

    def end(self):
        """No machine is left."""
        self._head.close()
        self.cores = 0

    def kill(self, actor):
        actor.is_dead = True

    def method(self, **options):
        return lambda function: function

    def remote(self, **options):
        def decorate(kind):
            make = lambda num_cpus: lambda: Actor(self, kind, num_cpus)
            return SimpleNamespace(options=lambda num_cpus: SimpleNamespace(remote=make(num_cpus)))

        return decorate
