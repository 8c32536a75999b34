"""The flags --rllib-config and --ignore of `jaxrl train` and `jaxrl sweep`."""

from collections.abc import Mapping
from typing import Any

from jaxrl.cli.flags import flag_name
from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.fields import file_path, setting
from jaxrl.core.json_text import read_json
from jaxrl.core.words import any_value, several, text_of
from jaxrl.rllib.translation import Translation, from_rllib

RLLIB_CONFIG = setting(
    None,
    "begin with RLlib's configuration: a JSON or YAML file such as tuned.yaml (FILE#NAME: one "
    "of its experiments), a result's folder (params.json), or JSON itself, '{\"lr\": 1e-3}'; "
    "prints what became of each key; or with that of a run, RUN/config.json",
    text_of("FILE", "-f", "--config"),
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
    is_ppo = str(flags.get("algorithm", "ppo")).lower() == "ppo"
    for name in ("resume", "tuned", *(() if is_ppo else ("algorithm",))):
        if name in flags:
            raise UsageError(f"--rllib-config begins a run of PPO: leave out {flag_name(name)}")
    config = flags["rllib_config"]
    file_path("a file's path")("rllib_config", config)
    settings = dict(settings)
    if config.lstrip().startswith("{"):
        config = _inline(config)
        if "env" in settings and "env" not in config:
            config["env"] = settings.pop("env")  # by RLlib's name, perhaps
    return from_rllib(config, ignore=flags.get("ignore", ()), **settings)


def _inline(text: str) -> dict[str, Any]:
    """The settings in the text itself, as JSON."""
    try:
        return read_json(text)
    except ValueError as error:
        raise UsageError(
            f"--config {brief(text)} is not JSON such as '{{\"lr\": 1e-3}}': {one_line(error)}"
        ) from None
