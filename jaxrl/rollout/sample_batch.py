"""`SampleBatch`: the trajectory that hooks get, which answers to RLlib's names for its columns."""

from typing import Any, NoReturn

from jaxrl.core.errors import AnswersOtherWords, UsageError, brief, unknown_name
from jaxrl.core.fields import field_names, field_values, only
from jaxrl.core.types import PyTree
from jaxrl.rollout.steps import Steps, Trajectory


class SampleBatch(Trajectory, AnswersOtherWords):
    """A trajectory [T, E, M, ...]: `batch["rewards"]` is `batch.reward`, and so on."""

    @classmethod
    def of(cls, trajectory: Steps) -> "SampleBatch":
        """The same steps as a batch."""
        return cls(**field_values(trajectory))

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

        columns, named = field_values(self), names_of("RLlib", f"{CALLS} SampleBatch")
        found = named.get(name) or Counterpart(str(name))
        if found.here and found.here not in columns:
            raise unknown_name("column", name, columns, "of a trajectory")
        value = columns.get(found.here)
        if value is None and found.here == "log_prob":
            value = self.distribution.log_prob(self.action)
        if value is None:
            notes = [other.note for other in named.values() if other.here == found.here]
            why = found.note or next(iter(notes), "nothing of it is kept")
            raise UsageError(f"this trajectory has no {brief(name)}: {why}")
        return value

    def __setitem__(self, name: Any, value: Any) -> NoReturn:
        raise UsageError(
            "a trajectory is not changed in place: return trajectory.replace(reward=...) from the "
            "hook (docs/reward-shaping.md)"
        )


def as_trajectory(after: PyTree, before: Steps) -> PyTree:
    """The value that a hook returned; a batch becomes of the class of what is learned from."""
    if isinstance(after, SampleBatch):
        return type(before)(**only(field_values(after), field_names(before)))
    return after
