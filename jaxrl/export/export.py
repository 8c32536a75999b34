"""Export of a policy to a file that other programs act with; the file is checked first."""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.core.errors import UsageError, brief, one_line, unknown_name
from jaxrl.core.fields import count, file_path, flag, instance_of, pairs
from jaxrl.core.frozen import freeze
from jaxrl.core.plan import Line, laid_out
from jaxrl.core.program_spaces import is_action_of_program, is_program, mask_length
from jaxrl.core.spaces import is_tree, to_json
from jaxrl.export.numpy_file import READER, build_npz
from jaxrl.export.onnx_file import OPSET, build_onnx, check_names
from jaxrl.export.parity import Parity, Steps, check_parity, drawn_steps, recorded_steps
from jaxrl.export.policy_step import Built, PolicyStep, Run, Tensor
from jaxrl.export.stablehlo import build_stablehlo
from jaxrl.play.video import write_file
from jaxrl.run.storage.run_folder import versions

# Files of spaces that readers of format 1 would misread have 2: integers that do not count from 0,
# or do not lie in a row.
FORMAT, SHIFTED = 1, 2
ONNX = ".onnx"
BUILDERS: dict[str, Callable[..., Built]] = {
    ONNX: build_onnx,
    ".stablehlo": build_stablehlo,
    ".npz": build_npz,
}


@dataclass(frozen=True)
class Exported:
    """A policy's file: its inputs, its outputs, and the largest difference from the policy."""

    path: Path
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    batch: int | None  # the only size of a batch that it takes; None: any
    parity: Parity
    metadata: dict[str, Any]
    notes: tuple[Line, ...] = ()

    def __str__(self):
        lines = [("wrote", f"{self.path} ({self.path.stat().st_size / 1000:,.0f} kB)")]
        for title, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            for tensor in tensors:
                shape = ", ".join(map(str, (self.batch or "batch", *tensor.shape)))
                lines.append((title, f"{tensor.name}  {tensor.dtype}[{shape}]"))
                title = ""
        return laid_out([*lines, ("parity", self.parity), *self.notes])


def export_policy(
    policy: Any,
    path: str | Path,
    *,
    explore: bool = False,
    opset: int | None = None,
    names: Mapping[str, str] | None = None,
) -> Exported:
    """Writes a `Policy` to a file, as `Policy.export` says."""
    path = check_path(path)
    flag("explore", explore)
    count(optional=True)("opset", opset)
    new_names = "a mapping {name of an input or output: another}"
    instance_of(Mapping, new_names, optional=True)("names", names)
    pairs(new_names.removeprefix("a mapping "))("names", freeze(names or ()))
    names = dict(names or ())
    is_onnx = path.suffix == ONNX
    if not is_onnx and (opset is not None or names):
        raise UsageError(f"opset and names are of {ONNX} files, not of {path}")
    with _on_the_host():
        step = PolicyStep(policy.policy_spec, policy.weights, masked=policy.masked, explore=explore)
        built, batch, fixed = build_file(step, path.suffix, opset, names)
        steps, notes = _steps(policy, step)
        run = built.run if batch is None else _row_by_row(built.run)
        parity = check_parity(step, run, steps, str(path))
    metadata = _metadata(policy, step, parity) | {"batch": batch}
    if is_onnx:
        metadata |= {"opset": opset or OPSET, "names": names}
    for file, content in built.files(path, metadata).items():
        write_file(file, lambda temporary, content=content: temporary.write_bytes(content))
    if path.suffix == ".npz":
        notes += (("reader", f"{READER}, which needs NumPy alone: copy it"),)
    in_file = lambda tensor: tensor._replace(name=names.get(tensor.name, tensor.name))
    inputs, outputs = tuple(map(in_file, step.inputs)), tuple(map(in_file, step.outputs))
    return Exported(path, inputs, outputs, batch, parity, metadata, notes + fixed)


def check_path(path: str | Path) -> Path:
    """The path of a file, before anything is computed for it."""
    file_path("the path of a file")("path", path)
    path = Path(path)
    if path.suffix not in BUILDERS:
        raise unknown_name("ending", path.suffix, BUILDERS, f"of {brief(str(path))}")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
    return path


def _on_the_host() -> AbstractContextManager:
    """Computes on the CPU, where there is one, whose numbers are exact to the last digits."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS=cuda
        return contextlib.nullcontext()


def _steps(policy: Any, step: PolicyStep) -> tuple[Steps, tuple[Line, ...]]:
    """Steps of the policy's environment, or else drawn ones, and why."""
    if policy.origin is None:
        return drawn_steps(step), ()
    try:
        return recorded_steps(policy.origin.players(), policy.name, step), ()
    except Exception as error:  # of a user's environment, which the file does not need
        reason = f"observations are drawn from the space: {one_line(error)}"
        return drawn_steps(step), (("note", reason),)


def build_file(
    step: PolicyStep,
    ending: str,
    opset: int | None = None,
    names: Mapping[str, str] | None = None,
) -> tuple[Built, int | None, tuple[Line, ...]]:
    """(a file that is not written yet, the size of batches that it takes, why it is the only one).

    It is for batches of any size, None; or for batches of 1 where a user's network fixes the size.

    Args:
        opset, names: of a .onnx file; None: `OPSET`, and the names of the step.

    Raises:
        UsageError: the format cannot hold the policy, or a package is missing.
    """
    build = BUILDERS[ending]
    if ending == ONNX:
        names = names or {}
        check_names(step, names)
        build = functools.partial(build, opset=opset or OPSET, names=names)
    try:
        return build(step, None), None, ()
    except UsageError:
        raise
    except Exception as error:
        reason = f"batches of 1 only: {one_line(error)}"
    try:
        return build(step, 1), 1, (("note", reason),)
    except Exception as error:
        raise UsageError(f"the policy cannot be exported: {one_line(error)}") from error


def _row_by_row(run: Run) -> Run:
    """The outputs of a batch from a file that takes batches of 1."""

    def run_each(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        size = len(next(iter(inputs.values())))
        outputs = []
        for i in range(size):
            row = {name: rows[i : i + 1] for name, rows in inputs.items()}
            outputs.append(dict(run(row)))
        return jax.tree.map(lambda *rows: np.concatenate(rows), *outputs)

    return run_each


def npz_bytes(policy: Any, *, explore: bool) -> bytes:
    """The content of the policy's .npz file, which is not compared with the policy."""
    step = PolicyStep(policy.policy_spec, policy.weights, masked=policy.masked, explore=explore)
    path = Path("policy.npz")
    return build_npz(step, None).files(path, _metadata(policy, step, None))[path]


def _metadata(policy: Any, step: PolicyStep, parity: Parity | None) -> dict[str, Any]:
    """The file's metadata, as strict JSON can hold them."""
    spec = policy.policy_spec
    is_plain = is_program(spec.observation_space) and is_action_of_program(spec.action_space)
    initial_state = {}  # zeros where it is not said
    for name, rows in step.initial_state(1).items():
        if rows.any():
            initial_state[name] = rows[0].tolist()
    facts = {
        "format": FORMAT if is_plain else SHIFTED,
        "versions": versions(),
        "env": None if policy.origin is None else policy.origin.env_name,
        "policy": policy.name,
        "agents": list(policy.agents),
        "observation_space": to_json(spec.observation_space),
        "action_space": to_json(spec.action_space),
        "actions": "sampled" if step.explore else "greedy",
        "noise": _noise_kind(step),
        "inputs": list(map(Tensor._asdict, step.inputs)),
        "outputs": list(map(Tensor._asdict, step.outputs)),
        "initial_state": initial_state,
        "parity": parity and parity._asdict(),
    }
    return strict_json(facts)


def _noise_kind(step: PolicyStep) -> str | None:
    """The distribution of the input `noise`."""
    spec = step.policy_spec
    if not step.explore:
        return None
    if is_tree(spec.action_space):
        return "joint"
    if mask_length(spec.action_space):
        return "gumbel"
    return "beta" if spec.action_distribution == "beta" else "normal"


def strict_json(value: Any) -> Any:
    """A value with its infinite numbers as texts, which `float` reads: strict JSON has none."""
    if isinstance(value, Mapping):
        return {name: strict_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(strict_json, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
