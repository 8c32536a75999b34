"""Completion for shells: commands, flags, environments, algorithms and files.

The script holds the names that were known when it was written. Libraries of environments are slow
to import, so the names of theirs are read from the text of their registries.
"""

import argparse
import ast
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

from jaxrl.cli.algorithms import ALGORITHMS
from jaxrl.cli.flags import Flag
from jaxrl.cli.help import help_parser
from jaxrl.core.errors import UsageError, is_installed, unknown_name
from jaxrl.core.registry import EXTERNAL, SCHEMES, names
from jaxrl.core.trust import points_of
from jaxrl.run.storage.config_file import CONFIGURATION

SHELLS = ("bash", "zsh", "tcsh")
OUTSIDE = (EXTERNAL, "godot")  # programs that own their loop
FILES = ("run_dir", "resume", "rllib_config", "out", "output", "init_from")
PLAIN = re.compile(r"[\w./+-]+", re.ASCII)  # a name that means nothing else to a shell
# The packages of schemes that are called otherwise.
PACKAGES = {"playground": "mujoco_playground", "gym": "gymnasium"}
REGISTRIES = {  # files whose lists, or keys of dicts, are names of environments
    "gymnax": "registration.py",
    "jaxmarl": "registration.py",
    "brax": "envs/__init__.py",
}
# bash splits gymnax:CartPole-v1 at its colon, and puts a completion in place of the last part.
WITH_COLONS = """
_jaxrl_with_colons() {
  local words=() current=0 i
  for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
    if [[ $i -gt 0 && (${COMP_WORDS[i]} == : || ${COMP_WORDS[i-1]} == :) ]]; then
      words[${#words[@]}-1]+=${COMP_WORDS[i]}
    else
      words+=("${COMP_WORDS[i]}")
    fi
    [[ $i -eq $COMP_CWORD ]] && current=$((${#words[@]} - 1))
  done
  COMP_WORDS=("${words[@]}")
  COMP_CWORD=$current
  _shtab_jaxrl "$@"
  local typed=${COMP_WORDS[COMP_CWORD]}
  [[ $typed == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"${typed%"${typed##*:}"}"}")
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *: ]] && compopt -o nospace 2>/dev/null
  return 0
}

complete -o bashdefault -F _jaxrl_with_colons jaxrl
"""


def completion(shell: str, commands: Mapping[str, tuple[str, Mapping[str, Flag]]]) -> str:
    """The script by which a shell completes `jaxrl`, its commands and their flags.

    Args:
        shell: one of `SHELLS`.
        commands: {name: (what it does, its flags)}.

    Raises:
        UsageError: another shell, or shtab is not installed.
    """
    if shell not in SHELLS:
        raise unknown_name("shell", shell, SHELLS)
    try:
        import shtab
    except ImportError:
        raise UsageError(
            'completion needs shtab, which is not installed: pip install "jaxrl[completion]"'
        ) from None
    colon = {"zsh": r"\:"}.get(shell, ":")  # in zsh a plain colon ends the list of choices
    environments = "\n".join(_environments()).replace(":", colon).split("\n")
    choices = {"env": environments, "algorithm": list(_algorithms())}
    parser = argparse.ArgumentParser("jaxrl")
    parser.add_argument("--version", action="store_true")
    chosen = parser.add_subparsers(dest="command")
    for name, (description, flags) in commands.items():
        command = chosen.add_parser(
            name, parents=[help_parser(flags, grouped=False)], help=description
        )
        command.add_argument("--help-all", action="store_true")
        if "resume" not in flags:  # these take a run's folder
            command.add_argument("run", nargs="*").complete = shtab.DIRECTORY
        for action in command._actions:
            if action.dest in FILES:
                action.complete = shtab.FILE
            action.choices = choices.get(action.dest)
    script = shtab.complete(parser, shell)
    return f"{script}{WITH_COLONS}" if shell == "bash" else script


def _algorithms() -> Iterator[str]:
    """The names of algorithms: ours, as RLlib writes them too, and those of installed packages."""
    yield from ALGORITHMS
    yield from map(str.upper, ALGORITHMS)
    yield from points_of(CONFIGURATION.group)


def _environments() -> Iterator[str]:
    """The names of environments; of a library whose names are not known `library:` alone."""
    yield from names()
    yield from OUTSIDE
    for scheme, point in sorted(points_of(SCHEMES).items()):
        if scheme != EXTERNAL and _can_be_used(scheme, point):
            for name in registered_in(scheme) or [""]:
                yield f"{scheme}:{name}"


def _can_be_used(scheme: str, point: EntryPoint) -> bool:
    """Returns whether a scheme is another package's, or one of ours whose library is installed."""
    if not point.value.startswith("jaxrl."):
        return True
    return is_installed(PACKAGES.get(scheme, scheme))


def registered_in(
    package: str, find: Callable[[str], object] = importlib.util.find_spec
) -> list[str]:
    """The names in the text of an installed library's registry; [] where they are not in it."""
    spec = find(package)
    if package not in REGISTRIES or getattr(spec, "origin", None) is None:
        return []
    try:
        source = (Path(spec.origin).parent / REGISTRIES[package]).read_text(encoding="utf-8")
        body = ast.parse(source).body
    except (OSError, ValueError, SyntaxError):
        return []
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            found.update(_texts_in(statement.value))
    return sorted(filter(PLAIN.fullmatch, found))


def _texts_in(value: ast.expr | None) -> Iterator[str]:
    """The texts of a list, or of the keys of a dict, as it is written."""
    for part in getattr(value, "elts", None) or getattr(value, "keys", None) or ():
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value
