"""What an episode holds is its own: nobody who gave it, or was given it, changes it."""

import collections

import numpy as np
import pytest

from jaxrl.core.value_copies import owned
from jaxrl.episodes import EpisodeWriter, MultiAgentEpisode, SingleAgentEpisode, read_episodes
from jaxrl.episodes.values import leaves


class Reused:
    """A loop's arrays, each of which is filled again in every step, as `self.state += 1` does."""

    def __init__(self):
        self.obs = {"where": np.zeros(2, np.float32), "parts": (np.zeros(1, int), [np.zeros(1)])}
        self.action, self.reward = np.zeros(2, np.float32), np.zeros(())
        self.outputs = {"action_dist_inputs": np.zeros(3), "nested": {"mask": np.zeros(2, int)}}
        self.info = {"deep": [{"count": np.zeros((), int)}], "objects": np.array([np.zeros(1)] * 2)}

    def fill(self, number):
        for leaf in (*leaves(self.obs), *leaves(self.outputs), self.action, self.reward):
            array = leaf[0] if isinstance(leaf, list) else leaf
            array[...] = number
        self.info["deep"][0]["count"][...] = number
        self.info["objects"][...] = number


def holds(number, value):
    """Whether all numbers of a nested value are this one."""
    if isinstance(value, list | tuple):
        return all(holds(number, part) for part in value)
    if isinstance(value, dict):
        return all(holds(number, part) for part in value.values())
    return bool(np.all(value == number))


def is_in_order(episode, num_steps):
    for step in range(num_steps):
        outputs = {name: episode.get_extra_model_outputs(name, step) for name in EXTRA}
        kept = episode.get_actions(step), episode.get_rewards(step), outputs
        assert holds(step + 1, kept)
    for step in range(num_steps + 1):
        assert holds(step, (episode.get_observations(step), episode.get_infos(step)))
    return True


EXTRA = ("action_dist_inputs", "nested")


@pytest.mark.parametrize("becomes_arrays", [False, True])
def test_steps_hold_what_arrays_were_when_they_were_added(becomes_arrays):
    loop, episode = Reused(), SingleAgentEpisode()
    episode.add_env_reset(loop.obs, loop.info)
    for step in range(1, 4):
        loop.fill(step)
        reward = loop.reward if step < 3 else np.float64(3)
        told = {"extra_model_outputs": loop.outputs}
        episode.add_env_step(loop.obs, loop.action, reward, loop.info, **told)
    loop.fill(9)
    if becomes_arrays:
        episode.to_numpy()
    assert is_in_order(episode, 3)


def test_steps_of_several_agents_hold_what_arrays_were_and_so_do_actions_that_wait():
    loop, game = Reused(), MultiAgentEpisode()
    outputs = {"extra_model_outputs": {"b": loop.outputs}}
    game.add_env_reset(observations={"a": loop.obs, "b": loop.obs}, infos={"a": loop.info})
    loop.fill(1)
    game.add_env_step({"a": loop.obs}, {"a": loop.action, "b": loop.action}, {"a": 1}, **outputs)
    loop.fill(2)
    assert holds(1, game.get_actions(-1)["b"])
    game.add_env_step({"a": loop.obs, "b": loop.obs}, {"a": loop.action}, {"a": 2, "b": 1})
    loop.fill(3)
    b = game.agent_episodes["b"]
    assert holds(1, (b.get_actions(0), b.get_extra_model_outputs("nested", 0)))
    assert holds(2, (b.get_observations(-1), game.agent_episodes["a"].get_observations(-1)))
    assert holds(0, game.get_infos(0)["a"])


@pytest.mark.parametrize("as_list", [True, False])
def test_constructors_and_states_copy_what_they_are_given(as_list):
    rows = np.arange(3.0)[:, None] * np.ones((1, 2))
    given = {"observations": rows, "actions": rows[1:].copy(), "rewards": rows[1:, 0].copy()}
    if as_list:
        given = {name: list(values) for name, values in given.items()}
    infos = [{"at": row} for row in rows.copy()]
    outputs = {"nested": {"mask": rows[1:].copy()}} if not as_list else {"nested": list(rows[1:])}
    episode = SingleAgentEpisode(
        **given, infos=infos, extra_model_outputs=outputs, len_lookback_buffer=0
    )
    state = episode.get_state()
    again = SingleAgentEpisode.from_state(state)
    for values in (given, infos, outputs, state["observations"], state["infos"], state["actions"]):
        _overwrite(values)
    for each in (episode, again):
        assert [holds(step, each.get_observations(step)) for step in range(3)] == [True] * 3
        assert holds(1, each.get_actions(0)) and holds(2, each.get_infos(2))
        assert each.get_return() == 3.0


def _overwrite(values):
    for part in values.values() if isinstance(values, dict) else values:
        if isinstance(part, dict | list):
            _overwrite(part)
        elif isinstance(part, np.ndarray) and part.ndim:
            part[...] = 9


@pytest.mark.parametrize("is_numpy", [False, True])
def test_what_getters_give_can_be_changed_without_changing_the_episode(is_numpy):
    rows = [np.full(2, step, np.float32) for step in range(4)]
    episode = SingleAgentEpisode(
        observations=rows, actions=rows[1:], rewards=[1.0, 2.0, 3.0], len_lookback_buffer=0
    )
    if is_numpy:
        episode.to_numpy()
    game = MultiAgentEpisode(
        observations=[{"a": row} for row in rows],
        actions=[{"a": row} for row in rows[1:]],
        rewards=[{"a": 1.0}] * 3,
        len_lookback_buffer=0,
    )
    given = [
        *(episode.get_observations(1), episode.get_observations(), episode.observations[1:]),
        *(episode.get_actions([0, 2]), episode[1:3].get_observations()),
        *(game.get_observations(1)["a"], game.get_observations()["a"]),
        *(game.get_actions(return_list=True)[0]["a"], game[1:].get_observations(0)["a"]),
    ]
    for value in given:
        _overwrite([value])
    assert [holds(step, episode.get_observations(step)) for step in range(4)] == [True] * 4
    assert [holds(step, game.get_observations(step)) for step in range(4)] == [True] * 4
    assert holds(1, episode.get_actions(0)) and holds(1, game.get_actions(0))


def test_chunks_of_one_episode_share_nothing():
    rows = [np.full(1, step, np.float32) for step in range(4)]
    episode = SingleAgentEpisode(
        observations=rows, actions=[0, 1, 2], rewards=[1.0] * 3, len_lookback_buffer=0
    )
    chunks = episode[:2], episode[1:], episode.cut(len_lookback_buffer=2)
    for column in (chunks[0].observations, chunks[1].observations, chunks[2].observations):
        _overwrite(column.data)
    assert [holds(step, episode.get_observations(step)) for step in range(4)] == [True] * 4


def test_an_episode_is_written_as_it_was_when_it_was_given(tmp_path):
    pytest.importorskip("pyarrow")
    episode = SingleAgentEpisode(
        observations=np.arange(3.0), actions=np.arange(2), rewards=np.ones(2), terminated=True
    )
    episode.set_lookback(0)
    with EpisodeWriter(tmp_path) as writer:
        writer.write(episode)
        episode.set_observations(new_data=np.full(3, 9.0))
        episode.set_rewards(new_data=[5.0, 5.0])
    (read,) = read_episodes(tmp_path)
    assert read.get_observations().tolist() == [0, 1, 2] and read.get_return() == 2.0


def test_temporary_data_hold_the_frame_that_a_renderer_fills_again():
    frame, episode = np.zeros(1), SingleAgentEpisode(observations=[0])
    for step in range(3):
        frame[:] = step
        episode.add_temporary_timestep_data("frames", frame)
    assert [int(each[0]) for each in episode.get_temporary_timestep_data("frames")] == [0, 1, 2]


def test_a_copy_keeps_types_and_leaves_what_cannot_change():
    point = collections.namedtuple("Point", "x y")
    text, other = "text", object()
    array = np.ma.masked_array([1.0, 2.0], [False, True])
    copied = owned({"point": point(np.zeros(1), text), "other": other, "set": {1}, "masked": array})
    assert isinstance(copied["point"], point) and copied["point"].y is text
    assert copied["other"] is other and copied["set"] == {1}
    assert copied["masked"].mask.tolist() == [False, True] and copied["masked"] is not array
