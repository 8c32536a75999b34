"""Command `jaxrl export`: a policy of a run in a file that other programs act with."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxrl.cli.evaluate import CHECKPOINT, TRUST, run_command
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import count, flag, setting
from jaxrl.core.words import any_value, pairs_of_texts, shown_as, text_of
from jaxrl.export.export import check_path
from jaxrl.play.load import load_policy
from jaxrl.run.logging.console import print_answer


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Flags of `jaxrl export`."""

    out: str = setting(
        "", "the file; its ending is the format: .onnx, .npz or .stablehlo", text_of("FILE")
    )
    policy: Any = setting(
        None, "the policy's name; may be left out where the run has only one", shown_as("NAME")
    )
    explore: bool = setting(
        False, "sample actions, from random numbers that are an input; False: the likeliest", flag
    )
    checkpoint: Any = CHECKPOINT
    opset: Any = setting(
        None, "of .onnx: the version of ONNX's operators; None: 18", count(optional=True)
    )
    names: Any = setting(
        (),
        "of .onnx: other names of inputs and outputs, such as action=actions",
        any_value(pairs_of_texts, "NAME=NAME"),
    )
    trust: bool = TRUST


def export(argv: Sequence[str] | None = None) -> None:
    """Write a policy of a run to a file that other programs act with: RUN --out FILE [flags]."""
    run_command("export", export.__doc__, ExportOptions(), argv, _export)


def _export(run: str, options: ExportOptions) -> None:
    if not options.out:
        raise UsageError("which file? --out model.onnx")
    check_path(options.out)
    policy = load_policy(run, options.policy, checkpoint=options.checkpoint, trust=options.trust)
    settings = {"explore": options.explore, "opset": options.opset, "names": dict(options.names)}
    print_answer(str(policy.export(options.out, **settings)))
