"""Episodes of one agent: what RLlib's own class answers in two ways, and what is refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jaxrl
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl.episodes import SingleAgentEpisode
from tests.messages import refused_by


def episode_of(steps, lookback=0, **arguments):
    """Observations 10, 11, ...; actions 0, 1, ...; rewards 0, 1, ... of a number of steps."""
    return SingleAgentEpisode(
        "id",
        observations=[10 + i for i in range(steps + 1)],
        actions=list(range(steps)),
        rewards=[float(i) for i in range(steps)],
        len_lookback_buffer=lookback,
        **arguments,
    )


# What RLlib answers in two ways


@pytest.mark.parametrize("is_numpy", [False, True])
def test_fill_stands_on_both_sides_of_an_episode(is_numpy):
    episode = episode_of(2)
    if is_numpy:
        episode.to_numpy()
    rewards = episode.get_rewards(slice(-2, 4), neg_index_as_lookback=True, fill=-1.0)
    assert list(rewards) == [-1, -1, 0, 1, -1, -1]


@pytest.mark.parametrize("is_numpy", [False, True])
def test_an_index_before_the_lookback_is_outside_and_does_not_count_from_the_end(is_numpy):
    episode = episode_of(5, lookback=2)
    if is_numpy:
        episode.to_numpy()
    assert episode.get_rewards(-2, neg_index_as_lookback=True) == 0
    with pytest.raises(IndexError, match="rewards have no index -3: 3 are there, and 2 in"):
        episode.get_rewards(-3, neg_index_as_lookback=True)


def test_a_slice_with_a_step_is_pythons():
    episode = episode_of(6)
    rewards = list(range(6))
    for bounds in [(None, None, 2), (1, 5, 3), (None, None, -1), (4, 1, -2), (-9, 9, 2)]:
        assert episode.rewards[slice(*bounds)] == rewards[slice(*bounds)]
    filled = episode.get_rewards(slice(-2, 8, 3), neg_index_as_lookback=True, fill=-1.0)
    assert filled == [-1, 1, 4, -1]


def test_an_empty_chunk_becomes_arrays_too_and_can_be_continued():
    chunk = episode_of(3).cut(len_lookback_buffer=2).to_numpy()
    assert chunk.is_numpy and len(chunk) == 0
    np.testing.assert_array_equal(
        chunk.get_rewards(slice(-2, 0), neg_index_as_lookback=True), [1, 2]
    )
    chunk.add_env_step(99, 7, 0.5)
    np.testing.assert_array_equal(chunk.get_actions(), [7])
    np.testing.assert_array_equal(chunk.observations.data, [11, 12, 13, 99])


def test_chunks_keep_whose_episode_they_are():
    episode = episode_of(3, agent_id="a", module_id="m", multi_agent_episode_id="world")
    for chunk in (episode.cut(), episode[1:2]):
        expected = ("a", "m", "world")
        assert (chunk.agent_id, chunk.module_id, chunk.multi_agent_episode_id) == expected


def test_rewriting_whole_numbers_by_fractions_keeps_the_fractions():
    episode = episode_of(3).to_numpy()
    episode.set_actions(new_data=0.5, at_indices=1)
    np.testing.assert_array_equal(episode.get_actions(), [0, 0.5, 2])


def test_a_chunk_shares_no_memory_with_its_episode():
    episode = episode_of(3).to_numpy()
    chunk = episode[1:3]
    chunk.set_rewards(new_data=np.array([8.0, 9.0]))
    np.testing.assert_array_equal(episode.get_rewards(), [0, 1, 2])


def test_one_hot_counts_from_the_start_of_a_discrete_space():
    gymnasium = pytest.importorskip("gymnasium")
    space = gymnasium.spaces.Discrete(3, start=5)
    episode = SingleAgentEpisode(observation_space=space)
    episode.add_env_reset(6)
    assert episode.get_observations(0, one_hot_discrete=True).tolist() == [0, 1, 0]


# Recording, cutting, joining


def test_cutting_and_joining_gives_the_episode_back():
    whole, chunk = episode_of(5, lookback=1), episode_of(5, lookback=1)
    parts = [chunk[:2], chunk[2:3], chunk[3:]]
    for part in parts[1:]:
        parts[0].concat_episode(part)
    left, right = parts[0].get_state(), whole.get_state()
    assert left == right


def test_durations_of_chunks_add_up(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 7.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    episode = SingleAgentEpisode("id")
    episode.add_env_reset(0)
    episode.add_env_step(1, 0, 0.0)
    chunk = episode.cut()
    chunk.add_env_step(2, 0, 0.0)
    chunk.add_env_step(3, 0, 0.0)
    assert (episode.get_duration_s(), chunk.get_duration_s()) == (1.0, 6.0)
    episode.concat_episode(chunk)
    assert episode.get_duration_s() == 7.0


def test_a_state_gives_an_equal_episode():
    episode = episode_of(4, lookback=1, extra_model_outputs={"logp": [0.0, 0.1, 0.2, 0.3]})
    episode.custom_data["seen"] = [1]
    state = episode.get_state()
    assert SingleAgentEpisode.from_state(state).get_state() == state
    episode.custom_data["seen"].append(2)
    assert state["custom_data"] == {"seen": [1]}


def test_a_sample_batch_has_the_steps_as_columns_without_the_lookback():
    episode = SingleAgentEpisode(
        "id",
        observations=[{"x": 5}, {"x": 6}, {"x": 7}, {"x": 8}],
        infos=[{}, {"a": 1}, {}, {}],
        actions=[0, 1, 0],
        rewards=[1.0, 2.0, 3.0],
        terminated=True,
        extra_model_outputs={"logp": [0.0, 0.1, 0.2]},
        t_started=11,
        len_lookback_buffer=1,
    )
    batch = episode.get_sample_batch()
    batch |= {"obs": batch["obs"]["x"], "new_obs": batch["new_obs"]["x"]}
    assert {name: list(column) for name, column in batch.items()} == {
        "eps_id": ["id", "id"],
        "t": [11, 12],
        "obs": [6, 7],
        "actions": [1, 0],
        "rewards": [2.0, 3.0],
        "new_obs": [7, 8],
        "terminateds": [False, True],
        "truncateds": [False, False],
        "infos": [{"a": 1}, {}],
        "logp": [0.1, 0.2],
    }


def test_temporary_data_end_with_to_numpy():
    episode = episode_of(1)
    episode.add_temporary_timestep_data("frames", 1)
    episode.add_temporary_timestep_data("frames", 2)
    assert episode.get_temporary_timestep_data("frames") == [1, 2]
    episode.to_numpy()
    with pytest.raises(UsageError, match="custom_data"):
        episode.add_temporary_timestep_data("frames", 3)
    with pytest.raises(UsageError, match="unknown temporary data 'frames'"):
        episode.get_temporary_timestep_data("frames")


def test_columns_can_be_walked_and_indexed():
    episode = episode_of(3, lookback=1)
    assert list(episode.rewards) == [1, 2]
    assert episode.observations[-1] == 13
    episode.rewards[0] = 7.0
    assert episode.get_return() == 9


# Bad input: one line, and nothing is recorded


SPACES = {
    "observation_space": Dict({"color": Discrete(3), "place": Box(-1.0, 1.0, (2,))}),
    "action_space": MultiDiscrete((2, 3)),
}
GOOD = {"color": 2, "place": [0.0, 5.0]}  # outside of the bounds, which is allowed


@pytest.mark.parametrize(
    ("observation", "action", "reward", "said"),
    [
        (GOOD, [1, 2], float("nan"), "a reward is one number, not nan"),
        (GOOD, [1, 2], [1.0], "a reward is one number"),
        (GOOD, [1, 3], 0.0, "a value of actions is not in its space"),
        (GOOD, [1.0, 2.0], 0.0, "a value of actions is not in its space"),
        (GOOD, [1], 0.0, r"a value of actions has shape \(1,\), its space \(2,\)"),
        (
            {"color": 3, "place": [0, 0]},
            [1, 2],
            0.0,
            r"observations\['color'\] is not in its space",
        ),
        ({"color": 2}, [1, 2], 0.0, "a value of observations does not fit its space"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_and_changes_nothing(observation, action, reward, said):
    episode = SingleAgentEpisode("id", **SPACES)
    episode.add_env_reset(GOOD)
    episode.add_env_step(GOOD, [1, 2], 1.0, extra_model_outputs={"logp": 0.0})
    before = episode.get_state()
    with pytest.raises(UsageError, match=said):
        episode.add_env_step(observation, action, reward, extra_model_outputs={"logp": 0.0})
    after = episode.get_state()
    assert {**after, "duration_s": 0} == {**before, "duration_s": 0}


@pytest.mark.parametrize(
    ("observation", "action", "logp", "said"),
    [
        ([0.0], 0, 0.0, r"observations have shape \[2\], not \[1\]"),
        ([0.0, 0.0], [1, 2], 0.0, r"actions have shape \[\], not \[2\]"),
        ([0.0, 0.0], 0, [0.0], r"extra_model_outputs\['logp'\] have shape \[\], not \[1\]"),
    ],
)
def test_a_step_that_does_not_fit_arrays_is_refused_and_changes_nothing(
    observation, action, logp, said
):
    episode = SingleAgentEpisode("id")
    episode.add_env_reset([0.0, 0.0])
    episode.add_env_step([1.0, 0.0], 1, 1.0, extra_model_outputs={"logp": 0.0})
    episode.to_numpy()
    with pytest.raises(UsageError, match=said):
        episode.add_env_step(observation, action, 1.0, extra_model_outputs={"logp": logp})
    assert (len(episode), len(episode.observations), len(episode.actions)) == (1, 2, 1)
    episode.validate()


def test_a_chunk_that_does_not_fit_is_refused_and_changes_nothing():
    first = {"observations": [0, 1, 2], "actions": [0, 1], "rewards": [1.0, 2.0]}
    second = {"observations": [2, 3], "actions": [[0, 1]], "rewards": [3.0], "t_started": 2}
    episode, later = (
        SingleAgentEpisode("id", len_lookback_buffer=0, **data) for data in (first, second)
    )
    episode.to_numpy()
    with pytest.raises(UsageError, match=r"actions have shape \[\], not \[2\]"):
        episode.concat_episode(later)
    assert (len(episode), len(episode.observations), len(episode.actions)) == (2, 3, 2)
    episode.validate()


test_a_wrong_call_is_refused_in_one_line = refused_by(
    lambda call: call(episode_of(3)),
    [
        (lambda e: e.add_env_reset(0), "has begun: add_env_reset comes first"),
        (lambda e: e.add_env_step(0, 0, 0.0, extra_model_outputs={"x": 1}), "outputs are"),
        (lambda e: e.get_rewards(4), "rewards have no index 4: 3 are there, and 0 in"),
        (lambda e: e.get_rewards("a"), "an index is an integer, a list of integers or a slice"),
        (lambda e: e.get_observations(0, one_hot_discrete=True), "needs the space of the observ"),
        (lambda e: e.get_extra_model_outputs("logp"), "unknown extra model output 'logp'"),
        (lambda e: e.set_rewards(new_data=[1.0, 2.0]), "2 new rewards for 3 steps"),
        (lambda e: e.set_rewards(new_data=1.0, at_indices=3), "rewards have no index 3"),
        (lambda e: e.set_rewards(new_data=float("nan"), at_indices=0), "one number, not nan"),
        (lambda e: e[::2], "an episode is sliced in steps of 1, not of 2"),
        (lambda e: e[1], "an episode takes slices"),
        (lambda e: e["a":], "the bounds of a slice are integers"),
        (lambda e: e.get_rewards(slice("a", None)), "an index is an integer, a list of"),
        (lambda e: e.get_rewards(1.5), "an index is an integer, a list of integers or a slice"),
        (lambda e: e.set_actions(new_data=3), "expected a list of values or arrays of them, got 3"),
        (lambda e: SingleAgentEpisode.from_state(None), "not the state of a SingleAgentEp"),
        (lambda e: e.cut(-1), "len_lookback_buffer is 0 or more, not -1"),
        (lambda e: e.concat_episode(e[:2]), "ends at step 3, the other chunk starts at 0"),
        (lambda e: e.concat_episode(SingleAgentEpisode("other")), "chunks of different episodes"),
        (lambda e: SingleAgentEpisode.from_state({"id_": "x"}), "not the state of a SingleAgentEp"),
    ],
)


def test_an_ended_episode_takes_no_more():
    episode = episode_of(2, terminated=True)
    for call in (
        lambda: episode.add_env_step(0, 0, 0.0),
        episode.cut,
        lambda: episode.concat_episode(episode_of(2, t_started=2)),
    ):
        with pytest.raises(UsageError, match="has ended"):
            call()


test_lists_that_do_not_fit_together_are_refused = refused_by(
    lambda lists: SingleAgentEpisode("id", **lists),
    [
        ({"observations": [0, 1], "actions": [0]}, "2 observations, 1 actions, 0 rewards"),
        ({"actions": [0], "rewards": [0.0]}, "0 observations, 1 actions, 1 rewards"),
        ({"observations": [0], "infos": [{}, {}]}, "1 observations and 2 infos"),
        ({"observations": [0], "extra_model_outputs": {"x": [1]}}, r"1 extra_model_outputs\['x'\]"),
        ({"observations": [0], "len_lookback_buffer": -1}, 'is "auto" or 0 or more, not -1'),
        ({"observations": np.zeros((2, 2)), "actions": [0], "rewards": np.array([np.nan])}, "NaN"),
        ({"observations": [[1.0], [1.0, 2.0]], "actions": np.zeros(1), "rewards": [0.0]}, "shapes"),
    ],
)


# Without JAX

WITHOUT_JAX = """
import sys, types
sys.modules["jax"] = None  # importing it fails
package = types.ModuleType("jaxrl")  # the folder, without what its __init__.py imports
package.__path__ = [sys.argv[1]]
sys.modules["jaxrl"] = package
from jaxrl.episodes import SingleAgentEpisode
episode = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[2.0], len_lookback_buffer=0)
print(episode.to_numpy().get_return())
"""


def test_episodes_work_where_jax_cannot_be_imported():
    folder = Path(jaxrl.__file__).parent
    command = [sys.executable, "-c", WITHOUT_JAX, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("2.0\n", 0), done.stderr
