"""A zoo: seeds of a training, what they earn, and the best of them published."""

import json
import shutil

import pytest
from scipy.stats import trim_mean

import jaxrl
from jaxrl import PPOConfig, UsageError
from jaxrl.cli.main import main
from jaxrl.publishing import zoo
from jaxrl.publishing.zoo import Exhibit, SeedReturns
from tests.programs import SMALL_CARTPOLE, TINY

pytest.importorskip("safetensors", reason="the extra `hub`")
EPISODES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kept") / "zoo"


@pytest.fixture(scope="module")
def exhibit(folder):
    return zoo.add(SMALL_CARTPOLE, folder, seeds=2, episodes=EPISODES, quiet=True)


@pytest.fixture
def copied(exhibit, folder, tmp_path):
    """The same zoo in a folder that a test may change."""
    return shutil.copytree(folder, tmp_path / "zoo")


def refusal_of(call, *arguments, **settings):
    with pytest.raises(UsageError) as refused:
        call(*arguments, **settings)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.long
def test_the_returns_of_a_seed_are_those_that_its_run_is_evaluated_with(exhibit, folder):
    for i, seed in enumerate(exhibit.seeds):
        run = folder / "seeds" / "cartpole" / "trials" / f"{i:04d}"
        for value, explore in ((seed.likeliest, False), (seed.sampled, True)):
            played = jaxrl.evaluate(run, episodes=EPISODES, explore=explore)["env_runners"]
            assert played["episode_return_mean"] == value


def test_the_seeds_follow_that_of_the_configuration_and_train_all_steps(exhibit):
    assert [seed.seed for seed in exhibit.seeds] == [SMALL_CARTPOLE.seed, SMALL_CARTPOLE.seed + 1]
    assert exhibit.env_steps == SMALL_CARTPOLE.num_updates * SMALL_CARTPOLE.train_batch_size


def test_the_published_policy_is_that_of_the_seed_with_the_highest_return(exhibit, folder):
    best = max(exhibit.seeds, key=lambda seed: seed.sampled)
    assert json.loads((exhibit.folder / "config.json").read_text())["seed"] == best.seed
    assert (exhibit.folder / "report.html").exists()
    action = jaxrl.load_policy(exhibit.folder).act([0.0, 0.0, 0.0, 0.0])
    assert action in (0, 1)


def test_what_is_there_is_neither_trained_nor_played_again(exhibit, copied, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("this was done before")

    for name in ("sweep", "evaluate", "publish"):
        monkeypatch.setattr(zoo, name, refuse)
    again = zoo.add(SMALL_CARTPOLE, copied, seeds=2, episodes=EPISODES, quiet=True)
    assert again.seeds == exhibit.seeds


def test_a_seed_whose_returns_are_missing_is_played_again(exhibit, copied):
    file = next(copied.glob("seeds/cartpole/trials/0001/returns.json"))
    file.unlink()
    again = zoo.add(SMALL_CARTPOLE, copied, seeds=2, episodes=EPISODES, quiet=True)
    assert again.seeds == exhibit.seeds


@pytest.mark.parametrize("changed", [{"lr": 1e-4}, {"seeds": 3}])
def test_another_training_in_the_same_place_is_refused(exhibit, copied, changed):
    seeds = changed.pop("seeds", 2)
    config = SMALL_CARTPOLE.replace(**changed)
    refused = refusal_of(zoo.add, config, copied, seeds=seeds, episodes=EPISODES, quiet=True)
    assert "another training of cartpole" in refused


@pytest.mark.parametrize("text", ["{", "[]", '{"env": "cartpole"}', '{"env": 3}'])
def test_a_damaged_file_of_returns_is_named(exhibit, copied, text):
    file = next(copied.glob("seeds/cartpole/trials/0000/returns.json"))
    file.write_text(text)
    assert "returns.json" in refusal_of(zoo.exhibits, copied)


def test_a_folder_that_somebody_else_filled_is_refused_before_training(tmp_path):
    (tmp_path / "cartpole").mkdir()
    (tmp_path / "cartpole" / "mine.txt").write_text("mine")
    assert "not made by jaxrl publish" in refusal_of(zoo.add, SMALL_CARTPOLE, tmp_path, seeds=2)
    assert not (tmp_path / "seeds").exists()


@pytest.mark.long
def test_an_environment_of_ones_own_goes_on_with_trust_alone(tmp_path):
    config = PPOConfig(env="tests.probes:Target", total_env_steps=32, **TINY)
    folder, settings = tmp_path / "zoo", {"seeds": 2, "episodes": 1, "quiet": True}
    first = zoo.add(config, folder, **settings)
    assert "trust" in refusal_of(zoo.add, config, folder, **settings)
    assert zoo.add(config, folder, **settings, trust=True).seeds == first.seeds


@pytest.mark.long
def test_seeds_of_an_environment_outside_jax_are_separate_runs(tmp_path):
    config = SMALL_CARTPOLE.replace(env="gym:CartPole-v1")
    exhibit = zoo.add(config, tmp_path / "zoo", seeds=2, episodes=2, quiet=True)
    assert [seed.env for seed in exhibit.seeds] == ["gym:CartPole-v1"] * 2
    assert all(1 <= seed.sampled <= 500 for seed in exhibit.seeds)
    assert (exhibit.folder / "report.html").exists()


def test_a_policy_that_ends_no_episode_is_refused(copied, monkeypatch):
    next(copied.glob("seeds/cartpole/trials/0000/returns.json")).unlink()
    monkeypatch.setattr(zoo, "evaluate", lambda *_, **__: {"env_runners": {}})
    refused = refusal_of(zoo.add, SMALL_CARTPOLE, copied, seeds=2, episodes=EPISODES, quiet=True)
    assert "no episode ended" in refused


def of_returns(*returns):
    rows = [SeedReturns("e", i, 100, 60.0 * i, 10, 2 * r, r) for i, r in enumerate(returns)]
    return Exhibit(tuple(rows), "zoo/e")


def test_a_row_has_the_interquartile_mean_and_the_range_of_the_seeds():
    exhibit = of_returns(1.0, 2.0, 4.0, 5.0, 100.0)
    (value, low, high), bounds = exhibit.sampled
    assert (value, low, high) == (trim_mean([1, 2, 4, 5, 100], 0.25), 1.0, 100.0)
    assert bounds == "range"
    assert exhibit.minutes == 2.0
    assert exhibit.row[3:7] == ["5", "3.67", "1.00 ... 100.00", "7.33"]


def test_the_command_lists_a_zoo(exhibit, folder, capsys):
    main(["zoo", "--to", str(folder)])
    heading, row, note = capsys.readouterr().out.splitlines()
    assert heading.split() == " ".join(zoo.TITLES).split()
    assert row.split()[0] == "cartpole"
    assert f"{exhibit.sampled[0].value:.2f}" in row
    assert "range" in note


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cartpol"], "did you mean 'cartpole'"),
        (["cartpole", "--seeds", "1"], "at least 2"),
        ([], "is no zoo"),
        (["cartpole", "--total-env-steps", "0"], "total_env_steps"),
    ],
)
def test_what_the_command_cannot_do_is_refused_in_one_line(words, told, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["zoo", *words, "--to", str(tmp_path / "zoo")])
    assert ended.value.code == 2
    line = capsys.readouterr().err.strip()
    assert told in line
    assert "\n" not in line
    assert not (tmp_path / "zoo").exists()
