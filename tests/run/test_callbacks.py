"""Host hooks.

When they are called, what they may add, how they end training, what a checkpoint keeps of them.
"""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxrl import (
    Callbacks,
    UsageError,
    evaluate,
    from_rllib,
    load_policy,
    replay_episode,
    sweep,
)
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.rollout.episode_callbacks import resolve_callbacks
from jaxrl.rollout.hook_contract import takes_an_object
from jaxrl.run.callbacks import HostCallbacks
from jaxrl.run.hooks import Evaluating
from tests.messages import refused_by


class Counts(Callbacks):
    """Adds the number of iterations that it has seen, and writes down what else it is told."""

    def __init__(self):
        self.seen, self.told = 0, []

    def on_train_result(self, trainer, result):
        self.seen += 1
        result["seen"] = self.seen

    def on_evaluate_end(self, trainer, evaluation):
        self.told.append(("evaluation", trainer.lifetime.training_iteration))
        evaluation["mine"] = 1.0

    def on_checkpoint(self, trainer, path):
        self.told.append(("checkpoint", path.name))

    def on_train_end(self, trainer, result):
        self.told.append(("end", result["training_iteration"]))

    def get_state(self):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = state["seen"]


class Notes(Callbacks):
    """RLlib's form: the episode by keyword, and more that is not looked at."""

    def __init__(self):
        self.episodes = []

    def on_episode_end(self, *, episode, **kwargs):
        self.episodes.append((kwargs["trainer"].lifetime.training_iteration, episode))

    def on_train_result(self, trainer, result):
        result["noted"] = len(self.episodes)


class StopsAt(Callbacks):
    def __init__(self, iteration):
        self.iteration = iteration

    def on_train_result(self, trainer, result):
        result["done"] = result["training_iteration"] == self.iteration


class Stops(Callbacks):
    def on_train_result(self, trainer, result):
        trainer.stop()


class SeesTheFirst(Callbacks):
    def on_train_result(self, trainer, result):
        result["doubled"] = 2 * result["seen"]


def test_every_iteration_is_told_in_order_and_what_is_added_is_logged_by_the_next_ones_too(
    small, start, tmp_path
):
    trainer = start(small.replace(callbacks=(Counts(), SeesTheFirst())))
    trainer.fit({"training_iteration": 5})
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [(line["seen"], line["doubled"]) for line in lines] == [(i, 2 * i) for i in range(1, 6)]


def test_a_hook_cannot_stop_its_trainer_and_what_was_trained_is_kept(small, start, tmp_path):
    trainer = start(small.replace(callbacks=Stops()))
    with pytest.raises(
        UsageError, match=r'stop: the trainer is training; .* result\["done"\] = True'
    ):
        trainer.fit({"training_iteration": 5})
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["training_iteration"] == trainer.lifetime.training_iteration == 1
    assert (tmp_path / "run" / "checkpoints" / "000001").is_dir()


def test_the_other_hooks_hear_of_evaluations_checkpoints_and_the_end(small, start):
    counts = Counts()
    trainer = start(small.replace(callbacks=counts), evaluation_interval=2, checkpoint_frequency=2)
    trainer.fit({"training_iteration": 4})
    assert [name for kind, name in counts.told if kind == "checkpoint" and name.isdigit()] == [
        "000002",
        "000004",
    ]
    assert counts.told[-1] == ("end", 4)
    assert len([1 for kind, _ in counts.told if kind == "evaluation"]) == 2
    assert trainer.last_result["evaluation"]["mine"] == 1.0


@pytest.mark.parametrize("long_chunks", [False, True])
def test_the_state_that_a_hook_ends_training_in_is_evaluated(small, start, tmp_path, long_chunks):
    counts, settings = Counts(), {"evaluation_interval": 4, "evaluation_duration": 2}
    trainer = start(small.replace(callbacks=(counts, StopsAt(6))), **settings)
    if long_chunks:  # then the chunk runs past the end
        evaluating = next(hook for hook in trainer.hooks if isinstance(hook, Evaluating))
        evaluating.every.iterations = 100
        trainer.loop.seconds_per_update = 1e-3
    result = trainer.fit()
    assert result["training_iteration"] == 6
    assert ("evaluation", 6) in counts.told
    assert result["evaluation"]["env_runners"] == trainer.evaluate()["env_runners"]
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["evaluation"]["mine"] == 1.0


def test_a_hooks_own_state_is_resumed(small, start, resume):
    trainer = start(small.replace(callbacks=Counts()))
    trainer.fit({"training_iteration": 3})
    trainer.stop()
    rest = resume(config=small.replace(callbacks=Counts()))
    assert rest.fit({"training_iteration": 5})["seen"] == 5


def test_a_class_begins_anew_in_every_trainer_and_an_instance_stays_itself(small, start, tmp_path):
    for name in ("one", "two"):
        trainer = start(small.replace(callbacks=Counts), run_dir=tmp_path / name)
        assert trainer.fit({"training_iteration": 2})["seen"] == 2
    counts = Counts()
    assert resolve_callbacks((counts, Counts))[0] is counts


def test_states_go_to_the_callbacks_of_their_class_whatever_stands_beside_them():
    first, second = Counts(), Counts()
    first.seen, second.seen = 1, 2
    saved = HostCallbacks(None, [SeesTheFirst(), first, second]).state()
    assert saved[1:] == [
        {"class": "Counts", "state": {"seen": 1}},
        {"class": "Counts", "state": {"seen": 2}},
    ]
    hooks = HostCallbacks(None, [Counts(), StopsAt(3), Counts(), Counts()])
    hooks.restore(saved)
    assert [hooks.callbacks[i].seen for i in (0, 2, 3)] == [1, 2, 0]


def test_a_state_is_copied_at_once_as_json_holds_it_or_refused():
    class Keeps(Callbacks):
        def __init__(self, state):
            self.state = state

        def get_state(self):
            return self.state

    state = {"list": [1], 7: (2, 3)}
    (saved,) = HostCallbacks(None, [Keeps(state)]).state()
    state["list"].append(2)
    assert saved["state"] == {"list": [1], "7": [2, 3]}
    with pytest.raises(
        UsageError, match=r"get_state of callbacks .*Keeps must return what JSON holds: .*type set"
    ):
        HostCallbacks(None, [Keeps({1})]).state()


def test_a_hook_that_an_instance_was_given_counts_as_one_of_its_class():
    callback, heard = Callbacks(), []
    assert not HostCallbacks(None, [callback, SimpleNamespace(on_train_end=None)]).has(
        "on_train_end"
    )
    callback.on_train_end = lambda trainer, result: heard.append(result)
    hooks = HostCallbacks(None, [callback])
    assert hooks.has("on_train_end") and not hooks.has("on_checkpoint")
    hooks.call("on_train_end", 3)
    assert heard == [3]


@pytest.mark.long
def test_a_run_with_callbacks_of_any_kind_is_open_to_be_played(small, start, resume, tmp_path):
    for name, callbacks in (("class", Counts), ("instance", Counts())):
        trainer = start(small.replace(callbacks=callbacks), run_dir=tmp_path / name)
        trainer.fit({"training_iteration": 1})
        trainer.stop()
        assert load_policy(tmp_path / name, "pol1").act([0, 0]) == trainer.get_policy("pol1").act(
            [0, 0]
        )
        assert evaluate(tmp_path / name, episodes=2)["env_runners"]["num_episodes"] == 2
    with pytest.raises(
        UsageError, match=r"the run's callbacks is .*:Counts', which is not part of jaxrl"
    ):
        resume(tmp_path / "class")
    assert resume(tmp_path / "class", trust=True).fit({"training_iteration": 2})["seen"] == 2
    with pytest.raises(
        UsageError, match="the run's callbacks was an object"
    ):  # its arguments are not known
        resume(tmp_path / "instance")


def test_callbacks_that_cannot_work_are_refused_before_the_folder_is_made(small, start, tmp_path):
    with pytest.raises(UsageError, match="on_train_result"):
        start(small.replace(callbacks=object()))
    with pytest.raises(
        UsageError, match=r"unknown callbacks 'ArenaMetric'.*did you mean 'ArenaMetrics'"
    ):
        start(small.replace(callbacks="scripts.arena_callbacks:ArenaMetric"))
    assert not (tmp_path / "run").exists()


# In RLlib's words


class InRLlibsWords(Callbacks):
    """Hooks as RLlib's documentation writes them."""

    def on_train_result(self, *, algorithm, metrics_logger=None, result, **kwargs):
        metrics_logger.log_value("of_each", result["training_iteration"], reduce="sum")
        metrics_logger.log_value(("nested", "last_two"), algorithm.iteration, window=2)
        metrics_logger.log_value("lifetime", 1, reduce="lifetime_sum")
        assert kwargs["trainer"] is algorithm

    def on_evaluate_end(self, *, algorithm, metrics_logger, evaluation_metrics, **kwargs):
        count = evaluation_metrics["env_runners"]["num_episodes"]
        metrics_logger.log_value("evaluated", count, reduce="sum")

    def on_episode_end(
        self, *, episode, env_runner, metrics_logger, env, env_index, rl_module, **kwargs
    ):
        assert not kwargs["prev_episode_chunks"] and kwargs["worker"] is not None
        assert f"{env} {env_index}" and not hasattr(env, "unwrapped")
        metrics_logger.log_value("turns", len(episode), reduce="max")


@pytest.mark.long
def test_hooks_in_rllibs_words_log_numbers_that_results_hold_by_their_names(
    small, start, resume, tmp_path
):
    settings = {"evaluation_interval": 2, "evaluation_duration": 3}
    settings |= {"sampling_interval": 2, "sampling_duration": 2}
    trainer = start(small.replace(callbacks=InRLlibsWords()), **settings)
    trainer.fit({"training_iteration": 4})
    trainer.stop()
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["of_each"] for row in rows] == [1, 2, 3, 4]
    assert [row["lifetime"] for row in rows] == [1, 2, 3, 4]
    assert [row.get("evaluated") for row in rows] == [None, 3, None, 3]
    assert ["turns" in row["env_runners"] for row in rows] == [False, True, False, True]
    assert rows[-1]["nested"]["last_two"] == 4  # the iteration whose state is at hand
    rest = resume(config=small.replace(callbacks=InRLlibsWords()))
    result = rest.fit({"training_iteration": 5})
    assert (result["of_each"], result["lifetime"]) == (5, 5)
    assert result["nested"]["last_two"] == (4 + 5) / 2


class Lengths(Callbacks):
    """An evaluation of two lengths of episodes."""

    def custom_evaluation_function(self, trainer):
        def mean_length(limit):
            played = trainer.evaluate(episodes=2, env_args={"max_steps_in_episode": limit})
            return played["env_runners"]["episode_len_mean"]

        return {f"length_{limit}": mean_length(limit) for limit in (3, 5)}


def test_an_evaluation_of_ones_own_is_reported_scored_and_ends_training(small, start):
    settings = {"evaluation_interval": 2, "checkpoint_score_attribute": "evaluation/length_5"}
    trainer = start(small.replace(callbacks=Lengths), **settings)
    with trainer:
        trainer.fit({"training_iteration": 3})
        evaluated = [result.get("evaluation") for result in trainer.results()]
        assert evaluated == [None, {"length_3": 3.0, "length_5": 5.0}, evaluated[1]]
        assert trainer.best.value == 5.0
        last = trainer.fit({"training_iteration": 9, "evaluation/length_3": 3})
        assert last["training_iteration"] == 3  # it had reached it


def test_an_evaluation_of_ones_own_that_no_interval_calls_is_told(small, start, capfd):
    with start(small.replace(callbacks=Lengths), quiet=False) as trainer:
        assert "evaluation" not in trainer.fit({"training_iteration": 2})
    said = "custom_evaluation_function is not called: evaluation_interval is not set"
    assert "".join(capfd.readouterr()).count(said) == 1


class Around(Lengths):
    """Says what is called around an evaluation, and adds to it."""

    def __init__(self):
        self.called = []

    def on_evaluate_start(self, trainer):
        self.called.append("start")

    def on_evaluate_end(self, trainer, evaluation, metrics_logger):
        self.called.append("end")
        evaluation["sum"] = evaluation["length_3"] + evaluation["length_5"]
        metrics_logger.log_value("mine", len(self.called), reduce="max")


def test_hooks_are_called_once_around_an_evaluation_of_ones_own_and_add_to_it(small, start):
    callbacks = Around()
    settings = {"evaluation_interval": 1, "checkpoint_score_attribute": "evaluation/sum"}
    with start(small.replace(callbacks=callbacks), **settings) as trainer:
        result = trainer.train()
        assert result["evaluation"] == {"length_3": 3.0, "length_5": 5.0, "sum": 8.0}
        assert (result["mine"], trainer.best.value) == (2, 8.0)
        assert callbacks.called == ["start", "end"]


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({}, "evaluation/env_runners/episode_return_mean"),
        ({"checkpoint_score_attribute": "evaluation/length"}, "evaluation/length"),
        ({"checkpoint_score_attribute": "evaluation/length_3"}, None),
    ],
)
def test_an_evaluation_without_the_score_of_the_best_checkpoint_is_warned_of_once(
    settings, missing, small, start, capsys
):
    config = small.replace(callbacks=Lengths)
    with start(config, evaluation_interval=1, quiet=False, **settings) as trainer:
        trainer.fit({"training_iteration": 2})
    warnings = [line for line in capsys.readouterr().out.splitlines() if "warning: no ch" in line]
    assert warnings == [
        f"warning: no checkpoint is the best by an evaluation without {missing}; "
        "checkpoint_score_attribute may be evaluation/length_3, evaluation/length_5"
    ] * (missing is not None)


def test_rllibs_own_evaluation_function_runs_where_it_needs_no_workers(small, start):
    def evaluate(algo, workers):
        assert "nothing of that kind" in repr(workers)
        return {"iteration": algo.iteration}, 10, 10

    config = {"custom_evaluation_function": evaluate, "evaluation_interval": 1}
    callbacks = from_rllib({"env": "CartPole-v1", **config}).config.callbacks
    trainer = start(small.replace(callbacks=callbacks), evaluation_interval=1)
    with trainer:
        assert trainer.train()["evaluation"] == {"iteration": 1}


test_an_evaluation_that_cannot_be_is_refused = refused_by(
    lambda *functions: HostCallbacks(
        None, [SimpleNamespace(custom_evaluation_function=function) for function in functions]
    ).evaluate(),
    [
        (lambda trainer: None, "must return a tree of numbers, not None"),
        (lambda trainer: {}, "must return a tree of numbers, not {}"),
        (len, len, "each, and one can evaluate"),
    ],
)


class LogsAll(Callbacks):
    """Host hooks that log what is more than a number."""

    def on_train_result(self, *, metrics_logger, result, **kwargs):
        for value in (1, 3):
            metrics_logger.log_value("spread", value, reduce="percentiles", percentiles=[25])
            metrics_logger.log_value("series", value, reduce="item_series")
        steps = 10 * result["time_this_iter_s"]
        metrics_logger.log_value("steps", steps, reduce="sum", with_throughput=True)
        metrics_logger.log_value("frame", np.zeros((2, 3, 3), np.uint8), reduce="item")

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        metrics_logger.log_value("turns", len(episode), reduce="item_series")


def test_results_have_percentiles_series_throughputs_and_pictures(small, start, resume, tmp_path):
    settings = {"sampling_interval": 2, "sampling_duration": 2}
    trainer = start(small.replace(callbacks=LogsAll()), **settings)
    result = trainer.fit({"training_iteration": 2})
    trainer.stop()
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    row = json.loads(rows[-1])
    assert result["spread"][25] == row["spread"]["25"] == 1.5
    assert result["series"] == row["series"] == [1, 3]
    assert result["steps_throughput"] == pytest.approx(10)
    assert len(row["env_runners"]["turns"]) == 2
    assert result["frame"].shape == (2, 3, 3) and row["frame"] == "uint8(2, 3, 3)"
    rest = resume(config=small.replace(callbacks=LogsAll()))
    result = rest.fit({"training_iteration": 3})
    assert result["steps_throughput"] == pytest.approx(10)


def looked_at(name):
    """The result after a hook that logs 1.0 under a name, beside two numbers of the loop."""
    hooks = SimpleNamespace(
        on_train_result=lambda *, result, metrics_logger: metrics_logger.log_value(name, 1.0)
    )
    result = {"training_iteration": 1, "done": False, "env_runners": {"num_episodes": 3}}
    HostCallbacks(None, [hooks]).look([result])
    return result


test_a_logged_name_that_the_result_has_is_refused_in_one_line = refused_by(
    looked_at,
    [
        ("env_runners", "on_train_result logs 'env_runners', which the result has already"),
        ("done", "on_train_result logs 'done', which"),
        ("training_iteration", "on_train_result logs 'training_iteration', which"),
        (("env_runners", "num_episodes"), "on_train_result logs 'env_runners/num_episodes', which"),
        ("done/mine", "on_train_result logs 'done', which"),
    ],
)


def test_a_logged_name_may_lie_beside_the_loops_own():
    assert looked_at("env_runners/mine")["env_runners"] == {"num_episodes": 3, "mine": 1.0}


def test_what_is_logged_twice_for_one_result_is_the_later_value():
    def on_evaluate_end(*, evaluation, metrics_logger):
        metrics_logger.log_value("evaluations", 1, reduce="lifetime_sum")

    hooks, result = HostCallbacks(None, [SimpleNamespace(on_evaluate_end=on_evaluate_end)]), {}
    result["done"] = False
    hooks.call("on_evaluate_end", {})
    hooks.look([result])
    assert result["evaluations"] == 1
    hooks.call("on_evaluate_end", {})  # of the state that training ends with
    hooks.look_at_the_end(result)
    assert result["evaluations"] == 2


def test_a_hook_with_names_of_its_own_is_called_by_position():
    heard = []
    hooks = SimpleNamespace(on_train_result=lambda algo, row, **more: heard.append((algo, row)))
    HostCallbacks("trainer", resolve_callbacks([hooks])).call("on_train_result", {"done": False})
    assert heard == [("trainer", {"done": False})]


def test_hooks_of_rllib_that_are_never_called_are_refused_with_ours():
    with pytest.raises(
        UsageError, match=r"unknown hook 'on_trainer_init' .*: RLlib's name for on_algorithm_init"
    ):
        resolve_callbacks([SimpleNamespace(on_trainer_init=lambda **_: None)])
    with pytest.raises(UsageError, match="no counterpart: there are no workers"):
        resolve_callbacks([SimpleNamespace(on_workers_recreated=lambda **_: None)])


class Moments(Callbacks):
    """Writes down when a trainer is made, resumed and evaluated, in RLlib's words."""

    def __init__(self):
        self.moments = []

    def on_algorithm_init(self, *, algorithm, metrics_logger=None, **kwargs):
        metrics_logger.log_value("begun_at", algorithm.iteration, reduce="item")
        self.moments.append(("init", algorithm.run_dir.name))

    def on_checkpoint_loaded(self, *, algorithm, **kwargs):
        self.moments.append(("loaded", algorithm.iteration))

    def on_evaluate_start(self, *, algorithm, metrics_logger=None, **kwargs):
        self.moments.append(("start", algorithm.iteration))

    def on_evaluate_end(self, *, algorithm, evaluation_metrics, **kwargs):
        self.moments.append(("end", evaluation_metrics["env_runners"]["num_episodes"]))

    def set_state(self, state):
        self.moments.append(("state", state))

    def get_state(self):
        return len(self.moments)


def test_hooks_are_called_as_a_trainer_is_made_resumed_and_evaluated(small, start, resume):
    moments, again = Moments(), Moments()
    trainer = start(small.replace(callbacks=moments), evaluation_duration=3)
    assert moments.moments == [("init", "run")]
    assert trainer.train()["begun_at"] == 0
    trainer.evaluate()
    trainer.stop()
    assert moments.moments[1:] == [("start", 1), ("end", 3)]
    resume(config=small.replace(callbacks=again))
    assert again.moments == [("init", "run"), ("state", 3), ("loaded", 1)]


@pytest.mark.parametrize("hook", ["on_algorithm_init", "on_checkpoint_loaded"])
def test_a_hook_that_fails_as_a_trainer_is_made_leaves_no_new_folder_and_no_lock(
    small, start, resume, tmp_path, hook
):
    def fail(self, **kwargs):
        raise ValueError("no licence")

    failing = small.replace(callbacks=type("Fails", (Callbacks,), {hook: fail}))
    if hook == "on_algorithm_init":
        with pytest.raises(ValueError, match="no licence"):
            start(failing)
        assert not (tmp_path / "run").exists()
    trainer = start(small)
    trainer.train()
    trainer.stop()
    with pytest.raises(ValueError, match="no licence"):
        resume(config=failing)
    assert resume(config=small).train()["training_iteration"] == 2


def test_an_episode_by_position_is_rllibs_unless_data_is_before_it():
    """The first callback of RLlib's page on callbacks is (episode, **kwargs)."""
    assert takes_an_object(lambda episode, **kwargs: None)
    assert takes_an_object(lambda episode: None)
    assert takes_an_object(lambda episode, metrics_logger: None)
    assert not takes_an_object(lambda data, episode: {})
    assert not takes_an_object(lambda numbers, episode, **kwargs: {})


# Episodes as objects


def test_sampled_episodes_are_given_to_hooks_that_take_them_by_keyword(start, small):
    notes = Notes()
    config = small.replace(callbacks=notes)
    trainer = start(config, run_dir=None, sampling_interval=3, sampling_duration=2)
    result = trainer.fit({"training_iteration": 7})
    assert [iteration for iteration, _ in notes.episodes] == [3, 3, 6, 6]
    assert result["noted"] == 4
    episodes = [episode for _, episode in notes.episodes]
    assert all(isinstance(episode, MultiAgentEpisode) and episode.is_done for episode in episodes)
    numbers = [episode.custom_data["origin"]["episode"] for episode in episodes]
    assert numbers == [6, 7, 12, 13]  # another one each time, and the same ones in another run
    assert all(replay_episode(episode).difference is None for episode in episodes)


@pytest.mark.long
def test_episodes_are_sampled_after_each_chunk_and_change_nothing_that_is_trained(start, small):
    notes = Notes()
    watched = start(small.replace(callbacks=notes), run_dir=None)
    plain = start(run_dir=None)
    for trainer in (watched, plain):
        trainer.fit({"training_iteration": 3})
    assert notes.episodes and notes.episodes[0][0] == 1
    same = jax.tree.map(
        lambda x, y: bool((x == y).all()), watched.runner.learners, plain.runner.learners
    )
    assert jax.tree.all(same)


class Along(Callbacks):
    """RLlib's hooks along an episode, of which the first writes what the others read."""

    def __init__(self):
        self.calls = []

    def on_episode_created(self, *, episode, env_runner, metrics_logger, env, rl_module, **kwargs):
        assert not episode.is_reset and not episode.is_done
        self.calls.append([])

    def on_episode_start(self, *, episode, env_index, **kwargs):
        episode.custom_data["rewards"] = []
        assert len(episode) == 0 and episode.get_observations(-1).keys() == {"agent1", "agent2"}

    def on_episode_step(self, *, episode, metrics_logger, **kwargs):
        episode.custom_data["rewards"].append(episode.get_rewards(-1))
        self.calls[-1].append((len(episode), episode.is_done))
        metrics_logger.log_value("turns", len(episode), reduce="max")

    def on_episode_end(self, *, episode, **kwargs):
        rewards = episode.custom_data["rewards"]
        assert rewards == episode.get_rewards(return_list=True)
        assert [done for _, done in self.calls[-1]] == [False] * (len(episode) - 1) + [True]
        assert [steps for steps, _ in self.calls[-1]] == list(range(1, len(episode) + 1))


def test_hooks_along_an_episode_follow_the_sampled_one_with_what_had_happened(start, small):
    along = Along()
    trainer = start(small.replace(callbacks=along), run_dir=None, sampling_duration=2)
    result = trainer.fit({"training_iteration": 1})
    assert len(along.calls) == 2
    assert result["env_runners"]["turns"] == max(map(len, along.calls))


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (
            lambda *, episode, learner: None,
            r"must take \(\*, episode, trainer, .*\): missing a required .*'learner'",
        ),
        (
            lambda *, worker: None,
            r"must take \(data, episode\): too many positional .*; it is compiled, on arrays",
        ),
    ],
)
def test_an_episode_hook_that_wants_more_is_refused_in_one_line(hook, message):
    with pytest.raises(UsageError, match=f"on_episode_end of callbacks SimpleNamespace {message}"):
        resolve_callbacks([SimpleNamespace(on_episode_end=hook)])


def heard_by(hook):
    """Calls a hook of an episode as a trainer does."""
    HostCallbacks(None, [SimpleNamespace(on_episode_end=hook)]).call("on_episode_end", "episode")


test_arguments_of_rllibs_hooks_without_a_counterpart_are_answered_with_ours_as_they_are_used = (
    refused_by(
        heard_by,
        [
            (
                lambda *, episode, env_runner: env_runner.config,
                "hooks get no env_runner here: there are no workers: name `trainer`",
            ),
            (lambda *, episode, env: env.envs[0], "no env here: .*trainer.env_params"),
            (lambda *, episode, env_index: [1][env_index], "no env_index here: environments are"),
            (
                lambda *, episode, rl_module, **_: rl_module["pol1"],
                r"no rl_module here: .*trainer.get_policy\(policy\)",
            ),
            (
                lambda *, worker, episode, **_: SingleAgentEpisode(id_="a").user_data,
                "SingleAgentEpisode has no 'user_data': RLlib's name for custom_data",
            ),
            (
                lambda *, episode, **_: SingleAgentEpisode().custom_metrics,
                r"no 'custom_metrics': metrics_logger.log_value\(name, number\) of the hook's",
            ),
            (lambda *, episode, worker: worker(), "no worker here: there are no workers"),
            (lambda *, episode, policies: list(policies), "no policies here: .*trainer.get_policy"),
        ],
    )
)


def test_a_sweep_refuses_a_hook_that_takes_sampled_episodes(small):
    with pytest.raises(UsageError, match=r"on_episode_end.* needs a Trainer") as error:
        sweep(small.replace(callbacks=Notes), {"lr": [1e-3, 1e-4]}, run_dir=None)
    assert "\n" not in str(error.value)
