"""Behaviour cloning, and MARWIL: cloning weighted by advantage."""

import functools

from jaxrl.algorithms.base import Algorithm, HeadlineMetric
from jaxrl.algorithms.bc.config import BCConfig, MARWILConfig
from jaxrl.algorithms.bc.summary import describe
from jaxrl.algorithms.bc.update import BCSpec, init_learner, update_policy
from jaxrl.algorithms.offline import offline
from jaxrl.core.errors import UsageError
from jaxrl.core.types import PolicyId
from jaxrl.models.policy_spec import PolicySpec

LOG_PROB = HeadlineMetric(
    "log_prob", "log-probability of the recorded actions", label="logp", form=".3f", linear=True
)
ENTROPY = HeadlineMetric("entropy", "entropy, nats", label="entropy", form=".2f", linear=True)
VF_LOSS = HeadlineMetric("vf_loss", "value loss")


def make_bc(config: BCConfig, *, axis_name: str | None = None) -> Algorithm:
    """Behaviour cloning of the configuration's policies; see `offline`.

    Args:
        axis_name: must be None; it trains on one device.
    """
    return offline(
        config,
        init_learner,
        update_policy,
        learner_spec=functools.partial(_spec, False),
        headline_metrics=(LOG_PROB, ENTROPY),
        root_cause_metrics=("log_prob", "policy_loss"),
        describe=describe,
    )


def make_marwil(config: MARWILConfig, *, axis_name: str | None = None) -> Algorithm:
    """MARWIL of the configuration's policies; as `make_bc`."""
    return offline(
        config,
        init_learner,
        update_policy,
        learner_spec=functools.partial(_spec, True),
        gamma=config.gamma,
        headline_metrics=(LOG_PROB, ENTROPY, VF_LOSS),
        root_cause_metrics=("vf_loss", "log_prob", "policy_loss"),
        describe=describe,
    )


def _spec(is_weighted: bool, policy: PolicyId, policy_spec: PolicySpec, trained: bool) -> BCSpec:
    if trained and policy_spec.has_memory:
        raise UsageError(
            "learning from recorded episodes takes no memory yet, and the model of policy "
            f"{policy!r} has one"
        )
    return BCSpec(policy_spec, trained, is_weighted=is_weighted)
