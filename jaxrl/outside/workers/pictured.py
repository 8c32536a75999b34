"""Pictures of a Python environment: one copy that is rendered while it plays.

Only an environment that was made with `render_mode="rgb_array"` renders so.
"""

from typing import Any

import numpy as np

from jaxrl.core.errors import UsageError, reason_of
from jaxrl.core.outside_env import OutsideSteps
from jaxrl.core.types import AgentId, PyTree
from jaxrl.outside.workers.arrays import EnvForm, StepArrays
from jaxrl.outside.workers.copies import made_copy
from jaxrl.outside.workers.family import in_one_process
from jaxrl.outside.workers.shared_generators import Draws, SeededCopy
from jaxrl.outside.workers.sources import Source, close
from jaxrl.outside.workers.vector import FirstObs, Results, spec_of

RENDER_MODE = "rgb_array"
MOST_PICTURES = 256  # that are kept of an episode; of a longer one every second, fourth, ...


def makes_pictures(env: Any) -> bool:
    """Returns whether a Python environment was made so that `render` gives pictures."""
    return getattr(env, "render_mode", None) == RENDER_MODE


class PicturedEnv:
    """A `VectorEnv` of one copy, in this process, which does not begin another episode by itself.

    A fault is a UsageError.

    Attributes:
        pictures: {step: u8[H, W, 3]}, evenly spaced, of the state that each of these steps reached.
    """

    num_envs, parts, num_faults, num_restarts = 1, (slice(0, 1),), 0, 0

    def __init__(self, env: tuple[Source, EnvForm]):
        source, form = env
        self.spec, self._arrays = spec_of(source.name, form), StepArrays(form, 1)
        self._results, self._row = Results(self._arrays, self.parts), self._arrays.row(0)
        self._draws = Draws()
        make = lambda: SeededCopy(lambda: made_copy(source, 0), self._draws, seed=0)
        self._copy = self._draws.alone(make)
        self.pictures: dict[int, np.ndarray] = {}
        self._step, self._every = 0, 1

    def reset(self, seeds: np.ndarray) -> FirstObs:
        self._arrays.first_seed[:], self._arrays.episode[:] = seeds, 0
        self.pictures, self._step, self._every = {}, 0, 1
        self._attempt(lambda: self._copy.reset(self._row, self._arrays.seed(0)))
        return self._results.first()

    def send(self, part: int, actions: dict[AgentId, PyTree]) -> None:
        self._results.write_actions(self.parts[part], actions)

    def receive(self, part: int) -> OutsideSteps:
        self._step += 1
        self._arrays.step_beginner(self.parts[part])()
        self._arrays.episode_done[:] = self._attempt(lambda: self._copy.step(self._row))
        for views, reached in zip(self._row.obs, self._row.final_obs, strict=True):
            for view, leaf in zip(views, reached, strict=True):
                view[...] = leaf
        return self._results.steps[part]

    def close(self) -> None:
        close(self._copy.env)

    def _attempt(self, play: Any) -> Any:
        """The result of a call of the copy, after which the picture is taken."""
        try:
            found, picture = in_one_process(
                self._draws.alone, lambda: (play(), self._copy.env.render())
            )
            picture = np.asarray(picture)
        except Exception as error:
            where = f"in step {self._step} of a pictured episode"
            raise UsageError(f"{self.spec.name} failed {where}: {reason_of(error)}") from error
        if picture.ndim != 3 or picture.shape[2] != 3:
            raise UsageError(f"{self.spec.name}: render gave {picture.shape}, not [H, W, 3]")
        self._keep(picture.astype(np.uint8))
        return found

    def _keep(self, picture: np.ndarray) -> None:
        """Keeps the newest picture, and those before at regular steps."""
        if (self._step - 1) % self._every:
            self.pictures.pop(self._step - 1, None)
        self.pictures[self._step] = picture
        if len(self.pictures) > MOST_PICTURES:
            self._every *= 2
            kept_steps = {step for step in self.pictures if step % self._every == 0} | {self._step}
            self.pictures = {step: self.pictures[step] for step in sorted(kept_steps)}
