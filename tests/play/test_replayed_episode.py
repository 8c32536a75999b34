"""A replay reproduces an episode to the bit, or names the first step that differs."""

import copy
import json

import numpy as np
import pytest

import jaxrl
from jaxrl import replay_episode
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from tests.episodes.test_parquet import turns
from tests.messages import refused_by
from tests.play.test_sampling import ARENA, episodes_of
from tests.probes import Forbidden, Joining


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
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


test_what_cannot_be_replayed_is_refused_in_one_line = refused_by(
    lambda make, env: replay_episode(make(), env),
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


def test_other_numbers_of_the_environment_are_part_of_the_episode():
    (episode, *_) = episodes_of("arena")
    origin = episode.custom_data["origin"]
    assert origin["env"] == "arena" and origin["env_args"] == ARENA
    assert (origin["seed"], origin["episode"]) == (3, 1)
    assert origin["env_params"]["max_steps_in_episode"] == 30
    assert replay_episode(episode, jaxrl.make("arena", height=4, width=5)[0]).difference is None
