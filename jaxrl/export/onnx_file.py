"""ONNX files: a policy's step for onnxruntime and the loaders of robots and games."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, is_installed, one_line, unknown_name
from jaxrl.export.policy_step import Built, PolicyStep, names_of, rows

# The oldest in which every kind of network can be written: older loaders read it.
OPSET = 18
PACKAGES = ("jax2onnx", "onnx", "onnxruntime")


def build_onnx(
    step: PolicyStep, batch: int | None, *, opset: int, names: Mapping[str, str]
) -> Built:
    """The model of a step, with the metadata in it.

    Args:
        names: other names for inputs and outputs, {name of the step: name in the file}.
    """
    for package in PACKAGES:
        if not is_installed(package):
            raise UsageError(f'a .onnx file needs {package}: pip install "jaxrl[onnx]"')
    import onnx

    model = _converted(step, "batch" if batch is None else batch, opset, names)
    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.checker.ValidationError as error:
        raise UsageError(
            f"opset={opset} has not all operators of this policy, opset={OPSET} has: "
            f"{one_line(error)}"
        ) from None

    def files(path: Path, metadata: dict[str, Any]) -> dict[Path, bytes]:
        for name, value in metadata.items():
            text = value if isinstance(value, str) else json.dumps(value)
            model.metadata_props.add(key=name, value=text)
        return {path: model.SerializeToString()}

    return Built(_session(model.SerializeToString(), names), files)


def check_names(step: PolicyStep, names: Mapping[str, str]) -> None:
    """Refuses names for what the step does not have, and a name twice."""
    tensor_names = names_of(step.inputs + step.outputs)
    for name in names:
        if name not in tensor_names:
            raise unknown_name("input or output", name, tensor_names)
    named = [names.get(name, name) for name in tensor_names]
    for name in named:
        if named.count(name) > 1:
            raise UsageError(f"names={dict(names)}: two arrays would be called {name!r}")


def _converted(step: PolicyStep, size: str | int, opset: int, names: Mapping[str, str]) -> Any:
    """The ONNX model, with inputs and outputs in the step's order."""
    from jax2onnx import to_onnx

    in_file = lambda name: names.get(name, name)
    outputs = names_of(step.outputs)
    copies = _copies(step)
    computed = [name for name in outputs if name not in copies]
    with _quiet("onnx_ir", "jax2onnx"):
        model = to_onnx(
            step.positional(computed),
            inputs=list(rows(step.inputs, size).values()),
            input_names=list(map(in_file, names_of(step.inputs))),
            output_names=list(map(in_file, computed)),
            model_name="policy",
            opset=opset,
            return_mode="proto",
        )
    _add_copies(model.graph, {in_file(name): in_file(copies[name]) for name in copies})
    by_name = {info.name: info for info in model.graph.output}
    in_order = [by_name[in_file(name)] for name in outputs]
    del model.graph.output[:]
    model.graph.output.extend(in_order)
    _drop_unused(model.graph)
    model.producer_name = "jaxrl"
    return model


def _copies(step: PolicyStep) -> dict[str, str]:
    """{output: the input or earlier output that it is}, for which the converter has no name."""
    program = step.program()
    names_by_id = dict(zip(map(id, program.invars), names_of(step.inputs), strict=True))
    copies = {}
    for value, tensor in zip(program.outvars, step.outputs, strict=True):
        if id(value) in names_by_id:
            copies[tensor.name] = names_by_id[id(value)]
        names_by_id.setdefault(id(value), tensor.name)
    return copies


def _add_copies(graph: Any, copies: Mapping[str, str]) -> None:
    from onnx import helper

    infos = {info.name: info for info in (*graph.input, *graph.output)}
    for name, source in copies.items():
        graph.node.append(helper.make_node("Identity", [source], [name], name=f"copy_{name}"))
        copied = graph.output.add()
        copied.CopyFrom(infos[source])
        copied.name = name


def _drop_unused(graph: Any) -> None:
    """Removes constants that no operator reads, of which onnxruntime would warn."""
    names_read: set[str] = set()
    for node in _nodes(graph):
        names_read.update(node.input)
    used = [constant for constant in graph.initializer if constant.name in names_read]
    del graph.initializer[:]
    graph.initializer.extend(used)


def _nodes(graph: Any) -> Iterator[Any]:
    """The operators, those of branches and loops included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _session(data: bytes, names: Mapping[str, str]) -> Callable:
    """The outputs of a model as a function of its inputs, both by the names of the step."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    of_step = {in_file: name for name, in_file in names.items()}
    outputs = [of_step.get(output.name, output.name) for output in session.get_outputs()]

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = session.run(None, {names.get(name, name): value for name, value in inputs.items()})
        return dict(zip(outputs, values, strict=True))

    return run


@contextmanager
def _quiet(*loggers: str) -> Iterator[None]:
    """Hides the warnings of libraries about what they leave out."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
