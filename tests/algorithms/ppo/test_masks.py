"""Impossible actions: never taken, by whoever acts, and nothing is learned the worse for it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, load_policy
from jaxrl.core.env import MultiAgentEnvironment, StackedEnvironment
from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import MultiDiscrete
from jaxrl.core.types import DEFAULT_AGENT, DEFAULT_POLICY
from jaxrl.run.inference.policy import Policy
from tests.probes import Forbidden, SeveralAgents, State
from tests.programs import SMALL_CARTPOLE, first_rollout


@dataclass(frozen=True)
class Choosers(SeveralAgents, StackedEnvironment):
    """Each of two agents chooses one of three and one of two, of those it is shown as possible.

    It is paid for the greatest possible ones; how often an impossible one was chosen is the metric
    "forbidden".
    """

    agents: tuple[str, ...] = ("left", "right")
    observes = MultiDiscrete((2,) * 5)
    acts = MultiDiscrete((3, 2))

    def reset_stacked(self, key, params):
        drawn, first, second = jax.random.split(key, 3)
        possible = jax.random.bernoulli(drawn, 0.5, (2, 5))
        always_possible = (
            jax.nn.one_hot(jax.random.randint(first, (2,), 0, 3), 3),
            jax.nn.one_hot(jax.random.randint(second, (2,), 0, 2), 2),
        )
        state = State(
            jnp.int32(0), (possible | (jnp.concatenate(always_possible, -1) > 0)).astype(jnp.int32)
        )
        return state.cue, state

    def step_stacked(self, key, state, action, params):
        three, two = state.cue[:, :3], state.cue[:, 3:]
        best = jnp.stack([2 - jnp.argmax(three[:, ::-1], -1), 1 - jnp.argmax(two[:, ::-1], -1)], -1)
        allowed = [
            jnp.take_along_axis(possible, action[:, i : i + 1], -1)
            for i, possible in enumerate((three, two))
        ]
        metrics = {"forbidden": jnp.sum(1.0 - jnp.concatenate(allowed, -1))}
        reward = jnp.all(action == best, -1).astype(jnp.float32)
        return (
            state.cue,
            state.replace(time=state.time + 1),
            reward,
            jnp.ones(2, bool),
            {"metrics": metrics},
        )

    def action_mask(self, state, params):
        return state.cue == 1


@dataclass(frozen=True)
class NamedChoosers(MultiAgentEnvironment):
    """The same, agent by agent."""

    stacked: Choosers = Choosers()
    agents = stacked.agents
    default_params = stacked.default_params
    observation_space, action_space = stacked.observation_space, stacked.action_space
    reset_env, step_env = stacked.reset_env, stacked.step_env

    def action_mask(self, state, params):
        return self.stacked.by_agent(self.stacked.action_mask(state, params))


# Every probe of a kind trains by one program.
MANY = {"num_envs": 256, "minibatch_size": 512, "num_epochs": 2}


@pytest.mark.parametrize("told", ["mask", "part"])
@pytest.mark.parametrize(("lr", "low", "high"), [(1e-2, 0.95, 1.0), (0.0, 0.4, 0.6)])
@pytest.mark.long
def test_an_impossible_action_is_never_taken_and_the_same_is_learned(fitted, told, lr, low, high):
    """In no episode of 64 iterations, by a policy that soon knows and by one that never learns.

    Of a million draws: `test_of_a_million_draws_none_is_masked` in tests/ops.
    """
    trainer, first = fitted(1, env=Forbidden(told), lr=lr, **MANY)
    results = [first] + [trainer.train() for _ in range(63)]
    for result in results:
        runners = result["env_runners"]
        assert runners["num_episodes"] == 256 * 8  # of one step each
        assert runners["this_iteration"]["custom_metrics"]["forbidden_max"] == 0.0
    assert low < runners["this_iteration"]["episode_return_mean"] <= high
    for explore in (False, True) if told == "mask" else (False,):
        counted = trainer.evaluate(episodes=200, explore=explore)["env_runners"]
        assert counted["custom_metrics"]["forbidden_max"] == 0.0


@pytest.mark.long
def test_without_its_mask_the_same_probe_takes_impossible_actions_and_learns_as_much(fitted):
    trainer, young = fitted(1, env=Forbidden(None), **MANY)
    assert young["env_runners"]["custom_metrics"]["forbidden_mean"] > 0.3
    old = trainer.fit({"training_iteration": 64})
    assert old["env_runners"]["episode_return_mean"] > 0.95


@pytest.mark.long
def test_a_mask_given_to_act_is_kept(fitted):
    trainer, _ = fitted(1, env=Forbidden("mask"), **MANY)
    policy = trainer.get_policy(DEFAULT_POLICY)
    for action in range(4):
        assert policy.act(np.ones(4, int), action_mask=np.arange(4) == action) == action
    masks = {DEFAULT_AGENT: np.arange(4) == 2}
    assert trainer.compute_actions({DEFAULT_AGENT: np.ones(4, int)}, action_masks=masks) == {
        DEFAULT_AGENT: 2
    }


@pytest.mark.long
def test_a_mask_in_the_observation_is_enough(fitted):
    trainer, _ = fitted(1, env=Forbidden("part"), **MANY)
    trained = trainer.get_policy(DEFAULT_POLICY)
    policy = Policy(trained.policy_spec, trained.weights, masked=True)
    for action in range(4):
        assert (
            policy.act({"observation": np.ones(4, int), "action_mask": np.arange(4) == action})
            == action
        )


@pytest.mark.long
def test_each_agent_has_a_mask_of_its_own_and_each_number_of_an_action_its_part(fitted):
    _, result = fitted(60, env=Choosers(), policies="shared")
    assert result["env_runners"]["custom_metrics"]["forbidden_max"] == 0.0
    assert result["env_runners"]["episode_return_mean"] > 1.9  # two agents


def rollout_of(env):
    """(algorithm, runner, rollout) of the first rollout of a policy for each agent."""
    config = PPOConfig(env=env, num_envs=32, rollout_length=8, fcnet_hiddens=(32,))
    return first_rollout(config)


@pytest.mark.long
def test_an_environment_of_stacked_agents_and_the_same_agent_by_agent_have_the_same_masks():
    """So they act alike, by policies that see the masks in what is drawn from, and learn alike."""
    stacked, named = (rollout_of(env)[2].trajectories[0] for env in (Choosers(), NamedChoosers()))
    assert jax.tree.structure(stacked) == jax.tree.structure(named)
    for leaf, named_leaf in zip(jax.tree.leaves(stacked), jax.tree.leaves(named), strict=True):
        np.testing.assert_allclose(leaf, named_leaf, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_policies_side_by_side_have_masks_of_their_own():
    algorithm, runner, rollout = rollout_of(NamedChoosers())
    (trajectory,) = rollout.trajectories
    allowed = [
        np.take_along_axis(part, trajectory.action[..., i : i + 1], -1)
        for i, part in enumerate(np.split(np.asarray(trajectory.obs), [3], axis=-1))
    ]
    assert np.shape(allowed) == (2, 8, 2, 32, 1, 1) and np.all(allowed)
    possible = np.array([0, 1, 0, 1, 0], bool)  # of the first number only 1, of the second only 0
    for agent in Choosers().agents:
        weights = algorithm.policy_weights(runner, agent)
        policy = Policy(algorithm.policy_specs[0], weights, masked=True)
        assert policy.act(np.ones(5, int), action_mask=possible).tolist() == [1, 0]


@pytest.mark.long
def test_whoever_forgets_the_mask_is_told(tmp_path):
    config = SMALL_CARTPOLE.replace(env=Forbidden("mask"))
    trainer = Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False)
    trainer.save()
    trainer.stop()
    for policy in (
        trainer.get_policy(DEFAULT_POLICY),
        load_policy(tmp_path / "run", config=trainer.config),
    ):
        with pytest.raises(UsageError, match=r"action_mask must be bool\[4\], .* not left out"):
            policy.act(np.ones(4, int))
        with pytest.raises(UsageError, match=r"bool\[3, 4\], .* not \[4\]"):
            policy.act(np.ones((3, 4), int), action_mask=np.ones(4, bool))
        assert policy.value(np.ones((3, 4), int)).shape == (3,)  # no mask changes it
    with pytest.raises(UsageError, match="not left out"):
        trainer.compute_actions({DEFAULT_AGENT: np.ones(4, int)})
