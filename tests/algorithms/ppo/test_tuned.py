"""Tuned settings beside a user's changes: whose network, and which policy's settings, count."""

import dataclasses

import numpy as np
import pytest

from jaxrl import PPOConfig, UsageError, make
from jaxrl.envs.arena import MultiAgentArena
from tests.messages import refused_by

TUNED = make("arena")[0].tuned["per_policy"]
EXPLORER, HUNTER = TUNED["pol1"], TUNED["pol2"]  # each with a model of its own
BESIDE_THE_NETWORK = {
    "pol1": {"entropy_coeff": 0.01},
    "pol2": {"gamma": 0.9, "entropy_coeff": 0.05},
}
GRU = {"use_gru": True}
SWAPPED = {"pol1": ["agent2"], "pol2": ["agent1"]}


def tuned(**changes):
    return PPOConfig.tuned("arena", **changes)


def by_policy(**changes):
    return tuned(**changes).to_dict()["per_policy"]


def test_a_change_of_anything_else_leaves_the_tuned_networks():
    assert by_policy(lr=0.5, num_envs=8, minibatch_size=80, seed=3) == TUNED


@pytest.mark.parametrize(
    "given",
    [
        {"fcnet_hiddens": [8]},
        {"use_lstm": True},
        {"critic_observation": "state"},
        {"model": {"fcnet_hiddens": [8]}},
        {"model": None},
    ],
)
def test_a_network_for_all_policies_takes_the_place_of_every_tuned_one(given):
    assert by_policy(**given) == BESIDE_THE_NETWORK
    assert tuned(**given).for_policy("pol1").max_seq_len == 20  # the default again
    tuned(**given).build()


def test_tuned_schedules_reach_over_as_large_a_share_of_another_number_of_steps():
    assert tuned().lr == ((0, 2e-3), (2_000_000, 5e-4))
    for steps in (4_000_000, 4e6, np.array(4_000_000), np.int32(4_000_000)):
        assert tuned(total_env_steps=steps).lr == ((0, 2e-3), (4_000_000, 5e-4))
    with pytest.raises(UsageError, match=r"^total_env_steps=-5 must be an integer"):
        tuned(total_env_steps=-5)
    pursuit = PPOConfig.tuned("pursuit", total_env_steps=2)  # its entropy falls for 3/4 of training
    assert (pursuit.lr[1], pursuit.entropy_coeff) == ((2, 0.0), ((0, 0.02), (1.5, 0.0)))


def test_a_schedule_that_is_given_stays_in_steps():
    given = ((0, 1e-3), (100, 1e-4))
    assert tuned(total_env_steps=1000, lr=given).lr == given
    chosen = tuned(total_env_steps=1000, per_policy={"pol2": {"lr": given}})
    assert (chosen.for_policy("pol1").lr[1][0], chosen.for_policy("pol2").lr) == (1000, given)


def test_a_value_for_all_policies_takes_the_place_of_one_policys_tuned_value():
    without_length = {"model": EXPLORER["model"], "entropy_coeff": 0.01}
    assert by_policy(max_seq_len=5) == {"pol1": without_length, "pol2": HUNTER}
    assert by_policy(gamma=0.99)["pol2"] == {"model": HUNTER["model"], "entropy_coeff": 0.05}


def test_settings_by_policy_are_merged_policy_by_policy():
    given = {"pol1": {"lr": 0.5}, "pol2": GRU}
    merged = {"pol1": {**EXPLORER, "lr": 0.5}, "pol2": {**BESIDE_THE_NETWORK["pol2"], **GRU}}
    assert by_policy(per_policy=given) == merged
    assert by_policy(per_policy={"pol1": {"max_seq_len": 5}}) == {
        "pol1": {**EXPLORER, "max_seq_len": 5},
        "pol2": HUNTER,
    }
    assert by_policy(per_policy={}) == TUNED


@pytest.mark.parametrize("given", [GRU, {"model": None}, {"fcnet_hiddens": (8,), "lr": 0.5}])
def test_a_network_for_one_policy_takes_the_place_of_its_tuned_one(given):
    kept = {**BESIDE_THE_NETWORK["pol1"], **given}
    assert by_policy(per_policy={"pol1": given}) == {"pol1": kept, "pol2": HUNTER}


def test_a_network_for_one_policy_takes_the_place_of_one_that_is_tuned_for_all():
    config = PPOConfig.tuned("waterworld", policies="per-agent", per_policy={"pursuer_0": GRU})
    assert config.for_policy("pursuer_0").model is None
    assert config.for_policy("pursuer_1").model == make("waterworld")[0].tuned["model"]


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ("shared", {}),
        ({"both": ["agent1", "agent2"]}, {}),
        ("per-agent", {"agent1": EXPLORER, "agent2": HUNTER}),
        (["pol1", "pol2"], TUNED),
        (SWAPPED, {"pol1": HUNTER, "pol2": EXPLORER}),
        ({"pol1": None, "pol2": None}, TUNED),  # RLlib's specifications
    ],
)
def test_tuned_settings_go_to_the_policy_that_plays_the_same_agents(policies, expected):
    assert by_policy(policies=policies) == expected
    tuned(policies=policies).setup()


def test_settings_of_specifications_are_merged_as_those_of_per_policy():
    policies = {"pol1": (None, None, None, {"lr": 0.5}), "pol2": None}
    assert by_policy(policies=policies) == {"pol1": {**EXPLORER, "lr": 0.5}, "pol2": HUNTER}


test_what_is_badly_formed_is_refused_by_name = refused_by(
    lambda given: tuned(**given).setup(),
    [
        ({"per_policy": 3}, "per_policy=3 must be a mapping"),
        ({"per_policy": {"pol1": 3}}, r"per_policy\['pol1'\]=3 must be a mapping"),
        ({"per_policy": {"pol3": {"lr": 1.0}}}, "unknown policy 'pol3'"),
        ({"policies": "sharde"}, "policies='sharde': allowed are"),
        ({"policies": SWAPPED, "per_policy": {"pol3": {}}}, "unknown policy 'pol3'"),
    ],
)


test_what_a_tuned_network_cannot_go_with_is_said_in_one_line = refused_by(
    lambda given: tuned().replace(**given).build(),
    [
        ({"use_lstm": True}, "use_lstm=True and model=.*CellMemory.*: your own model has its own"),
        ({"critic_observation": "state"}, "critic_observation='state' and model=.*CellMemory"),
        ({"env_args": {"height": 5}}, r"CellMemory\(height=10, width=10\) needs .*50, 50"),
    ],
)


@dataclasses.dataclass(frozen=True)
class BadlyTuned(MultiAgentArena):
    tuned = {"per_policy": {"pol1": 3}}  # noqa: RUF012


def test_an_environments_own_mistake_is_refused_as_a_users_is():
    with pytest.raises(UsageError, match=r"per_policy\['pol1'\]=3 must be a mapping"):
        PPOConfig.tuned(BadlyTuned())
