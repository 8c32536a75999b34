"""Code of the user's own in RLlib's configurations: callbacks, models, searches."""

import pytest
from flax import linen as nn

import jaxrl
from jaxrl.core.errors import UsageError
from jaxrl.ops.exploration import EpsilonGreedy
from jaxrl.rollout.episode_callbacks import resolve_callbacks
from jaxrl.run.callbacks import HostCallbacks
from tests.messages import refused_by
from tests.probes import Curious

CARTPOLE = {"env": "CartPole-v1"}


class Metrics(jaxrl.Callbacks):
    def on_train_result(self, trainer, result):
        result["seen"] = True


class Net(nn.Module):
    units: int = 16

    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Dense(self.units)(obs))
        return nn.Dense(2)(x), nn.Dense(1)(x)


def of_each(*, algorithm, result, **kwargs):
    result["squared"] = result["training_iteration"] ** 2


def of_info(info):
    assert info["trainer"] == "trainer"
    of_each(algorithm=None, result=info["result"])


@pytest.mark.parametrize(
    "callbacks",
    [
        {"callbacks": {"on_train_result": of_each}},
        {"callbacks": {"on_train_result": of_info, "on_episode_end": None}},
        {"callbacks_on_train_result": of_each},
        {"callbacks_on_train_result": [of_each], "callbacks_on_episode_start": None},
        {"callbacks_on_train_result": of_each, "callbacks": Metrics},
        {"callbacks_on_train_result": of_each, "callbacks_on_algorithm_init": print},
    ],
)
def test_functions_that_are_hooks_of_the_host_are_called_as_rllib_calls_them(callbacks):
    found = jaxrl.from_rllib({**CARTPOLE, **callbacks}).config.callbacks
    result = {"training_iteration": 3, "done": False, "env_runners": {}}
    HostCallbacks("trainer", resolve_callbacks(found)).look([result])
    assert result["squared"] == 9 and ("seen" in result) == (Metrics in found)


test_functions_that_do_something_else_here_are_refused_with_the_reason = refused_by(
    lambda key, value: jaxrl.from_rllib({**CARTPOLE, key: value}),
    [
        (
            "callbacks_on_environment_created",
            print,
            "on_environment_created: 'cartpole' is compiled: there is no environment object",
        ),
        (
            "callbacks",
            {"on_episode_start": lambda info: None},
            r"on_episode_start of callbacks HooksOfRLlib must take \(state, params\)",
        ),
        (
            "env_task_fn",
            lambda result, env, context: 1,
            r"env_task_fn must take \(result, task\), not \(result, env, context\)",
        ),
        ("env_task_fn", 3, r"env_task_fn=3 must be a function from \(result, task\)"),
        (
            "exploration_config",
            {"type": "ray.rllib.utils.exploration.curiosity.Curiosity", "eta": 0.5},
            "a model with intrinsic_reward is curious .* and eta is intrinsic_reward_coeff",
        ),
        (
            "exploration_config",
            {"type": "OrnsteinUhlenbeckNoise"},
            "its noise lasts from step to step, .*; exploration_config has the types Stoch",
        ),
        ("exploration_config", {"type": "mine.Noise"}, "has the types .* or a function of yours"),
        ("exploration_config", 3, "exploration_config has the types StochasticSampling"),
    ],
)


def longer_poles(result, task):
    return {"pole_half_length": task.pole_half_length + 0.1}


def explore(distribution, env_steps):
    return distribution


@pytest.mark.parametrize(
    ("name", "value", "here"),
    [
        ("env_task_fn", longer_poles, longer_poles),
        ("exploration_config", explore, explore),
        (
            "exploration_config",
            {"type": "ray.rllib.utils.exploration.epsilon_greedy.EpsilonGreedy"},
            {"type": "EpsilonGreedy"},
        ),
        ("exploration_config", {"type": EpsilonGreedy}, {"type": "EpsilonGreedy"}),
    ],
)
def test_curricula_and_explorations_are_those_that_a_configuration_here_takes(name, value, here):
    translated = jaxrl.from_rllib({**CARTPOLE, name: value}).config
    assert translated.replace(**{name: None}) != translated
    assert translated == translated.replace(**{name: here})


def test_curiosity_weighs_the_intrinsic_reward_of_a_model_that_is_given_beside():
    def read(**value):
        value = {"type": "Curiosity", "eta": 0.25, "feature_dim": 8, **value}
        return jaxrl.from_rllib({**CARTPOLE, "exploration_config": value}, model=model).config

    model = Curious()
    config = read()
    assert (config.intrinsic_reward_coeff, config.model) == (0.25, model)
    assert config.exploration_config is None
    acting = {"type": "EpsilonGreedy", "final_epsilon": 0.1}
    assert read(sub_exploration=acting).exploration_config == EpsilonGreedy(final_epsilon=0.1)
    with pytest.raises(jaxrl.UsageError, match="exploration_config has the types"):
        read(sub_exploration={"type": "Mine"})


@pytest.mark.parametrize("callbacks", [Metrics, Metrics()])
def test_callbacks_of_this_library_are_taken_over(callbacks):
    config = jaxrl.from_rllib({**CARTPOLE, "callbacks": callbacks}).config
    assert config.callbacks == (callbacks,)
    for several in ([callbacks], (callbacks, Metrics)):
        config = jaxrl.from_rllib({**CARTPOLE, "callbacks": several}).config
        assert config.callbacks == tuple(several)
    with pytest.raises(UsageError, match=r"takes a jaxrl\.Callbacks"):
        jaxrl.from_rllib({**CARTPOLE, "callbacks": [callbacks, int]})


def test_a_flax_module_is_a_custom_model_as_a_class_with_its_arguments_or_made():
    def model_of(**model):
        return jaxrl.from_rllib({**CARTPOLE, "model": model}).config.model

    assert model_of(custom_model=Net).units == 16
    assert model_of(custom_model=Net, custom_model_config={"units": 4}).units == 4
    assert model_of(custom_model=Net(8), custom_model_config={}).units == 8
    assert model_of(custom_model=None, custom_model_config={}) is None


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ({"custom_model": "my_model"}, "a model of your own is a Flax module"),
        ({"custom_model": Net, "custom_model_config": {"layers": 2}}, "'layers'"),
        (
            {"custom_model": Net(), "custom_model_config": {"units": 2}},
            "custom_model_config has the arguments of a class, and this model is made already",
        ),
    ],
)
def test_another_custom_model_is_refused_with_the_reason(model, why):
    with pytest.raises(UsageError, match=why):
        jaxrl.from_rllib({**CARTPOLE, "model": model})


def test_searches_of_this_library_are_read_as_tune_s_are():
    of_jaxrl = jaxrl.from_rllib({**CARTPOLE, "lr": jaxrl.grid_search([1e-4, 1e-3])})
    of_tune = jaxrl.from_rllib({**CARTPOLE, "lr": {"grid_search": [1e-4, 1e-3]}})
    assert of_jaxrl.space == of_tune.space and of_jaxrl.config == of_tune.config
    drawn = jaxrl.from_rllib({**CARTPOLE, "lr": jaxrl.loguniform(1e-4, 1e-3)})
    assert drawn.space["lr"].arguments == (1e-4, 1e-3) and drawn.config.lr == 1e-4


def test_a_translation_makes_its_trainer_with_its_run_settings_unless_others_are_given():
    translation = jaxrl.from_rllib({**CARTPOLE, "evaluation_interval": 5})
    with translation.trainer(run_dir=None, quiet=True) as trainer:
        assert trainer.config == translation.config
        assert trainer.settings.evaluation_interval == 5
    with translation.trainer(run_dir=None, quiet=True, evaluation_interval=7) as trainer:
        assert trainer.settings.evaluation_interval == 7


def test_a_translation_trains_what_it_tries_as_a_sweep(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "jaxrl.rllib.translation.sweep", lambda *args, **kw: calls.append((args, kw))
    )
    experiment = {**CARTPOLE, "lr": {"grid_search": [1e-4, 1e-3]}, "num_samples": 3}
    translation = jaxrl.from_rllib(experiment)
    translation.sweep(quiet=True)
    ((args, settings),) = calls
    assert args == (translation.config, translation.space)
    assert settings == {"seeds": 3, "quiet": True}


TRIED = {**CARTPOLE, "lr": {"grid_search": [1e-4, 1e-3]}}


def test_several_values_are_no_single_training_unless_one_is_chosen():
    with pytest.raises(UsageError, match=r"tries lr: use \.sweep\(\), or give one value"):
        jaxrl.from_rllib(TRIED).trainer()
    with pytest.raises(UsageError, match="tries seed: use"):
        jaxrl.from_rllib({**CARTPOLE, "seed": {"grid_search": [1, 2]}}).trainer()
    given = jaxrl.from_rllib(TRIED, lr=5e-4)
    first = jaxrl.from_rllib(TRIED, ignore=["lr"])
    assert (given.tried, given.config.lr) == ([], 5e-4)
    assert (first.tried, first.config.lr, first.run_settings) == ([], 1e-4, {})
    assert "the first of several" in str(first) and "jaxrl.sweep tries" not in str(first)
    with first.trainer(run_dir=None, quiet=True) as trainer:
        assert trainer.config.lr == 1e-4


def test_settings_of_one_run_are_refused_in_a_sweep_or_said_to_be_left_out(monkeypatch):
    def refused(config, **settings):
        with pytest.raises(UsageError) as error:
            jaxrl.from_rllib(config, **settings)
        return str(error.value)

    reason = "a setting of one run, which no sweep takes"
    assert f"output='data' (output: {reason})" in refused({**TRIED, "output": "data"})
    ranked = {"config": TRIED, "checkpoint_score_attr": "episode_len_mean"}
    assert f"(checkpoint_score_attribute: {reason})" in refused(ranked)
    assert f"output='data' is {reason}: leave it out" in refused(TRIED, output="data")
    assert jaxrl.from_rllib(TRIED, devices=1).sweep_settings == {"devices": 1}
    ignored = jaxrl.from_rllib({**TRIED, "output": "data"}, ignore=["output"])
    assert ignored.run_settings == {} and "no counterpart, changes the result" in str(ignored)
    ending = jaxrl.from_rllib({"config": TRIED, "checkpoint_at_end": True})
    assert ending.run_settings == {}
    assert "a sweep writes a checkpoint" in str(ending)

    calls = []
    monkeypatch.setattr("jaxrl.rllib.translation.sweep", lambda *args, **kw: calls.append(kw))
    repeated = {"config": CARTPOLE, "num_samples": 2, "checkpoint_at_end": True}
    jaxrl.from_rllib(repeated).sweep()
    assert calls == [{"seeds": 2}]
    with pytest.raises(UsageError, match="output='data' is a setting of one run"):
        jaxrl.from_rllib({**repeated, "config": {**CARTPOLE, "output": "data"}}).sweep()
