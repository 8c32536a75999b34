"""Every argument of every public entry is given values of every kind that it does not take."""

import shutil

import pytest

import jaxrl
from jaxrl.cli.main import COMMANDS
from jaxrl.core import spaces
from jaxrl.core.json_text import read_json
from jaxrl.episodes import EpisodeWriter, SingleAgentEpisode
from jaxrl.serving.server import PolicyServer
from jaxrl.serving.settings import ServerSettings
from tests.attack.command_lines import FLAGS, TAKEN, Line, lines_of, nothing_begins, outcome
from tests.attack.entries import FAMILIES, LRS, OF_A_RUN
from tests.attack.nonsense import CLEAR, Clock, failures
from tests.attack.user_code import GIVEN, OF_A_USER
from tests.messages import refused
from tests.programs import SMALL_CARTPOLE as SMALL


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_value_that_an_argument_does_not_take_is_refused_in_one_line(family):
    assert failures(FAMILIES[family]()) == {}


@pytest.mark.long
@pytest.mark.parametrize("family", OF_A_RUN)
def test_calls_about_a_run_refuse_every_value_that_they_do_not_take(family, run):
    assert failures(OF_A_RUN[family](run)) == {}


@pytest.fixture(scope="module")
def bases(run):
    """The words of a command line of each command that is right."""
    training = ("--env", "cartpole", "--run-dir", "None")
    of_run = {command: (str(run),) for command in COMMANDS}
    return of_run | {
        "train": training,
        "sweep": (*training, "--seeds", "2"),
        "evaluate": (str(run), "--episodes", "1"),
        "export": (str(run), "--out", "x.npz"),
        "publish": (str(run), "--to", "x"),
        "zoo": ("cartpole", "--to", "x"),
        "episodes": (str(run / "episodes"),),
    }


def unclear(lines):
    """The command lines that are not refused as they should be."""
    clock = Clock()
    with nothing_begins():
        outcomes = [(line, outcome(line, clock)) for line in lines]
    return [(line.entry, line.label, *found) for line, found in outcomes if found[0] != CLEAR]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_texts_that_a_flag_takes_are_listed_for_every_flag(command):
    assert FLAGS[command].keys() - TAKEN[command].keys() == set()


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_every_text_that_a_flag_does_not_take_is_refused_in_one_line(command, bases):
    assert unclear(lines_of(command, bases[command])) == []


CONTRADICTING_FLAGS = {
    "train": {
        "--ignore x": "rllib-config",
        "--trust": "--resume",
        "--strict": "--resume",
        "--join-seconds 5": "--coordinator",
        "--serve port=5": "--env external",
        "--num-envs 2 --rollout-length 3 --train-batch-size 7": "train_batch_size",
        "--use-lstm --use-gru": "use_gru",
        "--env-args gravity=1 gravity=2": "env_args names",
    },
    "sweep": {
        "--trust": "--resume",
        "--burn-in-period 5": "--pbt",
        "--grid lr=1e-3,1e-4 --random lr=uniform:1e-5:1e-3": "--grid and in --random",
        "--halving 2 --pbt --hyperparam-mutations lr=1e-3,1e-4": "halving",
    },
    "render": {"--episodes 5": "--out", "--out x.html --fps 5": "fps"},
    "serve": {"--private-key x": "certificate", "--host 0.0.0.0": "token_file"},
    "episodes": {
        "--replay --judge x": "--replay and --judge",
        "--show 0 --parquet x": "--show and --parquet",
        "--gamma 0.5": "--judge",
    },
}


@pytest.mark.long
@pytest.mark.parametrize("command", CONTRADICTING_FLAGS)
def test_flags_that_contradict_each_other_are_refused_in_one_line(command, bases):
    pairs = CONTRADICTING_FLAGS[command].items()
    lines = [
        Line(command, words, (command, *bases[command], *words.split()), (name,))
        for words, name in pairs
    ]
    assert unclear(lines) == []


@pytest.mark.long
@pytest.mark.parametrize("family", OF_A_USER)
def test_code_of_a_users_that_gives_nonsense_or_fails_is_named_in_one_line(family):
    assert failures(OF_A_USER[family]()) == {}


class Adds(jaxrl.Callbacks):
    def __init__(self, name, value):
        self.name, self.value = name, value

    def on_train_result(self, trainer, result):
        result[self.name] = self.value


@pytest.mark.long
@pytest.mark.parametrize("name", ["mine", "done"])
def test_a_hook_adds_anything_that_a_log_can_hold_and_says_done_by_a_flag(name, tmp_path):
    unread, flags = {"endless", "deep", "10**400", "half a character"}, {"True", "0"}
    for label, value in GIVEN.items():
        config = SMALL.replace(callbacks=Adds(name, value), total_env_steps=1)
        run = {"run_dir": tmp_path / str(len(list(tmp_path.iterdir()))), "pictures": False}
        with jaxrl.Trainer(config, **run, quiet=True) as trainer:
            if label in unread if name == "mine" else label not in flags:
                with pytest.raises(jaxrl.UsageError, match="on_train_result of callbacks Adds"):
                    trainer.fit()
            else:
                trainer.fit()
                read_json((trainer.run_dir / "metrics.jsonl").read_text().strip())
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()


MISSPELT = {
    "evaluate": (lambda: jaxrl.evaluate("x", episods=5), "episodes"),
    "render": (lambda: jaxrl.render("x", max_step=5), "max_steps"),
    "replay": (lambda: jaxrl.replay("x", episdoe=5), "episode"),
    "sweep": (lambda: jaxrl.sweep(SMALL, LRS, seedz=5), "seeds"),
    "resume_sweep": (lambda: jaxrl.resume_sweep("x", trsut=True), "trust"),
    "Trainer": (lambda: jaxrl.Trainer(SMALL, kep=5), "keep"),
    "PPOConfig": (lambda: jaxrl.PPOConfig(env="cartpole", num_env=5), "num_envs"),
    "estimate_return": (lambda: jaxrl.estimate_return([], None, gama=1.0), "gamma"),
    "to_gymnasium": (lambda: jaxrl.to_gymnasium("cartpole", render_mod=None), "render_mode"),
    "check_env": (lambda: jaxrl.check_env("cartpole", step=5), "steps"),
    "make": (lambda: jaxrl.make("cartpole", gravty=9.0), "gravity"),
    "opponents": (lambda: SMALL.replace(opponents={"siz": 5}), "size"),
    "EpisodeWriter": (lambda: EpisodeWriter("x", max_row=5), "max_rows"),
    "an episode": (lambda: SingleAgentEpisode(observation=[]), "observations"),
    "PolicyServer": (lambda: PolicyServer({}, explor=True), "explore"),
}


test_a_misspelt_argument_is_answered_with_the_nearest = refused(
    {entry: (call, f"did you mean '{meant}'") for entry, (call, meant) in MISSPELT.items()}
)


SIZES = {"num_envs": 2, "rollout_length": 3, "train_batch_size": 7}
CONTRADICTIONS = {
    "sizes": lambda: jaxrl.PPOConfig(env="cartpole", **SIZES),
    "memories": lambda: jaxrl.PPOConfig(env="cartpole", use_lstm=True, use_gru=True),
    "memory and attention": lambda: SMALL.replace(use_lstm=True, use_attention=True),
    "a minibatch above its batch": lambda: SMALL.replace(minibatch_size=100_000).setup(),
    "no actors": lambda: jaxrl.RunSettings(workers="ray:0"),
    "halving a population": lambda: jaxrl.sweep(
        SMALL, LRS, halving=2, scheduler=jaxrl.PopulationBasedTraining(), run_dir=None
    ),
    "a key without a certificate": lambda: ServerSettings(private_key="x"),
    "all interfaces without a token": lambda: ServerSettings(host="0.0.0.0"),
    "bounds of a draw": lambda: jaxrl.uniform(2.0, 1.0),
    "bounds of a Box": lambda: spaces.Box(1.0, 0.0, (2,)),
    "the newest copy and others": lambda: jaxrl.OpponentPool(draw="latest", fixed={"a": "random"}),
    "more hunters than there are": lambda: jaxrl.make("waterworld", n_coop=3),
    "lengths": lambda: SingleAgentEpisode(observations=[0], actions=[0], rewards=[1.0]),
}


@pytest.mark.parametrize("pair", CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused_in_one_line(pair):
    with pytest.raises(jaxrl.UsageError) as error:
        CONTRADICTIONS[pair]()
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
