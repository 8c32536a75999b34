"""PureJaxRL's own training program, from its ppo.py, which is not part of this repository.

The file needs its libraries, gymnax and distrax, and finds its neighbours in its folder.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "PureJaxRL"
MODULE = "purejaxrl_ppo"


def add_argument(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Adds --purejaxrl PATH; nothing is done with the file before it is asked for."""
    text = f"PureJaxRL's ppo.py, to {purpose} beside ours"
    parser.add_argument("--purejaxrl", type=_file, metavar="PATH", help=text)


def _file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text}: there is no such file")
    return Path(text).resolve()


def cartpole_settings(num_envs: int, rollout_length: int, updates: int) -> dict[str, Any]:
    """CartPole with the settings of `plain.Settings`, in PureJaxRL's words."""
    return {
        "ENV_NAME": "CartPole-v1",
        "NUM_ENVS": num_envs,
        "NUM_STEPS": rollout_length,
        "TOTAL_TIMESTEPS": updates * num_envs * rollout_length,
        "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": 4,
        "LR": 2.5e-4,
        "ANNEAL_LR": False,
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": "tanh",
        "DEBUG": False,
    }


def make_train(path: Path | str, settings: dict[str, Any]) -> Callable:
    """The file's `make_train(settings)`: a training as a function of a key."""
    specification = importlib.util.spec_from_file_location(MODULE, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[MODULE] = module  # where flax looks for the types of its networks
    folder = str(Path(path).resolve().parent)
    sys.path.insert(0, folder)
    try:
        specification.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module.make_train(dict(settings))  # to which it adds
