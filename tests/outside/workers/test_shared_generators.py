"""Python environments that draw from generators of the process play the same for the same seed."""

import functools
import random
import sys
import types

import gymnasium
import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.core.types import DEFAULT_AGENT
from jaxrl.outside.workers.arrays import episode_seed
from jaxrl.outside.workers.python_env import make_vector_env
from jaxrl.outside.workers.shared_generators import (
    WATCHED_STEPS,
    Draws,
    OwnGenerators,
    SeededCopy,
    loaded,
)
from tests.outside.workers.environments import Counter, Gambler

SEEDS = np.array([7, 2**32 - 1, 0], np.uint32)
TINY = {
    **{"num_envs": 2, "rollout_length": 16, "minibatch_size": 32, "num_epochs": 1},
    **{"fcnet_hiddens": [4], "total_env_steps": 96},
}


def played(env, num_steps=30, num_workers=0, seeds=SEEDS):
    """All that copies give in some steps, by copy."""
    envs = make_vector_env(env, len(seeds), num_workers=num_workers)
    obs, ended = [envs.reset(seeds).obs[DEFAULT_AGENT]], []
    for _ in range(num_steps):
        steps = []
        for number, part in enumerate(envs.parts):
            envs.send(number, {DEFAULT_AGENT: np.zeros(part.stop - part.start, int)})
            steps.append(jax.tree.map(np.copy, envs.receive(number)))
        obs.append(np.concatenate([step.obs[DEFAULT_AGENT] for step in steps]))
        ended.append(np.concatenate([step.episode_done for step in steps]))
    envs.close()
    return np.stack(obs), np.stack(ended)


@pytest.mark.long
def test_copies_that_draw_from_shared_generators_play_by_their_seeds_wherever_they_step():
    obs, ended = played(Gambler)
    assert ended.sum() > 5 and len({*obs[:, :, 2].flat}) == obs[:, :, 2].size  # all drawn
    for workers in (0, 1, 2):
        random.seed(workers), np.random.seed(workers)
        again = played(Gambler, num_workers=workers)
        np.testing.assert_array_equal(again[0], obs)
        np.testing.assert_array_equal(again[1], ended)
    alone = played(Gambler, seeds=SEEDS[1:2])[0]
    np.testing.assert_array_equal(alone[:, 0], obs[:, 1])
    assert not np.isin(played(Gambler, 1, seeds=SEEDS + 100)[0][:, :, :4], obs).any()


def test_an_episode_can_be_played_again_alone_with_its_seed():
    obs, ended = played(Gambler)
    length = int(ended[:, 0].argmax()) + 1
    env, seed = Gambler(), episode_seed(SEEDS[0], 1)
    random.seed(seed), np.random.seed(seed)
    env.reset(seed=seed)
    assert env.begun == pytest.approx(obs[length, 0, 1])


def test_the_users_own_program_draws_as_if_no_copy_had_played():
    random.seed(3), np.random.seed(3)
    draw = lambda: (random.random(), *np.random.randn(2), random.gauss(0, 1))
    np.random.randn()
    states = random.getstate(), np.random.get_state(legacy=False)
    wanted = [draw() for _ in range(3)]
    random.setstate(states[0]), np.random.set_state(states[1])
    envs = make_vector_env(Gambler, 2, num_workers=0)  # made once by the user's own generators
    random.setstate(states[0]), np.random.set_state(states[1])
    envs.reset(SEEDS[:2])
    found = []
    for _ in wanted:
        envs.send(0, {DEFAULT_AGENT: np.zeros(2, int)})
        envs.receive(0)
        found.append(draw())
    assert found == wanted


def test_draws_that_begin_late_are_still_those_of_the_copy():
    late = functools.partial(Late, after=WATCHED_STEPS // len(SEEDS) - 2)
    first, again = played(late), played(late)
    np.testing.assert_array_equal(first[0], again[0])
    assert first[0][-1].any()


class Late(gymnasium.Env):
    """Draws in one step of an episode alone."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, after):
        self.after = after

    def reset(self, *, seed=None, options=None):
        self.steps, self.drawn = 0, 0.0
        return np.float32([0]), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.after:
            self.drawn = random.random()
        return np.float32([self.drawn]), 1.0, False, False, {}


def test_nothing_is_swapped_for_copies_that_have_drawn_nothing():
    draws, copy = Draws(num_steps=3), types.SimpleNamespace(env=Counter())
    copy.step, copy.reset = lambda row: False, lambda row, seed: None
    seeded = SeededCopy(lambda: copy, draws, seed=1)
    assert seeded.env is copy.env and len(draws.swapped) >= 2
    for _ in range(4):
        seeded.step(None)
    assert draws.is_over and seeded.step is copy.step and seeded.reset is copy.reset


def test_only_what_is_drawn_from_is_swapped_after_the_first_steps():
    draws = Draws(num_steps=1)
    generators = OwnGenerators(draws, seed=5)
    first = draws.alone(lambda: generators.play(random.random))
    draws.count_step()
    assert [type(generator).__name__ for generator in draws.drawn] == ["_Python"] and (
        draws.swapped == draws.drawn
    )
    second = draws.alone(lambda: generators.play(random.random))
    alone = random.Random(5)
    assert [first, second] == [alone.random(), alone.random()]


def test_pytorchs_generator_is_one_of_them():
    torch = pytest.importorskip("torch")
    draw = lambda: torch.rand(()).item()
    obs = [played(functools.partial(Gambler, draw), num_workers=0)[0] for _ in range(2)]
    np.testing.assert_array_equal(*obs)
    torch.manual_seed(episode_seed(SEEDS[0], 0))
    assert obs[0][0, 0, 2] == np.float32(draw())


def test_a_vector_env_draws_by_its_first_seed():
    make = lambda: gymnasium.vector.SyncVectorEnv([Gambler] * 3)
    first, again = played(make), played(make)
    np.testing.assert_array_equal(first[0][..., :4], again[0][..., :4])


@pytest.mark.long
def test_two_trainings_with_one_seed_are_one_training_and_evaluate_alike():
    results = []
    for _ in range(2):
        config = jaxrl.PPOConfig(env=Gambler, **TINY)
        with jaxrl.Trainer(config, run_dir=None, quiet=True, workers=0, sync=True) as trainer:
            result = trainer.fit()["env_runners"]
            judged = trainer.evaluate(episodes=5)["env_runners"]
        results.append([each["episode_return_mean"] for each in (result, judged)])
    assert results[0] == results[1]


def test_pytorch_is_left_alone_until_another_thread_has_imported_it(monkeypatch):
    """TensorBoard's writer imports it while copies step; its generator crashes until then."""
    torch = types.ModuleType("torch")
    torch.default_generator, torch.__spec__ = object(), types.SimpleNamespace(_initializing=True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert "_Torch" not in [type(generator).__name__ for generator in loaded()]
    torch.__spec__._initializing = False
    assert "_Torch" in [type(generator).__name__ for generator in loaded()]
