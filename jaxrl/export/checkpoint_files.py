"""`ExportCheckpoints`: callbacks that export each policy into the checkpoint that holds it."""

import logging
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax

from jaxrl.core.errors import UsageError, one_line, unknown_name
from jaxrl.export.export import BUILDERS, build_file, export_policy
from jaxrl.export.policy_step import PolicyStep
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.play.load import policy_of
from jaxrl.run.callbacks import Callbacks
from jaxrl.run.storage import checkpoint

POLICIES = "policies"  # the folder in a checkpoint's
log = logging.getLogger(__name__)


class ExportCheckpoints(Callbacks):
    """Exports each policy as `Policy.export` does, to `policies/<policy>.npz` in each checkpoint.

    The file has the weights of its checkpoint and is removed with it. If one
    cannot be written, a warning says so, and training continues.

    Args:
        ending: of the files, ".npz", ".onnx" or ".stablehlo".

    Raises:
        UsageError: an unknown ending.
    """

    def __init__(self, ending: str = ".npz"):
        if ending not in BUILDERS:
            raise unknown_name("ending", ending, BUILDERS)
        self.ending = ending
        self.left_out: set[str] = set()  # policies that do not learn and that no file can hold

    def on_algorithm_init(self, trainer: Any) -> None:
        """Refuses policies that a file cannot hold, before anything is compiled.

        Those that do not learn, such as random ones, are left out instead.
        """
        algorithm, trained = trainer.algorithm, trainer.config.setup().trained
        for group, policy_spec in zip(
            algorithm.grouping.groups, algorithm.policy_specs, strict=True
        ):
            try:
                self._build(policy_spec, algorithm.rollout_spec.masked)
            except UsageError as error:
                for policy in group.policies:
                    if policy in trained:
                        line = f"policy {policy!r} cannot be exported with its checkpoints: {error}"
                        raise UsageError(line) from None
                self.left_out.update(group.policies)

    def _build(self, policy_spec: PolicySpec, masked: bool) -> None:
        params = policy_spec.model.init(jax.random.key(0))
        weights = PolicyWeights(params, policy_spec.initial_filter())
        build_file(PolicyStep(policy_spec, weights, masked=masked, explore=False), self.ending)

    def on_checkpoint(self, trainer: Any, path: Path) -> None:
        try:
            saved = checkpoint.read(path)
            (path / POLICIES).mkdir(exist_ok=True)
            for name in saved.facts[POLICIES].keys() - self.left_out:
                policy = policy_of(saved, name, trainer.config)
                policy.origin = None  # compared on drawn observations: no episode is played for it
                export_policy(policy, file_of(path, name, self.ending))
        except (OSError, UsageError) as error:
            if path.is_dir():  # else it was removed meanwhile: `keep` newer ones are there
                log.warning("%s: its policies are not exported: %s", path, one_line(error))


def file_of(path: Path, policy: str, ending: str) -> Path:
    """The file of a policy in the checkpoint at `path`; "/" in its name makes no folder."""
    return path / POLICIES / f"{quote(policy, safe='')}{ending}"
