"""Who plays whom: every way to say it, every way to get it wrong, and arrays there and back."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.env import MultiAgentEnvironment, StackedEnvironment
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Discrete
from jaxrl.rollout.grouping import group_policies
from jaxrl.rollout.policy_map import idle_policies, resolve_policies
from tests.messages import refused_by

AGENTS = ("red_1", "red_2", "red_3", "blue_1", "blue_2")
SMALL, LARGE = (Discrete(4), Discrete(2)), (Box(-1.0, 1.0, (3,)), Discrete(2))


@dataclass(frozen=True)
class Team(MultiAgentEnvironment):
    """Only what says who the agents are.

    `spaces` are (observation, action space) of those that are not SMALL.
    """

    agents: tuple = AGENTS
    spaces: dict = field(default_factory=dict)

    def observation_space(self, agent, params=None):
        return self.spaces.get(agent, SMALL)[0]

    def action_space(self, agent, params=None):
        return self.spaces.get(agent, SMALL)[1]


@dataclass(frozen=True)
class StackedTeam(Team, StackedEnvironment):
    """The same on stacked arrays."""


TEAM = Team()
MIXED = Team(spaces={"blue_1": LARGE, "blue_2": LARGE})


def nothing_else(policy, observation_space, action_space):
    return None


def group(env, policies, structure=nothing_else):
    return group_policies(env, None, resolve_policies(env, policies), structure)


def test_none_is_the_environments_own_choice():
    assert resolve_policies(TEAM, None) == {agent: (agent,) for agent in AGENTS}


@pytest.mark.parametrize(
    ("policies", "idle"),
    [
        ({"p": AGENTS, "q": (), "r": []}, ("q", "r")),
        ((*AGENTS, "q"), ("q",)),
        ({"p": AGENTS}, ()),
        ("shared", ()),
        (lambda agent: "p", ()),
    ],
)
def test_policies_may_be_named_that_play_nobody(policies, idle):
    played = resolve_policies(TEAM, policies)
    assert idle_policies(policies, played) == idle
    assert not set(idle) & set(played) and all(played.values())


def test_shared_is_one_policy_for_all_and_per_agent_one_for_each():
    assert resolve_policies(TEAM, "shared") == {"default_policy": AGENTS}
    assert resolve_policies(TEAM, "per-agent") == {agent: (agent,) for agent in AGENTS}


def test_a_mapping_is_taken_as_it_is():
    policies = {"blue": ["blue_2", "blue_1"], "red": ("red_1", "red_2", "red_3")}
    resolved = resolve_policies(TEAM, policies)
    expected = [("blue", ("blue_2", "blue_1")), ("red", ("red_1", "red_2", "red_3"))]
    assert list(resolved.items()) == expected


def test_a_function_is_asked_once_for_each_agent():
    asked = []

    def color(agent):
        asked.append(agent)
        return agent.split("_")[0]

    assert resolve_policies(TEAM, color) == {"red": AGENTS[:3], "blue": AGENTS[3:]}
    assert tuple(asked) == AGENTS


def test_a_function_may_take_more_than_it_needs():
    assert list(resolve_policies(TEAM, lambda agent, *args, **kwargs: "all")) == ["all"]
    assert list(resolve_policies(TEAM, lambda agent, episode=None: "all")) == ["all"]


REFUSED = {
    "an agent forgotten": (TEAM, {"p": AGENTS[:4]}, r"no policy plays agent 'blue_2'"),
    "two forgotten": (TEAM, {"p": AGENTS[1:4]}, r"no policy plays agent 'red_1', 'blue_2'"),
    "named twice": (
        TEAM,
        {"p": AGENTS, "q": ("red_2",)},
        r"agent 'red_2' is named twice: in policy 'p' and in 'q'",
    ),
    "twice in one": (
        TEAM,
        {"p": (*AGENTS, "red_1")},
        r"agent 'red_1' is named twice: in policy 'p' and in 'p'",
    ),
    "unknown": (
        TEAM,
        {"p": ("red_1", "blu_2")},
        r"unknown agent 'blu_2' in policy 'p'; did you mean 'blue_2'\?",
    ),
    "another observation": (
        Team(spaces={"blue_1": (Discrete(5), Discrete(2))}),
        "shared",
        r"'default_policy' joins agents of different observation_space: "
        r"'red_1' has .*4.*, 'blue_1' has .*5",
    ),
    "another action": (
        Team(spaces={"red_2": (Discrete(4), Discrete(9))}),
        {"red": AGENTS[:3], "blue": AGENTS[3:]},
        r"'red' joins agents of different action_space: 'red_1' has .*2.*, 'red_2' has .*9",
    ),
    "asks for the episode": (
        TEAM,
        lambda agent, episode: "p",
        r"must take the agent id alone.*no episode to ask",
    ),
    "policies that all play nobody": (TEAM, {"q": ()}, r"no policy plays agent 'red_1'"),
    "a name for a list": (
        TEAM,
        {"p": "red_1"},
        r"policy 'p' must name a list of agents, not 'red_1'",
    ),
    "no policy": (TEAM, {}, r"no policy plays agent 'red_1'"),
    "another word": (TEAM, "shraed", r"policies='shraed': allowed are 'shared', 'per-agent'"),
    "a number": (TEAM, 3, r"policies=3: allowed are"),
}


test_what_cannot_be_played_is_refused_in_one_line_that_says_why = refused_by(
    resolve_policies, REFUSED
)


def test_equal_policies_are_stacked_and_unequal_ones_are_not():
    policies = {
        "a": ("red_1",),
        "b": ("blue_1",),
        "c": ("red_2",),
        "d": ("red_3",),
        "e": ("blue_2",),
    }
    grouping = group(MIXED, policies)
    assert [group.policies for group in grouping.groups] == [("a", "c", "d"), ("b", "e")]
    assert [group.agents for group in grouping.groups] == [
        (("red_1",), ("red_2",), ("red_3",)),
        (("blue_1",), ("blue_2",)),
    ]
    assert [group.observation_space for group in grouping.groups] == [SMALL[0], LARGE[0]]
    assert grouping.policies == tuple(policies)


def test_policies_of_another_number_of_agents_or_another_structure_are_apart():
    grouping = group(TEAM, {"a": ("red_1", "red_2"), "b": ("red_3",), "c": ("blue_1", "blue_2")})
    assert [group.policies for group in grouping.groups] == [("a", "c"), ("b",)]
    grouping = group(TEAM, None, structure=lambda policy, *spaces: policy.startswith("red"))
    assert [group.policies for group in grouping.groups] == [AGENTS[:3], AGENTS[3:]]
    assert [group.structure for group in grouping.groups] == [True, False]


def test_structure_is_asked_with_the_policys_own_spaces():
    asked = {}
    group(
        MIXED,
        {"r": AGENTS[:3], "b": AGENTS[3:]},
        structure=lambda policy, *spaces: asked.update({policy: spaces}),
    )
    assert asked == {"r": SMALL, "b": LARGE}


def test_a_policy_is_found_in_its_group():
    grouping = group(
        MIXED,
        {"a": ("red_1",), "b": ("blue_1",), "c": ("red_2",), "d": ("red_3",), "e": ("blue_2",)},
    )
    expected = {"a": (0, 0), "b": (1, 0), "c": (0, 1), "d": (0, 2), "e": (1, 1)}
    assert {policy: grouping.locate(policy) for policy in "abcde"} == expected
    with pytest.raises(UsageError, match="unknown policy 'f'"):
        grouping.locate("f")


# Groups of 2 x 1 and 1 x 3 agents, 4 1 0 3 2 of the environment's order: a permutation that is not
# its own inverse.
INTERLEAVED = {"x": ("blue_2",), "y": ("red_1", "blue_1", "red_3"), "z": ("red_2",)}


@pytest.mark.parametrize("values", ["f32[E, M, 3]", "bool[E, M]", "key[E, M]"])
def test_a_stacked_environments_values_go_to_their_policies_and_back(values):
    grouping = group(StackedTeam(), INTERLEAVED)
    values = {
        "f32[E, M, 3]": jax.random.normal(jax.random.key(0), (4, 5, 3)),
        "bool[E, M]": jax.random.bernoulli(jax.random.key(0), shape=(4, 5)),
        "key[E, M]": jax.random.split(jax.random.key(0), (4, 5)),
    }[values]
    by_group = jax.jit(grouping.gather)(values)
    back = jax.jit(grouping.scatter)(by_group)
    assert [leaf.shape[:3] for leaf in by_group] == [(2, 4, 1), (1, 4, 3)]
    assert (back.shape, back.dtype) == (values.shape, values.dtype)
    by_group, back, values = jax.tree.map(in_numpy, (by_group, back, values))
    for group_values, policy_group in zip(by_group, grouping.groups, strict=True):
        for n, agents in enumerate(policy_group.agents):
            for m, agent in enumerate(agents):
                assert np.all(group_values[n, :, m] == values[:, AGENTS.index(agent)])
    assert np.all(back == values)


def in_numpy(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def test_a_dict_environments_values_go_to_their_policies_and_back():
    env = Team(spaces={"red_2": LARGE, "blue_2": LARGE})
    grouping = group(env, INTERLEAVED)
    rng = np.random.default_rng(0)
    values = {
        agent: jnp.float32(rng.normal(size=(4, 3) if agent in env.spaces else (4,)))
        for agent in AGENTS
    }
    by_group = grouping.gather(values)
    assert [leaf.shape for leaf in by_group] == [(2, 4, 1, 3), (1, 4, 3)]
    np.testing.assert_array_equal(by_group[0][1, :, 0], values["red_2"])
    np.testing.assert_array_equal(by_group[1][0, :, 1], values["blue_1"])
    back = grouping.scatter(by_group)
    assert set(back) == set(AGENTS)
    for agent in AGENTS:
        np.testing.assert_array_equal(back[agent], values[agent])


def test_rewards_of_a_dict_environment_come_as_arrays_in_the_environments_order():
    rewards = jnp.arange(20.0).reshape(4, 5)
    by_group = group(TEAM, INTERLEAVED).gather(rewards)
    np.testing.assert_array_equal(by_group[1][0], rewards[:, np.array([0, 3, 2])])
