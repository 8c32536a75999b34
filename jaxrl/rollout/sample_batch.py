"""`SampleBatch`: the trajectory that hooks get, which answers to RLlib's names for its columns."""

from typing import Any, NoReturn

import jax

from jaxrl.core.errors import AnswersOtherWords, UsageError, brief, unknown_name
from jaxrl.core.types import PyTree
from jaxrl.rollout.steps import Steps, Trajectory


class SampleBatch(Trajectory, AnswersOtherWords):
    """A trajectory [T, E, M, ...]: `batch["rewards"]` is `batch.reward`, and so on."""

    @classmethod
    def of(cls, trajectory: Steps) -> "SampleBatch":
        """The same steps as a batch."""
        return cls(**vars(trajectory))

    @property
    def count(self) -> int:
        """Number of rows, T * E * M; those in which an agent waited are among them."""
        return self.reward.size

    def __getitem__(self, name: str) -> PyTree:
        """A column by its name here or by RLlib's.

        Raises:
            UsageError: there is no such column, or this batch has none.
        """
        from jaxrl.core.foreign_names import CALLS, Counterpart, names_of

        text = name if isinstance(name, str) else brief(name)
        columns, named = list(vars(self)), names_of("RLlib", f"{CALLS} SampleBatch")
        found = named.get(text, Counterpart(text))
        if found.here and found.here not in columns:
            raise unknown_name("column", text, columns, "of a trajectory")
        if found.here == "log_prob":
            return self._log_prob()
        value = getattr(self, found.here) if found.here else None
        if value is None:
            notes = [other.note for other in named.values() if other.here == found.here]
            why = found.note or next(iter(notes), "nothing of it is kept")
            raise UsageError(f"this trajectory has no {text!r}: {why}")
        return value

    def _log_prob(self) -> jax.Array:
        """f32[T, E, M]"""
        return self.distribution.log_prob(self.action) if self.log_prob is None else self.log_prob

    def __setitem__(self, name: Any, value: Any) -> NoReturn:
        raise UsageError(
            "a trajectory is not changed in place: return trajectory.replace(reward=...) from the "
            "hook (docs/reward-shaping.md)"
        )


def as_trajectory(after: PyTree, before: Steps) -> PyTree:
    """A hook's answer, of the class of what is learned from."""
    return type(before)(**vars(after)) if isinstance(after, SampleBatch) else after
