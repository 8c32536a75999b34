"""`jaxrl render --out episode.html`: several episodes and checkpoints on one page, and refusals."""

import pytest

from jaxrl.cli import evaluate, render


@pytest.mark.parametrize(
    "checkpoints",
    [
        ["--checkpoint", "untrained,3"],
        ["--checkpoint", "untrained", "--checkpoint", "3"],
        ["--checkpoint=untrained", "--checkpoint=000003"],
    ],
)
def test_checkpoints_are_a_list_or_several_flags(run, tmp_path, capsys, checkpoints):
    page = tmp_path / "episode.html"
    render([*checkpoints, "--episodes", "2", "--out", str(page), "--compile-cache", "off", run])
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == [
        f"{name}, episode {i}" for name in ("untrained", "iteration 3") for i in (0, 1)
    ]
    assert lines[-1] == f"look at      {page}"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("command", "words", "text"),
    [
        (render, ["--checkpoint", "3,untrained"], "several episodes or checkpoints need a page"),
        (render, ["--episodes", "2", "--out", "a.gif"], "need a page: --out episode.html"),
        (render, ["--out", "a.html", "--fps", "3"], "fps is of pictures"),
        (render, ["--out", "none/a.html"], "there is no folder none"),
        (render, ["--out", "a.html", "--checkpoint", "7"], "allowed are best, last, or"),
        (render, ["--out", "a.html", "--episodes", "0"], "episodes=0 must be"),
        (evaluate, ["--checkpoint", "2,3"], "checkpoint=(2, 3) must be"),
        (evaluate, ["--run", "BC"], "--algorithm 'BC': the run is of ppo; leave it out"),
        (evaluate, ["--algo", "DQN"], "--algorithm 'DQN': the run is of ppo; leave it out"),
        (evaluate, ["--env", "cartpole"], "--env 'cartpole': the run is in arena; leave"),
        (evaluate, ["--env", "CartPole-v0"], "--env 'CartPole-v0': the run is in arena"),
        (evaluate, ["--no-render"], "jaxrl evaluate draws nothing, jaxrl render RUN does"),
        (evaluate, ["--video-dir", "a"], "jaxrl render RUN --out episode.mp4 writes a video"),
        (evaluate, ["--out", "a.pkl"], "RLlib's name for --output; a folder of Parquet files"),
        (evaluate, ["--use-shelve"], "--output FOLDER writes whole episodes"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(run, capsys, command, words, text):
    with pytest.raises(SystemExit):
        command([run, *words, "--compile-cache", "off"])
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line


def test_rllibs_words_beside_a_run_are_taken_where_they_are_true(run, capsys):
    words = ["--run", "PPO", "--env", "MultiAgentArena", "--steps", "1", "--explore", "False"]
    evaluate([run, *words, "--compile-cache", "off"])
    assert capsys.readouterr().out.startswith("1 episodes of ")
