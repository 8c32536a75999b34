"""Flags from declared settings, and the values that their texts mean.

Every value arrives as text and is read here, so that the settings' own checks speak, in one line.
"""

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import flag, unknown_setting
from jaxrl.core.json_text import MOST_DIGITS, has_surrogate, read_json

# Flags that take several values; all others take one.
SEVERAL = {
    "env_args": "NAME=VALUE",
    "evaluation_env_args": "NAME=VALUE",
    "stop": "RESULT=VALUE",
    "grid": "SETTING=VALUE,VALUE",
    "ignore": "KEY",
    "random": "SETTING=DISTRIBUTION:LOW:HIGH",
    "exploration_config": "type=TYPE NAME=VALUE|MODULE:NAME",
    "hyperparam_mutations": "SETTING=VALUE,VALUE|SETTING=DISTRIBUTION:LOW:HIGH",
    "perturbation_factors": "NUMBER",
    "per_policy": "POLICY.SETTING=VALUE",
    "policies_to_train": "POLICY",
    "init_from": "POLICY=RUN",
    "names": "NAME=NAME",
    "opponent": "NAME",
    "opponents": "ARGUMENT=VALUE",
    "input": "DIR|minari:NAME",
    "origins": "URL",
    "serve": "NAME=VALUE",
    "callbacks": "MODULE:CLASS",
    "loggers": "LOG|MODULE:CLASS",
    "fcnet_hiddens": "SIZE",
    "head_fcnet_hiddens": "SIZE",
    "conv_filters": "FILTERS,KERNEL,STRIDE",
    "lr": "NUMBER|STEP:NUMBER",
    "entropy_coeff": "NUMBER|STEP:NUMBER",
    "intrinsic_reward_coeff": "NUMBER|STEP:NUMBER",
}
HELP_FLAGS = ("-h", "--help", "--help-all")
REPEATED = ("checkpoint",)  # flags that may be given several times
# Paths: what is written stays as it is, also where it looks like a number.
TEXTS = (
    *("run_dir", "rllib_config", "resume", "out", "output", "minari", "parquet", "compile_cache"),
    *("coordinator", "host", "token_file", "certificate", "private_key"),
    *("observation_space", "action_space", "opponent", "judge", "algorithm"),
)


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag of a command."""

    help: str
    default: Any  # as its setting has it; shown, not used


COMPILE_CACHE = Flag(  # of every command that compiles
    "where compiled programs are kept for the next time: auto (~/.cache/jaxrl), a folder, or off; "
    "a cache that JAX was given (JAX_COMPILATION_CACHE_DIR) is left as it is",
    "auto",
)


def flags_of(settings: Any) -> dict[str, Flag]:
    """A flag for every setting, `settings` an instance: its values are the defaults."""
    fields = dataclasses.fields(settings)
    return {
        field.name: Flag(field.metadata["help"], getattr(settings, field.name)) for field in fields
    }


def given_flags(
    argv: Sequence[str],
    flags: Mapping[str, Flag],
    positional: str | None = None,
    *,
    others: bool = False,
) -> dict[str, list[str]]:
    """The values after each flag that is there, by the setting's name.

    Args:
        flags: by name; one whose default is True or False may stand alone, for True.
        positional: the name under which words without a flag are returned, if there may be any.
        others: whether there may be other flags, which are passed over.

    Raises:
        UsageError: an unknown flag, with the nearest one; values too few or too many.
    """
    words, switches = [], {flag_name(name) for name in flags if _is_switch(flags[name])}
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            word = f"{flag.replace('_', '-')}{equals}{value}"
            is_alone = after.startswith("--") or (positional and after not in ("True", "False"))
            if word in switches and (is_alone or not after):
                word = f"{word}=True"
        if word not in HELP_FLAGS:
            words.append(word)
    try:
        given, left = _parser(tuple(flags)).parse_known_args(words)
    except argparse.ArgumentError as error:
        name = error.argument_name
        several = name in map(flag_name, SEVERAL)
        raise UsageError(f"{name} takes {'values' if several else 'one value'}") from None
    for word in () if others else left:
        if word.startswith("--"):
            raise unknown_setting(word.partition("=")[0], flags, kind="flag")
        if not positional:
            raise _unexpected(word, words)
    values = {name: _once(name, times) for name, times in vars(given).items()}
    for name, said in values.items():
        _check_words(name, said)
    return {**values, positional: left} if positional and left else values


def _once(name: str, times: list[Any]) -> list[str]:
    """The words of a flag that is there, with those of each time where several are allowed.

    Raises:
        UsageError: it is there several times, of which all but one would be dropped in silence.
    """
    if name in REPEATED:
        return times
    if len(times) > 1:
        shown_values = " and ".join(brief(" ".join(words)) for words in map(_words, times[:2]))
        several = ", with all its values behind it" if name in SEVERAL else ""
        raise UsageError(
            f"{flag_name(name)} is there {len(times)} times, as {shown_values}: "
            f"give it once{several}"
        )
    return _words(times[0])


def _check_words(name: str, words: Sequence[str]) -> None:
    """Refuses texts that no flag takes: an empty one, as of an unset variable, and broken bytes."""
    for word in words:
        if not word:
            raise UsageError(f"{flag_name(name)} has an empty text as its value; leave it out")
        if has_surrogate(word):
            raise UsageError(f"{flag_name(name)}={brief(word)} is not UTF-8")


def _words(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _unexpected(word: str, words: Sequence[str]) -> UsageError:
    """The error for a word that belongs to no flag."""
    before = [flag for flag in words[: words.index(word)] if flag.startswith("--")]
    if before:
        flag = before[-1].partition("=")[0]
        return UsageError(f"{flag} takes one value, and {brief(word)} is a second one")
    return UsageError(f"unexpected argument {brief(word)}; flags begin with --, as in --env arena")


@functools.cache
def _parser(names: tuple[str, ...]) -> argparse.ArgumentParser:
    """Flags whose values stay words, so that the settings' own checks speak.

    argparse and not tyro: tyro prints its errors itself, over many lines, and does not tell a flag
    that was given from one that was left at its default, which resuming depends on.
    """
    parser = argparse.ArgumentParser(
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
        argument_default=argparse.SUPPRESS,
    )
    for name in names:
        nargs = "+" if name in SEVERAL else None
        parser.add_argument(flag_name(name), dest=name, nargs=nargs, action="append")
    return parser


def _is_switch(flag: Flag) -> bool:
    return isinstance(flag.default, bool)


def find_modules_here(*, last: bool = False) -> None:
    """Lets `module:Class` name a module of the current folder, as `python -m` does.

    That folder goes first, or a script's own folder would hide the user's `evaluate.py`. With
    `last`, it hides nothing: for a command that loads a run without --trust, whose maker may have
    filled this folder too.
    """
    here = os.getcwd()
    if here in sys.path:
        if last:
            return
        sys.path.remove(here)
    sys.path.insert(len(sys.path) if last else 0, here)


def source_in(argv: Sequence[str], flags: Mapping[str, Flag]) -> tuple[str | None, bool]:
    """(what --resume names, or None; whether it is trusted), before other flags are read.

    From then on modules of the current folder are found, unless a stranger's run may name them.

    Args:
        flags: with `resume` and `trust`.
    """
    given = given_flags(argv, {name: flags[name] for name in ("resume", "trust")}, others=True)
    read = {name: setting_of(name, words) for name, words in given.items()}
    path, trust = read.get("resume"), read.get("trust", False)
    flag("trust", trust)
    if path is None or trust:
        find_modules_here()
    return path, trust


def shown(value: Any) -> str:
    """A setting's value as its flag would be written."""
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        if len(value[0]) == 3:  # conv_filters
            return " ".join(",".join(map(str, layer)) for layer in value)
        sign = ":" if isinstance(value[0][0], int | float) else "="
        return " ".join(f"{key}{sign}{part}" for key, part in value)
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value)


def flag_name(name: str) -> str:
    """`lambda_` as `--lambda`."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def setting_of(name: str, words: Sequence[str]) -> Any:
    """A flag's words as the setting's value; whether it is allowed is the settings' to say."""
    try:
        return _setting_of(name, words)
    except Unreadable as error:
        raise UsageError(f"{flag_name(name)}: {error}") from None


class Unreadable(UsageError):
    """A text that looks like a value and is none."""


def _setting_of(name: str, words: Sequence[str]) -> Any:
    if name in TEXTS:
        return None if words[0] == "None" else words[0]
    if name == "checkpoint":  # best, last, or an iteration as the checkpoint's folder is named
        chosen = [part for word in words for part in word.split(",")]
        chosen = tuple(value_of(part) if part.isdecimal() else part for part in chosen)
        return chosen if len(chosen) > 1 else chosen[0]
    if name in ("env_args", "evaluation_env_args", "stop", "init_from", "per_policy") and list(
        words
    ) == ["None"]:
        return {}
    if name in ("env_args", "evaluation_env_args", "stop", "serve"):
        return pairs(name, words)
    if name == "opponents" and list(words) != ["None"]:
        return _opponents(words)
    if name in ("init_from", "names"):
        return pairs(name, words, read=str)
    if name == "exploration_config" and "=" in words[0].partition("(")[0]:
        return pairs(name, words)
    if name == "exploration_config":
        return value_of(words[0])
    if name == "input":
        return tuple(words)
    if name == "per_policy":
        return _per_policy(words)
    if name in ("lr", "entropy_coeff", "intrinsic_reward_coeff"):
        return _schedule(name, words)
    if name == "policies" and words[0] not in ("shared", "per-agent", "None"):
        return _policy_file(words[0])
    if name not in SEVERAL or (len(words) == 1 and words[0].startswith("[")):
        return value_of(words[0])
    if list(words) == ["None"]:
        return () if name in ("callbacks", "loggers") else None
    if name == "conv_filters":
        return tuple(tuple(map(value_of, layer.split(","))) for layer in words)
    return tuple(map(value_of, words))


def value_of(text: str) -> Any:
    """A number, True, False, None or a list in brackets if the text is one, else the text."""
    if text.startswith("["):
        try:
            return read_json(text)
        except ValueError as error:
            raise Unreadable(
                f"{brief(text)} is not a list such as [1,2] or [[1,2],[3,4]] without spaces: "
                f"{error}"
            ) from None
    plain = text.replace("_", "")
    if len(plain) > MOST_DIGITS and plain.lstrip("+-").isdecimal():
        raise Unreadable(f"{brief(text)} has more than {MOST_DIGITS} digits")
    for read in (int, float):
        try:
            number = read(plain)
        except ValueError:
            continue
        # 1e6 is a count.
        return (
            int(number) if "e" in plain.lower() and "." not in plain and number % 1 == 0 else number
        )
    return {"True": True, "False": False, "None": None}.get(text, text)


def pairs(
    name: str, words: Sequence[str], read: Callable[[str], Any] | None = None
) -> dict[str, Any]:
    """`height=6 width=8` as a dict."""
    found: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key in found:
            raise UsageError(f"{name} names {brief(key)} twice")
        found[key] = value
        if not key or not value:
            raise UsageError(f"{name} takes NAME=VALUE, not {brief(key)}")
    return {key: (read or value_of)(value) for key, value in found.items()}


def _opponents(words: Sequence[str]) -> dict[str, Any]:
    """`size=5 every=10 fixed.old=runs/a` as a pool's arguments."""
    arguments = pairs("opponents", words)
    fixed = {name: value for name, value in arguments.items() if name.startswith("fixed.")}
    kept = {name: value for name, value in arguments.items() if name not in fixed}
    named = {name.removeprefix("fixed."): value for name, value in fixed.items()}
    return {**kept, "fixed": named} if named else kept


def _per_policy(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`pol1.lr=3e-4 pol2.lr=4e-4` by policy; several values of a setting have commas between."""
    settings: dict[str, dict[str, Any]] = {}
    for path, value in pairs("per_policy", words, read=str).items():
        policy, dot, name = path.partition(".")
        if not dot:
            raise UsageError(f"per_policy takes POLICY.SETTING=VALUE, not {brief(path)}")
        several = name in SEVERAL and value[0] != "[" and "(" not in value  # module:Name(a=1,b=2)
        settings.setdefault(policy, {})[name] = (
            setting_of(name, tuple(value.split(","))) if several else value_of(value)
        )
    return settings


def _schedule(name: str, words: Sequence[str]) -> Any:
    """`3e-4`, or `0:3e-4 1000000:0`."""
    if len(words) == 1 and ":" not in words[0]:
        return value_of(words[0])
    if not all(word.count(":") == 1 for word in words):
        raise UsageError(
            f"{name} takes one number, or a schedule STEP:NUMBER STEP:NUMBER ..., "
            f"not {brief(' '.join(words))}"
        )
    return tuple(tuple(map(value_of, word.split(":"))) for word in words)


def _policy_file(path: str) -> dict[str, list[str]]:
    """A JSON file {policy: [agents]}."""
    try:
        policies = read_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"policies={brief(path)}: allowed are shared, per-agent, or a JSON file; "
            f"{error.strerror}"
        ) from None
    except ValueError as error:
        raise UsageError(f"policies file {brief(path)} is not JSON: {error}") from None
    if not isinstance(policies, dict):
        raise UsageError(f"policies file {brief(path)} must hold {{policy: [agents]}}")
    return policies
