"""Words of the command line as values: numbers, lists, `name=value` pairs, texts, schedules.

The check of a setting says how its flag is written (`written`). The words are read here, and what
is allowed the check itself says, so that a flag and a keyword are refused in the same line.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.json_text import MOST_DIGITS, read_json

ReadWords = Callable[[str, Sequence[str]], Any]  # (the setting's name, the words behind its flag)
C = TypeVar("C", bound=Callable[[str, Any], None])


class Unreadable(UsageError):
    """A text that looks like a value and is none."""


class Form(NamedTuple):
    """The form of a setting on the command line."""

    read: ReadWords
    metavar: str | None = None  # the form of each word, where there may be several
    repeated: bool = False  # whether the flag may be there several times
    value: str = ""  # the form of a single value, on help pages
    spelled: tuple[str, ...] = ()  # other spellings of the flag, such as "-f"


def written(*form: Any) -> Callable[[C], C]:
    """A decorator of a setting's check, which gives the setting this `Form`."""

    def decorate(check: C) -> C:
        check.form = Form(*form)
        return check

    return decorate


def any_value(*form: Any) -> Callable[[str, Any], None]:
    """The check of a setting of this `Form` whose values are looked at where they are used."""
    return written(*form)(lambda name, value: None)


def flag_name(name: str) -> str:
    """`lambda_` as `--lambda`."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def value_of(text: str) -> Any:
    """A number, True, False, None or a list in brackets if the text is one, else the text."""
    if text.startswith("["):
        return _in_brackets(text, "a list such as [1,2] or [[1,2],[3,4]] without spaces")
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


def _in_brackets(text: str, form: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise Unreadable(f"{brief(text)} is not {form}: {error}") from None


def one_value(name: str, texts: Sequence[str]) -> Any:
    return value_of(texts[0])


def as_text(name: str, texts: Sequence[str]) -> str | None:
    """The text as it was written, also where it looks like a number; None for "None"."""
    text = " ".join(texts)
    return None if text == "None" else text


def several(name: str, texts: Sequence[str]) -> Any:
    """The value of each word, or a list in brackets; None for None."""
    if is_one_value(texts):
        return value_of(texts[0])
    return tuple(map(value_of, texts))


def is_one_value(texts: Sequence[str]) -> bool:
    """Returns whether the texts are one value: None, or a list in brackets."""
    return len(texts) == 1 and (texts[0] == "None" or texts[0].startswith("["))


def pairs(name: str, texts: Sequence[str]) -> dict[str, Any]:
    """`height=6 width=8`, or RLlib's form `{"height": 6, "width": 8}`, as a dict."""
    if len(texts) == 1 and texts[0].startswith("{"):
        return _in_brackets(texts[0], 'JSON such as {"height": 6}')
    return {key: value_of(value) for key, value in pairs_of_texts(name, texts).items()}


def pairs_of_texts(name: str, texts: Sequence[str], form: str = "NAME=VALUE") -> dict[str, str]:
    """`height=6 width=8` with values that stay texts; `form` is how errors spell a pair."""
    found: dict[str, str] = {}
    for word in texts:
        key, _, value = word.partition("=")
        if key in found:
            raise UsageError(f"{name} names {brief(key)} twice")
        found[key] = value
        if not key or not value:
            raise UsageError(f"{name} takes {form}, not {brief(key)}")
    return found


def or_none(read: ReadWords, none: Callable[[], Any] = dict) -> ReadWords:
    """A reader that also takes None, for what `none()` gives: an empty mapping."""
    return lambda name, texts: none() if list(texts) == ["None"] else read(name, texts)


def schedule(name: str, texts: Sequence[str]) -> Any:
    """`3e-4`, or `0:3e-4 1000000:0`."""
    if len(texts) == 1 and ":" not in texts[0]:
        return value_of(texts[0])
    if not all(word.count(":") == 1 for word in texts):
        raise UsageError(
            f"{name} takes one number, or a schedule STEP:NUMBER STEP:NUMBER ..., "
            f"not {brief(' '.join(texts))}"
        )
    return tuple(tuple(map(value_of, word.split(":"))) for word in texts)


def text_of(value: str, *spelled: str) -> Callable[[str, Any], None]:
    """The check of a setting that is a text, shown as `value` on help pages."""
    return any_value(as_text, None, False, value, spelled)


def shown_as(value: str) -> Callable[[str, Any], None]:
    """The check of a setting with any single value, shown as `value` on help pages."""
    return any_value(one_value, None, False, value)
