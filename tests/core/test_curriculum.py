"""Tests of curricula inside the program: their rules, their contract, and what they are given."""

import dataclasses
import importlib
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Curriculum, LevelsBySuccess, PPOConfig, UsageError, make
from jaxrl.core.curriculum import EpisodeOutcome, with_curriculum
from jaxrl.core.env import lift, raw_reset, raw_step
from jaxrl.core.env_contract import require_trainable
from jaxrl.core.trust import name_of
from jaxrl.rollout.env_step import auto_reset
from tests.core.environments import Corridor, Pair, Params, Trio
from tests.messages import refused_by

KEY = jax.random.key(3)
SIZES = [{"step_size": 3.0}, {"step_size": 2.0}, {}]


def climbed(curriculum, solved):
    """The level after each episode; `solved` says how they ended."""
    memory, levels = curriculum.init(Params()), []
    for ended_well in solved:
        returns = jnp.array([2.0, 1.0]) if ended_well else jnp.zeros(2)
        episode = EpisodeOutcome({}, jnp.int32(4), returns, jnp.array(ended_well))
        memory = curriculum.after_episode(memory, episode, Params())
        levels.append(int(memory["level"]))
    return levels


def test_an_environment_goes_up_when_it_has_solved_enough_of_its_last_episodes():
    by_two_of_three = LevelsBySuccess(SIZES, threshold=0.6, window=3)
    won, lost = True, False
    # The window is filled first; then two of the last three are enough, of this level alone.
    assert climbed(by_two_of_three, [won, won, lost, won, won, lost]) == [0, 0, 1, 1, 1, 2]
    expected = [0, 0, 0, 1, 1, 1, 1]
    assert climbed(by_two_of_three, [lost, lost, won, won, lost, lost, lost]) == expected
    assert climbed(LevelsBySuccess(SIZES, window=1), [won] * 4) == [1, 2, 2, 2]


def test_solved_may_be_a_return_summed_over_agents():
    by_return = lambda least: LevelsBySuccess(SIZES, window=1, solved_at=least)
    assert climbed(by_return(3.0), [True, True]) == [1, 2]
    assert climbed(by_return(3.5), [True, True]) == [0, 0]


def test_an_empty_level_is_the_configurations_own_numbers():
    task = lambda level, params: LevelsBySuccess(SIZES).task(KEY, {"level": level}, params)
    assert [float(task(i, Params(step_size=0.5))["step_size"]) for i in range(3)] == [3.0, 2.0, 0.5]


@dataclasses.dataclass(frozen=True)
class Diary(Curriculum):
    """Remembers what the last episode was like; the step size is the number of episodes + 1."""

    def init(self, params):
        zero = jnp.float32(0)
        return {"episodes": 0, "return": zero, "length": 0, "terminated": False, "step_size": zero}

    def task(self, key, memory, params):
        return {"step_size": memory["episodes"] + 1}

    def after_episode(self, memory, episode, params):
        return {
            "episodes": memory["episodes"] + 1,
            "return": episode.episode_return,
            "length": episode.length,
            "terminated": episode.terminated,
            "step_size": episode.task["step_size"],
        }


@pytest.mark.long
@pytest.mark.parametrize("num_envs", [3, 12])  # all reset at once, or those alone that ended
@pytest.mark.parametrize("inner", [Corridor(), Trio(), Pair()], ids=lambda env: env.name)
def test_the_memory_of_each_environment_sees_its_own_finished_episodes(inner, num_envs):
    env = with_curriculum(lift(inner), Params(), Diary())
    keys = jax.random.split(KEY, num_envs)
    _, state = jax.vmap(lambda key: raw_reset(env, key, Params()))(keys)
    returns, lengths = np.zeros(num_envs), np.zeros(num_envs, int)
    expected = [(0, 0.0, 0, False)] * num_envs
    step = jax.jit(
        lambda keys, state, action: jax.vmap(
            lambda key, state, action: raw_step(env, key, state, action, Params())
        )(keys, state, action)
    )
    restarted = jax.jit(lambda keys, step, raw: auto_reset(env, keys, step, raw, Params()))
    for t in range(10):
        keys = jax.vmap(lambda key, t=t: jax.random.fold_in(key, t))(keys)
        sample = lambda key: {agent: env.action_space(agent).sample(key) for agent in env.agents}
        action = jax.vmap(sample)(keys)
        if hasattr(env, "step_stacked"):
            action = jnp.stack([action[agent] for agent in env.agents], axis=1)
        raw = step(keys, state, action)
        _, state = restarted(keys, jnp.int32(t), raw)
        returns, lengths = returns + np.asarray(raw.reward.sum(-1)), lengths + 1
        for e in np.flatnonzero(raw.episode_done):
            expected[e] = (
                *(expected[e][0] + 1, returns[e], lengths[e]),
                bool(raw.all_terminated[e]),
            )
            returns[e], lengths[e] = 0.0, 0
        memory = state.memory
        found = [memory[name].tolist() for name in ("episodes", "return", "length", "terminated")]
        for e, (episodes, *last) in enumerate(zip(*found, strict=True)):
            assert (episodes, *last) == pytest.approx(expected[e], abs=1e-5)
            assert float(state.task["step_size"][e]) == episodes + 1
            assert float(memory["step_size"][e]) == episodes  # what the last one was played with
    assert any(episodes for episodes, *_ in expected)


class Misshapen(Curriculum):
    """With a task and a memory that a test sets; `init` returns zeros."""

    def __init__(self, returned=None, after=0.0):
        self.returned, self.after = returned or {"step_size": 1.0}, after

    def init(self, params):
        return jnp.zeros(())

    def task(self, key, memory, params):
        return self.returned(memory) if callable(self.returned) else self.returned

    def after_episode(self, memory, episode, params):
        return self.after


def fails(memory):
    return {"step_size": 1.0 if memory > 0 else 2.0}


NAME = "curriculum Misshapen: "


test_what_breaks_the_contract_is_refused_in_one_line_before_compiling = refused_by(
    lambda curriculum: PPOConfig(env=Corridor(), curriculum=curriculum).setup(),
    [
        (Misshapen({"step": 1.0}), f"unknown field 'step' in the task of {NAME[:-2]}"),
        (Misshapen({"step_size": jnp.ones(2)}), "step_size must be float32[] as in params, not"),
        (Misshapen({"max_steps_in_episode": 3.5}), "must be int32[] as in params, not float32[]"),
        (Misshapen({"max_steps_in_episode": True}), "must be int32[] as in params, not bool[]"),
        (Misshapen([1.0]), f"{NAME}task must return {{field: value}}, not [1.0]"),
        (Misshapen(fails), f"{NAME}task fails as it is traced: TracerBoolConversionError"),
        (Misshapen(after=jnp.ones(3)), "in the form of init: memory is float32[], not float32[3]"),
        (Misshapen(after=(0.0, 1.0)), "after_episode must return the memory in the form of init"),
        (Curriculum(), "Curriculum must define task(key, memory, params)"),
        (LevelsBySuccess, "missing a required argument: 'levels'"),
        (
            LevelsBySuccess([{"stepsize": 1.0}, {}]),
            "unknown field 'stepsize' in the levels of curriculum LevelsBySuccess; did you mean",
        ),
        (
            LevelsBySuccess([{"step_size": "uniform:1:2"}]),
            "step_size='uniform:1:2' must be a finite number",
        ),
        (LevelsBySuccess([{"step_size": float("nan")}, {}]), "step_size=nan must be a finite"),
        (LevelsBySuccess([{"max_steps_in_episode": 2**40}, {}]), "must be a finite number"),
        (LevelsBySuccess([{"step_size": [1.0, 2.0]}, {}]), "step_size must be float32[] as in"),
        ("tests.core.test_curriculum:Corridor", "not a class derived from jaxrl.Curriculum"),
        (Corridor(), "must be a class derived from jaxrl.Curriculum, or module:Class"),
    ],
    literal=True,
)


def test_a_field_that_is_drawn_already_is_refused():
    with pytest.raises(UsageError, match="gravity is drawn by env_args already"):
        PPOConfig(
            env="cartpole",
            env_args={"gravity": "uniform:8:12"},
            curriculum=LevelsBySuccess([{"gravity": 5.0}, {}]),
        ).setup()


def test_the_environments_own_check_sees_every_level():
    levels = LevelsBySuccess([{"max_steps_in_episode": 0}, {}])
    with pytest.raises(UsageError, match="max_steps_in_episode must be at least 1, not 0"):
        PPOConfig(env="cartpole", curriculum=levels).setup()
    levels = LevelsBySuccess([{"n_catch": 1}, {"n_catch": 0}])
    with pytest.raises(UsageError, match="n_catch=0: it must be at least 1"):
        PPOConfig(env="pursuit", curriculum=levels).setup()


test_levels_that_make_no_sense_are_refused = refused_by(
    lambda arguments: LevelsBySuccess(**arguments),
    [
        ({"levels": []}, "levels=() must be a list of {field: value}, easiest first"),
        ({"levels": [{}]}, "must be a list of {field: value}"),
        ({"levels": [3.0]}, "must be a list of {field: value}"),
        ({"levels": SIZES, "threshold": 1.5}, "threshold=1.5 must be a number in (0, 1]"),
        ({"levels": SIZES, "window": 0}, "window=0 must be an integer of at least 1"),
        ({"levels": SIZES, "solved_at": "much"}, "solved_at='much' must be a number"),
    ],
    literal=True,
)


def test_levels_have_a_name_from_which_another_process_makes_them():
    levels = LevelsBySuccess(SIZES, window=2)
    assert PPOConfig(env="cartpole", curriculum=name_of(levels)).curriculum.startswith(
        "jaxrl.core.curriculum:LevelsBySuccess(levels=((('step_size', 3.0),)"
    )
    hash(levels)


class Drawn(Curriculum):
    """Draws as `Randomization` does."""

    def task(self, key, memory, params):
        return {"gravity": jax.random.uniform(jax.random.split(key, 1)[0])}


def test_a_curriculum_and_a_distribution_inside_it_draw_from_different_keys():
    env, params = make("cartpole", force="uniform:0:1")
    _, state = raw_reset(with_curriculum(lift(env), params, Drawn()), KEY, params)
    assert float(state.task["gravity"]) != float(state.inner.task["force"])


@pytest.fixture
def benchmark(monkeypatch):
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("curriculum")
    yield module
    for name in ("curriculum", "report"):
        sys.modules.pop(name, None)


def test_prioritised_levels_are_those_whose_outcome_is_open(benchmark):
    levels = benchmark.PrioritisedLevels("step_size", (1.0, 2.0, 3.0), solved_at=1.0)
    assert levels.init(Params()).tolist() == [0.5, 0.5, 0.5]
    keys = jax.random.split(KEY, 4000)
    shares = jnp.array([0.5, 1.0, 0.0])  # sometimes, always and never solved
    drawn = jax.vmap(lambda key: levels.task(key, shares, Params())["step_size"])(keys)
    # 0.7 p (1 - p) / sum + 0.3 / 3
    found = [float(jnp.mean(drawn == value)) for value in levels.values]
    assert found == pytest.approx([0.7 + 0.1, 0.1, 0.1], abs=0.02)
    task = {"step_size": jnp.float32(2.0)}
    lost = EpisodeOutcome(task, jnp.int32(4), jnp.zeros(1), jnp.array(True))
    after = levels.after_episode(shares, lost, Params())
    assert after.tolist() == pytest.approx([0.5, 0.8, 0.0])  # 0.8 * 1 + 0.2 * 0


def test_the_lock_of_the_benchmark_opens_by_the_right_doors_alone(benchmark):
    env, params = benchmark.Lock(), benchmark.Params(start=17)
    require_trainable(env)
    for curriculum in (benchmark.CASES[case].get("curriculum") for case in benchmark.CASES):
        if curriculum is not None:
            with_curriculum(lift(env), benchmark.Params(), curriculum)
    room, state = env.reset(KEY, params)
    rewards = []
    for room in (17, 18, 19):
        assert int(state.room) == room
        wrong = (benchmark.RIGHT[room] + 1) % benchmark.DOORS
        assert bool(env.step_env(KEY, state, wrong, params)[3])
        _, state, reward, terminated, _ = env.step_env(KEY, state, benchmark.RIGHT[room], params)
        rewards.append((float(reward), bool(terminated)))
    assert rewards == [(0.0, False), (0.0, False), (1.0, True)]
