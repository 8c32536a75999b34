"""`jaxrl zoo`: trains several seeds of each environment, and publishes the best."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from jaxrl.cli.algorithms import config_of
from jaxrl.cli.ending import ends_in_one_line
from jaxrl.cli.evaluate import TRUST
from jaxrl.cli.flags import CompileFlags, Flag, flags_of, given_flags, read_flags
from jaxrl.cli.help import show_help
from jaxrl.core.fields import check_all, count, flag, setting
from jaxrl.core.words import text_of
from jaxrl.publishing import zoo as kept
from jaxrl.publishing.publish import EPISODES
from jaxrl.run.command_line import program
from jaxrl.run.devices import compile_cache
from jaxrl.run.logging.console import print_answer

STOPPED = "stopped; the same command goes on"
OF_EACH = ("seeds", "episodes", "quiet", "trust")  # flags of each environment


@dataclasses.dataclass(frozen=True)
class ZooOptions(CompileFlags):
    """Flags of `jaxrl zoo`."""

    to: str = setting(kept.ZOO, "the zoo's folder", text_of("FOLDER"))
    seeds: int = setting(kept.SEEDS, "seeds of each environment", count(2))
    episodes: int = setting(
        EPISODES,
        "whole episodes that each seed's policy plays with sampled actions, and again with the "
        "likeliest",
        count(),
    )
    total_env_steps: Any = setting(
        None, "environment steps of a training; None: as jaxrl train takes", count(optional=True)
    )
    quiet: bool = setting(False, "print no progress", flag)
    trust: bool = TRUST


def zoo_flags() -> dict[str, Flag]:
    """Every flag of the command."""
    return flags_of(ZooOptions())


def zoo(argv: Sequence[str] | None = None) -> None:
    """Train several seeds as `jaxrl train` does, and publish the best: [ENV ...] [flags].

    Without an environment it shows what the zoo has.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with ends_in_one_line("zoo", STOPPED):
        flags = zoo_flags()
        show_help(words, flags, program("zoo"), zoo.__doc__)
        texts = given_flags(words, flags, positional="envs")
        envs = list(dict.fromkeys(texts.pop("envs", [])))
        options = ZooOptions(**read_flags(texts, flags))
        check_all(options)
        steps = options.total_env_steps
        changes = {} if steps is None else {"total_env_steps": steps}
        configs = [config_of({"env": env, **changes}, True, "ppo")[0] for env in envs]
        compile_cache.use(options.compile_cache)
        for config in configs:
            chosen = {name: getattr(options, name) for name in OF_EACH}
            if kept.add(config, options.to, **chosen) is None:
                sys.exit(f"{program('zoo')}: {STOPPED}")
        print_answer(kept.shown(kept.exhibits(options.to)))
