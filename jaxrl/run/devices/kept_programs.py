"""Compiled programs that a later process finds without tracing them.

JAX files what it compiled under the traced program, and tracing takes longer than all the rest of a
second run. Here a program is filed under what it is traced from: the configuration, the
environment, the shapes, jaxrl's sources, the versions of the libraries below it and JAX's flags. To
rule out anything else, a process keeps and finds programs only if it is a command of jaxrl's, all
of its code is jaxrl's or installed, and no source was saved after it began; and only those of the
environments that come with jaxrl, on CPUs.

The files lie beside JAX's own in a folder of `jaxrl.run.devices.compile_cache`, which tests, checks
and trims them alike. A program that cannot be loaded is traced again. One that JAX's cache had is
not kept: its bytes would lack kernels (jaxlib 0.10).
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import pickle
import sys
import sysconfig
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable

from jaxrl.core.errors import brief
from jaxrl.core.types import PyTree
from jaxrl.run.storage.own_files import remove_temporary, temporary_beside

HOME = Path(__file__).resolve().parents[2]  # of jaxrl's sources
SHIPPED = tuple(f"jaxrl.envs.{name}" for name in ("arena", "cartpole", "pursuit", "waterworld"))
INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")  # folders, as sysconfig names them
BELOW = ("chex", "flax", "jax", "jaxlib", "numpy", "optax")  # packages that programs are traced by
# Prefixes of the environment variables that JAX and XLA read.
VARIABLES = ("JAX_", "XLA_", "LIBTPU_")
OF_A_CACHE = ("jax_compilation_cache_", "jax_persistent_cache_")  # settings that change no program
PLAIN = (type(None), bool, int, float, bytes, np.generic)
ENDING = ".program"
TESTED = "tested"  # the file of a folder that was tested on this machine


@dataclass(frozen=True)
class Filed:
    """Stands in for a traced program: loads it from a file, or compiles it and writes the file.

    Args:
        facts: what else the file holds, to be known before the program is loaded.
        trace: gives the traced program, where the file cannot be loaded.
        hits: how many programs this thread has loaded from JAX's cache.
        loaded: is called when the file's bytes were loaded.
    """

    file: Path
    facts: PyTree
    trace: Callable[[], Any]
    hits: Callable[[], int]
    loaded: Callable[[], None]

    def compile(self) -> Any:
        """The program, from its file or compiled."""
        with contextlib.suppress(Exception):  # no file, or whatever JAX or XLA raise of its bytes
            _, *parts, numbers = _read(self.file)
            devices = [device for device in jax.devices() if device.id in numbers]
            load = serialize_executable.deserialize_and_load
            program = load(*parts, execution_devices=devices)
            self.loaded()
            return program
        hits = self.hits()
        program = self.trace().compile()
        if self.hits() == hits and not _changed_since_the_start(_sources()):
            self.write(program)
        return program

    def write(self, program: Any) -> None:
        """Writes the file, whole or not at all."""
        new = temporary_beside(self.file)
        with contextlib.suppress(Exception):  # it cannot be written as bytes, or the disk is full
            shardings = jax.tree.leaves(program.input_shardings)
            used = set().union(*(sharding.device_set for sharding in shardings))
            parts = *serialize_executable.serialize(program), [device.id for device in used]
            data = zlib.compress(pickle.dumps((self.facts, *parts)), 1)
            if len(data) >= jax.config.jax_persistent_cache_min_entry_size_bytes:
                remove_temporary(self.file)  # of a process that was killed
                new.write_bytes(data)
                new.replace(self.file)
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


def filed(
    file: Path,
    trace: Callable[[], tuple[PyTree, Any, Any, int]],
    hits: Callable[[], int],
    loaded: Callable[[], None],
) -> tuple[tuple[PyTree, Any, Any, int], bool]:
    """The results of `trace`, the programs as `Filed`, and whether it had to be called.

    Args:
        file: as `file_of` returns it.
        trace: gives the first fields of `jaxrl.run.devices.compiled.StartAndChunk`.
        hits, loaded: see `Filed`.
    """
    trace = functools.cache(trace)
    facts = None
    with contextlib.suppress(Exception):  # there is no file, or it was cut short
        facts = _read(file)[0]
    is_new = facts is None
    metrics, capacity = (trace()[0], trace()[3]) if is_new else facts
    of_start = file.with_stem(f"{file.stem}-start")
    start = Filed(of_start, None, lambda: trace()[1], hits, loaded)
    chunk = Filed(file, (metrics, capacity), lambda: trace()[2], hits, loaded)
    return (metrics, start, chunk, capacity), is_new


def _read(file: Path) -> tuple:
    return pickle.loads(zlib.decompress(file.read_bytes()))


def file_of(identity: tuple | None, devices: int, shapes: str) -> Path | None:
    """The file of a program; None where none is kept.

    Args:
        identity: (configuration, environment); None where a program depends on more than these.
    """
    folder = Path(jax.config.jax_compilation_cache_dir or "")
    is_used = jax.config.jax_enable_compilation_cache and (folder / TESTED).is_file()
    is_alone = jax.process_count() == 1 and jax.default_backend() == "cpu"
    if identity is None or not (is_used and is_alone and is_command_of_ours()):
        return None
    try:
        of_program = described(identity)
    except TypeError:
        return None
    sources = _sources()
    if _changed_since_the_start(sources):
        return None
    text = repr((of_program, devices, shapes, _code(sources), _flags()))
    return folder / f"jaxrl-{hashlib.sha256(text.encode()).hexdigest()}{ENDING}"


def described(value: Any) -> Any:
    """Plain values and objects of jaxrl's classes that hold such, as a text tells them apart.

    Raises:
        TypeError: something else is among them, such as an environment that jaxrl lacks.
    """
    if isinstance(value, PLAIN) or (isinstance(value, str) and not names_other_code(value)):
        return type(value).__name__, value
    if isinstance(value, tuple | list):
        return type(value).__name__, [described(part) for part in value]
    if isinstance(value, dict):
        return "dict", [(described(key), described(part)) for key, part in value.items()]
    kind = type(value)
    in_envs = kind.__module__.startswith("jaxrl.envs.") and kind.__module__ not in SHIPPED
    if in_envs or not kind.__module__.startswith("jaxrl."):
        raise TypeError(f"{brief(value)} is not of plain values")
    is_derived = lambda name: isinstance(getattr(kind, name, None), functools.cached_property)
    parts = [(name, described(part)) for name, part in vars(value).items() if not is_derived(name)]
    return f"{kind.__module__}:{kind.__qualname__}", parts


def names_other_code(text: str) -> bool:
    """Returns whether a text such as "module:Name" or "library:Task" names what is not jaxrl's."""
    return ":" in text and not text.startswith("jaxrl.")


def is_command_of_ours() -> bool:
    """Returns whether jaxrl's command line runs here, and all modules are jaxrl's or installed."""
    main = _file_of(sys.modules["__main__"])
    script = Path(sysconfig.get_path("scripts"), "jaxrl")
    if main not in {*map(str, (HOME / "__main__.py", script)), *_scripts()}:
        return False
    paths = *map(sysconfig.get_path, INSTALLED), *_sources()
    folders = tuple(f"{path}{os.sep}" for path in paths)
    modules = [module for name, module in [*sys.modules.items()] if name != "__main__"]
    return all(file is None or file.startswith(folders) for file in map(_file_of, modules))


def _file_of(module: Any) -> str | None:
    file = getattr(module, "__file__", None)
    return os.path.abspath(file) if isinstance(file, str) else None


def _scripts() -> set[str]:
    """The scripts of a checkout that train."""
    return {str(HOME.parent / "scripts" / f"{name}.py") for name in ("train_ppo", "train_bc")}


def _sources() -> frozenset[str]:
    """The folders of the packages of jaxrl that are loaded.

    A checkout has the environments beside the rest.
    """
    packages = [module for name, module in sys.modules.items() if name.startswith("jaxrl.")]
    paths = (path for package in packages for path in getattr(package, "__path__", ()))
    return frozenset((str(HOME), *paths))


def _files(folders: Iterable[str]) -> list[Path]:
    return sorted({path for folder in folders for path in Path(folder).rglob("*.py")})


def _changed_since_the_start(folders: Iterable[str]) -> bool:
    """Returns whether a source was saved after this process began, which may have loaded it before.

    True where the system does not tell when that was.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        since_boot = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except OSError:
        return True
    age = since_boot - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(path.stat().st_mtime for path in _files(folders)) > time.time() - age


@functools.cache
def _code(folders: frozenset[str]) -> str:
    """A digest of the sources in these folders, with the versions of what is below jaxrl."""
    versions = sys.version, *map(importlib.metadata.version, BELOW)
    digest = hashlib.sha256(repr(versions).encode())
    for path in _files(folders):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _flags() -> tuple[Any, ...]:
    """JAX's settings, and the environment variables that it and XLA read."""
    settings = (item for item in jax.config.values.items() if not item[0].startswith(OF_A_CACHE))
    variables = (item for item in os.environ.items() if item[0].startswith(VARIABLES))
    return sorted(settings), sorted(variables)
