"""The model card of a published run: README.md, with the front matter that Hugging Face reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxrl.core.plan import Line, laid_out
from jaxrl.offline.bootstrap import Sums, bootstrap_interval, resample
from jaxrl.run.results import ITERATIONS, Result
from jaxrl.run.stopping import LIFETIME_STEPS

LIBRARY = "jaxrl"
LONGEST_VALUE = 120  # characters of a setting; config.json has it whole
EVALUATED = "likeliest actions"


@dataclass(frozen=True)
class MeanReturn:
    """The mean return of whole episodes, with a 95 % bootstrap interval (BCa)."""

    value: float
    low: float
    high: float
    episodes: int

    @classmethod
    def of(cls, returns: Sequence[float]) -> "MeanReturn | None":
        """The mean of these returns; of one episode without an interval, of none None."""
        if not returns:
            return None
        mean = float(np.mean(returns))
        if len(returns) < 2:
            return cls(mean, mean, mean, len(returns))
        column = np.asarray(returns, np.float64)[:, None]
        sums = Sums(column, np.ones_like(column))
        low, high = bootstrap_interval(sums, resample({"mean": sums})["mean"])
        return cls(mean, low, high, len(returns))

    def __str__(self) -> str:
        number = f"{self.episodes:,} episode{'' if self.episodes == 1 else 's'}"
        if self.episodes < 2:
            return f"{self.value:.2f}, of {number}"
        interval = f"95 % interval {self.low:.2f} to {self.high:.2f}"
        return f"{self.value:.2f} ({interval}), of {number}"


@dataclass(frozen=True)
class Card:
    """Everything that a model card says."""

    name: str  # what a reader loads, such as "hf:USER/NAME"
    env_name: str
    algorithm: str  # "PPO"
    plan: Sequence[Line]  # of the training, as its console begins
    settings: Mapping[str, Any]  # that differ from the defaults
    facts: Mapping[str, Any]  # of the run's folder
    result: Result  # of the checkpoint's iteration
    mean_return: MeanReturn | None
    agent_returns: Mapping[str, float]
    policies: Mapping[str, Sequence[str]]  # {policy: the files of its weights}
    files: Sequence[str]  # what else there is
    needs_trust: bool
    notes: Sequence[str]

    def __str__(self) -> str:
        parts = [self._front_matter(), self._beginning(), self._loading(), self._weights()]
        parts += [self._training(), self._versions()]
        return "\n\n".join(parts) + "\n"

    def _front_matter(self) -> str:
        """YAML; the texts in it are JSON's, which YAML reads."""
        env = json.dumps(self.env_name)
        lines = [
            "---",
            f"library_name: {LIBRARY}",
            "pipeline_tag: reinforcement-learning",
            "tags:",
            *(f"- {tag}" for tag in ("reinforcement-learning", "jax", LIBRARY)),
            f"- {json.dumps(self.algorithm.lower())}",
            f"- {env}",
        ]
        if self.mean_return is not None:
            lines += [
                "model-index:",
                f"- name: {json.dumps(self.algorithm)}",
                "  results:",
                "  - task:",
                "      type: reinforcement-learning",
                "      name: reinforcement-learning",
                "    dataset:",
                f"      type: {env}",
                f"      name: {env}",
                "    metrics:",
                "    - type: mean_reward",
                f"      name: {json.dumps(f'mean return: {self.mean_return}')}",
                f"      value: {self.mean_return.value:.4f}",
                "      verified: false",
            ]
        return "\n".join([*lines, "---"])

    def _beginning(self) -> str:
        steps = self.result[LIFETIME_STEPS[0]]
        trained = f"{self.result[ITERATIONS]:,} iterations, {steps:,} environment steps"
        number = "a policy" if len(self.policies) == 1 else f"{len(self.policies)} policies"
        lines = [
            f"# {self.env_name}: {number} trained with {self.algorithm}",
            "",
            f"Trained by jaxrl for {trained}.",
            "",
        ]
        if self.mean_return is not None:
            lines.append(f"- **mean return: {self.mean_return}**, {EVALUATED}")
        else:
            lines.append("- no evaluated episode ended, so there is no return")
        if len(self.agent_returns) > 1:
            for agent, value in self.agent_returns.items():
                lines.append(f"- {_text(agent)}: {value:.2f}")
        if "report.html" in self.files:
            lines.append("- [report.html](report.html): an episode to play, and the curves")
        if "curves.png" in self.files:
            lines += ["", "![Learning curves](curves.png)"]
        return "\n".join(lines)

    def _loading(self) -> str:
        policy = next(iter(self.policies))
        trust = ", trust=True" if self.needs_trust else ""
        flag = " --trust" if self.needs_trust else ""
        lines = [
            "## Load",
            "",
            "```python",
            "import jaxrl",
            "",
            f"policy = jaxrl.load_policy({self.name!r}, {policy!r}{trust})",
            "action = policy.act(observation)",
            "```",
            "",
            "```bash",
            f"jaxrl evaluate {self.name} --episodes 100{flag}",
            "```",
        ]
        if self.needs_trust:
            lines += [
                "",
                "The run names code that is not part of jaxrl. `trust` imports it, which runs it: "
                "read it first.",
            ]
        return "\n".join(lines)

    def _weights(self) -> str:
        lines = ["## Files", "", "| file | |", "|---|---|"]
        kinds = {
            ".safetensors": "all parameters, by name",
            ".npz": "the policy for NumPy alone: `jaxrl/export/numpy_policy.py` acts with it",
            ".onnx": "the policy for onnxruntime",
        }
        for policy, files in self.policies.items():
            for file in files:
                ending = file[file.rindex(".") :]
                lines.append(f"| `{file}` | {_text(policy)}: {kinds[ending]} |")
        lines.append("| `config.json`, `metadata.json`, `checkpoints/` | what jaxrl loads |")
        if self.notes:
            lines += ["", *(f"- {_text(note)}" for note in self.notes)]
        return "\n".join(lines)

    def _training(self) -> str:
        lines = ["## Training", "", "```text", laid_out(self.plan), "```", ""]
        lines += ["Settings that differ from the defaults:", "", "| setting | value |", "|---|---|"]
        for name, value in self.settings.items():
            shown = str(value)
            if len(shown) > LONGEST_VALUE:
                shown = f"{shown[: LONGEST_VALUE - 1]}…"
            lines.append(f"| `{name}` | {_text(shown)} |")
        return "\n".join(lines)

    def _versions(self) -> str:
        versions = self.facts["versions"].items()
        parts = [f"{name} {version}" for name, version in versions]
        parts.append(f"trained on {self.facts.get('device', 'an unknown device')}")
        if commit := self.facts.get("commit"):
            parts.append(f"commit {commit[:12]}")
        return "## Versions\n\n" + ", ".join(parts) + "."


def _text(text: str) -> str:
    """A text that Markdown shows as it is, in a cell of a table too."""
    escaped = text.replace("\\", "\\\\")
    for character in "|`*_<[":
        escaped = escaped.replace(character, f"\\{character}")
    return " ".join(escaped.split())
