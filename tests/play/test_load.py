"""Policies and runs that are loaded to be played: in a fresh process, and by their checkpoint."""

import shutil
import subprocess
import sys

import pytest

from jaxrl import Trainer, UsageError, evaluate, load_policy, render
from tests.messages import refusal


@pytest.mark.long
def test_a_fresh_process_loads_a_policy_with_no_environment_and_acts(trained):
    code = (
        "import sys, jaxrl\n"
        f"policy = jaxrl.load_policy({str(trained.run_dir)!r}, 'pol2')\n"
        "print(policy.act([3, 4]), policy.value([3, 4]))\n"
        "assert 'jaxrl.envs' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    policy = trained.get_policy("pol2")
    action, value = done.stdout.split()
    expected = (policy.act([3, 4]), pytest.approx(float(policy.value([3, 4])), rel=1e-4))
    assert (int(action), float(value)) == expected


def test_best_is_refused_where_no_state_was_scored(run):
    for best in (run / "checkpoints").glob("best-*"):
        shutil.rmtree(best)
    for load in (
        lambda which: load_policy(run, "pol1", checkpoint=which),
        lambda which: evaluate(run, episodes=1, checkpoint=which),
        lambda which: render(run, checkpoint=which),
        lambda which: Trainer.from_checkpoint(run, checkpoint=which),
    ):
        with pytest.raises(
            UsageError, match=r"no best checkpoint: no score was measured; choose last, or .*: .*3"
        ):
            load("best")
    path = run / "checkpoints" / "000003"
    with refusal(r"is a checkpoint itself: name its run's folder to choose checkpoint 'best'"):
        load_policy(path, "pol1", checkpoint="best")
    assert load_policy(path, "pol1", checkpoint=3).name == "pol1"
