"""A training that breaks: it stops, says where, and keeps the last good state."""

import re
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxrl import Diverged
from jaxrl.core.spaces import Box
from jaxrl.run.storage.checkpoint import find, named_arrays, read
from tests.algorithms.reinforce import ReinforceConfig
from tests.probes import OneAgent, Twins


@dataclass(frozen=True)
class Poisoned(Twins):
    """Takes the logarithm of a number below 0 for the second agent's reward."""

    def step_env(self, key, state, action, params):
        obs, state, reward, ended, info = super().step_env(key, state, action, params)
        poison = jnp.log(reward["second"] - 2.0)
        return obs, state, {**reward, "second": poison}, ended, info


# An update of few and short rollouts, for it is run again operation by operation.
POISONED = ReinforceConfig(
    env=Poisoned(),
    policies="per-agent",
    num_envs=2,
    rollout_length=2,
    fcnet_hiddens=(8,),
    total_env_steps=4,
)


@pytest.mark.long
def test_training_stops_at_the_first_bad_iteration_and_keeps_the_state_before_it(
    small, start, tmp_path
):
    good = start(run_dir=tmp_path / "good")
    good.fit({"training_iteration": 3})
    trainer = start()
    trainer.fit({"training_iteration": 3})
    trainer.hypers = jax.tree.map(lambda leaf: leaf, small.hypers(pol2={"lr": 1e38}))
    message = r"iteration 4: policy 'pol2': .*; the state after iteration 3 is kept"
    with pytest.raises(Diverged, match=message):
        trainer.fit()
    assert int(trainer.runner.num_updates) == trainer.lifetime.training_iteration == 3
    trainer.stop()
    kept = read(find(tmp_path / "run")).arrays
    for name, array in named_arrays({"runner": good.runner}).items():
        np.testing.assert_array_equal(kept[name], array, err_msg=name)


@pytest.mark.long
def test_debug_names_the_line_in_which_the_first_bad_number_arises(start):
    trainer = start(POISONED, run_dir=None, debug=True)
    message = r"(?s)iteration 1: policy 'second'.*test_divergence\.py:\d+ in step_env: poison = "
    with pytest.raises(Diverged, match=message):
        trainer.fit()


@pytest.mark.long
def test_without_debug_the_way_to_the_operation_is_named(start):
    trainer = start(POISONED, run_dir=None)
    with pytest.raises(Diverged, match=r"policy 'second'.*--debug names the operation"):
        trainer.fit()


class Place(struct.PyTreeNode):
    x: jax.Array  # f32[]
    unset: jax.Array  # f32[]  NaN for ever, which harms nobody
    time: jax.Array  # i32[]


class Faults(struct.PyTreeNode):
    observation: float = 0.0  # what each number is raised by in step 4 of an episode
    state: float = 0.0
    reward: float = 0.0
    metric: float = 0.0
    offset: float = 0.0  # of all observations
    max_steps_in_episode: int = 6


@dataclass(frozen=True)
class Faulty(OneAgent):
    """Gives a bad number, one of several, in the fourth step of every episode."""

    observes = Box(-9.0, 9.0, (1,))
    default_params = Faults()

    def reset_env(self, key, params):
        return jnp.ones(1) + params.offset, Place(
            jnp.float32(0), jnp.float32(jnp.nan), jnp.int32(0)
        )

    def step_env(self, key, state, action, params):
        now = state.time == 3
        raised = lambda value, by: value + jnp.where(now, by, 0.0)
        state = state.replace(time=state.time + 1, x=raised(state.x, params.state))
        obs = raised(1.0 + params.offset, params.observation)[None]
        info = {"metrics": {"metric": raised(1.0, params.metric)}}
        return obs, state, raised(1.0, params.reward), jnp.array(False), info


FAULTY = ReinforceConfig(env=Faulty(), num_envs=2, rollout_length=8, fcnet_hiddens=(8,))


@pytest.mark.parametrize(
    ("faults", "source"),
    [
        (
            {"observation": np.nan},
            "is the observation of agent 'default_agent', after step 4 of 8, environment 0 of 2",
        ),
        (
            {"reward": np.nan},
            "is the reward of agent 'default_agent', in step 4 of 8, environment 0 of 2",
        ),
        (
            {"reward": 1e38},
            r"NaN, infinite or beyond 1e\+18 is the reward of agent 'default_agent', in step 4 of",
        ),
        ({"state": np.nan, "reward": np.nan}, r"is state\.x, in step 4 of 8, environment 0 of 2"),
        (
            {"metric": np.nan, "observation": np.nan},
            r"is info\['metrics'\]\['metric'\], in step 4 of 8",
        ),
    ],
)
def test_the_first_bad_number_of_the_environment_is_named_with_its_step(start, faults, source):
    trainer = start(FAULTY, run_dir=None, env_params=Faults(**faults))
    message = f"iteration 1: .*the state after iteration 0 is kept; .*{source}"
    with pytest.raises(Diverged, match=message):
        trainer.train()


def test_where_the_environment_is_sound_learning_is_named(start):
    trainer = start(FAULTY, run_dir=None)
    trainer.train()
    trainer.hypers = FAULTY.hypers(lr=3e38)
    message = r"the state after iteration .* are finite there, so it arose in learning"
    with pytest.raises(Diverged, match=message):
        trainer.fit({"training_iteration": 9})


@pytest.mark.parametrize(
    ("faults", "warning"),
    [
        ({}, None),
        ({"metric": np.nan}, "custom_metrics/metric_mean is nan"),
        ({"offset": 9.0}, r"an observation is 10, outside its space Box\(-9"),
        ({"offset": 1e38}, r"an observation is 1e\+38, outside its space"),
    ],
)
def test_what_does_not_end_training_is_said_once(start, faults, warning):
    trainer = start(FAULTY, run_dir=None, env_params=Faults(**faults))
    said = []
    trainer.progress.say = said.append
    trainer.fit({"training_iteration": 3})
    warnings = [line for line in said if line.startswith("warning")]
    assert len(warnings) == (warning is not None)
    assert not warnings or re.search(warning, warnings[0])
