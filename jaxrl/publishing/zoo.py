"""A zoo: for each environment several seeds of one training, and the best policy published.

FOLDER/seeds/NAME   a sweep over seeds; `RETURNS` in the folder of each trial
FOLDER/NAME         the publication of the seed with the highest return
"""

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxrl.algorithms.config import AlgorithmConfig
from jaxrl.core.errors import UsageError, one_line
from jaxrl.core.fields import count, file_path, flag, takes
from jaxrl.core.json_text import read_json
from jaxrl.core.plan import labelled
from jaxrl.play.load import evaluate
from jaxrl.publishing.publish import EPISODES, checked_target, publish
from jaxrl.run.logging.console import print_answer
from jaxrl.run.logging.statistics import Estimate, spread
from jaxrl.run.results import RETURN, lookup
from jaxrl.run.storage import hub, own_files
from jaxrl.run.storage.config_file import read_config
from jaxrl.run.storage.forms import NUMBER, problem_of
from jaxrl.run.storage.hub import MARK
from jaxrl.run.storage.run_folder import folder_name
from jaxrl.run.storage.runs import PLAN
from jaxrl.sweeps.outcomes import TrialResult
from jaxrl.sweeps.results import Sweep, aligned
from jaxrl.sweeps.saved_sweep import read_plan
from jaxrl.sweeps.sweep import resume_sweep, sweep
from jaxrl.sweeps.trials import held_outside

ZOO, SEEDS = "zoo", 5
SWEEPS, RETURNS = "seeds", "returns.json"
FORM = {"env": str, "seed": int, "env_steps": int, "seconds": NUMBER, "episodes": int}
FORM |= {"likeliest": NUMBER, "sampled": NUMBER}
TITLES = ["environment", "steps", "minutes", "seeds", "sampled", "from ... to"]
TITLES += ["likeliest", "from ... to", "policy"]


@dataclass(frozen=True)
class SeedReturns:
    """The mean returns of whole episodes that the last policy of a seed plays."""

    env: str
    seed: int
    env_steps: int  # of its training
    seconds: float  # of its training, without compiling
    episodes: int
    likeliest: float  # with the likeliest actions
    sampled: float


@dataclass(frozen=True)
class Exhibit:
    """An environment of a zoo.

    Attributes:
        folder: the published policy, for `jaxrl.load_policy`.
    """

    seeds: tuple[SeedReturns, ...]
    folder: Path

    @property
    def env(self) -> str:
        return self.seeds[0].env

    @property
    def env_steps(self) -> int:
        return max(seed.env_steps for seed in self.seeds)

    @property
    def minutes(self) -> float:
        """The median, over the seeds, of one training without compiling."""
        return statistics.median(seed.seconds for seed in self.seeds) / 60

    @property
    def likeliest(self) -> tuple[Estimate, str]:
        """(the interquartile mean over the seeds, what its bounds are)."""
        return spread([seed.likeliest for seed in self.seeds])

    @property
    def sampled(self) -> tuple[Estimate, str]:
        return spread([seed.sampled for seed in self.seeds])

    @property
    def row(self) -> list[str]:
        """The cells under `TITLES`."""
        cells = [self.env, f"{self.env_steps:,}", f"{self.minutes:.1f}", str(len(self.seeds))]
        for estimate, _ in (self.sampled, self.likeliest):
            cells += [f"{estimate.value:.2f}", f"{estimate.low:.2f} ... {estimate.high:.2f}"]
        return [*cells, str(self.folder)]


@takes(
    folder=file_path("a folder's path"),
    seeds=count(2),
    episodes=count(),
    quiet=flag,
    trust=flag,
)
def add(
    config: AlgorithmConfig,
    folder: str | Path = ZOO,
    *,
    seeds: int = SEEDS,
    episodes: int = EPISODES,
    quiet: bool = False,
    trust: bool = False,
) -> Exhibit | None:
    """Trains several seeds, plays whole episodes with each, and publishes the best.

    What is there already is not done again: an interrupted call goes on.

    Args:
        config: of the training; its seed is the first one.
        folder: of the zoo.
        episodes: whole episodes of each seed, as many with the likeliest actions as with sampled.
        trust: import what a sweep that is there already names, though it is not jaxrl's or an
            installed plug-in's; see docs/loading.md.

    Returns:
        None where Ctrl-C came first.

    Raises:
        UsageError: the folder has another training of this environment, or cannot be written; a
            seed diverged before its first result, or ended no episode; the package safetensors is
            missing.
    """
    hub.require_hub("the zoo", "safetensors")
    name = folder_name(config.env_name)
    target, place = checked_target(Path(folder) / name), Path(folder) / SWEEPS / name
    trust = trust or not (place / PLAN).exists()  # what the caller trains now is the caller's
    swept = _sweep(config, place, seeds, quiet=quiet, trust=trust)
    if len(swept) < seeds:
        return None
    if not quiet:
        print_answer(
            labelled(
                "playing", f"{episodes:,} episodes of each seed, sampled and likeliest actions"
            )
        )
    found = Exhibit(tuple(_played(outcome, episodes, trust) for outcome in swept), target)
    best = max(zip(found.seeds, swept, strict=True), key=lambda pair: pair[0].sampled)[1]
    if not (target / MARK).exists():
        if not quiet:
            print_answer(labelled("publishing", f"{target}, seed {best.trial.config.seed}"))
        publish(best.folder, target, episodes=episodes, trust=trust)
    return found


def exhibits(folder: str | Path = ZOO) -> list[Exhibit]:
    """The exhibits of a zoo, by name; of a training that goes on, the seeds that are done.

    Raises:
        UsageError: it has nothing, or a file in it is damaged.
    """
    found: dict[str, list[SeedReturns]] = {}
    for file in sorted(Path(folder).glob(f"{SWEEPS}/*/trials/*/{RETURNS}")):
        found.setdefault(file.parents[2].name, []).append(_read(file))
    if not found:
        raise UsageError(f"{folder} is no zoo: there is no {SWEEPS}/NAME/trials/0000/{RETURNS}")
    return [Exhibit(tuple(seeds), Path(folder) / name) for name, seeds in found.items()]


def shown(found: list[Exhibit]) -> str:
    """A table for people."""
    kinds = sorted({exhibit.sampled[1] for exhibit in found})
    note = f"interquartile mean of the seeds' returns; from ... to: their {' or '.join(kinds)}"
    return f"{aligned([TITLES, *(exhibit.row for exhibit in found)])}\n{note}"


def _sweep(config: AlgorithmConfig, place: Path, seeds: int, *, quiet: bool, trust: bool) -> Sweep:
    """The sweep over the seeds, from where it was."""
    if not (place / PLAN).exists():
        # One at a time, as a user trains it: what a seed takes is what it takes alone. Trainings
        # outside JAX are separate runs anyway, and take no batch_size.
        batch_size = "auto" if held_outside([config]) else 1
        return sweep(config, seeds=seeds, batch_size=batch_size, run_dir=place, quiet=quiet)
    plan = read_plan(place)
    if len(plan["trials"]) != seeds or read_config(plan, "jaxrl zoo", trust=trust) != config:
        raise UsageError(
            f"{place} holds another training of {config.env_name}, or another number of seeds: "
            "remove it, or choose another folder"
        )
    return resume_sweep(place, quiet=quiet, trust=trust)


def _played(outcome: TrialResult, episodes: int, trust: bool) -> SeedReturns:
    """The returns of a seed; its policy plays once, and they are read again later."""
    file, config, result = outcome.folder / RETURNS, outcome.trial.config, outcome.result
    if file.exists() and (found := _read(file)).episodes == episodes:
        return found
    if result is None:
        raise UsageError(f"{outcome.folder} diverged before its first result: {outcome.reason}")
    means = []
    for explore in (False, True):
        played = evaluate(outcome.folder, episodes=episodes, explore=explore, trust=trust)
        means.append(lookup(played, RETURN))
    if None in means:
        raise UsageError(f"{outcome.folder}: no episode ended, see evaluation_max_steps")
    found = SeedReturns(
        *(config.env_name, config.seed, result["num_env_steps_sampled_lifetime"]),
        *(result["time_total_s"], episodes, *means),
    )
    own_files.write_text(file, json.dumps(asdict(found), indent=2) + "\n")
    return found


def _read(file: Path) -> SeedReturns:
    try:
        row = read_json(own_files.read_text(file))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {one_line(error)}") from None
    if problem := problem_of(row, FORM, file.name):
        raise UsageError(f"{file} is damaged: {problem}")
    return SeedReturns(**{name: row[name] for name in FORM})
