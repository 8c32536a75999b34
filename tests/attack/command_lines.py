"""Command lines that are wrong: each flag of each command gets texts that it does not take."""

import contextlib
import io
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from unittest import mock

import jaxrl
from jaxrl.cli.flags import flags_of
from jaxrl.cli.main import all_flags, main
from jaxrl.core.words import flag_name
from jaxrl.replay.server import LiveServer
from jaxrl.serving.server import PolicyServer
from jaxrl.sweeps.population_based_training import PopulationBasedTraining
from jaxrl.sweeps.scheduler import Scheduler
from tests.attack.entries import CONFIG, RUN, config_kinds
from tests.attack.nonsense import (
    CLEAR,
    FLAG,
    LONGEST_COMPILE,
    LONGEST_MESSAGE,
    NATURAL,
    NOTHING,
    NUMBER,
    POSITIVE,
    REAL,
    SEED,
    VALUES,
    WHOLE,
    Clock,
)

TEXTS = {  # by the names that `VALUES` has, where the value is the same
    "0": "0",
    "5": "5",
    "-1": "-1",
    "0.5": "0.5",
    "'x'": "x",
    "''": "",
    "None": "None",
    "True": "True",
    "[]": "[]",
    "nan": "nan",
    "inf": "inf",
    "10**5000": f"1{'0' * 5000}",
    "half a list": "[1,2",
    "ragged": "[[1],[2,3]]",
    "deep": f"{'[' * 3000}{']' * 3000}",
    "half a character": "\udcff",
    "=5": "=5",
    "a:b": "a:b",
    "a=[": "a=[",
}
FLAGS = all_flags()
NO_PATH = {"''", "half a character", "10**5000", "deep"}
PATH = set(TEXTS) - NO_PATH
TEXT = PATH | {"10**5000", "deep"}
SETTINGS = {
    **config_kinds(jaxrl.BCConfig),
    **config_kinds(jaxrl.MARWILConfig),
    **config_kinds(jaxrl.PPOConfig, **CONFIG),
    **config_kinds(jaxrl.RunSettings, **RUN),
}
# Flags that take other values than the settings in Python: None for no mapping, 5 for [5].
SETTINGS |= {name: NOTHING for name in ("env_args", "evaluation_env_args", "init_from", "stop")}
SETTINGS |= {name: WHOLE | {"[]"} for name in ("fcnet_hiddens", "head_fcnet_hiddens")}
SETTINGS |= {name: NUMBER for name in ("lr", "entropy_coeff", "intrinsic_reward_coeff")}
SETTINGS |= {
    "env": set(),
    "input": set(),  # of other algorithms
    "per_policy": NOTHING,
    "output": PATH,
    "checkpoint_score_attribute": TEXT,  # refused when training begins
}
PLAYING = {
    "episodes": WHOLE,
    "explore": FLAG,
    "seed": SEED | NOTHING,
    "env_args": NOTHING,
    "trust": FLAG,
    "max_steps": WHOLE | NOTHING,
    "compile_cache": TEXT,  # one that cannot be used is told of, and not needed
}
EVALUATING = PLAYING | {
    "episodes": WHOLE | NOTHING,
    "steps": WHOLE | NOTHING,
    "json": FLAG,
    "explore": FLAG | NOTHING,
    "algorithm": NOTHING,
    "env": NOTHING,
    "checkpoint": set(),
    "opponent": NOTHING,
    "output": PATH,
}
ALSO = {  # other words that a message may say
    "policies_to_train": "policy",
    "init_from": "policy",
    "loggers": "log",
    "hooks": "hook",
    "rllib_config": "RLlib",
    "run_dir": "folder",
    "resume": "run",
    "output": "episodes",
    "parquet": "episodes",
    "judge": "run",
    "out": "picture ending",
    "random": "distribution",
    "algorithm": "configuration",
    "pbt": "population",
}
TAKEN = {
    "train": SETTINGS
    | {
        "algorithm": set(),
        "tuned": FLAG,
        **{name: FLAG for name in ("quiet", "verbose", "watch", "eager")},
        "rllib_config": set(),
        "ignore": set(),
        "stop_return": REAL | NOTHING,
        "run_dir": PATH,
        "resume": NOTHING,
        "observation_space": NOTHING,
        "action_space": NOTHING,
        "serve": set(),
        "strict": set(),
        "profile": FLAG,
        "trust": set(),
        "compile_cache": TEXT,
        **{name: NOTHING for name in ("coordinator", "num_processes", "process_id")},
        "join_seconds": set(),
    },
    "sweep": SETTINGS
    | {
        "algorithm": set(),
        "rllib_config": set(),
        "ignore": set(),
        "grid": set(),
        "random": set(),
        "num_samples": WHOLE,
        "seeds": WHOLE,
        "stop_return": REAL | NOTHING,
        "metric": NOTHING,
        "mode": set(),
        "halving": NOTHING | WHOLE,
        "search": NOTHING,
        "trials": NOTHING,
        "pbt": set(),
        "devices": set(),
        "batch_size": WHOLE,
        "tuned": FLAG,
        "quiet": FLAG,
        "run_dir": PATH,
        "resume": NOTHING,
        "trust": set(),
        "compile_cache": TEXT,
        **{name: set() for name in flags_of(PopulationBasedTraining())},
    },
    "evaluate": EVALUATING,
    "rollout": EVALUATING,
    "render": PLAYING
    | {
        "out": NOTHING,
        "episode": NATURAL,
        "episodes": set(),
        "checkpoint": set(),
        "max_steps": WHOLE,
        "fps": POSITIVE | NOTHING,
    },
    "export": PLAYING
    | {
        "out": set(),
        "policy": NOTHING,
        "checkpoint": set(),
        "opset": WHOLE | NOTHING,
        "names": set(),
    },
    "publish": PLAYING
    | {
        "to": PATH,
        "checkpoint": set(),
        "episodes": WHOLE,
        **dict.fromkeys(("onnx", "private"), FLAG),
    },
    "serve": PLAYING
    | {
        "host": set(),
        "port": NATURAL,
        **dict.fromkeys(("token_file", "certificate", "private_key"), NOTHING),
        "origins": NOTHING | {"[]"},
        **{name: WHOLE for name in FLAGS["serve"] if name.startswith("max_")},
        "max_message_bytes": set(),
        "episode_timeout": WHOLE,
        "godot_port": NATURAL | NOTHING,
        "checkpoint": set(),
    },
    "watch": PLAYING | {"port": NATURAL, "open": FLAG},
    "report": PLAYING | {"out": NOTHING, "checkpoint": set()},
    "plot": {"out": set(), "title": TEXT},
    "zoo": {
        "to": PATH,
        "seeds": WHOLE,
        "episodes": WHOLE,
        "total_env_steps": WHOLE | NOTHING,
        **dict.fromkeys(("quiet", "trust"), FLAG),
        "compile_cache": TEXT,
    },
    "episodes": {
        "show": {"0", "None"},
        "out": NOTHING,
        "replay": FLAG,
        "judge": NOTHING,
        "gamma": set(),
        "minari": NOTHING,
        "parquet": PATH,
        "skip_damaged": FLAG,
    },
}


class Line(NamedTuple):
    """A command line that is wrong."""

    entry: str  # "train --lr"
    label: str
    words: tuple[str, ...]
    names: tuple[str, ...]  # one of them must be in the message


class Reached(Exception):
    """A command would begin its work."""


@contextlib.contextmanager
def nothing_begins() -> Iterator[None]:
    """Commands end where they would train, play or serve."""
    with contextlib.ExitStack() as stack:
        for owner, name in (
            (jaxrl.Trainer, "fit"),
            (Scheduler, "run"),
            (LiveServer, "serve"),
            (PolicyServer, "serve"),
        ):
            stack.enter_context(mock.patch.object(owner, name, side_effect=Reached))
        yield


def outcome(line: Line, clock: Clock) -> tuple[str, str]:
    """("clear", "raw", "unclear", "late" or "silent"; what was printed)."""
    said, answered = io.StringIO(), io.StringIO()
    compiled, began, code = clock.seconds, time.monotonic(), None
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(answered):
            main(line.words)
    except SystemExit as end:
        code = end.code
    except Reached:
        return "silent", "it begins"
    except Exception as error:
        return "raw", f"{type(error).__name__}: {error}"
    message = said.getvalue().removesuffix("\n")
    if code is None:
        return "silent", answered.getvalue()[:80]
    if clock.seconds - compiled > LONGEST_COMPILE or time.monotonic() - began > 10:
        return "late", message
    if code != 2 or "\n" in message or len(message) > LONGEST_MESSAGE:
        return "unclear", f"{code} {message}"
    if not any(name.lower() in message.lower() for name in line.names):
        return "unclear", message
    return CLEAR, message


def lines_of(command: str, base: Sequence[str]) -> Iterator[Line]:
    """A line for each flag and each text that it does not take, and for the forms of the flag.

    Args:
        base: the words that make a command line that is right.
    """
    for name, declared in FLAGS[command].items():
        # The values that Python has as well are tried there, of every setting.
        tried = set(VALUES) if name in SETTINGS and command in ("train", "sweep") else set()
        taken = TAKEN[command][name] | tried
        flag = flag_name(name)
        rest, names = (command, *without(base, flag)), (flag, name, *ALSO.get(name, "").split())
        wrong = {label: (f"{flag}={text}",) for label, text in TEXTS.items() if label not in taken}
        if not declared.is_switch:
            wrong["no value"] = (flag,)
        if not declared.form.repeated:
            wrong["twice"] = (f"{flag}=5", f"{flag}=6")
        if not declared.form.metavar and command in ("train", "sweep"):
            wrong["two values"] = (flag, "5", "6")
        for label, words in wrong.items():
            yield Line(f"{command} {flag}", label, (*rest, *words), names)
        misspelt = f"{flag[:-1]}{'y' if flag[-1] != 'y' else 'q'}"
        yield Line(f"{command} {flag}", "misspelt", (*rest, misspelt, "5"), (misspelt,))


def without(words: Sequence[str], flag: str) -> list[str]:
    """The words without a flag and its value."""
    if flag not in words:
        return list(words)
    at = list(words).index(flag)
    return [*words[:at], *words[at + 2 :]]
