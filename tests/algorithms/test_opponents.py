"""Tests of opponent pools: who plays, what is copied, results against members, exact resume."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import (
    OpponentPool,
    PPOConfig,
    ShuffledSeats,
    Trainer,
    UsageError,
    evaluate,
    make_train,
    register,
    sweep,
)
from jaxrl.algorithms.opponents import LEAST_CHANCE, Scores
from jaxrl.cli.evaluate import evaluate as evaluate_command
from jaxrl.core import machine
from jaxrl.rollout.opponents import SelfPlay
from tests.messages import refused_by
from tests.probes import Leavers, TicTacToe
from tests.programs import SMALL
from tests.run.test_resume import assert_equal_to_the_bit

HERE = "tests.algorithms.test_opponents"
GAME = "shuffled_tic_tac_toe"


def shuffled_tic_tac_toe():
    return ShuffledSeats(TicTacToe())


def first_free(obs, key):
    """The first empty cell."""
    return jnp.argmax(obs.sum(axis=0) == 0).astype(jnp.int32)


def last_possible(obs, key, action_mask):
    return (8 - jnp.argmax(action_mask[::-1])).astype(jnp.int32)


@pytest.fixture(scope="module", autouse=True)
def game():
    register(GAME, shuffled_tic_tac_toe)


SIZES = {**SMALL, "num_envs": 8, "minibatch_size": 64, "num_epochs": 1, "lr": 3e-3}
FROZEN = PPOConfig(
    env=ShuffledSeats(TicTacToe()), policies_to_train=("main",), total_env_steps=128 * 12, **SIZES
)
FIXED = {"random": "random", "first": first_free, "last": f"{HERE}:last_possible"}
POOL = FROZEN.replace(
    env=GAME, opponents=OpponentPool(size=3, every=2, draw="prioritised", fixed=FIXED)
)
MEMBERS = ("copy_0", "copy_1", "copy_2", "random", "first", "last")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, game):
    """A trainer after seven iterations, with what it learned after each."""
    path = tmp_path_factory.mktemp("pool") / "run"
    with Trainer(POOL, run_dir=path, quiet=True, pictures=False) as trainer:
        history = []
        for _ in range(7):
            trainer.train()
            history.append((trainer.runner, trainer.last_result))
        yield trainer, history


def row(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


@pytest.mark.long
def test_a_pool_of_one_frozen_copy_is_a_frozen_opponent_to_the_bit():
    config = FROZEN.replace(total_env_steps=128 * 4)
    plain = jax.jit(make_train(config))(jax.random.key(0))
    pool = config.replace(opponents=OpponentPool(size=1))
    runner, metrics = jax.jit(make_train(pool))(jax.random.key(0))
    assert runner.opponents.scores.episodes[0] > 0
    features = {name: part for name, part in runner.envs.features.items() if name != "opponents"}
    without = runner.replace(opponents=None, envs=runner.envs.replace(features=features))
    assert_equal_to_the_bit((without, metrics.replace(opponents=None)), plain)


@pytest.mark.long
def test_the_policy_that_learns_is_copied_and_the_oldest_copy_is_replaced(trained):
    trainer, history = trained
    main, opponent = (trainer.algorithm.grouping.locate(name)[0] for name in ("main", "opponent"))
    iterations = [runner.opponents.iteration.tolist() for runner, _ in history]
    assert iterations[:4] == [[0, -1, -1], [0, 2, -1], [0, 2, -1], [0, 2, 4]]
    assert iterations[6] == [6, 2, 4]
    for after, member in ((2, 1), (4, 2), (6, 0)):
        runner = history[after - 1][0]
        learned = row(runner.learners[main].weights, 0)
        assert_equal_to_the_bit(row(runner.opponents.weights, member), learned)
        assert_equal_to_the_bit(row(runner.learners[opponent].weights, 0), learned)
    kept = row(history[3][0].opponents.weights, 2)
    assert_equal_to_the_bit(row(history[6][0].opponents.weights, 2), kept)


@pytest.mark.long
def test_an_opponent_changes_where_an_episode_ends_and_only_there(trained):
    trainer, history = trained
    runner, rollout = jax.jit(trainer.algorithm.collect)(history[5][0])
    members, done = np.asarray(rollout.shown["opponents"]), np.asarray(rollout.episode_done)
    np.testing.assert_array_equal(members[0], history[5][0].envs.features["opponents"])
    after = np.concatenate([members[1:], runner.envs.features["opponents"][None]])
    assert (members == after)[~done].all()
    assert (members != after)[done].any()
    assert set(np.unique(members)) <= set(range(6))


def test_results_are_reported_by_member(trained):
    _, history = trained
    result = history[6][1]["env_runners"]["opponents"]
    assert result["num_copies"] == 4
    assert result["copy_0"]["iteration"] == 6
    assert set(result) - {"num_copies", "win_rate", "episode_return_mean", "num_episodes"} == set(
        MEMBERS
    )
    first = history[0][1]["env_runners"]["opponents"]
    assert "copy_1" not in first
    played = [first[name]["num_episodes"] for name in ("copy_0", *MEMBERS[3:])]
    assert sum(played) == first["num_episodes"] == history[0][1]["env_runners"]["num_episodes"]
    for name in MEMBERS:
        assert result[name]["num_episodes"] == 0 or 0 <= result[name]["win_rate"] <= 1


def test_a_stop_criterion_may_be_the_win_rate_against_a_member(trained):
    trainer, _ = trained
    misspelt = "env_runners/opponents/randm/win_rate"
    with pytest.raises(UsageError, match=f"unknown stop criterion '{misspelt}'"):
        trainer.fit({misspelt: 0.9})
    assert trainer.fit({"env_runners/opponents/random/win_rate": 0.0})["training_iteration"] == 7


@pytest.mark.slow
@pytest.mark.long
def test_evaluation_names_whom_it_plays_against(trained):
    trainer, _ = trained
    assert trainer.evaluate(episodes=2)["opponents"] == {"opponent": "copy of iteration 6"}
    older = trainer.evaluate(episodes=2, opponent="copy_1")
    assert older["opponents"] == {"opponent": "copy of iteration 2"}
    assert trainer.evaluate(episodes=2, opponent="pool")["opponents"] == {"opponent": "pool"}
    trainer.save()
    saved = evaluate(trainer.run_dir, episodes=2)
    assert saved["opponents"] == {"opponent": "copy of iteration 6"}
    with pytest.raises(UsageError, match="unknown opponent 'randm'; did you mean 'random'"):
        trainer.evaluate(episodes=2, opponent="randm")


@pytest.mark.long
@pytest.mark.parametrize("opponent", [None, *MEMBERS, "pool"])
def test_a_saved_run_plays_against_a_member_as_its_trainer_does(trained, opponent):
    trainer, _ = trained
    trainer.save()
    told = {"episodes": 3, "explore": True, "seed": 5, "opponent": opponent}
    played = trainer.evaluate(**told)
    needs_code = opponent in ("first", "last", "pool")
    assert evaluate(trainer.run_dir, **told, trust=needs_code) == played
    if needs_code:
        with pytest.raises(UsageError, match=r"opponents is 'tests.*--trust"):
            evaluate(trainer.run_dir, **told)


@pytest.mark.long
def test_a_saved_run_names_the_opponents_that_it_has(trained, tmp_path):
    trainer, _ = trained
    trainer.save()
    known = (
        r"unknown opponent 'randm'; did you mean 'random'\? known: copy_0, copy_1.* pool, random"
    )
    with pytest.raises(UsageError, match=known):
        evaluate(trainer.run_dir, opponent="randm")
    Trainer(FROZEN.replace(env=GAME), run_dir=tmp_path / "run", quiet=True).save()
    with pytest.raises(UsageError, match="opponent='random': the run has no pool of opponents"):
        evaluate(tmp_path / "run", opponent="random")


@pytest.mark.slow
@pytest.mark.long
def test_a_function_without_a_name_is_given_again_to_play_a_saved_run(tmp_path):
    fixed = {"lambda": lambda obs, key: first_free(obs, key), "any": "random"}
    config = FROZEN.replace(env=GAME, opponents=OpponentPool(size=2, fixed=fixed))
    trainer = Trainer(config, run_dir=tmp_path / "run", quiet=True)
    trainer.save()
    told = {"episodes": 2, "seed": 5}
    of_run = lambda **changes: evaluate(tmp_path / "run", **told, **changes)
    assert of_run(opponent="any") == trainer.evaluate(**told, opponent="any")
    with pytest.raises(UsageError, match="the run's opponents was an object"):
        of_run(opponent="lambda", trust=True)
    again = of_run(opponent="lambda", config=config)
    assert again == trainer.evaluate(**told, opponent="lambda")


@pytest.mark.long
def test_the_command_evaluates_against_a_member(trained, capsys):
    trainer, _ = trained
    trainer.save()
    command = [str(trainer.run_dir), "--episodes", "2", "--opponent"]
    for name, who in (("copy_1", "the copy of iteration 2"), ("random", "random")):
        evaluate_command([*command, name])
        assert f"played by {who}\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        evaluate_command([*command, "randm"])
    error = capsys.readouterr().err
    assert "unknown opponent 'randm'; did you mean 'random'?" in error
    assert error.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("opponent", ["first", "last"])
def test_a_function_plays_as_it_says(trained, opponent):
    trainer, _ = trained
    played = trainer.evaluate(episodes=3, opponent=opponent, return_episodes=True)
    moves = 0
    for episode in played["episodes"]:
        agent = episode.agent_episodes["player_1"]
        for obs, action in zip(agent.observations, agent.actions, strict=False):
            free = np.flatnonzero(obs.sum(axis=0) == 0)
            assert action == (free[0] if opponent == "first" else free[-1])
            moves += 1
    assert moves > 5


def test_a_run_with_a_pool_resumes_as_if_it_had_not_stopped(trained, tmp_path):
    _, history = trained
    with Trainer(POOL, run_dir=tmp_path / "run", quiet=True, pictures=False) as half:
        half.fit({"training_iteration": 3})
    with Trainer.from_checkpoint(tmp_path / "run", quiet=True, trust=True) as rest:
        result = rest.fit({"training_iteration": 7})
    assert_equal_to_the_bit(rest.runner, history[6][0])
    expected = history[6][1]["env_runners"]["opponents"]
    assert result["env_runners"]["opponents"] == expected


@pytest.mark.long
def test_a_run_resumes_with_other_settings_of_its_pool_but_not_with_other_members(trained):
    trainer, _ = trained
    trainer.save()
    again = {"path": trainer.run_dir, "run_dir": None, "quiet": True}
    rarely = {**POOL.opponents.to_dict(), "every": 100, "draw": "uniform"}
    resumed = Trainer.from_checkpoint(config=POOL.replace(opponents=rarely), strict=True, **again)
    assert_equal_to_the_bit(resumed.runner.opponents, trainer.runner.opponents)
    larger = POOL.replace(opponents={**rarely, "size": 4})
    with pytest.raises(UsageError, match="pool of opponents has size=3 and not 4"):
        Trainer.from_checkpoint(config=larger, **again)
    others = POOL.replace(opponents={**rarely, "fixed": {"random": "random"}})
    with pytest.raises(UsageError, match=r"fixed opponents \['random', 'first', 'last'\] and not"):
        Trainer.from_checkpoint(config=others, **again)


@pytest.mark.slow
@pytest.mark.long
def test_opponents_with_memory_learn_on_two_devices_what_they_learn_on_one():
    memory = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 8}
    pool = OpponentPool(size=2, every=1, fixed={"random": "random"})
    config = FROZEN.replace(opponents=pool, **memory)
    runners = []
    for devices in (1, 2):
        with Trainer(config, run_dir=None, quiet=True, devices=devices) as trainer:
            results = [trainer.train() for _ in range(2)]
            runners.append((trainer.runner, results[-1]["env_runners"]["opponents"]))
    (alone, expected), (split, found) = runners
    np.testing.assert_array_equal(
        split.envs.features["opponents"], alone.envs.features["opponents"]
    )
    assert found == expected
    for leaf, other in zip(
        jax.tree.leaves(split.opponents), jax.tree.leaves(alone.opponents), strict=True
    ):
        np.testing.assert_allclose(leaf, other, rtol=2e-5, atol=2e-5)


def test_a_members_actions_are_those_of_its_own_weights(trained):
    trainer, history = trained
    algorithm, runner = trainer.algorithm, history[6][0]
    pool, spec = algorithm.opponents, algorithm.policy_specs[algorithm.opponents.group]
    obs = runner.envs.obs[pool.group]
    inputs = spec.inputs(spec.initial_state(obs.shape[:3]), jnp.ones((1, 8, 1, 9), bool))
    members = jnp.array([0, 1, 2, 2, 1, 0, 1, 5])
    envs = runner.envs.replace(features={"opponents": members})
    seen = obs, spec.initial_state(obs.shape[:3]), inputs
    found = jax.jit(
        lambda opponents: SelfPlay().apply(spec, pool.opponents(opponents), envs, seen)[0]
    )(runner.opponents)
    apply = jax.jit(spec.apply)
    for env, member in enumerate(members[:7].tolist()):
        alone, *_ = apply(
            row(runner.opponents.weights, member), obs[0, env], inputs=row(row(inputs, 0), env)
        )
        np.testing.assert_allclose(found.logits[0, env], alone.logits, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_members_are_drawn_as_the_settings_say(trained):
    trainer, history = trained
    pool, state = trainer.algorithm.opponents, history[2][0].opponents  # copies 0 and 2
    scores = Scores(jnp.full(6, 4.0), jnp.array([4.0, 2.0, 0.0, 3.0, 1.0, 0.0]), jnp.zeros(6))
    state = state.replace(scores=scores)
    chances = pool.chances(state) - LEAST_CHANCE * jnp.array([1, 1, 0, 1, 1, 1])
    np.testing.assert_allclose(chances, [0, 0.25, 0, 1 / 16, 9 / 16, 1], atol=1e-6)

    def by(draw):
        config = FROZEN.replace(opponents=OpponentPool(size=3, every=2, draw=draw))
        return config.build().opponents.chances(state.replace(scores=row(scores, slice(3))))

    np.testing.assert_array_equal(by("uniform"), [1, 1, 0])
    np.testing.assert_array_equal(by("latest"), [0, 1, 0])
    drawn = pool.opponents(state).draw(jax.random.split(jax.random.key(0), 4000))
    expected = np.asarray(pool.chances(state) / pool.chances(state).sum())
    shares = np.bincount(drawn, minlength=6) / 4000
    assert shares[2] == 0
    np.testing.assert_allclose(shares, expected, atol=0.03)


def ended(*returns, member=0):
    """A rollout in which an episode ended with each pair of returns."""
    shape = (len(returns), 1)
    return SimpleNamespace(
        reached=SimpleNamespace(returns=jnp.array(returns, float)[:, None]),
        episode_done=jnp.ones(shape, bool),
        shown={"opponents": jnp.full(shape, member)},
    )


@pytest.mark.long
def test_a_copy_is_made_when_enough_of_the_last_episodes_are_won():
    settings = OpponentPool(size=2, at_win_rate=0.75, window=4)
    algorithm = FROZEN.replace(opponents=settings).build()
    pool = algorithm.opponents
    learners = algorithm.init(jax.random.key(0)).learners
    state = pool.init(learners[pool.group].weights)
    won, draw, lost = (1.0, -1.0), (0.0, 0.0), (-1.0, 1.0)
    copies = []
    for n, results in enumerate([(won, won, won), (lost, draw), (won, won), (won,)], start=1):
        state, learners, _ = pool.after(state, learners, ended(*results), jnp.int32(n), None)
        copies.append(int(state.num_copies))
    # 3 are too few; 3.5 of 5; (3.5 * 4/5 + 2) of 6 = 0.8; then the count begins again
    assert copies == [1, 1, 2, 2]
    assert state.iteration.tolist() == [0, 3]


@pytest.mark.parametrize("window", [1, 7, 100, 1000])
def test_who_won_every_episode_is_copied_however_many_ended(window):
    pool = FROZEN.replace(opponents=OpponentPool(size=1, at_win_rate=1.0, window=window)).build()
    numbers = jnp.arange(window, window + 3000, dtype=jnp.float32)

    @jax.jit
    @jax.vmap
    def played(number):
        all_won = Scores(number, number, number)
        shrunk = pool.opponents._shrunk(all_won)
        return pool.opponents._is_due(all_won, jnp.int32(1)), shrunk, shrunk.win_rate

    is_due, shrunk, win_rate = played(numbers)
    assert is_due.all()
    assert (shrunk.episodes == window).all()
    assert (win_rate == 1).all()


def test_a_share_of_won_episodes_is_met_by_the_very_number_of_them():
    settings = OpponentPool(size=1, at_win_rate=0.55, window=20)
    pool = FROZEN.replace(opponents=settings).build().opponents
    for number in (20, 100, 2000):
        for points, is_enough in ((0.55 * number, True), (0.55 * number - 0.5, False)):
            scores = Scores(*jnp.array([number, round(2 * points) / 2, 0.0]))
            assert bool(pool._is_due(scores, jnp.int32(1))) is is_enough


def test_results_against_a_member_are_over_its_last_episodes():
    pool = FROZEN.replace(opponents=OpponentPool(size=1, window=4)).build().opponents
    state = SimpleNamespace(scores=Scores.none(1))
    for results in [((-1.0, 1.0),) * 4, ((2.0, -2.0),) * 4]:
        new = pool._results(ended(*results))
        state.scores = pool._shrunk(jax.tree.map(jnp.add, state.scores, new))
    assert state.scores.episodes.tolist() == [4.0]
    assert state.scores.win_rate.tolist() == [0.5]  # half of eight
    assert (state.scores.returns / 4).tolist() == [0.5]


def test_won_at_counts_the_learners_return_alone():
    settings = OpponentPool(size=1, won_at=2.0)
    pool = FROZEN.replace(opponents=settings).build().opponents
    scores = pool._results(ended((2.0, 9.0), (1.9, -9.0)))
    assert scores.points.tolist() == [1.0]


@pytest.mark.long
def test_the_payoff_matrix_has_every_pair_and_elo_explains_it(trained, tmp_path):
    trainer, _ = trained
    matrix = trainer.payoff_matrix(episodes=4)
    copies = tuple(f"copy of iteration {i}" for i in (2, 4, 6))
    assert matrix.rows == (*copies, "main")
    assert matrix.columns == (*copies, "random", "first", "last")
    assert matrix.win_rate.shape == (4, 6)
    assert ((matrix.win_rate * 8) % 1 == 0).all()
    assert set(matrix.elo) == {*matrix.rows, *matrix.columns}
    assert matrix.table().startswith("|  | copy of iteration 2 | ")
    matrix.plot(tmp_path / "payoff.png")
    assert (tmp_path / "payoff.png").stat().st_size > 1000


def test_the_plan_says_who_plays():
    assert "played by a pool: 3 copies of main, every 2 iterations; random; first; last " in (
        POOL.describe()
    )
    alone = FROZEN.replace(opponents=OpponentPool(size=1)).describe()
    assert "played by a pool: opponent at its start (uniform)" in alone


def two_layers(opponents, **changes):
    return FROZEN.replace(opponents=opponents, **changes).build()


def test_a_function_of_three_arguments_is_told_none_where_there_are_no_masks():
    masks = []

    def act(obs, key, action_mask):
        masks.append(action_mask)
        return jnp.int32(0)

    opponents = {"policy": "pol1", "fixed": {"me": act}}
    small = {"num_envs": 2, "rollout_length": 2, "minibatch_size": 4, "fcnet_hiddens": (4,)}
    algorithm = PPOConfig(
        "arena", policies_to_train=("pol2",), opponents=opponents, **small
    ).build()
    checked = len(masks)
    jax.eval_shape(lambda key: algorithm.collect(algorithm.init(key)), jax.random.key(0))
    assert len(masks) > checked > 0 and set(masks) == {None}


def no_key(obs): ...


def a_float(obs, key):
    return jnp.float32(0)


def fails(obs, key):
    raise ValueError("no idea")


def train_against(pool):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "host_memory", lambda: 2**34)
        make_train(FROZEN.replace(opponents=pool))


test_a_pool_that_cannot_work_is_refused_in_one_line = refused_by(
    train_against,
    [
        ({"size": 0}, "size=0 must be an integer of at least 1"),
        ({"every": 0}, "every=0 must be an integer of at least 1 or None"),
        ({"at_win_rate": 1.5}, r"at_win_rate=1.5 must be a number in \(0, 1\]"),
        ({"draw": "lates"}, "unknown draw 'lates'; did you mean 'latest'"),
        ({"sizes": 3}, "unknown argument 'sizes' of opponents; did you mean 'size'"),
        ({"draw": "latest", "fixed": {"r": "random"}}, "so 'r' of fixed would never play"),
        ({"fixed": {"copy_1": "random"}}, "'copy_1' cannot be fixed"),
        ({"fixed": {"me": 7}}, r"me=7 must be 'random', a function act\(obs, key\)"),
        ({"fixed": {"me": no_key}}, r"me must be a function act\(obs, key\).*, not no_key\(obs\)"),
        ({"fixed": {"me": a_float}}, r"me must return an action of Discrete\(n=9\), not float32"),
        ({"fixed": {"me": fails}}, "me fails as it is traced: ValueError: no idea"),
        ({"fixed": {"me": f"{HERE}:firs_free"}}, "did you mean 'first_free'"),
        ({"policy": "main"}, "policy 'main' is trained, and a pool plays for a policy that is not"),
        ({"policy": "opponnt"}, "unknown policy 'opponnt' of opponents; did you mean 'opponent'"),
        ({"copies": "opponent", "every": 1}, "unknown policy 'opponent' to copy"),
        ({"size": 10**9}, r"a pool of 1000000000 copies of 394 parameters needs at least"),
    ],
)


def test_a_pool_needs_a_policy_that_is_not_trained_and_one_alike_that_is():
    with pytest.raises(UsageError, match="every policy is trained"):
        two_layers(OpponentPool(), policies_to_train=None)
    with pytest.raises(UsageError, match="no policy is trained"):
        two_layers(OpponentPool(policy="main"), policies_to_train=())
    exploring = {"main": {"exploration_config": {"type": "EpsilonGreedy"}}}
    two_layers(OpponentPool(every=1), per_policy=exploring)  # its copies play without exploring
    networks = {"opponent": {"fcnet_hiddens": (4,)}}
    alike = r"copies of 'main' cannot play for 'opponent': they have model.hiddens=\(.*\), it needs"
    with pytest.raises(UsageError, match=alike):
        two_layers(OpponentPool(every=1), per_policy=networks)
    rounded = {"main": {"network_dtype": "bfloat16"}}
    with pytest.raises(UsageError, match="they have network_dtype=bfloat16, it needs float32"):
        two_layers(OpponentPool(every=1), per_policy=rounded)
    spaces = PPOConfig(Leavers(), policies_to_train=("long",), opponents={"policy": "wide"})
    spaces.build()  # a pool of one, which needs no copies
    with pytest.raises(UsageError, match="cannot play for 'wide': they have observation_space="):
        spaces.replace(opponents={"policy": "wide", "every": 1}).build()
    roles = PPOConfig.tuned("arena", policies_to_train=("pol2",), opponents={"every": 1})
    with pytest.raises(UsageError, match="they have model=CellPair, it needs CellMemory"):
        roles.build()
    several = spaces.replace(opponents={"every": 1})
    with pytest.raises(UsageError, match=r"short, wide are not trained: say which by Opp"):
        several.build()


@pytest.mark.slow
@pytest.mark.long
def test_an_opponent_from_a_run_must_fit_and_is_read_by_a_trainer_alone(trained, tmp_path):
    trainer, _ = trained
    trainer.save()
    fixed = {"old": str(trainer.run_dir)}
    config = FROZEN.replace(env=GAME, opponents=OpponentPool(size=2, fixed=fixed))
    new = Trainer(config, run_dir=None, quiet=True)
    main = trainer.algorithm.policy_weights(trainer.runner, "opponent")
    assert_equal_to_the_bit(row(new.runner.opponents.weights, 2), main)
    assert new.runner.opponents.iteration.tolist() == [0, -1, 0]
    with pytest.raises(UsageError, match="old is a run's policy, which a Trainer alone reads"):
        make_train(config)
    with pytest.raises(UsageError, match="old is a run's policy, which a Trainer alone reads"):
        sweep(config, {"lr": [1e-3, 1e-4]}, run_dir=None, quiet=True)
    with pytest.raises(UsageError, match=r"does not fit: weights.opponent.*\[8.*needs"):
        Trainer(config.replace(fcnet_hiddens=(4,)), run_dir=None, quiet=True)
    for name in ("randm", "randm#main"):
        wrong = config.replace(opponents=OpponentPool(fixed={"r": name}))
        with pytest.raises(UsageError, match=r"r=.*there is no folder randm.*mean 'random'"):
            Trainer(wrong, run_dir=None, quiet=True)
    arena = PPOConfig.fast("arena", policies_to_train=("pol1",), opponents={"fixed": fixed})
    with pytest.raises(UsageError, match="unknown policy 'pol2' in"):
        Trainer(arena, run_dir=None, quiet=True)
    with pytest.raises(UsageError, match="old: observation_space of policy 'main': the"):
        named = {"old": f"{trainer.run_dir}#main"}
        Trainer(arena.replace(opponents={"fixed": named}), run_dir=None, quiet=True)


def test_a_stranger_cannot_name_code_in_a_pool(trained):
    trainer, _ = trained
    trainer.save()
    with pytest.raises(UsageError, match=r"the run's opponents is 'tests.*first_free'.*--trust"):
        Trainer.from_checkpoint(trainer.run_dir, run_dir=None, quiet=True)
