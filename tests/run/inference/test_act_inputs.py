"""What a policy is given as it acts: the environment's own observation, with the mask in it."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.core.spaces import MultiDiscrete
from jaxrl.episodes import EpisodeWriter, SingleAgentEpisode
from jaxrl.run.inference.act_inputs import as_flags, read_mask

SMALL = {"num_envs": 2, "rollout_length": 8, "minibatch_size": 16, "fcnet_hiddens": (8,)}


class Forbidding(gymnasium.Env):
    """Forbids an action in each step, as RLlib's examples do: by a part of the observation."""

    action_space = spaces.Discrete(4)
    observation_space = spaces.Dict(
        {"observations": spaces.Box(-1, 1, (3,)), "action_mask": spaces.Box(0, 1, (4,), np.int8)}
    )

    def reset(self, seed=None, options=None):
        self.time = 0
        return self.observed(), {}

    def step(self, action):
        assert action != self.time % 4
        self.time += 1
        return self.observed(), 1.0, self.time == 9, False, {}

    def observed(self):
        mask = np.ones(4, np.int8)
        mask[self.time % 4] = 0
        return {"observations": np.full(3, self.time / 9, np.float32), "action_mask": mask}


@pytest.fixture(scope="module")
def policy():
    config = jaxrl.PPOConfig(env=Forbidding, num_epochs=1, total_env_steps=16, **SMALL)
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        trainer.fit()
        return trainer.get_policy()


@pytest.mark.long
def test_an_episode_is_played_with_the_observations_that_the_environment_gives(policy):
    env = Forbidding()
    obs, _ = env.reset()
    for _ in range(9):
        parts = obs["observations"], {"action_mask": obs["action_mask"]}
        for explore in (False, True):
            action = policy.act(obs, explore=explore)
            assert action != env.time % 4
        assert policy.act(obs) == policy.act(parts[0], **parts[1])
        assert policy.value(obs) == policy.value(parts[0])
        found = policy.distribution(obs).log_prob(np.int32(action))
        assert found == policy.distribution(parts[0], **parts[1]).log_prob(np.int32(action))
        obs, _, done, _, _ = env.step(int(action))
    assert done


def test_a_batch_of_observations_has_a_mask_for_each(policy):
    only = np.eye(4, dtype=np.int8)
    batch = {"observations": np.zeros((4, 3), np.float32), "action_mask": only}
    np.testing.assert_array_equal(policy.act(batch, explore=True), [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("obs", "told", "said"),
    [
        ({"action_mask": np.ones(4)}, {"action_mask": np.ones(4)}, "holds an action_mask already"),
        ({"action_mask": np.ones(3)}, {}, r"action_mask must be bool\[4\], .*, not \[3\]"),
        ({"action_mask": np.full(4, 2)}, {}, "action_mask must be True or False"),
        ({"action_mask": [[1], [1, 0]]}, {}, "action_mask must be"),
        ({"action_mask": np.ones(4), "more": 1}, {}, "takes observations"),
        ({}, {}, r"takes observations|left out"),
    ],
)
def test_masks_that_do_not_fit_are_refused_in_a_line(policy, obs, told, said):
    with pytest.raises(jaxrl.UsageError, match=said) as raised:
        policy.act({"observations": np.zeros(3, np.float32), **obs}, **told)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("mask", "row"),
    [
        ([1, 0, 1, 1, 0], [1, 0, 1, 1, 0]),
        ((np.array([1, 0]), np.array([1, 1, 0])), [1, 0, 1, 1, 0]),
        (np.array([True, False, True, True, False]), [1, 0, 1, 1, 0]),
    ],
)
def test_a_mask_is_in_a_row_or_an_array_for_each_integer(mask, row):
    space = MultiDiscrete((2, 3))
    np.testing.assert_array_equal(read_mask(space, mask, (), "p"), np.array(row, bool))


def recorded(num_steps=6):
    """An episode whose observations hold the masks, each with one action that is possible."""
    masks = np.eye(4, dtype=np.int8)[np.arange(num_steps + 1) % 4]
    observations = [
        {"observations": np.zeros(3, np.float32), "action_mask": mask} for mask in masks
    ]
    actions = [number % 4 for number in range(num_steps)]
    episode = SingleAgentEpisode(
        observations=observations, actions=actions, rewards=[1.0] * num_steps, terminated=True
    )
    episode.set_lookback(0)
    return episode


@pytest.mark.long
def test_cloning_reads_the_masks_that_recorded_observations_hold(tmp_path):
    """One action is possible in each step, so its log-probability is 0."""
    with EpisodeWriter(tmp_path) as writer:
        for _ in range(4):
            writer.write(recorded())
    config = jaxrl.BCConfig(
        env=Forbidding,
        input=str(tmp_path),
        fcnet_hiddens=(8,),
        minibatch_size=8,
        train_batch_size=8,
    )
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        result = trainer.train()
    assert result["learners"]["default_policy"]["policy_loss"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("seed", ["x", None, 1.5, True, -1, 2**40])
def test_a_seed_that_is_none_is_refused(policy, seed):
    with pytest.raises(jaxrl.UsageError, match="seed="):
        type(policy)(policy.policy_spec, policy.weights, seed=seed)


@pytest.mark.long
def test_a_learner_acts_and_learns_by_the_masks_in_its_observations():
    """Each step has one possible action, so whoever acts is certain of it."""
    config = jaxrl.PPOConfig(env=Forbidding, num_epochs=1, **SMALL)
    learner = jaxrl.Learner(config)
    for obs in recorded().observations.view():
        action, outputs = learner.act(obs)
        assert obs["action_mask"][int(action)] == 1
        assert outputs["action_logp"] == pytest.approx(0, abs=1e-6)
    learner.add([recorded(8), recorded(8)])
    result = learner.update()
    assert result["learners"]["default_policy"]["entropy"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"explore": "x"}, "explore='x' must be True or False"),
        ({"explroe": True}, "unknown argument 'explroe'.*did you mean 'explore'"),
    ],
)
def test_arguments_of_acting_that_are_none_are_named(policy, told, said):
    with pytest.raises(jaxrl.UsageError, match=said):
        policy.act(Forbidding().reset()[0], **told)


@pytest.mark.long
def test_arguments_of_loading_that_are_none_are_named(tmp_path):
    config = jaxrl.PPOConfig(env="cartpole", total_env_steps=16, **SMALL)
    with jaxrl.Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False) as trainer:
        trainer.fit()
    for given, said in (
        ({"trust": "yes"}, "trust='yes' must be True or False"),
        ({"seed": "x"}, "seed='x'"),
        ({"config": 3}, "config=3 must be a PPOConfig, or None"),
    ):
        with pytest.raises(jaxrl.UsageError, match=said):
            jaxrl.load_policy(tmp_path / "run", **given)


@pytest.mark.parametrize("name", ["masked", "agents", "observation_mask"])
def test_what_acting_does_not_take_is_refused_by_whatever_reads_it(policy, name):
    obs = {"observations": np.zeros(3, np.float32), "action_mask": np.ones(4)}
    for call in (policy.act, policy.distribution, policy.value):
        with pytest.raises(jaxrl.UsageError, match=f"unknown argument '{name}'"):
            call(obs, **{name: True})


@pytest.mark.parametrize(
    ("numbers", "flags"),
    [
        ([1, 0], [True, False]),
        ([[1.0], [0.0]], [[True], [False]]),
        (True, True),
        ([2, 0], None),
        ([0.5], None),
        ([np.nan], None),
        (["1"], None),
    ],
)
def test_flags_are_true_and_false_or_1_and_0(numbers, flags):
    found = as_flags(np.asarray(numbers))
    assert found is None if flags is None else np.array_equal(found, flags)
