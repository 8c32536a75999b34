"""How all tests run: quickly compiled, and with rank promotion an error."""

import atexit
import ctypes
import gc
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

# The suite compiles some two hundred small programs and runs each for moments, so code that
# compiles fast is worth more here than code that runs fast: without optimisation, in one piece, and
# by XLA's older emitters, which take a third of the time. Read when the backend starts; a value
# that is set already wins. jaxlib 0.11 no longer has the older emitters, and ends the process at
# their flag.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false"
    * (tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)),
)

import hypothesis
import jax

from jaxrl import Trainer
from jaxrl.core.machine import process_memory
from jaxrl.run.devices import compile_cache
from tests.programs import SMALL_ARENA

jax.config.update(
    "jax_numpy_rank_promotion", "raise"
)  # two shapes that meet by accident are a bug, not a broadcast
jax.config.update(
    "jax_num_cpu_devices", 4
)  # for tests/run/devices/test_mesh.py; whoever asks for none uses the first


def cache_folder():
    """Where this run keeps compiled programs: apart for each kind of processor, or for this run."""
    if root := os.environ.get("JAXRL_TEST_CACHE"):
        folder = Path(root).absolute() / compile_cache.machine()
        folder.mkdir(parents=True, exist_ok=True)
        compile_cache.trim(folder.parent, 2**31)
        compile_cache.remove_cut_entries(folder)  # of tests that kill a training
        return folder
    folder = tempfile.mkdtemp(prefix="jaxrl-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# What one worker or child process compiled, the others load: a compile cache of this run alone, or
# below JAXRL_TEST_CACHE, a folder that outlasts it. A user's own cache is none of the suite's
# business. The workers and the child processes inherit these variables.
if "JAX_ENABLE_COMPILATION_CACHE" not in os.environ:
    for name, value in {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": str(cache_folder()),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        os.environ[name.upper()] = str(value)
        jax.config.update(name, value)

# No test is timed: machines are shared and busy.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# Pure functions, settings, errors and the house: what compiles hardly a training.
QUICK = (
    "algorithms/ppo/test_config.py",
    "algorithms/ppo/test_fast.py",
    "algorithms/test_rllib_values.py",
    "cli/test_plot.py",
    "core/test_env.py",
    "core/test_fast_prng.py",
    "core/test_fields.py",
    "core/test_registry.py",
    "core/test_spaces.py",
    "episodes",
    "ops",
    "run/logging",
    "run/storage/test_config_file.py",
    "run/storage/test_run_folder.py",
    "run/test_command_line.py",
    "run/test_paths.py",
    "sweeps/test_plots.py",
    "sweeps/test_population_based_training.py",
    "sweeps/test_results.py",
    "sweeps/test_saved_sweep.py",
    "sweeps/test_space.py",
    "sweeps/test_statistics.py",
    "sweeps/test_trials.py",
    "test_docs.py::test_every",
    "test_docs.py::test_the_commands_of_a_page_are_accepted",
    "test_docs.py::test_the_messages",
    "test_docs.py::test_the_tables",
    "test_house.py",
)
# Begins first, so that no worker ends alone with it.
LONGEST = "tests/cluster/test_hosts.py"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    quick = tuple(f"tests/{name}" for name in QUICK)
    for item in items:
        if " at 0x" in item.nodeid:  # another name in each worker, which then refuse to run
            raise pytest.UsageError(f"{item.nodeid}: give the parameters ids")
        if item.nodeid.startswith(quick):
            item.add_marker("quick")
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish():
    """Python's garbage collector looks less often, and no more at what was imported.

    It took a tenth of the suite's time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


MEMORY = 3 * 2**30  # bytes of a worker, above which it gives back what it can


def pytest_runtest_teardown(item, nextitem):
    """Between two modules a large worker gives memory back, and forgets programs if it must.

    Compiling leaves gigabytes that are free but that glibc keeps.
    """
    if nextitem is None or nextitem.path == item.path or (process_memory() or 0) < MEMORY:
        return
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)
    trim(0)
    if process_memory() > MEMORY:
        jax.clear_caches()
        trim(0)


def pytest_runtest_setup(item):
    """Two programs give the same bits only as users compile them."""
    older_emitters = "fusion_emitters=false" in os.environ["XLA_FLAGS"]
    if older_emitters and item.get_closest_marker("bits"):
        pytest.fail("run it with XLA_FLAGS= python -m pytest -m bits", pytrace=False)


# A short training that several tests look at

FOLDER = {"quiet": True, "pictures": False, "loggers": ("jsonl", "csv")}


@pytest.fixture
def small():
    return SMALL_ARENA


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A trainer of `SMALL_ARENA` after three iterations, for tests that only look at it."""
    path = tmp_path_factory.mktemp("trained") / "run"
    with Trainer(SMALL_ARENA, run_dir=path, **FOLDER) as trainer:
        trainer.fit({"training_iteration": 3})
        yield trainer


@pytest.fixture
def run(trained, tmp_path):
    """Its folder for one test, with the checkpoint of its third iteration: tmp_path/run."""
    return shutil.copytree(trained.run_dir, tmp_path / "run")


@pytest.fixture(scope="session")
def saved_often(tmp_path_factory):
    """The folder of a run of six iterations with the checkpoints 2, 4 and 6."""
    path = tmp_path_factory.mktemp("often") / "run"
    with Trainer(SMALL_ARENA, run_dir=path, checkpoint_frequency=2, **FOLDER) as trainer:
        trainer.fit({"training_iteration": 6})
    return path


@pytest.fixture
def checkpoints(saved_often, tmp_path):
    """A copy of it for one test: tmp_path/run."""
    return shutil.copytree(saved_often, tmp_path / "run")


@pytest.fixture
def start(tmp_path):
    """A trainer of `SMALL_ARENA`, with changes, in tmp_path/run; it stops at the end."""
    trainers = []

    def start(config=SMALL_ARENA, run_dir=tmp_path / "run", **settings):
        trainers.append(Trainer(config, run_dir=run_dir, **{**FOLDER, **settings}))
        return trainers[-1]

    yield start
    for trainer in trainers:
        trainer.stop()


@pytest.fixture
def stopped_after(start):
    """stopped_after(iterations, ...): a trainer of `start` that trained so many, and stopped."""

    def stopped_after(iterations, *arguments, **settings):
        trainer = start(*arguments, **settings)
        trainer.fit({"training_iteration": iterations})
        trainer.stop()
        return trainer

    return stopped_after


@pytest.fixture
def resume(tmp_path):
    """`Trainer.from_checkpoint` of tmp_path/run, with changes.

    Its folder is let go of at the end.
    """
    trainers = []

    def resume(path=tmp_path / "run", **settings):
        trainers.append(Trainer.from_checkpoint(path, quiet=True, **settings))
        return trainers[-1]

    yield resume
    for trainer in trainers:
        trainer.stop()
