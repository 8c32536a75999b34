"""`jaxrl episodes DIR --judge RUN`: a run's policies judged from episodes on disk."""

import numpy as np
import pytest

import jaxrl
from jaxrl.cli import episodes

pytest.importorskip("pyarrow", reason="the extra `offline`")


def judged(capsys, *words):
    episodes([str(word) for word in words])
    return capsys.readouterr().out


@pytest.mark.long
def test_a_run_is_judged_from_its_episodes_to_have_their_mean_return(trained, tmp_path, capsys):
    folder, run = tmp_path / "data", trained.run_dir
    played = jaxrl.evaluate(
        run, episodes=20, explore=True, output=folder, return_episodes=True, seed=5
    )
    head, titles, *rows = judged(capsys, folder, "--judge", run).splitlines()
    mean = played["env_runners"]["episode_return_mean"]
    assert head.startswith(f"20 episodes, recorded return {mean:.2f} (gamma 1); 95% intervals")
    assert titles.split()[-1] == "effective" and len(rows) == 8
    assert rows[-1] == "The interval of direct_method leaves out the error of its fit."
    method, estimate, *_, effective = rows[1].split()
    assert (method, effective) == ("weighted_importance_sampling", "20.0")
    assert float(estimate) == pytest.approx(mean, abs=0.011)

    head = judged(capsys, folder, "--judge", run, "--gamma", "0.5").splitlines()[0]
    discounted = np.mean([first_rewards(episode, 0.5) for episode in played["episodes"]])
    assert f"recorded return {discounted:.2f} (gamma 0.5)" in head


def first_rewards(episode, gamma):
    """The discounted return of agents that act in each step."""
    rewards = sum(data.get_rewards() for data in episode.agent_episodes.values())
    return np.sum(gamma ** np.arange(len(rewards)) * rewards)


@pytest.mark.long
def test_a_greedy_recording_is_refused(trained, tmp_path, capsys):
    jaxrl.evaluate(trained.run_dir, episodes=2, output=tmp_path)
    with pytest.raises(SystemExit):
        episodes([str(tmp_path), "--judge", str(trained.run_dir)])
    assert "record with explore=True" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_that_is_not_there_is_refused(trained, tmp_path, capsys):
    jaxrl.evaluate(trained.run_dir, episodes=2, output=tmp_path, explore=True)
    with pytest.raises(SystemExit):
        episodes([str(tmp_path), "--judge", "nowhere"])
    said = capsys.readouterr().err
    assert said.startswith("jaxrl episodes: ") and said.count("\n") == 1
