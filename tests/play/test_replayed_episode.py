"""A replay reproduces an episode to the bit, or names the first step that differs."""

import copy
import json

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import UsageError, replay_episode
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from tests.episodes.test_parquet import turns
from tests.play.test_recording import recorded_alone
from tests.play.test_sampling import ARENA, assert_equal_agents, episodes_of, players
from tests.probes import Forbidden, Joining, Leavers


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "env"),
    [("arena", None), ("memory", "cartpole"), ("leavers", Leavers()), ("joining", Joining())],
)
def test_sampled_episodes_are_reproduced_to_the_bit(name, env):
    for episode in episodes_of(name):
        assert replay_episode(episode, env).difference is None


def test_a_replay_gives_the_states_of_the_environment():
    (episode, *_) = episodes_of("arena")
    states = replay_episode(episode).states
    np.testing.assert_array_equal(states.time, np.arange(31))


@pytest.mark.parametrize(("name", "env"), [("arena", None), ("joining", Joining())])
def test_a_replayed_episode_shows_what_shows_an_episode_that_is_played_to_be_looked_at(name, env):
    """With the steps in which agents wait, which an episode leaves out."""
    recording = recorded_alone(players(name), seed=3, first=1, explore=True)
    again = replay_episode(episodes_of(name)[0], env)
    assert (again.agents, again.end) == (recording.agents, recording.end)
    for field in ("states", "rewards", "active", "observations"):
        both = getattr(recording, field), getattr(again, field)
        jax.tree.map(np.testing.assert_array_equal, *both)
    for agent, steps in recording.steps.items():
        decisions = recording.decisions[agent], again.decisions[agent]
        for field in ("action", "value", "probabilities"):
            shown = [getattr(each, field)[steps.active] for each in decisions]
            np.testing.assert_allclose(*shown, rtol=1e-5, atol=1e-6)
        assert again.facts[agent].module_id == recording.facts[agent].module_id


def test_a_recording_is_an_episode_as_well():
    recorded = recorded_alone(players("joining"), seed=3, first=1, explore=True).episode
    replayed = replay_episode(episodes_of("joining")[0], Joining()).episode
    for agent, data in episodes_of("joining")[0].agent_episodes.items():
        for episode in (recorded, replayed):
            assert episode.observation_times(agent) == recorded.observation_times(agent)
            assert_equal_agents(episode.agent_episodes[agent], data)


def test_a_replay_draws_the_episode(tmp_path):
    (episode, *_) = episodes_of("arena")
    replayed = replay_episode(episode)
    np.testing.assert_array_equal(
        replayed.rewards[:, 1], episode.get_rewards(agent_ids="agent2")["agent2"]
    )
    assert replayed.end == "truncated"
    replayed.save(tmp_path / "episode.png")
    assert (tmp_path / "episode.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="must end in one of"):
        replayed.save(tmp_path / "episode.txt")


def test_an_episode_that_went_through_json_is_reproduced():
    """All that a replay needs are plain numbers and names, and lists do as well as arrays."""
    (episode, *_) = episodes_of("arena")
    state = episode.get_state()
    state["custom_data"] = json.loads(json.dumps(state["custom_data"]))
    for agents in state["agent_episodes"].values():
        for name in ("observations", "actions", "rewards"):
            agents[name] = list(agents[name])
        agents["extra_model_outputs"] = {}
    assert replay_episode(MultiAgentEpisode.from_state(state)).difference is None


def part_of(name, steps):
    (episode, *_) = episodes_of(name)
    part = episode[steps]
    part.custom_data = episode.custom_data
    return part


def test_the_beginning_of_an_episode_is_reproduced_and_its_end_is_left_open():
    assert replay_episode(part_of("arena", slice(12))).difference is None
    assert replay_episode(part_of("joining", slice(5)), Joining()).difference is None


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"set_rewards": 7.5}, (9, "agent2", "reward", 7.5)),
        ({"set_observations": np.array([3, 3])}, (9, "agent2", "observation", None)),
    ],
)
def test_the_first_step_that_differs_is_named(change, difference):
    episode = copy.deepcopy(episodes_of("arena")[0])
    ((method, value),) = change.items()
    for step in (20, 9):
        getattr(episode, method)(new_data={"agent2": value}, at_indices=step)
    found = replay_episode(episode).difference
    step, agent, field, recorded = difference
    assert (found.step, found.agent, found.field) == (step, agent, field)
    assert recorded is None or found.recorded == recorded
    assert str(found).startswith(f"step 9, agent 'agent2': {field} is ")
    assert "\n" not in str(found)


def test_another_action_leads_elsewhere_from_its_step_on():
    episode = copy.deepcopy(episodes_of("memory")[0])
    episode.set_actions(new_data=1 - episode.get_actions(4), at_indices=4)
    found = replay_episode(episode, "cartpole").difference
    assert (found.step, found.agent, found.field) == (5, "default_agent", "observation")


def test_an_end_that_differs_is_named():
    state = episodes_of("arena")[0].get_state()
    for agents in state["agent_episodes"].values():
        agents |= {"terminated": True, "truncated": False}
    found = replay_episode(MultiAgentEpisode.from_state(state)).difference
    assert (found.step, found.field, found.recorded) == (29, "terminated", True)


def waiting():
    """An episode that was cut while a player waits for the other one's move."""
    episode = turns()[:1]
    episode.custom_data = episodes_of("arena")[0].custom_data
    return episode


@pytest.mark.parametrize(
    ("make", "env", "message"),
    [
        (lambda: SingleAgentEpisode("own"), None, "episode own does not say where it was played"),
        (lambda: [1, 2], None, r"replay_episode takes an episode of jaxrl.episodes, not \[1, 2\]"),
        (lambda: part_of("arena", slice(3, 9)), None, "is a chunk that does not begin with its re"),
        (waiting, None, "an action of agent 'white' waits for its outcome"),
        (lambda: episodes_of("masks")[0], None, "was played in an environment object: give it"),
        (lambda: episodes_of("arena")[0], "arenas", "unknown environment 'arenas'; did you mean"),
        (lambda: episodes_of("arena")[0], Joining(), "unknown agent 'agent1'"),
        (lambda: episodes_of("memory")[0], Forbidden(), "does not fit"),
        (lambda: episodes_of("memory")[0], 5, "env must be a name, or an object"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_one_line(make, env, message):
    with pytest.raises(UsageError, match=message) as error:
        replay_episode(make(), env)
    assert "\n" not in str(error.value)


def test_other_numbers_of_the_environment_are_part_of_the_episode():
    (episode, *_) = episodes_of("arena")
    origin = episode.custom_data["origin"]
    assert origin["env"] == "arena" and origin["env_args"] == ARENA
    assert (origin["seed"], origin["episode"]) == (3, 1)
    assert origin["env_params"]["max_steps_in_episode"] == 30
    assert replay_episode(episode, jaxrl.make("arena", height=4, width=5)[0]).difference is None
