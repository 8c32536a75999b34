"""Sweeps, populations, pools and blocks of trials whose files say what a stranger wants."""

import copy
import itertools
import json
import shutil

import pytest

import jaxrl
from jaxrl.run.storage import checkpoint
from jaxrl.sweeps.population import Population
from jaxrl.sweeps.trial_batch import BLOCK, TrialBatch
from jaxrl.sweeps.trials import trials_of
from tests.attack.forged import forged
from tests.by_hand import by_hand
from tests.programs import SMALL_ARENA, SMALL_REINFORCE

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:overflow encountered")]
VALUES = (5, -1, 1e308, "x", "../../victim", "/", "*", "a\0", [], {}, None, True, [[5]], {"x": 5})
SHORT = SMALL_REINFORCE.replace(total_env_steps=1)
LONGEST = 600  # characters of a message


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    """A victim beside the folders; nothing appears there, nor where the program runs."""
    (tmp_path / "here").mkdir()
    (tmp_path / "victim").write_text("mine")
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert (tmp_path / "victim").read_text() == "mine"
    assert not list((tmp_path / "here").iterdir())


def places(tree, path=()):
    """The paths of all that a JSON tree holds, itself not among them."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree[:2])
    for key, part in parts:
        yield (*path, key)
        if isinstance(part, dict | list):
            yield from places(part, (*path, key))


def changed(tree, path, value):
    """A copy of a JSON tree with another value at a path."""
    tree = copy.deepcopy(tree)
    part = tree
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return tree


def refused_or_done(call, what, raw):
    """Notes in `raw` what ends otherwise than well, or in one line."""
    try:
        call()
    except jaxrl.UsageError as error:
        if "\n" in str(error) or len(str(error)) > LONGEST:
            raw.append((what, f"long: {error!s:.100}"))
    except Exception as error:
        raw.append((what, f"{type(error).__name__}: {error}"[:150]))


@pytest.fixture(params=[5, *by_hand(1)], ids=["a fifth", "all"])
def step(request):
    """Which of the values are tried: each fifth, or all of them."""
    return request.param


def attacked(source, folder, file, resume, tree, depth=9, step=1):
    """Resumes copies of a folder in which one value of a file was changed each time."""
    raw = []
    shutil.copytree(source, folder)
    tried = [
        (place, value)
        for place in places(tree)
        if len(place) <= depth
        for value in (VALUES[len(place) % 2 :: 2] if len(place) > 2 else VALUES)
    ]
    for place, value in tried[::step]:
        (folder / file).write_text(json.dumps(changed(tree, place, value)) + "\n")
        refused_or_done(lambda: resume(folder), (".".join(map(str, place)), value), raw)
    return raw


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    path = tmp_path_factory.mktemp("swept") / "sweep"
    jaxrl.sweep(SHORT, {"lr": [1e-3, 1e-4]}, run_dir=path, quiet=True, devices=1)
    return path


def test_every_value_of_a_sweeps_plan(swept, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxrl.sweeps.sweep.train", lambda *_, **__: None)
    plan = json.loads((swept / "sweep.json").read_text())
    resume = lambda folder: jaxrl.resume_sweep(folder, quiet=True, trust=True)
    assert attacked(swept, tmp_path / "sweep", "sweep.json", resume, plan) == []


def test_values_of_a_sweeps_results(swept, tmp_path, step):
    line = json.loads((swept / "results.jsonl").read_text().splitlines()[0])
    first = [place for place in line if place != "result"]
    raw = []
    shutil.copytree(swept, tmp_path / "sweep")
    for name, value in list(itertools.product(first, VALUES))[::step]:
        text = json.dumps({**line, name: value})
        (tmp_path / "sweep" / "results.jsonl").write_text(text + "\n")
        resume = lambda: jaxrl.resume_sweep(tmp_path / "sweep", quiet=True, trust=True)
        refused_or_done(resume, (name, value), raw)
    assert raw == []


def test_values_of_a_populations_members(tmp_path, monkeypatch, step):
    path = tmp_path / "population"
    pbt = jaxrl.PopulationBasedTraining(perturbation_interval=1)
    space = {"lr": jaxrl.loguniform(1e-4, 1e-2)}
    settings = {"seeds": 4, "scheduler": pbt, "quiet": True, "devices": 1}
    monkeypatch.setattr("jaxrl.sweeps.population.SAVE_SECONDS", 0)
    monkeypatch.setattr(Population, "remove_checkpoints", lambda self: None)
    jaxrl.sweep(SHORT.replace(total_env_steps=300), space, run_dir=path, **settings)
    (path / "results.jsonl").unlink()
    (found,) = (path / "population").glob("*/checkpoint.json")
    facts = checkpoint.read_facts(found.parent)
    given = {name: facts[name] for name in facts if name not in ("files", "arrays", "format")}
    raw = []
    deepest = lambda place: 4 if place[:2] == ("members", 0) else 3
    tried = [
        (place, value)
        for place in places(given)
        if len(place) <= deepest(place)
        for value in VALUES[len(place) % 2 :: 2 if len(place) < 3 else 5]
    ]
    for place, value in tried[::step]:
        copied = tmp_path / "copy"
        shutil.copytree(path, copied)
        file = next((copied / "population").glob("*/checkpoint.json"))
        forged_facts = changed(facts, place, value)
        forged_facts.pop("digest", None)
        forged_facts["digest"] = checkpoint._digest(forged_facts)
        file.write_text(json.dumps(forged_facts))
        resume = lambda copied=copied: jaxrl.resume_sweep(copied, quiet=True, trust=True)
        refused_or_done(resume, (".".join(map(str, place)), value), raw)
        shutil.rmtree(copied)
    assert raw == []


def test_values_of_a_pool(tmp_path, step):
    pool = {"size": 2, "every": 1, "fixed": {"drunk": "random"}}
    config = SMALL_ARENA.replace(
        policies="per-agent", policies_to_train=["agent1"], opponents=pool, total_env_steps=64
    )
    settings = {"quiet": True, "pictures": False}
    with jaxrl.Trainer(config, run_dir=tmp_path / "run", **settings) as trainer:
        trainer.fit()
    opponents = json.loads((tmp_path / "run" / "config.json").read_text())["opponents"]
    raw = []
    for place, value in list(itertools.product(places(opponents), VALUES))[::step]:
        target = tmp_path / "copy"
        changes = {"config": {"opponents": changed(opponents, place, value)}}
        forged(tmp_path / "run", target, **changes)
        resume = lambda target=target: jaxrl.Trainer.from_checkpoint(target, **settings)
        refused_or_done(resume, (".".join(place), value), raw)
        shutil.rmtree(target)
    for value in VALUES[::step]:
        forged(tmp_path / "run", tmp_path / "copy", opponents_of=value)
        resume = lambda: jaxrl.Trainer.from_checkpoint(tmp_path / "copy", **settings)
        refused_or_done(resume, ("opponents_of", value), raw)
        shutil.rmtree(tmp_path / "copy")
    assert raw == []


def test_values_of_a_block_that_ray_tune_keeps(tmp_path, step):
    made = lambda: TrialBatch(
        trials_of(SHORT, [{"lr": 1e-3}, {"lr": 1e-2}], 1), metric="env_runners/episode_return_mean"
    )
    block = made()
    block.train(1)
    block.save(tmp_path / "block")
    facts = json.loads((tmp_path / "block" / BLOCK).read_text())
    resume = lambda folder: block.load(folder)
    raw = attacked(tmp_path / "block", tmp_path / "copy", BLOCK, resume, facts, 2, step)
    assert raw == []
