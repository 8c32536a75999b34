"""Settings of observations' parts, tasks and opponents: what a policy meets.

`OpponentPool` holds those of self-play, and of opponents from runs and by hand.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl.algorithms import validators
from jaxrl.core import words
from jaxrl.core.curriculum import CURRICULUM
from jaxrl.core.errors import UsageError, brief, unknown_name
from jaxrl.core.fields import count, field_names, number, one_of, pairs, setting, text, without
from jaxrl.core.frozen import freeze
from jaxrl.core.trust import Kind, name_of, parse_name
from jaxrl.core.types import PolicyId

DRAWS = ("uniform", "latest", "prioritised")
RANDOM = "random"  # the fixed opponent that draws any possible action
COPY = "copy_"
EVERYBODY = "pool"  # as an opponent outside of training: all members, drawn as in training
ACT = Kind(
    "opponent",
    "jaxrl.opponents",
    "a function act(obs, key) or act(obs, key, action_mask)",
    lambda found: callable(found) and not isinstance(found, type),
)
ENV_TASK_FN = Kind(
    "env_task_fn",
    "jaxrl.env_task_fns",
    "a function from (result, task) to the next task",
    lambda found: callable(found) and not isinstance(found, type),
)
# Settings that only training reads: what plays a saved run leaves them out.
ONLY_TRAINING = frozenset(
    ("optimizer", "curriculum", "env_task_fn", "opponents", "exploration_config")
)
# The settings below that no compiled program depends on, at their defaults.
HOST_TASKS = {"env_task_fn": None, "env_task_interval": 1}


@dataclasses.dataclass(frozen=True)
class OpponentPool:
    """Opponents of a policy that is not trained: each episode of each environment draws one.

    The first member is the policy as it is at the start of training.

    Args:
        size: how many copies are kept; a new one takes the place of the oldest.
        every: iterations between two copies of the policy that learns; None: not by time.
        at_win_rate: copy it when it has won this share of its last `window` episodes since the last
            copy, a draw counting half; None: not by success.
        draw: "uniform" (all members alike), "latest" (the newest copy alone), or "prioritised"
            (rather those that it loses to, by the square of the share that it does not win).
        fixed: further members, {name: opponent}: "random", a function act(obs, key) that is traced,
            "module:function", or a run's folder, "runs/a" or "runs/a#policy".
        policy: whom the members play for; None: the only policy that is not trained.
        copies: the policy that is copied; None: the only one that is trained.
        window: episodes against a member that its win rate is over, approximately.
        won_at: the least return of a won episode, summed over the agents of the policy that learns;
            None: an episode is won with a higher return than the opponents'.

    Raises:
        UsageError: numbers that make no sense, or opponents that are nothing of these.
    """

    size: int = 10
    every: int | None = None
    at_win_rate: float | None = None
    draw: str = "uniform"
    fixed: Any = ()
    policy: PolicyId | None = None
    copies: PolicyId | None = None
    window: int = 100
    won_at: float | None = None

    def __post_init__(self):
        object.__setattr__(self, "fixed", freeze(self.fixed))
        count()("size", self.size)
        count(optional=True)("every", self.every)
        if self.at_win_rate is not None:
            number(0, 1, open_low=True)("at_win_rate", self.at_win_rate)
        one_of(*DRAWS)("draw", self.draw)
        pairs("{name: opponent}")("fixed", self.fixed)
        for name in ("policy", "copies"):
            text("a policy's name", optional=True)(name, getattr(self, name))
        count()("window", self.window)
        if self.won_at is not None:
            number()("won_at", self.won_at)
        by_name = [(name, _nameable(name, entry)) for name, entry in self.fixed]
        object.__setattr__(self, "fixed", tuple(by_name))
        if self.draw == "latest" and self.fixed:
            raise UsageError(
                f"opponents: draw='latest' plays the newest copy alone, so {self.fixed[0][0]!r} of "
                "fixed would never play"
            )

    def to_dict(self) -> dict[str, Any]:
        """The settings that differ from the defaults; plain, except for nameless functions."""
        changed = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }
        return {**changed, **({"fixed": dict(self.fixed)} if self.fixed else {})}

    @property
    def grows(self) -> bool:
        """True if copies are added during training."""
        return self.every is not None or self.at_win_rate is not None

    @property
    def runs(self) -> dict[str, str]:
        """The fixed members that are policies of runs, {name: path or path#policy}."""
        return {name: entry for name, entry in self.fixed if _is_run(entry)}

    @property
    def functions(self) -> dict[str, Any]:
        """The fixed members that are functions, or their names."""
        return {name: entry for name, entry in self.fixed if not _is_run(entry)}


def as_pool(name: str, value: Any) -> OpponentPool | None:
    """The pool of a setting: one already, or its arguments by name."""
    if value is None or isinstance(value, OpponentPool):
        return value
    if isinstance(value, str) or not isinstance(value, tuple):
        raise UsageError(f"{name}={brief(value)} must be a jaxrl.OpponentPool or its arguments")
    pairs("{name: value}")(name, value)
    allowed = field_names(OpponentPool)
    for argument, _ in value:
        if argument not in allowed:
            raise unknown_name("argument", argument, allowed, f"of {name}")
    return OpponentPool(**dict(value))


def pool_of_words(name: str, texts: Sequence[str]) -> dict[str, Any] | None:
    """`size=5 every=10 fixed.old=runs/a` as a pool's arguments."""
    if list(texts) == ["None"]:
        return None
    arguments = words.pairs(name, texts)
    fixed = {path: value for path, value in arguments.items() if path.startswith("fixed.")}
    others = without(arguments, fixed)
    named = {path.removeprefix("fixed."): value for path, value in fixed.items()}
    return {**others, "fixed": named} if named else others


def for_opponent(saved: Any, opponent: str) -> tuple[Any, bool]:
    """(a pool's saved arguments, whether `opponent` needs its functions).

    Functions that do not play become "random", so that no code of theirs is imported. The pool has
    the same members by name.
    """
    fixed = saved.get("fixed") if isinstance(saved, Mapping) else None
    if not isinstance(fixed, Mapping):
        return saved, False
    functions = {name for name, entry in fixed.items() if _names_code(entry)}
    playing = functions if opponent == EVERYBODY else functions & {opponent}
    needed = {**fixed, **dict.fromkeys(functions - playing, RANDOM)}
    return {**saved, "fixed": needed}, bool(playing)


def _names_code(entry: Any) -> bool:
    """Returns whether a saved opponent is a function; a nameless one is "module:<lambda>"."""
    return entry != RANDOM and (not _is_run(entry) or ":<" in entry or ".<locals>." in entry)


def _nameable(name: str, entry: Any) -> Any:
    """A function by its name, where it has one; anything else that may be an opponent as it is."""
    if not name:
        raise UsageError("opponents: a member of fixed needs a name, which is not empty")
    if name.startswith(COPY) or name == EVERYBODY:
        raise UsageError(f"opponents: {name!r} cannot be fixed: members of the pool are called so")
    if isinstance(entry, str) and entry:
        return entry
    if not ACT.fits(entry):
        raise UsageError(
            f"opponents: {name}={brief(entry)} must be {RANDOM!r}, {ACT.allowed}, "
            "module:function, or a run's folder"
        )
    takes_mask(name, entry)
    return name_of(entry) or entry


def _is_run(entry: Any) -> bool:
    return isinstance(entry, str) and entry != RANDOM and parse_name(entry) is None


def takes_mask(name: str, function: Callable) -> bool:
    """Returns whether a function takes (obs, key, action_mask), and not (obs, key)."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a built-in without one
        return False
    for arguments in (("obs", "key"), ("obs", "key", "action_mask")):
        try:
            signature.bind(*arguments)
            return len(arguments) == 3
        except TypeError:
            pass
    what = f"{function.__name__}{signature}"
    raise UsageError(f"opponents: {name} must be {ACT.allowed}, not {what}")


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """The settings of `AlgorithmConfig` that change what is observed, tasks and opponents."""

    ignore_observations: Sequence[str] = setting(
        (),
        "parts of Dict or Tuple observations that are left out, by name: mission, or outer/inner",
        validators.part_names,
        read=validators.several,
    )
    curriculum: Any = setting(
        None,
        "curriculum within the program, a task for each episode of each environment: module:Class, "
        "or an object such as jaxrl.LevelsBySuccess(levels)",
        kind=CURRICULUM,
    )
    env_task_fn: Any = setting(
        None,
        "curriculum between iterations: a function of (result, task), or of (result, env, "
        "env_context) for Python, that returns the next params or task; None changes nothing",
        kind=ENV_TASK_FN,
    )
    env_task_interval: int = setting(1, "iterations between two calls of env_task_fn", count())
    opponents: Any = setting(
        None,
        "opponents that play for a policy that is not trained, drawn for each episode: a "
        "jaxrl.OpponentPool, or its arguments by name",
        words.any_value(pool_of_words, "ARGUMENT=VALUE"),
        read=as_pool,
        kind=ACT,
    )

    def check_task_interval(self) -> None:
        """Refuses an interval without a function: what only plays a saved run leaves that out."""
        if self.env_task_fn is None and self.env_task_interval != HOST_TASKS["env_task_interval"]:
            raise UsageError(
                f"env_task_interval={self.env_task_interval} changes nothing without an "
                f"env_task_fn to call: leave it at {HOST_TASKS['env_task_interval']}"
            )

    def check_tasks(self, *, plays: bool) -> None:
        """Refuses what changes only how episodes are played, where training plays none."""
        for name in ("curriculum", "env_task_fn", "opponents", "exploration_config"):
            if getattr(self, name) is not None and not plays:
                raise UsageError(
                    f"{name} changes nothing: this algorithm learns from recorded episodes"
                )


def refuse_what_the_host_does(config: TaskSettings, why: str) -> None:
    """Raises UsageError for a host curriculum, or opponents from runs, which a Trainer reads."""
    config.check_task_interval()
    if config.env_task_fn is not None:
        raise UsageError(f"env_task_fn is called by a Trainer alone: {why}")
    runs = () if config.opponents is None else config.opponents.runs
    for name in runs:
        raise UsageError(f"opponents: {name} is a run's policy, which a Trainer alone reads: {why}")
