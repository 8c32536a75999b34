"""`jaxrl plot`: which runs it finds, what it calls them, and what it refuses."""

import json

import pytest

from jaxrl import UsageError
from jaxrl.cli import plot
from jaxrl.cli.flags import flags_of, given_flags
from jaxrl.cli.plot import PlotOptions, groups_of, labels_of, runs_in, without_repeats
from jaxrl.run.storage import run_folder


def make_run(folder, env_name="probe", num_results=3):
    """A run's folder as far as its curves need it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"seed": 1, "kl_target": 0.01}))
    facts = {name: {} for name in ("policies", "run_settings", "versions")}
    facts |= {"objects": [], "config_class": "", "env_name": env_name, "commit": "0123456789"}
    (folder / "metadata.json").write_text(json.dumps({**facts, "time": "2026-11-22T10:00:00+0000"}))
    results = [
        {
            "num_env_steps_sampled_lifetime": 100 * i,
            "env_runners": {"episode_return_mean": float(i)},
            "learners": {"p": {"mean_kl_loss": 0.01, "entropy": 1.0, "vf_loss": 1.0}},
        }
        for i in range(1, num_results + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))
    return folder


def test_one_run_and_several_are_drawn_in_the_format_that_is_asked_for(tmp_path, capsys):
    runs = [write_config(make_run(tmp_path / name), seed=i) for i, name in enumerate("ab")]
    plot([str(runs[0]), "--out", str(tmp_path / "one.svg")])
    plot([*map(str, runs), "--out", str(tmp_path / "two.pdf"), "--title", "mine"])
    assert (tmp_path / "two.pdf").read_bytes().startswith(b"%PDF")
    picture = (tmp_path / "one.svg").read_text()
    assert "<svg" in picture
    assert capsys.readouterr().out.splitlines() == [
        f"look at      {tmp_path / name}" for name in ("one.svg", "two.pdf")
    ]


def test_runs_may_stand_after_flags_and_a_title_stays_as_it_is_written(tmp_path):
    words = ["a", "--out", "x.pdf", "b", "--title=t", "c"]
    given = given_flags(words, flags_of(PlotOptions()), positional="runs")
    assert given == {"runs": ["a", "b", "c"], "out": ["x.pdf"], "title": ["t"]}
    with pytest.raises(UsageError, match="--out takes one value"):
        given_flags(["--out", "--title", "t"], flags_of(PlotOptions()), positional="runs")
    plot(["--out", str(tmp_path / "one.svg"), "--title", "1e6", str(make_run(tmp_path / "a"))])
    assert "<!-- 1e6 -->" in (tmp_path / "one.svg").read_text()


def test_latest_is_the_newest_run(tmp_path, monkeypatch, capsys):
    for name in ("20260101-000000-s0", "20260301-000000-s0", "20260201-000000-s0"):
        make_run(tmp_path / "arena" / name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arena" / "20260301-000000-s0" / "metadata.json").unlink()
    with pytest.raises(SystemExit):
        plot(["arena/latest"])
    assert "arena/20260301-000000-s0 is not a run's folder" in capsys.readouterr().err


def test_a_folder_of_runs_stands_for_all_in_it_and_so_does_a_sweep(tmp_path):
    runs = [make_run(tmp_path / "arena" / name) for name in ("a", "b")]
    trials = [make_run(tmp_path / "sweep" / "trials" / name) for name in ("0000", "0001")]
    assert runs_in(tmp_path / "arena") == runs
    assert runs_in(tmp_path / "sweep") == trials
    assert runs_in(runs[0]) == [runs[0]]


def write_config(run, **changes):
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, **changes}))
    return run


def grouped(runs):
    facts = [run_folder.read(run) for run in runs]
    return groups_of(runs, facts)


def test_runs_that_differ_by_their_seed_alone_are_one_line_named_by_what_tells_settings_apart(
    tmp_path,
):
    runs = [
        write_config(make_run(tmp_path / f"{lr}-{seed}"), lr=lr, seed=seed)
        for lr in (0.1, 0.01)
        for seed in (0, 1)
    ]
    assert grouped(runs) == {"lr=0.1, 2 seeds": [0, 1], "lr=0.01, 2 seeds": [2, 3]}
    assert grouped(runs[:2]) == {"2 seeds": [0, 1]}  # the title says the rest
    assert grouped(runs[:3]) == {"lr=0.1, 2 seeds": [0, 1], "lr=0.01": [2]}
    assert grouped(runs[::2]) == {"lr=0.1": [0], "lr=0.01": [1]}


def test_a_line_whose_settings_take_many_words_is_called_by_its_folder_and_no_other_line(tmp_path):
    names = ("20260101-000000-s0", "20260101-000001-s1", "20260101-000002-s0")
    runs = [write_config(make_run(tmp_path / name), seed=i) for i, name in enumerate(names)]
    for run in runs[:2]:
        write_config(run, encoder_args="long " * 8, decoder_args="longer " * 8)
    write_config(runs[2], encoder_args="short", decoder_args=2)
    short = "encoder_args=short decoder_args=2"
    assert grouped(runs) == {"20260101-000000, 2 seeds": [0, 1], short: [2]}
    assert grouped(runs[1:]) == {"20260101-000001-s1": [0], short: [1]}


def test_a_schedule_is_named_by_its_values_and_a_long_value_is_cut(tmp_path):
    runs = [make_run(tmp_path / name) for name in "abc"]
    write_config(runs[0], lr=0.001)
    write_config(runs[1], lr=[[0, 0.001], [60000, 0.0001]])
    write_config(runs[2], lr=[[0, "longer than is good for a legend"]])
    assert list(grouped(runs)) == ["lr=0.001", "lr=0.001→0.0001", "lr=[[0, 'longer th…"]


def test_lines_whose_settings_look_alike_are_called_by_their_folders(tmp_path):
    runs = [
        write_config(make_run(tmp_path / f"run-s{seed}-{lr}"), lr=lr, seed=seed)
        for lr in (0.1, 0.10001)
        for seed in (0, 1)
    ]
    other = write_config(make_run(tmp_path / "other"), lr=0.2)
    assert grouped([*runs, other]) == {
        "run-s0-0.1, 2 seeds": [0, 1],
        "run-s0-0.10001, 2 seeds": [2, 3],
        "lr=0.2": [4],
    }


def test_weights_that_a_run_begins_with_are_a_setting(tmp_path):
    runs = [write_config(make_run(tmp_path / name), seed=i) for i, name in enumerate("ab")]
    metadata = json.loads((runs[1] / "metadata.json").read_text())
    metadata["run_settings"] = {"init_from": {"p": "runs/a"}}
    (runs[1] / "metadata.json").write_text(json.dumps(metadata))
    assert list(grouped(runs)) == ["init_from=None", "init_from={'p': 'runs/a'}"]


def test_of_runs_with_the_same_settings_and_seed_the_newest_alone_is_drawn(tmp_path, capsys):
    names = ("20260101-000000-s0", "20260301-000000-s0", "20260201-000000-s0", "b")
    runs = [make_run(tmp_path / name) for name in names]
    write_config(runs[3], seed=2)
    kept, facts = without_repeats(runs, [run_folder.read(run) for run in runs])
    assert kept == [runs[1], runs[3]]
    assert groups_of(kept, facts) == {"2 seeds": [0, 1]}
    assert capsys.readouterr().out == (
        f"of 3 runs with the same settings and seed 1, only the newest is drawn: {runs[1]}\n"
    )


def test_a_run_that_is_named_twice_is_one_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "a")
    plot([str(run), "a", "--out", "one.svg"])
    assert capsys.readouterr().out == "look at      one.svg\n"


def test_labels_are_as_long_as_tells_runs_apart(tmp_path):
    assert labels_of([tmp_path / "x" / "a", tmp_path / "x" / "b"]) == ["a", "b"]
    assert labels_of([tmp_path / "x" / "a", tmp_path / "y" / "a"]) == ["x/a", "y/a"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which runs? give their folders"),
        (["nowhere"], "nowhere is not a run's folder and holds none"),
        (["RUN", "--out", "curves.jpg"], "must end in one of .png, .pdf, .svg"),
        (
            ["RUN", "--out", "missing/curves.png"],
            "missing/curves.png cannot be written: No such file or directory",
        ),
        (["RUN", "--out"], "--out takes one value"),
        (["empty/latest"], "empty/latest: empty holds no run"),
        (["RUN", "--titel", "x"], "unknown flag '--titel'; did you mean '--title'?"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "RUN")
    with pytest.raises(SystemExit) as ended:
        plot(words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
