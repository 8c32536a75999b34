"""Rules for RLlib's evaluation and for what Tune says of a run: stop criteria, checkpoints."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import without
from jaxrl.core.foreign_names import UNSET, criterion
from jaxrl.core.plain_values import is_plain
from jaxrl.rllib.atari import OF_LIVES, WHOLE_GAMES
from jaxrl.rllib.context import Context
from jaxrl.rllib.env_names import argument_names, arguments_of
from jaxrl.rllib.rows import Row, asks_nothing, changes, first, given_of, harmless, taken
from jaxrl.rllib.settings import TRAINING_RULES, Rule
from jaxrl.run.results import ITERATIONS
from jaxrl.run.stopping import LIFETIME_STEPS

DURATION = ("evaluation_duration", "evaluation_num_episodes")
EVALUATION = ("evaluation_interval", *DURATION, "evaluation_duration_unit", "evaluation_config")
CHECKPOINTS = {  # Tune's name: ours, and the values that ask for nothing
    "checkpoint_freq": ("checkpoint_frequency", (None, 0)),
    "checkpoint_frequency": ("checkpoint_frequency", (None, 0)),
    "keep_checkpoints_num": ("keep", (None,)),
    "num_to_keep": ("keep", (None,)),
    "checkpoint_at_end": ("checkpoint_at_end", (None,)),
    "checkpoint_score_attr": ("checkpoint_score_attribute", (None,)),
    "checkpoint_score_attribute": ("checkpoint_score_attribute", (None,)),
}
OF_EPISODES = "env_runners/episode_"  # results of training's episodes
FOLDERS = ("name", "local_dir", "storage_path")
CHANGING = {  # the results, of Tune's settings; with the way here
    "stopper": "criteria are {result: least value}: stop={...}",
    "time_budget_s": "stop={'time_total_s': SECONDS} ends each training after so long",
    "resume": "jaxrl sweep --resume FOLDER continues a sweep, jaxrl train --resume RUN a run",
    "checkpoint_score_order": "the highest score is best: by the return",
}
OF_TUNE = (
    *CHANGING,
    *(*FOLDERS, "verbose", "resources_per_trial"),
    *("max_failures", "progress_reporter", "callbacks_of_tune", "log_to_file"),
    *("sync_config", "failure_config", "reuse_actors", "raise_on_failed_trial"),
    *("max_concurrent_trials", "trial_name_creator", "trial_dirname_creator"),
    "storage_filesystem",
)


def evaluation(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    """The interval and length of evaluations; RLlib's default samples actions in them too."""
    interval = values.get("evaluation_interval")
    inner = {key: values[key] for key in values if key.startswith("evaluation_config/")}
    read = given_of(values, *EVALUATION)
    if not interval:
        if read or inner:
            yield harmless({**read, **inner}, "there is no evaluation")
        return
    yield taken(given_of(values, "evaluation_interval"), evaluation_interval=interval)
    episodes = first(values, *DURATION, default=10)
    read = given_of(values, *DURATION, "evaluation_duration_unit")
    if episodes == "auto":
        yield harmless(read, "an evaluation plays as many episodes as it says: 10")
    elif first(values, "evaluation_duration_unit", default="episodes") != "episodes":
        unit = values["evaluation_duration_unit"]
        yield taken(read, evaluation_duration=episodes, evaluation_duration_unit=unit)
    elif read:
        yield taken(read, evaluation_duration=episodes)
    explore = inner.pop("evaluation_config/explore", True)
    read = given_of(values, "evaluation_config/explore")
    yield taken(read, evaluation_explore=bool(explore))
    whole_games = WHOLE_GAMES if context.wrappers else {}
    args = inner.pop("evaluation_config/env_config", None)
    if args and not is_plain(args):
        why = "objects and arrays are arguments of training's environment alone"
        yield changes({"evaluation_config/env_config": args}, why)
    elif args:
        _, env_args = arguments_of(context.name, args)
        names = argument_names(context.name)
        env_args = {names.get(name, name): value for name, value in env_args.items()}
        env_args = {**whole_games, **env_args}
        yield taken({"evaluation_config/env_config": args}, evaluation_env_args=env_args)
    elif whole_games:
        why = "whole games, as RLlib's returns are of; its episodes are counted by lives"
        yield taken({}, why, evaluation_env_args=whole_games)
    if "evaluation_config/env" in inner:
        env = inner.pop("evaluation_config/env")
        why = "an evaluation plays the training's environment; evaluation_env_args changes it"
        yield changes({"evaluation_config/env": env}, why)
    if inner:
        yield harmless(inner, "training stays the same; the evaluation has the training's settings")


def stop(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    """Criteria of results; how many steps to train, the configuration says here."""
    if "stop" in values and values["stop"] is not None:
        yield changes(
            given_of(values, "stop"), "criteria are {result: least value}: --stop, or fit"
        )
    for key, least in values.items():
        name = key.removeprefix("stop/")
        if key == "stop":
            continue
        if isinstance(least, bool) or not isinstance(least, int | float) or math.isnan(least):
            raise UsageError(f"stop criterion {name}={brief(least)} must be a number")
        found = criterion(name)
        here = found[1].here if found else name
        if here not in LIFETIME_STEPS:
            why = "as total_env_steps" if here == ITERATIONS else ""
            if context.wrappers and here.startswith(OF_EPISODES):
                why = f"{OF_LIVES}: stop by evaluation/{here}, as an evaluation plays whole games"
            yield taken({key: least}, why, stop={here: least})
            continue
        steps_each = context.steps_each
        if "agent" in name:
            steps_each = context.num_acting
        elif "env" in name:
            steps_each = 1
        if steps_each is None:
            yield changes({key: least}, "steps of the environment are counted: total_env_steps=...")
        else:
            yield taken({key: least}, total_env_steps=math.ceil(least / steps_each))


def checkpoints(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    for key, value in values.items():
        here, nothing = CHECKPOINTS[key]
        if value in nothing:
            yield harmless({key: value}, "checkpoints are kept as Trainer has it")
        elif here != "checkpoint_score_attribute":
            yield taken({key: value}, **{here: value})
        elif str(value).startswith("min-"):
            yield harmless({key: value}, "the highest score is best: by the return")
        else:
            found = criterion(str(value))
            yield taken({key: value}, **{here: found[1].here if found else value})


def tune(values: Mapping[str, Any], context: Context) -> Iterator[Row]:
    folders = given_of(values, *FOLDERS)
    if folders:
        yield harmless(folders, "run_dir=FOLDER names the folder of a run, or of a whole sweep")
    for key, why in CHANGING.items():
        if not asks_nothing(values.get(key), (*UNSET, "max")):
            yield changes({key: values[key]}, why)
            values = without(values, (key,))
    if rest := without(values, FOLDERS):
        yield harmless(
            rest, "of Tune's processes; a run is one program, and so are trials of a sweep"
        )


RUN_RULES = (
    *TRAINING_RULES,
    Rule(EVALUATION, evaluation),
    Rule(("stop",), stop),
    Rule(tuple(CHECKPOINTS), checkpoints),
    Rule(OF_TUNE, tune),
)
