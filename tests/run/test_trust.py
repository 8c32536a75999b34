"""A stranger's files.

Whatever they name, nothing of it is imported or called unless the user says so.
"""

import functools
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import jax
import pytest

import jaxrl
from jaxrl import Trainer, UsageError, load_policy, resume_sweep
from jaxrl.__main__ import forget_this_folder
from jaxrl.adapters.to_ray_tune import RETURN, Plan
from jaxrl.cli.evaluate import evaluate as evaluate_script
from jaxrl.cli.evaluate import render as render_script
from jaxrl.cli.train import parse
from jaxrl.core import trust
from jaxrl.run.inference.weights import initial_weights
from jaxrl.run.storage import array_storage, checkpoint
from jaxrl.sweeps.options import SweepOptions
from jaxrl.sweeps.sweep_folder import PLAN, SweepFolder
from jaxrl.sweeps.trials import trials_of
from tests.attack.forged import forged
from tests.core.environments import Corridor
from tests.programs import SMALL_ARENA, SMALL_CARTPOLE, SMALL_REINFORCE

EVIL = """
from pathlib import Path

Path({mark!r}).touch()

class Thing:
    def __init__(self, *args, **kwargs):
        pass

    init = apply = on_train_result = reset_env = step_env = __init__

def function(*args, **kwargs):
    return Thing()
"""


@pytest.fixture(scope="module")
def run(trained):
    """A run's folder, of which tests make forged copies."""
    return trained.run_dir


@pytest.fixture(scope="module")
def arrays(run):
    path = checkpoint.find(run)
    return array_storage.read(path / checkpoint.ARRAYS, checkpoint.read_facts(path)["arrays"])


INSTALLED = functools.cache(trust.points_of)


@pytest.fixture
def read_once(arrays, monkeypatch):
    """What no forgery changes, arrays and installed packages, is read once for all of them."""
    read = lambda folder, names: {name: arrays[name] for name in names}
    monkeypatch.setattr(array_storage, "read", read)
    monkeypatch.setattr(trust, "points_of", INSTALLED)


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """The file that is there once something of the stranger's has run.

    The module `evil` on the path, or a command.
    """
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(tmp_path / "ran")))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "ran"
    sys.modules.pop("evil", None)


def command(mark):
    return {"cmd": f"touch {mark}"}


FORGERIES = {  # of the run's facts; "COMMAND" is a shell command
    "env, a class": {"config": {"env": "evil:Thing", "env_args": {}}},
    "env, a shell": {"config": {"env": "subprocess:getoutput", "env_args": "COMMAND"}},
    "env, jaxrl's own name for a shell": {
        "config": {"env": "jaxrl.run.storage.run_folder:subprocess.getoutput"}
    },
    "env, a shell by a module of jaxrl": {
        "config": {"env": "jaxrl.run.storage.run_folder.subprocess:getoutput"}
    },
    "env, a module": {"config": {"env": "jaxrl.run.storage.run_folder:subprocess"}},
    "env, a function of jaxrl": {
        "config": {"env": "jaxrl.run.storage.run_folder:lock", "env_args": {"path": "x"}}
    },
    "env, a class that jaxrl imports": {
        "config": {"env": "jaxrl.run.storage.run_folder:FileLock", "env_args": {"lock_file": "x"}}
    },
    "env, another class of jaxrl": {"config": {"env": "jaxrl.run.trainer:Trainer", "env_args": {}}},
    "env, what was once called envs": {"config": {"env": "envs.evil:Thing", "env_args": {}}},
    "config_class": {"config_class": "evil:Thing"},
    "config_class, a function of jaxrl": {"config_class": "jaxrl:make"},
    "config_class, another class of jaxrl": {"config_class": "jaxrl.run.settings:RunSettings"},
    "model": {"config": {"model": "evil:Thing"}},
    "model with arguments": {"config": {"model": "evil:Thing(x=1)"}},
    "model, a function": {"config": {"model": "evil:function"}},
    "model, a function of jaxrl": {"config": {"model": "jaxrl.run.storage.run_folder:create"}},
    "callbacks": {"config": {"callbacks": ["evil:Thing"]}},
    "callbacks, one": {"config": {"callbacks": "evil:Thing"}},
    "callbacks, further down": {"config": {"callbacks": [["evil:Thing", {}]]}},
    "optimizer": {"config": {"optimizer": "evil:function"}},
    "loggers": {"run_settings": {"evaluation_seed": 0, "loggers": ["jsonl", "evil:Thing"]}},
    "hooks": {"run_settings": {"evaluation_seed": 0, "hooks": ["evil:Thing"]}},
    "hooks, one": {"run_settings": {"evaluation_seed": 0, "hooks": "evil:Thing"}},
    "a policy's model": {"config": {"per_policy": {"pol1": {"model": "evil:Thing"}}}},
    "a policy's optimizer": {"config": {"per_policy": {"pol1": {"optimizer": "evil:function"}}}},
    "a policy's model, in pairs": {"config": {"per_policy": [["pol1", [["model", "evil:Thing"]]]]}},
    "a setting that is none": {"config": {"evil": "evil:Thing"}},
}
DOORS = {
    "load_policy": lambda path: load_policy(path, "pol1").act([3, 4]),
    "evaluate": lambda path: jaxrl.evaluate(path, episodes=1),
    "render": lambda path: jaxrl.render(path, max_steps=1),
    "replay": lambda path: jaxrl.replay(path, max_steps=1),
    "from_checkpoint": lambda path: Trainer.from_checkpoint(path, quiet=True).stop(),
    "from_checkpoint, another configuration": lambda path: Trainer.from_checkpoint(
        path, config=SMALL_ARENA.replace(lr=2e-3), quiet=True
    ).stop(),
    "evaluate.py": lambda path: evaluate_script(
        [str(path), "--episodes", "1", "--compile-cache", "off"]
    ),
    "render.py": lambda path: render_script(
        [str(path), "--max-steps", "1", "--compile-cache", "off"]
    ),
    "train_ppo.py --resume": lambda path: parse(["--resume", str(path)]),
    "init_from": lambda path: initial_weights(SMALL_ARENA.build(), {"pol1": f"{path}#pol1"}),
}
GIVEN = "from_checkpoint, another configuration"
NEVER_LEFT_OUT = {
    "env",
    "config_class",
    "model",
}  # settings without which nothing is trained or evaluated


def resolved(changes, mark):
    return json.loads(json.dumps(changes).replace('"COMMAND"', json.dumps(command(mark))))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_nothing_that_a_run_names_runs(run, read_once, mark, tmp_path, capsys, door, forgery):
    path = forged(run, tmp_path / "stranger", **resolved(FORGERIES[forgery], mark))
    refused = None
    try:
        DOORS[door](path)
    except (UsageError, SystemExit) as error:
        refused = str(error) if isinstance(error, UsageError) else capsys.readouterr().err.strip()
    assert not mark.exists()
    assert "evil" not in sys.modules
    assert refused is None or "\n" not in refused
    if forgery.split(",")[0] in NEVER_LEFT_OUT and door not in ("load_policy", "init_from", GIVEN):
        assert refused is not None


@pytest.mark.parametrize(
    "door", ["evaluate", "from_checkpoint", "evaluate.py", "train_ppo.py --resume"]
)
def test_the_refusal_says_what_would_have_been_imported_and_how_to_allow_it(
    run, mark, tmp_path, capsys, door
):
    path = forged(run, tmp_path / "stranger", config={"env": "evil:Thing", "env_args": {}})
    with pytest.raises((UsageError, SystemExit)) as error:
        DOORS[door](path)
    refused = str(error.value) if isinstance(error.value, UsageError) else capsys.readouterr().err
    assert (
        "the run's env is 'evil:Thing', which is not part of jaxrl or of an installed plug-in"
        in refused
    )
    assert "--trust (in Python trust=True)" in refused


def test_with_trust_it_is_imported_but_called_only_if_it_is_of_its_kind(run, mark, tmp_path):
    shell = {"env": "subprocess:getoutput", "env_args": command(mark)}
    path = forged(run, tmp_path / "shell", config=shell)
    message = r"is the function getoutput, not a class derived from jaxrl.Environment"
    with pytest.raises(UsageError, match=message):
        jaxrl.evaluate(path, episodes=1, trust=True)
    for setting, name, wanted in (
        ("callbacks", "os:sep", "is '/', a str, not a class derived from jaxrl.Callbacks"),
        ("model", "subprocess:getoutput", "is the function getoutput, not a flax module"),
        ("optimizer", "os:sep", "is '/', a str, not a function from the learning rate"),
    ):
        path = forged(run, tmp_path / setting, config={setting: name})
        with pytest.raises(UsageError, match=wanted):
            Trainer.from_checkpoint(path, quiet=True, trust=True)
    path = forged(run, tmp_path / "class", config_class="subprocess:Popen")
    with pytest.raises(
        UsageError, match="is the class Popen, not a configuration such as PPOConfig"
    ):
        load_policy(path, "pol1", trust=True)
    assert not mark.exists()
    path = forged(run, tmp_path / "imported", config={"callbacks": ["evil:Thing"]})
    Trainer.from_checkpoint(path, quiet=True, trust=True).stop()
    assert mark.exists()


def test_json_of_an_evaluation_is_alone_on_the_output_and_the_left_out_code_is_named_beside_it(
    run, tmp_path, monkeypatch, capsys
):
    path = forged(run, tmp_path / "stranger", config={"callbacks": ["evil:Thing"]})
    monkeypatch.setattr("jaxrl.play.load.evaluate", lambda run, **settings: {"seed": 3})
    evaluate_script([str(path), "--json", "--compile-cache", "off"])
    printed = capsys.readouterr()
    assert printed.out == '{"seed": 3}\n'
    assert printed.err == "left out: evil:Thing and what they report; --trust imports them\n"


def test_what_the_user_names_in_this_very_call_needs_no_trust(run, mark, tmp_path):
    path = forged(run, tmp_path / "stranger", config={"callbacks": ["evil:Thing"]})
    callbacks = "scripts.arena_callbacks:ArenaMetrics"
    assert parse(["--resume", str(path), "--callbacks", callbacks]).config.callbacks == (callbacks,)
    assert not mark.exists()
    assert parse(["--resume", str(path), "--trust"]).config.callbacks == ("evil:Thing",)


@pytest.fixture
def strangers_folder(mark, tmp_path, monkeypatch):
    """The current folder, full of modules that a run or a library could mean.

    jaxrl is found as if it were installed from a wheel.
    """
    here = tmp_path / "here"
    evil = EVIL.format(mark=str(mark))
    for module in ("envs/__init__", "envs/cartpole", "evilmod", "orbax", "scripts"):
        (here / module).parent.mkdir(parents=True, exist_ok=True)
        (here / f"{module}.py").write_text(evil + "\nCartPole = Arena = Thing\n")
    (here / "own.py").write_text("from jaxrl import Callbacks\nclass Mine(Callbacks): pass\n")
    (here / "evil-1.0.dist-info").mkdir()
    (here / "evil-1.0.dist-info" / "METADATA").write_text("Name: evil\nVersion: 1.0\n")
    points = "[jaxrl.envs]\narena = evilmod:Arena\nmine = evilmod:Arena\n"
    (here / "evil-1.0.dist-info" / "entry_points.txt").write_text(points)
    monkeypatch.chdir(here)
    holds = lambda folder: (Path(folder or ".") / "envs").is_dir()
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if not holds(folder)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "envs"]:
        monkeypatch.delitem(sys.modules, name)
    yield here
    for name in ("own", "evilmod", "envs", "envs.cartpole"):
        sys.modules.pop(name, None)


def test_resuming_does_not_look_into_the_current_folder(run, mark, strangers_folder):
    order = parse(["--resume", str(run), "--lr", "2e-3"])
    assert str(strangers_folder) not in sys.path
    assert type(order.config.setup().env).__module__ == "jaxrl.envs.arena"
    assert not mark.exists()


@pytest.mark.parametrize(
    ("env", "module"),
    [("arena", "jaxrl.envs.arena"), ("envs.cartpole:CartPole", "jaxrl.envs.cartpole")],
)
def test_a_module_that_a_flag_names_brings_in_nothing_else_of_its_folder(
    run, mark, tmp_path, strangers_folder, env, module
):
    config = {"env": env, "env_args": {}, "policies": None}
    path = forged(run, tmp_path / "stranger", without=("conv_channels",), config=config)
    order = parse(["--resume", str(path), "--callbacks", "own:Mine"])
    assert sys.path[-1] == str(strangers_folder)
    made = order.config.setup().env
    assert type(getattr(made, "env", made)).__module__ == module
    assert importlib.util.find_spec("orbax").origin != str(strangers_folder / "orbax.py")
    assert not mark.exists()


def test_a_name_that_only_the_current_folder_announces_is_unknown(
    run, mark, tmp_path, strangers_folder
):
    path = forged(run, tmp_path / "stranger", config={"env": "mine", "env_args": {}})
    with pytest.raises(UsageError, match="unknown environment 'mine'"):
        parse(["--resume", str(path), "--callbacks", "own:Mine"])
    assert not mark.exists()


def test_python_m_jaxrl_takes_the_current_folder_off_the_path(strangers_folder, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(strangers_folder), *sys.path])
    forget_this_folder()
    assert str(strangers_folder) not in sys.path
    checkout = str(Path(jaxrl.__file__).parents[1])
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(sys, "path", [checkout, *sys.path])
    forget_this_folder()
    assert sys.path[0] == checkout


@pytest.mark.long
def test_a_run_with_an_environment_of_ones_own_is_loaded_again_with_trust(tmp_path):
    config = SMALL_ARENA.replace(env=Corridor(length=2.0), env_args=(), policies=None)
    trainer = Trainer(config, run_dir=tmp_path / "run", quiet=True, pictures=False, loggers=())
    trainer.fit({"training_iteration": 1})
    trainer.stop()
    with pytest.raises(UsageError, match=r"env is .tests\.core\.environments:Corridor."):
        jaxrl.evaluate(tmp_path / "run", episodes=1)
    played = jaxrl.evaluate(tmp_path / "run", episodes=1, trust=True)
    assert played == jaxrl.evaluate(tmp_path / "run", episodes=1, config=config)
    for options in ({}, {"config": config}):  # a policy by itself needs no environment
        policy = load_policy(tmp_path / "run", **options)
        assert policy.act([1.0, 0.0]) == trainer.get_policy("default_policy").act([1.0, 0.0])
    rest = Trainer.from_checkpoint(tmp_path / "run", quiet=True, trust=True)
    assert rest.algorithm.rollout_spec.env.env == Corridor(length=2.0)
    rest.stop()
    again = Trainer.from_checkpoint(tmp_path / "run", config=config, quiet=True)
    assert again.lifetime.training_iteration == 1
    again.stop()


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"env": "evil:Thing", "env_args": {}}},
        {"config": {"env": "subprocess:getoutput", "env_args": "COMMAND"}},
        {"config_class": "evil:Thing"},
        {"settings": {"model": "evil:Thing"}},
        {"settings": {"default_policy.model": "evil:Thing"}},
        {"settings": {"per_policy": {"default_policy": {"optimizer": "evil:function"}}}},
        {"settings": {"per_policy": [["default_policy", [["optimizer", "evil:function"]]]]}},
        {"settings": {"env": "subprocess:getoutput", "env_args.cmd": "COMMAND"}},
        {"settings": {"callbacks": ["evil:Thing"]}},
        {"run_settings": {"loggers": ["evil:Thing"]}},
    ],
    ids=str,
)
def test_nothing_that_a_sweep_names_runs(mark, tmp_path, changes):
    changes = json.loads(json.dumps(changes).replace('"COMMAND"', json.dumps(f"touch {mark}")))
    if changes.get("config", {}).get("env_args"):
        changes["config"]["env_args"] = command(mark)
    trials = trials_of(SMALL_CARTPOLE, [{"lr": 1e-3}], 1)
    SweepFolder.begin(
        tmp_path / "sweep", SMALL_CARTPOLE, trials, SweepOptions(RETURN, {}).to_dict()
    ).close()
    plan = json.loads((tmp_path / "sweep" / PLAN).read_text())
    plan["config"].update(changes.get("config", {}))
    plan["run_settings"].update(changes.get("run_settings", {}))
    plan["config_class"] = changes.get("config_class", plan["config_class"])
    plan["trials"][0]["settings"].update(changes.get("settings", {}))
    (tmp_path / "sweep" / PLAN).write_text(json.dumps(plan))
    with pytest.raises(UsageError, match="not part of jaxrl or of an installed plug-in"):
        resume_sweep(tmp_path / "sweep", quiet=True)
    assert not mark.exists()
    assert "evil" not in sys.modules


@pytest.mark.long
def test_nothing_that_rays_checkpoint_names_runs(mark, tmp_path):
    """Its members' folders are runs; going on reads their arrays alone."""
    block = Plan(SMALL_REINFORCE, (), 1, RETURN, 1, 1, "off").block({})
    block.train(1)
    (tmp_path / "saved").mkdir()
    block.save(tmp_path / "saved")
    shell = {"env": "subprocess:getoutput", "env_args": command(mark), "callbacks": ["evil:Thing"]}
    (tmp_path / "forged").mkdir()
    shutil.copy(tmp_path / "saved" / "block.json", tmp_path / "forged")
    forged(
        tmp_path / "saved" / "0000",
        tmp_path / "forged" / "0000",
        config=shell,
        config_class="evil:Thing",
    )
    block.load(tmp_path / "forged")
    message = "configuration class is 'evil:Thing', which is not part of jaxrl"
    with pytest.raises(UsageError, match=message):
        load_policy(tmp_path / "forged" / "0000")
    assert not mark.exists()
    assert jax.tree.leaves(block._state.runner.learners)
