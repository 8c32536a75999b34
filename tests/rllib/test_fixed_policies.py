"""RLlib's random and scripted policies, which play and never learn."""

import jax.numpy as jnp
import pytest

from jaxrl import UsageError, from_rllib
from jaxrl.rllib import PolicySpec, RandomPolicy
from tests.messages import refusal

TWO = {
    "env": "MultiAgentArena",
    "policy_mapping_fn": lambda agent: "a" if agent == "agent1" else "random",
}


@pytest.mark.parametrize(
    "spec",
    [
        (RandomPolicy, None, None, {}),
        PolicySpec(policy_class=RandomPolicy),
        (
            "<class 'ray.rllib.examples._old_api_stack.policy.random_policy.RandomPolicy'>",
            *(None, None, {}),
        ),
    ],
)
def test_a_random_policy_plays_and_does_not_learn(spec):
    found = from_rllib({**TWO, "policies": {"a": PolicySpec(), "random": spec}})
    assert dict(found.config.per_policy) == {"random": (("model", RandomPolicy),)}
    assert found.config.policies_to_train == ("a",)
    assert found.run_settings["evaluation_explore"] is True


def test_a_random_policy_has_no_memory_beside_one_that_has():
    policies = {"a": PolicySpec(), "random": PolicySpec(RandomPolicy)}
    config = from_rllib({**TWO, "policies": policies, "model": {"use_lstm": True}}).config
    assert dict(dict(config.per_policy)["random"])["use_lstm"] is False
    assert config.use_lstm and not config.for_policy("random").use_lstm


def test_a_scripted_policy_is_a_function_of_the_spaces_and_does_not_learn():
    def upwards(observation_space, action_space):
        return lambda key: {}, lambda params, obs: (jnp.eye(4)[[0] * len(obs)], jnp.zeros(len(obs)))

    policies = {"a": PolicySpec(), "random": PolicySpec(upwards)}
    found = from_rllib({**TWO, "policies": policies, "policies_to_train": ["a", "random"]}).config
    assert dict(dict(found.per_policy)["random"])["model"] is upwards
    assert found.policies_to_train == ("a",)


def test_random_policies_are_refused_where_evaluations_would_not_be_random():
    policies = {"a": PolicySpec(), "random": PolicySpec(RandomPolicy)}
    config = {**TWO, "policies": policies, "evaluation_config": {"explore": False}}
    with refusal("random actions need evaluations that explore"):
        from_rllib(config)


def test_rllibs_random_module_is_a_random_policy():
    rl_module = pytest.importorskip("ray.rllib.core.rl_module")
    from ray.rllib.examples.rl_modules.classes.random_rlm import RandomRLModule

    spec = rl_module.RLModuleSpec
    modules = {"a": spec(), "random": spec(module_class=RandomRLModule)}
    spec = rl_module.MultiRLModuleSpec(rl_module_specs=modules)
    found = from_rllib({**TWO, "policies": {"a", "random"}, "rl_module_spec": spec}).config
    assert dict(found.per_policy)["random"] == (("model", RandomPolicy),)


def test_random_actions_of_a_box_are_refused():
    policies = {"default_policy": PolicySpec(RandomPolicy)}
    config = from_rllib({"env": "Pendulum-v1", "policies": policies}).config
    with pytest.raises(UsageError, match="RandomPolicy plays integer actions, not Box"):
        config.networks()
