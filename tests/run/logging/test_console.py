"""What a person reads while it trains."""

import html
import io
import math
import subprocess
import sys
import types
from xml.etree import ElementTree

import pytest
from rich.console import Console

from jaxrl.algorithms.base import HeadlineMetric
from jaxrl.algorithms.ppo.ppo import HEADLINE_METRICS
from jaxrl.run.logging import console
from jaxrl.run.logging.console import (
    LOG_WIDTH,
    Progress,
    agent_returns,
    duration,
    folded,
    in_notebook,
    result_line,
)
from jaxrl.run.logging.evaluation_lines import evaluation_line, greedy_hint
from jaxrl.run.logging.notebook_line import MOST_POINTS, NotebookLine, curve

RESULT = {
    "training_iteration": 12,
    "num_env_steps_sampled_lifetime": 48_000,
    "env_runners": {
        "episode_return_mean": 6.5,
        "episode_len_mean": 100.0,
        "agent_episode_returns_mean": {"agent1": 12.0, "agent2": -5.5},
    },
    "learners": {
        "pol1": {"mean_kl_loss": 0.01, "entropy": 1.25},
        "pol2": {"mean_kl_loss": 0.02, "entropy": 1.0},
        "__all_modules__": {},
    },
    "perf": {"env_steps_per_s": 51_234.5},
}


def test_a_line_has_return_per_agent_length_kl_entropy_speed_and_time_left():
    line = result_line(RESULT, HEADLINE_METRICS, 200.0)
    returns, learning = (
        "return    6.50 (agent1 12.00, agent2 -5.50)  len 100.0",
        "kl 0.0100 0.0200  entropy 1.25 1.00",
    )
    assert (
        line
        == f"iter    12  steps      48,000  {returns}  {learning}  51,234 steps/s  3 min 20 s left"
    )


def test_a_line_shows_what_the_algorithm_names_and_a_dash_where_no_policy_has_it():
    metrics = (
        HeadlineMetric("grad_norm", "norm of the gradient", label="grad", form=".1f"),
        HeadlineMetric("unknown", "in no result", label="unknown"),
        HeadlineMetric("vf_loss", "a panel alone"),
    )
    learners = {"p": {"grad_norm": 2.0}, "q": {}, "__all_modules__": {}}
    line = result_line({**RESULT, "learners": learners}, metrics)
    assert "len 100.0  grad 2.0  unknown -  51,234 steps/s" in line


def test_a_small_negative_number_is_no_minus_zero():
    learners = {"p": {"mean_kl_loss": -1e-6, "entropy": -0.25}}
    line = result_line({**RESULT, "learners": learners}, HEADLINE_METRICS)
    assert "kl 0.0000  entropy -0.25" in line


def test_before_the_first_episode_has_ended_no_return_is_made_up():
    assert "no episode has ended yet" in result_line({**RESULT, "env_runners": {}}, ())


def test_many_policies_are_shown_by_their_range():
    learners = {f"p{i}": {"mean_kl_loss": i / 100, "entropy": float(i)} for i in range(6)}
    assert "kl 0.0000..0.0500  entropy 0.00..5.00" in result_line(
        {**RESULT, "learners": learners}, HEADLINE_METRICS
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(6.6, "7 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (-1, "0 s")]
)
def test_durations_read_as_a_person_says_them(seconds, text):
    assert duration(seconds) == text


def shown(*, terminal, width=200):
    output = io.StringIO()
    progress = Progress(console=Console(file=output, force_terminal=terminal, width=width))
    with progress:
        for iteration in range(1, 51):
            progress.show({**RESULT, "training_iteration": iteration}, HEADLINE_METRICS, 1.0)
    return output.getvalue()


def test_without_a_terminal_the_first_and_the_last_line_are_plain_and_lines_between_are_few():
    lines = shown(terminal=False).splitlines()
    assert lines[0].startswith("iter     1")
    assert lines[-1].startswith("iter    50")
    assert len(lines) < 10
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_the_newest_figures_are_live():
    assert "\x1b[" in shown(terminal=True)
    assert all(f"iter    {iteration}" in shown(terminal=True) for iteration in (17, 33))


SAID = "warning: the policy's entropy is 0\nreturn 3.50, trial 0001 has diverged: NaN"


def said(**options):
    """What a console with these options writes of `SAID`."""
    output = io.StringIO()
    Progress(console=Console(file=output, width=200, highlight=False, **options)).say(SAID)
    return output.getvalue()


def test_a_terminal_shows_returns_warnings_and_failures_in_colour():
    coloured = said(force_terminal=True, color_system="standard")
    assert coloured == (
        "\x1b[33mwarning:\x1b[0m the policy's entropy is 0\n"
        "\x1b[32mreturn 3.50\x1b[0m, trial 0001 \x1b[31mhas diverged\x1b[0m: NaN\n"
    )
    live = io.StringIO()
    console = Console(file=live, force_terminal=True, color_system="standard", width=200)
    with Progress(console=console) as progress:
        progress.show(RESULT, HEADLINE_METRICS, 1.0)
    assert "\x1b[32mreturn    6.50\x1b[0m (agent1 12.00" in live.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"force_terminal": False},
        {"force_terminal": True, "color_system": "standard", "no_color": True},
    ],
    ids=["file", "pipe", "NO_COLOR"],
)
def test_without_a_terminal_and_with_no_color_there_is_no_colour(options):
    assert said(**options) == f"{SAID}\n"


def test_the_variable_no_color_takes_the_colours_of_a_trainings_console(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    Progress().say(SAID)
    assert "\x1b[33mwarning:" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    Progress().say(SAID)
    assert capsys.readouterr().out == f"{SAID}\n"


def test_a_narrow_terminal_folds_the_live_line_rather_than_hiding_the_time_left():
    live = shown(terminal=True, width=60).split("iter    33")[1].split("iter")[0]
    assert "1 s left" in live


@pytest.fixture
def notebook(monkeypatch):
    """A stand-in for IPython in a kernel: its outputs, each a list of what it showed in turn."""
    outputs = []

    class Handle:
        def update(self, shown, raw):
            text = shown["text/plain"]
            assert html.escape(text) in shown.get("text/html", html.escape(text))
            outputs[-1].append(text)

    def display(shown, raw, display_id):
        outputs.append([shown["text/plain"]])
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(display=display))
    return outputs


def test_in_a_notebook_a_training_is_one_line_that_is_replaced(notebook):
    assert shown(terminal=False) == ""
    (lines,) = notebook
    assert [int(line.split()[1]) for line in lines] == list(range(1, 51))
    assert max(map(len, lines)) <= LOG_WIDTH


def test_the_curve_above_a_notebooks_line_goes_through_the_returns_and_escapes_the_line():
    xml = xml_of(curve([1.0, 3.0, 2.0]))
    points = [tuple(map(float, point.split(","))) for point in xml[0].get("points").split()]
    assert points == [(4.0, 86.0), (280.0, 4.0), (556.0, 45.0)]  # the least below, the most above
    assert [text.text for text in xml[1:]] == ["3", "1"]
    assert xml_of(curve([2.0, 2.0]))[0].get("points") == "4.0,86.0 556.0,86.0"


def test_a_long_notebook_curve_keeps_evenly_spaced_returns_and_the_newest():
    shown = NotebookLine()
    for value in [None, math.nan, *range(1000)]:
        shown.add(value)
        if value is not None and value >= 0:
            *kept, newest = shown.values
            assert kept == list(range(0, len(kept) * shown.stride, shown.stride))
            assert newest == value and len(shown.values) <= MOST_POINTS
    assert shown.stride == 4


def xml_of(svg):
    return list(ElementTree.fromstring(svg))


def test_in_a_notebook_what_is_said_beside_the_line_is_plain_text(notebook, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # Jupyter's streams are like terminals to rich
    progress = Progress()
    with progress:
        progress.show_line("iter 1")
        progress.say(f"warning: [red]look[/] {'far ' * 30}away")
    assert capsys.readouterr().out == f"warning: [red]look[/] {'far ' * 30}away\n"
    assert notebook == [["iter 1"]]


def test_in_a_notebook_quiet_shows_nothing(notebook):
    with Progress(quiet=True) as progress:
        progress.show_line("iter 1")
    assert notebook == []


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch):
    ipython = types.SimpleNamespace(get_ipython=lambda: None)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not in_notebook()


def test_quiet_prints_nothing():
    output = io.StringIO()
    Progress(quiet=True, console=Console(file=output, quiet=True)).say("hello")
    assert output.getvalue() == ""


class Full(io.StringIO):
    """A file on a full disk from a number of writes on."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def write(self, text):
        self.room -= 1
        if self.room < 0:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.mark.parametrize("terminal", [False, True])
def test_output_that_cannot_be_written_ends_the_output_alone(terminal, monkeypatch):
    registered = []
    monkeypatch.setattr(console.atexit, "register", lambda *call: registered.append(call))
    file = Full(room=2)
    progress = Progress(console=Console(file=file, force_terminal=terminal, width=200))
    with progress:
        for _ in range(5):
            progress.show(RESULT, HEADLINE_METRICS, 1.0)
            progress.say("more")
    assert progress.lost == "No space left on device"
    assert registered == [(console.say_lost, "No space left on device")]  # once


def test_a_closed_pipe_ends_the_output_and_not_the_process(monkeypatch):
    def closed(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(console.atexit, "register", lambda *call: None)
    file = io.StringIO()
    file.write = closed
    progress = Progress(console=console.LossyConsole(file=file))
    progress.say("to nobody")
    assert progress.lost is not None


def test_a_path_with_odd_bytes_is_printed_with_escapes():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    progress = Progress(console=Console(file=file))
    progress.say("run folder   gr\u00f6\udcff")
    assert file.buffer.getvalue() == b"run folder   gr\\xf6\\udcff\n"


PRINTING = """
from jaxrl.run.logging.console import Progress
progress = Progress()
for _ in range(3):
    progress.say("a line")
raise SystemExit(7)
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is of Linux")
def test_a_process_on_a_full_disk_says_so_in_one_line_and_keeps_its_exit_status():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PRINTING], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (
        done.stderr.decode()
        == "jaxrl: the output could not be written to the end: No space left on device\n"
    )
    assert done.returncode == 7


ANSWERING = """
from jaxrl.run.logging.console import Progress, print_answer
Progress().say("a line")
print_answer("the answer")
raise SystemExit(0)
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is of Linux")
@pytest.mark.parametrize(
    "command", [["-c", ANSWERING], ["-m", "jaxrl", "--version"]], ids=["a command", "--version"]
)
def test_a_command_whose_answer_cannot_be_written_fails_in_one_line(command):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, *command], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (
        done.stderr.decode()
        == "jaxrl: the output could not be written to the end: No space left on device\n"
    )
    assert done.returncode == 1


FOUND = {
    "num_episodes": 10,
    **{
        f"episode_return_{part}": value
        for part, value in (("mean", -42), ("std", 3), ("min", -50), ("max", -30))
    },
    "episode_len_mean": 100.0,
    "agent_episode_returns_mean": {"agent1": -40.0, "agent2": -2.0},
}


@pytest.mark.parametrize("width", [60, 80, LOG_WIDTH, 120])
def test_a_line_fits_its_width_and_keeps_steps_return_and_time_left(width):
    line = result_line(RESULT, HEADLINE_METRICS, 200.0, width)
    assert len(line) <= max(
        width, len("iter    12  steps      48,000  return    6.50  3 min 20 s left")
    )
    for part in ("steps      48,000", "return    6.50", "3 min 20 s left"):
        assert part in line


def test_a_line_has_the_win_rate_against_a_pool_of_opponents():
    against = {**RESULT["env_runners"], "opponents": {"win_rate": 0.625, "num_copies": 3}}
    line = result_line({**RESULT, "env_runners": against}, HEADLINE_METRICS, 200.0, 80)
    assert "return    6.50  win rate 0.62" in line


def test_the_line_of_a_game_has_each_agents_return_however_narrow_it_is():
    returns = {"agent_episode_returns_mean": {"first": 0.25, "second": -0.25}}
    found = dict.fromkeys(("mean", "std", "min", "max"), 0.0)
    found = {f"episode_return_{name}": value for name, value in found.items()} | returns
    found |= {"num_episodes": 20, "episode_len_mean": 9.0}
    line = result_line({**RESULT, "env_runners": found}, HEADLINE_METRICS, 200.0, 20)
    assert "48,000  return    0.00 (first 0.25, second -0.25)  3 min 20 s left" in line
    line = evaluation_line(8, found, explore=False, width=20)
    assert line == (
        "evaluation after iteration 8:  20 greedy episodes  return 0.00 +- 0.00 "
        "(first 0.25, second -0.25)"
    )


def test_what_matters_least_is_left_out_first():
    whole = result_line(RESULT, HEADLINE_METRICS, 200.0)
    assert result_line(RESULT, HEADLINE_METRICS, 200.0, len(whole)) == whole
    assert result_line(RESULT, HEADLINE_METRICS, 200.0, len(whole) - 1) == whole.replace(
        "  entropy 1.25 1.00", ""
    )


def test_the_returns_of_many_agents_are_their_range():
    assert agent_returns({"a": 1.0}) == ""
    assert agent_returns({f"p{i}": -13.24 for i in range(8)}) == "8 agents -13.24 each"
    assert agent_returns({f"p{i}": float(i) for i in range(8)}) == "8 agents 0.00 to 7.00 each"


def test_an_evaluation_says_how_its_actions_were_chosen():
    line = evaluation_line(25, FOUND, explore=False)
    spread, agents = (
        "return -42.00 +- 3.00 (from -50.00 to -30.00)",
        "(agent1 -40.00, agent2 -2.00)",
    )
    assert (
        line == f"evaluation after iteration 25:  10 greedy episodes  {spread} {agents}  len 100.0"
    )
    assert "10 sampled episodes" in evaluation_line(25, FOUND, explore=True)
    assert len(evaluation_line(25, FOUND, explore=False, width=100)) <= 100


def test_greedy_play_below_all_recent_episodes_of_training_is_explained():
    training = {"env_runners": {"episode_return_min": -10.0}}
    assert "evaluation takes the likeliest actions" in greedy_hint(training, FOUND)
    assert greedy_hint({"env_runners": {"episode_return_min": -50.0}}, FOUND) is None
    assert greedy_hint({"env_runners": {}}, FOUND) is None


def test_a_line_of_the_plan_is_folded_below_its_label():
    line = (
        "batch        64 environments x 100 steps = 6,400 environment steps an iteration; "
        "312 iterations"
    )
    assert folded(line, 200) == line
    lines = folded(line, 60).splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= 60
    assert lines[1].startswith(" " * 13) and lines[1][13] != " "
    assert " ".join(part.strip() for part in lines) == line
    path = "run folder   " + "/a-long-path" * 10
    assert folded(path, 60).endswith("/a-long-path" * 10)  # a path stays whole, to be copied


def test_a_hint_is_printed_once():
    output = io.StringIO()
    progress = Progress(console=Console(file=output, width=200))
    for _ in range(2):
        progress.say_once("a hint")
    assert output.getvalue() == "a hint\n"
