"""Help pages of the commands, grouped as the documentation is."""

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence

from jaxrl.cli.flags import HELP_FLAGS, Flag, names_of, shown_as_flag

# title: settings, each of which brings those that its class declares after it, up to another of
# these. docs/settings.md has the same groups.
GROUPS = {
    "environment": "algorithm input env tuned curriculum observation_space",
    "policies": "policies agent_id_obs init_from opponents",
    "trials": "grid",
    "population": "pbt perturbation_interval",
    "sizes": "total_env_steps minibatch_size seed",
    "stopping": "stop stop_return",
    "loss": "lr gamma beta",
    "optimizer": "optimizer grad_clip",
    "observations and actions": "ignore_observations observation_filter free_log_std explore",
    "network": "model conv_filters",
    "memory": "use_lstm",
    "episodes": "callbacks sampling_interval hooks metrics_num_episodes_for_smoothing",
    "runs, checkpoints and resume": "run_dir trust checkpoint_interval_s keep",
    "environments outside JAX": "workers",
    "evaluation": "evaluation_interval",
    "logs and pictures": "loggers profile",
    "devices and processes": "devices compile_cache coordinator",
}
MOST_USED = (
    "grid random seeds algorithm input env env_args policies total_env_steps stop_return seed "
    "num_envs minibatch_size lr fcnet_hiddens run_dir resume watch evaluation_interval callbacks "
    "devices"
)
FEW = 20  # a command with no more flags than this shows all of them
WIDTH = 88  # columns
RUN = "RUN is a run's folder, such as runs/arena/latest."


def show_help(
    argv: Sequence[str], flags: Mapping[str, Flag], prog: str, description: str | None
) -> None:
    """Prints the flags with their defaults and ends the process, if `argv` asks for that.

    `--help` shows the most used ones, on one screen, `--help-all` all of them.

    Args:
        description: the command's docstring; None where Python drops them (`python -OO`).
    """
    if not set(HELP_FLAGS) & set(argv):
        return
    few = "--help-all" not in argv and len(flags) > FEW
    parser = help_parser(_most_used(flags) if few else flags, grouped=len(flags) > FEW and not few)
    first, *more = (description or "").split("\n", 1)
    summary, _, words = first.removesuffix(".").partition(": ")
    parser.prog, parser.usage = prog, f"{prog} {words or '[flags]'}"
    if description is not None:
        about_runs = [RUN] * ("RUN" in words.split())
        parser.description = "\n".join([f"{summary}.", *about_runs, *more])
    if few:
        parser.epilog = f"--help-all explains all {len(flags)} flags."
    parser.print_help()
    sys.exit(0)


def help_parser(flags: Mapping[str, Flag], *, grouped: bool) -> argparse.ArgumentParser:
    """A parser that is only printed or completed from: every flag under its group's title."""
    parser = argparse.ArgumentParser(
        add_help=False,
        formatter_class=lambda prog: _Formatter(prog, max_help_position=28, width=WIDTH),
    )
    for title, members in groups_of(flags).items() if grouped else [("flags", list(flags))]:
        group = parser.add_argument_group(title)
        for name in members:
            flag = flags[name]
            group.add_argument(
                *names_of(name, flag),
                metavar=flag.value,
                help=f"{flag.help}{_default(name, flag)}".replace("%", "%%"),
            )
    return parser


class _Formatter(argparse.HelpFormatter):
    """Help in which a flag's value stands once, as in Python 3.13, and paths are in one piece."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {action.metavar}"


def _default(name: str, flag: Flag) -> str:
    """` (default: 64)`; empty where there is none, and where the help does not say what None is."""
    if flag.default in (None, (), "", {}) and "None:" not in flag.help:
        return ""
    return f" (default: {shown_as_flag(name, flag.default)})"


def groups_of(flags: Mapping[str, Flag]) -> dict[str, list[str]]:
    """Flags grouped by help section. Flags of third-party algorithms form the last section."""
    firsts = {name for members in GROUPS.values() for name in members.split()}
    behind: dict[str | None, list[str]] = {}
    for name in flags:
        first = name
        while first is not None and first not in firsts:
            first = flags[first].after if first in flags else None
        behind.setdefault(first, []).append(name)
    by_title = {
        title: [name for first in members.split() for name in behind.get(first, ())]
        for title, members in GROUPS.items()
    }
    by_title["flags"] = behind.get(None, [])
    return {title: members for title, members in by_title.items() if members}


def _most_used(flags: Mapping[str, Flag]) -> dict[str, Flag]:
    return {name: flags[name] for name in MOST_USED.split() if name in flags}
