"""`Trainer` over environments outside JAX."""

import numpy as np
import pytest

import jaxrl
from jaxrl.run import loop
from tests.messages import refused
from tests.outside.jax_vector import config_outside
from tests.programs import SMALL_CARTPOLE

CONFIG = SMALL_CARTPOLE.replace(env_args={"max_steps_in_episode": 9})
QUIET = {"run_dir": None, "quiet": True}


def flat(tree, path=""):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{name}/")
        elif isinstance(value, float | int):
            yield f"{path}{name}", value


def compared(result):
    """What two runs of one configuration must share: no times."""
    kept = ("env_runners", "learners", "num_episodes_lifetime")
    return dict(flat({name: result[name] for name in kept}))


@pytest.mark.long
@pytest.mark.parametrize("exploration", [None, {"type": "EpsilonGreedy", "epsilon_timesteps": 100}])
def test_a_run_outside_jax_is_the_run_in_jax(exploration):
    made, config = [], CONFIG.replace(exploration_config=exploration)
    inside = jaxrl.Trainer(config, **QUIET)
    with jaxrl.Trainer(config_outside(config, made, 2), **QUIET, sync=True) as outside:
        for iteration in range(3):
            wanted, found = compared(inside.train()), compared(outside.train())
            counts = ("num_faulty_episodes", "num_worker_restarts", "weights_seq_no")
            counted = [found.pop(f"env_runners/{name}") for name in counts]
            assert counted == [0, 0, iteration]
            assert found.keys() == wanted.keys()
            for name, value in wanted.items():
                np.testing.assert_allclose(found[name], value, 2e-3, 1e-5, err_msg=name)
    assert made[0].is_closed


@pytest.mark.long
def test_the_next_rollout_is_played_by_the_weights_before_the_update():
    with jaxrl.Trainer(config_outside(CONFIG, []), **QUIET) as trainer:
        results = [trainer.train() for _ in range(4)]
    assert [result["env_runners"]["weights_seq_no"] for result in results] == [0, 0, 1, 2]
    timers = results[-1]["timers"]
    collecting = [timers[part] for part in ("env", "inference", "recording")]
    assert min(collecting) > 0 and {"learning", "waiting"} <= timers.keys()
    assert timers["env_runner_sampling_timer"] == sum(collecting)
    assert timers["learner_update_timer"] == timers["learning"]


@pytest.mark.long
def test_whole_episodes_are_played_in_copies_of_their_own():
    made = []
    # With `sync`, since the next rollout would begin by itself.
    with jaxrl.Trainer(config_outside(CONFIG, made), **QUIET, sync=True) as trainer:
        trainer.train()
        before = made[0].number
        result = trainer.evaluate(episodes=3)["env_runners"]
        episodes = trainer.sample(3)
    assert made[0].number == before  # training's copies have played on for nobody
    assert len(made) == 2 and made[1].is_closed  # those of evaluation are kept until the end
    assert result["num_episodes"] == 3 and 1 <= result["episode_len_mean"] <= 9
    assert len(episodes) == 3
    for episode in episodes:
        assert episode.is_done and len(episode.get_observations()) == len(episode) + 1
        assert episode.get_return() == len(episode)  # a reward of 1 for each step


@pytest.mark.long
def test_a_resumed_run_begins_new_episodes_and_says_so(tmp_path, capsys):
    config = config_outside(CONFIG.replace(total_env_steps=128), [])
    with jaxrl.Trainer(config, run_dir=tmp_path / "run", pictures=False) as trainer:
        trainer.fit()
    capsys.readouterr()
    longer = config.replace(total_env_steps=192)
    with jaxrl.Trainer.from_checkpoint(tmp_path / "run", config=longer) as trainer:
        assert trainer.fit()["training_iteration"] == 3
    assert "new episodes start from scratch" in capsys.readouterr().out


@pytest.mark.long
def test_a_rollout_that_fails_ends_the_run_with_a_checkpoint(tmp_path, monkeypatch):
    made = []
    config = config_outside(CONFIG, made)
    trainer = jaxrl.Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False, sync=True)
    advance = loop.advance

    def advance_and_break(*arguments):
        chunks = advance(*arguments)

        def broken(part):
            raise RuntimeError("failed 21 times")

        made[0].receive = broken
        return chunks

    monkeypatch.setattr(loop, "advance", advance_and_break)
    with trainer, pytest.raises(RuntimeError, match="failed 21 times"):
        trainer.fit()
    assert made[0].is_closed
    again = jaxrl.Trainer.from_checkpoint(tmp_path / "run", config=config, quiet=True)
    assert again.lifetime.training_iteration == 1
    again.stop()


def trainer_outside(**settings):
    return jaxrl.Trainer(config_outside(CONFIG, []), **QUIET, **settings)


test_what_cannot_work_is_refused_in_one_line = refused(
    [
        (
            lambda path: jaxrl.sweep(config_outside(CONFIG, []), seeds=2, halving=2),
            "one after the other",
        ),
        (
            lambda path: trainer_outside(output=str(path / "out")).train(),
            "output: CartPole runs outside JAX",
        ),
        (lambda path: trainer_outside(workers=-1), "workers=-1"),
        (lambda path: trainer_outside(devices=2), "trains on one device"),
        (lambda path: trainer_outside().profile(), "profile"),
        (
            lambda path: jaxrl.Trainer(CONFIG, **QUIET, workers=2),
            "workers=2 changes nothing: cartpole runs in JAX",
        ),
    ],
    fixture="tmp_path",
)
