"""Parts of observations are left out by name, in JAX and outside, and may still be given."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer
from jaxrl.core.env import StackedEnvironment
from jaxrl.core.ignored_parts import ignoring, values_without, without_parts
from jaxrl.core.spaces import Box, Dict, Discrete, Tuple
from jaxrl.core.types import ALL
from tests.core.environments import Clock
from tests.messages import refused_by
from tests.probes import OneAgent, SeveralAgents
from tests.programs import TINY as SIZES

ROW, EMPTY = Box(-1.0, 1.0, (2,)), Box(-1.0, 1.0, (0,))
NESTED = Dict(
    {
        "image": Box(0, 255, (7, 7, 3), "uint8"),
        "inner": Dict({"counter": Discrete(9), "row": ROW, "none": EMPTY}),
        "pair": Tuple((Discrete(2), ROW)),
    }
)
TINY = {**SIZES, "total_env_steps": 16}


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ((), {"image", "inner/counter", "inner/row", "pair/0", "pair/1"}),
        (("inner/counter",), {"image", "inner/row", "pair/0", "pair/1"}),
        (("inner", "pair/0"), {"image", "pair/0"}),
        (("inner/row", "inner/counter"), {"image", "pair/0", "pair/1"}),
        (("image", "inner", "pair"), None),
    ],
)
def test_spaces_and_values_lose_the_same_parts(names, left):
    space = without_parts(NESTED, names)
    if left is None:
        assert space is None
        return
    values = NESTED.sample(jax.random.key(0))
    kept = values_without(names, space, values)
    assert bool(space.contains(kept))
    assert {
        "/".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path)
        for path, _ in jax.tree.leaves_with_path(kept)
    } == left
    again = values_without(names, space, kept)  # what is without them already
    assert jax.tree.structure(again) == jax.tree.structure(kept)


class Counting(OneAgent):
    """A picture's worth of numbers and a counter, one agent, three steps."""

    observes = Dict({"counter": Discrete(9), "row": ROW, "none": EMPTY})

    def action_mask(self, state, params):
        return jnp.array([False, True])

    def reset_env(self, key, params):
        return self._observe(jnp.int32(0)), Clock(jnp.int32(0))

    def step_env(self, key, state, action, params):
        time = state.time + 1
        return self._observe(time), Clock(time), jnp.float32(action), time >= 3, {}

    def _observe(self, time):
        return {"counter": time, "row": jnp.full(2, 0.1) * time, "none": jnp.zeros(0)}


class Several(SeveralAgents):
    """Two agents of different spaces, of which one has a counter."""

    agents = ("left", "right")

    def observation_space(self, agent, params=None):
        counter = {"counter": Discrete(9)} if agent == "left" else {}
        return Dict({"row": ROW, **counter})

    def reset_env(self, key, params):
        return self._observe(jnp.int32(0)), Clock(jnp.int32(0))

    def step_env(self, key, state, action, params):
        time = state.time + 1
        reward = {agent: jnp.float32(action[agent]) for agent in self.agents}
        ends = dict.fromkeys((*self.agents, ALL), time >= 3)
        return self._observe(time), Clock(time), reward, ends, {}

    def _observe(self, time):
        row = jnp.full(2, 0.1) * time
        return {"left": {"row": row, "counter": time}, "right": {"row": row}}


class Instructed(gymnasium.Env):
    """An observation with a text and a graph in it."""

    observation_space = gymnasium.spaces.Dict(
        {
            "image": gymnasium.spaces.Box(0, 255, (7, 7, 3), np.uint8),
            "mission": gymnasium.spaces.Text(10),
            "inner": gymnasium.spaces.Dict(
                {
                    "graph": gymnasium.spaces.Graph(gymnasium.spaces.Discrete(2), None),
                    "none": gymnasium.spaces.Box(-1, 1, (0,)),
                    "row": gymnasium.spaces.Box(-1, 1, (2,)),
                }
            ),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}


@pytest.mark.parametrize(
    ("env", "names", "parts"),
    [
        pytest.param(Counting(), (), {"counter", "row"}, marks=pytest.mark.long),
        (Counting(), ("counter",), {"row"}),
        pytest.param(
            Instructed(), ("mission", "inner/graph"), {"image", "inner"}, marks=pytest.mark.long
        ),
    ],
    ids=["empty part", "counter", "text and graph"],
)
def test_what_is_left_out_is_not_learned_from_and_may_still_be_given(env, names, parts):
    config = PPOConfig(
        env=env, ignore_observations=names, observation_filter="MeanStdFilter", **TINY
    )
    outside = {"workers": 0} if isinstance(env, Instructed) else {}
    with Trainer(config, run_dir=None, quiet=True, **outside) as trainer:
        result = trainer.fit()
        policy = trainer.get_policy("default_policy")
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
    assert policy.observation_space.spaces.keys() == parts
    if isinstance(env, Instructed):
        full = env.observation_space.sample()
    else:
        full = {"counter": 3, "row": np.zeros(2, np.float32), "none": np.zeros(0, np.float32)}
    left = values_without(names, policy.observation_space, full)
    mask = {"action_mask": [False, True]} if isinstance(env, Counting) else {}
    assert policy.act(full, **mask) == policy.act(left, **mask)


def test_each_agent_loses_the_parts_that_it_has():
    setup = PPOConfig(env=Several(), policies="per-agent", ignore_observations="counter").setup()
    assert {
        agent: setup.env.observation_space(agent) for agent in setup.env.agents
    } == dict.fromkeys(("left", "right"), Dict({"row": ROW}))
    obs, _ = setup.env.reset_env(jax.random.key(0), ())
    assert obs["left"].keys() == obs["right"].keys() == {"row"}


test_what_cannot_be_left_out_or_must_be_is_said_in_one_line = refused_by(
    lambda env, names: PPOConfig(env=env, ignore_observations=names).setup(),
    [
        (
            Instructed(),
            (),
            r"'inner/graph' \(a Graph space\), 'mission' \(a Text space\).*"
            r"ignore_observations=\('inner/graph', 'mission'\)",
        ),
        (Instructed(), ("mission",), r"ignore_observations=\('mission', 'inner/graph'\)"),
        (Counting(), ("conter",), "unknown part 'conter' of ignore_observations.*'counter'"),
        (Counting(), ("counter", "row"), "nothing to learn from without counter, row"),
        ("cartpole", ("mission",), "unknown part 'mission' of ignore_observations"),
        ("cartpole", ("",), "a part has a name"),
    ],
)


@pytest.mark.long
def test_alike_agents_lose_a_part_in_both_faces_of_their_environment():
    setup = PPOConfig(env="waterworld").setup()
    space = setup.env.observation_space(setup.env.agents[0], setup.env_params)
    kept = ignoring(Parted(setup.env), setup.env_params, ("counter",))
    key = jax.random.key(0)
    assert kept.observation_space(setup.env.agents[0]) == Dict({"row": space})
    stacked, _ = kept.reset_stacked(key, setup.env_params)
    by_agent, _ = kept.reset_env(key, setup.env_params)
    assert stacked.keys() == {"row"} and stacked["row"].shape == (len(kept.agents), *space.shape)
    assert all(obs.keys() == {"row"} for obs in by_agent.values())


class Parted(StackedEnvironment):
    """An environment of alike agents, whose observations get a counter beside them."""

    name = "Parted"

    def __init__(self, env):
        self.env, self.agents = env, env.agents

    def observation_space(self, agent, params=None):
        return Dict({"row": self.env.observation_space(agent, params), "counter": Discrete(9)})

    def reset_stacked(self, key, params):
        row, state = self.env.reset_stacked(key, params)
        return {"row": row, "counter": jnp.zeros(len(self.agents), jnp.int32)}, state


def test_an_environment_that_loses_nothing_is_itself():
    env = Several()
    assert PPOConfig(env=env, policies="per-agent").setup().env is env
