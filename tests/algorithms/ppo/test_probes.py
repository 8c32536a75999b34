"""Training learns what each probe isolates; which probe fails says which part broke."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig, Trainer, UsageError, sweep
from jaxrl.ops.distributions import DiagGaussian
from jaxrl.rollout.steps import UNDECLARED_WAITS, undeclared_waits
from jaxrl.run.devices.compiled import run_chunk
from tests.algorithms.reinforce import ReinforceConfig
from tests.probes import Leavers, Plain, Probe, Target, TargetParams, TicTacToe, Turns, Twins

SMALL = {
    "num_envs": 16,
    "rollout_length": 16,
    "minibatch_size": 64,
    "num_epochs": 4,
    "fcnet_hiddens": (32,),
    "lr": 1e-2,
    "lambda_": 0.95,
}


@functools.cache
def program(env, **settings):
    """(configuration, algorithm, its training), compiled once for all numbers and lengths."""
    config = PPOConfig(env=env, **{**SMALL, **settings})
    algorithm = config.build()

    @jax.jit
    def train(key, hypers, env_params, num_updates):
        runner = algorithm.init(key, hypers, env_params)
        return run_chunk(algorithm, runner, hypers, env_params, None, num_updates)[:2]

    return config, algorithm, train


def trained(env, num_updates, env_params=None, numbers=(), **settings):
    """(probabilities or Box actions, values) of observations, and the last mean return."""
    config, algorithm, train = program(env, **settings)
    env_params = env.default_params if env_params is None else env_params
    hypers = config.replace(**dict(numbers)).hypers()
    runner, rows = train(jax.random.key(0), hypers, env_params, num_updates)

    def look(policy, obs):
        group, _ = algorithm.grouping.locate(policy)
        policy_spec = algorithm.policy_specs[group]
        distribution, value, _ = jax.jit(policy_spec.apply)(
            algorithm.policy_weights(runner, policy), jnp.asarray(obs)
        )
        if isinstance(distribution, DiagGaussian):
            return np.asarray(policy_spec.to_env_action(distribution.mode())), np.asarray(value)
        return np.asarray(jax.nn.softmax(distribution.logits)), np.asarray(value)

    episodes = jax.tree.map(
        lambda leaf: np.asarray(leaf)[num_updates - 1], rows.unpack().episodes.iteration
    )
    return look, float(episodes.episode_return.sum / max(episodes.count, 1))


def probed(num_updates, numbers=(), **probe):
    """Of `Probe`, whose kinds are numbers: one program trains them all."""
    return trained(Probe(), num_updates, Probe(**probe).default_params, numbers)


@pytest.mark.long
def test_a_constant_reward_is_learned_as_the_value():
    look, _ = probed(30, num_steps=1)
    np.testing.assert_allclose(look("default_policy", [0, 1])[1], [1.0, 1.0], atol=0.05)


@pytest.mark.long
def test_a_reward_two_steps_ahead_is_discounted_twice():
    look, _ = probed(60, {"gamma": 0.5}, num_steps=3, shown=False)
    np.testing.assert_allclose(look("default_policy", [0, 2, 4])[1], [0.25, 0.5, 1.0], atol=0.05)


def test_the_rewarded_action_is_learned_without_anything_to_see():
    look, mean_return = probed(30, reward_for="action", shown=False)
    assert look("default_policy", [0])[0][0, 1] > 0.95
    assert mean_return > 0.9


def test_the_action_that_the_observation_calls_for_is_learned():
    look, mean_return = probed(40, reward_for="cue")
    probabilities, _ = look("default_policy", [0, 1])
    assert probabilities[0, 0] > 0.95
    assert probabilities[1, 1] > 0.95
    assert mean_return > 0.9


PLACES = np.array([[-0.8], [-0.2], [0.5]])
CONTINUOUS = {
    "num_envs": 64,
    "rollout_length": 4,
    "lr": 5e-3,
    "entropy_coeff": 0.0,
    "num_epochs": 8,
}


# With a deviation that depends on the observation, and with one that does not and filtered ones.
PLAIN = {**CONTINUOUS, "free_log_std": False}
FILTERED = {**CONTINUOUS, "free_log_std": True, "observation_filter": "MeanStdFilter"}


@pytest.mark.long
@pytest.mark.parametrize("settings", [PLAIN, FILTERED], ids=["plain", "filtered"])
def test_the_place_that_the_observation_calls_for_is_learned_by_a_continuous_action(settings):
    look, mean_return = trained(Target(), 100, **settings)
    np.testing.assert_allclose(look("default_policy", PLACES)[0], 5.0 + 3.0 * PLACES, atol=0.6)
    assert mean_return > -1.2


@pytest.mark.long
def test_an_observation_far_from_zero_is_learned_from_through_its_filter_alone():
    """A thousandth of the observation carries the cue.

    The network by itself cannot tell it from none.
    """
    far = TargetParams(offset=1000.0)
    look, mean_return = trained(Target(), 100, far, **FILTERED)
    np.testing.assert_allclose(
        look("default_policy", 1000.0 + PLACES)[0], 5.0 + 3.0 * PLACES, atol=0.8
    )
    _, unfiltered = trained(Target(), 100, far, **PLAIN)
    assert mean_return > -1.2 > unfiltered


@pytest.mark.parametrize("lambda_", [0.0, 1.0])
def test_a_time_limit_bootstraps_so_that_the_value_is_that_of_an_endless_world(lambda_):
    """Reward 1 in each of the two steps of an episode, which look alike.

    With gamma 0.5 each is worth 2; a time limit treated as a real end would make it less.
    """
    endless = Probe(ends=False, shown=False).default_params.replace(max_steps_in_episode=2)
    look, _ = trained(Probe(), 60, endless, {"gamma": 0.5, "lambda_": lambda_})
    np.testing.assert_allclose(look("default_policy", [0])[1], [2.0], atol=0.05)


@pytest.mark.long
def test_with_centered_values_normalised_returns_do_not_drive_a_policy_to_unseen_places():
    """Values fall from 0 to their level where the policy has been, but not beyond.

    So beyond looks better, and the policy walks away; standing still earns -25.5.
    """
    settings = {"normalize_returns": True, "rollout_length": 25, "minibatch_size": 100}
    _, centered = trained(Plain(), 60, center_values=True, **settings)
    _, learned = trained(Plain(), 60, **settings)
    assert centered > -26 > -35 > learned


@pytest.mark.long
def test_agents_of_different_spaces_learn_and_one_that_left_learns_from_its_active_rows_alone():
    look, _ = trained(Leavers(), 60)
    assert look("short", [0])[0][0, 1] > 0.95  # -100 awaits action 1 in the rows after it has left
    assert look("short", [0])[1][0] == pytest.approx(1.0, abs=0.1)
    assert (look("long", [0, 1, 2, 3])[0][:, 1] > 0.95).all()
    angles = np.arange(4.0)
    assert (look("wide", np.stack([np.cos(angles), np.sin(angles)], axis=-1))[0][:, 2] > 0.95).all()


@pytest.mark.long
@pytest.mark.parametrize(("length", "lambda_"), [(3, 1.0), (3, 0.0), (1, 1.0)])
def test_in_a_game_of_turns_values_are_what_each_is_paid_after_its_move(length, lambda_):
    """a is paid 1 while it waits for the end.

    Rollouts of 3 steps and of one cut most games between two moves.
    """
    numbers = {"gamma": 0.5, "lambda_": lambda_}
    look, mean_return = trained(
        Turns(), 60, numbers=numbers, rollout_length=length, minibatch_size=16
    )
    np.testing.assert_allclose(look("a", [0])[1], [1.0], atol=0.02)
    np.testing.assert_allclose(look("b", [1])[1], [2.0], atol=0.02)
    assert mean_return == 3.0


class Undeclared(Turns):
    """The game of turns that says whose turn it was, but not whose turn it is."""

    acting_agents = property()  # no attribute

    def step_env(self, key, state, action, params):
        obs, after, reward, terminated, _ = super().step_env(key, state, action, params)
        return (
            obs,
            after,
            reward,
            terminated,
            {"active": {"a": state.time == 0, "b": state.time == 1}},
        )


@pytest.mark.long
def test_agents_that_wait_unannounced_stop_training():
    config = PPOConfig(env=Undeclared(), **SMALL).replace(total_env_steps=256)
    assert not hasattr(config.env, "acting_agents")
    refusal = r"an agent is inactive but has not ended; .* must have acting_agents"
    with pytest.raises(UsageError, match=refusal) as raised:
        Trainer(config, run_dir=None, quiet=True).fit()
    assert "arose in learning" not in str(raised.value)


@pytest.mark.long
def test_a_sweep_refuses_agents_that_wait_unannounced(tmp_path):
    """By an algorithm whose program is small: who waits is found before anything is learned."""
    sizes = {"num_envs": 4, "rollout_length": 4, "fcnet_hiddens": (4,)}
    config = ReinforceConfig(env=Undeclared(), total_env_steps=16, **sizes)
    with pytest.raises(UsageError, match=r"trial 0000, .*: an agent is inactive but has not ended"):
        sweep(config, seeds=2, run_dir=tmp_path / "sweep", quiet=True)


@pytest.mark.parametrize(
    ("acted", "number"),
    [
        ("1111 1111", 0),
        ("0000 1111", 0),  # absent for a whole episode, as padding is
        ("1111 0000", 0),
        ("11e0 1111", 0),  # it ended
        ("e010 1111", 1),  # ended, back again, and then away
        ("1100 1111", 1),
        ("0111 0000", 1),
        ("1001 0000", 1),
        ("0101 1011", 3),
    ],
)
def test_what_counts_as_a_wait(acted, number):
    """Two episodes of four steps each; 1: the agent acted, e: it acted and ended."""
    steps = np.array(list(acted.replace(" ", "")))
    over = np.arange(8) % 4 == 3
    active, ended = steps != "0", (steps != "1") | over
    so_far = np.concatenate([np.cumsum(episode) for episode in active.reshape(2, 4)])
    trajectory = SimpleNamespace(
        active=active[:, None, None, None], done=ended[:, None, None, None]
    )
    reached = SimpleNamespace(
        agent_steps=jnp.asarray(so_far)[:, None, None], length=np.arange(8)[:, None] % 4 + 1
    )
    rollout = SimpleNamespace(
        trajectories=(trajectory,), reached=reached, episode_done=over[:, None]
    )
    grouping = SimpleNamespace(gather=lambda values: (values[None],))
    spec = SimpleNamespace(always_active=False, waits=False, grouping=grouping)
    assert undeclared_waits(spec, rollout, 0, None)[UNDECLARED_WAITS].tolist() == [number]


@pytest.mark.long
def test_an_agent_that_joins_in_the_first_step_of_a_rollout_is_late_if_its_episode_has_begun():
    """a acts, then b, and the world ends: in rollouts of one step b joins in every second one."""
    sizes = {"num_envs": 16, "rollout_length": 1, "minibatch_size": 4, "fcnet_hiddens": (4,)}
    config = PPOConfig(env=Undeclared(), **sizes)
    algorithm = config.build()

    def count(runner, k):
        runner, rollout = algorithm.collect(runner.replace(num_updates=k))
        waits = undeclared_waits(algorithm.rollout_spec, rollout, 0, None)
        return runner, waits[UNDECLARED_WAITS].sum()

    assert len(algorithm.grouping.groups) == 1
    start = jax.jit(algorithm.init)(jax.random.key(0))
    _, found = jax.jit(lambda start: jax.lax.scan(count, start, jnp.arange(4)))(start)
    assert found.tolist() == [0, config.num_envs] * 2


GAMES = 500


def against_a_random_player(game, look_for, seat, key):
    """[GAMES] results of `seat` moving by the likeliest action, the other one at random."""
    other = next(agent for agent in game.agents if agent != seat)

    def step(carry, key):
        state, over, result = carry
        obs, possible = game.observe(state), state.cells == 0
        best = jnp.argmax(jnp.where(possible, look_for(obs[seat]), -jnp.inf))
        drawn = jax.random.categorical(key, jnp.where(possible, 0.0, -jnp.inf))
        _, following, reward, terminated, _ = game.step_env(
            key, state, {seat: best, other: drawn}, None
        )
        result = jnp.where(over, result, reward[seat])
        state = jax.tree.map(lambda new, old: jnp.where(over, old, new), following, state)
        return (state, over | terminated["__all__"], result), None

    def play(key):
        start = game.reset_env(key, None)[1], jnp.array(False), jnp.float32(0)
        return jax.lax.scan(step, start, jax.random.split(key, 9))[0][2]

    return np.asarray(jax.jit(jax.vmap(play))(jax.random.split(key, GAMES)))


@pytest.mark.slow
def test_self_play_by_turns_learns_tic_tac_toe():
    """One policy plays both sides.

    At the start it loses a third of its games to a random player.
    """
    game = TicTacToe()
    config = PPOConfig(
        env=game,
        policies="shared",
        num_envs=128,
        rollout_length=16,
        minibatch_size=512,
        num_epochs=4,
        fcnet_hiddens=(64, 64),
        lr=2e-3,
        gamma=1.0,
        lambda_=0.95,
        entropy_coeff=0.05,
        clip_param=0.2,
        use_kl_loss=False,
        total_env_steps=2048 * 80,
    )
    algorithm = config.build()
    start = jax.jit(algorithm.init)(jax.random.key(0))
    train = jax.jit(
        lambda runner: jax.lax.scan(
            lambda r, _: algorithm.update(r), runner, length=config.num_updates
        )
    )
    trained, _ = train(start)

    def lost(runner, seat):
        weights = algorithm.policy_weights(runner, "default_policy")
        logits = lambda obs: (
            algorithm.policy_specs[0].model.apply(weights.params, obs[None])[0].logits[0]
        )
        return float(np.mean(against_a_random_player(game, logits, seat, jax.random.key(1)) < 0))

    before, after = (
        {seat: lost(runner, seat) for seat in game.agents} for runner in (start, trained)
    )
    assert min(before.values()) > 0.2
    assert after["x"] < 0.05
    assert after["o"] < 0.12


@pytest.mark.long
def test_a_policy_not_in_policies_to_train_keeps_its_parameters_to_the_bit():
    config = PPOConfig(env=Twins(), policies_to_train=("second",), **SMALL)
    algorithm = config.build()
    start = jax.jit(algorithm.init)(jax.random.key(0))
    runner, metrics = jax.jit(algorithm.update)(start)
    for policy, changes in (("first", False), ("second", True)):
        before = algorithm.policy_weights(start, policy)
        after = algorithm.policy_weights(runner, policy)
        same = jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), before, after))
        assert same != changes, policy
    learned = {
        p
        for g, m in zip(algorithm.grouping.groups, metrics.learners, strict=True)
        if m
        for p in g.policies
    }
    assert learned == {"second"}
