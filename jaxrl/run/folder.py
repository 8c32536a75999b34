"""The folder of a run: made before anything is compiled, with what is needed to understand the run later."""

import json
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from jaxrl.core.errors import UsageError


def new_run_folder(env_name: str, seed: int, root: str | Path = "runs") -> Path:
    """`runs/<env>/<time>-s<seed>`, free at this moment; only names that every file system takes."""
    safe = "".join(character if character.isalnum() or character in "-_." else "-" for character in env_name)
    stem = Path(root) / safe / f"{time.strftime('%Y%m%d-%H%M%S')}-s{seed}"
    candidates = (stem if i == 1 else stem.with_name(f"{stem.name}-{i}") for i in range(1, 1000))
    return next(path for path in candidates if not path.exists())


def create(path: Path, config: dict[str, Any]) -> None:
    """Makes the folder and writes config.json and metadata.json.

    Raises:
        UsageError: it exists already, or cannot be written.
    """
    try:
        path.mkdir(parents=True)
        _write_json(path / "config.json", config)
        _write_json(path / "metadata.json", metadata())
    except FileExistsError:
        raise UsageError(f"run folder {path} exists already; choose another --run-dir, or remove it") from None
    except OSError as error:
        raise UsageError(f"run folder {path} cannot be written: {error.strerror or error}") from None


def metadata() -> dict[str, Any]:
    """What set the numbers besides the configuration: versions, device, commit."""
    device = jax.devices()[0]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: version(name) for name in ("jaxrl", "jax", "jaxlib", "flax", "optax", "numpy")},
        "device": f"{device.platform}: {device.device_kind}",
        "num_devices": jax.device_count(),
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit of the checkout that jaxrl runs from, if it is one."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, default=_named) + "\n", encoding="utf-8")


def _named(value: Any) -> str:
    """Objects that JSON has no form for, environments and functions, by their names."""
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{getattr(value, '__module__', type(value).__module__)}:{name}"
