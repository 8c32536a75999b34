"""A run over several devices learns what it learns on one.

How many there are is decided by rule and kept.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.algorithms.sharding import devices_worth_using
from jaxrl.run.devices.mesh import settled
from jaxrl.run.settings import RunSettings
from tests.messages import refused_by

ROOT = Path(__file__).parents[3]
LARGE = PPOConfig(env="cartpole", num_envs=512, rollout_length=32, minibatch_size=4096)


def assert_close(actual, expected, atol=2e-5):
    for leaf, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(leaf), np.asarray(other), rtol=atol, atol=atol)


def trained(start, tmp_path, devices, small):
    trainer = start(small, run_dir=tmp_path / f"on{devices}", devices=devices)
    return trainer, [trainer.train() for _ in range(3)]


@pytest.mark.process
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("JAX_PLATFORMS=cuda", "JAX_PLATFORMS=cuda cannot be used here: "),
        (
            "JAX_PLATFORMS=nonsense",
            "JAX_PLATFORMS=nonsense cannot be used here: Unable to initialize backend",
        ),
    ],
)
def test_a_jax_that_cannot_start_is_one_line_before_any_training(setting, message, tmp_path):
    name, _, value = setting.partition("=")
    code = (
        "import functools, jaxrl\n"
        "small = jaxrl.PPOConfig(env='cartpole', num_envs=4, rollout_length=16, minibatch_size=32, "
        "total_env_steps=64, num_epochs=1)\n"
        "for start in (jaxrl.Trainer, functools.partial(jaxrl.sweep, seeds=2)):\n"
        "    try:\n        start(small, run_dir=None)\n"
        "    except jaxrl.UsageError as error:\n        print(error)\n"
    )
    environment = {**os.environ, name: value}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    if "cuda" in setting and not done.stdout:
        pytest.skip("a card is here")
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 2), done.stderr
    assert all(line.startswith(message) for line in lines)


@pytest.mark.long
def test_two_and_four_devices_learn_and_report_what_one_does(start, small, tmp_path):
    trained_alone, expected = trained(start, tmp_path, 1, small)
    for devices in (2, 4):
        trainer, results = trained(start, tmp_path, devices, small)
        assert len(trainer.runner.envs.state.positions.sharding.device_set) == devices
        assert_close(trainer.runner.learners, trained_alone.runner.learners)
        for result, wanted in zip(results, expected, strict=True):
            for name in ("env_runners", "learners"):
                assert jax.tree.structure(result[name]) == jax.tree.structure(wanted[name])
                assert_close(result[name], wanted[name])


@pytest.mark.slow
def test_eight_devices_learn_what_one_does():
    """In a process of its own: a CPU is split once, and the suite's has four devices."""
    program = """
import jax, numpy as np
from jaxrl import Trainer
from tests.programs import SMALL_ARENA
states = []
for devices in (8, 1):
    config = SMALL_ARENA.replace(num_envs=8, minibatch_size=64)
    trainer = Trainer(config, devices=devices, run_dir=None, quiet=True)
    for _ in range(3):
        trainer.train()
    states.append(trainer.runner)
assert len(states[0].envs.state.positions.sharding.device_set) == 8
for ours, theirs in zip(*(jax.tree.leaves(state.learners) for state in states), strict=True):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-5, atol=2e-5)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_run_of_two_devices_goes_on_on_two_bit_for_bit_or_on_one_if_asked(
    start, resume, small, tmp_path
):
    whole = start(small, run_dir=tmp_path / "whole", devices=2)
    whole.fit({"training_iteration": 4})
    half = start(small, devices=2)
    half.fit({"training_iteration": 2})
    half.stop()
    again = resume()
    assert again.settings.devices == 2
    again.fit({"training_iteration": 4})
    assert_close(again.runner.learners, whole.runner.learners, atol=0)
    again.stop()
    alone = resume(checkpoint=2, run_dir=tmp_path / "alone", devices=1)
    alone.fit({"training_iteration": 4})
    assert_close(alone.runner.learners, whole.runner.learners)


def test_small_work_stays_on_one_device_and_large_work_takes_the_cores_that_it_can_fill(small):
    assert [devices_worth_using(LARGE, cores) for cores in (1, 2, 3, 4, 16)] == [1, 2, 2, 2, 2]
    assert devices_worth_using(LARGE.replace(minibatch_size=16384), 16) == 8
    assert devices_worth_using(small, 8) == 1
    assert devices_worth_using(LARGE.replace(shuffle_blocks=2), 8) == 2
    assert devices_worth_using(LARGE.replace(num_envs=511, minibatch_size=4088), 8) == 1
    assert settled(RunSettings(), small).devices == 1


test_a_number_of_devices_that_cannot_be_is_refused = refused_by(
    lambda devices, config: settled(RunSettings(devices=devices), config),
    [
        (0, LARGE, "devices=0 must be"),
        ("two", LARGE, "devices='two' must be"),
        (8, LARGE, "devices=8: JAX has 4 here"),
        (3, LARGE, "devices=3 does not divide shuffle_blocks=8"),
        (2, LARGE.replace(shuffle_blocks=1), "devices=2 does not divide shuffle_blocks=1"),
    ],
)


@pytest.mark.long
def test_the_number_of_devices_is_written_down(start, small, tmp_path):
    trainer, _ = trained(start, tmp_path, 2, small)
    path = trainer.save()
    assert json.loads((path / "checkpoint.json").read_text())["run_settings"]["devices"] == 2


@pytest.mark.process
def test_a_process_of_its_own_goes_on_over_the_devices_that_the_run_had(start, small, tmp_path):
    """Reading a checkpoint starts JAX, after which the CPU can no longer be split."""
    trainer = start(small, devices=2)
    trainer.train()
    trainer.stop()
    program = (
        "import sys, jax; from jaxrl import Trainer; "
        "trainer = Trainer.from_checkpoint(sys.argv[1], quiet=True, run_dir=None); "
        "print(trainer.settings.devices, len(jax.devices()))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == [
        "2",
        "2",
    ]
