"""What former versions wrote is read to the bit, and goes on as it would have then.

The runs in tests/reference are theirs, and so is what is expected of them; see its README.
"""

import json
import operator
import re
import shutil
import sys
import tarfile
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import Trainer, UsageError, load_policy, resume_sweep
from jaxrl.core.spaces import Discrete, MultiDiscrete
from jaxrl.envs.networks.cell_memory import CellMemory, places, surroundings
from jaxrl.envs.networks.cell_pair import CellPair
from jaxrl.episodes import read_episodes
from jaxrl.export.numpy_policy import NumpyPolicy
from jaxrl.run.logging.panels import panels_of
from jaxrl.run.storage import array_storage, checkpoint, run_folder
from jaxrl.run.storage.checkpoint import ARRAYS, FACTS, filled, find, named_arrays, read_facts
from jaxrl.run.storage.config_file import read_config
from jaxrl.run.storage.migrate import (
    present_arrays,
    present_block,
    present_facts,
    present_plan,
    value_of_later,
    with_joined_layers,
)
from jaxrl.run.storage.run_state import state_tree
from jaxrl.sweeps.trial_batch import TrialBatch
from jaxrl.sweeps.trials import trials_of
from tests.run.storage.recorded_runs import (
    CARTPOLE,
    GAMES,
    LATER_RUNS,
    MODEL,
    RETURN,
    RUNS,
    SEEN,
    chosen,
    digest,
    learned,
    steps_of,
)

REFERENCE = Path(__file__).parents[2] / "reference"
EXPECTED = {}
for facts in ("a5ee728", "5b99be5"):
    EXPECTED |= json.loads((REFERENCE / facts / "expected.json").read_text())


@pytest.fixture
def former(tmp_path):
    """A function that unpacks what a former version wrote, by its name."""

    def unpacked(name):
        (found,) = REFERENCE.rglob(f"{name}.tar.xz")
        with tarfile.open(found) as archive:
            archive.extractall(tmp_path, filter="data")
        return tmp_path / name

    for name, environment in GAMES.items():
        jaxrl.register(name, environment)
    return unpacked


def in_features(name):
    """The name that an array of formats 1 to 3 has now."""
    name = name.replace("runner.envs.callback_data", "runner.envs.features.callbacks")
    return re.sub(r"envs\.(opponents|present|returns|unfinished)\b", r"envs.features.\1", name)


@pytest.mark.long
@pytest.mark.parametrize("name", [*RUNS, *LATER_RUNS])
def test_a_run_of_a_former_version_is_read_to_the_bit_and_goes_on(former, name):
    path, expected = former(name), EXPECTED[name]
    trusted = name in LATER_RUNS  # its callbacks are of tests
    trainer = Trainer.from_checkpoint(path, quiet=True, stop={}, trust=trusted)
    state = named_arrays(state_tree(trainer.algorithm, trainer.snapshot()))
    arrays = {part: digest(array) for part, array in state.items()}
    saved = {in_features(part): digest for part, digest in expected["arrays"].items()}
    assert {part: arrays.get(part) for part in saved} == saved
    later = arrays.keys() - saved.keys()
    assert all("lower" in part and not state[part].any() for part in later)
    result = trainer.train()
    trainer.stop()
    for policy, values in expected["learned"].items():
        assert learned(result)[policy] == pytest.approx(values, rel=1e-4)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4]


@pytest.mark.long
@pytest.mark.parametrize("name", [*RUNS, *LATER_RUNS])
def test_a_policy_of_a_former_version_acts_and_plays_as_it_did(former, name):
    path, expected = former(name), EXPECTED[name]
    policy = next(iter(expected["learned"]))
    assert chosen(path, policy, SEEN[name]) == expected["actions"]
    trusted = name in LATER_RUNS  # its callbacks are of tests
    played = jaxrl.evaluate(path, episodes=4, seed=1, trust=trusted)["env_runners"]
    assert played["episode_return_mean"] == pytest.approx(expected["evaluated"], rel=1e-5)


@pytest.mark.long
def test_a_sweep_of_a5ee728_resumes_the_trial_that_was_missing(former):
    """From present first weights, so its numbers are those of the trial alone, not a5ee728's."""
    first, second = resume_sweep(former("sweep"), quiet=True).outcomes
    assert [first.trial.settings["lr"], second.trial.settings["lr"]] == [1e-3, 3e-4]
    with Trainer(second.trial.config, quiet=True) as trainer:
        alone = learned(trainer.fit())
    assert alone.keys() == EXPECTED["sweep"]["learned"].keys()
    for policy, values in alone.items():
        assert learned(second.result)[policy] == pytest.approx(values, rel=1e-4)


@pytest.mark.long
def test_a_population_of_a5ee728_goes_on_to_the_end(former):
    outcomes = resume_sweep(former("population"), quiet=True).outcomes
    expected = EXPECTED["population"]
    assert [outcome.trial.settings for outcome in outcomes] == expected["settings"]
    for outcome, scores, values in zip(
        outcomes, expected["scores"], expected["learned"], strict=True
    ):
        np.testing.assert_allclose(
            np.array(outcome.curve[1], float), np.array(scores, float), rtol=1e-5
        )
        for policy, numbers in values.items():
            assert learned(outcome.result)[policy] == pytest.approx(numbers, rel=1e-4)


@pytest.mark.long
def test_a_block_of_trials_of_a5ee728_goes_on(former):
    trials = trials_of(CARTPOLE, [{"lr": 1e-3}, {"lr": 1e-2}], 1)
    batch = TrialBatch(trials, metric=RETURN)
    batch.load(former("block"))
    for result, values in zip(batch.train(1), EXPECTED["block"]["learned"], strict=True):
        for policy, numbers in values.items():
            assert learned(result)[policy] == pytest.approx(numbers, rel=1e-4)


@pytest.mark.parametrize("name", ["cartpole", "arena"])
def test_episodes_of_a5ee728_are_read_as_they_were_played(former, name):
    found = map(steps_of, read_episodes(former("episodes") / name))
    assert json.loads(json.dumps(list(found))) == EXPECTED["episodes"][name]


def test_an_exported_policy_of_a5ee728_acts_as_it_did(former):
    reader = NumpyPolicy(former("export") / "policy.npz")
    actions = [int(reader.act(np.float32(obs))) for obs in SEEN["cartpole"]]
    assert actions == EXPECTED["export"]["actions"]


# Formats 1 and 2, before modules and parts of the state had their present names


@pytest.fixture
def run(tmp_path):
    """Two policies of waterworld: a GRU, a filter and scaled rewards, after three iterations."""
    return shutil.copytree(REFERENCE / "run_v2", tmp_path / "run")


@pytest.mark.long
def test_a_policy_of_format_2_acts_as_it_did(run):
    action = load_policy(run, "pursuer_1").act(np.zeros(18, np.float32))
    np.testing.assert_allclose(action, [-0.00170215, 0.00289534], atol=1e-6)
    result = jaxrl.evaluate(run, episodes=4, seed=1)["env_runners"]
    assert result["episode_return_mean"] == pytest.approx(7.1006, abs=1e-3)


@pytest.mark.long
def test_a_run_of_format_2_resumes_as_it_would_have_gone_on(run):
    config = read_config(read_facts(find(run)), "jaxrl.Trainer.from_checkpoint")
    longer = config.replace(total_env_steps=160)
    with Trainer.from_checkpoint(run, config=longer, quiet=True) as trainer:
        learners = trainer.fit()["learners"]
    assert learners["pursuer_0"]["total_loss"] == pytest.approx(0.30281, rel=1e-3)
    assert learners["pursuer_1"]["entropy"] == pytest.approx(2.835579, abs=1e-5)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4, 5]


@pytest.mark.long
def test_a_sweep_of_format_2_resumes_the_trial_that_was_missing(tmp_path):
    folder = shutil.copytree(REFERENCE / "sweep_v2", tmp_path / "sweep")
    first, second = resume_sweep(folder, quiet=True).outcomes
    assert [first.trial.settings["lr"], second.trial.settings["lr"]] == [1e-3, 3e-4]
    learner = second.result["learners"]["default_policy"]
    assert learner["total_loss"] == pytest.approx(7.96877, rel=1e-4)
    assert learner["entropy"] == pytest.approx(0.6931429, abs=1e-6)


PARTS = {"running": "episodes", "memory": "policy_states", "data": "callback_data"}


@pytest.mark.long
@pytest.mark.parametrize("name", ["checkpoint_v1", "run_v2", "run_envs"])
def test_the_state_of_formats_1_and_2_is_taken_over_to_the_bit(former, name):
    folder = REFERENCE / name if (REFERENCE / name).is_dir() else former(name)
    (path,) = (file.parent for file in folder.rglob("checkpoint.json"))
    written = array_storage.read(path / ARRAYS, json.loads((path / FACTS).read_text())["arrays"])
    trainer = Trainer.from_checkpoint(path, run_dir=None, quiet=True, stop={})
    state = named_arrays(state_tree(trainer.algorithm, trainer.snapshot()))
    taken = set()
    for name, array in written.items():
        _, worlds, tail = name.partition("runner.worlds.")
        part, _, rest = tail.partition(".")
        present = f"runner.envs.{PARTS.get(part, part)}.{rest}".rstrip(".") if worlds else name
        present = in_features(present)
        value = checkpoint.narrowed(array, state[present].dtype)
        assert (present, digest(state[present])) == (present, digest(value))
        taken.add(present)
    for name in state.keys() - taken:  # what came later
        assert "lower" in name or name.endswith("agent_steps") or name.startswith("hypers.")


def test_arrays_have_their_present_names():
    former = ["runner.worlds.running.length", "runner.worlds.memory.0.carry"]
    former += ["runner.worlds.unfinished.1.row.context.0", "runner.learners.0.params.worlds"]
    present = ["runner.envs.episodes.length", "runner.envs.policy_states.0.carry"]
    present += ["runner.envs.features.unfinished.1.row.inputs.0", "runner.learners.0.params.worlds"]
    assert list(present_arrays(dict.fromkeys(former), 2)) == present
    assert list(present_arrays(dict.fromkeys(former), 3)) == former


def test_what_features_keep_has_its_present_names():
    former = ["runner.envs.callback_data.0.steps", "runner.envs.opponents", "runner.envs.obs.0"]
    former += ["runner.envs.present", "runner.envs.returns.0", "runner.envs.unfinished.0.there"]
    present = ["runner.envs.features.callbacks.0.steps", "runner.envs.features.opponents"]
    present += ["runner.envs.obs.0", "runner.envs.features.present"]
    present += ["runner.envs.features.returns.0", "runner.envs.features.unfinished.0.there"]
    assert list(present_arrays(dict.fromkeys(former), 3)) == present
    assert list(present_arrays(dict.fromkeys(former), 4)) == former


def test_runs_that_do_not_store_their_panels_have_those_of_ppo():
    facts = run_folder.read(REFERENCE / "run_v2")
    titles = [panel.title for panel in panels_of(facts)]
    assert titles == ["KL divergence of an update, nats", "entropy, nats", "value loss"]
    assert [panel.target for panel in panels_of(facts)] == [0.01, None, None]


@pytest.mark.long
def test_a_network_that_has_since_moved_to_its_environments_is_found_there(former):
    path = former("turned")
    assert MODEL in (path / "config.json").read_text()
    policy = load_policy(path, "pursuer_1")
    module = "jaxrl.envs.networks.rotation_network"
    assert type(policy.policy_spec.model.inner).__module__ == module
    present = {"pursuer_1": {"model": MODEL.replace("jaxrl.models", "jaxrl.envs.networks")}}
    config = jaxrl.PPOConfig(**{**RUNS["turned"], "per_policy": present}, conv_channels="last")
    with Trainer.from_checkpoint(path, config=config, quiet=True, strict=True, stop={}) as trainer:
        assert trainer.train()["training_iteration"] == 4


@pytest.mark.long
def test_a_run_of_the_time_when_environments_were_in_envs_acts_and_plays_as_it_did(former):
    """Its environment was given as "envs.cartpole:CartPole", and nothing else may be meant."""
    path = former("run_envs")
    assert json.loads((path / "config.json").read_text())["env"] == "envs.cartpole:CartPole"
    config = run_folder.read(path)["config"]
    assert config["env"] == "jaxrl.envs.cartpole:CartPole"
    assert chosen(path, "default_policy", SEEN["cartpole"]) == [1, 0]
    assert jaxrl.evaluate(path, episodes=2, seed=1)["env_runners"]["num_episodes"] == 2
    longer = read_config(read_facts(find(path)), "a_test").replace(total_env_steps=48)
    with Trainer.from_checkpoint(path, config=longer, quiet=True, strict=True) as trainer:
        assert trainer.fit()["training_iteration"] == 3


FORMER_CLASS, PRESENT_CLASS = (
    f"{module}:PPOConfig" for module in ("jaxrl.ppo.config", "jaxrl.algorithms.ppo.config")
)


@pytest.mark.parametrize(
    ("env", "present"),
    [
        ("envs.arena:MultiAgentArena", "jaxrl.envs.arena:MultiAgentArena"),
        ("envs.arena:Own", "envs.arena:Own"),
        ("envs.mine:Mine", "envs.mine:Mine"),
        (MODEL, MODEL.replace("jaxrl.models", "jaxrl.envs.networks")),
        ("arena", "arena"),
        (None, None),
        ({"a": [MODEL]}, {"a": [MODEL.replace("jaxrl.models", "jaxrl.envs.networks")]}),
    ],
)
def test_names_of_modules_are_the_present_ones(env, present):
    facts = {"config_class": FORMER_CLASS, "config": {"env": env}, "env_name": env}
    written = json.dumps(facts)
    for read in (present_facts, present_plan):
        found = read(facts)
        assert found["config_class"] == PRESENT_CLASS
        assert (found["config"]["env"], found["env_name"]) == (present, present)
    assert json.dumps(facts) == written


@pytest.mark.parametrize("regular", [True, False])
def test_a_module_of_the_users_own_that_is_called_as_ours_was_keeps_its_name(
    tmp_path, monkeypatch, regular
):
    for name in [name for name in sys.modules if name.partition(".")[0] == "envs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "arena.py").write_text("raise RuntimeError('it was imported')")
    (tmp_path / "envs" / "pursuit").mkdir()
    if regular:
        (tmp_path / "envs" / "__init__.py").write_text("raise RuntimeError('it was imported')")
    read = lambda env, **more: present_plan({"config": {"env": env, **more}})["config"]["env"]
    assert read("envs.arena:MultiAgentArena") == "envs.arena:MultiAgentArena"
    assert read("envs.pursuit:Pursuit") == "envs.pursuit:Pursuit"
    assert read("envs.cartpole:CartPole") == "jaxrl.envs.cartpole:CartPole"
    assert "envs" not in sys.modules
    monkeypatch.undo()  # what is written today says where it is, whatever the path has
    assert read("envs.arena:MultiAgentArena", conv_channels=None) == "envs.arena:MultiAgentArena"


@pytest.mark.parametrize(("saved", "read"), [(2**32 - 1, 2**32 - 1), (2**32, 0), (2**40 + 7, 7)])
def test_a_larger_seed_is_read_as_jax_read_it(saved, read):
    facts = {
        "config_class": PRESENT_CLASS,
        "config": {"seed": saved},
        "run_settings": {"evaluation_seed": saved},
    }
    found = present_facts(facts)
    assert (found["config"]["seed"], found["run_settings"]["evaluation_seed"]) == (read, read)
    assert present_plan(facts)["config"]["seed"] == read


def test_states_of_callbacks_are_those_of_a_hook():
    states = [{"class": "a:B", "state": {"seen": 3}}]
    found = present_facts({"config_class": PRESENT_CLASS, "callbacks": states})
    assert found["hooks"] == {"callbacks": states}
    assert "callbacks" not in found
    assert present_facts(found) == found


def test_facts_that_came_later_are_what_was_true_before():
    found = present_facts({"config_class": PRESENT_CLASS, "run_settings": {}, "lifetime": {}})
    assert (found["action_masks"], found["num_processes"], found["opponents_of"]) == (
        False,
        1,
        None,
    )
    assert found["run_settings"] == {"devices": 1, "evaluation_max_steps": 1_000_000}
    assert found["lifetime"] == {"num_agent_steps": None, "num_module_steps_trained": None}
    assert present_plan({"halving": None})["scheduler"] is None
    assert present_block({"lifetimes": [{}, {}]})["ended"] == [False, False]
    kept = {"action_masks": True, "num_processes": 2, "panels": [], "config_class": ""}
    assert kept.items() <= present_facts(kept).items()


def test_a_network_for_images_reads_them_as_it_did_and_other_configurations_have_no_such_setting():
    network = {"conv_filters": None, "conv_activation": "relu"}
    read = lambda config: present_plan({"config": config})["config"]
    assert read(network) == {**network, "conv_channels": "last"}
    assert read({**network, "conv_channels": None})["conv_channels"] is None
    assert read({"lr": 1e-3}) == {"lr": 1e-3}


LATER_PLAN = {"scheduler": None, "named_by_settings": False, "mode": "max", "search": None}


@pytest.mark.parametrize("value", [None, [], 3, "text", {}, {"config": 3}, {"lifetimes": 3}])
def test_what_has_no_known_form_stays_for_the_checks_that_follow(value):
    assert present_facts(value) == present_block(value) == value
    found = present_plan(value)
    assert found == ({**LATER_PLAN, **value} if isinstance(value, dict) else value)
    for part in ("config_class", "config", "run_settings", "lifetime"):
        facts = present_facts({"config_class": FORMER_CLASS, part: value})
        assert not isinstance(value, dict) or value.items() <= facts[part].items()
        assert isinstance(value, dict) or facts[part] == value


def test_only_what_came_later_may_be_missing_in_a_checkpoint():
    shape = jax.ShapeDtypeStruct((2, 3), np.float32)
    zeros = value_of_later("runner.window.episodes.lower.returns", shape)
    assert (zeros.shape, zeros.dtype, zeros.any()) == ((2, 3), np.float32, False)
    assert value_of_later("runner.envs.state.env.returns_lower", shape).shape == (2, 3)
    assert value_of_later("hypers.pol1.kl_target", 0.5) == 0.5
    for name in ("runner.learners.0.params.lower", "runner.envs.state.lower", "env_params.gravity"):
        assert value_of_later(name, shape) is None


@pytest.mark.parametrize("name", ["jaxrl.ppo", "jaxrl.core.quick", "jaxrl.loop.rollout"])
def test_modules_are_imported_by_their_present_names_alone(name):
    with pytest.raises(ModuleNotFoundError, match="No module named 'jaxrl"):
        __import__(name)


def test_an_environment_in_envs_is_unknown_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"unknown environment .envs\.nothing:Arena.") as error:
        jaxrl.make("envs.nothing:Arena")
    assert "\n" not in str(error.value)


def test_our_modules_have_one_name(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    line = "environment 'envs.arena:MultiAgentArena': it is jaxrl.envs.arena:MultiAgentArena, by"
    with pytest.raises(UsageError, match=line):
        jaxrl.make("envs.arena:MultiAgentArena")


# Format 4, before the arena's networks had one first layer


class FormerNetwork(nn.Module):
    """The arena's networks of format 4, with tables and a first layer for each output."""

    remembers: bool

    @nn.compact
    def __call__(self, numbers, places):
        def network(num_outputs):
            hidden = nn.Dense(64)(numbers) if self.remembers else 0.0
            for i, size in enumerate((12, 12, 35)):
                hidden += nn.Embed(size, 64)(places[..., i])
            hidden = nn.relu(nn.Dense(64)(nn.relu(hidden)))
            return nn.Dense(num_outputs)(hidden)

        return network(4), network(1)[..., 0]


@pytest.mark.parametrize("remembers", [True, False])
def test_the_arenas_networks_of_format_4_give_the_same_numbers(remembers):
    """Copies [2, ...], as in a population or a pool of opponents, one within another network, as in
    `benchmarks/arena.py`; beside them Adam's moments.
    """
    network = (CellMemory if remembers else CellPair)(
        MultiDiscrete((12, 12)), Discrete(4), height=3, width=4
    )
    obs = jax.random.randint(jax.random.key(0), (5, 2), 0, 12)
    carry = (network.initial_carry((5,)),) if remembers else ()
    former = FormerNetwork(remembers)
    keys, numbers = jax.random.split(jax.random.key(1)), jnp.zeros((5, 12 + 49 + 1))
    if remembers:  # no cell is visited: the board around the agent is 1 within the walls
        numbers = numbers.at[:, 12:-1].set(surroundings(jnp.ones((5, 12)), obs[:, 0], 3, 4))
    inputs = numbers, places(network, obs)
    drawn = jax.vmap(lambda key: former.init(key, *inputs))(keys)
    drawn = jax.tree.map(lambda leaf: leaf + 0.1, drawn)  # biases too
    template = jax.vmap(lambda key: network.init(key, obs, *carry))(keys)
    trees = {"a": {"within": drawn, "mu": jax.tree.map(jnp.negative, drawn)}}
    found = filled({"within": template, "mu": template}, named_arrays(trees), "a", "it")
    for i in range(2):
        before, now = (jax.tree.map(operator.itemgetter(i), of) for of in (drawn, found["within"]))
        expected = former.apply(before, *inputs)
        outputs = network.apply(now, obs, *carry)[:2]
        for output, value in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(output, value, rtol=1e-5, atol=1e-5)
    moments = jax.tree.map(jnp.negative, found["mu"])
    jax.tree.map(np.testing.assert_array_equal, moments, found["within"])


@pytest.mark.parametrize(
    "parts",
    [
        ["Embed_0.embedding", "layers.first.kernel"],  # a network of today
        ["Embed_0.embedding"],
        [*(f"Embed_{i}.embedding" for i in range(4)), *(f"Dense_{i}.kernel" for i in range(4))],
    ],
)
def test_networks_of_other_parts_are_left_for_the_checks(parts):
    arrays = {f"a.{part}": np.zeros((3, 4)) for part in parts}
    assert with_joined_layers(arrays, ["a.layers.first.kernel"]).keys() == arrays.keys()
    assert with_joined_layers(arrays, ["b.layers.first.kernel"]).keys() == arrays.keys()
