"""Training under `jax.disable_jit()`: breakpoints see numbers, and it trains as compiled."""

import sys
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl import PPOConfig, UsageError
from jaxrl.cli import train as command
from jaxrl.core.spaces import Box
from jaxrl.run.devices.uncompiled import one_by_one
from tests.probes import OneAgent, State

NOTICE = "not compiled, since JAX's jit is disabled: hundreds of times slower"
SIZES = {"num_envs": 2, "rollout_length": 2, "minibatch_size": 4, "num_epochs": 1}


class Counting(OneAgent):
    """Counts its steps in what it observes, and pays the number of the action."""

    observes = Box(0.0, 100.0, (1,))

    def reset_env(self, key, params):
        return jnp.zeros(1), State(time=jnp.int32(0), cue=jax.random.randint(key, (), 0, 9))

    def step_env(self, key, state, action, params):
        breakpoint()
        state = state.replace(time=state.time + 1)
        ended = state.time == 2
        return jnp.float32(state.time)[None], state, jnp.float32(action), ended, {}


class Net(nn.Module):
    @nn.compact
    def __call__(self, obs):
        hidden = nn.tanh(nn.Dense(2)(obs))
        breakpoint()
        return nn.Dense(2)(hidden), nn.Dense(1)(hidden)

    def loss(self, params, batch):
        breakpoint()
        return jnp.sum(batch.weight * batch.obs[:, 0]) * 0.0, {}


@pytest.fixture
def stops(monkeypatch):
    """What a debugger would show, by function: the local variables at each `breakpoint()`."""
    found = {}

    def look():
        frame = sys._getframe(1)
        found.setdefault(frame.f_code.co_name, []).append(dict(frame.f_locals))

    monkeypatch.setattr(sys, "breakpointhook", look)
    return found


def is_number(value):
    return not isinstance(value, jax.core.Tracer)


@pytest.mark.long
def test_without_jit_breakpoints_see_numbers_and_it_trains_as_compiled(stops, capsys):
    config = PPOConfig(env=Counting(), model=Net(), lr=1e-2, gamma=0.5, **SIZES)
    trainers = [jaxrl.Trainer(config, run_dir=None) for _ in range(2)]
    compiled, eager = trainers
    expected = compiled.train()
    assert NOTICE not in capsys.readouterr().out
    stops.clear()
    with jax.disable_jit():
        result = eager.train()
    assert NOTICE in capsys.readouterr().out

    steps = [stop for stop in stops["step_env"] if is_number(stop["action"])]
    # Both environments one after the other, then both again
    assert [int(stop["state"].time) for stop in steps] == [0, 0, 1, 1]
    assert all(float(stop["action"]) in (0.0, 1.0) for stop in steps)
    calls = [stop["hidden"] for stop in stops["__call__"] if is_number(stop["hidden"])]
    assert {hidden.shape for hidden in calls[-2:]} == {(2, 2)}
    (loss,) = [stop for stop in stops["loss"] if is_number(stop["batch"].obs)]
    assert sorted(np.asarray(loss["batch"].obs)[:, 0].tolist()) == [0, 0, 1, 1]

    for name, value in expected["learners"]["default_policy"].items():
        assert result["learners"]["default_policy"][name] == pytest.approx(value, abs=1e-5), name
    weights = [jax.tree.leaves(trainer.get_weights()) for trainer in trainers]
    for found, wanted in zip(*weights, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    # The next iteration is compiled, and goes on from there
    assert eager.train()["training_iteration"] == 2
    for trainer in trainers:
        trainer.stop()


@pytest.mark.parametrize(
    ("in_axes", "out_axes"),
    [
        *((0, 0), ((0, None), 1), ((1, {"a": 0, "b": None}), (0, {"sum": 1}))),
        *(([0, None], (0, None)), (-1, -1), ((-2, {"a": 1, "b": -1}), (-1, {"sum": -2}))),
    ],
    ids=str,
)
def test_without_jit_vmap_is_a_loop_with_the_same_results(in_axes, out_axes):
    x, y = jnp.arange(9.0).reshape(3, 3), {"a": jnp.ones((3, 3)), "b": jnp.full((3, 3), 2.0)}
    seen = []

    def function(x, y):
        seen.append(is_number(x))
        total = y["a"].sum() + 2 * y["b"].sum()
        return x + 1, {"sum": jnp.full(2, total if out_axes == (0, None) else total * x[0])}

    expected = jax.vmap(function, in_axes, out_axes)(x, y)
    seen.clear()
    with jax.disable_jit(), one_by_one():
        found = jax.vmap(function, in_axes, out_axes)(x, y)
    assert seen == [True] * 3
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    ("arguments", "axes"),
    [
        ((jnp.ones(2), jnp.ones(5)), {}),  # sizes that differ
        ((jnp.ones(2), jnp.ones(2)), {"in_axes": None}),
        ((jnp.ones(2), jnp.ones(2)), {"in_axes": (1, 0)}),
        ((jnp.ones(2), jnp.ones(2)), {"in_axes": (0,)}),
        ((jnp.ones(2), 1.0), {}),
        ((), {}),
    ],
)
def test_without_jit_vmap_refuses_what_it_refuses_otherwise(arguments, axes):
    with pytest.raises((ValueError, TypeError)) as refused:
        jax.vmap(jnp.add, **axes)(*arguments)
    with jax.disable_jit(), one_by_one(), pytest.raises(refused.type) as found:
        jax.vmap(jnp.add, **axes)(*arguments)
    assert (
        str(found.value).split("\n")[0].split("<")[0]
        == (str(refused.value).split("\n")[0].split("<")[0])
    )


def test_without_jit_vmap_is_called_with_the_arguments_that_it_has():
    x = np.arange(6.0, dtype=np.float64).reshape(2, 3)
    with jax.disable_jit(), one_by_one():
        with pytest.raises(TypeError, match=r"vmap\(\) missing .* 'fun'"):
            jax.vmap(in_axes=0)
        kinds = []
        total = jax.vmap(fun=lambda row: kinds.append(row.dtype) or row.sum(), in_axes=-1)(x)
        assert total.tolist() == [3.0, 5.0, 7.0]
        assert kinds == [jnp.asarray(x).dtype] * 3
        assert jax.vmap(jnp.sum)(jnp.ones((0, 3))).shape == (0,)
        summed = jax.vmap(lambda row: jax.lax.psum(row, "i"), axis_name="i")(x)
        assert summed.tolist() == [[3.0, 5.0, 7.0]] * 2


def test_only_where_jit_is_disabled_and_on_numbers_vmap_is_a_loop():
    kinds = []
    look = lambda x: kinds.append(is_number(x)) or x
    keys = jax.random.split(jax.random.key(0), 2)
    with one_by_one():
        jax.vmap(look)(jnp.arange(2.0))
        with jax.disable_jit():
            drawn = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
            jax.grad(lambda x: jax.vmap(look)(x).sum())(jnp.arange(2.0))
    assert kinds == [False, False]
    wanted = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    assert (jax.random.key_data(drawn) == jax.random.key_data(wanted)).all()


def test_eager_on_the_command_line_is_a_training_without_jit(monkeypatch, capsys):
    disabled = []

    class Fake(SimpleNamespace):
        def fit(self):
            disabled.append(jax.config.jax_disable_jit)
            raise UsageError("enough")

    def begin(order):
        progress = SimpleNamespace(say=lambda line: None)
        processes = SimpleNamespace(is_leader=True)
        settings = SimpleNamespace(devices=1)
        facts = {"progress": progress, "processes": processes, "settings": settings}
        return Fake(run_dir=None, stop=lambda: None, **facts)

    monkeypatch.setattr(command, "begin", begin)
    common = ["--env", "cartpole", "--compile-cache", "off"]
    for flags in ([], ["--eager"]):
        with pytest.raises(SystemExit):
            command.train_ppo([*common, *flags])
    assert (disabled, jax.config.jax_disable_jit) == ([False, True], False)
    with jax.disable_jit(), pytest.raises(SystemExit):  # as JAX_DISABLE_JIT=1
        command.train_ppo(common)
    assert disabled[2:] == [True]


def test_what_measures_compiled_programs_is_refused_without_jit():
    message = "--profile measures compiled programs: leave out --eager"
    with pytest.raises(UsageError, match=message):
        command.parse(["--env", "cartpole", "--eager", "--profile"], "ppo")
    with jax.disable_jit(), pytest.raises(UsageError, match=message):
        command.parse(["--env", "cartpole", "--profile"], "ppo")


def test_what_trains_by_compiled_programs_alone_says_so_without_jit():
    with jax.disable_jit():
        with pytest.raises(UsageError, match="trials train in compiled programs: unset it"):
            jaxrl.sweep(PPOConfig(env="cartpole"), seeds=2, run_dir=None)
        with pytest.raises(UsageError, match="outside JAX is learned from by compiled"):
            config = PPOConfig(env="gym:CartPole-v1", **SIZES)
            with jaxrl.Trainer(config, run_dir=None, quiet=True, workers=0) as trainer:
                trainer.train()
