"""Compiled programs that a later process finds without tracing them.

JAX files what it compiled under the traced program, and tracing takes longer than all the rest of a
second run. Here an entry is filed under what a program is traced from: the configuration, the
environment, the shapes, jaxrl's sources, the versions below it and JAX's flags. So that nothing
else can decide, only jaxrl's own environments and networks are kept, and only by processes whose
code is all jaxrl's or installed: no script, notebook or module of the user's own.

Entries lie beside JAX's own in a folder of `jaxrl.run.devices.compile_cache`, which tests, checks
and trims them alike. One that cannot be loaded is traced again. What JAX's cache had is not kept:
a program that was loaded cannot be written as bytes again (jaxlib 0.10 leaves out kernels).
"""

import functools
import hashlib
import importlib.metadata
import os
import pickle
import sys
import sysconfig
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import serialize_executable

from jaxrl.core.errors import brief
from jaxrl.core.types import PyTree

HOME = Path(__file__).resolve().parents[2]  # of jaxrl's sources
INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")  # folders, in Python's words
BELOW = ("chex", "flax", "jax", "jaxlib", "numpy", "optax")  # packages that programs are traced by
FLAGS = ("JAX_", "XLA_", "LIBTPU_")  # how the variables of the environment begin that decide
PLAIN = (type(None), bool, int, float, bytes, np.generic)
TESTED = "tested"  # the file of a folder that was tested on this machine
# (metrics, start_program, chunk_program, capacity) of a `jaxrl.run.devices.compiled.StartAndChunk`,
# the two with a method `compile`, or compiled.
Programs = tuple[PyTree, Any, Any, int]


class Kept(NamedTuple):
    """A program in bytes, in place of a traced one."""

    parts: tuple  # as `_parts` returns them
    trace: Callable[[], Any]  # the traced program, where the bytes are of no use
    loaded: Callable[[], None]  # is called when it was loaded

    def compile(self) -> Any:
        *parts, numbers = self.parts
        try:
            devices = [device for device in jax.devices() if device.id in numbers]
            load = serialize_executable.deserialize_and_load
            program = load(*parts, execution_devices=devices)
        except Exception:  # whatever JAX or XLA raise of bytes that are not as they were
            return self.trace().compile()
        self.loaded()
        return program


def entry_of(identity: Any, devices: int, shapes: str) -> Path | None:
    """The file of a program; None where none is kept.

    Args:
        identity: the configuration and the environment, of plain values.
    """
    folder = Path(jax.config.jax_compilation_cache_dir or "")
    is_used = jax.config.jax_enable_compilation_cache and (folder / TESTED).is_file()
    if not is_used or jax.process_count() > 1 or not has_only_installed_code():
        return None
    try:
        text = repr((described(identity), devices, shapes, _code(_sources()), _flags()))
    except TypeError:
        return None
    return folder / f"jaxrl-{hashlib.sha256(text.encode()).hexdigest()}-cache"


def find(entry: Path, trace: Callable[[], Programs], loaded: Callable[[], None]) -> Programs | None:
    """The programs of an entry, to be loaded by `compile`; None where there is none.

    Args:
        trace: traces them, where they cannot be loaded.
        loaded: is called for each one that was loaded.
    """
    try:
        metrics, start, chunk, capacity = pickle.loads(zlib.decompress(entry.read_bytes()))
    except Exception:  # there is none, or it was cut short
        return None
    trace = functools.cache(trace)
    programs = [
        Kept(parts, lambda place=place: trace()[place], loaded)
        for place, parts in ((1, start), (2, chunk))
    ]
    return metrics, *programs, capacity


def keep(entry: Path, programs: Programs) -> None:
    """Writes compiled programs to an entry, whole or not at all; nothing if the disk is full."""
    metrics, start, chunk, capacity = programs
    try:
        data = pickle.dumps((metrics, _parts(start), _parts(chunk), capacity))
        data = zlib.compress(data, 1)
        if len(data) < jax.config.jax_persistent_cache_min_entry_size_bytes:
            return  # the folder is only read
        new = entry.with_suffix(f".{os.getpid()}")
        new.write_bytes(data)
        new.replace(entry)
    except Exception:  # a program that cannot be written as bytes, a full disk
        return


def _parts(program: Any) -> tuple:
    """The bytes of a program, the structures of its arguments and results, its devices."""
    used = set().union(
        *(sharding.device_set for sharding in jax.tree.leaves(program.input_shardings))
    )
    return *serialize_executable.serialize(program), sorted(device.id for device in used)


def described(value: Any) -> Any:
    """Plain values and objects of jaxrl's classes that hold such, as a text tells them apart.

    Raises:
        TypeError: something else is among them.
    """
    if isinstance(value, PLAIN) or (isinstance(value, str) and not names_other_code(value)):
        return type(value).__name__, value
    if isinstance(value, tuple | list):
        return type(value).__name__, [described(part) for part in value]
    if isinstance(value, dict):
        return "dict", [(described(key), described(part)) for key, part in value.items()]
    kind = type(value)
    if not kind.__module__.startswith("jaxrl."):
        raise TypeError(f"{brief(value)} is not of plain values")
    is_derived = lambda name: isinstance(getattr(kind, name, None), functools.cached_property)
    parts = [(name, described(part)) for name, part in vars(value).items() if not is_derived(name)]
    return f"{kind.__module__}:{kind.__qualname__}", parts


def names_other_code(text: str) -> bool:
    """Returns whether a text such as "module:Name" or "library:Task" names what is not jaxrl's."""
    return ":" in text and not text.startswith("jaxrl.")


def has_only_installed_code() -> bool:
    """Returns whether all modules of this process are jaxrl's, Python's or installed."""
    if getattr(sys.modules["__main__"], "__file__", None) is None:  # a notebook, python -c
        return False
    paths = (*map(sysconfig.get_path, INSTALLED), *_sources(), HOME.parent / "scripts")
    folders = tuple(f"{path}{os.sep}" for path in paths)
    files = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    return all(file is None or file.startswith(folders) for file in files)


def _sources() -> frozenset[str]:
    """The folders of the packages of jaxrl that are loaded.

    A checkout has the environments beside the rest.
    """
    packages = [module for name, module in sys.modules.items() if name.startswith("jaxrl.")]
    paths = (path for package in packages for path in getattr(package, "__path__", ()))
    return frozenset((str(HOME), *paths))


@functools.cache
def _code(folders: frozenset[str]) -> str:
    """A digest of the sources in these folders, with the versions of what is below jaxrl."""
    versions = sys.version, *map(importlib.metadata.version, BELOW)
    digest = hashlib.sha256(repr(versions).encode())
    for path in sorted({path for folder in folders for path in Path(folder).rglob("*.py")}):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _flags() -> tuple[Any, ...]:
    """JAX's settings, and the variables of the environment that it and XLA read."""
    variables = (item for item in os.environ.items() if item[0].startswith(FLAGS))
    return sorted(jax.config.values.items()), sorted(variables)
