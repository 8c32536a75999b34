"""Records runs, sweeps, episodes and exports of former commits, which test_migrate.py reads.

Needs a checkout of the commit, and this file's folder `tests` behind it on the path:

    PYTHONPATH=CHECKOUT:. python tests/run/storage/record_runs.py COMMIT [NAME ...]

Writes tests/reference/COMMIT: an archive for each, and the facts of expected.json, which are what
that version itself read, computed and chose.
"""

import functools
import json
import os
import shutil
import signal
import sys
import tarfile
import tempfile
from pathlib import Path

import jax
import numpy as np

import jaxrl
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.run.recorder import state_tree
from jaxrl.run.storage import runs
from jaxrl.run.storage.checkpoint import named_arrays
from jaxrl.sweeps import population
from jaxrl.sweeps.trial_batch import TrialBatch
from jaxrl.sweeps.trials import trials_of
from tests.run.storage import recorded_runs as recorded

REFERENCE = Path(__file__).parents[2] / "reference"
QUIET = {"quiet": True, "pictures": False, "loggers": ("jsonl",)}


def digests(trainer):
    """{the name of a part of the state: a digest of its bits}."""
    arrays = named_arrays(state_tree(trainer.algorithm, trainer.snapshot()))
    return {name: recorded.digest(array) for name, array in sorted(arrays.items())}


def run(name, settings):
    """A run of three iterations; what a fourth one, after resuming, would learn."""
    config = jaxrl.PPOConfig(**settings)
    trainer = jaxrl.Trainer(config, run_dir=name, keep=1, **QUIET)
    trainer.fit({"training_iteration": 3})
    trainer.stop()
    resumed = jaxrl.Trainer.from_checkpoint(name, run_dir=None, quiet=True, stop={}, trust=True)
    saved = digests(resumed)
    result = resumed.train()
    resumed.stop()
    policy = next(iter(resumed.algorithm.grouping.policies))
    return {
        "arrays": saved,
        "learned": recorded.learned(result),
        "actions": recorded.chosen(name, policy, recorded.SEEN[name]),
        "evaluated": jaxrl.evaluate(name, episodes=4, seed=1, trust=True)["env_runners"][
            "episode_return_mean"
        ],
    }


def sweep():
    """Two trials, of which the second is missing; what it learns."""
    config, settings = recorded.CARTPOLE, {"lr": jaxrl.grid_search([1e-3, 3e-4])}
    options = {"quiet": True, "devices": 1}
    whole = jaxrl.sweep(config, settings, run_dir="sweep", **options)
    shutil.rmtree(runs.resolve(Path("sweep/trials/0001")))
    lines = Path("sweep/results.jsonl").read_text().splitlines(keepends=True)
    Path("sweep/results.jsonl").write_text(lines[0])
    for picture in Path("sweep").rglob("*.png"):
        picture.unlink()
    return {"learned": recorded.learned(whole.outcomes[1].result)}


def interrupted_population():
    """Three members that were stopped after the worst copied the best; what they come to."""
    scheduler = jaxrl.PopulationBasedTraining(perturbation_interval=1, quantile_fraction=0.34)
    settings = {"lr": [1e-3, 3e-3, 1e-2]}
    options = {"quiet": True, "devices": 1, "scheduler": scheduler}
    whole = jaxrl.sweep(recorded.CARTPOLE, settings, run_dir="whole", **options)
    perturb = population.Population.perturb

    def then_interrupted(self, state, numbers):
        changed = perturb(self, state, numbers)
        os.kill(os.getpid(), signal.SIGINT)
        return changed

    population.Population.perturb = then_interrupted
    jaxrl.sweep(recorded.CARTPOLE, settings, run_dir="population", **options)
    population.Population.perturb = perturb
    for picture in Path("population").rglob("*.png"):
        picture.unlink()
    return {
        "settings": [outcome.trial.settings for outcome in whole.outcomes],
        "scores": [outcome.curve[1] for outcome in whole.outcomes],
        "learned": [recorded.learned(outcome.result) for outcome in whole.outcomes],
    }


def block():
    """Two trials of a batch that another loop trains, after two iterations; the third's results."""
    settings = [{"lr": 1e-3}, {"lr": 1e-2}]
    batch = TrialBatch(trials_of(recorded.CARTPOLE, settings, 1), metric=recorded.RETURN)
    batch.train(2)
    batch.save(Path("block"))
    return {"learned": [recorded.learned(result) for result in batch.train(1)]}


def episodes():
    """One folder of a single agent's episodes, and one of several agents'."""
    facts = {}
    for name in ("cartpole", "arena"):
        played = jaxrl.evaluate(
            name, episodes=2, seed=1, explore=True, output=f"episodes/{name}", return_episodes=True
        )["episodes"]
        facts[name] = [recorded.steps_of(episode) for episode in played]
    return facts


def export():
    Path("export").mkdir()
    jaxrl.load_policy("cartpole").export("export/policy.npz")
    reader = NumpyPolicy("export/policy.npz")
    return {"actions": [int(reader.act(np.float32(obs))) for obs in recorded.SEEN["cartpole"]]}


def pack(name, folder):
    """Without what is of this machine."""
    for file in Path(name).rglob("*.json"):
        if file.name in ("metadata.json", "sweep.json"):
            facts = json.loads(file.read_text())
            (facts if file.name == "metadata.json" else facts["metadata"])["platform"] = "Linux"
            file.write_text(json.dumps(facts, indent=1) + "\n")

    def plain(member):
        member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
        return None if member.name.endswith(".lock") else member

    with tarfile.open(folder / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        archive.add(name, filter=plain)


def main(commit, names):
    """Records all of a commit, or what is named, which may need what comes before it."""
    for name, environment in recorded.GAMES.items():
        jaxrl.register(name, environment)
    folder = REFERENCE / commit
    folder.mkdir(parents=True, exist_ok=True)
    runs = recorded.RUNS if commit == "a5ee728" else recorded.LATER_RUNS
    records = {name: functools.partial(run, name, settings) for name, settings in runs.items()}
    if commit == "a5ee728":
        records |= {"sweep": sweep, "population": interrupted_population, "block": block}
        records |= {"episodes": episodes, "export": export}
    expected = folder / "expected.json"
    facts = json.loads(expected.read_text()) if names else {}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for name in names or records:
            facts[name] = records[name]()
        for name in names or records:
            pack(name, folder)
        os.chdir("/")
    expected.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
    print(jax.__version__, jaxrl.__file__)
