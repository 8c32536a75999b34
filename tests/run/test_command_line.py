"""The commands that a run tells people to type, as they work where those people are."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jaxrl.cli.main import main
from jaxrl.run import command_line

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def called(monkeypatch):
    """Says how this process was started, and which programs the shell would find by name."""

    def set_call(argv0, on_path=(), beside=None):
        def which(name, path=None):
            return (
                beside
                if path is not None
                else {Path(file).name: file for file in on_path}.get(name)
            )

        monkeypatch.setattr(sys, "argv", [argv0])
        monkeypatch.setattr(shutil, "which", which)
        monkeypatch.setattr(sys, "executable", "/venv/bin/python")

    return set_call


def test_a_script_of_the_checkout_advises_the_scripts_beside_it(called, monkeypatch):
    called("scripts/train_ppo.py", ["/venv/bin/python"])
    assert command_line.command("evaluate", "runs/a") == "python scripts/evaluate.py runs/a"
    assert (
        command_line.command("train", "--resume", "runs/a")
        == "python scripts/train_ppo.py --resume runs/a"
    )
    assert command_line.program("train") == "train_ppo.py"
    called("/checkout/scripts/sweep.py", ["/venv/bin/python"])
    assert command_line.command("evaluate", "a") == "python /checkout/scripts/evaluate.py a"
    monkeypatch.chdir(ROOT / "scripts")
    called("train_ppo.py", ["/venv/bin/python"])
    assert command_line.command("render", "a") == "python render.py a"


def test_a_script_of_another_folder_or_name_is_not_ours(called):
    for argv0 in ("project/train_ppo.py", "scripts/mine.py"):
        called(argv0, ["/venv/bin/jaxrl"], "/venv/bin/jaxrl")
        assert command_line.command("evaluate", "a") == "jaxrl evaluate a"


def test_the_installed_command_is_named_as_the_shell_finds_it(called):
    called("/venv/bin/jaxrl", ["/venv/bin/jaxrl"], "/venv/bin/jaxrl")
    assert command_line.command("evaluate", "a") == "jaxrl evaluate a"
    assert command_line.program("sweep") == "jaxrl sweep"
    called("/venv/bin/jaxrl", ["/other/bin/jaxrl"], "/venv/bin/jaxrl")
    assert command_line.command("evaluate", "a") == "/venv/bin/jaxrl evaluate a"


def test_the_module_advises_the_module(called):
    called("/venv/lib/jaxrl/__main__.py", ["/venv/bin/python3"])
    assert command_line.command("evaluate", "a") == "python3 -m jaxrl evaluate a"


def test_a_python_that_the_shell_does_not_find_is_named_by_its_path(called):
    called("scripts/train_ppo.py", ["/usr/bin/python"])
    assert command_line.command("render", "a") == "/venv/bin/python scripts/render.py a"


def test_a_folder_with_blanks_and_brackets_can_be_pasted(called):
    called("/venv/bin/jaxrl")
    line = command_line.command("evaluate", "my runs/proj[1]")
    assert shlex.split(line) == ["jaxrl", "evaluate", "my runs/proj[1]"]
    assert "'" in line


def test_the_command_explains_itself_and_refuses_what_it_does_not_know(capsys):
    main(["--help"])
    shown = capsys.readouterr().out
    for name in ("train", "evaluate", "render", "sweep", "--version"):
        assert f"jaxrl {name}" in shown
    with pytest.raises(SystemExit) as ended:
        main(["trian", "--env", "arena"])
    refused = capsys.readouterr().err
    assert (ended.value.code, refused.count("\n")) == (2, 1)
    assert "unknown command 'trian'; did you mean 'train'?" in refused
    with pytest.raises(SystemExit):
        main(["example", "list"])
    refused = capsys.readouterr().err
    assert refused.startswith("jaxrl: unknown command 'example': docs/rllib-tuned-examples.md")
    assert refused.count("\n") == 1


def test_each_command_hears_its_own_flags_and_calls_itself_by_its_name(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/venv/bin/jaxrl"])
    for name in ("train", "evaluate", "render", "sweep"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--no-such-flag", "3"])
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith(f"jaxrl {name}: unknown flag '--no-such-flag'")
    main(["--version"])
    assert capsys.readouterr().out.startswith("jaxrl 0.")


@pytest.mark.long
def test_modules_of_the_folder_that_the_command_is_called_in_go_before_the_scripts(tmp_path):
    (tmp_path / "evaluate.py").write_text("class Mine: pass\n")
    command = [sys.executable, ROOT / "scripts" / "train_ppo.py", "--callbacks", "evaluate:Nothing"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "unknown callbacks 'Nothing' in module 'evaluate'" in done.stderr
    assert "known: Mine" in done.stderr
