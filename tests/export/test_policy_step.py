"""A policy as one function of named arrays: which inputs and outputs it has, and no more."""

import numpy as np
import pytest

from jaxrl.export.policy_step import PolicyStep
from jaxrl.models.networks import NETWORK_DTYPES
from tests.export.kinds import KINDS, policy_of_kind

STATES = {
    "gru": ["state_in_policy", "state_in_prev_action"],
    "filtered, masked": ["state_in_policy", "state_in_prev_action"],
    "lstm": ["state_in_policy_c", "state_in_policy_h", "state_in_prev_action"],
    "attention": ["state_in_policy_count", "state_in_policy_past"],
    "mixed, told": ["state_in_policy", "state_in_prev_action"],
}
OTHERS = {
    "dense": ["obs", "mask"],
    "tables": ["obs", "agent"],
    "tree": ["obs_gear", "obs_near", "obs_place", "obs_speed"],
    "filtered tree": ["obs_gear", "obs_near", "obs_speed", "obs_wide"],
    "filtered, masked": ["mask", "obs", "prev_reward"],
    "mask": ["mask", "obs"],
    "gru": ["obs", "mask", "prev_reward"],
    "lstm": ["obs", "prev_reward"],
    "mixed": ["obs", "mask"],
    "mixed, told": ["obs", "mask", "prev_reward"],
}
ACTIONS = {
    "mixed": ["action_move", "action_push"],
    "mixed, told": ["action_0", "action_1_push", "action_1_turn"],
}


def step_of(kind, explore):
    policy = policy_of_kind(kind)
    return PolicyStep(policy.policy_spec, policy.weights, masked=policy.masked, explore=explore)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_has_only_the_inputs_and_outputs_that_its_actions_depend_on(kind):
    """That it acts as the policy is what the tests of each format show."""
    for explore in (False, True):
        step = step_of(kind, explore)
        noise = ["noise"] if explore else []
        expected = [*OTHERS.get(kind, ["obs"]), *noise, *STATES.get(kind, [])]
        assert [tensor.name for tensor in step.inputs] == expected
        outputs = [name.replace("_in_", "_out_") for name in STATES.get(kind, [])]
        named = sorted([*ACTIONS.get(kind, ["action"]), "action_dist_inputs", *outputs])
        assert [tensor.name for tensor in step.outputs] == named


def test_the_state_of_the_value_network_is_no_input_and_a_shared_one_is():
    apart = step_of("lstm", False).initial_state(2)
    assert {name: value.shape for name, value in apart.items()} == {
        "state_in_policy_c": (2, 6),
        "state_in_policy_h": (2, 6),
        "state_in_prev_action": (2, 2),
    }
    assert all(np.all(value == 0) for value in apart.values())


@pytest.mark.parametrize("kind", ["dense", "gru"])
def test_a_policy_of_mixed_precision_is_exported_in_float32(kind, tmp_path):
    policy, rounded = (policy_of_kind(kind, network_dtype) for network_dtype in NETWORK_DTYPES)
    assert rounded.policy_spec.model != policy.policy_spec.model
    steps = [
        PolicyStep(each.policy_spec, each.weights, masked=each.masked, explore=False)
        for each in (policy, rounded)
    ]
    assert str(steps[0].program()) == str(steps[1].program())
    for ending in (".npz", ".stablehlo"):
        assert rounded.export(tmp_path / f"model{ending}").parity.error < 1e-5
