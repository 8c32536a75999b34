"""A training that breaks: it stops, says where, and keeps the last good state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Callbacks, Diverged
from jaxrl.run.checkpoint import find, named_arrays, read


class Poison(Callbacks):
    """Takes the logarithm of pol2's rewards, some of which are below 0."""

    def on_postprocess_trajectory(self, policy, trajectory):
        if policy != "pol2":
            return trajectory
        return trajectory.replace(reward=jnp.log(trajectory.reward))


POISON = Poison()  # one instance, and so one compiled program


@pytest.fixture
def poisoned(small):
    """An update of few and short rollouts, for it is run again operation by operation."""
    settings = {"num_envs": 2, "rollout_length": 4, "minibatch_size": 8, "num_epochs": 1, "total_env_steps": 8}
    return small.replace(callbacks=POISON, **settings)


def test_training_stops_at_the_first_bad_iteration_and_keeps_the_state_before_it(small, start, tmp_path):
    good = start(run_dir=tmp_path / "good")
    good.fit({"training_iteration": 3})
    trainer = start()
    trainer.fit({"training_iteration": 3})
    trainer.hypers = jax.tree.map(lambda leaf: leaf, small.hypers(pol2={"lr": 1e38}))
    with pytest.raises(Diverged, match=r"iteration 4: policy 'pol2': .*; the state after iteration 3 is kept"):
        trainer.fit()
    assert int(trainer.runner.num_updates) == trainer.lifetime.training_iteration == 3
    trainer.stop()
    kept = read(find(tmp_path / "run")).arrays
    for name, array in named_arrays({"runner": good.runner}).items():
        np.testing.assert_array_equal(kept[name], array, err_msg=name)


def test_debug_names_the_line_in_which_the_first_bad_number_arises(poisoned, start):
    trainer = start(poisoned, run_dir=None, debug=True)
    with pytest.raises(Diverged, match=r"(?s)iteration 1: policy 'pol2'.*test_divergence\.py:\d+ in on_postprocess"):
        trainer.fit()


def test_without_debug_the_way_to_the_operation_is_named(poisoned, start):
    trainer = start(poisoned, run_dir=None)
    with pytest.raises(Diverged, match=r"policy 'pol2'.*--debug names the operation"):
        trainer.fit()
