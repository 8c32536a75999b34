"""RLlib's words on the command line: --rllib-config, --ignore, and names beside its --run."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.cli.algorithms import ALGORITHMS, OF_RLLIB, path_of
from jaxrl.cli.flags import flag_name
from jaxrl.core.errors import UsageError, brief, one_line
from jaxrl.core.fields import file_path, setting
from jaxrl.core.foreign_names import Counterpart, criterion
from jaxrl.core.json_text import read_json
from jaxrl.core.words import any_value, several, text_of
from jaxrl.rllib.env_names import arguments_in_names, is_name_elsewhere, named
from jaxrl.rllib.rows import shown
from jaxrl.rllib.translation import Translation, from_rllib

RLLIB_CONFIG = setting(
    None,
    "begin with RLlib's configuration: a JSON or YAML file such as tuned.yaml (FILE#NAME: one "
    "of its experiments), a result's folder (params.json), or JSON itself, '{\"lr\": 1e-3}'; "
    "prints what became of each key; or with that of a run, RUN/config.json",
    text_of("FILE", "-f", "--config", "--config-file"),
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
            raise UsageError(
                f"a configuration of RLlib's begins a run of PPO: leave out {flag_name(name)}"
            )
    config = flags["rllib_config"]
    file_path("a file's path")("rllib_config", config)
    if config.lstrip().startswith("{"):
        config = _inline(config)
    return from_rllib(config, ignore=flags.get("ignore", ()), **settings)


def _inline(text: str) -> dict[str, Any]:
    """The settings in the text itself, as JSON."""
    try:
        return read_json(text)
    except ValueError as error:
        raise UsageError(
            f"--config {brief(text)} is not JSON such as '{{\"lr\": 1e-3}}': {one_line(error)}"
        ) from None


def is_in_rllibs_words(argv: Sequence[str]) -> bool:
    """Returns whether a command line begins as RLlib's does, so that its names may be RLlib's."""
    return any(word.partition("=")[0] in OF_RLLIB for word in argv)


def with_env_here(options: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The settings with the environment here for one by RLlib's name, and a note that says so.

    Returns:
        (settings, note); the same settings and "" where the name is none of RLlib's.
    """
    env = options.get("env")
    if not is_name_elsewhere(env):
        return dict(options), ""
    found = named(env)
    here = {"env": found.env}
    if args := {**found.args, **options.get("env_args", {})}:
        here["env_args"] = args
    why = found.note and f" ({found.note})"
    return {**options, **here}, f"{env} of RLlib is {shown(here)}{why}"


def results_here(stop: Mapping[str, Any]) -> dict[str, Any]:
    """Criteria by the names that results have here, for RLlib's that mean just the same."""
    criteria = {}
    for name, least in stop.items():
        _, found = criterion(name) or ("", Counterpart())
        if found.here and not found.note:
            name = found.here
        criteria[name] = least
    return criteria


def check_is_of(
    facts: Mapping[str, Any], algorithm: str | None, env: str | None, env_args: Mapping[str, Any]
) -> None:
    """Refuses a run of another algorithm or environment than a command line names beside it.

    Args:
        facts: the run's.
        algorithm, env: the names, here or RLlib's; None: none is named.
        env_args: those that the command line gives for the run's.
    """
    trained = facts["config_class"]
    if algorithm is not None and path_of(algorithm) != trained:
        by_path = {path_of(name): name for name in ALGORITHMS}
        name = by_path.get(trained, trained)
        raise UsageError(f"--algorithm {brief(algorithm)}: the run is of {name}; leave it out")
    config = facts["config"]
    if env is None or config["env"] in (env, f"gym:{env}"):
        return
    here, note = with_env_here({"env": env})
    if here["env"] != config["env"]:
        raise UsageError(f"--env {brief(env)}: the run is in {config['env']}; leave it out")
    played = {**dict(config.get("env_args", {})), **env_args}
    for name in arguments_in_names(here["env"]):
        if played.get(name) != here.get("env_args", {}).get(name):
            raise UsageError(
                f"{note}; the run has another {name}: leave out --env, or give --env-args {name}=N"
            )
