"""Generators of random numbers that a process shares: those of Python, NumPy and PyTorch.

An environment that draws from them would play otherwise in each run, whatever the seed. So each
copy has generators of its own in their place while it plays, seeded by its episode's seed, and the
process has its own back afterwards. That takes up to 20 us a step. It ends after the first steps
of copies that have drawn nothing. This module must not import JAX.
"""

import contextlib
import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from jaxrl.outside.workers.family import in_one_process

WATCHED_STEPS = 64  # of all copies of a stepper together
_swapping = threading.RLock()  # evaluation may step in another thread than training


class Generator(Protocol):
    """A generator that the process shares."""

    def is_loaded(self) -> bool:
        """Returns whether code of this process can draw from it."""

    def get(self) -> Any:
        """The generator's state."""

    def set(self, state: Any) -> None:
        """Continues from a state that `get` gave."""

    def seed(self, seed: int) -> None:
        """Begins as the library's own function does with a seed."""

    def fingerprint(self) -> Any:
        """A value that is another one after a draw."""

    def preserved(self) -> Callable[[], None]:
        """A function that restores the present state."""


class _Python:
    """The generator of the module `random`."""

    def __init__(self):
        self.get = self.fingerprint = random.getstate
        self.set, self.seed = random.setstate, random.seed

    def is_loaded(self) -> bool:
        return True

    def preserved(self) -> Callable[[], None]:
        state = self.get()
        return lambda: self.set(state)


class _NumPy:
    """NumPy's generator, whose source of bits is exchanged: reading its state takes 60 us.

    A second normal number that NumPy has drawn in advance is forgotten by that.
    """

    def __init__(self):
        self.get, self.set = np.random.get_bit_generator, np.random.set_bit_generator

    def is_loaded(self) -> bool:
        return True

    def seed(self, seed: int) -> None:
        np.random.set_bit_generator(np.random.MT19937())  # the one before stays as it is
        np.random.seed(seed)

    def fingerprint(self) -> Any:
        return pickle.dumps(np.random.get_state(legacy=False))

    def preserved(self) -> Callable[[], None]:
        bits, state = self.get(), np.random.get_state(legacy=False)

        def bring_back():
            self.set(bits)
            if state["has_gauss"]:
                np.random.set_state(state)

        return bring_back


class _Torch:
    """PyTorch's generator of the CPU."""

    def is_loaded(self) -> bool:
        module = sys.modules.get("torch")
        if not hasattr(module, "default_generator"):
            return False
        # Another thread may be importing it, as TensorBoard's writer does: it crashes until then.
        return not getattr(module.__spec__, "_initializing", False)

    def get(self) -> Any:
        return sys.modules["torch"].default_generator.get_state()

    def set(self, state: Any) -> None:
        sys.modules["torch"].default_generator.set_state(state)

    def seed(self, seed: int) -> None:
        sys.modules["torch"].default_generator.manual_seed(seed)

    def fingerprint(self) -> Any:
        return self.get().numpy().tobytes()

    def preserved(self) -> Callable[[], None]:
        state = self.get()
        return lambda: self.set(state)


GENERATORS: tuple[Generator, ...] = (_Python(), _NumPy(), _Torch())


def loaded() -> list[Generator]:
    return [generator for generator in GENERATORS if generator.is_loaded()]


def seed_process(seed: int) -> None:
    """Seeds the generators of a process that has no other program than its copies."""
    for generator in loaded():
        generator.seed(seed)


@contextlib.contextmanager
def preserved(generators: list[Generator] | None = None) -> Iterator[None]:
    """Restores the process's generators, or the given ones, after what is drawn inside."""
    with _swapping:
        if generators is None:
            generators = loaded()
        endings = [generator.preserved() for generator in generators]
        try:
            yield
        finally:
            for bring_back in endings:
                bring_back()


class Draws:
    """The shared generators that the copies of a stepper draw from, found in their first steps.

    Args:
        num_steps: of all of them together that are watched; 0: they draw from the process's own.

    Attributes:
        drawn: those that they have drawn from.
        is_watching: whether each call of a copy is still looked at.
    """

    def __init__(self, num_steps: int = WATCHED_STEPS):
        self.drawn: list[Generator] = []
        self._steps_left = num_steps

    @property
    def is_watching(self) -> bool:
        return self._steps_left > 0

    @property
    def is_over(self) -> bool:
        """True if the copies draw from none."""
        return not (self.is_watching or self.drawn)

    @property
    def swapped(self) -> list[Generator]:
        """The generators that each copy has for itself."""
        return loaded() if self.is_watching else self.drawn

    def alone(self, play: Callable[[], Any]) -> Any:
        """Lets copies play; the process's generators are then what they were."""
        if self.is_over:
            return play()
        with preserved(self.swapped):
            return play()

    def count_step(self) -> None:
        self._steps_left -= 1


class OwnGenerators:
    """The shared generators as one copy has them.

    Args:
        seed: of what is drawn before the first episode.
    """

    def __init__(self, draws: Draws, seed: int):
        self.draws = draws
        self.begin(seed)

    def begin(self, seed: int) -> None:
        """An episode begins; what it draws does not depend on those before."""
        self._seed, self._states = seed, {}

    def play(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Returns what a call of the copy gives."""
        generators = self.draws.swapped
        for generator in generators:
            if generator in self._states:
                generator.set(self._states[generator])
            else:
                generator.seed(self._seed)
        if self.draws.is_watching:
            return self._watched(generators, call, *arguments)
        try:
            return in_one_process(call, *arguments)
        finally:
            self._states = {generator: generator.get() for generator in generators}

    def _watched(self, generators: list[Generator], call: Callable[..., Any], *arguments) -> Any:
        before = [generator.fingerprint() for generator in generators]
        try:
            return in_one_process(call, *arguments)
        finally:
            for generator, fingerprint in zip(generators, before, strict=True):
                if generator.fingerprint() != fingerprint:
                    self._states[generator] = generator.get()
                    if generator not in self.draws.drawn:
                        self.draws.drawn.append(generator)


class SeededCopy:
    """A copy that has the shared generators for itself, seeded with each of its episodes.

    Args:
        make: makes the copy.
        seed: of what is drawn by that.
    """

    def __init__(self, make: Callable[[], Any], draws: Draws, seed: int):
        self._generators = OwnGenerators(draws, seed)
        self._copy = self._generators.play(make)

    @property
    def env(self) -> Any:
        return self._copy.env

    @property
    def made(self) -> Any:
        return self._copy.made

    def reset(self, row: Any, seed: int) -> None:
        self._generators.begin(seed)
        self._generators.play(self._copy.reset, row, seed)

    def step(self, row: Any) -> bool:
        draws = self._generators.draws
        if draws.is_over:  # from now on there is nothing between the copy and its stepper
            self.reset, self.step = self._copy.reset, self._copy.step
            return self.step(row)
        draws.count_step()
        return self._generators.play(self._copy.step, row)
