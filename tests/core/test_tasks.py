"""Tests of domain randomisation: numbers of an environment that are drawn for each episode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import BatchedEnvironment, PPOConfig, UsageError, check_env, make
from jaxrl.core.env import Solo, lift, raw_reset, raw_step, stack_agents
from jaxrl.core.env_contract import require_trainable
from jaxrl.core.tasks import Distribution, Randomization, distribution_of, per_episode
from jaxrl.core.wrapped_env import without_task
from tests.core.environments import Corridor, Pair, Params, Relay, Trio
from tests.messages import refused_by

HERE = "tests.core.environments"
KEY = jax.random.key(3)


def drawn_as(**texts):
    return Randomization(tuple((name, distribution_of(text)) for name, text in texts.items()))


def played(env, params, num_steps=6):
    """(obs, reward, terminated, truncated) of steps with actions by the step's number."""
    env = lift(env)
    obs, state = raw_reset(env, KEY, params)
    seen = [obs]
    for i in range(num_steps):
        key = jax.random.fold_in(KEY, i)
        action = {agent: env.action_space(agent, params).sample(key) for agent in env.agents}
        action = stack_agents(env, action) if hasattr(env, "step_stacked") else action
        raw = raw_step(env, key, state, action, params)
        state = raw.state
        seen.append((raw.obs, raw.reward, raw.terminated, raw.truncated, raw.active))
    return seen


@pytest.mark.parametrize("env", [Corridor(), Trio(), Relay(), Pair()], ids=lambda env: env.name)
def test_with_one_possible_value_it_is_the_environment_with_that_value(env):
    randomised = per_episode(env, drawn_as(step_size="choice:0.25"))
    fixed = played(env, Params(step_size=0.25))
    jax.tree.map(np.testing.assert_array_equal, played(randomised, Params()), fixed)


@pytest.mark.parametrize("env", [Corridor(), Trio(), Relay(), Pair()], ids=lambda env: env.name)
def test_it_keeps_to_the_contract_of_environments(env):
    require_trainable(per_episode(env, drawn_as(step_size="uniform:0.5:1.5")))


@pytest.mark.long
def test_it_plays_by_the_contract_of_environments():
    check_env(make(f"{HERE}:Corridor", step_size="uniform:0.5:1.5")[0])


@pytest.mark.parametrize(
    ("text", "least", "most", "mean"),
    [
        ("uniform:0.5:1.5", 0.5, 1.5, 1.0),
        ("loguniform:0.01:1", 0.01, 1.0, 0.99 / np.log(100)),  # (b - a) / log(b / a)
        ("randint:2:5", 2, 4, 3.0),
        ("choice:1:2:6", 1, 6, 3.0),
    ],
)
def test_numbers_are_drawn_as_a_sweep_draws_them(text, least, most, mean):
    distribution = distribution_of(text)
    keys = jax.random.split(KEY, 4000)
    values = np.asarray(jax.vmap(distribution.draw)(keys), np.float64)
    assert values.min() >= least - 1e-6 and values.max() <= most + 1e-6
    assert values.mean() == pytest.approx(mean, rel=0.05)
    assert str(distribution) == text


@pytest.mark.long
def test_a_number_is_drawn_at_the_reset_and_stays_for_the_episode():
    env = per_episode(Corridor(), drawn_as(max_steps_in_episode="randint:1:4"))
    keys = jax.random.split(KEY, 40)
    _, states = jax.vmap(lambda key: env.reset(key, Params()))(keys)
    limits = states.task["max_steps_in_episode"]
    assert limits.dtype == jnp.int32 and set(limits.tolist()) == {1, 2, 3}

    def length(key, state):
        def step(carry, _):
            state, steps, done = carry
            _, after, _, terminated, truncated, _ = env.step(key, state, 0, Params())
            return (after, steps + ~done, done | terminated | truncated), None

        carry = (state, jnp.int32(0), jnp.array(False))
        return jax.lax.scan(step, carry, length=4)[0][1]

    assert jax.vmap(length)(keys, states).tolist() == limits.tolist()


class Seen(Corridor):
    """A corridor with everything that is asked of a state."""

    def action_mask(self, state, params):
        return jnp.stack([state.time >= 0, params.step_size > 0.5])

    def render(self, state, params):
        return jnp.full((2, 2, 3), 100 * params.step_size, jnp.uint8)


def test_masks_pictures_and_callbacks_see_the_numbers_of_the_episode():
    env = per_episode(Seen(), drawn_as(step_size="choice:0.25"))
    _, state = env.reset(KEY, Params())
    assert env.action_mask(state, Params()).tolist() == [True, False]
    assert env.render(state, Params())[0, 0, 0] == 25
    assert not hasattr(env, "draw") and not hasattr(env, "acting_agents")
    for around in (
        env,
        Solo(env),
        per_episode(Solo(env), drawn_as(max_steps_in_episode="choice:5")),
    ):
        _, state = raw_reset(lift(around), KEY, Params())
        inner, params = without_task(around, state, Params())
        assert type(inner).__name__ == "Place" and float(params.step_size) == 0.25


def test_equal_distributions_make_equal_environments_which_share_a_program():
    made = [make("cartpole", gravity=text)[0] for text in ("uniform:8:12", "uniform:8:12")]
    assert made[0] == made[1] and hash(made[0]) == hash(made[1])
    assert made[0] != make("cartpole", gravity="uniform:8:13")[0] != make("cartpole")[0]


test_what_cannot_be_drawn_is_refused_in_one_line = refused_by(
    lambda args: PPOConfig(env="cartpole", env_args=args).setup(),
    [
        ({"gravity": "uniform:8"}, "gravity=uniform:8: uniform takes two bounds"),
        ({"gravity": "uniform:12:8"}, "needs LOW < HIGH"),
        ({"gravity": "loguniform:0:8"}, "needs 0 < LOW < HIGH"),
        ({"gravity": "uniform:8:x"}, "'x' is not a number"),
        ({"gravity": "randint:1.5:3"}, "must be integers"),
        ({"gravity": "uniform:1:inf"}, "'inf' is not a number"),
        ({"gravity": "normal:8:12"}, "or uniform:LOW:HIGH, loguniform:LOW:HIGH"),
        ({"gravity": "unifrom:8:12"}, "did you mean uniform:8:12?"),
        ({"gravity": "uniform"}, "did you mean uniform:LOW:HIGH?"),
        ({"gravity": ("uniform", 8, 12)}, "or uniform:LOW:HIGH, loguniform:LOW:HIGH"),
        ({"gravity": "choice:"}, "gravity=choice: has an empty value; write choice:A:B"),
        ({"gravity": "choice:True"}, "gravity must be a finite number"),
        ({"gravty": "uniform:8:12"}, "did you mean 'gravity'"),
        (
            {"max_steps_in_episode": "uniform:8:12"},
            "must be an integer, and uniform:8:12 draws other",
        ),
        ({"max_steps_in_episode": "randint:0:12"}, "must be at least 1, not 0"),
        ({"sutton_barto_reward": "choice:True:False"}, "only fields of params can be drawn"),
    ],
    literal=True,
)


def test_an_environments_own_check_sees_both_ends_of_what_is_drawn():
    make("pursuit", n_catch="randint:1:4")
    with pytest.raises(UsageError, match="n_catch=0: it must be at least 1"):
        make("pursuit", n_catch="randint:0:4")
    with pytest.raises(UsageError, match=r"constraint_window=1\.5"):
        make("pursuit", constraint_window="uniform:0.8:1.5")


class Pool(BatchedEnvironment):
    """One that could only be stepped as a whole."""


def test_copies_that_are_stepped_in_one_call_cannot_have_numbers_of_their_own():
    with pytest.raises(UsageError, match="Pool steps all copies in one call"):
        per_episode(Pool(), drawn_as(step_size="uniform:0.5:1.5"))


def test_a_distribution_is_written_as_it_is_read():
    assert distribution_of("choice:True:False") == Distribution("choice", (True, False))
    for other in ("uniform", "arena", 0.5, None, "gymnax:Breakout"):
        assert distribution_of(other) is None
