"""Copies of Python environments step as the environment itself does, with the same seeds."""

import functools
import importlib
import pkgutil
import time
from typing import ClassVar

import gymnasium
import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.core.env import lift
from jaxrl.core.errors import TooManyFaults
from jaxrl.core.machine import num_cores
from jaxrl.core.outside_env import is_outside, refuse_evaluation
from jaxrl.core.registry import ENVIRONMENT, adapter_of, is_maker
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from jaxrl.core.trust import check_name
from jaxrl.core.types import DEFAULT_AGENT
from jaxrl.outside.workers.arrays import EnvForm, RangeCheck, StepArrays, episode_seed
from jaxrl.outside.workers.local import LocalVectorEnv
from jaxrl.outside.workers.python_env import adapt, make_vector_env, seconds_of_a_step
from jaxrl.outside.workers.space_forms import form_of
from tests.messages import refused_by
from tests.outside.workers import environments
from tests.outside.workers.environments import Counter, Ended, Leavers, Nim, Sloppy, Slow

in_this_process = functools.partial(make_vector_env, num_workers=0)

SEEDS = np.array([7, 2**32 - 1, 0], np.uint32)


def play(envs, num_steps, choose):
    """[OutsideSteps] of `num_steps`, with the actions that `choose(step)` gives."""
    played = []
    for step in range(num_steps):
        envs.send(0, choose(step))
        played.append(jax.tree.map(np.copy, envs.receive(0)))
    return played


def test_the_steps_that_take_longest_do_not_decide_on_processes():
    class Hesitant(Counter):
        def step(self, action):
            time.sleep(0.05 * (self.steps == 0))
            return super().step(action)

    assert seconds_of_a_step(in_this_process(Hesitant, 1)) < 0.01


def test_cartpole_steps_as_gymnasiums_own_with_the_same_seeds():
    envs = in_this_process("gym:CartPole-v1", len(SEEDS))
    actions = np.random.default_rng(0).integers(0, 2, (60, len(SEEDS)))
    first = envs.reset(SEEDS)
    played = play(envs, 60, lambda step: {DEFAULT_AGENT: actions[step]})
    envs.close()
    for row, seed in enumerate(SEEDS):
        alone, episode = gymnasium.make("CartPole-v1"), 0
        obs, _ = alone.reset(seed=episode_seed(seed, 0))
        np.testing.assert_array_equal(first.obs[DEFAULT_AGENT][row], obs)
        for step, action in zip(played, actions[:, row], strict=True):
            obs, reward, terminated, truncated, _ = alone.step(int(action))
            np.testing.assert_array_equal(step.final_obs[DEFAULT_AGENT][row], obs)
            assert (step.reward[row], step.terminated[row]) == (reward, terminated)
            assert step.episode_done[row] == (terminated or truncated)
            if terminated or truncated:
                episode += 1
                obs, _ = alone.reset(seed=episode_seed(seed, episode))
            np.testing.assert_array_equal(step.obs[DEFAULT_AGENT][row], obs)
        assert episode >= 1
        alone.close()


def test_agents_that_left_are_inactive_until_the_reset():
    envs = in_this_process(Leavers, 2)
    first = envs.reset(SEEDS[:2])
    assert envs.spec.agents == ("a0", "a1", "a2") and envs.spec.masked
    assert first.action_mask["a0"].tolist() == [[True, False, True]] * 2
    actions = {agent: np.full(2, index) for index, agent in enumerate(envs.spec.agents)}
    played = play(envs, 4, lambda step: actions)
    rows = [[tuple(flags[0].tolist()) for flags in step[3:6]] for step in played]
    yes, no = True, False
    assert rows == [  # terminated, truncated, active
        [(yes, no, no), (no, no, no), (yes, yes, yes)],
        [(no, yes, no), (no, no, no), (no, yes, yes)],
        [(no, no, no), (no, no, yes), (no, no, yes)],
        [(yes, no, no), (no, no, no), (yes, yes, yes)],
    ]
    assert [step.reward[0].tolist() for step in played[:3]] == [[0, 1, 2], [0, 1, 2], [0, 0, 2]]
    assert [step.episode_done[0] for step in played] == [no, no, yes, no]
    assert played[2].final_obs["a2"][0, 0] == 3 and played[2].obs["a2"][0, 0] == 0
    assert played[0].action_mask["a1"].tolist() == [[True, True, True]] * 2


def test_an_episode_ends_with_its_agents_even_if_the_list_of_agents_does_not():
    envs = in_this_process(Sloppy, 1)
    envs.reset(SEEDS[:1])
    actions = {agent: np.zeros(1, int) for agent in envs.spec.agents}
    assert [step.episode_done[0] for step in play(envs, 3, lambda _: actions)] == [
        *(False, False, True)
    ]


def test_in_a_game_of_turns_one_agent_acts_and_masks_come_from_the_observation():
    envs = in_this_process(Nim, 1)
    assert envs.spec.waits and envs.spec.observation_spaces["first"] == Discrete(6)
    first = envs.reset(SEEDS[:1])
    assert first.obs["first"].tolist() == [5]
    played = play(envs, 3, lambda _: {agent: np.array([1]) for agent in envs.spec.agents})
    assert [step.active[0].tolist() for step in played] == [
        *([True, False], [False, True], [True, False])
    ]
    assert [step.reward[0].tolist() for step in played] == [[0, 0], [0, 0], [1, -1]]
    assert played[1].obs["first"].tolist() == [1]
    assert first.acting.tolist() == [[True, False]] == played[1].acting.tolist()
    assert played[0].acting.tolist() == [[False, True]]
    assert played[1].action_mask["first"].tolist() == [[True, False]]
    assert played[2].terminated[0].tolist() == [True, True] and played[2].episode_done[0]
    assert played[2].obs["first"].tolist() == [5]


@pytest.mark.filterwarnings("ignore")  # PettingZoo's own
def test_pettingzoos_pursuit_steps_as_it_does_alone():
    pytest.importorskip("pygame")
    modules = pkgutil.iter_modules(importlib.import_module("pettingzoo.sisl").__path__)
    name = next(module.name for module in modules if module.name.startswith("pursuit_v"))
    args = {"max_cycles": 6, "n_evaders": 3, "n_pursuers": 2}
    envs = in_this_process(f"pettingzoo:sisl/{name}", 2, env_args=args)
    envs.reset(SEEDS[:2])
    choose = lambda step: {agent: np.array([step % 5, 1]) for agent in envs.spec.agents}
    played = play(envs, 9, choose)
    alone = importlib.import_module(f"pettingzoo.sisl.{name}").parallel_env(**args)
    alone.reset(seed=episode_seed(SEEDS[0], 0))
    for step, results in enumerate(played):
        actions = {agent: int(values[0]) for agent, values in choose(step).items()}
        obs, rewards, terminated, truncated, _ = alone.step(actions)
        for index, agent in enumerate(envs.spec.agents):
            np.testing.assert_array_equal(results.final_obs[agent][0], obs[agent])
            np.testing.assert_allclose(results.reward[0, index], rewards[agent], rtol=1e-6)
            assert results.terminated[0, index] == terminated[agent]
            assert results.truncated[0, index] == truncated[agent]
        assert results.episode_done[0] == (not alone.agents)
        if not alone.agents:
            alone.reset(seed=episode_seed(SEEDS[0], 1))


def test_structured_observations_are_trees_and_termination_wins_over_the_time_limit():
    envs = in_this_process(Ended, 2)
    assert envs.spec.observation_spaces[DEFAULT_AGENT] == Dict(
        {
            "place": Discrete(3, start=10),
            "left": Tuple((MultiDiscrete((2, 2)), MultiDiscrete((3, 2)))),
            "far": Box(-1, 1, (2,)),
        }
    )
    assert envs.spec.action_spaces[DEFAULT_AGENT] == Box(-2, 2, (2,))
    envs.reset(SEEDS[:2])
    (step,) = play(envs, 1, lambda _: {DEFAULT_AGENT: np.ones((2, 2), np.float32)})
    seen = step.final_obs[DEFAULT_AGENT]
    assert seen["place"].tolist() == [11, 11] and seen["far"].tolist() == [[0.5, 0.5]] * 2
    assert [part.tolist() for part in seen["left"]] == [[[1, 0]] * 2, [[2, 1]] * 2]
    assert step.terminated.tolist() == [[True]] * 2 and not step.truncated.any()


def test_metrics_of_a_step_have_their_names_and_actions_are_the_environments_own():
    envs = in_this_process(Counter, 2, env_args={"length": 3})
    envs.reset(SEEDS[:2])
    (step,) = play(envs, 1, lambda _: {DEFAULT_AGENT: np.array([-1, 2])})
    assert step.reward[:, 0].tolist() == [-1, 2] == step.metrics["actions"].tolist()


class Grids(gymnasium.Env):
    """Observes and takes integers that start anywhere, in two axes; says what it got."""

    observation_space = gymnasium.spaces.MultiDiscrete([[2, 2], [3, 3]], start=[[5, 5], [-1, -1]])
    action_space = gymnasium.spaces.MultiBinary((2, 3))

    taken: ClassVar[list] = []  # by all copies

    def __init__(self, seen=((6, 5), (1, -1))):
        self.seen = np.array(seen)

    def reset(self, *, seed=None, options=None):
        return np.array([[5, 5], [-1, -1]]), {}

    def step(self, action):
        assert (action.dtype, action.shape) == (np.int8, (2, 3))
        self.taken.append(action.tolist())
        return self.seen, 1.0, False, False, {}


def test_integers_in_two_axes_go_in_and_out_as_the_environment_has_them():
    envs = in_this_process(Grids, 1)
    space = envs.spec.observation_spaces[DEFAULT_AGENT]
    assert space == MultiDiscrete([[2, 2], [3, 3]], start=[[5, 5], [-1, -1]])
    assert envs.spec.action_spaces[DEFAULT_AGENT] == MultiDiscrete(np.full((2, 3), 2))
    first, action = envs.reset(SEEDS[:1]), np.array([[[0, 1, 0], [1, 1, 0]]])
    (step,) = play(envs, 1, lambda _: {DEFAULT_AGENT: action})
    assert first.obs[DEFAULT_AGENT].tolist() == [[[5, 5], [-1, -1]]]
    assert step.final_obs[DEFAULT_AGENT].tolist() == [[[6, 5], [1, -1]]]
    assert Grids.taken[-1] == action[0].tolist()


@pytest.mark.parametrize("seen", [((4, 5), (0, 0)), ((5, 7), (0, 0)), ((5, 5), (0, 2))])
def test_an_integer_below_its_start_or_beyond_its_last_value_is_refused(seen):
    with pytest.raises(jaxrl.UsageError, match="an integer out of its range, in its first step"):
        in_this_process(functools.partial(Grids, seen), 1)


class Late(Leavers):
    """Agents observe a number from 7 on; the last one joins never."""

    def observation_space(self, agent):
        return gymnasium.spaces.Discrete(3, start=7)

    def reset(self, seed=None, options=None):
        _, infos = super().reset(seed, options)
        self.agents = self.agents[:-1]
        return dict.fromkeys(self.agents, 8), infos

    def step(self, actions):
        _, *rest = super().step(actions)
        return dict.fromkeys(actions, 9), *rest


def test_who_is_absent_observes_a_value_of_its_space():
    first = in_this_process(Late, 1).reset(SEEDS[:1])
    assert [first.obs[agent].tolist() for agent in ("a0", "a1", "a2")] == [[8], [8], [7]]


@pytest.mark.parametrize(
    "env",
    [
        environments.function,
        functools.partial(Counter, length=2),
        lambda: Counter(length=2),
        Counter(length=2),
        "tests.outside.workers.environments:function",
        "tests.outside.workers.environments:Counter(length=2)",
    ],
    ids=["function", "partial", "lambda", "object", "module:function", "module:Class"],
)
def test_an_environment_is_given_by_its_constructor_its_name_or_itself(env):
    envs = in_this_process(env, 2)
    envs.reset(SEEDS[:2])
    played = play(envs, 2, lambda _: {DEFAULT_AGENT: np.array([0, 1])})
    assert played[1].episode_done.all() and played[1].final_obs[DEFAULT_AGENT][:, 1].tolist() == [
        2,
        2,
    ]


def counters(mode, num_envs=3, **args):
    return gymnasium.vector.SyncVectorEnv(
        [functools.partial(Counter, **args)] * num_envs, autoreset_mode=mode
    )


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_vector_env_of_gymnasium_steps_its_copies_itself(mode):
    make = functools.partial(counters, gymnasium.vector.AutoresetMode(mode), length=2)
    envs, alone = in_this_process(make, 3), in_this_process(functools.partial(Counter, 2), 3)
    first, wanted = envs.reset(SEEDS), alone.reset(SEEDS)
    np.testing.assert_array_equal(first.obs[DEFAULT_AGENT], wanted.obs[DEFAULT_AGENT])
    actions = lambda step: {DEFAULT_AGENT: np.array([0, 1, 2])}
    played, expected = play(envs, 5, actions), play(alone, 2, actions)
    for step, other in zip(played[:2], expected, strict=True):
        for name in ("final_obs", "reward", "terminated", "truncated", "active", "lost"):
            jax.tree.map(np.testing.assert_array_equal, getattr(step, name), getattr(other, name))
    if mode == "NextStep":
        assert [step.lost.all() for step in played] == [False, False, True, False, False]
        assert [step.episode_done.all() for step in played] == [False, True, False, False, True]
        begun = played[2]
    else:
        assert not any(step.lost.any() for step in played)
        assert [step.episode_done.all() for step in played] == [False, True, False, True, False]
        begun = played[1]
    assert begun.obs[DEFAULT_AGENT][:, 1].tolist() == [0, 0, 0] and envs.num_faults == 0
    if mode == "Disabled":  # every episode has a seed of its own
        jax.tree.map(np.testing.assert_array_equal, played[1].obs, expected[1].obs)


def test_a_fault_of_a_vector_env_drops_the_episodes_of_all_its_copies():
    mode = gymnasium.vector.AutoresetMode("SameStep")
    make = functools.partial(counters, mode, fault="raise", share=0.3)
    envs = in_this_process(make, 3)
    envs.reset(SEEDS)
    played = play(envs, 30, lambda step: {DEFAULT_AGENT: np.array([0, 1, 2])})
    lost = np.array([step.lost for step in played])
    assert envs.num_faults == lost[:, 0].sum() > 0 and (lost == lost[:, :1]).all()
    given = counters(mode, num_envs=4)
    with pytest.raises(jaxrl.UsageError, match="steps 4 copies: num_envs must be 4, not 3"):
        in_this_process(given, 3)
    in_this_process(given, 4).close()
    given.reset()  # who gave it closes it


@pytest.mark.parametrize("fault", ["raise", "nan", "shape", "reward"])
def test_a_faulty_step_drops_the_episode_and_the_log_says_how_to_play_it_again(fault, caplog):
    make = functools.partial(Counter, length=5, fault=fault, at=3, share=0.5)
    envs = in_this_process(make, 3)
    envs.reset(SEEDS)
    played = play(envs, 40, lambda _: {DEFAULT_AGENT: np.array([-1, 0, 1])})
    lost = np.array([step.lost for step in played])
    done = np.array([step.episode_done for step in played])
    assert envs.num_faults == lost.sum() == len(caplog.records) > 2
    assert done.sum() > 5 and not (done & lost).any()
    seed = episode_seed(SEEDS[0], int(done[:, 0][: lost[:, 0].argmax()].sum()))
    wanted = "copy 0: "
    said = next(record.getMessage() for record in caplog.records if wanted in record.getMessage())
    assert f"episode seed {seed}, in step 3, action -1" in said
    for step in played:
        values = step.obs[DEFAULT_AGENT], step.final_obs[DEFAULT_AGENT], step.reward
        assert all(np.isfinite(each).all() for each in values)
        assert (step.obs[DEFAULT_AGENT][step.lost][:, 1] == 0).all()
        assert not step.active[step.lost].any()
        assert step.active[~step.lost].all() and not step.truncated.any()
        assert (step.terminated[:, 0] == step.episode_done).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_all_finite_numbers_are_right_in_an_observation_and_no_others(dtype, wrong):
    space = gymnasium.spaces.Box(-np.inf, np.inf, (2, 3), dtype)
    form = EnvForm((DEFAULT_AGENT,), *((form_of(space, "a test"),),) * 2, False, (), True, False)
    arrays = StepArrays(form, 4)
    ((block,),), check = arrays.obs, RangeCheck(arrays, arrays.obs, range(1, 4))
    most = np.finfo(block.dtype).max
    block[:3] = [[[[most, -most, 0], [-most, most, 0]]]]
    assert check.wrong_rows() == []
    block[0, 0, 1, 2] = block[3, 0, 0, 1] = wrong  # row 0 is not looked at
    assert check.wrong_rows() == [2]
    assert ("NaN" if np.isnan(wrong) else "infinity") in check.reason(2)


def test_an_environment_that_only_fails_ends_the_training():
    envs = in_this_process(functools.partial(Counter, fault="raise"), 2, max_consecutive_faults=4)
    envs.reset(SEEDS[:2])
    with pytest.raises(TooManyFaults, match=r"failed 5 times and finished no episode.*simulator"):
        play(envs, 20, lambda _: {DEFAULT_AGENT: np.array([0, 1])})


test_what_is_no_environment_is_refused_in_one_line = refused_by(
    lambda env: in_this_process(env, 2),
    [
        ("gym:CartPole-v9", "unknown Gymnasium environment 'CartPole-v9'; did you mean"),
        ("pettingzoo:sisl", "give the module's family and name"),
        ("pettingzoo:sisl/pursuit_v1", "sisl/pursuit_v1'; did you mean 'sisl/pursuit_v"),
        ("pettingzoo:sysl/pursuit_v1", "unknown family of PettingZoo 'sysl'; did you mean 'sisl'"),
        (
            "tests.outside.workers.environments:Count",
            "unknown environment 'Count'.*did you mean 'Counter'",
        ),
        (
            "tests.outside.workers.environments:not_an_environment",
            "is 3, a int, not a gymnasium.Env",
        ),
        (environments.not_an_environment, "is 3, a int, not a gymnasium.Env"),
        (functools.partial(Counter, size=3), "cannot be made: TypeError.*'size'"),
        (3, "3 is no Python environment"),
    ],
)


class Moved(gymnasium.Env):
    """Returns the same array each time, changed in place."""

    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.state, self.info = np.zeros(1, np.float32), {"action_mask": np.ones(2, bool)}

    def reset(self, *, seed=None, options=None):
        self.state[:] = 0
        return self.state, self.info

    def step(self, action):
        self.state += 1
        self.info["action_mask"][:] = bool(self.state[0] % 2), True
        return self.state, 1.0, False, bool(self.state[0] == 3), self.info


def test_arrays_that_an_environment_changes_in_place_are_stored_as_they_were():
    envs = in_this_process(Moved, 1)
    first = envs.reset(SEEDS[:1])
    played = play(envs, 4, lambda step: {DEFAULT_AGENT: np.zeros(1, np.int32)})
    assert first.obs[DEFAULT_AGENT].tolist() == [[0]]
    assert [step.final_obs[DEFAULT_AGENT].item() for step in played] == [1, 2, 3, 1]
    assert [step.obs[DEFAULT_AGENT].item() for step in played] == [1, 2, 0, 1]
    masks = [step.action_mask[DEFAULT_AGENT].tolist() for step in played]
    assert masks == [[[True, True]], [[False, True]], [[True, True]], [[True, True]]]
    envs.close()


def test_python_environments_are_known_by_their_methods():
    for env in (Counter, Counter(), Leavers, Nim()):
        assert adapter_of(env) == "python"
    assert [adapter_of(environments.function), is_maker(environments.function)] == [None, True]
    for env in (jaxrl.make("arena")[0], jaxrl.Environment, jaxrl.make("cartpole")[0], 3):
        assert [adapter_of(env), is_maker(env)] == [None, False]


@pytest.mark.parametrize(
    ("env", "env_args"),
    [
        ("gym:CartPole-v1", {"max_episode_steps": 7}),
        ("tests.outside.workers.environments:Counter", {"length": 3}),
        ("tests.outside.workers.environments:function", {}),
        ("tests.outside.workers.environments:Leavers", {"num_agents": 2}),
        (Counter, {"length": 3}),
        (environments.function, {}),
        (Counter(length=3), {}),
    ],
)
def test_a_configuration_takes_python_environments_in_all_forms(env, env_args):
    made = jaxrl.PPOConfig(env=env, env_args=env_args).setup().env
    assert is_outside(made)
    vector = lift(made).vector(2, num_workers=0)
    vector.reset(SEEDS[:2])
    (step,) = play(vector, 1, lambda _: {agent: np.zeros(2, int) for agent in vector.spec.agents})
    assert step.reward.shape == (2, len(vector.spec.agents))
    if isinstance(env, str):
        assert is_outside(jaxrl.make(env, **env_args)[0]) and made.name == env


test_a_configuration_refuses_what_cannot_be_made = refused_by(
    lambda env, env_args: jaxrl.PPOConfig(env=env, env_args=env_args).setup(),
    [
        ("gym:CartPole-v9", {}, "unknown Gymnasium environment 'CartPole-v9'; did you mean"),
        ("gym:CartPole-v1", {"speed": 3}, "cannot be made: TypeError.*'speed'"),
        ("tests.outside.workers.environments:Counter", {"lenght": 3}, "unknown argument.*'lenght'"),
        ("tests.outside.workers.environments:not_an_environment", {}, "not an int|not int"),
    ],
)


def test_a_file_may_not_name_a_module_behind_the_scheme():
    check_name(ENVIRONMENT, "gym:CartPole-v1", "the file's env", trust=False)
    with pytest.raises(jaxrl.UsageError, match="not part of jaxrl or of an installed plug-in"):
        check_name(ENVIRONMENT, "gym:os:CartPole-v1", "the file's env", trust=False)


def test_processes_are_the_default_only_where_steps_are_long_enough():
    short = adapt(None, functools.partial(gymnasium.make, "CartPole-v1"))
    envs = short.vector(4)
    assert isinstance(envs, LocalVectorEnv)
    long = adapt(None, Slow)
    slow = long.vector(2)
    try:
        assert isinstance(slow, LocalVectorEnv) == (num_cores() == 1)
    finally:
        slow.close()


def test_an_object_with_copies_of_its_own_lends_none_to_evaluation():
    make = lambda: gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    assert adapt(None, make).num_copies == 3
    refuse_evaluation(adapt(None, make))
    with pytest.raises(jaxrl.UsageError, match="give a function that makes it"):
        refuse_evaluation(adapt(None, make()))


@pytest.mark.parametrize("workers", ["ray:", "ray:0", "ray:two", "8", -1])
def test_workers_are_a_number_or_ray_actors(workers):
    with pytest.raises(jaxrl.UsageError, match="workers"):
        jaxrl.RunSettings(workers=workers)
    jaxrl.RunSettings(workers="ray:8")
