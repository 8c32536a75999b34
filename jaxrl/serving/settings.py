"""Settings of a policy server: where it listens, who may connect, and how much a client may ask."""

import functools
import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jaxrl.core import words
from jaxrl.core.errors import UsageError, brief, one_line, unknown_name
from jaxrl.core.fields import check_all, count, file_path, setting, text
from jaxrl.core.frozen import freeze

HOST, PORT = "127.0.0.1", 9944
GODOT_PORT = 11008  # where Godot RL Agents' plugin connects to
MIN_TOKEN_CHARACTERS = 16
FILE = file_path("a file's path", optional=True)
ADDRESS = words.written(words.as_text, None, False, "ADDRESS")(text("an address"))


@words.written(words.several, "URL")
def _origins(name: str, value: Any) -> None:
    """Pages as browsers name them: a scheme, a host and a port."""
    for origin in value if isinstance(value, tuple) else (value,):
        parts = urlsplit(origin) if isinstance(origin, str) else None
        if parts is None or origin != f"{parts.scheme}://{parts.netloc}" or not parts.hostname:
            raise UsageError(
                f"{name}: {brief(origin)} must be an address such as http://127.0.0.1:8000, "
                "without a path"
            )


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a policy server."""

    host: str = setting(
        HOST, "address to listen on; beyond this machine a token and TLS are needed", ADDRESS
    )
    port: int = setting(PORT, "port to listen on; 0: any free one", count(0, 65535))
    token_file: Any = setting(
        None, "a file of the token that clients must say first; None: they need none", FILE
    )
    certificate: Any = setting(None, "for TLS: a file of certificates, PEM; None: no TLS", FILE)
    private_key: Any = setting(
        None, "for TLS: a file of the private key, PEM; None: certificate holds it", FILE
    )
    origins: Any = setting(
        (),
        "the pages whose scripts may connect, such as http://127.0.0.1:8000; none by default",
        _origins,
    )
    max_clients: int = setting(256, "clients connected at the same time, at most", count())
    max_clients_per_address: int = setting(
        192, "clients connected from one address, at most, so that others find room", count()
    )
    max_episodes: int = setting(64, "episodes of each client at the same time, at most", count())
    max_message_bytes: int = setting(
        2**20, "bytes of a message to the server, at most", count(1024)
    )
    max_messages_per_second: int = setting(
        5_000, "messages of each client in a second; more of them wait", count()
    )
    episode_timeout: int = setting(
        300, "seconds after which an episode without a message is dropped", count()
    )
    godot_port: int | None = setting(
        None,
        f"port of this machine that scenes of Godot RL Agents connect to, {GODOT_PORT} by their "
        "default; None: they cannot",
        count(0, 65535, optional=True),
    )

    def __post_init__(self):
        origins = self.origins.split(",") if isinstance(self.origins, str) else self.origins
        is_readable = isinstance(origins, str | list | tuple | Mapping) or origins is None
        object.__setattr__(self, "origins", freeze(origins or ()) if is_readable else origins)
        check_all(self)
        if not is_loopback(self.host) and not (self.token_file and self.certificate):
            raise UsageError(
                f"host={brief(self.host)} can be reached from other machines: give a token_file "
                "and a certificate, or listen on 127.0.0.1"
            )
        if self.private_key and not self.certificate:
            raise UsageError("private_key goes with certificate")

    @classmethod
    def named(cls, texts: Mapping[str, Any]) -> "ServerSettings":
        """The settings of some names, which users wrote."""
        allowed = cls.__dataclass_fields__
        for name in texts:
            if name not in allowed:
                raise unknown_name("setting", name, allowed, "of a policy server")
        return cls(**texts)

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags by which a training gets the same server."""
        values = {name: getattr(self, name) for name in ServerSettings.__dataclass_fields__}
        values["origins"] = ",".join(self.origins) or ()
        default = ServerSettings()
        words = [
            f"{name}={value}" for name, value in values.items() if value != getattr(default, name)
        ]
        return ("--serve", *words) if words else ()

    @functools.cached_property
    def token(self) -> str:
        """The token that clients must send first; "" if none is needed."""
        if self.token_file is None:
            return ""
        name = f"token_file={brief(str(self.token_file))}"
        try:
            token = Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{name} cannot be read: {one_line(error)}") from None
        if len(token) < MIN_TOKEN_CHARACTERS:
            raise UsageError(f"{name} must hold {MIN_TOKEN_CHARACTERS} characters or more")
        return token

    @functools.cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context that encrypts the connections; None without a certificate."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A session ticket reaches a client while it sends its first request, and before Python
        # 3.13 a TLS socket that reads and writes in two threads at once may lose what it writes.
        context.num_tickets = 0
        try:
            context.load_cert_chain(self.certificate, self.private_key)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"certificate={brief(str(self.certificate))} cannot be used: {one_line(error)}"
            ) from None
        return context


def is_loopback(host: str) -> bool:
    """Returns whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
