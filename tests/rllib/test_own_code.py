"""Code of the user's own in RLlib's configurations: callbacks, models, searches."""

import pytest
from flax import linen as nn

import jaxrl
from jaxrl.core.errors import UsageError

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


@pytest.mark.parametrize("callbacks", [Metrics, Metrics()])
def test_callbacks_of_this_library_are_taken_over(callbacks):
    config = jaxrl.from_rllib({**CARTPOLE, "callbacks": callbacks}).config
    assert config.callbacks == (callbacks,)


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
