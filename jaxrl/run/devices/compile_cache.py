"""Compile cache: JAX's persistent cache, in a folder that was tested on this machine.

JAX files an entry under its program, jaxlib's version and the flags, and not under the processor,
yet an entry made for another processor may end a run with an illegal instruction (jax#38445). So
each folder is named after the processor, the device and the versions. Whoever uses a folder first
compiles a small program and loads it back from its bytes, as any later process would: the load must
be a hit, and equal to the bit. That takes a fraction of a second, once; the folder remembers the
verdict, and one that failed is not used.

JAX writes an entry in place and never replaces one, so what a kill or a full disk cut short would
be compiled again, with a warning, in each later process. Whoever uses the folder next removes it.
Other entries that cannot be read or written are warned of by JAX, and training continues.
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from jaxrl.core.errors import is_installed
from jaxrl.core.fields import file_path
from jaxrl.run.devices.compiled import num_hits
from jaxrl.run.devices.kept_programs import ENDING, TESTED
from jaxrl.run.devices.mesh import split_cpu, start_jax

MAX_BYTES = 2**30  # of all entries below a root; those that were not read for longest go first
SOUND = "sound"  # the good verdict, in a folder's file `TESTED`
CPU_FACTS = re.compile(  # the lines of /proc/cpuinfo that decide about code, of x86 and of ARM
    r"^(?:vendor_id|cpu family|model|model name|stepping|flags|Features|"
    r"CPU (?:implementer|architecture|variant|part))\s*:.*$",
    re.MULTILINE,
)
ENTRIES = ("*-cache", f"*{ENDING}")  # JAX's names, and those of our kept programs
WHOLE = "whole"  # the file with the names of the entries that were looked at
ZSTANDARD = b"\x28\xb5\x2f\xfd"  # how its data begin; others are zlib's
LEAST_FREE_BYTES = 16 * 2**20


def use_compile_cache(folder: str | Path = "auto") -> Path | None:
    """Keeps compiled programs for later processes, and loads those of earlier ones.

    One call, at the top of a notebook. It changes JAX's global settings: whatever this process
    compiles from now on is kept, also what is not jaxrl's. It starts JAX, on a CPU with a device
    for each core, as `sweep` does. The commands and the scripts call it themselves.

    Args:
        folder: "auto" (`~/.cache/jaxrl/compile`, on Linux; elsewhere nothing is kept), a path, or
            "off".

    Returns:
        The folder in use; None where there is none, or where JAX was given a cache already
        (JAX_COMPILATION_CACHE_DIR), which stays.
    """
    file_path("'auto', a path, or 'off'")("folder", folder)
    split_cpu("auto")
    start_jax()
    return use(str(folder))


def use(
    choice: str | None, say: Callable[[str], None] = lambda line: print(line, file=sys.stderr)
) -> Path | None:
    """Lets this process keep what it compiles, and load what was kept.

    A cache that JAX was given already stays.

    Args:
        choice: "auto" (below the user's cache folder, on Linux: elsewhere the processor's features
            are not known), a path, or "off".
        say: is called with the one line of a first test, or of a folder that cannot be used.

    Returns:
        The folder; None where nothing was changed.
    """
    file_path("auto, a path, or off", optional=True)("compile_cache", choice)
    is_set = jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache
    if choice in (None, "off") or is_set or (choice == "auto" and sys.platform != "linux"):
        return None
    try:
        root = _users_folder() if choice == "auto" else Path(choice).expanduser().absolute()
        folder = root / machine()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # entries are code: nobody else's
        trim(root, MAX_BYTES)
        verdict = _verdict(folder, say)
    except (OSError, RuntimeError) as error:  # the second: a user without a home
        say(f"warning: no compile cache: {error}")
        return None
    if verdict != SOUND:
        return None
    remove_cut_entries(folder)
    _turn_on(folder)
    if reason := _why_nothing_is_kept(folder):
        say(f"warning: compile cache {folder} is only read: {reason}")
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 2**62)
    return folder


def machine() -> str:
    """A folder's name that two machines share only if they make the same code."""
    device, versions = jax.devices()[0], (jax.__version__, jaxlib.__version__)
    facts = (*versions, platform.machine(), device.platform, device.device_kind, *_processor())
    return f"{device.platform}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def trim(root: Path, limit: int) -> None:
    """Removes the entries below `root` that were read longest ago, down to `limit` bytes."""
    with contextlib.suppress(OSError):  # another process trims at the same time
        entries = [(entry.stat(), entry) for form in ENTRIES for entry in root.glob(f"*/{form}")]
        size = 0
        for facts, entry in sorted(entries, key=lambda pair: pair[0].st_atime, reverse=True):
            size += facts.st_size
            if size > limit:
                entry.unlink(missing_ok=True)


def remove_cut_entries(folder: Path) -> None:
    """Removes the entries whose end is missing, among those that nobody has looked at before."""
    entries = {entry.name: entry for form in ENTRIES for entry in folder.glob(form)}
    checked = set()
    with contextlib.suppress(OSError, ValueError):
        checked = set((folder / WHOLE).read_text(encoding="utf-8").split())
    with contextlib.suppress(OSError):  # a folder that is only read
        for name in entries.keys() - checked:
            if not _is_whole(entries[name].read_bytes()):
                entries.pop(name).unlink(missing_ok=True)
        if checked != entries.keys():
            (folder / WHOLE).write_text("\n".join(sorted(entries)), encoding="utf-8")


def _is_whole(entry: bytes) -> bool:
    """Returns whether an entry can be unpacked, as far as can be checked here."""
    unpack, damage = zlib.decompress, zlib.error
    if entry.startswith(ZSTANDARD):
        if not is_installed("zstandard"):
            return True
        import zstandard

        unpack, damage = zstandard.ZstdDecompressor().decompress, zstandard.ZstdError
    try:
        return bool(unpack(entry))
    except damage:
        return False


def _why_nothing_is_kept(folder: Path) -> str:
    """The reason why no entry can be written; mostly empty."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it cannot be written to"
    is_full = shutil.disk_usage(folder).free < LEAST_FREE_BYTES
    return "its disk is full" if is_full else ""


def test_here() -> str:
    """Compiles a program, loads it back and compares the two: `SOUND`, or what is wrong.

    Raises:
        OSError: it was not kept, for a reason that may pass, such as a full disk.
    """
    min_seconds = jax.config.jax_persistent_cache_min_compile_time_secs
    with tempfile.TemporaryDirectory() as scratch:
        _turn_on(Path(scratch))
        try:
            compiled, before = _sample(), num_hits()
            loaded, found = _sample(), num_hits() - before
        finally:
            _turn_on(None, min_seconds)
    if not found:
        raise OSError("a program that was to be kept is not found again")
    return SOUND if compiled == loaded else "a program that was loaded computes other numbers"


def _verdict(folder: Path, say: Callable[[str], None]) -> str:
    """The result of the test in this folder, which runs now if it has not run before."""
    mark = folder / TESTED
    verdict = mark.read_text(encoding="utf-8") if mark.exists() else ""
    if not verdict:
        begin = time.perf_counter()
        verdict = test_here()
        mark.write_text(verdict, encoding="utf-8")
        took = f"tested in {time.perf_counter() - begin:.1f} s, this once"
        found = f"compile cache {folder}" if verdict == SOUND else f"no compile cache: {verdict}"
        say(f"{found} ({took})")
    return verdict


def _sample() -> bytes:
    """The results of a small program of what training is made of, compiled or loaded anew."""

    @jax.jit
    def sample(rows):
        def step(state, i):
            state = jnp.tanh(state @ rows + rows[3 * i % len(rows), None]).at[i].add(0.5)
            return state, jnp.log(jnp.exp(state).sum())

        return jax.lax.scan(step, rows, jnp.arange(5))

    rows = np.linspace(-1.0, 1.0, 64, dtype=np.float32).reshape(8, 8)
    return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(sample(rows)))


def _turn_on(folder: Path | None, min_seconds: float = 0.0) -> None:
    """Turns JAX's cache on in `folder`, or off; small programs are kept like large ones."""
    jax.config.update("jax_compilation_cache_dir", None if folder is None else str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", min_seconds)
    compilation_cache.reset_cache()


def _processor() -> list[str]:
    """The processor's kind and features; this computer's name where they are not known."""
    try:
        lines = CPU_FACTS.findall(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        lines = []
    return sorted(set(lines)) or [platform.processor(), platform.node()]


def _users_folder() -> Path:
    """Below the user's cache folder: a relative one would be another's, in another's folder.

    Raises:
        RuntimeError: the user has no home.
    """
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not chosen.is_absolute():
        if os.environ.get("HOME") == "" or not Path.home().is_absolute():
            raise RuntimeError("HOME is no folder; --compile-cache names one")
        chosen = Path.home() / ".cache"
    return chosen / "jaxrl" / "compile"
