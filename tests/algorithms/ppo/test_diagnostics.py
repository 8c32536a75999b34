"""What PPO finds worrying in an iteration, by the settings of the policy that it is about."""

import math

import pytest

from jaxrl import PPOConfig, Trainer
from jaxrl.algorithms.ppo.diagnostics import concerns

CONFIG = PPOConfig(env="arena", per_policy={"pol2": {"kl_target": 0.1, "vf_clip_param": 100.0}})


def result(**learners):
    numbers = {
        policy: {"vf_clip_fraction": share, "mean_kl_loss": kl}
        for policy, (share, kl) in learners.items()
    }
    return {"learners": {**numbers, "__all_modules__": {"num_module_steps_trained": 64}}}


def test_healthy_numbers_and_results_without_learners_worry_nobody():
    assert concerns(CONFIG, result(pol1=(0.4, 0.039), pol2=(0.55, 0.39))) == []
    assert concerns(CONFIG, result(pol1=(0.0, math.nan))) == []
    assert concerns(CONFIG, {}) == []


def test_most_value_targets_clipped_names_the_policy_and_the_bound():
    ((kind, text),) = concerns(CONFIG, result(pol1=(0.3, 0.0), pol2=(0.9, 0.0)))
    assert kind == "vf_clip_param"
    assert text.startswith("policy 'pol2': most value targets (90%) are clipped")
    assert "vf_clip_param=100," in text
    assert "scale the rewards" in text


def test_a_kl_far_above_its_target_names_both_numbers_and_policies_by_their_own_target():
    ((kind, text),) = concerns(CONFIG, result(pol1=(0.0, 0.05), pol2=(0.0, 0.05)))
    assert kind == "kl_target"
    assert text.startswith("policy 'pol1': the KL")
    assert "mean_kl_loss 0.05, kl_target 0.01" in text
    assert "lower lr" in text


def test_a_kind_is_said_once_for_all_policies():
    texts = dict(concerns(CONFIG, result(pol1=(0.7, 1.0), pol2=(0.9, 1.0))))
    assert set(texts) == {"vf_clip_param", "kl_target"}
    assert all(text.startswith("policy 'pol1' and 1 more: ") for text in texts.values())
    assert "(70%)" in texts["vf_clip_param"]


@pytest.mark.parametrize("changes", [{"use_kl_loss": False}, {"kl_coeff": 0.0}])
def test_without_a_penalty_there_is_no_target_to_be_far_from(changes):
    assert concerns(PPOConfig(env="cartpole", **changes), result(default_policy=(0.0, 1.0))) == []


def test_clipped_predictions_are_told_from_clipped_targets():
    config = PPOConfig(env="cartpole", value_clip="prediction", vf_clip_param=0.2)
    ((_, text),) = concerns(config, result(default_policy=(0.7, 0.0)))
    assert "most values (70%) move by more than vf_clip_param=0.2" in text


@pytest.mark.long
def test_cartpole_with_rllibs_clip_of_10_is_the_case_that_is_warned_of():
    """Its returns are far beyond sqrt(10): nearly no value target can be learned from at first."""
    config = PPOConfig(
        env="cartpole", num_envs=8, rollout_length=64, num_epochs=1, fcnet_hiddens=(8,)
    )
    for changes, kinds in (({}, ["vf_clip_param"]), ({"vf_clip_param": None}, [])):
        changed = config.replace(**changes)
        trained = Trainer(changed, run_dir=None, quiet=True).train()
        assert [kind for kind, _ in concerns(changed, trained)] == kinds
        assert trained["learners"]["default_policy"]["parameters_finite"] == 1.0
