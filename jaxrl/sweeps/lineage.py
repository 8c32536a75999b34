"""Lineage of a population: which member copied which, and the numbers that each trained with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.core.errors import UsageError, brief
from jaxrl.run.storage import own_files
from jaxrl.run.storage.forms import Form, problem_of
from jaxrl.run.storage.json_lines import Damage, dumped, read_rows

LINEAGE = "lineage.jsonl"  # in a sweep's folder


class Takeover(NamedTuple):
    """A member became a copy of another one."""

    iteration: int  # after which
    source: int  # the number of the trial that was copied
    target: int  # of the one that is its copy
    settings: dict[str, Any]  # that the copy trains with

    def to_dict(self) -> dict[str, Any]:
        """A line of `lineage.jsonl`."""
        named = {"iteration": self.iteration, "from": self.source, "to": self.target}
        return {**named, "settings": self.settings}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Takeover":
        """A line that has the `FORM`."""
        return cls(saved["iteration"], saved["from"], saved["to"], saved["settings"])


FORM: Form = {"iteration": int, "from": int, "to": int, "settings": dict}


class Stretch(NamedTuple):
    """A part of a policy's training: one trial's, with one set of numbers."""

    begin: int  # iterations begin + 1 ... end
    end: int
    trial: int
    settings: dict[str, Any]


@dataclass
class Lineage:
    """All copies of a population-based training."""

    first: Sequence[Mapping[str, Any]]  # the settings that each trial began with
    takeovers: list[Takeover] = field(default_factory=list)  # in the order of their iterations

    def of(self, trial: int, end: int) -> list[Stretch]:
        """The training that led to a trial's policy at iteration `end`, from its beginning.

        It begins with another trial if the policy was copied.
        """
        stretches: list[Stretch] = []
        while True:
            copied = None
            for takeover in self.takeovers:
                if takeover.target == trial and takeover.iteration < end:
                    copied = takeover
            if copied is None:
                stretches.append(Stretch(0, end, trial, dict(self.first[trial])))
                return stretches[::-1]
            stretches.append(Stretch(copied.iteration, end, trial, copied.settings))
            trial, end = copied.source, copied.iteration

    def stretches(self, ends: Sequence[int]) -> list[Stretch]:
        """Every trial's training with each set of numbers, to its end in `ends`."""
        found = []
        for trial, end in enumerate(ends):
            begin, settings = 0, dict(self.first[trial])
            for takeover in self.takeovers:
                if takeover.target == trial:
                    found.append(Stretch(begin, takeover.iteration, trial, settings))
                    begin, settings = takeover.iteration, takeover.settings
            found.append(Stretch(begin, end, trial, settings))
        return found

    def write(self, folder: Path) -> None:
        """`lineage.jsonl`, a line for each copy."""
        lines = [f"{dumped(takeover.to_dict())}\n" for takeover in self.takeovers]
        own_files.write_text(folder / LINEAGE, "".join(lines))

    def read(self, folder: Path) -> None:
        """Takes over what `write` wrote; a damaged line is left out.

        Raises:
            UsageError: there is no file.
        """
        if not (folder / LINEAGE).exists():
            raise UsageError(f"sweep folder {folder} is damaged: {LINEAGE} is missing")
        damage = Damage(folder / LINEAGE)
        rows = read_rows(folder / LINEAGE, self._problem_of, damage)
        self.takeovers = list(map(Takeover.from_dict, rows))
        damage.say()

    def take_back(self, saved: Any) -> None:
        """Takes over the `Takeover.to_dict` of each copy.

        Raises:
            ValueError: one is none of this population.
        """
        if not isinstance(saved, list):
            raise ValueError("takeovers are a list")
        for row in saved:
            if problem := self._problem_of(row):
                raise ValueError(f"a takeover {problem}")
        self.takeovers = list(map(Takeover.from_dict, saved))

    def _problem_of(self, row: Any) -> str:
        """The fault of a line of the file; mostly empty."""
        if problem := problem_of(row, FORM, "the line"):
            return problem
        if not (row["iteration"] >= 0 and {row["from"], row["to"]} <= set(range(len(self.first)))):
            return f"is of {len(self.first)} members"
        names = row["settings"].keys()
        return "" if names == self.first[row["to"]].keys() else f"has settings {brief(list(names))}"
