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
    ],
    ids=["one agent", "two agents", "agents that leave", "a pool of opponents"],
)
def test_what_is_read_on_the_device_is_what_the_result_says(config):
    (group,) = groups_of(trials_of(config, [{}], 1))
    generator = np.random.default_rng(0)
    shapes = group.shapes.metrics
    metrics = jax.tree.map(
        lambda leaf: jnp.asarray(generator.integers(1, 9, leaf.shape), leaf.dtype), shapes
    )
    readers = readers_of(group.algorithm, shapes)
    chunk = jax.tree.map(lambda leaf: leaf[None], metrics)
    result = dict(flatten(iteration_results(group.algorithm, chunk, 1, 1.0, Lifetime())[0]))
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
    singular = [path for path in readers if "_episode_return_mean/" in path]
    assert len(singular) == (4 if config is SMALL_CARTPOLE else 0)
