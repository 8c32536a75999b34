"""What a sweep reads on the device, held against the result tree of the same metrics."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.run.results import Lifetime, flatten, iteration_results
from jaxrl.sweeps.metric_readers import readers_of
from jaxrl.sweeps.trials import groups_of, trials_of
from tests.probes import Leavers
from tests.programs import SMALL_ARENA, SMALL_CARTPOLE

POOL = {"size": 2, "every": 1, "fixed": {"random": "random"}}


class Logs:
    """Logs numbers of episodes, of steps and of trajectories, by every reduction."""

    def on_episode_end(self, data, episode, metrics_logger):
        for reduce in ("mean", "sum", "min", "max"):
            metrics_logger.log_value(("episodes", reduce), episode.length, reduce=reduce)

    def on_episode_step(self, data, step, metrics_logger):
        for reduce in ("mean", "sum", "min", "max"):
            metrics_logger.log_value(("steps", reduce), step.reward.sum(), reduce=reduce)

    def on_postprocess_trajectory(self, policy, trajectory, metrics_logger):
        metrics_logger.log_value("mine/reward", trajectory.reward.mean())
        return trajectory


UNKNOWN = {  # of a result's numbers; the rest of those at the top is not known either
    *("env_runners/num_episodes_lifetime", "env_runners/num_env_steps_sampled"),
    *(
        "env_runners/num_env_steps_sampled_lifetime",
        "learners/__all_modules__/num_env_steps_trained",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        SMALL_CARTPOLE,
        SMALL_ARENA,
        SMALL_ARENA.replace(env=Leavers(), env_args=(), policies="per-agent"),
        SMALL_ARENA.replace(policies_to_train=("pol2",), opponents=POOL),
        SMALL_ARENA.replace(callbacks=Logs),
    ],
    ids=["one agent", "two agents", "agents that leave", "a pool of opponents", "logged"],
)
def test_what_is_read_on_the_device_is_what_the_result_says(config):
    (group,) = groups_of(trials_of(config, [{}], 1))
    generator = np.random.default_rng(0)
    shapes = group.shapes.metrics
    metrics = jax.tree.map(
        lambda leaf: jnp.asarray(generator.integers(1, 9, leaf.shape), leaf.dtype), shapes
    )
    steps = metrics.agent_steps[0]  # every histogram is of all the iteration's steps
    histograms = metrics.episodes.histograms
    histograms |= {name: of.replace(count=steps) for name, of in histograms.items()}
    readers = readers_of(group.algorithm, shapes)
    chunk = jax.tree.map(lambda leaf: leaf[None], metrics)
    result = dict(flatten(iteration_results(group.algorithm, chunk, 1, 1.0, Lifetime())[0]))
    result = {path: value for path, value in result.items() if not isinstance(value, list)}
    for path, read in readers.items():
        assert math.isclose(read(metrics), result[path], rel_tol=1e-6), path
    paths = {
        path
        for path in result
        if path.startswith(("env_runners/", "learners/")) and path not in UNKNOWN
    }
    assert {
        path for path in paths if not path.endswith("/num_trainable_parameters")
    } == readers.keys()
    logged = {path for path in readers if "episodes/" in path and "custom_metrics" not in path}
    assert len(logged) == (8 if config.callbacks else 0)  # 4 reductions, of two windows
    singular = [path for path in readers if "_episode_return_mean/" in path]
    assert len(singular) == (4 if config is SMALL_CARTPOLE else 0)
