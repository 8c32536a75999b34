"""Flags from declared settings, and the values that their texts mean.

Every value arrives as text and is read here, so that the settings' own checks speak, in one line.
"""

import argparse
import dataclasses
import functools
import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import field_names, setting, unknown_setting
from jaxrl.core.fields import flag as switch
from jaxrl.core.json_text import has_surrogate
from jaxrl.core.words import (
    Form,
    Unreadable,
    flag_name,
    one_value,
    text_of,
    value_of,
)

HELP_FLAGS = ("-h", "--help", "--help-all")


@dataclasses.dataclass(frozen=True)
class Flag:
    """One flag of a command, as a setting declares it."""

    help: str
    default: Any  # shown, not used
    form: Form = Form(one_value)
    after: str | None = None  # what is declared before it, in the same class

    @property
    def is_switch(self) -> bool:
        """Returns whether it may stand alone, for True."""
        return isinstance(self.default, bool) or self.form.value == switch.value

    @property
    def value(self) -> str:
        """The form of its value, or of each of several, for people."""
        if self.form.metavar:
            return f"{self.form.metavar} ..."
        if self.is_switch:
            return f"[{switch.value}]"  # which may be left out
        return self.form.value or {int: "N", float: "NUMBER"}.get(type(self.default), "VALUE")


@dataclasses.dataclass(frozen=True)
class CompileFlags:
    """Flags of every command that compiles."""

    compile_cache: Any = setting(
        "auto",
        "where compiled programs are kept for the next time: auto (~/.cache/jaxrl), a folder, or "
        "off; a cache that JAX was given (JAX_COMPILATION_CACHE_DIR) is left as it is",
        text_of("FOLDER"),
    )


def flags_of(settings: Any) -> dict[str, Flag]:
    """A flag for every setting, `settings` an instance: its values are the defaults."""
    flags, before = {}, _declared_before(type(settings))
    for field in dataclasses.fields(settings):
        check = field.metadata["check"]
        named = "MODULE:NAME" if field.metadata["kind"] else ""
        form = getattr(check, "form", Form(one_value, value=getattr(check, "value", named)))
        default, after = getattr(settings, field.name), before[field.name]
        flags[field.name] = Flag(field.metadata["help"], default, form, after)
    return flags


def names_of(name: str, flag: Flag) -> tuple[str, ...]:
    """All spellings of a flag, its own first."""
    return (flag_name(name), *flag.form.spelled)


def _declared_before(settings: type) -> dict[str, str | None]:
    """The setting that stands before each in the class that declares it; None before the first."""
    declared = set(field_names(settings))
    before: dict[str, str | None] = {}
    for cls in settings.__mro__:  # the first class that declares one last
        names = [name for name in inspect.get_annotations(cls) if name in declared]
        before |= zip(names, [None, *names], strict=False)
    return before


def given_flags(
    argv: Sequence[str],
    flags: Mapping[str, Flag],
    positional: str | None = None,
    *,
    others: bool = False,
) -> dict[str, list[str]]:
    """The values after each flag that is there, by the setting's name.

    Args:
        flags: by name.
        positional: the name under which words without a flag are returned, if there may be any.
        others: whether there may be other flags, which are passed over.

    Raises:
        UsageError: an unknown flag, with the nearest one; values too few or too many.
    """
    if not others:
        _check_dashes(argv, flags)
    words, switches = [], set()
    for name in filter(lambda name: flags[name].is_switch, flags):
        switches |= {*names_of(name, flags[name])}
    for word, after in zip(argv, [*argv[1:], ""], strict=False):
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            word = f"{flag.replace('_', '-')}{equals}{value}"
        is_alone = after.startswith("-") or (positional and after not in ("True", "False", "None"))
        if word in switches and (is_alone or not after):
            word = f"{word}=True"
        if word not in HELP_FLAGS:
            words.append(word)
    try:
        numbers = tuple(
            (name, names_of(name, flag), flag.form.metavar and "+") for name, flag in flags.items()
        )
        parsed, left = _parser(numbers).parse_known_args(words)
    except argparse.ArgumentError as error:
        spelled, *_ = (error.argument_name or "").split("/")  # argparse joins all spellings
        several = {flag_name(name) for name, flag in flags.items() if flag.form.metavar}
        number = "values" if spelled in several else "one value"
        raise UsageError(f"{spelled} takes {number}") from None
    for word in () if others else left:
        if word.startswith("--"):
            raise unknown_setting(word.partition("=")[0], flags, kind="flag")
        if not positional:
            raise _unexpected(word, words)
    values = {name: _once(name, flags[name].form, times) for name, times in vars(parsed).items()}
    for name, said in values.items():
        _check_words(name, said)
    return {**values, positional: left} if positional and left else values


def _check_dashes(argv: Sequence[str], flags: Mapping[str, Flag]) -> None:
    """Refuses a flag's name after one dash: argparse would read -verbose as -v with a value."""
    spelled = {spelling for flag in flags.values() for spelling in flag.form.spelled}
    for word in argv:
        name = word.partition("=")[0]
        has_form = re.fullmatch(r"-[A-Za-z][\w-]+(=.*)?", word)
        if has_form and name not in spelled and not isinstance(value_of(word), float):
            raise UsageError(f"{name}: did you mean -{name.replace('_', '-')}?")


def _once(name: str, form: Form, times: list[Any]) -> list[str]:
    """The words of a flag that is there, with those of each time where several are allowed.

    Raises:
        UsageError: it is given several times, of which all but one would be dropped in silence.
    """
    if form.repeated:
        return times
    if len(times) > 1:
        shown_values = " and ".join(brief(" ".join(words)) for words in map(_words, times[:2]))
        several = ", with all its values behind it" if form.metavar else ""
        raise UsageError(
            f"{flag_name(name)} is given {len(times)} times, as {shown_values}: "
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
    if word == "file":  # as in `rllib train file tuned.yaml`
        return UsageError("unexpected argument 'file'; -f FILE reads an experiment of RLlib's")
    return UsageError(f"unexpected argument {brief(word)}; flags begin with --, as in --env arena")


@functools.cache
def _parser(
    numbers: tuple[tuple[str, tuple[str, ...], str | None], ...],
) -> argparse.ArgumentParser:
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
    for name, spellings, nargs in numbers:
        parser.add_argument(*spellings, dest=name, nargs=nargs, action="append")
    return parser


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


def shown_as_flag(name: str, value: Any) -> str:
    """The value of the setting of a name as its flag would be written."""
    if name != "per_policy":
        return shown(value)
    settings = [(policy, pair) for policy, pairs in value for pair in pairs]
    return " ".join(f"{policy}.{name}={shown(setting)}" for policy, (name, setting) in settings)


def read_flags(texts: Mapping[str, Sequence[str]], flags: Mapping[str, Flag]) -> dict[str, Any]:
    """The values of the words behind flags; whether they are allowed is the settings' to say."""
    return {name: _read(name, words, flags) for name, words in texts.items()}


def _read(name: str, words: Sequence[str], flags: Mapping[str, Flag]) -> Any:
    try:
        value = flags[name].form.read(name, words)
        return _per_policy(value, flags) if name == "per_policy" else value
    except Unreadable as error:
        raise UsageError(f"{flag_name(name)}: {error}") from None


def _per_policy(texts: Mapping[str, str], flags: Mapping[str, Flag]) -> dict[str, dict[str, Any]]:
    """`pol1.lr=3e-4 pol2.lr=4e-4` by policy; several values of a setting have commas between."""
    settings: dict[str, dict[str, Any]] = {}
    for path, text in texts.items():
        policy, dot, name = path.partition(".")
        if not dot:
            raise UsageError(f"per_policy takes POLICY.SETTING=VALUE, not {brief(path)}")
        several = name in flags and flags[name].form.metavar
        is_list = several and text[0] != "[" and "(" not in text  # module:Name(a=1,b=2)
        value = _read(name, text.split(","), flags) if is_list else value_of(text)
        settings.setdefault(policy, {})[name] = value
    return settings
