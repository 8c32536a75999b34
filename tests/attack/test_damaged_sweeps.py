"""Random damage to the JSON files of sweeps and populations: left out or refused in one line."""

import importlib
import json
import random
import shutil

import pytest

import jaxrl
from jaxrl.cli.plot import PlotOptions, runs_in, write_plot
from jaxrl.replay.live_run import LiveRun
from jaxrl.replay.live_sweep import LiveSweep
from jaxrl.run.storage import checkpoint, runs
from tests.attack.test_forged_sweeps import refused_or_done
from tests.programs import SMALL_REINFORCE

pytestmark = pytest.mark.long
SHORT = SMALL_REINFORCE.replace(total_env_steps=300)
TIMES = 16  # that each file is damaged
PIECES = (b"null", b"-1", b"1e999", b"9" * 400, b'"', b"[[", b"{}", b"\n", b"NaN", b"true")
PBT = jaxrl.PopulationBasedTraining(perturbation_interval=1)
SPACES = {"sweep": {"lr": [1e-3, 1e-4]}, "population": {"lr": jaxrl.loguniform(1e-4, 1e-2)}}


@pytest.fixture(scope="module", params=SPACES)
def finished(request, tmp_path_factory):
    """A sweep of two trials, a population of four."""
    path = tmp_path_factory.mktemp("finished") / "sweep"
    of_kind = {"seeds": 4, "scheduler": PBT} if request.param == "population" else {}
    settings = {"run_dir": path, "quiet": True, "devices": 1, **of_kind}
    jaxrl.sweep(SHORT, SPACES[request.param], **settings)
    return path


def damaged(content, generator):
    """The content with a bit flipped, its end cut off, or some bytes more or fewer."""
    place, changed = generator.randrange(len(content)), bytearray(content)
    length = generator.randrange(1, 40)
    match generator.randrange(5):
        case 0:
            changed[place] ^= 1 << generator.randrange(8)
        case 1:
            del changed[place:]
        case 2:
            del changed[place : place + length]
        case 3:
            changed[place:place] = generator.randbytes(length)
        case 4:
            changed[place : place + 1] = generator.choice(PIECES)
    return bytes(changed)


def plotted(folder):
    write_plot(runs_in(folder), PlotOptions(out=str(folder.parent / "curves.png")))


def sent(page):
    """The page as its server sends it."""
    return json.dumps(page.status(0), allow_nan=False)


READERS = {
    "find": checkpoint.find,
    "list": runs.contents,
    "resume": lambda folder: jaxrl.resume_sweep(folder, quiet=True, trust=True),
    "watch": lambda folder: sent(LiveRun(runs.resolve(folder / "trials" / "0000"))),
    "watch the sweep": lambda folder: sent(LiveSweep(folder)),
    "results": lambda folder: jaxrl.load_run(folder / "trials" / "0000").results(),
    "plot": plotted,
}


def json_files(path):
    """Those of a sweep's folder, of its trials those of the first."""
    files = [file.relative_to(path) for file in sorted(path.rglob("*.json*"))]
    return [file for file in files if file.parts[0] != "trials" or file.parts[1][:4] == "0000"]


def test_no_reader_ends_in_a_traceback(finished, tmp_path, monkeypatch):
    plot = importlib.import_module("jaxrl.cli.plot")
    monkeypatch.setattr(plot, "save_figure", lambda path, draw: draw())
    monkeypatch.setattr("jaxrl.sweeps.sweep_folder.SweepFolder.draw", lambda *_: None)
    generator, raw, copy = random.Random(0), [], tmp_path / "copy"
    for file in json_files(finished):
        for _ in range(TIMES):
            shutil.copytree(finished, copy)
            (copy / file).write_bytes(damaged((copy / file).read_bytes(), generator))
            for name, read in READERS.items():
                refused_or_done(lambda read=read: read(copy), (str(file), name), raw)
            shutil.rmtree(copy)
    assert raw == []


def test_a_damaged_line_of_a_sweeps_results_costs_its_own_trial(tmp_path, caplog):
    path = tmp_path / "sweep"
    config = SHORT.replace(total_env_steps=1)
    first = jaxrl.sweep(config, SPACES["sweep"], run_dir=path, quiet=True, devices=1)
    lines = (path / "results.jsonl").read_bytes().splitlines(keepends=True)
    (path / "results.jsonl").write_bytes(lines[0][:40] + b"\n" + lines[1])
    contents = runs.contents(path)  # the one with a score comes first
    assert contents.index("trials/0001") < contents.index("trials/0000")
    again = jaxrl.resume_sweep(path, quiet=True, trust=True)
    assert f"{path / 'results.jsonl'}: line 1 is damaged (is not JSON" in caplog.text
    assert [trial.score for trial in again.outcomes] == [trial.score for trial in first.outcomes]
    assert (path / "results.jsonl").read_bytes().startswith(lines[0][:40] + b"\n" + lines[1])


def test_a_damaged_line_of_a_population_is_refused_before_all_are_trained_again(tmp_path):
    path = tmp_path / "sweep"
    settings = {"seeds": 4, "scheduler": PBT, "run_dir": path, "quiet": True, "devices": 1}
    jaxrl.sweep(SHORT, SPACES["population"], **settings)
    content = (path / "results.jsonl").read_bytes()
    (path / "results.jsonl").write_bytes(content[5:])
    with pytest.raises(jaxrl.UsageError, match=r"line 1 is damaged .* depend on each other"):
        jaxrl.resume_sweep(path, quiet=True, trust=True)
    assert (path / "results.jsonl").read_bytes() == content[5:]
    (path / "results.jsonl").write_bytes(content)
    lineage = (path / "lineage.jsonl").read_bytes().splitlines(keepends=True)
    (path / "lineage.jsonl").write_bytes(b"?\n" + b"".join(lineage[1:]))
    done = jaxrl.resume_sweep(path, quiet=True, trust=True)
    assert len(done.lineage.takeovers) == len(lineage) - 1
