"""Tests of custom models: every allowed form, and the errors for others before compiling."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl.core.errors import UsageError
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete
from jaxrl.models.custom import custom_model
from jaxrl.models.mlp import MLP
from jaxrl.models.model import has_memory, model_table, num_parameters
from jaxrl.models.random_policy import RandomPolicy
from jaxrl.ops.distributions import Categorical, DiagGaussian

KEY, OBS, ACTIONS = jax.random.key(0), Box(-1.0, 1.0, (2, 3)), Discrete(4)


class Net(nn.Module):
    outputs: int = 4
    value_axis: bool = False

    @nn.compact
    def __call__(self, obs):
        hidden = nn.tanh(nn.Dense(5)(obs.reshape(len(obs), -1)))  # needs just one batch axis
        value = nn.Dense(1)(hidden)
        return nn.Dense(self.outputs)(hidden), value if self.value_axis else value[:, 0]


class Counting(nn.Module):
    """Remembers how many steps an episode has."""

    @nn.compact
    def __call__(self, obs, carry):
        value = carry + 0.0 * nn.Dense(1)(obs.reshape(len(obs), -1))[:, 0]
        return nn.Dense(4)(carry[:, None]), value, carry + 1.0

    def initial_carry(self, batch_shape):
        return jnp.zeros(batch_shape)


class NNXNet(nnx.Module):
    def __init__(self, size, outputs, *, rngs):
        self.policy = nnx.Linear(size, outputs, rngs=rngs)
        self.value = nnx.Linear(size, 1, rngs=rngs)

    def __call__(self, obs):
        flat = obs.reshape(len(obs), -1)
        return self.policy(flat), self.value(flat)


def init(key, obs):
    return {"kernel": jax.random.normal(key, (obs[0].size, 4))}


def apply(params, obs):
    flat = obs.reshape(len(obs), -1)
    return Categorical(flat @ params["kernel"]), flat[:, 0]


def of_spaces(observation_space, action_space):
    return Net(action_space.n)


FORMS = {
    "a flax module": Net(),
    "its class": Net,
    "an NNX module through the bridge": nnx.bridge.to_linen(NNXNet, 6, 4),
    "a pair of functions": (init, apply),
    "a function of the spaces": of_spaces,
    "a function of one space by its name": lambda action_space: Net(action_space.n),
    "a name": "tests.models.test_custom:Net",
    "a built-in model": MLP(OBS, ACTIONS, hiddens=(3,)),
    "values with an axis of their own": Net(value_axis=True),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [(), (5,), (2, 3)])
def test_every_form_of_a_model_takes_any_leading_axes(form, batch):
    model = custom_model(FORMS[form], OBS, ACTIONS)
    obs = jax.ShapeDtypeStruct((*batch, 2, 3), jnp.float32)
    distribution, value = jax.eval_shape(lambda obs: model.apply(model.init(KEY), obs), obs)
    assert (distribution.logits.shape, value.shape) == ((*batch, 4), batch)
    assert not has_memory(model)


@pytest.mark.parametrize(
    "form", [form for form in FORMS if not form.startswith("a function of one")]
)
def test_the_same_model_is_the_same_static_key(form):
    assert custom_model(FORMS[form], OBS, ACTIONS) == custom_model(FORMS[form], OBS, ACTIONS)
    assert hash(custom_model(FORMS[form], OBS, ACTIONS)) == hash(
        custom_model(FORMS[form], OBS, ACTIONS)
    )


def test_logits_become_the_distribution_of_the_space():
    pair = (
        lambda key, obs: {"w": jnp.zeros(1)},
        lambda params, obs: (jnp.ones((len(obs), 4)), jnp.zeros(len(obs))),
    )
    box = custom_model(pair, OBS, Box(-1.0, 1.0, (2,)))
    assert isinstance(box.apply(box.init(KEY), jnp.ones((1, 2, 3)))[0], DiagGaussian)
    many = custom_model(pair, OBS, MultiDiscrete((2, 2)))
    assert many.apply(many.init(KEY), jnp.ones((1, 2, 3)))[0].nvec == (2, 2)


def test_a_model_with_memory_counts_the_steps_of_each_episode():
    model = custom_model(Counting(), OBS, ACTIONS)
    begins = np.array([[False, True], [False, False], [True, False], [False, False]])
    carry = 10.0 + model.initial_carry((2,))
    see = jax.jit(lambda obs: model.apply_sequence(model.init(KEY), obs, carry, begins))
    _, value, after = see(np.ones((4, 2, 2, 3), np.float32))
    np.testing.assert_array_equal(value, [[10, 0], [11, 1], [0, 2], [1, 3]])
    np.testing.assert_array_equal(after, [2, 4])


class Table(Counting):
    """Looks a count up, of whole numbers, and sees whole sequences by a function of its own."""

    @nn.compact
    def __call__(self, obs, carry):
        return (
            nn.Embed(100, 4)(carry),
            1.0 * carry[:, None] + 0.0 * nn.Dense(1)(obs[:, 0]),
            carry + 1,
        )

    def initial_carry(self, batch_shape):
        return jnp.zeros(batch_shape, jnp.int32)


class Whole(Table):
    def apply_sequence(self, params, obs, carry, begins):
        steps = carry[None] + jnp.arange(len(obs))[:, None]
        return jnp.zeros((*steps.shape, 4)), 1.0 * steps[..., None], carry + len(obs)


def test_a_carry_of_whole_numbers_stays_one_and_a_sequence_may_be_seen_whole():
    begins, obs = np.zeros((4, 2), bool), np.ones((4, 2, 2, 3), np.float32)
    for given in (Table(), Whole()):
        model = custom_model(given, OBS, ACTIONS)
        see = jax.jit(
            lambda model=model: model.apply_sequence(
                model.init(KEY), obs, model.initial_carry((2,)), begins
            )
        )
        distribution, value, after = see()
        assert distribution.logits.shape == (4, 2, 4)
        np.testing.assert_array_equal(value, [[0, 0], [1, 1], [2, 2], [3, 3]])
        assert after.dtype == jnp.int32


class Plain:
    """Equal to itself alone."""

    init = staticmethod(lambda key, obs: {"w": jnp.zeros((6, 4))})
    apply = staticmethod(
        lambda params, obs: (obs.reshape(len(obs), -1) @ params["w"], obs[:, 0, 0])
    )


def test_a_class_gives_one_model_for_the_same_spaces():
    assert custom_model(Plain, OBS, ACTIONS) == custom_model(
        "tests.models.test_custom:Plain", OBS, ACTIONS
    )


def test_an_observation_in_parts_reaches_the_model_as_a_dict():
    space = Dict({"place": Box(-1.0, 1.0, (2,)), "kind": Discrete(3)})
    seen = lambda params, obs: (jnp.eye(4)[obs["kind"]], obs["place"][:, 1])
    model = custom_model((lambda key, obs: {"w": jnp.zeros(1)}, seen), space, ACTIONS)
    obs = {"place": jnp.array([[1.0, 2.0], [3.0, 4.0]]), "kind": jnp.array([0, 2])}
    distribution, value = model.apply(model.init(KEY), obs)
    np.testing.assert_array_equal(value, [2, 4])
    np.testing.assert_array_equal(distribution.mode(), [0, 2])


class Normed(nn.Module):
    @nn.compact
    def __call__(self, obs):
        flat = nn.BatchNorm(use_running_average=True)(obs.reshape(len(obs), -1))
        return flat[:, :4], flat[:, 0]


def pair(outputs):
    return (lambda key, obs: {"w": jnp.zeros(1)}, lambda params, obs: outputs)


REFUSED = {
    "logits over Discrete(n=4) must have the shape [3, 4] for a batch of 3, not [3, 7]": Net(7),
    "values must have the shape [3] for a batch of 3, not [3, 4]": pair(
        (jnp.ones((3, 4)), jnp.ones((3, 4)))
    ),
    "actions of Discrete(n=4) must have the shape [3] for a batch of 3, not [3, 2]": pair(
        (DiagGaussian(jnp.ones((3, 2)), jnp.ones((3, 2)), (2,)), jnp.ones(3))
    ),
    "must return (logits or distribution, value), not float32[3]": pair(jnp.ones(3)),
    "model=3: allowed are a flax module": 3,
    "model='nowhere': allowed are": "nowhere",
    "unknown model 'nowhere:Net': there is no module 'nowhere'": "nowhere:Net",
    "'Nett' in module 'tests.models.test_custom'; did you mean 'Net'": (
        "tests.models.test_custom:Nett"
    ),
    "beside its params": Normed(),
    "it may take observation_space and action_space": lambda observation_space, size: Net(),
    "does not work on observations of Box": (
        init,
        lambda params, obs: (obs @ params["kernel"], obs[:, 0]),
    ),
    "parameter ['w'] is int32": (lambda key, obs: {"w": jnp.zeros(1, int)}, apply),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(words):
    with pytest.raises(UsageError) as refusal:
        custom_model(REFUSED[words], OBS, ACTIONS)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


class Forgetful(Counting):
    def initial_carry(self, batch_shape):
        return jnp.zeros((*batch_shape, 1))


def test_a_carry_of_another_form_is_refused():
    with pytest.raises(UsageError, match=r"carry in the form of initial_carry|does not work on"):
        custom_model(Forgetful(), OBS, ACTIONS)


def test_the_table_of_a_model_sums_its_numbers():
    lines = model_table(
        MLP(Box(-1.0, 1.0, (3,)), Discrete(2), hiddens=(4,), vf_share_layers=True)
    ).splitlines()
    assert lines[-1].split() == ["in", "all", "31"]  # 3 x 4 + 4, 4 x 2 + 2, 4 + 1
    assert any(line.split() == ["shared.0.kernel", "3", "x", "4", "12"] for line in lines)


def test_checking_a_model_computes_nothing():
    """Devices are settled after a configuration was described, and before anything is computed."""
    traced = []

    class Watched(Counting):
        def initial_carry(self, batch_shape):
            carry = jnp.zeros(batch_shape)
            traced.append(isinstance(carry, jax.core.Tracer))
            return carry

    custom_model(Watched(), OBS, ACTIONS)
    assert traced and all(traced)


def test_a_random_policy_has_no_parameters_and_all_actions_are_equally_likely():
    model = custom_model(RandomPolicy, OBS, MultiDiscrete((2, 3)))
    distribution, value = model.apply(model.init(KEY), jnp.ones((5, *OBS.shape)))
    np.testing.assert_allclose(distribution.entropy(), np.log(6) * np.ones(5), rtol=1e-6)
    assert num_parameters(model) == 0 and not value.any()
