"""Former names of public modules, attributes and methods, which warn and work for one version.

Runs and checkpoints of earlier versions have these names too; reading them gives no warning.
"""

import importlib
import importlib.abc
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "jaxrl.core.quick": "jaxrl.core.fast_prng",
    "jaxrl.core.settings": "jaxrl.core.fields",
    "jaxrl.core.testing": "jaxrl.core.env_checker",
    "jaxrl.loop": "jaxrl.rollout",
    "jaxrl.loop.callbacks": "jaxrl.rollout.episode_callbacks",
    "jaxrl.loop.rollout": "jaxrl.rollout.rollout",
    "jaxrl.loop.runner": "jaxrl.algorithms.base",
    "jaxrl.models.cell_memory": "jaxrl.envs.networks.cell_memory",
    "jaxrl.models.memory": "jaxrl.models.recurrent_network",
    "jaxrl.models.player": "jaxrl.models.policy_spec",
    "jaxrl.models.ray_network": "jaxrl.envs.networks.ray_network",
    "jaxrl.models.recurrent": "jaxrl.models.cells",
    "jaxrl.models.rotation_network": "jaxrl.envs.networks.rotation_network",
    "jaxrl.ops.filters": "jaxrl.ops.running_stats",
    "jaxrl.ppo": "jaxrl.algorithms.ppo",
    "jaxrl.ppo.algorithm": "jaxrl.algorithms.ppo.ppo",
    "jaxrl.ppo.config": "jaxrl.algorithms.ppo.config",
    "jaxrl.ppo.hypers": "jaxrl.algorithms.ppo.hypers",
    "jaxrl.ppo.train": "jaxrl.algorithms.ppo.ppo",
    "jaxrl.run.evaluate": "jaxrl.run.inference.evaluate",
    "jaxrl.run.loggers": "jaxrl.run.logging.loggers",
    "jaxrl.run.policy": "jaxrl.run.inference.policy",
}
NAMES = {
    "jaxrl.core.quick": {"quick": "to_fast_key", "ordinary": "to_standard_key"},
    "jaxrl.loop.runner": {"Runner": "RunnerState"},
    "jaxrl.models.player": {"Player": "PolicySpec", "Weights": "PolicyWeights"},
    "jaxrl.ops.filters": {"Moments": "RunningMeanStd"},
}


class FormerModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `MODULES` by their former names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MODULES:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in MODULES)
        return importlib.util.spec_from_loader(fullname, self, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _FormerModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _FormerModule(ModuleType):
    """A module whose attributes are those of the module that has taken its place."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = MODULES[self.__name__]
        present = NAMES.get(self.__name__, {}).get(name, name)
        _warn(f"{self.__name__}.{name}", f"{module}.{present}")
        return getattr(importlib.import_module(module), present)


def find_former_modules() -> None:
    """Makes the former names importable."""
    if not any(isinstance(finder, FormerModules) for finder in sys.meta_path):
        sys.meta_path.append(FormerModules())


def former_attribute(former: str, present: str) -> Any:
    """A property for a class: reads the attribute `present` by its `former` name."""

    def read(instance: Any) -> Any:
        _warn(f"{type(instance).__name__}.{former}", present)
        return getattr(instance, present)

    return property(read)


def former_method(former: str, module: str) -> Callable[..., Any]:
    """A method for a class: calls the function of this name in `module`, which takes its place."""

    def call(instance: Any, *arguments: Any) -> Any:
        _warn(f"{type(instance).__name__}.{former}", f"{module}.{former}")
        return getattr(importlib.import_module(module), former)(instance, *arguments)

    return call


def former_functions(former_module: str, **modules: str) -> Callable[[str], Any]:
    """A module's `__getattr__`, for functions {name: module} that have moved to other modules."""

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {former_module!r} has no attribute {name!r}")
        _warn(f"{former_module}.{name}", f"{modules[name]}.{name}")
        return getattr(importlib.import_module(modules[name]), name)

    return find


def _warn(former: str, present: str) -> None:
    """Called by what the user's access calls, so that the warning names the user's line."""
    text = f"{former} is now {present}; the former name will be removed"
    warnings.warn(text, FutureWarning, stacklevel=3)
