"""The weights of policies in checkpoints."""

import functools

import jax

from jaxrl.core.types import PolicyId
from jaxrl.models.policy_spec import PolicySpec, PolicyWeights
from jaxrl.run.storage.checkpoint import Checkpoint, filled


def saved_weights(saved: Checkpoint, policy: PolicyId, policy_spec: PolicySpec) -> PolicyWeights:
    """The weights of a policy that the checkpoint has.

    Raises:
        UsageError: they are of other shapes than the policy's.
    """
    what = f"policy {policy!r} of checkpoint {saved.path}"
    return filled(_shapes(policy_spec), saved.arrays, f"weights.{policy}", what)


@functools.lru_cache(maxsize=64)
def _shapes(policy_spec: PolicySpec) -> PolicyWeights:
    """The shapes of a policy's weights; nothing is computed."""
    return jax.eval_shape(
        lambda: PolicyWeights(
            policy_spec.model.init(jax.random.key(0)), policy_spec.initial_filter()
        )
    )
