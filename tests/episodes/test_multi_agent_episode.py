"""Episodes of several agents: what RLlib's own class answers in two ways, and what is refused."""

import functools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from jaxrl import episodes
from jaxrl.core import spaces
from jaxrl.core.errors import UsageError
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from tests.episodes.episode_programs import Player
from tests.episodes.program_drawing import AGENTS, KINDS, MultiDrawing
from tests.messages import refused_by

HERE = SimpleNamespace(
    spaces=spaces, **{name: getattr(episodes, name) for name in episodes.__all__}
)


def turns():
    """A game of turns: a acts at 0 and 2, b at 1 and 3; who waits is rewarded too."""
    episode = MultiAgentEpisode("id")
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"b": 1}, {"a": 10}, {"a": 0.5})
    episode.add_env_step({"a": 2}, {"b": 11}, {"a": 1.0, "b": 0.25})
    episode.add_env_step({"b": 3}, {"a": 12}, {"b": 2.0})
    episode.add_env_step({}, {"b": 13}, {"b": -1.0, "a": 4.0})
    return episode


# A game of turns by hand


def test_a_reward_belongs_to_the_last_action_until_the_next_observation():
    episode = turns()
    assert episode.agent_episodes["a"].rewards.data == [1.5]
    assert episode.agent_episodes["b"].rewards.data == [2.25]
    assert episode.get_return() == 3.75
    # And what waits: 4 for a's second action, -1 for b's.
    assert episode.get_return(include_hanging_rewards=True) == 6.75
    assert episode.get_rewards(return_list=True) == [{"a": 1.5}, {"b": 2.25}, {"a": 4}, {"b": -1}]


def test_actions_are_at_the_environment_step_of_the_observation_that_they_answer():
    episode = turns()
    assert episode.get_actions() == {"a": [10, 12], "b": [11, 13]}
    assert episode.get_actions(-1) == {"b": 13}
    assert episode.get_actions([0, 1], return_list=True) == [{"a": 10}, {"b": 11}]
    assert episode.get_observations(-2) == {"b": 3}
    assert episode.get_observations(-1) == {}
    assert (episode.get_agents_to_act(), episode.get_agents_that_stepped()) == (set(), set())
    assert (episode.env_steps(), episode.agent_steps()) == (4, 2)


def test_each_agents_own_steps_are_found_by_those_of_the_environment():
    steps = turns().env_t_to_agent_t
    assert steps == {"a": (0, "S", 1, "S", "S"), "b": ("S", 0, "S", 1, "S")}
    assert turns()[2:].env_t_to_agent_t == {"a": (1, "S", "S"), "b": ("S", 1, "S")}
    with pytest.raises(TypeError, match="mappingproxy"):
        steps["c"] = ()


def test_fill_stands_where_an_agent_has_nothing():
    episode = turns()
    expected = {"a": [10, -1, 12, -1, -1], "b": [-1, 11, -1, 13, -1]}
    assert episode.get_actions(slice(0, 5), fill=-1) == expected
    assert episode.get_observations(0, fill=-1) == {"a": 0, "b": -1}


def test_by_agent_steps_the_waiting_action_is_the_last_one_for_all_kinds_of_indices():
    episode = turns()
    for indices in (None, slice(None), [0, 1]):
        assert episode.get_actions(indices, "a", env_steps=False) == {"a": [10, 12]}
    assert episode.get_actions(-1, env_steps=False) == {"a": 12, "b": 13}
    assert episode.get_observations(-1, env_steps=False) == {"a": 2, "b": 3}


def test_the_end_of_the_world_reaches_an_agent_that_waits_and_repeats_its_last_observation():
    episode = turns()
    episode.add_env_step({}, {}, {"a": 1.0}, terminateds={"__all__": True})
    assert episode.agent_episodes["a"].observations.data == [0, 2, 2]
    assert episode.agent_episodes["a"].rewards.data == [1.5, 5.0]
    assert episode.get_observations(-1) == {"a": 2, "b": 3}
    assert episode.get_terminateds() == {"a": True, "b": True, "__all__": True}


# What RLlib answers in two ways


def test_cutting_without_a_lookback_keeps_the_action_that_waits():
    episode = turns()
    chunk = episode.cut()
    chunk.add_env_step({"a": 4, "b": 5}, {}, {"a": 1.0, "b": 1.0})
    assert chunk.agent_episodes["a"].actions.get() == [12]
    assert chunk.agent_episodes["a"].rewards.get() == [5.0]
    assert len(chunk) == 1 and chunk.agent_steps() == 2
    assert episode.get_return() + chunk.get_return() == 3.75 + 5.0 + 0.0


def test_an_agent_that_joins_after_a_cut_is_where_it_joined():
    chunk = turns().cut()
    chunk.add_env_step({"a": 4, "b": 5, "c": 6}, {}, {"a": 0.0, "b": 0.0})
    assert chunk.get_observations(0, "c", fill=-1) == {"c": -1}
    assert chunk.get_observations(1, "c") == {"c": 6}


def test_truncation_of_all_is_said_of_all_and_of_the_last_agent_that_leaves():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 0.0}, truncateds={"a": True})
    assert episode.get_truncateds() == {"a": True, "__all__": True}
    assert episode.get_terminateds() == {"a": False, "__all__": False}


def test_an_agent_that_joins_when_the_last_one_leaves_keeps_the_episode_going():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0}, {"a": 0.0}, terminateds={"a": True})
    assert not episode.is_done
    assert episode.get_agents_to_act() == {"b"}


def test_rewards_before_the_first_observation_are_in_no_step_and_not_lost():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0}, {"a": 1.0, "b": 2.0})
    episode.add_env_step({"b": 2}, {"b": 0, "a": 0}, {"b": 4.0}, terminateds={"b": True})
    assert episode.agent_episodes["b"].get_return() == 4
    assert episode.get_return() == 5
    assert episode.get_return(include_hanging_rewards=True) == 7


def test_an_agent_may_think_for_several_steps_and_is_rewarded_meanwhile():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"b": 1}, {"b": 0}, {"a": 1.0, "b": 0.0})
    episode = episode.cut()
    episode.add_env_step({"a": 1, "b": 2}, {"a": 5, "b": 0}, {"a": 2.0, "b": 0.0})
    assert episode.agent_episodes["a"].rewards.get() == [3.0]
    assert episode.get_actions(-2) == {"a": 5, "b": 0}


def test_outputs_of_models_are_given_by_name_for_slices_too():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    outputs = {"a": {"logp": -1.0, "value": 2.0}}
    episode.add_env_step({}, {"a": 0, "b": 0}, {}, extra_model_outputs=outputs)
    assert episode.get_extra_model_outputs(indices=slice(0, 1)) == {
        "a": {"logp": [-1.0], "value": [2.0]}
    }
    assert episode.get_extra_model_outputs("logp", -1) == {"a": -1.0}
    assert episode.get_extra_model_outputs(indices=[0], return_list=True) == [outputs]


def test_outputs_of_an_action_that_waits_follow_those_of_the_lookback():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0})
    rewards = {"a": 0.0}
    episode.add_env_step({"a": 1}, {"a": 0}, rewards, extra_model_outputs={"a": {"logp": -1.0}})
    episode.add_env_step({}, {"a": 0}, rewards, extra_model_outputs={"a": {"logp": -2.0}})
    chunk = episode.cut(2)
    found = chunk.get_extra_model_outputs("logp", slice(-2, 0), neg_index_as_lookback=True)
    assert found == {"a": [-1.0, -2.0]}


def test_slices_keep_infos_and_who_has_ended_how():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0}, infos={"a": {"x": 1}})
    step = {"actions": {"a": 0, "b": 0}, "rewards": {"a": 0.0, "b": 0.0}}
    episode.add_env_step({"a": 1, "b": 1}, **step, truncateds={"b": True})
    episode.add_env_step({"a": 2}, {"a": 0}, {"a": 0.0}, terminateds={"a": True})
    part = episode[:1]
    assert part.get_infos(0) == {"a": {"x": 1}, "b": {}}
    expected = ({"a": False, "b": True, "__all__": False}, False)
    assert (part.get_truncateds(), part.is_done) == expected
    assert episode[1:].is_done


def test_a_step_over_the_edge_of_a_slice_waits_there_with_all_its_reward():
    episode = turns()
    part = episode[:1]
    assert part.get_actions() == {"a": [10]}
    assert len(part.agent_episodes["a"]) == 0
    assert part.get_return(include_hanging_rewards=True) == 1.5


# Properties, in worlds with late joiners, early leavers and agents that wait


def drawn_world(seed, steps):
    """A program of a reset and some steps, as RLlib's episodes are tested with."""
    generator = random.Random(seed)
    kinds = {agent: [generator.choice(KINDS), generator.choice(KINDS)] for agent in AGENTS}
    drawing = MultiDrawing(generator, {"kinds": kinds, "spaces": True, "calls": []})
    drawing.add("multi", steps=None)
    drawing.add("reset_all", observations=drawing.first())
    for _ in range(steps):
        if not drawing.is_over:
            drawing.step_all()
    return drawing.program


def test_a_sample_batch_is_by_agent_of_those_that_have_a_step():
    episode = MultiAgentEpisode("id")
    episode.add_env_reset(observations={"a": 1, "b": 2})
    episode.add_env_step({"a": 3}, {"a": 0}, {"a": 1.0})
    batches = episode.get_sample_batch()
    assert list(batches) == ["a"] and batches["a"]["new_obs"].tolist() == [3]


def played(program, cut_after=()):
    """The episode of a program; cut after some of its calls, and joined in the end."""
    player = Player(program, HERE)
    for number, (name, arguments) in enumerate(program["calls"]):
        getattr(player, name)(**arguments)
        if number in cut_after and not player.episode.is_done:
            player.cut(number % 3)
    while player.former:
        player.join()
    return player.episode


def state_of(episode):
    """What an episode holds, as text; but for the agents' random ids and the times."""
    state = episode.get_state()
    for part in (state, *state["agent_episodes"].values()):
        part["duration_s"] = 0.0
    for part in state["agent_episodes"].values():
        part["id_"] = part["agent_id"]
    del state["agent_to_module_mapping_fn"]
    agents = {agent: state["agent_episodes"][agent] for agent in sorted(state["agent_episodes"])}
    timelines = {agent: state["timelines"][agent] for agent in agents}
    return str({**state, "agent_episodes": agents, "timelines": timelines})


@pytest.mark.parametrize("seed", range(16))
def test_cutting_and_joining_anywhere_gives_the_episode_back(seed):
    program = drawn_world(seed, steps=8)
    whole = state_of(played(program))
    for number in range(1, len(program["calls"])):
        assert state_of(played(program, cut_after={number})) == whole
    assert state_of(played(program, cut_after=range(1, 20, 2))) == whole


@pytest.mark.parametrize("seed", range(16))
def test_slicing_and_joining_anywhere_gives_the_episode_back(seed):
    episode = played(drawn_world(seed, steps=8))
    whole = state_of(episode)
    for k in range(len(episode)):
        for lookback in (0, 2):
            first = episode[:k]
            first.concat_episode(episode.slice(slice(k, None), len_lookback_buffer=lookback))
            assert state_of(first) == whole
    assert state_of(episode) == whole


@pytest.mark.parametrize("seed", range(16))
def test_a_slice_and_its_lookback_tell_of_each_step_what_the_episode_tells(seed):
    episode = played(drawn_world(seed, steps=8))
    generator = random.Random(seed)
    for _ in range(10):
        start, stop = sorted(generator.randint(0, len(episode)) for _ in range(2))
        part = episode.slice(slice(start, stop), len_lookback_buffer=2)
        for step in range(max(start - 2, 0), stop):
            for what in ("observations", "infos", "actions", "rewards", "extra_model_outputs"):
                whole = getattr(episode, f"get_{what}")(indices=step)
                there = {agent: whole[agent] for agent in whole if agent in part.agent_episodes}
                found = getattr(part, f"get_{what}")(
                    indices=step - start, neg_index_as_lookback=True
                )
                assert str(found) == str(there)
                if what in ("actions", "rewards", "extra_model_outputs"):
                    assert set(there) == set(whole)  # nobody who acted there is missing


@pytest.mark.parametrize("seed", range(16))
def test_no_reward_is_lost_or_counted_twice(seed):
    program = drawn_world(seed, steps=12)
    steps = [arguments for name, arguments in program["calls"] if name == "step_all"]
    paid = sum(sum(step["rewards"].values()) for step in steps)
    for cut_after in ((), range(2, 20, 3)):
        episode = played(program, cut_after)
        assert episode.get_return(include_hanging_rewards=True) == pytest.approx(paid)


@pytest.mark.parametrize("seed", range(10))
def test_states_and_arrays_tell_the_same_as_the_episode(seed):
    program = drawn_world(seed, steps=8)
    episode = played(program)
    again = MultiAgentEpisode.from_state(episode.get_state())
    assert state_of(again) == state_of(episode)
    rewards = episode.get_rewards()
    arrays = again.to_numpy().get_rewards()
    assert again.is_numpy and list(arrays) == list(rewards)
    for agent, values in arrays.items():
        np.testing.assert_array_equal(values, rewards[agent])
    assert len(again[:2]) == len(episode[:2]) and again[:2].is_numpy


def test_modules_are_asked_for_once_and_kept_by_chunks():
    asked = []

    def mapping(agent, episode):
        asked.append(agent)
        return f"module of {agent}"

    episode = MultiAgentEpisode(agent_to_module_mapping_fn=mapping, agent_module_ids={"b": "fixed"})
    assert (episode.module_for("a"), episode.module_for("b")) == ("module of a", "fixed")
    episode.add_env_reset(observations={"a": 0, "b": 0})
    assert episode.agent_episodes["b"].module_id == "fixed"
    assert episode.cut().module_for("a") == "module of a"
    assert asked == ["a"]
    assert MultiAgentEpisode().module_for("x") == "default_policy"


def test_print_shows_who_observed_when(capsys):
    turns().print()
    expected = ["env_t 0 1 2 3 4", "a     x . x . .", "b     . x . x ."]
    assert capsys.readouterr().out.splitlines() == expected


# Bad input: one line, and nothing is recorded


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"actions": {"a": 0}}, "'a' acts again before it has its next observation"),
        ({"actions": {"c": 0}}, "'c' acts before it has an observation"),
        ({"rewards": {"a": float("nan")}}, "a reward is one number, not nan"),
        ({"truncateds": {"a": True}}, "'a' is truncated without a last observation"),
        ({"truncateds": {"__all__": True}}, "is truncated without a last observation"),
        ({"actions": 3}, "actions must be a dict by agent, not 3"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused_and_changes_nothing(step, said):
    episode = turns()
    before = state_of(episode)
    with pytest.raises(UsageError, match=said):
        episode.add_env_step(**{"observations": {}, "actions": {}, "rewards": {}, **step})
    assert state_of(episode) == before


def test_observing_again_without_acting_is_refused():
    episode = MultiAgentEpisode("id")
    episode.add_env_reset(observations={"a": 0})
    with pytest.raises(UsageError, match="'a' has an observation again before it has acted"):
        episode.add_env_step({"a": 1}, {}, {})
    with pytest.raises(UsageError, match="'a' acted and observed, but has no reward"):
        episode.add_env_step({"a": 1}, {"a": 0}, {})


test_a_wrong_call_is_refused_in_one_line = refused_by(
    lambda call: call(turns()),
    [
        (lambda e: e.get_rewards(agent_ids="bb"), "unknown agent 'bb'"),
        (lambda e: e.get_rewards(9), "has no environment step 9: 4 are there, and 0 in the loo"),
        (lambda e: e.get_rewards(0, return_list=True), "return_list needs env_steps=True, and a"),
        (lambda e: e.get_rewards([0], env_steps=False, return_list=True), "return_list needs"),
        (lambda e: e.set_rewards(new_data={"z": [1.0]}), "unknown agent 'z'"),
        (lambda e: e.add_env_reset(observations={"a": 0}), "add_env_reset comes first, and once"),
        (lambda e: e.concat_episode(e[:1]), "ends at step 4, the other chunk starts at 0"),
        (lambda e: e.cut(-2), "len_lookback_buffer is 0 or more, not -2"),
        (lambda e: e[1:3:2], "sliced in steps of 1, not of 2"),
        (lambda e: MultiAgentEpisode.from_state({}), "not the state of a MultiAgentEpisode"),
        (
            lambda e: MultiAgentEpisode(observations=[{"a": 0}, {"a": 1}], actions=[{"a": 0}]),
            "2 observations, 1 actions, 0 rewards, 1 extra_model_outputs",
        ),
        (lambda e: MultiAgentEpisode(observation_space=3), "are a dict by agent, not 3"),
    ],
)


def test_an_agent_or_episode_that_has_ended_takes_no_more():
    episode = turns()
    step = {"observations": {"a": 4, "b": 5}, "actions": {}, "rewards": {"a": 0.0, "b": 0.0}}
    episode.add_env_step(**step, terminateds={"a": True})
    with pytest.raises(UsageError, match="'a' has ended"):
        episode.add_env_step({}, {"b": 0}, {"a": 0.0})
    episode.add_env_step({"b": 6}, {"b": 0}, {"b": 0.0}, terminateds={"b": True})
    assert episode.is_terminated
    for call in (lambda: episode.add_env_step({}, {}, {}), episode.cut):
        with pytest.raises(UsageError, match="has ended"):
            call()


def test_a_list_by_environment_step_is_empty_where_there_is_no_step():
    game = MultiAgentEpisode(
        observations=[{"a": 0, "b": 1}, {"a": 2}, {"b": 3}],
        actions=[{"a": 0, "b": 0}, {"a": 1}],
        rewards=[{"a": 1.0, "b": 1.0}, {"a": 1.0}],
        len_lookback_buffer=0,
    )
    get = functools.partial(game.get_observations, return_list=True)
    assert get([-3, -4]) == [{"a": 0, "b": 1}, {}]
    assert get([2, 3]) == [{"b": 3}, {}]
    assert get(slice(100, 102)) == [{}, {}] and get(slice(1, 4)) == [{"a": 2}, {"b": 3}, {}]
    assert get([-1, 0], neg_index_as_lookback=True) == [{}, {"a": 0, "b": 1}]
    assert get(slice(2, 1)) == []
    assert get([0, 7], fill=9) == [{"a": 0, "b": 1}, {"a": 9, "b": 9}]
    with pytest.raises(IndexError, match="has no environment step"):
        game.get_observations([-3, -4])


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda single, multi: single.add_env_reset(0), AssertionError),
        (lambda single, multi: single.concat_episode(SingleAgentEpisode()), AssertionError),
        (lambda single, multi: single.get_observations(9), IndexError),
        (lambda single, multi: single.get_extra_model_outputs("none"), KeyError),
        (lambda single, multi: multi.add_env_reset(observations={"a": 0}), AssertionError),
        (lambda single, multi: multi.add_env_step({"a": 1}, {}, {}), AssertionError),
        (lambda single, multi: multi.cut(-1), AssertionError),
        (lambda single, multi: multi.set_actions(new_data={"none": [0]}), KeyError),
    ],
)
def test_refusals_are_the_errors_that_code_for_rllib_catches(call, kind):
    single, multi = SingleAgentEpisode(observations=[0]), MultiAgentEpisode()
    multi.add_env_reset(observations={"a": 0})
    with pytest.raises(kind) as raised:
        call(single, multi)
    assert isinstance(raised.value, UsageError) and isinstance(raised.value, AssertionError)
    assert "\n" not in str(raised.value) and not str(raised.value).startswith('"')
