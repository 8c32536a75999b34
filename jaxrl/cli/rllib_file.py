"""The flags --rllib-config and --ignore of `jaxrl train` and `jaxrl sweep`."""

from collections.abc import Mapping
from typing import Any

from jaxrl.cli.flags import flag_name
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import file_path, setting
from jaxrl.core.words import TEXT, any_value, several
from jaxrl.rllib.translation import Translation, from_rllib

RLLIB_CONFIG = setting(
    None,
    "begin with RLlib's configuration in this JSON or YAML file (FILE#NAME: one of its "
    "experiments), or in a result's folder (params.json); prints what became of each key",
    TEXT,
)
IGNORE = setting(
    (),
    "with --rllib-config: keys that have no counterpart and change the result, to leave out",
    any_value(several, "KEY"),
)


def translation_of(flags: Mapping[str, Any], settings: Mapping[str, Any]) -> Translation | None:
    """The configuration of RLlib's that --rllib-config names; None without that flag.

    Args:
        flags: the command's own.
        settings: those given beside the file, which win.
    """
    if "rllib_config" not in flags:
        if "ignore" in flags:
            raise UsageError("--ignore goes with --rllib-config FILE")
        return None
    for name in ("resume", "tuned", "algorithm"):
        if name in flags:
            raise UsageError(f"--rllib-config begins a run of PPO: leave out {flag_name(name)}")
    file_path("a file's path")("rllib_config", flags["rllib_config"])
    return from_rllib(flags["rllib_config"], ignore=flags.get("ignore", ()), **settings)
