"""`BCConfig` and `MARWILConfig`: the settings of learning from recorded episodes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from jaxrl.algorithms import validators
from jaxrl.algorithms.config import AlgorithmConfig, algorithm_config
from jaxrl.algorithms.validators import schedule
from jaxrl.core import words
from jaxrl.core.errors import UsageError, brief
from jaxrl.core.fields import as_count, count, number, setting
from jaxrl.core.types import PolicyId
from jaxrl.models.network_inputs import OWN

ITERATION = 4096  # steps, where `train_batch_size` is not given


def _of_words(name: str, texts: Sequence[str]) -> Any:
    return words.pairs(name, texts) if texts[0].startswith("{") else tuple(texts)


@words.written(_of_words, "DIR|minari:NAME|{DIR: SHARE}")
def _sources(name: str, value: Any) -> None:
    shares = [part[1] for part in value if isinstance(part, tuple) and len(part) == 2]
    sources = [part[0] for part in value] if shares and len(shares) == len(value) else value
    if not all(isinstance(source, str) and source for source in sources):
        raise UsageError(
            f"{name}={brief(value)} must name recorded episodes: a folder of them, minari:NAME, "
            "several, or a mapping {folder: share}"
        )
    if shares and "sampler" in sources:
        raise UsageError(f"{name}: nothing is played, so there is no 'sampler': name folders alone")
    for source, share in zip(sources, shares, strict=False):
        number(0, 1, open_low=True)(f"{name}[{source!r}]", share)
    if shares and not math.isclose(math.fsum(shares), 1, rel_tol=1e-6):
        raise UsageError(f"{name}: the shares must make 1 together, not {math.fsum(shares):g}")


def _as_sources(name: str, value: Any) -> tuple:
    """Paths as text, also those in pairs (folder, share)."""

    def as_text(source: Any) -> Any:
        if isinstance(source, tuple):
            return (*map(as_text, source[:1]), *source[1:])
        return source if isinstance(source, str | int | float | bool) else str(source)

    return tuple(map(as_text, validators.several(name, value)))


@algorithm_config
class BCConfig(AlgorithmConfig):
    """Behaviour cloning: each policy learns to do what its agents did in recorded episodes.

    It maximises the log-probability of the recorded actions. The environment says what policies
    see and do, and evaluates them; training does not play. What counts as environment steps
    (`total_env_steps`, `train_batch_size`) are steps drawn from the episodes, uniformly and with
    replacement, for each policy.
    """

    algorithm = "jaxrl.algorithms.bc.bc:make_bc"
    one_for_all = AlgorithmConfig.one_for_all | {"input", "minibatch_size"}
    is_offline = True
    run_defaults: ClassVar[Mapping[str, Any]] = {"evaluation_interval": 20}

    input: Any = setting(
        (),
        "recorded episodes to learn from: a folder of them, minari:NAME, several, or "
        "{folder: share of the steps}",
        _sources,
        read=_as_sources,
    )
    minibatch_size: int = setting(256, "steps of one gradient step", count())
    lr: Any = setting(
        1e-3, "learning rate, or a schedule [[step, value], ...]", schedule(), traced=True
    )
    grad_clip: float | None = setting(
        None,
        "bound of the gradient's global norm; None: no clipping",
        number(0, open_low=True, optional=True),
        traced=True,
    )

    @property
    def sources(self) -> list[tuple[str, float | None]]:
        """The sources of episodes, each with its share; None where all steps are drawn alike."""
        return [part if isinstance(part, tuple) else (part, None) for part in self.input]

    def check_policy(self, policy: PolicyId, num_agents: int) -> None:
        if not self.input:
            raise UsageError(
                "input is missing: a folder of recorded episodes, such as --output or "
                "jaxrl.episodes.EpisodeWriter writes, or minari:NAME"
            )

    @staticmethod
    def sizes(chosen: Mapping[str, int], tuned: Mapping[str, int]) -> dict[str, int]:
        """`train_batch_size` as given; the other two count environments, which it does not have."""
        chosen = {name: as_count(size) for name, size in chosen.items()}
        for name, size in chosen.items():
            count()(name, size)
        before = tuned["train_batch_size"] if tuned["num_envs"] == 1 else ITERATION
        batch = chosen.get("train_batch_size", chosen.get("rollout_length", before))
        sizes = {"num_envs": 1, "rollout_length": batch, "train_batch_size": batch}
        for name, size in chosen.items():
            if size != sizes[name]:
                raise UsageError(
                    f"{name}={size}: it learns from recorded episodes and plays none, so "
                    "train_batch_size alone says how many steps an iteration draws"
                )
        return sizes

    def check_together(self) -> None:
        if self.train_batch_size % self.minibatch_size:
            raise UsageError(
                f"train_batch_size={self.train_batch_size} is no multiple of "
                f"minibatch_size={self.minibatch_size}"
            )
        if self.use_lstm or self.use_gru or self.use_attention:
            raise UsageError(
                "learning from recorded episodes takes no memory yet: use_lstm, use_gru and "
                "use_attention must be False"
            )
        if self.critic_observation != OWN:
            raise UsageError(
                f"critic_observation={self.critic_observation!r}: recorded episodes hold the "
                f"agents' own observations alone; allowed is {OWN!r}"
            )


@algorithm_config
class MARWILConfig(BCConfig):
    """MARWIL: behaviour cloning that imitates what went well more than what did not.

    Monotonic advantage re-weighted imitation learning (Wang et al. 2018): the log-probability of
    an action is weighted by exp(beta A / c). A is the recorded return minus the value that is
    learned beside the policy, and c^2 a moving average of A^2. Weights are at most 20.
    """

    algorithm = "jaxrl.algorithms.bc.bc:make_marwil"
    one_for_all = BCConfig.one_for_all | {"gamma"}

    beta: float = setting(
        1.0, "how much better actions are preferred; 0: plain cloning", number(0), traced=True
    )
    vf_coeff: float = setting(1.0, "weight of the value loss", number(0), traced=True)
    moving_average_sqd_adv_norm_update_rate: float = setting(
        0.01,
        "share of the newest minibatch in the moving average of the squared advantage",
        number(0, 1, open_low=True),
        traced=True,
    )
    gamma: float = setting(0.99, "discount of the recorded returns", number(0, 1))
