"""StableHLO files: a policy's step for `jax.export.deserialize`, on any device."""

import json
from pathlib import Path
from typing import Any

import jax

from jaxrl.core.errors import UsageError, is_installed
from jaxrl.export.policy_step import Built, PolicyStep, rows

PLATFORMS = ("cpu", "cuda", "tpu")


def build_stablehlo(step: PolicyStep, batch: int | None) -> Built:
    """The program of a step; the metadata are in a JSON file beside it."""
    if not is_installed("flatbuffers"):
        raise UsageError('a .stablehlo file needs flatbuffers: pip install "jaxrl[stablehlo]"')
    size = jax.export.symbolic_shape("batch")[0] if batch is None else batch
    exported = jax.export.export(jax.jit(step), platforms=PLATFORMS)(rows(step.inputs, size))
    data = bytes(exported.serialize())

    def files(path: Path, metadata: dict[str, Any]) -> dict[Path, bytes]:
        beside = path.with_name(f"{path.name}.json")
        return {path: data, beside: json.dumps(metadata, indent=1).encode()}

    return Built(jax.jit(jax.export.deserialize(bytearray(data)).call), files)
