"""Environments of RLlib's configurations: names, classes, registered functions, limits, agents."""

import sys
import threading
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import jaxrl
from jaxrl import UsageError, from_rllib
from jaxrl.core import registry as jaxrl_registry
from jaxrl.core.env_config import ConfiguredMaker
from jaxrl.core.errors import is_installed
from jaxrl.outside.workers.python_env import make_vector_env
from jaxrl.rllib import env_names
from jaxrl.rllib.rows import CHANGES, TAKEN
from jaxrl.run.storage.config_file import config_facts, read_config

OF_RAY = "ray.rllib.examples.envs.classes"


def refused(config, **settings):
    with pytest.raises(UsageError) as error:
        from_rllib(config, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


class Steps(gymnasium.Env):
    """Ends after the number of steps that its configuration says, or never."""

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, config=None):
        self.config = config or {}

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 1.0, False, False, {}


class MultiAgentEnv:
    """RLlib's base class by its name."""


class Numbered(MultiAgentEnv):
    """Agents that are numbers, as those of RLlib's `make_multi_agent`."""

    def __init__(self, config=None):
        self.possible_agents = list(range((config or {}).get("num_agents", 2)))
        self.observation_spaces = dict.fromkeys(self.possible_agents, Steps.observation_space)
        self.action_spaces = dict.fromkeys(self.possible_agents, Steps.action_space)

    def reset(self, *, seed=None, options=None):
        return {agent: np.zeros(3, np.float32) for agent in self.possible_agents}, {}

    def step(self, actions):
        rewards = dict.fromkeys(actions, 1.0)
        return self.reset()[0], rewards, {"__all__": True}, {"__all__": False}, {}


# Names


def test_a_version_that_gymnasium_no_longer_makes_becomes_the_next_one_and_says_so():
    translation = from_rllib({"env": "FrozenLake-v0"})
    assert translation.config.env == "gym:FrozenLake-v1"
    assert translation.rows[0].why == "Gymnasium makes no v0 of it any more, v1 is the next"
    assert from_rllib({"env": "FrozenLake-v1"}).rows[0].why == ""
    assert from_rllib({"env": "Pendulum-v0"}).config.env == "gymnax:Pendulum-v1"
    assert "unknown Gymnasium environment 'Nope-v3'" in refused({"env": "Nope-v3"})


@pytest.mark.skipif(is_installed("mujoco"), reason="MuJoCo is installed")
def test_a_version_that_needs_a_library_names_it():
    assert "gym:HalfCheetah-v4' cannot be made" in refused({"env": "HalfCheetah-v2"})
    assert "MuJoCo is not installed" in refused({"env": "Hopper-v1"})


def test_gymnasiums_names_need_no_version_and_may_name_their_module():
    gymnasium.register("StepsOfATest", entry_point=f"{__name__}:Steps")
    gymnasium.register("OthersOfATest-v2", entry_point=f"{__name__}:Steps")
    try:
        assert from_rllib({"env": "StepsOfATest"}).config.env == "gym:StepsOfATest"
        named = {"env": f"{Steps.__module__.partition('.')[0]}:OthersOfATest-v2"}
        assert from_rllib(named).config.env == "gym:tests:OthersOfATest-v2"
    finally:
        del gymnasium.registry["StepsOfATest"], gymnasium.registry["OthersOfATest-v2"]


@pytest.mark.parametrize("env", [f"{__name__}.Steps", f"<class '{__name__}.Steps'>"])
def test_a_class_by_its_path_or_as_a_file_prints_it_is_that_class(env):
    config = from_rllib({"env": env, "env_config": {"config": {"deep": [1]}}}).config
    assert config.env == f"{__name__}:Steps"
    assert config.to_dict()["env_args"] == {"config": {"deep": [1]}}
    made, _ = jaxrl.make(config.env, **config.to_dict()["env_args"])
    assert made.spec.agents == ("default_agent",)


@pytest.mark.skipif(is_installed("ray"), reason="Ray is installed")
@pytest.mark.parametrize(
    "env",
    [
        *("StatelessCartPole", "MultiAgentCartPole", "multi_agent_cartpole", "RepeatAfterMeEnv"),
        "ray.rllib.examples.env.repeat_after_me_env.RepeatAfterMeEnv",
        f"<class '{OF_RAY}.stateless_cartpole.StatelessCartPole'>",
    ],
)
def test_environments_of_rllibs_own_name_what_to_install(env):
    assert 'needs "ray[rllib]", which is not installed: pip install "ray[rllib]"' in refused(
        {"env": env}
    )


OWN = ["stateless_cartpole.StatelessCartPole", "repeat_after_me_env.RepeatAfterMeEnv"]
OWN += ["repeat_initial_obs_env.RepeatInitialObsEnv", "stateless_pendulum.StatelessPendulum"]
OWN += ["transformed_action_space_env.TransformedActionPendulum"]
OWN += ["multi_agent.MultiAgentCartPole", "multi_agent.MultiAgentPendulum"]
OWN += ["multi_agent.MultiAgentStatelessCartPole"]


@pytest.mark.parametrize("path", OWN)
def test_environments_of_rllibs_own_are_found_where_ray_is_installed(path):
    pytest.importorskip("ray.rllib")
    module, _, name = path.rpartition(".")
    for env in (name, f"{OF_RAY}.{path}", f"ray.rllib.examples.env.{path}"):
        assert from_rllib({"env": env}).config.env == f"{OF_RAY}.{module}:{name}"


def test_a_name_that_rllibs_register_env_gave_is_made_by_its_function(monkeypatch):
    makers = {"mine": lambda c: Steps(c), "pair": lambda _: Numbered()}
    registry = SimpleNamespace(
        contains=lambda category, name: (
            (category, name) == ("env_creator", name in makers and name)
        ),
        get=lambda category, name: makers[name],
    )
    module = SimpleNamespace(_global_registry=registry)
    monkeypatch.setitem(sys.modules, "ray.tune.registry", module)
    config = from_rllib({"env": "mine", "env_config": {"deep": [1, {"a": 2}]}}).config
    assert config.env().config == {}
    assert config.env(deep=[1]).config == {"deep": [1]}
    assert config.to_dict()["env_args"] == {"deep": [1, {"a": 2}]}
    assert repr(config.env) == "register_env('mine', ...)"
    assert from_rllib({"env": "pair"}).config.policies == (("default_policy", ("0", "1")),)
    assert from_rllib({"env": "CartPole-v1"}).config.env == "cartpole"
    jaxrl.register("mine", Steps)  # the user's own word for it here
    try:
        assert from_rllib({"env": "mine"}).config.env == "mine"
    finally:
        del jaxrl_registry._registered["mine"]


def test_the_real_register_env_is_found():
    registry = pytest.importorskip("ray.tune.registry")
    registry.register_env("registered_in_a_test", lambda cfg: Numbered(cfg))
    config = {"env": "registered_in_a_test", "env_config": {"num_agents": 3}}
    assert dict(from_rllib(config).config.policies) == {"default_policy": ("0", "1", "2")}


class Locked(Steps):
    """Takes its settings out of its configuration, and counts its copies."""

    made, closed = [], []

    def __init__(self, config):
        self.config = config
        self.lock, self.sizes = config.pop("lock"), config["sizes"]
        self.sizes.pop()
        self.made.append(self)

    def close(self):
        self.closed.append(self)


def test_settings_that_cannot_be_copied_reach_every_copy_of_an_environment(monkeypatch):
    lock = threading.Lock()
    settings = {"lock": lock, "sizes": [1, 2]}
    registry = SimpleNamespace(
        contains=lambda category, name: name == "locked", get=lambda category, name: Locked
    )
    module = SimpleNamespace(_global_registry=registry)
    monkeypatch.setitem(sys.modules, "ray.tune.registry", module)
    for env in (Locked, "locked"):
        config = from_rllib({"env": env, "env_config": settings}).config
        for _ in range(2):
            made = ConfiguredMaker(Locked, "config")(**config.to_dict()["env_args"])
            assert made.lock is lock and made.sizes == [1]
    maker = from_rllib({"env": "locked", "env_config": settings}).config.env
    assert maker(**settings).lock is maker(**settings).lock is lock
    assert settings == {"lock": lock, "sizes": [1, 2]}


def test_environments_that_are_made_to_be_asked_are_closed():
    Locked.made.clear(), Locked.closed.clear()
    arguments = {"lock": threading.Lock(), "sizes": [1, 2], "a": 1, "b": 2, "c": 3}
    from_rllib({"env": Locked, "env_config": arguments})
    assert set(map(id, Locked.made)) == set(map(id, Locked.closed))
    # Once to ask whether the arguments fit, and once to read the environment.
    assert len(Locked.made) == 2


def test_as_many_newer_versions_are_tried_as_is_said(monkeypatch):
    tried = []
    monkeypatch.setattr(
        "jaxrl.rllib.env_names.reason_against", lambda env, args: tried.append(env) or "no"
    )
    assert env_names.named("Nope-v3").env == "gym:Nope-v3"
    assert tried == [f"gym:Nope-v{version}" for version in range(3, 4 + env_names.NEWER_VERSIONS)]


class Limits:
    """An object of a user's, with an array."""

    def __init__(self):
        self.high = np.array([1.0, 2.0])


class Given(Steps):
    """Has the spaces that its configuration gives, nested, and counts steps from an object."""

    def __init__(self, config):
        self.observation_space = config["spaces"][0]["seen"]["a"]
        self.action_space = config["action_space"]
        self.limits, self.map = config["limits"], config["map"]

    def reset(self, *, seed=None, options=None):
        return self.limits.high.astype(np.float32), {}

    def step(self, action):
        return self.reset()[0], float(self.map.sum()), False, False, {}


OBJECTS = {
    "spaces": {0: {"seen": gymnasium.spaces.Dict(a=gymnasium.spaces.Box(0, 9, (2,)))}},
    "action_space": gymnasium.spaces.MultiDiscrete([2, 3]),
    "limits": Limits(),
    "map": np.ones((2, 2)),
}


@pytest.mark.long
@pytest.mark.parametrize("num_workers", [0, 1])
def test_objects_in_env_config_reach_every_copy_of_the_environment(num_workers):
    config = from_rllib({"env": Given, "env_config": OBJECTS}).config
    arguments = config.to_dict()["env_args"]
    assert arguments == OBJECTS and arguments["limits"] is OBJECTS["limits"]
    envs = make_vector_env(config.env, 2, env_args=arguments, num_workers=num_workers)
    try:
        obs = envs.reset(np.arange(2, dtype=np.uint32)).obs["default_agent"]
        for part in range(len(envs.parts)):
            envs.send(part, {"default_agent": np.zeros((2, 2), np.int32)[envs.parts[part]]})
            assert envs.receive(part).reward.ravel().tolist() == [4.0] * (2 - num_workers)
    finally:
        envs.close()
    np.testing.assert_array_equal(obs, [[1, 2], [1, 2]])


def test_a_run_with_objects_in_env_config_says_that_its_file_cannot_hold_them():
    config = from_rllib({"env": Given, "env_config": OBJECTS}).config
    facts = config_facts(config, {})
    assert facts["objects"] == ["env_args"] and facts["config"]["env"] == f"{__name__}:Given"
    why = r"the run's env_args was an object, .*, which no file can hold: pass it again in Python"
    with pytest.raises(UsageError, match=why) as error:
        read_config(facts, "jaxrl.Trainer.from_checkpoint", trust=True)
    assert "\n" not in str(error.value)
    read_config(facts, "jaxrl.load", to_play="default_policy", trust=True)  # needs none


class Faulty(Steps):
    def __init__(self, config):
        super().__init__(config)
        self.size = config["size"]

    def step(self, action):
        return self.nothing


def test_the_fault_of_an_environment_is_told_and_not_that_it_needs_its_arguments():
    why = "AttributeError: 'Faulty' object has no attribute 'nothing'"
    assert why in refused({"env": Faulty, "env_config": {"size": 8}})
    assert "cannot be made: KeyError: 'size'" in refused({"env": Faulty, "env_config": {"sice": 8}})
    assert "cannot be made: KeyError: 'size'" in refused({"env": f"{__name__}:Faulty"})


def test_environments_in_jax_are_taken_as_objects_and_as_classes():
    stacked = jaxrl.frame_stack("cartpole", 2)
    assert from_rllib({"env": stacked}).config.env is stacked
    cartpole = type(jaxrl.make("cartpole")[0])
    config = from_rllib({"env": cartpole, "env_config": {"sutton_barto_reward": True}}).config
    assert config.setup().env.env.sutton_barto_reward is True
    local = type("Local", (cartpole,), {"__module__": "__main__"})
    assert isinstance(from_rllib({"env": local}).config.setup().env.env, local)


def test_evaluations_have_no_objects_of_their_own_and_numbers_of_numpy_are_pythons():
    evaluation = {"evaluation_interval": 1, "evaluation_config": {"env_config": OBJECTS}}
    assert "objects and arrays are arguments of training's environment alone" in refused(
        {"env": Steps, **evaluation}
    )
    numbers = {"size": np.float32(2), "count": np.int64(3)}
    found = from_rllib({"env": Steps, "env_config": numbers}).config
    assert dict(found.env_args) == {"size": 2.0, "count": 3}


# Limits of time


def test_a_limit_of_time_is_taken_where_episodes_end_by_it():
    grid = from_rllib({"env": "FrozenLake-v1", "horizon": 50}).config
    assert dict(grid.env_args) == {"max_episode_steps": 50}
    assert "horizon=50 (environment 'tests." in refused({"env": Steps, "horizon": 50})
    made = from_rllib({"env": Steps, "env_config": {"horizon": 50}}).config
    assert dict(made.env_args) == {"horizon": 50}


def test_complete_episodes_are_taken_where_a_rollout_holds_the_longest():
    whole = {"batch_mode": "complete_episodes"}

    def of(config, **settings):
        row = next(r for r in from_rllib(config, **settings).rows if "batch_mode" in r.entries)
        return row.kind, row.why

    cartpole = {"env": "CartPole-v1", "num_workers": 2, **whole}
    assert of({**cartpole, "train_batch_size": 1000}) == (
        TAKEN,
        "rollouts of 500 steps hold whole episodes, and cut only the last of each",
    )
    short = {**cartpole, "train_batch_size": 998}
    assert "rollouts of 499 steps cut episodes of up to 500: take fewer environments" in refused(
        short
    )
    assert of(short, num_envs=1)[0] == TAKEN
    assert of(short, ignore=["batch_mode"])[0] == CHANGES
    assert "rollouts of 399 steps" in refused(short, rollout_length=399)
    assert of({"env": "FrozenLake-v1", **whole})[0] == TAKEN  # Gymnasium says 100 steps
    assert "which may be of any length here" in refused({"env": Steps, **whole})
    assert "truncate_episodes or complete_episodes" in refused({**cartpole, "batch_mode": "all"})


# Agents


def test_a_mapping_is_asked_with_the_environments_own_names_of_agents():
    by_number = lambda agent, *args, **kwargs: "first" if agent == 0 else "others"
    config = {"env": Numbered, "policies": {"first", "others"}, "policy_mapping_fn": by_number}
    config |= {"env_config": {"num_agents": 3}}
    assert dict(from_rllib(config).config.policies) == {"first": ("0",), "others": ("1", "2")}
    texts = {"env": "MultiAgentArena", "policy_mapping_fn": lambda agent, *_: agent.upper()}
    texts |= {"policies": ["AGENT1", "AGENT2"]}
    assert dict(from_rllib(texts).config.policies) == {"AGENT1": ("agent1",), "AGENT2": ("agent2",)}


# Observations


def connector(name, module="ray.rllib.connectors.env_to_module.module", **attributes):
    made = type(name, (), {"__module__": module})()
    vars(made).update(attributes)
    return made


FILTER = connector("MeanStdFilter", de_mean_to_zero=True, de_std_to_one=True, clip_by_value=10.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda env: FILTER,
        lambda env, spaces, device: [FILTER],
        lambda env=None, spaces=None, device=None: (connector("FlattenObservations"), FILTER),
    ],
)
def test_the_filter_of_observations_may_be_a_connector(make):
    config = {"env": "CartPole-v1", "observation_filter": "NoFilter"}
    for key in ("env_to_module_connector", "_env_to_module_connector"):
        found = from_rllib({**config, key: make}).config
        assert found.observation_filter == "MeanStdFilter"
    assert from_rllib({**config, "_env_to_module_connector": None}).config == (
        from_rllib(config).config
    )


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda env: connector("FrameStackingEnvToModule"), "FrameStackingEnvToModule: no count"),
        (lambda env: connector("MeanStdFilter", "mine"), "MeanStdFilter: no counterpart"),
        (
            lambda env: connector("MeanStdFilter", clip_by_value=5.0),
            "MeanStdFilter: no counterpart",
        ),
        (lambda env: env.spaces, "AttributeError: 'NoneType' object has no attribute 'spaces'"),
        (lambda a, b, c, d: FILTER, "TypeError: it takes other arguments than RLlib gives"),
        ("<function make at 0x7f>", "a function, which a file does not hold"),
    ],
    ids=["frames", "a class of the same name", "clipped elsewhere", "asks", "four", "file"],
)
def test_other_connectors_are_refused_by_name(make, why):
    said = refused({"env": "CartPole-v1", "env_to_module_connector": make})
    assert f"({why}" in said
