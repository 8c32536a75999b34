"""Completion in shells: commands, flags, and the names of environments and algorithms."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from jaxrl.cli import completion
from jaxrl.cli.main import main


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """completed(*words): what bash completes the last word to."""
    with pytest.MonkeyPatch.context() as patch:
        written = []
        patch.setattr("jaxrl.cli.main.print_answer", written.append)
        main(["completion", "bash"])
    script = tmp_path_factory.mktemp("completion") / "jaxrl.bash"
    script.write_text(written[0])

    def complete(*words):
        asked = " ".join(("jaxrl", *words))
        code = f"""
            source {script}; COMP_WORDS=({asked}); COMP_CWORD={len(words)}; COMP_LINE='{asked}'
            function_name=$(complete -p jaxrl | sed 's/.*-F \\([^ ]*\\).*/\\1/')
            $function_name jaxrl '{words[-1]}'; printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(
            ["bash", "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return complete


def test_bash_completes_commands_flags_and_environments(completed):
    assert completed("ev") == ["evaluate"]
    assert completed("train", "--evaluation-i") == ["--evaluation-interval"]
    assert completed("train", "--env", "waterw") == ["waterworld"]
    assert completed("train", "--help-") == ["--help-all"]
    assert completed("--ver") == ["--version"]


@pytest.mark.parametrize("flag", ["--algorithm", "--run", "--algo"])
def test_bash_completes_algorithms_as_they_are_written_here_and_in_rllib(flag, completed):
    assert completed("train", flag, "mar") == ["marwil"]
    assert completed("train", flag, "PP") == ["PPO"]
    assert completed("rollout", "runs/x", flag, "P") == ["PPO"]


def test_bash_completes_a_librarys_environment_before_and_behind_its_colon(completed):
    # bash gives the parts of a word with a colon as words of their own.
    assert set(completed("train", "--env", "gymn")) >= {"gymnax:CartPole-v1", "gymnax:Pong-misc"}
    assert completed("train", "--env", "gymnax", ":", "CartP") == ["CartPole-v1"]
    assert "Breakout-MinAtar" in completed("train", "--env", "gymnax", ":")
    assert completed("train", "--env", "god") == ["godot"]
    behind = completed("train", "--env", "gymnax", ":", "CartPole-v1", "--evaluation-i")
    assert behind == ["--evaluation-interval"]


def test_a_library_whose_names_are_unknown_is_completed_to_its_colon(completed):
    assert completed("train", "--env", "gy", "--seed")[:1] == ["--seed"]
    assert "gym:" in completed("train", "--env", "gym")


@pytest.mark.long
def test_gymnaxs_names_are_those_of_its_registry_without_an_import():
    code = """if True:
        import sys
        from jaxrl.cli.completion import registered_in
        found = registered_in("gymnax")
        assert "gymnax" not in sys.modules and "matplotlib" not in sys.modules
        import gymnax
        assert found == sorted(gymnax.registered_envs), found
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("package", "source", "found"),
    [
        ("gymnax", 'registered_envs = ["B-v0", "A-v1"]', ["A-v1", "B-v0"]),
        ("jaxmarl", 'registered_envs: list = ["MPE_simple_v3", "x y", "$(rm)"]', ["MPE_simple_v3"]),
        ("brax", "_envs = {'ant': Ant, 'fast': Fast}", ["ant", "fast"]),
        ("gymnax", "registered_envs = [name for name in ALL]\nx: int\ny = 3", []),
        ("gymnax", "def broken(", []),
        ("another", 'names = ["a"]', []),
    ],
)
def test_the_names_in_a_registry_are_its_lists_and_the_keys_of_its_dicts(
    package, source, found, tmp_path
):
    for file in {"registration.py", *completion.REGISTRIES.values()}:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(source)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    assert completion.registered_in(package, lambda name: spec) == found


@pytest.mark.parametrize("spec", [None, SimpleNamespace(origin=None)])
def test_a_library_without_a_registry_to_read_has_no_names(spec):
    assert completion.registered_in("gymnax", lambda name: spec) == []


def test_zsh_is_told_that_a_colon_belongs_to_the_name(capsys):
    main(["completion", "zsh"])
    assert r" gymnax\:CartPole-v1 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["bsh"], "unknown shell 'bsh'; did you mean 'bash'? known: bash, tcsh, zsh"),
        ([], "name one shell: bash, zsh, tcsh"),
    ],
)
def test_an_unknown_shell_is_refused_in_one_line(words, line, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"jaxrl completion: {line}\n"


def test_without_shtab_a_line_names_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit):
        main(["completion", "bash"])
    assert 'pip install "jaxrl[completion]"' in capsys.readouterr().err
