"""The episodes that a trainer writes are those of its own rollouts."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import UsageError, replay_episode
from jaxrl.episodes import EpisodeWriter, MultiAgentEpisode, read_episodes
from jaxrl.play import episode_output
from jaxrl.play.episode_output import EpisodeOutput, recorded_share
from jaxrl.run.settings import RunSettings
from tests.messages import refused_by
from tests.probes import Crowd, Forbidden, Joining, Turns
from tests.programs import SMALL_ARENA, SMALL_REINFORCE

pytest.importorskip("pyarrow", reason="the extra `offline`")

REINFORCE = SMALL_REINFORCE.replace(metrics_num_episodes_for_smoothing=1000)
ENVS = {"joining": Joining(), "turns": Turns(), "masks": Forbidden(), "continuous": Crowd(3)}
CONFIGS = {"arena": SMALL_ARENA, **{name: REINFORCE.replace(env=env) for name, env in ENVS.items()}}


class Results(jaxrl.Callbacks):
    def __init__(self):
        self.all = []

    def on_train_result(self, trainer, result):
        self.all.append(result["env_runners"])


def trained(config, folder, iterations=5, **settings):
    """(the trainer, the `env_runners` of its results, the episodes that it wrote)."""
    results = Results()
    config = config.replace(callbacks=results)
    settings = {"run_dir": None, "quiet": True, "output": folder, **settings}
    with jaxrl.Trainer(config, **settings) as trainer:
        trainer.fit({"training_iteration": iterations})
    return trainer, results.all, list(read_episodes(folder))


LONG = ("turns", "continuous")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in CONFIGS
    ],
)
def lived(request, tmp_path_factory):
    """A training of five iterations, and what it wrote."""
    folder = tmp_path_factory.mktemp("output")
    trainer, results, episodes = trained(CONFIGS[request.param], folder)
    return SimpleNamespace(name=request.param, trainer=trainer, results=results, episodes=episodes)


def return_of(episode):
    several = isinstance(episode, MultiAgentEpisode)
    return episode.get_return(**({"include_hanging_rewards": True} if several else {}))


def place_of(episode):
    """(update, step, environment) of the first step."""
    place = episode.custom_data["origin"]["rollout"]
    return place["update"], place["step"], place["environment"]


def last_update_of(episode, length=16):
    update, step, _ = place_of(episode)
    return update + (step + len(episode) - 1) // length


@pytest.mark.long
def test_the_written_episodes_are_those_that_the_results_count(lived):
    """Two policies, agents that wait, join late or take turns, masks, a Box: nothing is missing."""
    by_update = {}
    for episode in lived.episodes:
        by_update.setdefault(last_update_of(episode), []).append(episode)
    assert len({episode.id_ for episode in lived.episodes}) == len(lived.episodes)
    assert len(lived.episodes) == lived.results[-1]["num_episodes_lifetime"]
    for update, result in enumerate(lived.results, start=1):
        ended = by_update.get(update, [])
        assert len(ended) == result["num_episodes"]
    returns = [return_of(episode) for episode in lived.episodes]  # all are in the results' window
    assert np.mean(returns) == pytest.approx(lived.results[-1]["episode_return_mean"], abs=1e-5)
    lengths = [len(episode) for episode in lived.episodes]
    assert np.mean(lengths) == pytest.approx(lived.results[-1]["episode_len_mean"])


@pytest.mark.long
def test_each_step_has_the_numbers_of_the_rollout_that_was_learned_from(lived):
    algorithm = lived.trainer.algorithm
    if algorithm.rollout_spec.waits:
        pytest.skip("rows of agents that wait are not steps")
    rollout = jax.jit(lambda key: algorithm.collect(algorithm.init(key))[1])(lived.trainer._key())
    trajectories, checked = jax.tree.map(np.asarray, rollout.trajectories), 0
    for episode in lived.episodes:
        update, step, env = place_of(episode)
        if update > 1 or step + len(episode) > 16:
            continue
        several = isinstance(episode, MultiAgentEpisode)
        agents = episode.agent_episodes if several else {"default_agent": episode}
        for group, trajectory in zip(algorithm.grouping.groups, trajectories, strict=True):
            for i, names in enumerate(group.agents):
                for j, agent in enumerate(names):
                    assert_steps(agents[agent], trajectory, np.s_[step : step + 16, i, env, j])
                    checked += 1
    assert checked or lived.name == "arena"  # whose first rollout is shorter than an episode


def assert_steps(episode, trajectory, rows):
    """That an agent's steps are the first of these rows, as far as rounding goes."""
    count, outputs = len(episode), episode.get_extra_model_outputs
    inputs = np.concatenate(jax.tree.leaves(trajectory.distribution), axis=-1)
    log_probs = np.asarray(trajectory.distribution.log_prob(trajectory.action))
    pairs = [
        (episode.get_observations(slice(0, count)), trajectory.obs),
        (episode.get_actions(), trajectory.action),
        (episode.get_rewards(), trajectory.reward),
        (outputs("vf_preds"), trajectory.value),
        (outputs("action_dist_inputs"), inputs),
        (outputs("action_logp"), log_probs),
    ]
    for written, rolled in pairs:
        np.testing.assert_allclose(written, rolled[rows][:count], rtol=1e-5, atol=1e-5)
    if "action_mask" in episode.extra_model_outputs:
        mask = trajectory.inputs.action_mask[rows][:count]
        np.testing.assert_array_equal(outputs("action_mask"), mask)


@pytest.mark.long
def test_each_episode_is_replayed_to_the_bit_from_the_place_where_training_played_it(lived):
    for episode in lived.episodes[:: 1 + len(lived.episodes) // 20]:
        assert replay_episode(episode, ENVS.get(lived.name)).difference is None


def weights_of(trainer):
    return jax.tree.map(np.asarray, [learner.params for learner in trainer.runner.learners])


@pytest.mark.long
def test_training_gives_the_same_bits_with_and_without_output(lived):
    with jaxrl.Trainer(CONFIGS[lived.name], run_dir=None, quiet=True) as plain:
        plain.fit({"training_iteration": 5})
    jax.tree.map(np.testing.assert_array_equal, weights_of(lived.trainer), weights_of(plain))


@pytest.mark.bits
@pytest.mark.parametrize("name", ["arena", "cartpole"])
def test_training_gives_the_same_bits_with_output_as_users_compile(name, tmp_path):
    config, weights = jaxrl.PPOConfig.tuned(name), []
    for output, share in ((None, 1.0), (tmp_path / "all", 1.0), (tmp_path / "some", 0.1)):
        settings = {"run_dir": None, "quiet": True, "output": output, "output_share": share}
        with jaxrl.Trainer(config, **settings) as trainer:
            trainer.fit({"training_iteration": 5})
            weights.append(weights_of(trainer))
    for with_output in weights[1:]:
        jax.tree.map(np.testing.assert_array_equal, weights[0], with_output)


@pytest.mark.long
def test_a_share_writes_all_episodes_of_the_first_environments(tmp_path):
    _, _, some = trained(SMALL_REINFORCE, tmp_path, output_share=0.3)
    assert {place_of(episode)[2] for episode in some} == {0, 1}  # 0.3 of four, rounded up
    assert all(episode.is_done and episode.begins_with_reset for episode in some)
    config = SimpleNamespace(num_envs=10)
    shares = [(1.0, 10), (0.7, 7), (0.71, 8), (1e-6, 1)]  # 0.7 * 10 is more than 7 in floats
    for share, number in shares:
        settings = RunSettings(output=tmp_path, output_share=share, devices=1)
        assert recorded_share(settings, config) == number


@pytest.mark.long
def test_several_devices_write_the_environments_of_each(tmp_path):
    trainer, results, episodes = trained(SMALL_ARENA, tmp_path, devices=2)
    assert trainer.settings.devices == 2
    assert len(episodes) == results[-1]["num_episodes_lifetime"]
    assert {place_of(episode)[2] for episode in episodes} == {0, 1, 2, 3}
    assert all(replay_episode(episode).difference is None for episode in episodes)


def test_a_chunk_that_ran_past_the_end_writes_each_episode_once(tmp_path):
    results = Results()
    settings = {"run_dir": None, "quiet": True, "output": tmp_path}
    config = SMALL_ARENA.replace(callbacks=results)
    with jaxrl.Trainer(config, **settings) as trainer:
        trainer.fit({"training_iteration": 2})
        trainer.loop.seconds_per_update = 0.1  # so that the next chunk is ten iterations
        trainer.fit({"env_runners/num_episodes_lifetime": 12})
        count = results.all[-1]["num_episodes_lifetime"]
        assert 12 <= count < 16 and trainer.lifetime.training_iteration < 12
    places = [place_of(episode) for episode in read_episodes(tmp_path)]
    assert len(places) == len(set(places)) == count


@pytest.mark.long
def test_a_resumed_run_leaves_out_the_episodes_that_were_open_and_none_twice(tmp_path):
    folder, output = tmp_path / "run", tmp_path / "episodes"
    settings = {"run_dir": folder, "pictures": False, "loggers": ()}
    trained(SMALL_ARENA, output, 3, **settings)
    before = list(read_episodes(output))
    with jaxrl.Trainer.from_checkpoint(folder, quiet=True, trust=True, config=SMALL_ARENA) as again:
        again.fit({"training_iteration": 10})
    episodes = list(read_episodes(output))
    new = episodes[len(before) :] if episodes[0].id_ == before[0].id_ else episodes[: -len(before)]
    assert len({episode.id_ for episode in episodes}) == len(episodes) == len(before) + len(new)
    # Of four environments with episodes of 20 steps: 3 x 16 steps are two episodes each and an
    # open one, which ends in step 60; 100 further steps are five.
    assert (len(before), len(new)) == (8, 20)
    assert min(place_of(episode)[:2] for episode in new) == (4, 12)
    assert all(replay_episode(episode).difference is None for episode in new)


@pytest.mark.parametrize("saved", [0, 4])
def test_what_was_written_after_the_checkpoint_is_played_and_written_again(saved, tmp_path):
    """Without any checkpoint the run begins again, and so do its episodes."""
    folder, output = tmp_path / "run", tmp_path / "episodes"
    settings = {"run_dir": folder, "pictures": False, "loggers": (), "checkpoint_at_end": False}
    trained(SMALL_ARENA, output, 7, checkpoint_frequency=saved or None, **settings)
    other = EpisodeWriter(output)  # whose files stay
    other.write(next(read_episodes(output)))
    other.close()
    before = [place_of(episode) for episode in read_episodes(output)]
    settings = {"quiet": True, "config": SMALL_ARENA, "output": output}
    with jaxrl.Trainer.from_checkpoint(folder, **settings) as again:
        assert again.lifetime.training_iteration == saved
        again.fit({"training_iteration": 9})
    after = [place_of(episode) for episode in read_episodes(output)]
    # Of 9 x 16 steps: seven episodes of 20, less the one that was open after step 4 x 16.
    assert len(before) == 4 * 5 + 1
    assert len(after) == 4 * (6 if saved else 7) + 1 and len(set(after)) == len(after) - 1


def test_a_trainer_that_is_driven_by_train_writes_all_when_it_stops(tmp_path):
    folder, output = tmp_path / "run", tmp_path / "episodes"
    settings = {"run_dir": folder, "quiet": True, "pictures": False, "loggers": ()}
    trainer = jaxrl.Trainer(SMALL_ARENA, output=output, **settings)
    for _ in range(5):
        trainer.train()
    trainer.stop()
    trainer.stop()
    assert len(list(read_episodes(output))) == 4 * 4
    with jaxrl.Trainer.from_checkpoint(folder, quiet=True, output=output) as again:
        assert again.lifetime.training_iteration == 5
        for _ in range(5):
            again.train()
    places = [place_of(episode) for episode in read_episodes(output)]
    assert len(set(places)) == len(places) == 4 * 7  # the one that began with step 80 is missing


def test_numbers_that_change_during_an_episode_leave_nothing_to_replay(tmp_path):
    with jaxrl.Trainer(SMALL_ARENA, run_dir=None, quiet=True, output=tmp_path) as trainer:
        trainer.train()
        trainer.env_params = trainer.env_params.replace(max_steps_in_episode=18)
        trainer.train()
        trainer.train()
    first, *_, last = read_episodes(tmp_path)
    with pytest.raises(UsageError, match="numbers are not known, since they were changed while"):
        replay_episode(first)
    assert len(first) == len(last) == 18 and replay_episode(last).difference is None


def test_what_cannot_be_written_is_told_once_and_training_continues(tmp_path):
    said = []
    with jaxrl.Trainer(SMALL_ARENA, run_dir=None, quiet=True, output=tmp_path / "out") as trainer:
        trainer.output._say = said.append
        (tmp_path / "out").touch()  # a file in its place
        for _ in range(2):
            trainer.fit({"training_iteration": trainer.lifetime.training_iteration + 3})
        assert trainer.lifetime.training_iteration == 6
    assert len(said) == 1 and "no more episodes are written" in said[0]


def test_episodes_too_long_for_the_memory_are_left_out_and_told_once(monkeypatch, tmp_path):
    monkeypatch.setattr(episode_output, "OPEN_BYTES", 1000)  # a step or two, of 20
    said = []
    with jaxrl.Trainer(SMALL_ARENA, run_dir=None, quiet=True, output=tmp_path) as trainer:
        trainer.output._say = said.append
        for _ in range(5):
            trainer.train()
    assert len(said) == 1 and "steps is too long to be kept" in said[0]
    assert not list(tmp_path.glob("*"))


def test_a_slow_disk_slows_training_down(monkeypatch, tmp_path):
    waiting = []
    monkeypatch.setattr(
        episode_output.EpisodeOutput, "_write", lambda self, writer, chunk: time.sleep(0.05)
    )
    with jaxrl.Trainer(SMALL_ARENA, run_dir=None, quiet=True, output=tmp_path) as trainer:
        trainer.train()
        began = time.perf_counter()
        for _ in range(10):
            trainer.train()
            waiting.append(len(trainer.output._jobs))
    assert max(waiting) <= episode_output.WAITING
    assert time.perf_counter() - began >= 0.4


NO_SHARE = r"output_share=.* must be a number in \(0, 1\]"
test_what_is_no_output_or_no_share_of_it_is_refused = refused_by(
    lambda settings: jaxrl.Trainer(SMALL_ARENA, run_dir=None, **settings),
    [
        ({"output": 5}, "output=5 must be a folder's path"),
        *[({"output_share": share}, NO_SHARE) for share in (0, -0.5, 1.5, np.nan, True, "half")],
    ],
)


def test_an_output_that_nothing_can_be_written_to_is_refused_before_compiling(
    monkeypatch, tmp_path
):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="episodes cannot be written to"):
        jaxrl.Trainer(SMALL_ARENA, run_dir=None, output=tmp_path / "file")
    settings, offline = RunSettings(output=tmp_path, devices=1), SimpleNamespace(plays=False)
    with pytest.raises(UsageError, match="training on recorded episodes plays none that could be"):
        EpisodeOutput(settings, SMALL_ARENA, offline, print)
    monkeypatch.setattr(episode_output, "num_processes", lambda: 2)
    with pytest.raises(UsageError, match="several processes train, none of which has all episodes"):
        jaxrl.Trainer(SMALL_ARENA, run_dir=None, output=tmp_path)


PROGRAM = """
import jaxrl
from tests.programs import SMALL_ARENA

config = SMALL_ARENA.replace(total_env_steps=10**9)
settings = {"run_dir": "run", "quiet": True, "pictures": False, "output": "episodes"}
with jaxrl.Trainer(config, **settings, checkpoint_frequency=50) as trainer:
    trainer.fit()
"""


@pytest.mark.process
def test_after_a_kill_every_file_can_be_read_and_no_episode_before_the_checkpoint_is_lost(tmp_path):
    root = os.path.abspath(os.curdir)
    env = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=env)
    checkpoints, deadline = tmp_path / "run" / "checkpoints", time.monotonic() + 120
    while len(list(checkpoints.glob("[0-9]*"))) < 2 and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    episodes = list(read_episodes(tmp_path / "episodes"))
    assert len({episode.id_ for episode in episodes}) == len(episodes) > 0
    settings = {"quiet": True, "output": tmp_path / "episodes"}
    with jaxrl.Trainer.from_checkpoint(tmp_path / "run", **settings) as again:
        begun = again.lifetime.training_iteration
        again.fit({"training_iteration": begun + 10})
    places = [place_of(episode) for episode in read_episodes(tmp_path / "episodes")]
    assert len(set(places)) == len(places)
    # Of episodes of 20 steps in four environments, the one after the checkpoint alone is missing.
    assert len(places) == 4 * ((begun + 10) * 16 // 20 - 1)
    in_time = sum(last_update_of(episode) <= begun for episode in episodes)
    assert in_time == 4 * (begun * 16 // 20)
