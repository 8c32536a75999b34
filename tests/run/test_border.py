"""The border: what a policy is given and what it gives is the environment's own, on every way.

Spaces are drawn: all kinds, with starts, shapes and types, nested. What goes in comes back as it
was, through a policy, a learner, episodes, files, exports, a server and its clients.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.core.env import Environment
from jaxrl.core.spaces import Dict, Discrete, MultiDiscrete, Tuple, from_json, is_tree, parts_of
from jaxrl.episodes import EpisodeWriter, SingleAgentEpisode, read_episodes
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.export.numpy_policy import NumpyPolicy
from jaxrl.run.inference.policy import Policy
from tests.spaces_strategy import integers, is_equal, member, trees

STEPS = 4
CONFIG = jaxrl.PPOConfig(
    env="external",
    num_envs=1,
    rollout_length=STEPS,
    minibatch_size=STEPS,
    num_epochs=1,
    fcnet_hiddens=(4,),
)
FEW = settings(max_examples=4, deadline=None, derandomize=True)
SEEDS = st.integers(0, 99)
GRID = MultiDiscrete([[2, 3], [4, 5]], start=[[1, -1], [7, 0]])
THREE = Discrete(3, start=-1)


def policy_of(observation_space, action_space, **changes):
    """A policy of random weights, large enough that observations matter."""
    spec = CONFIG.replace(**changes).policy_spec("p", observation_space, action_space)
    params = jax.tree.map(lambda leaf: 3 * leaf, spec.model.init(jax.random.key(1)))
    return Policy(spec, PolicyWeights(params, spec.initial_filter()), name="p", agents=("p",))


def rows(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


def contains(space, values):
    return bool(jnp.all(jax.vmap(space.contains)(values)))


@FEW
@given(trees(), integers(), SEEDS)
def test_a_policy_takes_and_gives_the_environments_own_values(observations, actions, seed):
    policy, obs = policy_of(observations, actions), member(observations, seed, (3,))
    for explore in (False, True):
        chosen = policy.act(obs, explore=explore)
        assert contains(actions, chosen)
        alone = policy.act(rows(obs, 0), explore=False)
    likeliest = policy.act(obs)
    assert is_equal(actions, alone, rows(likeliest, 0))
    distribution = policy.distribution(obs)
    assert is_equal(actions, distribution.mode(), likeliest)
    drawn = distribution.sample(jax.random.key(seed))
    assert contains(actions, drawn)
    assert np.all(distribution.log_prob(drawn) <= distribution.log_prob(likeliest) + 1e-6)
    spec = policy.policy_spec
    back = spec.to_env_action(spec.from_env_action(drawn))
    assert is_equal(actions, back, drawn)


@FEW
@given(trees(), integers(), SEEDS)
def test_a_learner_its_episodes_and_files_hold_the_environments_own_values(
    tmp_path_factory, observations, actions, seed
):
    learner = jaxrl.Learner(CONFIG, observations, actions)
    obs, policy = member(observations, seed, (STEPS + 1,)), learner.get_policy("default_policy")
    episode = SingleAgentEpisode(observation_space=observations, action_space=actions)
    episode.add_env_reset(rows(obs, 0))
    for step in range(STEPS):
        action, outputs = learner.act(rows(obs, step))
        assert actions.contains(jnp.asarray(action))
        log_prob = policy.distribution(rows(obs, step)).log_prob(action)
        np.testing.assert_allclose(log_prob, outputs["action_logp"], atol=1e-5)
        told = {"terminated": step == STEPS - 1, "extra_model_outputs": outputs}
        episode.add_env_step(rows(obs, step + 1), action, 1.0, **told)
    learner.add(episode)
    ((lanes,), *_) = learner._lanes.take()
    alone = lambda leaf: leaf[:, 0, 0, 0]
    back = learner.algorithm.policy_specs[0].to_env_action(jax.tree.map(alone, lanes.action))
    assert is_equal(actions, back, episode.get_actions())
    assert is_equal(observations, jax.tree.map(alone, lanes.obs), rows(obs, slice(STEPS)))
    path = tmp_path_factory.mktemp("episodes")
    with EpisodeWriter(path) as writer:
        writer.write(episode)
    (read,) = read_episodes(path)
    assert is_equal(observations, read.get_observations(), obs)
    assert is_equal(actions, read.get_actions(), episode.get_actions())
    learner.add(read)


@FEW
@given(trees(), integers(), SEEDS, st.sampled_from([".npz", ".stablehlo"]))
def test_an_exported_policy_takes_and_gives_the_environments_own_values(
    tmp_path_factory, observations, actions, seed, ending
):
    policy, obs = policy_of(observations, actions), member(observations, seed, (3,))
    exported = policy.export(tmp_path_factory.mktemp("file") / f"policy{ending}")
    if ending == ".npz":
        file = NumpyPolicy(exported.path)
        named = {"obs": obs}
        if is_tree(observations):
            parts = list(parts_of(observations, obs))
            name = lambda path: "obs" if len(parts) == 1 else f"obs_{path.replace('/', '_')}"
            named = {name(path): part for path, _, part in parts}
        assert is_equal(actions, file.act(**named), policy.act(obs))
    assert from_json(exported.metadata["action_space"]) == actions
    if "inf" not in str(observations):  # strict JSON has texts for infinite numbers
        assert from_json(exported.metadata["observation_space"]) == observations


# An environment of JAX


class GridState(struct.PyTreeNode):
    time: jax.Array
    seen: jax.Array


class NoParams(struct.PyTreeNode):
    pass


class Shifted(Environment):
    """Pays for the sign of an entry of a grid of integers that start anywhere."""

    name = "shifted"
    default_params = NoParams()

    def observation_space(self, params=None):
        return GRID

    def action_space(self, params=None):
        return THREE

    def reset_env(self, key, params):
        seen = GRID.sample(key)
        return seen, GridState(jnp.int32(0), seen)

    def step_env(self, key, state, action, params):
        seen = GRID.sample(key)
        reward = (action == state.seen[0, 1]).astype(jnp.float32)
        return seen, GridState(state.time + 1, seen), reward, state.time >= 7, {}

    def is_truncated(self, state, params):
        return jnp.array(False)


TRAINING = CONFIG.replace(
    env=Shifted(), num_envs=8, rollout_length=32, minibatch_size=64, num_epochs=4, lr=2e-2
)


@pytest.fixture(scope="module")
def trained():
    with jaxrl.Trainer(TRAINING.replace(total_env_steps=256 * 10), run_dir=None, quiet=True) as t:
        t.fit()
        yield t


def test_an_environment_of_jax_with_integers_that_start_anywhere_is_learned(trained):
    jaxrl.check_env(Shifted())
    grid = np.tile(np.array([[1, -1], [7, 0]], np.int32), (3, 1, 1))
    grid[:, 0, 1] = -1, 0, 1
    assert trained.get_policy("default_policy").act(grid).tolist() == [-1, 0, 1]


def test_sampled_episodes_hold_the_environments_own_values_and_can_be_replayed(trained):
    (episode,) = trained.sample(num_episodes=1, explore=True)
    assert contains(GRID, episode.get_observations())
    assert contains(THREE, episode.get_actions())
    assert episode.get_return() == np.sum(
        episode.get_actions() == episode.get_observations()[:-1, 0, 1]
    )
    assert "actions_for_env" not in episode.extra_model_outputs
    assert jaxrl.replay_episode(episode, Shifted()).difference is None


def test_cloning_and_judging_read_the_environments_own_actions(trained, tmp_path):
    episodes = trained.sample(num_episodes=40, explore=True)
    with EpisodeWriter(tmp_path) as writer:
        for episode in episodes:
            writer.write(episode)
    cloning = jaxrl.BCConfig(
        env=Shifted(),
        input=str(tmp_path),
        fcnet_hiddens=(8,),
        lr=3e-2,
        minibatch_size=160,
        train_batch_size=160,
    )
    with jaxrl.Trainer(cloning, run_dir=None, quiet=True) as t:
        for _ in range(30):
            t.train()
        cloned = t.get_policy("default_policy")
    grid = np.tile(np.array([[1, -1], [7, 0]], np.int32), (3, 1, 1))
    grid[:, 0, 1] = -1, 0, 1
    assert cloned.act(grid).tolist() == [-1, 0, 1]


@pytest.mark.parametrize("function", ["to_gymnasium", "to_gymnax"])
def test_adapters_to_other_libraries_play_the_same_environment(function):
    made = getattr(jaxrl, function)(Shifted())
    if function == "to_gymnasium":
        assert made.action_space.start == -1
        obs, _ = made.reset(seed=0)
        assert made.observation_space.contains(obs)
        assert made.step(np.int64(obs[0, 1]))[1] == 1.0
        return
    params = made.default_params
    assert made.action_space(params).n == 3
    obs, state = made.reset(jax.random.key(0), params)
    assert made.observation_space(params).contains(obs)
    assert made.step(jax.random.key(1), state, obs[1], params)[2] == 1.0  # both count from 0


NESTED = Dict({"key": THREE, "grid": Tuple((GRID, GRID))})


@pytest.mark.process
@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("mode", ["remote", "local"])
def test_clients_of_a_server_send_and_get_the_environments_own_values(mode, text):
    pytest.importorskip("websockets", reason="the extra `serving`")
    from jaxrl_client import PolicyClient

    from tests.serving.served import serving

    for actions in (THREE, GRID):
        policy, obs = policy_of(NESTED, actions), member(NESTED, 3, (STEPS,))
        with serving(policy) as server, PolicyClient(server.address, mode, text=text) as client:
            episode = client.start_episode()
            for step in range(STEPS):
                action = client.get_action(episode, rows(obs, step))
                assert is_equal(actions, action, policy.act(rows(obs, step)))
            client.end_episode(episode)
