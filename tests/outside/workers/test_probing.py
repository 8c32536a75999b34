"""The first reset and step of a Python environment are those of play, and what is wrong is said."""

import functools
import warnings

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

import jaxrl
from jaxrl.core.types import DEFAULT_AGENT
from jaxrl.outside.workers.python_env import make_vector_env
from tests.algorithms.reinforce import ReinforceConfig

OBS = spaces.Box(-1, 1, (1,))


class Answers(gymnasium.Env):
    """Gives what it was made with."""

    observation_space, action_space = OBS, spaces.Discrete(2)

    def __init__(self, first=None, **answers):
        step = {"obs": np.zeros(1), "reward": 1.0, "terminated": False, "truncated": False}
        self.first = (np.zeros(1), {}) if first is None else first
        self.answer = tuple((step | {"info": {}} | answers).values())

    def reset(self, *, seed=None, options=None):
        return self.first

    def step(self, action):
        return self.answer


class Two(ParallelEnv):
    """Two agents, and what they are given."""

    metadata = {"name": "two"}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, **answers):
        self.answers = answers

    def observation_space(self, agent):
        return OBS

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return dict.fromkeys("ab", np.zeros(1)), {}

    def step(self, actions):
        step = {"obs": np.zeros(1), "reward": 1.0, "terminated": False, "truncated": False}
        step |= {"info": {}} | self.answers
        return tuple({"a": value, "b": value} for value in step.values())


def vector_of(**answers):
    """A `VectorEnv` of two, with one of its answers replaced."""

    class Vector(gymnasium.vector.SyncVectorEnv):
        def step(self, actions):
            results = dict(zip(NAMES, super().step(actions), strict=True))
            return tuple((results | answers).values())

    return Vector([Answers] * 2)


NAMES = ("obs", "reward", "terminated", "truncated", "info")


def first_step(env, num_envs=1):
    envs = make_vector_env(env, num_envs, num_workers=0)
    envs.reset(np.zeros(num_envs, np.uint32))
    envs.send(0, {agent: np.zeros(num_envs, int) for agent in envs.spec.agents})
    return envs.receive(0)


@pytest.mark.parametrize(
    "reward",
    [
        *(1, True, np.float64(1), np.float32(1), np.int8(1), np.array(1.0), np.array([1.0])),
        *([[1]], np.ones((1, 1), np.int64), jnp.float32(1), jnp.ones(1)),
    ],
)
def test_every_form_of_one_number_is_a_reward(reward):
    assert first_step(functools.partial(Answers, reward=reward)).reward.tolist() == [[1.0]]
    assert first_step(functools.partial(Two, reward=reward)).reward.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("flag", [True, np.True_, 1, np.array(True), np.array([True]), [1]])
def test_every_form_of_one_truth_is_a_flag(flag):
    step = first_step(functools.partial(Answers, terminated=flag))
    assert step.terminated[0, 0] and step.episode_done[0]
    step = first_step(functools.partial(Two, truncated=flag))
    assert step.truncated.tolist() == [[True, True]] and step.episode_done[0]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"reward": np.ones(3)}, r"the reward is an array of shape \(3,\), not a number"),
        ({"reward": None}, "the reward is None of type NoneType, not a number"),
        ({"reward": 1j}, "the reward is 1j of type complex, not a number"),
        ({"reward": "1"}, "the reward is '1' of type str, not a number"),
        ({"reward": float("nan")}, "the reward is nan"),
        ({"reward": 1e39}, r"the reward is 1e\+39, not a finite number of float32"),
        ({"obs": np.full(1, np.inf)}, "an observation holds infinity, or a number beyond float32"),
        ({"terminated": "no"}, "is 'no' of type str, not True or False"),
        ({"truncated": None}, "is None of type NoneType, not True or False"),
        ({"terminated": 0.5}, "is 0.5 of type float, not True or False"),
        ({"truncated": np.zeros(2, bool)}, r"is an array of shape \(2,\), not True or False"),
        ({"obs": np.zeros(2)}, r"an observation has shape \(2,\), not \(1,\)"),
        ({"obs": np.full(1, np.nan)}, "an observation holds NaN"),
        ({"info": None}, "info is None, not a dict"),
        ({"info": {"metrics": {"speed": "fast"}}}, "could not convert string to float"),
    ],
)
@pytest.mark.parametrize("kind", [Answers, Two])
def test_what_is_no_result_of_a_step_is_refused_at_the_start_in_one_line(kind, answer, said):
    with pytest.raises(jaxrl.UsageError, match=f"cannot be reset and stepped: .*{said}") as error:
        jaxrl.PPOConfig(env=functools.partial(kind, **answer)).setup()
    assert "in its first step with the action" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"reward": np.ones((2, 2))}, r"reward is an array of shape \(2, 2\)"),
        ({"reward": ["1", "2"]}, "reward is .* of type list"),
        ({"terminated": "no"}, "terminated is 'no' of type str"),
        ({"truncated": [0.5, 1]}, "truncated is"),
        ({"obs": np.zeros((2, 2))}, r"an observation has shape \(2, 2\)"),
        ({"info": None}, "info is None, not a dict"),
    ],
)
def test_a_vector_env_is_looked_at_alike(answer, said):
    with pytest.raises(jaxrl.UsageError, match=f"cannot be reset and stepped: .*{said}"):
        make_vector_env(lambda: vector_of(**answer), 2, num_workers=0)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (np.zeros(3), r"reset must give \(observation, info\), not an array of shape \(3,\)"),
        ((np.zeros(1),), r"reset must give \(observation, info\), not 1 values"),
        ((np.zeros(2), {}), r"an observation has shape \(2,\)"),
        ((np.zeros(1), None), "info is None, not a dict"),
    ],
)
def test_what_is_no_result_of_a_reset_is_refused_too(first, said):
    with pytest.raises(jaxrl.UsageError, match=f"cannot be reset and stepped: .*{said}"):
        jaxrl.PPOConfig(env=functools.partial(Answers, first)).setup()


class Strict(gymnasium.Env):
    """Raises at an impossible action; only one of eight is possible, which moves."""

    observation_space, action_space = OBS, spaces.Discrete(8, start=3)

    def reset(self, *, seed=None, options=None):
        self.possible = 7
        return np.zeros(1), self._info()

    def step(self, action):
        if action - 3 != self.possible:
            raise ValueError(f"illegal move {action}")
        self.possible -= 1
        return np.zeros(1), 1.0, self.possible < 5, False, self._info()

    def _info(self):
        mask = np.zeros(8, np.int8)
        mask[self.possible] = 1
        return {"action_mask": mask}


@pytest.mark.long
def test_an_environment_that_raises_at_an_impossible_action_starts_and_trains():
    sizes = {"num_envs": 2, "rollout_length": 9, "fcnet_hiddens": [4]}
    config = ReinforceConfig(env=Strict, total_env_steps=36, **sizes)
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:  # steps are timed, too
        result = trainer.fit()["env_runners"]
    assert result["episode_return_mean"] == 3.0 and result["num_faulty_episodes"] == 0


class Flaky(Answers):
    """The second step of every second episode fails; others end with it."""

    begun = 0

    def reset(self, *, seed=None, options=None):
        self.steps, Flaky.begun = 0, Flaky.begun + 1
        return self.first

    def step(self, action):
        self.steps += 1
        if self.steps == 2 and Flaky.begun % 2:
            raise RuntimeError("lost contact")
        return np.zeros(1), 1.0, self.steps == 2, False, {}


@pytest.mark.long
def test_steps_of_dropped_episodes_are_not_counted_and_training_takes_as_many_as_it_should():
    sizes = {"num_envs": 1, "rollout_length": 8, "fcnet_hiddens": [4]}
    config = ReinforceConfig(env=Flaky, total_env_steps=24, **sizes)
    with jaxrl.Trainer(config, run_dir=None, quiet=True, workers=0, sync=True) as trainer:
        results = []
        while not results or results[-1]["num_env_steps_sampled_lifetime"] < 24:
            results.append(trainer.train())
        assert trainer.fit() == results[-1]
    counted = [result["env_runners"] for result in results]
    assert len(results) == 6  # half of the steps are of dropped episodes
    assert [each["num_env_steps_sampled"] for each in counted] == [4] * 6
    assert [each["num_agent_steps_sampled"][DEFAULT_AGENT] for each in counted] == [4] * 6


@pytest.mark.long
def test_a_training_without_one_whole_step_does_not_end_as_if_it_had_trained():
    class Gone(Flaky):
        def step(self, action):
            if Flaky.begun > 2:  # a reset and a step before training, and the reset after
                raise RuntimeError("lost contact")
            return super().step(action)

    Flaky.begun = 0
    sizes = {"num_envs": 2, "rollout_length": 4, "fcnet_hiddens": [4]}
    config = ReinforceConfig(env=Gone, total_env_steps=8, **sizes)
    trainer = jaxrl.Trainer(config, run_dir=None, quiet=True, workers=0)
    with trainer, pytest.raises(RuntimeError, match="failed 21 times and finished no episode"):
        trainer.fit()


def test_a_number_beyond_float32_is_an_infinite_one():
    env = functools.partial(Answers, obs=np.full(1, 1e39))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "overflow encountered in cast")
        with pytest.raises(jaxrl.UsageError, match="holds infinity, or a number beyond float32"):
            jaxrl.PPOConfig(env=env).setup()
