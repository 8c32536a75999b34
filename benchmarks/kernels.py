"""The kernels that a compiled program launches, counted with the trips of its loops.

XLA's text of a program (`compiled.as_text()`) is a list of computations. Each instruction that is
not only a name for something runs as a kernel, or as a call of a library.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.$-]+) (?:\(.*)?\{$")
OPCODE = re.compile(r" = .*? ([a-z][a-z0-9-]*)\(")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
CALLED = re.compile(r"(?:to_apply|calls|body|true_computation|false_computation)=%?([\w.$-]+)")
CONDITION = re.compile(r"condition=%?([\w.$-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
LOOP, BRANCH = "while", "conditional"
# Names of values, which cost nothing.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
FREE |= {"opt-barrier", "async-update", "add-dependency", "partition-id", "replica-id"}
DONE = "-done"  # the end of an instruction's opcode whose first half, "-start", is the launch
CALLS = {"call", "async-start"}  # of other computations, whose instructions count
BETWEEN_DEVICES = {"all-reduce", "all-reduce-start", "all-gather"}
ARRAY = re.compile(r"\b(?:pred|[a-z]+(\d+))\[([\d,]*)\]")  # f32[2,3]
HOST = "callback"  # in the target of a custom call that returns to Python


@dataclass
class Launches:
    """The launches of one run of a program; a loop of unknown length counts as one trip."""

    kernels: int = 0
    loops: int = 0  # trips of them, each of which the host or the card decides on
    exchanges: int = 0  # arrays that are summed over devices, or gathered from them
    exchanged_bytes: int = 0  # their results, on each device
    kinds: Counter = field(default_factory=Counter)  # instructions in the text, by opcode

    def __add__(self, other: "Launches") -> "Launches":
        return Launches(*(a + b for a, b in zip(self.numbers, other.numbers, strict=True)))

    def times(self, number: int) -> "Launches":
        return Launches(*(number * counted for counted in self.numbers))

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.kernels, self.loops, self.exchanges, self.exchanged_bytes


def launches(text: str) -> Launches:
    """The launches of the program with this text; of a conditional the longest branch."""
    bodies, entry = computations(text)

    @cache
    def of(name: str) -> Launches:
        total = Launches()
        for line in bodies.get(name, ()):
            total += of_instruction(line)
        return total

    def of_instruction(line: str) -> Launches:
        found = OPCODE.search(line)
        if found is None or (opcode := found[1]) in FREE or opcode.endswith(DONE):
            return Launches()
        called = CALLED.findall(line)
        if opcode == LOOP:
            trips = TRIPS.search(line)
            if trips is None:  # its condition decides on the device
                return of(called[0]) + of(CONDITION.search(line)[1]) + Launches(loops=1)
            return of(called[0]).times(int(trips[1])) + Launches(loops=int(trips[1]))
        if opcode == BRANCH:
            listed = BRANCHES.search(line)
            called += re.findall(r"[\w.$-]+", listed[1]) if listed else []
            return max(map(of, called), key=lambda branch: branch.kernels)
        if opcode in CALLS:
            return sum(map(of, called), Launches())
        if opcode in BETWEEN_DEVICES:
            arrays = ARRAY.findall(line[: found.end()])
            return Launches(1, exchanges=len(arrays), exchanged_bytes=sum(map(_bytes, arrays)))
        return Launches(kernels=1)

    total = of(entry)
    lines = [line for body in bodies.values() for line in body]
    total.kinds.update(found[1] for line in lines if (found := OPCODE.search(line)))
    total.kinds["host callbacks"] = sum(HOST in line for line in lines if " custom-call(" in line)
    return total


def _bytes(array: tuple[str, str]) -> int:
    """Bytes of an array, by the bits of a number ("" of a bool) and its shape."""
    bits, shape = array
    return int(bits or 8) // 8 * math.prod(map(int, filter(None, shape.split(","))))


def computations(text: str) -> tuple[Mapping[str, list[str]], str]:
    """({name: its instructions}, the name of the one that the program begins with)."""
    bodies: dict[str, list[str]] = {}
    entry, body = "", []
    for line in text.splitlines():
        if begins := COMPUTATION.match(line):
            body = bodies[begins[2]] = []
            entry = begins[2] if begins[1] else entry
        else:
            body.append(line)
    return bodies, entry


def flops(function: Any, *arguments: Any) -> float:
    """The operations in products and convolutions of one call, with the trips of its scans."""
    return _flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def _flops(jaxpr: Any) -> float:
    return sum(map(_flops_of, jaxpr.eqns))


def _flops_of(equation: Any) -> float:
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        first, result = equation.invars[0].aval, equation.outvars[0].aval
        depth = 1
        for axis in contracted:
            depth *= first.shape[axis]
        return 2.0 * depth * result.size
    if name == "conv_general_dilated":
        kernel, result = equation.invars[1].aval, equation.outvars[0].aval
        outputs = kernel.shape[parameters["dimension_numbers"].rhs_spec[0]]
        return 2.0 * result.size * kernel.size / outputs
    inner = [_flops(part) for part in _parts(parameters)]
    if name == "cond":
        return max(inner)
    return sum(inner) * parameters.get("length", 1)


def _parts(parameters: Mapping[str, Any]) -> list[Any]:
    """The programs within an operation: of loops, branches, calls."""
    leaves = jax.tree.leaves(dict(parameters), is_leaf=lambda leaf: hasattr(leaf, "eqns"))
    closed = [getattr(leaf, "jaxpr", leaf) for leaf in leaves]
    return [part for part in closed if hasattr(part, "eqns")]
