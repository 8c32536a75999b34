"""Every environment compiles and trains, with default arguments and with extreme ones.

The suite's own compiler flags hide an environment that XLA's fusions blow up, so each case is a
process of its own, with generous limits on processor time and memory that only a blow-up meets.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "compile_and_train.py"
THREE = {"n_obstacles": 3, "obstacle_coord": [[0.2, 0.25], [0.8, 0.3], [0.4, 0.75]]}
CORNERS = [
    ("cartpole", {}),
    ("arena", {}),
    ("arena", {"height": 1, "width": 2}),
    ("arena", {"height": 100, "width": 100}),
    ("pursuit", {}),
    ("pursuit", {"x_size": 3, "y_size": 3, "n_pursuers": 1, "n_evaders": 1, "obs_range": 1}),
    ("pursuit", {"x_size": 64, "y_size": 64, "obs_range": 21}),
    ("pursuit", {"n_pursuers": 60, "n_evaders": 60}),
    ("waterworld", {}),
    ("waterworld", THREE),
    ("waterworld", {"n_obstacles": 8, "obstacle_coord": None}),
    (
        "waterworld",
        {"n_pursuers": 1, "n_evaders": 1, "n_poisons": 1, "n_sensors": 1, "speed_features": False},
    ),
    ("waterworld", {"n_pursuers": 16, "n_evaders": 30, "n_poisons": 40}),
    ("waterworld", {"n_sensors": 200}),
]


def run_as_users_do(name, args, *rest):
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, str(PROGRAM), name, json.dumps(args), *rest]
    done = subprocess.run(
        command,
        env=environment,
        cwd=PROGRAM.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"ended by {done.returncode}: {done.stdout[-500:]} {done.stderr[-3000:]}"
    )


@pytest.mark.process
def test_rollouts_of_waterworld_with_three_obstacles_run_as_users_compile_them():
    run_as_users_do("waterworld", THREE, "rollout")


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "args"), CORNERS, ids=lambda value: json.dumps(value).replace('"', "")
)
def test_it_trains_as_users_compile_it(name, args):
    run_as_users_do(name, args)


@pytest.mark.compile
@pytest.mark.parametrize("name", sorted({name for name, _ in CORNERS}))
def test_its_tuned_settings_train_as_users_compile_them(name):
    run_as_users_do(name, {}, "tuned")
