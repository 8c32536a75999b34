"""The border: what a policy is given and what it gives is the environment's own, on every way.

Spaces are drawn: all kinds, with starts, shapes and types, nested. What goes in comes back as it
was, through a policy, a learner, episodes, files, exports, a server and its clients.
"""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.core.program_spaces import action_to_program, countable, sampled_space
from jaxrl.core.spaces import (
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Tuple,
    from_json,
    is_tree,
    parts_of,
    range_of,
)
from jaxrl.episodes import SingleAgentEpisode, read_episodes
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.replay.page import Column, replay_data
from jaxrl.run.inference.policy import Policy
from tests.play.test_recording import recorded_alone
from tests.probes import OneAgent, State
from tests.programs import write_episodes
from tests.spaces_strategy import actions, is_equal, member, trees

STEPS = 4
SIZES = {"num_envs": 1, "rollout_length": STEPS, "minibatch_size": STEPS, "num_epochs": 1}
CONFIG = jaxrl.PPOConfig(env="external", fcnet_hiddens=(4,), **SIZES)
CLONING = {"fcnet_hiddens": (8,), "lr": 3e-2, "minibatch_size": 160, "train_batch_size": 160}
FEW = settings(  # without shrinking, for each example compiles programs
    max_examples=4, derandomize=True, phases=[Phase.explicit, Phase.generate]
)
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
    return bool(jnp.all(jax.vmap(space.contains)(jax.tree.map(jnp.asarray, values))))


@pytest.mark.long
@FEW
@given(trees(), actions(), SEEDS)
def test_a_policy_takes_and_gives_the_environments_own_values(observations, acting, seed):
    policy, obs = policy_of(observations, acting), member(observations, seed, (3,))
    spec, likeliest = policy.policy_spec, policy.act(obs)
    for chosen in (likeliest, policy.act(obs, explore=True)):
        assert contains(acting, chosen)
        back = spec.to_env_action(spec.action_form.from_env(chosen))
        assert is_equal(acting, back, chosen, atol=1e-5)
    assert is_equal(acting, policy.act(rows(obs, 0)), rows(likeliest, 0), atol=1e-5)
    distribution = policy.distribution(obs)
    drawn, mode = distribution.sample(jax.random.key(seed)), distribution.mode()
    assert contains(sampled_space(acting), drawn)
    assert np.all(distribution.log_prob(drawn) <= distribution.log_prob(mode) + 1e-5)
    assert is_equal(acting, spec.to_env_action(action_to_program(acting, mode)), likeliest, 1e-5)


@pytest.mark.long
@FEW
@given(trees(), actions(), SEEDS)
def test_a_learner_its_episodes_and_files_hold_the_environments_own_values(
    tmp_path_factory, observations, acting, seed
):
    learner = jaxrl.Learner(CONFIG, observations, acting)
    obs, policy = member(observations, seed, (STEPS + 1,)), learner.get_policy("default_policy")
    episode = SingleAgentEpisode(observation_space=observations, action_space=acting)
    episode.add_env_reset(rows(obs, 0))
    for step in range(STEPS):
        action, outputs = learner.act(rows(obs, step))
        assert acting.contains(jax.tree.map(jnp.asarray, action))
        sampled = outputs.get("policy_actions", action)
        log_prob = policy.distribution(rows(obs, step)).log_prob(sampled)
        np.testing.assert_allclose(log_prob, outputs["action_logp"], atol=1e-4)
        told = {"terminated": step == STEPS - 1, "extra_model_outputs": outputs}
        episode.add_env_step(rows(obs, step + 1), action, 1.0, **told)
    learner.add(episode)
    taken = episode.to_numpy().get_actions()
    ((lanes,), *_) = learner._lanes.take()
    alone = lambda leaf: leaf[:, 0, 0, 0]
    back = learner.algorithm.policy_specs[0].to_env_action(jax.tree.map(alone, lanes.action))
    assert is_equal(acting, back, taken, atol=1e-5)
    assert is_equal(observations, jax.tree.map(alone, lanes.obs), rows(obs, slice(STEPS)))
    (read,) = read_episodes(write_episodes(tmp_path_factory.mktemp("episodes"), [episode]))
    assert is_equal(observations, read.get_observations(), obs)
    assert is_equal(acting, read.get_actions(), taken)
    learner.add(read)


def integers_of(space, action):
    """(choices, index of the chosen one) of each integer of a batch of actions, in their order."""
    for _, part, values in parts_of(countable(space), action):
        if not isinstance(part, Box):
            low, high = (np.broadcast_to(bound, part.shape).ravel() for bound in range_of(part))
            chosen = np.reshape(values, (len(values), -1)) - low
            yield from zip(high - low + 1, chosen.T, strict=True)


@pytest.mark.long
@FEW
@given(trees(), actions(), SEEDS)
def test_no_policy_chooses_what_a_mask_forbids(observations, acting, seed):
    policy, obs = policy_of(observations, acting), member(observations, seed, (8,))
    rng, rows_of_mask = np.random.default_rng(seed), np.arange(8)
    masks = []
    for count, _ in integers_of(acting, policy.act(obs)):
        masks.append(rng.random((8, count)) < 0.4)
        masks[-1][rows_of_mask, rng.integers(0, count, 8)] = True
    if not masks:
        with pytest.raises(jaxrl.UsageError, match="a mask needs discrete actions"):
            policy.act(obs, action_mask=np.ones((8, 1), bool))
        return
    for explore in (False, True):
        chosen = policy.act(obs, explore=explore, action_mask=np.concatenate(masks, axis=1))
        for mask, (_, index) in zip(masks, integers_of(acting, chosen), strict=True):
            assert mask[rows_of_mask, index].all()


@pytest.mark.long
@FEW
@given(trees(), actions(), SEEDS)
def test_numbers_of_another_type_are_the_same_or_are_refused_in_one_line(
    observations, acting, seed
):
    policy, obs = policy_of(observations, acting), member(observations, seed, (3,))
    wide = jax.tree.map(lambda leaf: leaf.astype("int64" if leaf.dtype.kind in "iu" else "f8"), obs)
    assert is_equal(acting, policy.act(wide), policy.act(obs))
    leaves, structure = jax.tree.flatten(wide)
    for place, leaf in enumerate(leaves):
        wrong = [leaf + 0.5, leaf + 2**40] if leaf.dtype.kind in "iu" else [leaf * np.nan]
        for values in (*wrong, np.full(leaf.shape, "x")):
            changed = structure.unflatten([*leaves[:place], values, *leaves[place + 1 :]])
            with pytest.raises(jaxrl.UsageError) as raised:
                policy.act(changed)
            assert "\n" not in str(raised.value)


@pytest.mark.long
@FEW
@given(trees(), actions(), SEEDS, st.sampled_from([".npz", ".stablehlo"]))
def test_an_exported_policy_takes_and_gives_the_environments_own_values(
    tmp_path_factory, observations, acting, seed, ending
):
    policy, obs = policy_of(observations, acting), member(observations, seed, (3,))
    exported = policy.export(tmp_path_factory.mktemp("file") / f"policy{ending}")
    if ending == ".npz":
        file = NumpyPolicy(exported.path)
        named = {"obs": obs}
        if is_tree(observations):
            parts = list(parts_of(observations, obs))
            name = lambda path: "obs" if len(parts) == 1 else f"obs_{path.replace('/', '_')}"
            named = {name(path): part for path, _, part in parts}
        assert is_equal(acting, file.act(**named), policy.act(obs), atol=1e-4)
    for space, what in ((acting, "action_space"), (observations, "observation_space")):
        if "inf" not in str(space):  # strict JSON has texts for infinite numbers
            assert from_json(exported.metadata[what]) == space


# An environment of JAX


class Shifted(OneAgent):
    """Pays for the sign of an entry of a grid of integers that start anywhere."""

    observes = GRID
    acts = THREE

    def reset_env(self, key, params):
        seen = GRID.sample(key)
        return seen, State(jnp.int32(0), seen)

    def step_env(self, key, state, action, params):
        seen = GRID.sample(key)
        reward = (action == state.cue[0, 1]).astype(jnp.float32)
        return seen, State(state.time + 1, seen), reward, state.time >= 7, {}


TRAINING = CONFIG.replace(
    env=Shifted(), num_envs=8, rollout_length=32, minibatch_size=64, num_epochs=4, lr=2e-2
)


@pytest.fixture(scope="module")
def trained():
    with jaxrl.Trainer(TRAINING.replace(total_env_steps=256 * 10), run_dir=None, quiet=True) as t:
        t.fit()
        yield t


def repeats_the_entry(trainer):
    grid = np.tile(np.array([[1, -1], [7, 0]], np.int32), (3, 1, 1))
    grid[:, 0, 1] = -1, 0, 1
    return trainer.get_policy("default_policy").act(grid).tolist() == [-1, 0, 1]


@pytest.mark.long
def test_an_environment_of_jax_with_integers_that_start_anywhere_is_learned(trained):
    jaxrl.check_env(Shifted())
    assert repeats_the_entry(trained)


@pytest.mark.long
def test_sampled_episodes_hold_the_environments_own_values_and_can_be_replayed(trained):
    (episode,) = trained.sample(num_episodes=1, explore=True)
    assert contains(GRID, episode.get_observations())
    assert contains(THREE, episode.get_actions())
    assert episode.get_return() == np.sum(
        episode.get_actions() == episode.get_observations()[:-1, 0, 1]
    )
    assert "actions_for_env" not in episode.extra_model_outputs
    assert jaxrl.replay_episode(episode, Shifted()).difference is None


@pytest.mark.long
def test_cloning_and_judging_read_the_environments_own_actions(trained, tmp_path):
    recorded = write_episodes(tmp_path, trained.sample(num_episodes=40, explore=True))
    cloning = jaxrl.BCConfig(env=Shifted(), input=recorded, **CLONING)
    with jaxrl.Trainer(cloning, run_dir=None, quiet=True) as t:
        for _ in range(30):
            t.train()
        assert repeats_the_entry(t)


@pytest.mark.long
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
MORE = Tuple((GRID, Box(1, 3, (), "int32")))
MIXED = Dict({"move": Box(-2.0, 2.0, (2,)), "key": THREE, "more": MORE})


@pytest.mark.process
@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("mode", ["remote", "local"])
def test_clients_of_a_server_send_and_get_the_environments_own_values(mode, text):
    pytest.importorskip("websockets", reason="the extra `serving`")
    from jaxrl_client import PolicyClient

    from tests.serving.served import serving

    for acting in (THREE, GRID, MIXED):
        policy, obs = policy_of(NESTED, acting), member(NESTED, 3, (STEPS,))
        with serving(policy) as server, PolicyClient(server.address, mode, text=text) as client:
            episode = client.start_episode()
            for step in range(STEPS):
                action = client.get_action(episode, rows(obs, step))
                assert is_equal(acting, action, policy.act(rows(obs, step)), atol=1e-5)
            client.end_episode(episode)


class Mixed(gymnasium.Env):
    """Pays for each part of an action that is as observed, and checks their types."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Dict(
        {
            "move": gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float64),
            "key": gymnasium.spaces.Discrete(3, start=-1),
            "more": gymnasium.spaces.Tuple(
                (gymnasium.spaces.MultiBinary((1, 2)), gymnasium.spaces.Box(1, 3, (), np.int8))
            ),
        }
    )
    forbidden = None  # a key that must not be used

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe()

    def step(self, action):
        assert self.action_space.contains(action), action
        assert type(action["key"]) is int and action["more"][1].dtype == np.int8
        assert action["key"] != self.forbidden
        reward = float(action["key"] == np.sign(self.seen[0])) - abs(action["move"][1])
        self.steps += 1
        obs, info = self._observe()
        return obs, reward, False, self.steps == 8, info

    def _observe(self):
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        if self.forbidden is None:
            return self.seen, {}
        keys = [key != self.forbidden for key in (-1, 0, 1)]
        return self.seen, {"action_mask": np.array([*keys, *[True] * 7])}


class Forbidding(Mixed):
    forbidden = 0


@pytest.mark.long
@pytest.mark.parametrize("env", [Mixed, Forbidding])
def test_a_python_environment_with_actions_of_mixed_kinds_is_learned(env):
    config = TRAINING.replace(env=env, total_env_steps=256 * 12)
    with jaxrl.Trainer(config, run_dir=None, quiet=True, workers=0) as trainer:
        first, result = trainer.train(), trainer.fit()
        policy = trainer.get_policy("default_policy")
        (episode,) = trainer.sample(num_episodes=1, explore=True)
    before, after = (each["env_runners"]["episode_return_mean"] for each in (first, result))
    assert after > before + 2
    mask = {} if env is Mixed else {"action_mask": np.arange(10) != 1}
    action = policy.act(np.array([0.9, 0.0], np.float32), **mask)
    assert Mixed.action_space["key"].contains(int(action["key"]))
    assert int(action["key"]) == 1
    given = episode.get_extra_model_outputs("actions_for_env")
    assert np.all(np.abs(given["move"]) <= 2)


def test_integers_of_a_box_that_are_too_many_to_choose_among_are_refused():
    with pytest.raises(jaxrl.UsageError, match="give the environment a Box of floating numbers"):
        CONFIG.policy_spec("p", THREE, Box(0, 255, (84, 84), "uint8"))


class Mixing(Shifted):
    """As `Shifted`, with an action of mixed kinds."""

    acts = MIXED

    def step_env(self, key, state, action, params):
        obs, state, _, *rest = super().step_env(key, state, action["key"], params)
        reward = action["more"][1].astype(jnp.float32) - jnp.abs(action["move"][0] - 1.0)
        return obs, state, reward, *rest


@pytest.fixture(scope="module")
def mixing():
    config = TRAINING.replace(env=Mixing(), total_env_steps=256 * 10)
    with jaxrl.Trainer(config, run_dir=None, quiet=True) as trainer:
        trainer.fit()
        yield trainer


@pytest.mark.slow
@pytest.mark.long
def test_an_environment_of_jax_with_actions_of_mixed_kinds_is_learned_and_replayed(mixing):
    jaxrl.check_env(Mixing())
    assert mixing.get_policy("default_policy").act(np.asarray(GRID.start))["more"][1] == 3
    (episode,) = mixing.sample(num_episodes=1, explore=True)
    assert contains(MIXED, episode.get_extra_model_outputs("actions_for_env"))
    assert jaxrl.replay_episode(episode, Mixing()).difference is None


@pytest.mark.long
def test_a_page_shows_the_integers_and_the_numbers_of_an_action_in_parts(mixing):
    algorithm, weights = mixing.algorithm, tuple(g.weights for g in mixing.runner.learners)
    recording = recorded_alone((algorithm, weights, mixing.env_params))
    column = Column("here", (recording,))
    (agent,) = replay_data([column])["agents"]
    assert agent["parts"] == [3, 2, 3, 4, 5, 3]
    assert agent["names"][:4] == ["key: -1", "key: 0", "key: 1", "more/0 0: 1"]
    assert (agent["numbers"], agent["low"]) == (["move 0", "move 1"], [-2.0, -2.0])
    decisions = recording.decisions["default_agent"]
    assert decisions.probabilities.shape[1] == sum(agent["parts"])
    assert [part.shape[1] for part in decisions.spread] == [2, 2, 2]


@pytest.mark.long
def test_actions_of_mixed_kinds_are_cloned_and_judged(mixing, tmp_path):
    episodes = mixing.sample(num_episodes=20, explore=True)
    recorded = write_episodes(tmp_path, episodes)
    cloning = jaxrl.BCConfig(env=Mixing(), input=recorded, **CLONING)
    with jaxrl.Trainer(cloning, run_dir=None, quiet=True) as trainer:
        first = trainer.train()["learners"]["default_policy"]["policy_loss"]
        for _ in range(10):
            last = trainer.train()["learners"]["default_policy"]["policy_loss"]
    assert last < first
    judged = jaxrl.estimate_return(episodes, mixing.get_policy("default_policy"), resamples=100)
    for method in ("importance_sampling", "doubly_robust"):  # by the policy that is judged
        np.testing.assert_allclose(judged[method].estimate, judged.mean_return, rtol=0.05)
