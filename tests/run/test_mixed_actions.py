"""Actions of mixed kinds on every way out and in: the numbers are those of the policy itself."""

import os
import subprocess
import sys

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from jaxrl.episodes import SingleAgentEpisode, read_episodes
from tests.probes import OneAgent, SeveralAgents, State
from tests.programs import SMALL_CARTPOLE, write_episodes
from tests.spaces_strategy import is_equal

ROW = Box(-1.0, 1.0, (2,))
MOVES = Dict({"move": Discrete(3, start=-1), "push": Box(-1.0, 1.0, (2,))})
PULLS = Tuple((Box(-2.0, 2.0, ()), MultiDiscrete((2, 3)), Box(1, 3, (), "int32")))
CONFIG = SMALL_CARTPOLE.replace(env="external", num_envs=8, minibatch_size=64, lr=1e-2)
OBSERVED = np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype(np.float32)
CLONING = {"fcnet_hiddens": (8,), "lr": 3e-2, "minibatch_size": 64, "train_batch_size": 128}


def seen_at(key, time):
    row = jax.random.uniform(key, (2,), minval=-1.0)
    return row, State(jnp.int32(time), row)


class Pushed(OneAgent):
    """Pays for a move to the side that is seen, and takes for pushing."""

    observes = ROW
    acts = MOVES

    def reset_env(self, key, params):
        return seen_at(key, 0)

    def step_env(self, key, state, action, params):
        is_right = action["move"] == jnp.sign(state.cue[0]).astype(jnp.int32)
        reward = is_right.astype(jnp.float32) - jnp.abs(action["push"][1])
        return *seen_at(key, state.time + 1), reward, state.time >= 7, {}


class Pair(SeveralAgents):
    """Two agents whose actions are of different kinds."""

    agents = ("pusher", "puller")
    observes = ROW

    def action_space(self, agent, params=None):
        return {"pusher": MOVES, "puller": PULLS}[agent]

    def reset_env(self, key, params):
        row, state = seen_at(key, 0)
        return dict.fromkeys(self.agents, row), state

    def step_env(self, key, state, action, params):
        row, after = seen_at(key, state.time + 1)
        far, (first, _), count = action["puller"]
        rewards = {
            "pusher": -jnp.abs(action["pusher"]["push"][1]),
            "puller": count + first - jnp.abs(far - 1.0),
        }
        ends = dict.fromkeys((*self.agents, "__all__"), state.time >= 7)
        return dict.fromkeys(self.agents, row), after, rewards, ends, {}


class PythonPushed(gymnasium.Env):
    """As `Pushed`, of Gymnasium; what it is given fits its space."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Dict(
        {
            "move": gymnasium.spaces.Discrete(3, start=-1),
            "push": gymnasium.spaces.Box(-1.0, 1.0, (2,)),
        }
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._look(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        is_right = action["move"] == np.sign(self.row[0])
        self.time += 1
        return self._look(), is_right - abs(float(action["push"][1])), self.time == 8, False, {}

    def _look(self):
        self.row = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.row


def trainer_of(env, iterations=2, **settings):
    config = CONFIG.replace(env=env, total_env_steps=128 * iterations)
    return jaxrl.Trainer(config, run_dir=None, quiet=True, **settings)


@pytest.fixture(scope="module")
def pushed():
    with trainer_of(Pushed()) as trainer:
        trainer.fit()
        yield trainer


@pytest.fixture(scope="module")
def pair():
    with trainer_of(Pair(), 6) as trainer:
        yield trainer


@pytest.mark.slow
@pytest.mark.long
def test_agents_may_have_mixed_actions_of_different_kinds(pair):
    first, last = pair.train(), pair.fit()
    before, after = (each["env_runners"]["episode_return_mean"] for each in (first, last))
    assert after > before + 2
    (episode,) = pair.sample(num_episodes=1)
    for agent, space in (("pusher", MOVES), ("puller", PULLS)):
        policy, alone = pair.get_policy(agent), episode.agent_episodes[agent]
        judged = policy.distribution(alone.get_observations()[:-1])
        told = alone.get_extra_model_outputs("action_logp")
        np.testing.assert_allclose(judged.log_prob(alone.get_actions()), told, atol=1e-5)
        assert space.contains(jax.tree.map(jnp.asarray, policy.act(OBSERVED[0])))
    assert jaxrl.replay_episode(episode, Pair()).difference is None


@pytest.mark.long
def test_files_of_several_agents_keep_their_actions(pair, tmp_path):
    episodes = pair.sample(num_episodes=2)
    write_episodes(tmp_path, episodes)
    for read, written in zip(read_episodes(tmp_path), episodes, strict=True):
        for agent, space in (("pusher", MOVES), ("puller", PULLS)):
            actions = [each.agent_episodes[agent].get_actions() for each in (read, written)]
            assert is_equal(space, *actions)


@pytest.mark.slow
@pytest.mark.long
def test_a_learner_of_several_agents_learns_from_what_it_acts(pair):
    spaces = {agent: ROW for agent in Pair.agents}, {"pusher": MOVES, "puller": PULLS}
    learner = jaxrl.Learner(CONFIG, *spaces)
    actions, outputs = learner.act(dict.fromkeys(Pair.agents, OBSERVED[0]))
    for agent, space in spaces[1].items():
        assert space.contains(jax.tree.map(jnp.asarray, actions[agent]))
        sampled = outputs[agent]["policy_actions"]
        judged = learner.get_policy(agent).distribution(OBSERVED[0]).log_prob(sampled)
        np.testing.assert_allclose(judged, outputs[agent]["action_logp"], atol=1e-5)
    learner.add(pair.sample(num_episodes=16))
    assert learner.ready
    assert np.isfinite(learner.update()["learners"]["puller"]["policy_loss"])


def test_pettingzoo_plays_agents_with_mixed_actions():
    api = pytest.importorskip("pettingzoo.test", reason="the extra `pettingzoo`")
    env = jaxrl.to_pettingzoo(Pair())
    for agent, space in (("pusher", MOVES), ("puller", PULLS)):
        given = env.action_space(agent).sample()
        assert space.contains(jax.tree.map(jnp.asarray, given))
    api.parallel_api_test(env, 20)


@pytest.mark.long
def test_vector_environments_of_gymnasium_are_given_the_actions_of_each_copy():
    vector = lambda: gymnasium.vector.SyncVectorEnv([PythonPushed] * 8)
    with trainer_of(vector, 8, workers=0) as trainer:
        first, last = trainer.train(), trainer.fit()
    before, after = (each["env_runners"]["episode_return_mean"] for each in (first, last))
    assert after > before


def test_vector_environments_for_gymnasium_take_the_actions_of_each_copy():
    env = jaxrl.to_gymnasium_vector(Pushed(), 3)
    seen, _ = env.reset(seed=0)
    env.action_space.seed(1)
    action = env.action_space.sample()
    reward = env.step(action)[1]
    expected = (action["move"] == np.sign(seen[:, 0])) - np.abs(action["push"][:, 1])
    np.testing.assert_allclose(reward, expected, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("env", [Pushed(), PythonPushed])
def test_minari_holds_the_environments_actions_and_gives_back_the_sampled(
    env, tmp_path, monkeypatch
):
    minari = pytest.importorskip("minari", reason="the extra `offline`")
    pytest.importorskip("h5py", reason="the extra `offline`")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    workers = {"workers": 0} if env is PythonPushed else {}
    with trainer_of(env, 1, **workers) as trainer:
        trainer.train()
        episodes = trainer.sample(num_episodes=20, explore=True)
    jaxrl.episodes.to_minari(episodes, "tiny/mixed-v0")
    dataset = minari.load_dataset("tiny/mixed-v0")
    assert dataset.action_space == PythonPushed.action_space
    for data in dataset.iterate_episodes():
        rows = (jax.tree.map(lambda leaf, i=i: leaf[i], data.actions) for i in range(8))
        assert all(dataset.action_space.contains(row) for row in rows)
    for read, written in zip(jaxrl.episodes.from_minari("tiny/mixed-v0"), episodes, strict=True):
        assert is_equal(MOVES, read.get_actions(), written.get_actions())
    for config in (jaxrl.BCConfig, jaxrl.MARWILConfig):
        cloning = config(env=env, input="minari:tiny/mixed-v0", **CLONING)
        with jaxrl.Trainer(cloning, run_dir=None, quiet=True, **workers) as trainer:
            losses = [
                trainer.train()["learners"]["default_policy"]["policy_loss"] for _ in range(6)
            ]
        assert np.isfinite(losses).all()
        if config is jaxrl.BCConfig:  # MARWIL's weights change from one iteration to the next
            assert losses[-1] < losses[0]


@pytest.mark.long
def test_the_loss_of_cloning_is_the_log_probability_of_both_parts(tmp_path):
    action = {"move": np.full(128, -1, np.int32), "push": np.full((128, 2), 0.25, np.float32)}
    episode = SingleAgentEpisode(
        observations=np.full((129, 2), 0.5, np.float32),
        actions=action,
        rewards=np.zeros(128),
        terminated=True,
        observation_space=ROW,
        action_space=MOVES,
        len_lookback_buffer=0,
    )
    recorded = write_episodes(tmp_path, [episode])
    cloning = jaxrl.BCConfig(env=Pushed(), input=recorded, **{**CLONING, "lr": 0.0})
    with jaxrl.Trainer(cloning, run_dir=None, quiet=True) as trainer:
        loss = trainer.train()["learners"]["default_policy"]["policy_loss"]
        judged = trainer.get_policy().distribution(np.full(2, 0.5, np.float32))
    told = judged.log_prob({"move": np.int32(-1), "push": np.full(2, 0.25, np.float32)})
    np.testing.assert_allclose(loss, -told, rtol=1e-5)


@pytest.mark.process
def test_training_from_clients_records_the_probabilities_of_mixed_actions(pushed):
    pytest.importorskip("websockets", reason="the extra `serving`")
    from jaxrl_client import PolicyClient

    from jaxrl.serving.episode_record import Experience
    from tests.serving.served import serving

    policy, experience = pushed.get_policy(), Experience(100, 1000)
    played, leftward = [], {"move": -1, "push": [0.5, -0.25]}
    served = serving(policy, explore=True, experience=experience)
    with served as server, PolicyClient(server.address) as client:
        episode = client.start_episode()
        for row in OBSERVED:
            played.append(client.get_action(episode, row))
            client.log_returns(episode, 1.0)
        client.end_episode(episode, OBSERVED[0])
        episode = client.start_episode()
        for row in OBSERVED:  # its own actions
            client.log_action(episode, row, leftward, log_prob=-2.0)
            client.log_returns(episode, 1.0)
        client.end_episode(episode, OBSERVED[0])
    chunk, told_of = (experience.get(5).to_numpy() for _ in range(2))
    judged = policy.distribution(OBSERVED)
    outputs = chunk.get_extra_model_outputs
    told = outputs("action_logp")
    sampled = outputs("policy_actions")  # not cut at the bounds of the Box
    np.testing.assert_allclose(judged.log_prob(sampled), told, atol=1e-5)
    assert [int(each["move"]) for each in played] == chunk.get_actions()["move"].tolist()
    assert told_of.get_actions()["move"].tolist() == [-1] * 5
    learner = jaxrl.Learner(CONFIG, ROW, MOVES)
    learner.add([chunk, told_of])


SHARDED = """
import jax
from tests.run.test_mixed_actions import Pushed, trainer_of
returns = []
for devices in (1, 2):
    with trainer_of(Pushed(), 3, devices=devices) as trainer:
        assert len(jax.devices()) == 2
        returns.append(trainer.fit()["env_runners"]["episode_return_mean"])
print(*returns)
"""


@pytest.mark.process
def test_training_with_mixed_actions_is_split_over_devices():
    flags = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", SHARDED]
    done = subprocess.run(command, env=flags, capture_output=True, text=True, check=True)
    alone, split = map(float, done.stdout.split()[-2:])
    np.testing.assert_allclose(split, alone, rtol=1e-4)


def test_stable_baselines3_refuses_actions_of_several_parts():
    pytest.importorskip("stable_baselines3", reason="the extra `sb3`")
    with pytest.raises(jaxrl.UsageError, match="no actions of several parts, and Pushed has Dict"):
        jaxrl.to_sb3_vec(Pushed(), 2)
