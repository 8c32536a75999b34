"""Trainers, policies, runs and results as a notebook shows them."""

import json
import pickle
from xml.etree import ElementTree

import pytest

import jaxrl
from jaxrl import PPOConfig
from jaxrl.core.spaces import Box, Discrete
from jaxrl.run import results
from jaxrl.run.displays import layers_of
from jaxrl.run.result_display import FIGURES
from jaxrl.run.results import ResultTree, flatten


def lines_of(shown):
    """(title, {label: text} of the first table, the folded part) of what a notebook shows."""
    element = ElementTree.fromstring(shown._repr_html_())
    table = element.find("table")
    lines = {row[0].text: "".join(row[1].itertext()) for row in table}
    return element.find("strong").text, lines, element.find("details")


def test_a_trainer_shows_its_folder_its_policies_its_steps_and_its_last_return(trained):
    title, lines, folded = lines_of(trained)
    assert title == "Trainer of arena"
    assert lines["run folder"] == str(trained.run_dir)
    assert lines["environment"] == "arena  height=4  width=4  max_steps_in_episode=20"
    assert lines["policy"].startswith("pol2 plays agent2: ")  # the last of the two lines
    assert lines["trained"].startswith("192 of 2,560 steps in ")
    last = trained.last_result["env_runners"]
    assert lines["return"] == f"{last['episode_return_mean']:.2f}"
    assert lines["by agent"].startswith("agent1 ")
    assert folded.find("summary").text == "PPOConfig of arena"


def test_a_trainer_that_writes_nothing_and_has_not_trained_says_so(start):
    _, lines, _ = lines_of(start(run_dir=None))
    assert lines["run folder"] == "none, nothing is written"
    assert lines["trained"] == "0 of 2,560 steps"
    assert "return" not in lines


def test_a_policy_shows_its_spaces_its_network_and_where_it_is_from(run, trained):
    title, lines, folded = lines_of(jaxrl.load_policy(run, "pol1"))
    assert title == "Policy pol1"
    assert lines["from"] == str(run / "checkpoints" / "000003")
    assert lines["environment"] == "arena" and lines["plays"] == "agent1"
    assert lines["observations"] == "MultiDiscrete(nvec=(16, 16))"
    assert lines["actions"] == "Discrete(n=4)"
    # Two networks, of policy and value: 32 + 1 times 8, then 8 + 1 times 4 and times 1.
    assert lines["network"] == "8, 573 parameters"
    assert "573" in "".join(folded.itertext())
    assert lines_of(trained.get_policy("pol1"))[1]["from"] == "the trainer"


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({"fcnet_hiddens": (64, 32)}, "64 x 32"),
        ({"fcnet_hiddens": ()}, "no hidden layer"),
        ({"fcnet_hiddens": (8,), "use_lstm": True, "lstm_cell_size": 16}, "8, LSTM of 16"),
        ({"fcnet_hiddens": (8,), "use_attention": True}, "8, Attention of 64"),
        ({"fcnet_hiddens": (8,), "network_dtype": "bfloat16"}, "8, products in bfloat16"),
        (
            {"conv_filters": ((16, 3, 2), (8, 2, 1)), "fcnet_hiddens": (64,)},
            "16 filters of 3 x 3, 8 filters of 2 x 2, 64",
        ),
        ({"model": "tests.probes:Curious"}, "Curious"),
    ],
)
def test_a_policys_network_is_shown_by_its_sizes_or_by_a_users_name_of_it(settings, layers):
    image = Box(0, 1, (10, 10, 4)) if "conv_filters" in settings else Box(0, 1, (4,))
    spec = PPOConfig(**settings).policy_spec("p", image, Discrete(2))
    assert layers_of(spec.model) == layers


def test_a_network_that_says_nothing_of_its_sizes_is_shown_by_its_class():
    class Linear:
        """A model of another package's algorithm."""

    assert layers_of(Linear()) == "Linear"


def test_a_policy_that_nobody_knows_the_origin_of_is_shown_without(trained):
    _, lines, _ = lines_of(pickle.loads(pickle.dumps(trained.get_policy("pol2"))))
    assert "from" not in lines and lines["plays"] == "agent2"


def test_a_run_shows_the_figures_of_its_newest_result(run, trained):
    title, lines, _ = lines_of(jaxrl.load_run(run))
    assert title == "Run of arena" and lines["run folder"] == str(run)
    assert lines["iteration"] == "3" and lines["steps"] == "192"
    assert lines["return"] == f"{trained.last_result['env_runners']['episode_return_mean']:.2f}"
    (run / "metrics.jsonl").unlink()
    assert "return" not in lines_of(jaxrl.load_run(run))[1]


@pytest.mark.parametrize(
    "row",
    [
        {"env_runners": {"episode_return_mean": "<b>much</b>"}},
        {"env_runners": {"agent_episode_returns_mean": {"a": "x", "b": [1]}}},
        {"env_runners": 3, "evaluation": []},
    ],
)
def test_a_run_whose_log_holds_no_numbers_is_shown_without_figures(row, run):
    (run / "metrics.jsonl").write_text(json.dumps({"training_iteration": 4, **row}) + "\n")
    _, lines, _ = lines_of(jaxrl.load_run(run))
    assert lines["iteration"] == "4" and "return" not in lines


def test_a_result_shows_its_figures_and_folds_every_path(trained):
    title, lines, folded = lines_of(trained.last_result)
    assert title == "Result" and lines["iteration"] == "3" and lines["steps"] == "192"
    paths = {row[0].text: row[1].text for row in folded.iter("tr")}
    assert paths["env_runners/num_env_steps_sampled"] == "64"
    assert folded.find("summary").text == f"all {len(paths)} results, by their paths"


def test_a_part_of_a_result_shows_all_of_its_paths():
    _, lines, folded = lines_of(ResultTree(a=1, b={"c": list(range(20))}))
    assert lines == {"a": "1", "b/c": "20 values, the last 19"} and folded is None


def test_the_figures_are_paths_of_a_result(trained):
    paths = {path for path, _ in flatten(trained.last_result)}
    assert paths >= {path for path in FIGURES if not path.startswith("evaluation/")}
    assert FIGURES.keys() >= {results.ITERATIONS, results.ENV_STEPS, results.RETURN}
