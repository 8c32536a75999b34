"""The commands of the benchmarks start: with --smoke, their tables and their rows looked at.

The commands are those that the pages, benchmarks/README.md and the scripts' own docstrings name. A
new one is tested without a line here, unless it needs a package (`NEEDS`).
"""

import contextlib
import importlib
import importlib.util
import json
import logging
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks"
PAGES = [ROOT / "README.md", FOLDER / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IN_A_PAGE = re.compile(r"`(?:[^`]*\s)?python\s+benchmarks/(\w+)\.py\b([^`]*)`")
IN_A_BLOCK = re.compile(r"^python benchmarks/(\w+)\.py\b(.*)$", re.MULTILINE)
IN_A_SCRIPT = re.compile(r"^    (?:pip.*&& )?python benchmarks/(\w+)\.py\b(.*)$", re.MULTILINE)
OPTIONAL = re.compile(r"\[(--[^\]]*)\]")
PLACES = {  # what a page writes for a folder, a case or settings of the reader's own
    **{"CHECKOUT": str(ROOT), "../before": str(ROOT), "DIR": "episodes", "{...}": "{}"},
    **{"CASE": "pursuit", "STEPS": "4000", "FOLDER": "MAPPO"},
    **{"PATH/ppo.py": __file__, "../purejaxrl/purejaxrl/ppo.py": __file__},  # --smoke leaves it out
}
NEEDS = [  # packages that no test needs otherwise, by a script and words of its command
    ("adapters_out", "--learn", "stable_baselines3"),
    ("adapters_out", "--rllib", "ray"),
    ("atari", "", "ale_py"),
    ("library_environments", "--resets", "craftax"),
    ("library_environments", "", "envpool"),
    ("mappo", "spread", "jaxmarl"),
    ("search", "", "optuna"),
]
# What others use.
PARTS = {"kernels", "memory_stages", "outside_training", "peer_stacks", "plain", "programs"}
PARTS |= {"purejaxrl_program", "report", "rllib_examples", "simulated_ray"}
# They train another library alone.
PEERS = {"offline_rllib", "peer_until", "rllib_peer", "sb3_pettingzoo"}
LONG = {  # half a minute and more, with --smoke too
    *(
        "arena",
        "engine",
        "exploration",
        "fast",
        "hosts",
        "kill_and_resume",
        "memory",
        "overhead",
        "peers",
    ),
    *("scaling", "self_play", "soak", "startup", "sweeps", "time_to_return", "users_sweep"),
}
SCRIPTS = sorted({path.stem for path in FOLDER.glob("*.py")} - PARTS)


def commands():
    """(script, its words) of every command that a page or a script names."""
    texts = [(pattern, page) for pattern in (IN_A_PAGE, IN_A_BLOCK) for page in PAGES]
    texts += [(IN_A_SCRIPT, FOLDER / f"{script}.py") for script in SCRIPTS]
    for pattern, path in texts:
        for script, rest in pattern.findall(path.read_text(encoding="utf-8")):
            plain = OPTIONAL.sub("", rest)
            for words in (plain, *(f"{plain} {option}" for option in OPTIONAL.findall(rest))):
                words = shlex.split(words, comments=True)
                yield script, tuple(PLACES.get(word, word) for word in words)


COMMANDS = {script: [] for script in SCRIPTS}
for named, with_words in dict.fromkeys(commands()):
    COMMANDS.setdefault(named, []).append(with_words)


class Again(BaseException):
    """The same arguments have been tried."""


class Read(BaseException):
    """The arguments were read, and nothing ran."""


@pytest.fixture(scope="module")
def modules():
    """Imports a script of benchmarks/ as it sees itself: its neighbours are top-level modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.setattr(importlib.import_module("report"), "CORES", 2)
        yield importlib.import_module
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent == FOLDER:
            del sys.modules[name]


@pytest.fixture
def run(modules, tmp_path, monkeypatch):
    """Runs a script in an empty folder; raises `Again` if its arguments come to the same."""
    parser, tried = modules("report").Parser, []
    parse = parser.parse_args

    def parse_once(self, *given):
        arguments = parse(self, *given)
        if vars(arguments) in tried:
            raise Again
        tried.append(vars(arguments).copy())
        return arguments

    monkeypatch.setattr(parser, "parse_args", parse_once)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    logger = logging.getLogger("jaxrl")  # a simulated Ray actor keeps it to itself
    monkeypatch.setattr(logger, "propagate", logger.propagate)
    monkeypatch.setattr(logger, "handlers", logger.handlers.copy())
    level = logger.level
    monkeypatch.chdir(tmp_path)

    def run_one(script, *words):
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *words])
        with jax.numpy_rank_promotion("allow"):
            modules(script).main()

    yield run_one
    logger.setLevel(level)


def check_tables(text):
    """There is a table, and every cell of each says something that was measured."""
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert tables, text
    for table in tables:
        titles, rule, *lines = ([*map(str.strip, line.split("|"))] for line in table.splitlines())
        assert set(rule[1:-1]) <= {"---", "--:"} and lines, table
        assert {len(line) for line in lines} == {len(titles)}, table
        assert not re.search(r"\b(nan|inf|None)\b", table), table


def refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


def check_rows(folder):
    """Rows of strict JSON that say what set their numbers; the file is emptied for the next."""
    found = []
    for path in folder.rglob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            found.append(json.loads(line, parse_constant=refuse_constant))
        path.unlink()
    assert found
    assert all({"cores", "load", "flags"} <= row.keys() for row in found)
    machines = [row["machine"] for row in found if row.get("machine")]
    assert machines and all(machine["versions"]["jaxrl"] for machine in machines)


def missing(script, words):
    """The first package that the command needs and that is not installed."""
    for name, word, package in NEEDS:
        if name == script and (not word or word in words):
            return None if importlib.util.find_spec(package) else package
    return None


def in_parts():
    """(script, its commands): the first of a script apart from the others, which take long."""
    for script in sorted(set(SCRIPTS) - PEERS - {"readme_output"}):
        (first, *others), slow = COMMANDS[script], pytest.mark.slow
        yield pytest.param(script, [first], marks=[slow] * (script in LONG), id=script)
        if others:
            yield pytest.param(script, others, marks=slow, id=f"{script}, its other commands")


@pytest.mark.docs
# Gymnasium's own worker processes are forked beside JAX, as in its users' programs.
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
@pytest.mark.parametrize(("script", "lines"), [*in_parts()])
def test_a_command_of_a_benchmark_prints_its_table_and_keeps_its_rows(
    script, lines, run, tmp_path, capfd
):
    left_out = []
    for words in lines:
        if package := missing(script, words):
            left_out.append(package)
            continue
        capfd.readouterr()
        with contextlib.suppress(Again):
            run(script, *words, "--smoke")
            check_tables(capfd.readouterr().out)
            check_rows(tmp_path)
    if len(left_out) == len(lines):
        pytest.skip(f"{script} needs {left_out[0]}")


@pytest.mark.docs
def test_the_script_that_writes_the_readmes_output_prints_it(run, capfd):
    run("readme_output", "--smoke")
    assert re.search(r"^iter +1 ", capfd.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("script", sorted(set(SCRIPTS) - PEERS))
def test_every_command_of_a_benchmark_has_words_that_it_knows(script, modules, monkeypatch):
    """`--smoke` of each command would run with them; here nothing runs."""
    known = modules("report").Parser
    parse = known.parse_args

    def parse_alone(self, *given):
        parse(self, *given)
        raise Read

    monkeypatch.setattr(known, "parse_args", parse_alone)
    for words in COMMANDS[script]:
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *words])
        with pytest.raises(Read):
            modules(script).main()


@pytest.mark.parametrize("script", sorted(PEERS))
def test_a_script_that_trains_another_library_says_what_it_takes(script, run, capsys):
    with pytest.raises(SystemExit) as ended:
        run(script, "--help")
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out


def test_every_benchmark_is_named_by_a_command_and_every_command_is_a_benchmark():
    assert {script for script, words in COMMANDS.items() if not words} == set()
    assert set(COMMANDS) - set(SCRIPTS) == {"peer_stacks"} & set(COMMANDS)


@pytest.mark.parametrize("script", sorted(set(SCRIPTS) - PEERS))
def test_every_benchmark_knows_its_smallest_form(script):
    """The flag is declared in one place, `report.Parser`."""
    text = (FOLDER / f"{script}.py").read_text(encoding="utf-8")
    assert re.search(r"report\.(arguments_of|Parser)\(", text)
    assert "--smoke" not in text


PEER_FILE = """
from typing import NamedTuple

import flax.linen as nn
import jax
from peer_wrappers import returned

class Step(NamedTuple):
    obs: jax.Array

class Network(nn.Module):
    width: int

    @nn.compact
    def __call__(self, step):
        return nn.Dense(self.width)(step.obs)

def make_train(config):
    config["NUM_UPDATES"] = config["TOTAL_TIMESTEPS"] // config["NUM_STEPS"] // config["NUM_ENVS"]

    def train(rng):
        step = Step(jax.random.normal(rng, (config["NUM_ENVS"], 4)))
        network = Network(2)
        outputs = network.apply(network.init(rng, step), step)
        return {"metrics": returned(outputs), "updates": config["NUM_UPDATES"]}

    return train
"""


def test_the_training_in_purejaxrls_file_is_made_at_our_settings(modules, tmp_path):
    """The file imports a neighbour, and adds to the settings that it is given."""
    (tmp_path / "ppo.py").write_text(PEER_FILE)
    (tmp_path / "peer_wrappers.py").write_text("def returned(x):\n    return x.sum(axis=-1)\n")
    peer, path = modules("purejaxrl_program"), sys.path.copy()
    settings = peer.cartpole_settings(4, 8, 3)
    before = settings.copy()
    train = peer.make_train(tmp_path / "ppo.py", settings)
    trained = jax.jit(train)(jax.random.key(0))
    assert trained["metrics"].shape == (4,)
    assert (trained["updates"], settings, sys.path) == (3, before, path)


def test_a_file_that_is_not_there_is_refused_before_anything_runs(run, capsys):
    with pytest.raises(SystemExit):
        run("engine", "--purejaxrl", "nowhere/ppo.py")
    assert "nowhere/ppo.py: there is no such file" in capsys.readouterr().err


PROGRAM = """HloModule jit_f, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %sine = f32[4]{0} sine(%p)
}

%body (carry: (s32[], f32[4])) -> (s32[], f32[4]) {
  %carry = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %x = f32[4]{0} get-tuple-element(%carry), index=1
  %once = f32[4]{0:T(8,128)} fusion(%x), kind=kLoop, calls=%fused
  %twice = f32[4]{0} dot(%once, %once)
  %sums = (f32[4]{0}, pred[2,3]{1,0}) all-reduce(%twice, %once), to_apply=%fused
  ROOT %next = (s32[], f32[4]{0}) tuple(%x, %twice)
}

%decides (carry: (s32[], f32[4])) -> pred[] {
  %carry = (s32[], f32[4]{0}) parameter(0)
  ROOT %less = pred[] compare(%carry, %carry), direction=LT
}

%longer (p: f32[4]) -> f32[4] {
  %a = f32[4]{0} copy(%p)
  ROOT %b = f32[4]{0} custom-call(%a), custom_call_target="xla_ffi_python_gpu_callback"
}

%shorter (p: f32[4]) -> f32[4] {
  ROOT %p = f32[4]{0} parameter(0)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %begun = ((f32[4]{0}), f32[4]{0}) fusion-start(%x), kind=kLoop, calls=%fused
  %ended = f32[4]{0} fusion-done(%begun)
  %known = (s32[]) while(%x), body=%body, backend_config={"known_trip_count":{"n":"7"}}
  %unknown = (s32[], f32[4]{0}) while(%known), condition=%decides, body=%body
  %one = f32[4]{0} conditional(%i, %x, %x), branch_computations={%shorter, %longer}
  ROOT %last = f32[4]{0} call(%one), to_apply=%longer
}
"""


def test_the_launches_of_a_program_are_counted_with_the_trips_of_its_loops(modules):
    found = modules("kernels").launches(PROGRAM)
    # A fusion by itself, three in each of 7 trips, three and a condition in the loop of unknown
    # length, two in the branch, two in the call.
    assert found.kernels == 1 + 7 * 3 + (3 + 1) + 2 + 2
    assert found.loops == 7 + 1
    assert (found.exchanges, found.exchanged_bytes) == ((7 + 1) * 2, (7 + 1) * (4 * 4 + 6))
    assert (found.kinds["while"], found.kinds["dot"], found.kinds["host callbacks"]) == (2, 1, 1)


def test_the_time_of_a_kernel_is_without_those_inside_it(modules):
    def event(name, start, duration):
        return SimpleNamespace(name=name, start_ns=start, duration_ns=duration)

    events = [event("loop", 0, 100), event("dot", 10, 30), event("add", 50, 20)]
    line = SimpleNamespace(events=[*events, event("dot", 100, 5)])  # the last one after the loop
    record = SimpleNamespace(planes=[SimpleNamespace(lines=[line])])
    spent = modules("kernel_times").own_times(record)
    nanoseconds = {name: [round(1e9 * time) for time in times] for name, times in spent.items()}
    assert nanoseconds == {"loop": [100 - 30 - 20], "dot": [30, 5], "add": [20]}


def test_an_instruction_counts_as_a_product_by_its_own_text_or_what_is_fused_into_it(modules):
    of = modules("kernel_times").instructions
    # The name that JAX gave an instruction says nothing.
    named = '%named = f32[4]{0} add(%x, %x), metadata={op_name="jit(f)/ dot("}'
    plain, fused = of(PROGRAM + named), of(PROGRAM.replace(" sine(%p)", " dot(%p, %p)"))
    kinds = {name: plain[name][-1] for name in ("twice", "once", "named", "known", "last")}
    assert kinds == {
        **{"twice": "product", "once": "other", "named": "other"},
        **{"known": "between", "last": "between"},
    }
    assert fused["once"][-1] == "product"


def test_two_more_trips_of_a_compiled_loop_launch_two_more_bodies(modules):
    kernels = modules("kernels")

    def looped(trips):
        step = lambda x, _: (jnp.sin(x @ x), None)
        return lambda x: jax.lax.scan(step, x, length=trips)[0]

    found = [
        kernels.launches(jax.jit(looped(trips)).lower(jnp.eye(8)).compile().as_text())
        for trips in (1000, 1002)
    ]
    in_a_trip = (found[1].kernels - found[0].kernels) / 2
    assert in_a_trip >= 2  # the product and the sine
    assert in_a_trip * 1000 <= found[0].kernels <= in_a_trip * 1001 + 10
    # A product of n x n by n x n takes 2 n**3 operations.
    assert kernels.flops(looped(1000), jnp.eye(8)) == 1000 * 2 * 8**3


def test_operations_are_those_of_products_and_convolutions(modules):
    def convolved(picture, kernel):
        first = jax.lax.conv_general_dilated(picture, kernel, (1, 1), "VALID")
        return jax.lax.cond(first.sum() > 0, lambda x: x @ x, lambda x: x, jnp.eye(3))

    picture, kernel = jnp.ones((2, 3, 10, 10)), jnp.ones((5, 3, 4, 4))
    in_convolution = 2 * (2 * 5 * 7 * 7) * (3 * 4 * 4)
    assert modules("kernels").flops(convolved, picture, kernel) == in_convolution + 2 * 3**3


def test_the_time_in_which_a_card_is_busy_counts_what_overlaps_once(modules):
    assert modules("gpu").covered([(0, 4), (2, 6), (3, 5), (10, 11)]) == 7


@pytest.mark.parametrize(
    ("found", "named"),
    [
        ({"kernel_us": 3.0, "of_peak": 0.01, "busy": None}, "launches"),
        ({"kernel_us": 3.0, "of_peak": 0.01, "busy": 0.9}, "memory"),
        ({"kernel_us": 90.0, "of_peak": 0.6, "busy": 0.95}, "products"),
        ({"kernel_us": 90.0, "of_peak": 0.6, "busy": 0.3}, "launches"),
    ],
)
def test_what_limits_a_training_on_a_card_is_named(found, named, modules):
    assert modules("gpu").limit(**found) == named
