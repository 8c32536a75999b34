"""Ray Train's JaxTrainer as the launcher: its workers train one run together."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.programs import SMALL_ARENA

LAUNCH = """
import os, sys
import ray, ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.jax import JaxTrainer

def train(config):
    import jax, jaxrl
    from tests.programs import SMALL_ARENA

    context = ray.train.get_context()
    size, rank = context.get_world_size(), context.get_world_rank()
    if config["connected"]:  # as JaxTrainer does it on GPUs and TPUs
        jax.distributed.initialize(config["coordinator"], size, rank)
        jaxrl.join()
    else:
        jaxrl.join(config["coordinator"], size, rank)
    settings = {"run_dir": config["run_dir"], "loggers": ("jsonl",)}
    settings |= {"pictures": False, "quiet": True}
    with jaxrl.Trainer(SMALL_ARENA, **settings) as trainer:
        trainer.fit({"training_iteration": 2})

coordinator, run_dir, storage, connected = sys.argv[1:]
here = {"PYTHONPATH": os.environ["PYTHONPATH"], "JAX_PLATFORMS": "cpu"}
ray.init(num_cpus=3, include_dashboard=False, runtime_env={"env_vars": here})
settings = {"coordinator": coordinator, "run_dir": run_dir, "connected": connected == "connected"}
JaxTrainer(
    train,
    train_loop_config=settings,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=storage),
).fit()
"""


@pytest.mark.slow
@pytest.mark.parametrize("who", ["connected", "unconnected"])
def test_two_workers_of_jax_trainer_train_what_two_devices_of_one_process_do(start, tmp_path, who):
    pytest.importorskip("ray.train", reason='needs Ray Train: pip install -e ".[ray]"')
    with socket.create_server(("localhost", 0)) as server:
        coordinator = f"localhost:{server.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    arguments = coordinator, tmp_path / "ray", tmp_path / "storage", who
    command = [sys.executable, "-c", LAUNCH, *map(str, arguments)]
    launched = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert launched.returncode == 0, launched.stderr[-3000:]
    together = start(SMALL_ARENA, devices=2)
    lines = (tmp_path / "ray" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    for line in lines:
        found, expected = json.loads(line), together.train()
        for name in ("env_runners", "learners"):
            pairs = zip(jax.tree.leaves(found[name]), jax.tree.leaves(expected[name]), strict=True)
            for number, wanted in pairs:
                np.testing.assert_allclose(float(number), float(wanted), rtol=2e-5, atol=2e-5)
