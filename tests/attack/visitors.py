"""Clients of a policy server that come, play, and leave in every way there is, until killed.

Started as a program: `python -m tests.attack.visitors ws://127.0.0.1:9944 SECONDS`. Prints at its
end how often each way was gone.
"""

import collections
import contextlib
import socket
import struct
import sys
import threading
import time
from urllib.parse import urlsplit

import numpy as np
from jaxrl_client import PolicyClient, ServerError

NUM_THREADS = 4
OBS = np.zeros(4, np.float32)


def play(client, random):
    """Some steps of an episode that stays open."""
    episode = client.start_episode()
    for _ in range(random.integers(1, 60)):
        client.get_action(episode, random.normal(size=4).astype(np.float32))
        client.log_returns(episode, 1.0)
    return episode


def reset(connection):
    """Closes a socket so that the other side gets a reset, and not an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def polite(address, random):
    with PolicyClient(address) as client:
        client.end_episode(play(client, random), OBS)


def leaves_an_episode_open(address, random):
    with PolicyClient(address) as client:
        for _ in range(3):
            play(client, random)


def resets(address, random):
    client = PolicyClient(address, text=True)
    play(client, random)
    reset(client._socket.socket)
    client.close()


def plays_alone(address, random):
    with PolicyClient(address, inference_mode="local") as client:
        client.end_episode(play(client, random), OBS)


def is_refused(address, random):
    with PolicyClient(address) as client:
        episode = play(client, random)
        try:
            client.get_action(episode, np.zeros(9, np.float32))
        except ServerError:
            return
        raise AssertionError("the server took nine numbers for four")


def stops_half_way(address, random):
    """A frame whose header promises 1,000 bytes, of which 10 come."""
    client = PolicyClient(address)
    client._socket.socket.sendall(b"\x82\xfe\x03\xe8\0\0\0\0" + b"\0" * 10)
    reset(client._socket.socket)
    client.close()


def says_nothing(address, random):
    host = urlsplit(address)
    with socket.create_connection((host.hostname, host.port)) as connection:
        time.sleep(random.uniform(0, 0.2))
        if random.integers(2):
            reset(connection)


def knocks(address, random):
    host = urlsplit(address)
    with socket.create_connection((host.hostname, host.port)) as connection:
        connection.sendall(random.bytes(200))
        connection.settimeout(1)
        with contextlib.suppress(OSError):
            connection.recv(100)


WAYS = (
    *(polite, leaves_an_episode_open, resets, plays_alone),
    *(is_refused, stops_half_way, says_nothing, knocks),
)


def visit(address, end, seed, counts):
    random = np.random.default_rng(seed)
    while time.monotonic() < end:
        way = WAYS[random.integers(len(WAYS))]
        way(address, random)
        counts[way.__name__] += 1
        time.sleep(random.uniform(0, 0.1))


def main(address, seconds):
    counts, end = collections.Counter(), time.monotonic() + float(seconds)
    failed = []

    def run(seed):
        try:
            visit(address, end, seed, counts)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(counts.values()), dict(counts), flush=True)
    sys.exit(len(failed))


if __name__ == "__main__":
    main(*sys.argv[1:])
