"""Minari opens what is written, and what is read back is equal."""

import numpy as np
import pytest

from jaxrl.core import spaces
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode, minari_datasets
from jaxrl.episodes.minari_datasets import from_minari, to_minari
from tests.messages import refusal

minari = pytest.importorskip("minari", reason="the extra `offline`")
pytest.importorskip("h5py", reason="the extra `offline`")

PLANE, PUSH = spaces.Box(-1e3, np.inf, (2,)), spaces.Discrete(3)


@pytest.fixture(autouse=True)
def datasets_here(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def of_steps(count, id_="id", **changes):
    steps = np.arange(count)
    arguments = {
        "observations": np.arange(2 * count + 2, dtype=np.float32).reshape(-1, 2),
        "observation_space": PLANE,
        "actions": (steps % 3).astype(np.int32),
        "action_space": PUSH,
        "rewards": (steps / 2).astype(np.float32),
        "terminated": True,
        "extra_model_outputs": {"action_logp": -steps.astype(np.float32)},
        "len_lookback_buffer": 0,
    }
    return SingleAgentEpisode(id_, **{**arguments, **changes})


def assert_equal(read, written):
    for get in ("get_observations", "get_actions", "get_rewards"):
        assert_equal_values(getattr(read, get)(), getattr(written, get)())
    assert read.extra_model_outputs.keys() == written.extra_model_outputs.keys()
    for name in written.extra_model_outputs:
        outputs = [each.get_extra_model_outputs(name) for each in (read, written)]
        assert_equal_values(*outputs)
    ends = [(each.is_terminated, each.is_truncated) for each in (read, written)]
    assert ends[0] == ends[1]


def assert_equal_values(left, right):
    if isinstance(right, dict):
        assert left.keys() == right.keys()
        for name in right:
            assert_equal_values(left[name], right[name])
    else:
        np.testing.assert_array_equal(left, right)


def test_minari_opens_the_episodes_of_an_agent_and_they_are_read_back(monkeypatch):
    monkeypatch.setattr(minari_datasets, "EPISODES_AT_ONCE", 2)
    written = [of_steps(3), of_steps(5, terminated=False, truncated=True), of_steps(1)]
    assert to_minari(written, "plane/made-up-v0") == ["plane/made-up-v0"]
    dataset = minari.load_dataset("plane/made-up-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 9)
    second = list(dataset.iterate_episodes())[1]
    np.testing.assert_array_equal(second.rewards, [0, 0.5, 1, 1.5, 2])
    assert second.truncations.tolist() == [False] * 4 + [True] and not second.terminations.any()
    assert dataset.action_space.n == 3 and dataset.observation_space.shape == (2,)
    read = list(from_minari("plane/made-up-v0"))
    for episode, original in zip(read, written, strict=True):
        assert_equal(episode, original)


def test_nested_observations_and_actions_in_the_environments_units():
    space = spaces.Dict({"mask": spaces.Box(0, 1, (2,), "bool"), "x": spaces.MultiDiscrete((4, 4))})
    observations = {
        "mask": np.ones((3, 2), bool),
        "x": np.arange(6, dtype=np.int32).reshape(3, 2) % 4,
    }
    sampled = np.array([[-2.0], [0.5]], np.float32)
    episode = of_steps(
        2,
        observations=observations,
        observation_space=space,
        actions=sampled,
        action_space=spaces.Box(-1.0, 1.0, (1,)),
        extra_model_outputs={"actions_for_env": np.clip(sampled, -1, 1), "vf_preds": np.ones(2)},
    )
    to_minari([episode], "push-v0")
    (data,) = minari.load_dataset("push-v0").iterate_episodes()
    np.testing.assert_array_equal(data.actions, [[-1], [0.5]])
    (read,) = from_minari("push-v0")
    assert_equal(read, episode)


def test_each_policy_of_several_agents_has_a_dataset():
    game = MultiAgentEpisode(
        "game",
        observation_space={"a": PLANE, "b": PLANE},
        action_space={"a": PUSH, "b": PUSH},
        agent_module_ids={"a": "left", "b": "right"},
    )
    seen = lambda value: np.full(2, value, np.float32)
    game.add_env_reset(observations={"a": seen(0), "b": seen(10)})
    game.add_env_step({"a": seen(1), "b": seen(11)}, {"a": 0, "b": 1}, {"a": 1.0, "b": 2.0})
    game.add_env_step(
        {"a": seen(2)}, {"a": 2, "b": 0}, {"a": 1.0, "b": 4.0}, terminateds={"b": True}
    )
    names = to_minari([game, game], "games/turns-v3")
    assert names == ["games/turns-left-v3", "games/turns-right-v3"]
    first, _ = from_minari("games/turns-right-v3")
    assert first.get_return() == 6.0 and first.is_terminated
    assert minari.load_dataset("games/turns-left-v3").total_episodes == 2


@pytest.mark.parametrize(
    ("episode", "name", "message"),
    [
        (of_steps(2, observation_space=None), "plane-v0", "episode id has no spaces, which Minari"),
        (of_steps(2), "a name with blanks", "Minari dataset 'a name with blanks': "),
        (of_steps(2), "there-v0", "Minari dataset 'there-v0': "),
    ],
)
def test_what_minari_does_not_take_is_refused_in_one_line(episode, name, message):
    to_minari([of_steps(1)], "there-v0")
    with refusal(message):
        to_minari([episode], name)
    with refusal("Minari dataset 'nowhere-v0': "):
        from_minari("nowhere-v0")


def played_in(env, id_="id", **env_args):
    episode = of_steps(3, id_)
    episode.custom_data["origin"] = {"env": env, "env_args": env_args}
    return episode


def recovered(*episodes):
    (name,) = to_minari(episodes, "plane/made-up-v0")
    return minari.load_dataset(name).recover_environment()


def test_the_environment_of_gymnasium_is_recovered_with_its_arguments():
    env = recovered(played_in("gym:Acrobot-v1", max_episode_steps=7))
    assert env.spec.id == "Acrobot-v1" and env.spec.max_episode_steps == 7
    env.reset(seed=0)
    assert env.step(0)[0].shape == (6,)
    env.close()


@pytest.mark.long
def test_an_environment_of_ours_is_recovered_as_gymnasiums():
    env = recovered(played_in("cartpole", max_steps_in_episode=3))
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(3)]
    assert ends[-1] == (False, True)
    env.close()


def test_an_environment_by_its_class_is_recovered():
    env = recovered(played_in("gymnasium.envs.classic_control.acrobot:AcrobotEnv"))
    assert type(env.unwrapped).__name__ == "AcrobotEnv"
    env.close()


def test_without_a_name_there_is_no_specification():
    assert minari.load_dataset(to_minari([of_steps(2)], "plane/made-up-v0")[0]).env_spec is None
    several = to_minari([played_in(None)], "plane/object-v0")
    assert minari.load_dataset(several[0]).env_spec is None
