"""A configuration as a file holds it.

Which objects it holds by name, and what is said of those that it cannot.
"""

import functools
import json
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import optax
import pytest

from jaxrl import Callbacks, PPOConfig, UsageError
from jaxrl.run import advice
from jaxrl.run.storage import run_folder
from jaxrl.run.storage.config_file import config_facts, read_config
from scripts.arena_callbacks import ArenaMetrics, Curiosity
from tests.core.environments import Corridor


def descent(lr):
    return optax.sgd(lr)


class Net(nn.Module):
    width: int = 8
    sizes: tuple = (2, 3)
    activation: Any = nn.relu

    @nn.compact
    def __call__(self, obs):
        return nn.Dense(2)(obs), nn.Dense(1)(obs)


class Plain:
    """A model without arguments."""

    def init(self, key, obs):
        return {}

    def apply(self, params, obs):
        return obs, obs


class Counter(Callbacks):
    def __init__(self):
        self.count = 0

    def on_train_result(self, trainer, result):
        self.count += 1


class Scaled(Callbacks):
    def __new__(cls, scale=1.0):
        return super().__new__(cls)

    def on_train_result(self, trainer, result):
        pass


class Slotted:
    __slots__ = ("__dict__", "scale")

    def set(self, scale):
        self.scale = scale
        return self

    def on_train_result(self, trainer, result):
        pass


@dataclass(frozen=True)
class Held(Corridor):
    """Equal to nothing that is made again."""

    inner: Any = None

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


def facts_of(env="arena", **settings):
    facts = config_facts(PPOConfig(env=env, **settings), {})
    return json.loads(json.dumps(facts))


def read(facts, **options):
    return read_config(facts, "jaxrl.Trainer.from_checkpoint", **options)


HERE = __name__
NAMED = {
    "a class of callbacks": (
        {"callbacks": ArenaMetrics},
        {"callbacks": "scripts.arena_callbacks:ArenaMetrics"},
    ),
    "an object of one": (
        {"callbacks": [Curiosity(bonus=0.25), ArenaMetrics()]},
        {
            "callbacks": [
                "scripts.arena_callbacks:Curiosity(bonus=0.25)",
                "scripts.arena_callbacks:ArenaMetrics",
            ]
        },
    ),
    "a model's class": ({"model": Net}, {"model": f"{HERE}:Net"}),
    "a model": (
        {"model": Net(width=16, sizes=(1,))},
        {"model": f"{HERE}:Net(width=16, sizes=(1,))"},
    ),
    "a model with its defaults": ({"model": Net()}, {"model": f"{HERE}:Net"}),
    "a model without arguments": ({"model": Plain()}, {"model": f"{HERE}:Plain"}),
    "a policy's model": (
        {"per_policy": {"pol1": {"model": Net(width=2)}}},
        {"per_policy": {"pol1": {"model": f"{HERE}:Net(width=2)"}}},
    ),
    "an optimizer": ({"optimizer": descent}, {"optimizer": f"{HERE}:descent"}),
    "one of a package's private modules": ({"optimizer": optax.sgd}, {"optimizer": "optax:sgd"}),
    "an environment": (
        {"env": Corridor(length=5.0)},
        {"env": "tests.core.environments:Corridor", "env_args": {"length": 5.0}},
    ),
}


@pytest.mark.parametrize("case", NAMED)
def test_an_object_that_can_be_imported_is_saved_by_its_name_and_arguments(case):
    given, named = NAMED[case]
    facts = facts_of(**given)
    assert facts["objects"] == []
    assert read(facts, trust=True) == PPOConfig(**{"env": "arena", **named})


def test_what_is_read_back_by_name_is_made_as_it_was():
    config = read(facts_of(env=Corridor(length=5.0), model=Net(width=16)), trust=True)
    assert config.setup().env.env == Corridor(length=5.0)
    given = config.policy_spec(
        "default_policy", Corridor().observation_space(), Corridor().action_space()
    ).model.inner
    assert given == Net(width=16)


def test_an_announced_environment_is_saved_by_its_short_name():
    import jaxrl

    env, _ = jaxrl.make("arena", height=5)
    facts = facts_of(env=env)
    assert (facts["config"]["env"], facts["config"]["env_args"]) == ("arena", {"height": 5})


def local_net():
    class Local(nn.Module):
        pass

    return Local


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("model", Net(activation=nn.tanh)),  # an argument that is a function
        ("model", local_net()),  # a class that cannot be imported
        ("model", (lambda key, obs: {}, lambda params, obs: (obs, obs))),
        ("callbacks", Counter()),  # whose arguments are not known
        ("optimizer", lambda lr: optax.sgd(lr)),
        ("env", Held()),  # not equal to what its arguments make
        ("env", Held(inner=object())),
        (
            "optimizer",
            functools.partial(optax.adamw, weight_decay=0.1),
        ),  # which keeps its arguments in C
        ("model", functools.partial(Net, width=3)),
        ("callbacks", Scaled(2.0)),  # made by a __new__ of its own
        ("callbacks", Slotted().set(2.0)),
    ],
)
def test_of_other_objects_the_python_call_that_takes_them_is_said(setting, given):
    facts = facts_of(**{setting: given})
    assert facts["objects"] == [setting]
    call = r"jaxrl.Trainer.from_checkpoint\(RUN, config=\.\.\.\)"
    message = rf"the run's {setting} was an object, .*: .* Python, {call}"
    with pytest.raises(UsageError, match=message) as refused:
        read(facts, trust=True)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("where", ["instance", "local class", "optimizer"])
def test_objects_that_playing_does_without_are_left_out_for_playing_alone(where):
    class Local(Callbacks):
        pass

    settings = {
        "instance": {"callbacks": Counter()},
        "local class": {"callbacks": Local},
        "optimizer": {"optimizer": lambda lr: optax.sgd(lr)},
    }[where]
    facts = facts_of(lr=1e-3, **settings)
    assert read(facts, to_play=True) == PPOConfig(env="arena", lr=1e-3)
    with pytest.raises(UsageError, match=f"the run's {next(iter(settings))} was an object"):
        read(facts)


def test_what_the_user_gives_stands_in_place_of_what_the_file_says():
    facts = facts_of(callbacks=Counter(), lr=1e-3)
    assert read(facts, changes={"callbacks": "x:Y"}) == PPOConfig(
        env="arena", lr=1e-3, callbacks="x:Y"
    )


@pytest.mark.parametrize(
    "config_class",
    ["jaxrl.nowhere:PPOConfig", "jaxrl.algorithms.ppo.config:Vanished", "__main__:Mine"],
)
def test_a_configuration_of_a_class_that_is_not_here_is_refused_in_one_line(config_class):
    with pytest.raises(
        UsageError, match=f"is a {config_class}, which cannot be imported here"
    ) as refused:
        read({**facts_of(), "config_class": config_class}, trust=True)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"config": []},
        {"config": {"env": "arena", "per_policy": [["pol1", [["model", "nowhere:Net"]]]]}},
        {"config": {"env": "arena", "per_policy": {"pol1": [["model", "nowhere:Net"]]}}},
        {"objects": "env"},
        {"objects": [3]},
        {"config_class": 3},
    ],
)
def test_facts_of_another_form_are_refused_in_one_line(changes):
    for trust in (False, True):
        with pytest.raises(UsageError, match=r"damaged|cannot be imported here") as refused:
            read({**facts_of(), **changes}, trust=trust)
        assert "\n" not in str(refused.value)


def test_the_advice_to_load_a_run_is_what_works():
    folder = "runs/a"
    plain, foreign = facts_of(), facts_of(env=Corridor(length=5.0))
    assert advice.to_evaluate(folder, plain).endswith("evaluate runs/a")
    assert advice.to_evaluate(folder, foreign).endswith("evaluate runs/a --trust")
    assert advice.to_resume(folder, foreign, "--lr", 1).endswith("--resume runs/a --lr 1 --trust")
    trained = facts_of(optimizer=lambda lr: optax.sgd(lr))
    assert advice.to_evaluate(folder, trained).endswith("evaluate runs/a")
    assert (
        advice.to_resume(folder, trained) == "jaxrl.Trainer.from_checkpoint('runs/a', config=...)"
    )
    assert (
        advice.to_evaluate(folder, facts_of(model=local_net()))
        == "jaxrl.evaluate('runs/a', config=...)"
    )


def corridor_of_five():
    return Corridor(length=5.0)


def test_an_environments_function_is_named_again_by_the_user():
    name = f"{HERE}:corridor_of_five"
    made = facts_of(env=name)
    assert advice.to_evaluate("runs/a", made) == "jaxrl.evaluate('runs/a', config=...)"
    assert f"--resume runs/a --env {name}" in advice.to_resume("runs/a", made)
    with pytest.raises(UsageError, match=r"not a class derived.*; name a function again yourself"):
        read(made, trust=True)


def test_an_environment_whose_module_is_elsewhere_is_named_with_the_way_to_it():
    made = facts_of(env="key_and_door:Grid")
    with pytest.raises(UsageError, match=r"there is no module 'key_and_door' here: .*PYTHONPATH"):
        read(made, trust=True)


def test_a_run_folder_that_is_taken_is_resumed_with_trust_where_that_is_needed(tmp_path):
    facts = {**facts_of(env=Corridor(length=5.0)), "policies": {}, "run_settings": {}}
    facts |= {"env_name": "Corridor", "action_masks": False, "opponents_of": None, "panels": []}
    run_folder.create(tmp_path / "own", facts).release()
    with pytest.raises(run_folder.FolderExists, match=r"--resume \S*own --trust$"):
        run_folder.create(tmp_path / "own", facts)
