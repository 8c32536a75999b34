"""Command `jaxrl publish`: a run's policies with a model card, in a folder or at Hugging Face."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxrl.cli.evaluate import CHECKPOINT, TRUST, run_command
from jaxrl.core.errors import UsageError
from jaxrl.core.fields import count, flag, setting
from jaxrl.core.words import text_of
from jaxrl.publishing.publish import EPISODES
from jaxrl.publishing.publish import publish as publish_run
from jaxrl.run.logging.console import print_answer


@dataclasses.dataclass(frozen=True)
class PublishOptions:
    """Flags of `jaxrl publish`."""

    to: str = setting(
        "", "a folder (new, empty or published before), or hf:USER/NAME", text_of("FOLDER")
    )
    checkpoint: Any = CHECKPOINT
    episodes: int = setting(
        EPISODES, "whole episodes that the card's return is the mean of", count()
    )
    onnx: bool = setting(False, "write ONNX files as well", flag)
    private: bool = setting(False, "make a new repository at Hugging Face private", flag)
    trust: bool = TRUST


def publish(argv: Sequence[str] | None = None) -> None:
    """Publish the policies of a run with a model card: RUN --to FOLDER|hf:USER/NAME [flags]."""
    run_command("publish", publish.__doc__, PublishOptions(), argv, _publish)


def _publish(run: str, options: PublishOptions) -> None:
    if not options.to:
        raise UsageError("where to? --to FOLDER or --to hf:USER/NAME")
    print_answer(str(publish_run(run, **dataclasses.asdict(options))))
