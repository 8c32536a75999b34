"""Policy servers of the tests, and a client of plain frames."""

import contextlib
import json
import time

import jax
import msgspec
import numpy as np
from websockets.sync.client import connect

from jaxrl import PPOConfig
from jaxrl.core.spaces import Box, Discrete
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy
from jaxrl.serving.batched_inference import BatchedPolicy
from jaxrl.serving.server import PolicyServer
from jaxrl.serving.settings import ServerSettings

ROW = Box(-2.0, 2.0, (3,))


def small_policy(name="mover", agents=("default_agent",), **settings):
    """A policy of random weights for rows of three numbers and three actions."""
    config = PPOConfig(env="cartpole", fcnet_hiddens=(8, 8), **settings)
    spec = config.policy_spec(name, ROW, Discrete(3), len(agents))
    params = jax.tree.map(lambda leaf: 3 * leaf, spec.model.init(jax.random.key(1)))
    return Policy(spec, PolicyWeights(params, spec.initial_filter()), name=name, agents=agents)


@contextlib.contextmanager
def serving(*policies, explore=False, experience=None, **settings):
    """A server of some policies, or of a small one, whose calls are compiled when they are made."""
    policies = policies or (small_policy(),)
    with contextlib.ExitStack() as stack:
        before, BatchedPolicy.warm_up = BatchedPolicy.warm_up, lambda self: None
        stack.callback(setattr, BatchedPolicy, "warm_up", before)
        served = {policy.name: policy for policy in policies}
        settings = ServerSettings(**{"port": 0, **settings})
        told = {"explore": explore, "experience": experience}
        yield stack.enter_context(PolicyServer(served, settings, **told))


class Frames:
    """A client that sends dicts as they are, in JSON or msgpack."""

    def __init__(self, server, *, text=True, hello=True, token="", **options):
        self.text = text
        self._connection = connect(server.address, compression=None, **options)
        self.socket = self._connection.__enter__()
        if hello:
            self.welcome = self.ask(type="hello", protocol=1, token=token)

    def send(self, **message):
        encoded = json.dumps(message) if self.text else msgspec.msgpack.encode(message)
        self.socket.send(encoded)

    def receive(self):
        frame = self.socket.recv(timeout=20)
        assert isinstance(frame, str) == self.text
        return json.loads(frame) if self.text else msgspec.msgpack.decode(frame)

    def ask(self, **message):
        self.send(**message)
        return self.receive()

    def begin(self, name="e", **rest):
        answer = self.ask(type="start_episode", id=0, episode=name, **rest)
        assert answer == {"type": "episode_started", "id": 0, "episode": name}

    def act(self, obs, name="e", **rest):
        """The whole answer to `get_action`."""
        return self.ask(type="get_action", id=1, episode=name, obs=obs, **rest)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._connection.__exit__(None, None, None)


def wait_until(holds, seconds=20):
    """Until `holds()` is true."""
    last = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < last, "it did not happen in time"
        time.sleep(0.01)


def plain(value):
    """A sampled observation as JSON has it."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return np.asarray(value).tolist()
