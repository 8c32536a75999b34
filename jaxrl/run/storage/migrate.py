"""Former forms of what the folders of runs and sweeps hold, read as if they were written today.

No other module knows a former form. What reads a file calls one of these functions on it, once.
Nothing is imported here for a name in a file, and nothing is checked: a value of no known form
stays as it is, for the checks that follow. Checkpoints say their format, from 1 to 5; the form of
other files is told by what they hold.
"""

import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

NUM_SEEDS = 2**32
MODULES = {
    "jaxrl.ppo.config": "jaxrl.algorithms.ppo.config",
    "jaxrl.models.cell_memory": "jaxrl.envs.networks.cell_memory",
    "jaxrl.models.ray_network": "jaxrl.envs.networks.ray_network",
    "jaxrl.models.rotation_network": "jaxrl.envs.networks.rotation_network",
}
ENVIRONMENTS = (  # that were not in `jaxrl` yet
    *("envs.arena:MultiAgentArena", "envs.cartpole:CartPole"),
    *("envs.pursuit:Pursuit", "envs.waterworld:Waterworld"),
)
NAMING = {"config_class", "env_name", "config", "trials"}  # the facts that hold names of modules
LATER_FACTS = {  # with what was true of runs whose files do not say
    "action_masks": False,
    "num_processes": 1,
    "opponents_of": None,
    "panels": [  # all runs were PPO's
        ["mean_kl_loss", "KL divergence of an update, nats", "kl_target", False],
        ["entropy", "entropy, nats", "", True],
        ["vf_loss", "value loss", "", False],
    ],
}
LATER_RUN_SETTINGS = {"devices": 1, "evaluation_max_steps": 1_000_000}
LATER_PLAN = {"scheduler": None, "search": None, "named_by_settings": False, "mode": "max"}
LATER_COUNTS = {"num_agent_steps": None, "num_module_steps_trained": None}
PARTS = {  # of the state, before format 3
    "runner.worlds.running": "runner.envs.episodes",
    "runner.worlds.data": "runner.envs.callback_data",
    "runner.worlds.memory": "runner.envs.policy_states",
    "runner.worlds": "runner.envs",
}
# Parts of the environments' state, before format 4; those of populations are of a `state`.
FEATURES = re.compile(
    r"^((?:state\.)?runner\.envs)\.(callback_data|opponents|present|returns|unfinished)\b"
)
# Counts and sums that began at 0: agents' steps in their episodes (format 2) and what rounding has
# left out of sums.
FROM_ZERO = re.compile(
    r"\b(envs|window)\.episodes\.(agent_steps$|lower\.)|\benvs\.state\.(.*\.)?returns_lower$"
)
JOINED = ".layers.first.kernel"  # of the arena's networks


def present_facts(facts: Any) -> Any:
    """The contents of the JSON files of a run or of a checkpoint, in today's form."""
    if not isinstance(facts, dict) or "config_class" not in facts:  # those of a part of a sweep
        return _with_present_members(_present_names(facts))
    facts = {**LATER_FACTS, **_with_present_config(facts)}
    if isinstance(facts.get("run_settings"), dict):
        facts["run_settings"] = {**LATER_RUN_SETTINGS, **facts["run_settings"]}
        _keep_in_32_bits(facts["run_settings"], "evaluation_seed")
    if "callbacks" in facts:  # the one hook with a state then
        facts["hooks"] = {"callbacks": facts.pop("callbacks")}
    return _with_later_counts(facts)


def present_plan(plan: Any) -> Any:
    """The contents of a sweep's file, in today's form."""
    return {**LATER_PLAN, **_with_present_config(plan)} if isinstance(plan, dict) else plan


def present_row(row: Any) -> Any:
    """A line of a sweep's results: the trial's settings are among them."""
    return _present_names(row)


def present_block(facts: Any) -> Any:
    """The contents of the file of a block of trials, in today's form."""
    if not isinstance(facts, dict) or not isinstance(facts.get("lifetimes"), list):
        return facts
    return {"ended": [False] * len(facts["lifetimes"]), **facts}


def present_arrays(arrays: Mapping[str, np.ndarray], format: int) -> dict[str, np.ndarray]:
    """A checkpoint's arrays by the names that its parts have today."""
    if format < 3:
        arrays = {_present_part(name): array for name, array in arrays.items()}
    if format < 4:
        arrays = {FEATURES.sub(_in_features, name): array for name, array in arrays.items()}
    return dict(arrays)


def with_joined_layers(
    arrays: Mapping[str, np.ndarray], names: Iterable[str]
) -> dict[str, np.ndarray]:
    """Arrays by name, with the arena's networks in today's form where `names` has them so.

    Until format 4 their policy and value had a first layer and three tables of places each.
    """
    arrays = dict(arrays)
    for network in (name.removesuffix(JOINED) for name in names if name.endswith(JOINED)):
        parts = [name for name in arrays if name.startswith(f"{network}.")]
        layers = {name.removeprefix(f"{network}."): arrays[name] for name in parts}
        for number in (2, 3):  # of dense layers: CellPair, and CellMemory, which reads numbers too
            if layers.keys() == _apart(number):
                for name in parts:
                    del arrays[name]
                joined = _joined(layers, number)
                arrays |= {f"{network}.layers.{name}": array for name, array in joined.items()}
    return arrays


def _apart(number: int) -> set[str]:
    """The names of the former parts of a network with `number` dense layers for each output."""
    dense = [f"Dense_{i}.{part}" for i in range(2 * number) for part in ("kernel", "bias")]
    return {*dense, *(f"Embed_{i}.embedding" for i in range(6))}


def _joined(layers: Mapping[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    """The layers of such a network by their names today."""
    joined, halves = {}, {"first.kernel": [], "first.bias": []}
    for output, part in enumerate(("policy", "value")):
        kernels = [layers[f"Embed_{i}.embedding"] for i in range(3 * output, 3 * output + 3)]
        *reading, hidden, last = (f"Dense_{i + number * output}" for i in range(number))
        for layer in reading:
            kernels.insert(0, layers[f"{layer}.kernel"])
            halves["first.bias"].append(layers[f"{layer}.bias"])
        halves["first.kernel"].append(np.concatenate(kernels, axis=-2))
        for i, layer in enumerate((hidden, last)):
            joined[f"{part}.{i}.kernel"] = layers[f"{layer}.kernel"]
            joined[f"{part}.{i}.bias"] = layers[f"{layer}.bias"]
    for name, both in halves.items():
        if both:
            joined[name] = np.concatenate(both, axis=-1)
    return joined


def value_of_later(name: str, leaf: Any) -> Any:
    """The value of a part of the state that came later than a checkpoint; None if none came later.

    Args:
        leaf: the array in its place, or for what began at 0 only its shape.
    """
    if FROM_ZERO.search(name):
        return np.zeros(leaf.shape, leaf.dtype)
    return leaf if name.startswith("hypers.") else None  # a default, which changes nothing


def _with_present_members(facts: Any) -> Any:
    """The facts of a population's checkpoint, with those of each of its members."""
    if not isinstance(facts, dict) or not isinstance(facts.get("members"), list):
        return facts
    return {**facts, "members": [_with_later_counts(member) for member in facts["members"]]}


def _with_later_counts(facts: Any) -> Any:
    """Facts in whose lifetime nothing is missing that is counted today."""
    if not isinstance(facts, dict) or not isinstance(facts.get("lifetime"), dict):
        return facts
    return {**facts, "lifetime": {**LATER_COUNTS, **facts["lifetime"]}}


def _with_present_config(facts: dict[str, Any]) -> dict[str, Any]:
    """A copy of what is said of a configuration and its class."""
    named = {name: _present_names(facts[name]) for name in NAMING & facts.keys()}
    facts = {**facts, **named}
    if not isinstance(facts.get("config"), dict):
        return facts
    config = facts["config"]
    if "conv_channels" not in config:  # today's names of this form are the user's own
        for settings, name in ((facts, "env_name"), (config, "env")):
            if settings.get(name) in ENVIRONMENTS and not _is_users_own(settings[name]):
                settings[name] = f"jaxrl.{settings[name]}"
    _keep_in_32_bits(config, "seed")
    if {"conv_filters", "conv_activation"} <= config.keys():  # all networks read images so
        config.setdefault("conv_channels", "last")
    return facts


def _is_users_own(name: str) -> bool:
    """Returns whether an old "module:Name" names a user's module, not ours; imports neither."""
    package, _, module = name.partition(":")[0].partition(".")
    spec = importlib.util.find_spec(package)
    places = map(Path, () if spec is None else spec.submodule_search_locations or ())
    files = (file for place in places for file in (place / module, place / f"{module}.py"))
    found = next(filter(Path.exists, files), None)
    present = Path(importlib.util.find_spec(f"jaxrl.{package}.{module}").origin)
    return found is not None and found.resolve() != present.resolve()


def _present_names(value: Any) -> Any:
    """A copy in which every "module:Name", however deep, has the module's name today."""
    if isinstance(value, dict):
        return {name: _present_names(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_present_names(part) for part in value]
    module, colon, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
    return f"{MODULES[module]}:{rest}" if colon and module in MODULES else value


def _present_part(name: str) -> str:
    """The name in format 3 of an array of format 1 or 2."""
    for former, present in PARTS.items():
        if name.startswith(f"{former}."):
            name = present + name.removeprefix(former)
    return re.sub(r"(\.unfinished\.\d+\.row)\.context\b", r"\1.inputs", name)


def _in_features(part: re.Match) -> str:
    """The place of a part of the environments' state among the features' slices."""
    envs, name = part.groups()
    return f"{envs}.features.{'callbacks' if name == 'callback_data' else name}"


def _keep_in_32_bits(settings: dict[str, Any], name: str) -> None:
    """Has a seed that is larger than one may be now as JAX read it."""
    if type(settings.get(name)) is int:
        settings[name] %= NUM_SEEDS
