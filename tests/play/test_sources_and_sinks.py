"""Whichever source an episode comes from, every sink takes it: sources x sinks."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import UsageError, replay_episode
from jaxrl.core.env import has_pictures
from jaxrl.core.outside_env import is_outside
from jaxrl.episodes import EpisodeWriter, MultiAgentEpisode, read_episodes
from jaxrl.episodes.by_agent import Episode, agents_of
from jaxrl.offline.judged_episodes import judge_episodes
from jaxrl.play.host_episodes import EpisodeRange, Players
from jaxrl.play.load import open_run
from tests.messages import refusal
from tests.offline.test_estimators import policies_of
from tests.play.test_recording import recorded
from tests.play.test_sampling import EXPLORED, assert_equal_agents, evaluated, players, sampled
from tests.probes import Crowd, Forbidden, Joining, Leavers
from tests.programs import SMALL_ARENA
from tests.replay.test_page import data_of

pytest.importorskip("pyarrow", reason="the extra `offline`")


@dataclass
class Source:
    """Episodes, and what is known of them."""

    episodes: list[Episode]
    reported: Mapping[str, Any]  # the statistics of these episodes
    players: Players  # who played them
    env: Any = None  # to step them again in; None: the one that they name
    wanted: EpisodeRange | None = None  # by which they are played again; None: training's own

    @property
    def is_outside(self):
        return is_outside(self.players.algorithm.rollout_spec.env)

    @cached_property
    def replays(self):
        """The recordings of the episodes, stepped again; none outside JAX."""
        if self.is_outside:
            return []
        return [replay_episode(episode, self.env) for episode in self.episodes]

    @cached_property
    def recordings(self):
        """The same episodes, which the policies play to be looked at; none of training's."""
        if self.wanted is None:
            return []
        seed, first, number, explore, *_ = vars(self.wanted).values()
        return recorded(self.players, seed=seed, first=first, number=number, explore=explore)


def compiled(env=None):
    """Two policies; a memory; agents that leave, wait and join; masks; one policy of three."""

    def source(name, request, folder):
        result, episodes = sampled(name)
        return Source(episodes, result["env_runners"], players(name), env, EXPLORED)

    return source


def outside(name, request, folder):
    result, episodes = evaluated(name, EXPLORED)
    env = "tests.outside.workers.environments:Counter"
    return Source(episodes, result["env_runners"], players(name), env, EXPLORED)


def files(name, request, folder):
    run, wanted = request.getfixturevalue("trained").run_dir, EpisodeRange(5, 0, 2, explore=True)
    played = {"episodes": wanted.number, "explore": True, "seed": wanted.seed}
    reported = jaxrl.evaluate(run, **played, output=folder)["env_runners"]
    stored = list(read_episodes(folder))
    return Source(stored, reported, open_run(run).players, wanted=wanted)


class Results(jaxrl.Callbacks):
    def on_train_result(self, trainer, result):
        self.last = result["env_runners"]


def training(name, request, folder):
    """Five iterations are four whole episodes of each environment; the policies stay the same."""
    config = SMALL_ARENA.replace(lr=0.0, callbacks=(results := Results()))
    with jaxrl.Trainer(config, run_dir=None, quiet=True, output=folder) as trainer:
        trainer.fit({"training_iteration": 5})
        weights = tuple(learner.weights for learner in trainer.runner.learners)
        who = Players(trainer.algorithm, weights, trainer.env_params)
    lifetime = "num_episodes", "num_env_steps_sampled"
    reported = results.last | {name: results.last[f"{name}_lifetime"] for name in lifetime}
    return Source(list(read_episodes(folder)), reported, who)


SOURCES = {
    "arena": compiled(),
    "memory": compiled("cartpole"),
    "leavers": compiled(Leavers()),
    "joining": compiled(Joining()),
    "masks": compiled(Forbidden()),
    "continuous": compiled(Crowd(3)),
    "outside": outside,
    "files": files,
    "training": training,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The source of a name, made once."""
    known = {}

    def source(name, request):
        if name not in known:
            known[name] = SOURCES[name](name, request, tmp_path_factory.mktemp(name))
        return known[name]

    return source


def return_of(episode):
    several = isinstance(episode, MultiAgentEpisode)
    return episode.get_return(**({"include_hanging_rewards": True} if several else {}))


def statistics(source, folder):
    reported, episodes = source.reported, source.episodes
    returns = list(map(return_of, episodes))
    assert reported["num_episodes"] == len(episodes) > 1
    assert source.wanted is None or source.wanted.number == len(episodes)
    assert reported["episode_len_max"] == max(map(len, episodes))
    assert np.mean(returns) == pytest.approx(reported["episode_return_mean"], rel=1e-5)
    assert np.max(returns) == pytest.approx(reported["episode_return_max"], rel=1e-5)
    assert sum(map(len, episodes)) == reported["num_env_steps_sampled"]
    for agent, mean in reported["agent_episode_returns_mean"].items():
        parts = [agents_of(episode)[agent][0] for episode in episodes]
        assert np.mean([each.get_return() for each in parts]) == pytest.approx(mean, rel=1e-5)


def writing(source, folder):
    with EpisodeWriter(folder) as writer:
        for episode in source.episodes:
            writer.write(episode)
    stored = list(read_episodes(folder))
    assert [each.id_ for each in stored] == [each.id_ for each in source.episodes]
    assert list(map(return_of, stored)) == list(map(return_of, source.episodes))
    for episode, again in zip(source.episodes, stored, strict=True):
        assert again.custom_data == episode.custom_data
        for agent, (data, times) in agents_of(episode).items():
            read, read_times = agents_of(again)[agent]
            np.testing.assert_array_equal(read_times, times)
            assert_equal_agents(read, data)


def stepping_again(source, folder):
    for replay, episode in zip(source.replays, source.episodes, strict=not source.is_outside):
        assert replay.difference is None
        assert {len(leaf) for leaf in jax.tree.leaves(replay.states)} == {len(episode) + 1}
    if source.is_outside:
        with refusal("cannot be replayed: no key began it"):
            replay_episode(source.episodes[0], source.env)


def looking(source, folder):
    """A replayed episode shows what one shows that is played to be looked at.

    With the steps in which agents wait, which an episode leaves out.
    """
    for again, recording in zip(source.replays, source.recordings, strict=False):
        assert (again.agents, again.end) == (recording.agents, recording.end)
        for field in ("states", "rewards", "active", "observations"):
            both = getattr(recording, field), getattr(again, field)
            jax.tree.map(np.testing.assert_array_equal, *both)
        for agent, steps in recording.steps.items():
            decisions = recording.decisions[agent], again.decisions[agent]
            for field in ("action", "value", "probabilities"):
                parts = [getattr(each, field) for each in decisions]
                if field == "probabilities" and parts[0] is None:
                    assert parts[1] is None
                    continue
                shown = [part[steps.active] for part in parts]
                np.testing.assert_allclose(*shown, rtol=1e-5, atol=1e-6)
            assert again.facts[agent].module_id == recording.facts[agent].module_id


def objects(source, folder):
    """A recording is an episode as well."""
    for recordings in filter(None, (source.replays, source.recordings)):
        for recording, episode in zip(recordings, source.episodes, strict=True):
            again = agents_of(recording.episode)
            for agent, (data, times) in agents_of(episode).items():
                np.testing.assert_array_equal(again[agent][1], times)
                assert_equal_agents(again[agent][0], data)


def drawing(source, folder):
    episode, file = source.episodes[1], folder / "episode.png"
    if source.is_outside:
        with pytest.raises(UsageError, match="give it to jaxrl"):
            jaxrl.render(episode, file)
        return
    replay = source.replays[1]
    if not has_pictures(replay.env):
        with pytest.raises(UsageError, match="has no render"):
            jaxrl.render(replay, file)
        return
    for shown in (episode, replay) if source.env is None else (replay,):
        written, recording = jaxrl.render(shown, file)
        assert written.read_bytes().startswith(b"\x89PNG")
        np.testing.assert_array_equal(recording.rewards, replay.rewards)
    replay.save(folder / "saved.png")
    assert (folder / "saved.png").read_bytes() == file.read_bytes()
    with pytest.raises(UsageError, match="must end in one of"):
        replay.save(folder / "episode.txt")


def paging(source, folder):
    """The page of stored episodes is that of the policies which play them."""
    if source.is_outside:
        with pytest.raises(UsageError, match="give it to jaxrl"):
            jaxrl.replay(source.episodes)
    else:
        shown = tracks_of(source.episodes if source.env is None else source.replays)
        for episode, track in zip(source.episodes, shown, strict=True):
            assert track["steps"] == len(episode)
            assert sum(track["returns"]) == pytest.approx(return_of(episode), rel=1e-5)
        (again,) = tracks_of(source.replays[-1:])  # which is not played once more
        np.testing.assert_array_equal(again["rewards"], shown[-1]["rewards"])
    if not source.recordings:
        return
    played = tracks_of(source.recordings)
    for track in played:
        rewards = np.broadcast_to(track["rewards"], (track["steps"], len(track["returns"])))
        np.testing.assert_allclose(rewards.sum(axis=0), track["returns"], rtol=1e-5)
        totals = np.broadcast_to(track["totals"], track["steps"])
        np.testing.assert_allclose(totals, rewards.sum(axis=1), atol=1e-6)
    means = np.mean([track["returns"] for track in played], axis=0)
    expected = list(source.reported["agent_episode_returns_mean"].values())
    np.testing.assert_allclose(means, expected, rtol=1e-6)
    is_always_active = all(recording.active.all() for recording in source.recordings)
    for track, expected in zip([] if source.is_outside else shown, played, strict=False):
        for exact in ("drawing", "end"):
            jax.tree.map(np.testing.assert_array_equal, track.pop(exact), expected.pop(exact))
        for decisions in (*track["decisions"], *expected["decisions"]):
            decisions.pop("spread", None)  # which an episode does not have
        if not is_always_active:  # `looking` compares those of agents that act
            track["decisions"] = expected["decisions"] = []
        jax.tree.map(lambda *each: np.testing.assert_allclose(*each, atol=1e-2), track, expected)


def tracks_of(episodes):
    """What the page of these episodes shows of each."""
    return [each["tracks"][0] for each in data_of(jaxrl.replay(list(episodes)))["episodes"]]


def judging(source, folder):
    """What sampled an episode has ratios of 1, and the plain mean return."""
    policies, returns = policies_of(source.players), list(map(return_of, source.episodes))
    for episodes in filter(None, (source.episodes, [each.episode for each in source.replays])):
        judged = judge_episodes(episodes, policies)
        np.testing.assert_allclose(judged.log_ratios, 0, atol=1e-5)
        np.testing.assert_allclose(judged.rewards.sum(axis=1), returns, rtol=1e-6)
        assert len(judged.states) == judged.lengths.sum()
        assert np.isfinite(judged.states).all() and judged.taken.shape == judged.expected.shape
        weighted = jaxrl.estimate_return(episodes, policies)["weighted_importance_sampling"]
        assert weighted.estimate == pytest.approx(source.reported["episode_return_mean"], abs=1e-3)


SINKS = [statistics, writing, stepping_again, looking, objects, drawing, paging, judging]


def is_long(name, sink):
    """Cells that compile programs which no cell of the default run does."""
    if name in ("memory", "leavers", "masks", "continuous", "training"):
        return sink is not statistics or name == "training"
    return sink is judging and name != "files"


CELLS = [
    pytest.param(
        name,
        sink,
        id=f"{name}-{sink.__name__}",
        marks=[pytest.mark.long] if is_long(name, sink) else [],
    )
    for name in SOURCES
    for sink in SINKS
]


@pytest.mark.parametrize(("name", "sink"), CELLS)
def test_every_sink_takes_the_episodes_of_every_source(name, sink, source, request, tmp_path):
    sink(source(name, request), tmp_path)
