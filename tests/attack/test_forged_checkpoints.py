"""A run's facts of any other form are refused in a line that says where it lies."""

import json
import shutil

import pytest

import jaxrl
from jaxrl.run.storage import checkpoint

QUIET = {"quiet": True, "pictures": False}
WRONG = [None, 5, "x", [], {}, [5], {"a": 5}, True, -1]
PLACES = [
    ("versions",),
    ("groups",),
    ("groups", 0),
    ("env_name",),
    ("num_env_steps",),
    ("policies",),
    ("policies", "default_policy"),
    ("policies", "default_policy", "agents"),
    ("policies", "default_policy", "observation_space"),
    ("policies", "default_policy", "action_space"),
    ("run_settings",),
    ("run_settings", "stop"),
    ("lifetime",),
    ("result",),
    ("hooks",),
    ("hooks", "callbacks"),
    ("files",),
    ("arrays",),
]


@pytest.fixture
def write(run, tmp_path):
    """Writes the facts of the copy of a run, with their digest."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    file = checkpoint.find(copy) / checkpoint.FACTS

    def write(change):
        facts = json.loads((checkpoint.find(run) / checkpoint.FACTS).read_text())
        del facts["digest"]
        change(facts)
        facts["digest"] = checkpoint._digest(facts)
        file.write_text(json.dumps(facts))
        return copy

    return write


def attempts(copy):
    """What resuming and loading raise, each."""
    for call in (
        lambda: jaxrl.Trainer.from_checkpoint(copy, **QUIET).stop(),
        lambda: jaxrl.load_policy(copy),
    ):
        try:
            call()
            yield None
        except jaxrl.UsageError as error:
            yield str(error)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_a_fact_of_another_form_ends_in_one_line_or_does_no_harm(place, write, tmp_path):
    num_refused = 0
    for wrong in WRONG:

        def change(facts, wrong=wrong):
            *outer, last = place
            for name in outer:
                facts = facts[name]
            facts[last] = wrong

        for said in attempts(write(change)):
            if said is not None:
                num_refused += 1
                said = said.replace(str(tmp_path), "")
                assert "\n" not in said and len(said) < 400
    assert num_refused >= len(WRONG)


@pytest.mark.parametrize("name", [place[0] for place in PLACES if len(place) == 1])
def test_a_fact_that_is_missing_is_named(name, write):
    copy = write(lambda facts: facts.pop(name))
    for said in attempts(copy):
        assert "is damaged: checkpoint.json has no" in said and repr(name) in said


def test_a_space_of_an_unknown_kind_is_named(write):
    strange = {"space": "Sphere", "radius": 3}
    copy = write(lambda facts: facts["policies"]["default_policy"].update(action_space=strange))
    for said in attempts(copy):
        assert "action_space in default_policy in policies in checkpoint.json is" in said
        assert "Sphere" in said


def test_groups_of_other_policies_are_named(write):
    for said in attempts(write(lambda facts: facts.update(groups=[["explorer"]]))):
        assert "groups in checkpoint.json is [['explorer']], other policies" in said
