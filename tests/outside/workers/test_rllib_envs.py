"""RLlib's `MultiAgentEnv` trains as it is written, in its present form and the former one."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.core.env_config import EnvConfig, by_keywords
from jaxrl.core.python_kinds import RLLIB, kind_of
from jaxrl.core.spaces import Box, Discrete, MultiDiscrete
from jaxrl.outside.workers.old_gym import OldGymEnv
from jaxrl.outside.workers.python_env import make_vector_env
from jaxrl.outside.workers.rllib_envs import RllibAsParallel
from tests.outside.workers.multi_agent_envs import Guests, MultiAgentArena, MultiAgentEnv, Relay

TINY = {
    **{"num_envs": 2, "rollout_length": 12, "minibatch_size": 24, "num_epochs": 1},
    **{"fcnet_hiddens": [4], "total_env_steps": 48},
}


def played(env, num_steps, **settings):
    """[OutsideSteps] of one copy, which always takes the first action."""
    envs = make_vector_env(env, 1, num_workers=0, **settings)
    first, steps = envs.reset(np.zeros(1, np.uint32)), []
    action_spaces = envs.spec.action_spaces
    for _ in range(num_steps):
        envs.send(0, {agent: np.zeros((1, *space.shape)) for agent, space in action_spaces.items()})
        step = envs.receive(0)
        there = [name for name in COPIED if getattr(step, name) is not None]
        steps.append(step._replace(**{name: getattr(step, name).copy() for name in there}))
    return envs.spec, first, steps


COPIED = ("reward", "terminated", "truncated", "active", "acting", "episode_done")


def trained(env, workers=0, **settings):
    config = jaxrl.PPOConfig(env=env, **TINY | settings)
    with jaxrl.Trainer(config, run_dir=None, quiet=True, workers=workers) as trainer:
        return trainer.fit()["env_runners"]


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_an_agent_acts_next_if_its_observation_was_given_and_is_paid_while_it_waits(ends):
    spec, first, steps = played(Relay, 6, env_args={"ends": ends})
    assert spec.waits and spec.agents == ("a", "b")
    assert spec.action_spaces == {"a": Discrete(2), "b": Box(-1, 1, (2,))}
    assert first.acting.tolist() == [[True, False]]
    assert [step.active[0].tolist() for step in steps] == [[True, False], [False, True]] * 3
    assert [step.acting[0].tolist() for step in steps[:5]] == [
        *([False, True], [True, False], [False, True], [True, False], [False, True])
    ]
    assert all(step.reward[0].tolist() == [1.0, -1.0] for step in steps)
    assert [step.episode_done[0] for step in steps] == [False] * 5 + [True]
    assert steps[-1].terminated[0].tolist() == [ends == "terminated"] * 2
    assert steps[-1].truncated[0].tolist() == [ends == "truncated"] * 2


def test_agents_come_and_go():
    spec, first, steps = played(Guests, 6)
    assert spec.agents == ("host", "guest1", "guest2")
    assert first.acting.tolist() == [[True, False, False]]
    assert [step.active[0].astype(int).tolist() for step in steps] == [
        *([1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 1], [1, 0, 0], [1, 0, 0])
    ]
    assert [step.terminated[0].astype(int).tolist() for step in steps] == [
        *([0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0])
    ]
    assert steps[-1].episode_done[0]


@pytest.mark.long
def test_a_tutorials_arena_trains_as_a_class_with_a_policy_for_each_agent():
    kind = kind_of(MultiAgentArena)
    assert kind is not None
    result = trained(
        MultiAgentArena,
        env_args={"width": 4, "height": 3, "ts": 6},
        policies={"pol1": ["agent1"], "pol2": ["agent2"]},
    )
    returns = result["agent_episode_returns_mean"]
    assert result["num_faulty_episodes"] == 0 and returns["agent2"] == -3.0
    assert returns["agent1"] >= -3.0
    spec, first, _ = played(MultiAgentArena, 1, env_args={"width": 4, "height": 3})
    assert spec.observation_spaces["agent1"] == MultiDiscrete((12, 12))
    assert first.obs["agent2"].tolist() == [[11, 0]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("env", "env_args"),
    [
        (Relay, {"length": 4}),
        (Relay, {}),
        (functools.partial(Relay, EnvConfig(length=4)), {}),
        (lambda config: Relay(config), {"length": 4}),
        ("tests.outside.workers.multi_agent_envs:Relay", {"length": 4}),
        ("tests.outside.workers.multi_agent_envs:MultiAgentArena", {"ts": 4}),
        (MultiAgentArena({"ts": 4}), {}),
    ],
    ids=["class", "class alone", "partial", "function", "module:Class", "former", "object"],
)
def test_environments_of_rllib_are_given_in_every_form(env, env_args):
    assert trained(env, env_args=env_args)["num_faulty_episodes"] == 0


@pytest.mark.process
def test_environments_of_rllib_step_in_worker_processes():
    assert trained(Relay, workers=2)["num_faulty_episodes"] == 0
    arena = trained(MultiAgentArena({"ts": 6}), workers=2)
    assert arena["agent_episode_returns_mean"]["agent2"] == -3.0


class OldCorridor(gymnasium.Env):
    """The guide's `SimpleCorridor`, of the old Gym: no seed, and four results of a step."""

    def __init__(self, config):
        self.end, self.limit = config["corridor_length"], config.get("limit", 99)
        self.observation_space = spaces.Box(0.0, self.end, (1,), np.float32)
        self.action_space, self.seeds = spaces.Discrete(2), []

    def seed(self, seed=None):
        self.seeds.append(seed)

    def reset(self):
        self.position = self.steps = 0
        return [self.position]

    def step(self, action):
        self.position, self.steps = self.position + 1, self.steps + 1
        done, is_cut = self.position >= self.end, self.steps >= self.limit
        return [self.position], 1.0, done or is_cut, {"TimeLimit.truncated": is_cut}


def test_environments_of_the_old_gym_step_as_they_are_written():
    args = {"corridor_length": 3}
    spec, _, steps = played(OldCorridor, 6, env_args=args)
    assert spec.agents == ("default_agent",)
    assert [step.episode_done[0] for step in steps] == [False, False, True] * 2
    for limit, ends in ((9, (True, False)), (3, (False, True))):
        env = OldGymEnv(OldCorridor({**args, "limit": limit}))
        assert env.reset(seed=7) == ([0], {}) and env.seeds == [7]
        flags = [env.step(0)[2:4] for _ in range(3)]
        assert flags == [(False, False), (False, False), ends]


def test_arguments_are_one_dict_where_the_constructor_takes_one():
    assert by_keywords(Relay)(length=3).length == 3 and by_keywords(Relay)().worker == 0
    assert by_keywords(Relay)(config=EnvConfig(length=2)).length == 2
    assert by_keywords(MultiAgentArena)().width == 10

    class Named(gymnasium.Env):
        def __init__(self, config="easy"):
            self.config = config

    class Emptying:
        def __init__(self, config):
            self.length = config.pop("length", 0)

        reset = step = None

    class Untold(gymnasium.Env):
        """As RLlib's page for beginners writes it; RLlib always passes a config."""

        def __init__(self, config=None):
            self.length = config.get("length", 5)

    class Typed(gymnasium.Env):
        def __init__(self, config: Named | None = None):
            self.config = config

    assert by_keywords(Untold)().length == 5 and by_keywords(Untold)(length=2).length == 2
    assert by_keywords(Typed)().config is None
    make = functools.partial(by_keywords(Emptying), config={"length": 3})
    assert [make().length, make().length] == [3, 3]  # what one copy takes out, the next one has
    assert by_keywords(Named)().config == "easy"
    assert by_keywords(Named)(config="hard").config == "hard"
    assert by_keywords(dict) is dict


@pytest.mark.parametrize(
    "attributes",
    [
        {"possible_agents": ["x", "y"], "observation_spaces": {"x": 1, "y": 2, "z": 3}},
        {"observation_spaces": {"x": 1, "y": 2}},
        {"_agent_ids": {"y", "x"}, "observation_space": 1},
        {"agents": ["x", "y"], "observation_space": 1},
        {"observation_space": {"x": 1, "y": 2}, "action_space": {"x": 1, "y": 2}},
        {"observation_space": 1},
    ],
)
def test_agents_and_spaces_are_found_wherever_they_are_said(attributes):
    env = MultiAgentEnv()
    env.reset, env.step = lambda: dict.fromkeys("xy", 0), None
    env.action_space = 4
    for name, value in attributes.items():
        setattr(env, name, value)
    assert kind_of(env) == RLLIB
    walked = RllibAsParallel(env)
    assert walked.possible_agents == ["x", "y"]
    assert walked.observation_space("x") == 1 and walked.action_space("y") in (2, 4)


class Shouts(Relay):
    """Gives something else than it may."""

    def __init__(self, **answers):
        super().__init__(EnvConfig())
        self.answers = answers

    def reset(self, *, seed=None, options=None):
        super().reset()
        return self.answers.get("first", ({"a": np.zeros(1)}, {}))

    def step(self, actions):
        names = ("obs", "rewards", "terminateds", "truncateds", "infos")
        results = dict(zip(names, super().step(actions), strict=True))
        return tuple(self.answers.get(name, results[name]) for name in names)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"first": ({"c": np.zeros(1)}, {})}, "observation for agent 'c', which is none of"),
        ({"first": np.zeros(3)}, "the observations are .*, not a dict by agent"),
        ({"obs": {"c": np.zeros(1)}}, "observation for agent 'c', which is none of"),
        ({"rewards": {"a": "much"}}, "the reward is 'much' of type str"),
        ({"terminateds": {"__all__": "no"}}, "is 'no' of type str, not True or False"),
        ({"infos": None}, "info"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(answers, said):
    with pytest.raises(jaxrl.UsageError, match=f"cannot be reset and stepped: .*{said}"):
        make_vector_env(functools.partial(Shouts, **answers), 1, num_workers=0)


def test_an_agent_without_a_space_is_named_with_what_to_set():
    env = Relay(EnvConfig())
    env.action_spaces = {"a": spaces.Discrete(2)}
    with pytest.raises(jaxrl.UsageError, match="no action space for agent 'b': set self"):
        make_vector_env(env, 1, num_workers=0)
