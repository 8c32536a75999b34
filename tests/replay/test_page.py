"""The page's data are the recorded episodes; the page is one file that asks nobody for anything."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import PPOConfig, UsageError
from jaxrl.core.agent_steps import AgentSteps
from jaxrl.core.drawing import Circles, Drawing
from jaxrl.play.recording import EpisodeRecording
from jaxrl.replay import page
from jaxrl.replay.drawings import observations_drawn
from jaxrl.replay.page import Column, make_replay
from jaxrl.replay.replay import replay
from tests.messages import refusal
from tests.play.test_recording import recorded_alone, untrained
from tests.probes import Leavers, Probe, TicTacToe
from tests.programs import SMALL_ARENA
from tests.replay.test_packing import unpacked

ARENA = {"height": 4, "width": 5, "max_steps_in_episode": 30}


def data_of(replayed):
    """The page's data, with every reference unpacked."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', replayed.html)
    data = json.loads(text[1])

    def read(tree):
        if isinstance(tree, list):
            return [read(part) for part in tree]
        if not isinstance(tree, dict):
            return tree
        if "shape" in tree and ("table" in tree or "bits" in tree):
            return unpacked(tree, data["arrays"])
        return {name: read(part) for name, part in tree.items()}

    return read(data)


def page_for(played, **which):
    """(replay, its recording) of one episode."""
    recording = recorded_alone(played, **which)
    return make_replay([Column("now", (recording,))]), recording


@pytest.fixture(scope="module")
def waterworld():
    return page_for(untrained("waterworld"), explore=True, max_steps=120)


@pytest.mark.long
def test_the_positions_of_bodies_come_back_within_half_a_quantum(waterworld):
    replayed, recording = waterworld
    track = data_of(replayed)["episodes"][0]["tracks"][0]
    pursuers = track["drawing"]["shapes"][-1]["arrays"]["center"]
    true = np.moveaxis(recording.states.position[:, :, :2], 1, 2)
    quantum = np.ptp(true) / 65535
    assert np.abs(pursuers - true).max() <= 0.5 * quantum + 1e-4  # px; f32 rounds too
    assert track["steps"] == 120 and track["end"] == "cut"


def test_values_and_continuous_actions_come_back(waterworld):
    replayed, recording = waterworld
    data = data_of(replayed)
    assert data["agents"][1] == {
        "name": "pursuer_1",
        "policy": "pursuer_1",
        "names": ["x", "y"],
        "low": [-1, -1],
        "high": [1, 1],
    }
    shown = data["episodes"][0]["tracks"][0]["decisions"][1]
    decisions = recording.decisions["pursuer_1"]
    for found, true in ((shown["value"], decisions.value), (shown["action"], decisions.action)):
        assert np.abs(found - true).max() <= 0.5 * np.ptp(true) / 65535 + 1e-6
    low, mean, high = shown["spread"]
    assert np.all((low <= mean) & (mean <= high)) and np.any(low < high)


def test_probabilities_are_those_of_the_policy_at_each_state_and_actions_are_named():
    replayed, recording = page_for(untrained("cartpole"))
    data = data_of(replayed)
    assert data["agents"][0]["names"] == ["left", "right"]
    (shown,) = data["episodes"][0]["tracks"][0]["decisions"]
    decisions = recording.decisions["default_agent"]
    np.testing.assert_allclose(decisions.probabilities.sum(axis=1), 1, rtol=1e-6)
    assert np.abs(shown["probabilities"] - decisions.probabilities).max() <= 0.5 / 255
    # The episode is played by the likeliest action.
    np.testing.assert_array_equal(shown["action"][:, 0], decisions.probabilities.argmax(axis=1))


def test_the_page_is_one_small_file_without_an_address_in_it(waterworld, tmp_path):
    replayed, _ = waterworld
    path = replayed.save(tmp_path / "episode.html")
    assert [file.name for file in tmp_path.iterdir()] == ["episode.html"]
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|//[\w.]+\.\w+/|@import|url\(|\bsrc=|\bhref=", text)
    assert "default-src 'none'" in text
    assert len(text) < 70_000


def test_names_in_the_data_cannot_end_the_script():
    recording = recorded_alone(untrained("cartpole"))
    name = "</script><script>alert(1)</script>"
    replayed = make_replay([Column(name, (recording,))])
    assert name not in replayed.html
    assert data_of(replayed)["columns"][0]["name"] == name


@pytest.mark.long
def test_several_checkpoints_start_alike_and_untrained_policies_are_those_of_the_seed(tmp_path):
    with jaxrl.Trainer(
        SMALL_ARENA, run_dir=tmp_path / "run", quiet=True, pictures=False
    ) as trainer:
        first = jaxrl.replay(trainer, explore=True)
        trainer.fit()
        now = jaxrl.replay(trainer, explore=True)
    both = jaxrl.replay(tmp_path / "run", checkpoint=["untrained", "last"], explore=True)
    assert [column.name for column in both.columns] == ["untrained", "iteration 40"]
    for column, alone in zip(both.columns, (first, now), strict=True):
        jax.tree.map(
            np.testing.assert_array_equal,
            column.recordings[0].states,
            alone.columns[0].recordings[0].states,
        )
    starts = [column.recordings[0].states.positions[0] for column in both.columns]
    np.testing.assert_array_equal(*starts)
    assert data_of(both)["note"] == "run"
    assert jaxrl.replay(jaxrl.load_run(tmp_path / "run")).columns[0].name == "iteration 40"


def test_a_configuration_plays_with_a_runner_such_as_make_train_returns(trained):
    played = jaxrl.replay(SMALL_ARENA, trained.runner, episodes=2)
    assert repr(played) == "Replay(2 episodes of iteration 3)"
    with pytest.raises(UsageError, match="needs the runner that make_train returned"):
        jaxrl.replay(SMALL_ARENA)


def test_a_notebook_shows_the_page_in_a_frame_that_may_do_nothing_but_run_it(waterworld):
    shown = waterworld[0]._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts"' in shown
    assert "<script" not in shown  # escaped


@pytest.mark.parametrize("env", [Probe(num_steps=3), Leavers(), TicTacToe()])
def test_environments_that_show_nothing_are_shown_by_their_observations(env):
    replayed, recording = page_for(untrained(env), explore=True)
    track = data_of(replayed)["episodes"][0]["tracks"][0]
    kinds = [shapes["kind"] for shapes in track["drawing"]["shapes"]]
    assert kinds == ["lines", "rectangles", "text"]
    seen = np.concatenate(
        [
            np.reshape(leaf, (recording.num_steps + 1, -1))
            for leaf in jax.tree.leaves(recording.observations[recording.agents[0]])
        ],
        axis=1,
    )
    quantum = np.ptp(seen) / 65535
    assert np.abs(track["observation"] - seen).max() <= 0.5 * quantum + 1e-6
    assert len(track["decisions"]) == len(recording.agents)
    np.testing.assert_array_equal(
        np.broadcast_to(track["active"], recording.active.shape), recording.active
    )


def test_an_observation_with_channels_is_shown_as_coloured_cells():
    picture = np.zeros((1, 2, 3, 2))
    picture[0, 0, 1, 0] = picture[0, 1, 2, 1] = 1
    steps = AgentSteps(picture, *[np.ones(1)] * 5, {})
    seen = EpisodeRecording(None, None, {}, {"a": steps}, "cut")
    drawn = observations_drawn(seen)
    np.testing.assert_array_equal(drawn.arrays[0]["color_index"], [[0, 1, 0, 0, 0, 2]])


def test_an_environment_that_renders_is_shown_by_frames():
    class Rendering(Probe):
        def render(self, state, params):
            return jax.numpy.full((20, 30, 3), 40 * state.time, jax.numpy.uint8)

    replayed, _ = page_for(untrained(Rendering(num_steps=3)))
    frames = data_of(replayed)["episodes"][0]["tracks"][0]["frames"]
    assert frames["steps"] == [0, 1, 2, 3]
    assert all(image.startswith("data:image/png;base64,") for image in frames["images"])


def test_numbers_that_are_not_finite_are_shown_as_zero():
    recording = recorded_alone(untrained("cartpole"))
    ((agent, steps),) = recording.steps.items()
    steps = steps._replace(reward=np.full_like(steps.reward, np.nan))
    broken = dataclasses.replace(recording, steps={agent: steps})
    track = data_of(make_replay([Column("now", (broken,))]))
    assert track["episodes"][0]["tracks"][0]["returns"] == [0.0]


class BadlyDrawn(Probe):
    def draw(self, state, params):
        shapes = Circles(center=jax.numpy.zeros((3, 2)), radius=jax.numpy.zeros(2), color="good")
        return Drawing(bounds=(0, 0, 1, 1), shapes=(shapes,))


def refusals(tmp_path):
    arena = untrained("arena", env_args=ARENA)
    recording = recorded_alone(arena, explore=True)
    played = make_replay([Column("now", (recording,))])
    return {
        "the name must end in .html": lambda: played.save(tmp_path / "episode.htm"),
        "there is no folder": lambda: played.save(tmp_path / "none" / "episode.html"),
        "does not exist": lambda: replay(tmp_path / "none"),
        "episodes=0 must": lambda: replay(tmp_path, episodes=0),
        "name one checkpoint, or up to 6": lambda: replay(tmp_path, checkpoint=list(range(7))),
        "plays its present policies": lambda: replay(SMALL_ARENA, checkpoint="best"),
        "a runner beside a configuration only": lambda: replay(tmp_path, runner=object()),
        "explore is for policies that play": lambda: replay(recording, explore=True),
        "max_steps is for policies": lambda: jaxrl.render(recording, "x.gif", max_steps=9),
        "of an episode writes one": lambda: jaxrl.render([recording] * 2, "episode.gif"),
        "the name must end in one of": lambda: jaxrl.render(recording, tmp_path / "episode.html"),
        r"draw must have Circles with radius \[\] or \[3\], not \[2\]": lambda: page_for(
            untrained(BadlyDrawn(num_steps=3))
        ),
    }


def test_what_cannot_be_is_refused_in_one_line(tmp_path):
    for text, attempt in refusals(tmp_path).items():
        with refusal(text):
            attempt()


def test_a_page_that_would_be_too_large_is_refused_with_what_would_help(monkeypatch):
    monkeypatch.setattr(page, "MAX_BYTES", 20_000)
    with pytest.raises(UsageError, match="0 MB are allowed: choose fewer episodes"):
        page_for(untrained("cartpole"))
    with pytest.raises(UsageError, match="1 MB, and at most 0 MB are allowed: jaxrl watch shows"):
        page.check_size(" " * 1_000_000, columns=[])


@pytest.mark.long
def test_policies_are_named_with_the_agents_that_they_play():
    config = PPOConfig(env="arena", policies="shared", num_envs=2, rollout_length=4)
    algorithm = config.replace(minibatch_size=8, fcnet_hiddens=(8,)).build()
    weights = untrained_of(algorithm)
    replayed, _ = page_for((algorithm, weights, algorithm.env_params))
    assert len({agent["policy"] for agent in data_of(replayed)["agents"]}) == 1


def untrained_of(algorithm):
    runner = jax.jit(algorithm.init)(jax.random.key(1, impl="threefry2x32"))
    return tuple(learner.weights for learner in runner.learners)
