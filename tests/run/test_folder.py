"""What a run's folder says of its configuration, and what is said where it cannot be read back."""

import json

import pytest

from jaxrl import Callbacks, PPOConfig, UsageError
from jaxrl.run import folder
from scripts.arena_callbacks import ArenaMetrics


def own_optimizer(lr):
    raise NotImplementedError


def facts_of(**settings):
    facts = folder.config_facts(PPOConfig(env="arena", **settings), {})
    return json.loads(json.dumps(facts))


def test_a_class_among_the_callbacks_is_read_back_by_its_name():
    facts = facts_of(callbacks=[ArenaMetrics, "scripts.arena_callbacks:Curiosity"])
    names = ("scripts.arena_callbacks:ArenaMetrics", "scripts.arena_callbacks:Curiosity")
    assert facts["objects"] == []
    assert folder.read_config(facts) == PPOConfig(env="arena", callbacks=names)


@pytest.mark.parametrize("where", ["instance", "local class", "optimizer"])
def test_objects_that_playing_does_without_are_left_out_for_playing_alone(where):
    class Local(Callbacks):
        pass

    settings = {
        "instance": {"callbacks": ArenaMetrics()},
        "local class": {"callbacks": Local},
        "optimizer": {"optimizer": own_optimizer},
    }[where]
    facts = facts_of(lr=1e-3, **settings)
    assert folder.read_config(facts, to_play=True) == PPOConfig(env="arena", lr=1e-3)
    with pytest.raises(UsageError, match=f"the run's {next(iter(settings))} was an object"):
        folder.read_config(facts)


@pytest.mark.parametrize("config_class", ["jaxrl.nowhere:PPOConfig", "jaxrl.ppo.config:Vanished", "__main__:Mine"])
def test_a_configuration_of_a_class_that_is_not_here_is_refused_in_one_line(config_class):
    with pytest.raises(UsageError, match=f"is a {config_class}, which cannot be imported here") as refused:
        folder.read_config({**facts_of(), "config_class": config_class})
    assert "\n" not in str(refused.value)


def test_a_folder_whose_files_lack_something_is_called_damaged(tmp_path):
    rest = {"config_class": "", "objects": [], "policies": {}, "run_settings": {}, "versions": {}}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metadata.json").write_text(json.dumps(rest))
    assert folder.read(tmp_path) == {**rest, "config": {}}
    without = {name: value for name, value in rest.items() if name != "objects"}
    for damaged, message in ((without, "metadata.json has no 'objects'"), ([], "metadata.json holds no settings")):
        (tmp_path / "metadata.json").write_text(json.dumps(damaged))
        with pytest.raises(UsageError, match=f"is damaged: .*{message}"):
            folder.read(tmp_path)
