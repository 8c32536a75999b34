"""Help pages: every flag has its place, and the first page fits a screen."""

import re
from typing import Any

import pytest

from jaxrl import PPOConfig
from jaxrl.algorithms.config import algorithm_config
from jaxrl.algorithms.validators import schedule
from jaxrl.cli import help as pages
from jaxrl.cli.flags import Flag, flag_name, flags_of
from jaxrl.cli.main import all_flags, main
from jaxrl.cli.sweep import sweep_flags
from jaxrl.cli.train import train_flags
from jaxrl.core.fields import number, setting

FLAGS = all_flags()


def page(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_every_flag_of_the_long_commands_belongs_to_exactly_one_group(command):
    groups = pages.groups_of(FLAGS[command])
    assert sorted(name for members in groups.values() for name in members) == sorted(FLAGS[command])
    assert "flags" not in groups


def test_a_setting_stands_in_the_group_of_what_its_class_declares_before_it():
    loss = pages.groups_of(FLAGS["train"])["loss"]
    assert loss[:5] == ["lr", "gamma", "lambda_", "use_critic", "clip_param"]

    @algorithm_config
    class Regularised(PPOConfig):
        """PPO with another entropy bonus, and a term beside it."""

        first: float = setting(0.0, "of no group", number(0), traced=True)
        entropy_coeff: Any = setting(0.1, "weight of the entropy bonus", schedule(), traced=True)
        tsallis_coeff: float = setting(0.0, "weight of another", number(0), traced=True)

    groups = pages.groups_of(flags_of(Regularised(env="arena")))
    assert groups["loss"] == [*(name for name in loss if hasattr(PPOConfig, name)), "tsallis_coeff"]
    assert groups["flags"] == ["first"]


def test_a_setting_of_an_algorithm_that_is_not_ours_stands_in_a_last_group():
    flags = {"trust_region": Flag("its radius", 0.1), "lr": Flag("learning rate", 1e-3)}
    assert pages.groups_of(flags) == {"loss": ["lr"], "flags": ["trust_region"]}


def test_every_name_among_the_groups_and_the_most_used_is_a_flag():
    known = {*FLAGS["train"], *FLAGS["sweep"]}
    assert {name for members in pages.GROUPS.values() for name in members.split()} <= known
    assert set(pages.MOST_USED.split()) <= known


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_help_fits_a_screen_and_help_all_explains_every_flag(command, capsys):
    short, whole = page(capsys, command, "--help"), page(capsys, command, "--help-all")
    assert len(short.splitlines()) <= 50
    assert max(map(len, short.splitlines())) <= pages.WIDTH
    flags = {"train": train_flags, "sweep": sweep_flags}[command](PPOConfig(env="arena"))
    assert f"--help-all explains all {len(flags)} flags" in short
    assert "--lr" in short and "--kl-target" not in short
    lines = whole.splitlines()
    for name in flags:
        assert any(re.match(rf"  {flag_name(name)}[ ,]", line) for line in lines), name
    for title in pages.groups_of(flags):
        assert f"{title}:" in lines


def test_help_names_the_run_in_the_usage_line_and_what_each_flag_takes(capsys):
    shown = page(capsys, "evaluate", "--help")
    assert shown.splitlines()[0] == "usage: jaxrl evaluate RUN [flags]"
    for part in ("--episodes N ", "--explore [True|False]", "--checkpoint best|last|N"):
        assert part in shown
    assert page(capsys, "plot", "--help").startswith("usage: jaxrl plot RUN [RUN ...] [flags]\n")
    assert "--algorithm, --run, --algo NAME" in page(capsys, "train", "--help")
    whole = page(capsys, "train", "--help-all")
    assert "--rllib-config, -f, --config, --config-file FILE" in whole
    assert "--verbose, -v, -vv [True|False]" in whole
    forms = {flag.value for flags in FLAGS.values() for flag in flags.values()}
    assert "VALUE" not in forms


TAKE_A_RUN = ("evaluate", "rollout", "render", "export", "publish", "serve", "watch", "plot")


@pytest.mark.parametrize("command", TAKE_A_RUN)
def test_a_command_that_takes_a_run_says_what_that_is(command, capsys):
    shown = page(capsys, command, "--help")
    assert shown.startswith(f"usage: jaxrl {command} RUN ")
    assert "RUN is a run's folder, such as runs/arena/latest." in " ".join(shown.split())


@pytest.mark.parametrize("command", FLAGS)
def test_a_default_of_none_says_what_none_means_and_no_default_is_not_shown(command, capsys):
    shown = " ".join(page(capsys, command, "--help-all").split())
    assert "(default: none)" not in shown and "None: none" not in shown
    explained = [flag for flag in FLAGS[command].values() if "None:" in flag.help]
    defaults = [flag for flag in explained if flag.default is None]
    assert shown.count("(default: None)") == len(defaults)
    for flag in defaults:
        assert f"{' '.join(flag.help.split())} (default: None)" in shown


def test_the_default_of_settings_by_policy_is_written_as_its_flag(capsys):
    shown = " ".join(page(capsys, "train", "--help-all").split())
    network = "jaxrl.envs.networks.cell_memory:CellMemory(height=10, width=10)"
    assert f"(default: pol1.model={network} pol1.max_seq_len=1 pol1.entropy_coeff=0.01" in shown


def test_rollout_is_evaluate_by_the_name_that_was_typed(capsys):
    helps = [page(capsys, name, "--help") for name in ("rollout", "evaluate")]
    assert helps[0].startswith("usage: jaxrl rollout RUN")
    assert helps[0].partition("flags:")[2] == helps[1].partition("flags:")[2] != ""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "jaxrl rollout runs/..."),
        (["runs/x", "--steeps", "3"], "unknown flag '--steeps'; did you mean '--steps'?"),
        (["no/such/run"], "no/such/run"),
    ],
)
def test_a_mistake_in_rollout_is_answered_by_rollout(words, line, capsys):
    with pytest.raises(SystemExit):
        main(["rollout", *words])
    (answer,) = capsys.readouterr().err.splitlines()
    assert answer.startswith("jaxrl rollout: ") and line in answer


@pytest.mark.parametrize("command", ["evaluate", "serve", "episodes"])
def test_short_commands_show_all_their_flags_at_once(command, capsys):
    shown = page(capsys, command, "--help")
    assert all(flag_name(name) in shown for name in FLAGS[command])
    assert "--help-all" not in shown
