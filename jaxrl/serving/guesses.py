"""Guesses of a server's token: after a wrong one, its network may try one a second."""

import asyncio
import functools
import ipaddress
import random
import time

# After a wrong token, the first messages of its network are read this far apart, until none was
# wrong for a while.
GUESS_SECONDS, SUSPECT_SECONDS = 1.0, 60.0


@functools.lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """The addresses that one guesser may have: one of IPv4, or the 2**64 of IPv6 of a subnet."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # of no network, as a socket's path
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False)
    return str(ip)


class Guesses:
    """The networks that said a wrong token, and when each may say the next."""

    def __init__(self):
        self._wrong: dict[str, float] = {}  # when a network said a wrong token last
        self._next: dict[str, float] = {}  # when its next first message is read

    async def turn(self, network: str) -> None:
        """Waits until a first message of a network may be read.

        Of those that wait, a random one is next, so that a guesser keeps nobody out for good.
        """
        while (pause := self._next.get(network, 0.0) - time.monotonic()) > 0:
            await asyncio.sleep(pause + random.random() * GUESS_SECONDS / 10)
        if network in self._wrong:
            self._next[network] = time.monotonic() + GUESS_SECONDS

    def was_wrong(self, network: str) -> None:
        """Tells that a network has just said a wrong token."""
        self._wrong[network] = time.monotonic()
        self._next[network] = time.monotonic() + GUESS_SECONDS

    def forget_old(self) -> None:
        """Forgets the networks that have said no wrong token for a while."""
        recent = time.monotonic() - SUSPECT_SECONDS
        self._wrong = {network: at for network, at in self._wrong.items() if at > recent}
        self._next = {network: self._next[network] for network in self._wrong}
