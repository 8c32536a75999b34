"""Command `jaxrl serve`: the policies of a run, for programs that ask for actions."""

import dataclasses
import signal
from collections.abc import Sequence
from typing import Any

from jaxrl.cli.evaluate import CHECKPOINT, TRUST, run_command
from jaxrl.core import machine
from jaxrl.core.errors import require
from jaxrl.core.fields import flag, setting
from jaxrl.core.plan import laid_out
from jaxrl.play.load import policy_of
from jaxrl.run.logging.console import print_answer
from jaxrl.run.storage.checkpoint import open_found
from jaxrl.serving.settings import ServerSettings


@dataclasses.dataclass(frozen=True)
class ServeOptions(ServerSettings):
    """Flags of `serve.py`."""

    explore: bool = setting(
        False, "sample actions where an episode does not say; False: the likeliest ones", flag
    )
    checkpoint: Any = CHECKPOINT
    trust: bool = TRUST


def serve(argv: Sequence[str] | None = None) -> None:
    """Serve the policies of a run to other programs, over WebSockets: RUN [flags]."""
    machine.limit_arenas()
    run_command("serve", serve.__doc__, ServeOptions(), argv, _serve)


def _serve(run: str, options: ServeOptions) -> None:
    for package in ("msgspec", "websockets"):
        require(package, "a policy server", "'jaxrl[serving]'")
    from jaxrl.serving.server import PolicyServer

    saved = open_found(run, options.checkpoint)
    policies = {
        name: policy_of(saved, name, trust=options.trust) for name in saved.facts["policies"]
    }
    server = PolicyServer(policies, options, explore=options.explore)
    # Python's own, which asyncio replaces by one that closes connections; a shell has the signal
    # ignored in what it runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def ready() -> None:
        lines = [("serving", saved.path)]
        for name, facts in saved.facts["policies"].items():
            lines.append((name, f"plays {', '.join(facts['agents'])}"))
        if server.scenes is not None:
            lines.append(("scenes", f"connect to port {server.scenes.port}"))
        print_answer(laid_out([*lines, ("connect to", f"{server.address}   (Ctrl-C ends this)")]))

    try:
        server.serve(ready)
    except KeyboardInterrupt:
        print_answer(f"stopped; {server.summary()}")
