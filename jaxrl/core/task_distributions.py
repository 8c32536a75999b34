"""Domain randomisation: distributions that the numbers of an environment are drawn from."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxrl.core.errors import UsageError, nearest
from jaxrl.core.types import Key, PyTree

BOUNDED = ("uniform", "loguniform", "randint")
DISTRIBUTIONS = (*BOUNDED, "choice")
FORMS = "uniform:LOW:HIGH, loguniform:LOW:HIGH, randint:LOW:HIGH or choice:A:B"


@dataclass(frozen=True)
class Distribution:
    """The distribution of one number, with the names and the bounds of a sweep's distributions.

    uniform and loguniform are between LOW and HIGH, randint from LOW to HIGH - 1.
    """

    kind: str  # of DISTRIBUTIONS
    values: tuple[float | int | bool, ...]  # the two bounds, or the choices

    def __str__(self):
        return ":".join((self.kind, *(f"{value}" for value in self.values)))

    @property
    def ends(self) -> tuple[float | int | bool, ...]:
        """The values that all draws lie between; all of a choice."""
        if self.kind == "randint":
            return self.values[0], self.values[1] - 1
        return self.values

    @property
    def is_whole(self) -> bool:
        """True if every draw is an integer."""
        return self.kind == "randint" or (
            self.kind == "choice" and all(float(value).is_integer() for value in self.values)
        )

    def draw(self, key: Key) -> jax.Array:
        """A number at random, []."""
        low, high = self.values[0], self.values[-1]
        if self.kind == "uniform":
            return jax.random.uniform(key, minval=low, maxval=high)
        if self.kind == "loguniform":
            return jnp.exp(jax.random.uniform(key, minval=math.log(low), maxval=math.log(high)))
        if self.kind == "randint":
            return jax.random.randint(key, (), low, high)
        return jnp.asarray(self.values)[jax.random.randint(key, (), 0, len(self.values))]


@dataclass(frozen=True)
class Randomization:
    """A task for each episode whose numbers are drawn independently of each other."""

    drawn: tuple[tuple[str, Distribution], ...]  # by field of `params`

    def init(self, params: PyTree) -> None:
        """The memory of tasks drawn independently, which is empty."""

    def task(self, key: Key, memory: None, params: PyTree) -> dict[str, jax.Array]:
        """{field: value} of the next episode."""
        keys = jax.random.split(key, len(self.drawn))
        return {
            name: distribution.draw(keys[i]) for i, (name, distribution) in enumerate(self.drawn)
        }


def distribution_of(text: object) -> Distribution | None:
    """The distribution that "uniform:0.1:0.5" means; None for what does not begin with a name.

    Raises:
        UsageError: bounds that are missing, are no numbers, or leave nothing between them.
    """
    kind, *words = text.split(":") if isinstance(text, str) else ("",)
    if kind not in DISTRIBUTIONS or not words:
        return None
    if "" in words:
        raise UsageError(f"{text} has an empty value; write {_form(kind)}")
    values = tuple(map(_number, words))
    if None in values:
        raise UsageError(f"{text}: {words[values.index(None)]!r} is not a number")
    if kind == "choice":
        return Distribution(kind, values)
    if len(values) != 2 or bool in map(type, values):
        raise UsageError(f"{text}: {kind} takes two bounds, {kind}:LOW:HIGH")
    if not values[0] < values[1] or (kind == "loguniform" and values[0] <= 0):
        least = "0 < " if kind == "loguniform" else ""
        raise UsageError(f"{text}: {kind}:LOW:HIGH needs {least}LOW < HIGH")
    if kind == "randint":
        if not all(float(value).is_integer() for value in values):
            raise UsageError(f"{text}: the bounds of randint must be integers")
        values = tuple(map(int, values))
    return Distribution(kind, values)


def nearest_form(text: str) -> str | None:
    """`uniform:0.1:0.5` for `unifrom:0.1:0.5`, `uniform:LOW:HIGH` for `uniform`; None: no idea."""
    kind, _, rest = text.partition(":")
    meant = nearest(kind, DISTRIBUTIONS, most=1)
    if not meant:
        return None
    return f"{meant[0]}:{rest}" if rest else _form(meant[0])


def _form(kind: str) -> str:
    return f"{kind}:A:B" if kind == "choice" else f"{kind}:LOW:HIGH"


def _number(word: str) -> float | int | bool | None:
    """The finite number, True or False that a word is; None for any other word."""
    if word in ("True", "False"):
        return word == "True"
    for read in (int, float):
        try:
            number = read(word)
        except ValueError:
            continue
        return number if math.isfinite(number) else None
    return None
