"""Masks of possible actions are read wherever people put them, in every form."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxrl
from jaxrl.core.types import DEFAULT_AGENT
from jaxrl.outside.workers.masks import MaskReader
from jaxrl.outside.workers.python_env import make_vector_env
from jaxrl.outside.workers.space_forms import form_of
from tests.messages import refused_by
from tests.outside.workers.environments import Nim
from tests.outside.workers.multi_agent_envs import MultiAgentEnv

BOX = spaces.Box(-1, 1, (2,))
TINY = {
    **{"num_envs": 2, "rollout_length": 16, "minibatch_size": 32, "num_epochs": 1},
    **{"fcnet_hiddens": [4], "total_env_steps": 64},
}


def reader(space):
    return MaskReader(form_of(space, "a test"))


# ---- forms


@st.composite
def discrete_spaces(draw):
    counts = st.integers(1, 4)
    kind = draw(st.sampled_from(["Discrete", "MultiDiscrete", "MultiBinary"]))
    if kind == "Discrete":
        return spaces.Discrete(draw(counts), start=draw(st.integers(-3, 3)))
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    if kind == "MultiBinary":
        return spaces.MultiBinary(shape)
    nvec = [draw(counts) for _ in range(int(np.prod(shape)))]
    return spaces.MultiDiscrete(np.reshape(nvec, shape))


def flags_of(draw, space):
    """A row of flags for a space, and the same as its own `sample` takes it."""
    nvec = space.n if isinstance(space, spaces.Discrete) else getattr(space, "nvec", None)
    counts = np.ravel(np.full(space.shape, 2) if isinstance(space, spaces.MultiBinary) else nvec)
    rows = []
    for count in counts.tolist():
        row = draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
        rows.append(np.array(row, np.int8))
    if isinstance(space, spaces.MultiBinary):
        values = [2 if row.all() else int(row[1]) for row in rows]
        mask = np.reshape(values, space.shape).astype(np.int8)
    elif isinstance(space, spaces.Discrete):
        mask = rows[0]
    else:
        mask = _nested(iter(rows), space.shape)
    return np.concatenate(rows).astype(bool), mask


def _nested(rows, shape):
    return tuple(
        next(rows) if len(shape) == 1 else _nested(rows, shape[1:]) for _ in range(shape[0])
    )


@settings(max_examples=60)
@given(st.data())
def test_a_mask_is_read_as_the_spaces_own_sample_takes_it(data):
    space = data.draw(discrete_spaces())
    flags, mask = flags_of(data.draw, space)
    space.sample(mask=mask)  # Gymnasium takes it
    np.testing.assert_array_equal(reader(space).read(mask), flags)
    kind = data.draw(st.sampled_from([bool, np.int8, np.float32, list]))
    row = flags.tolist() if kind is list else flags.astype(kind)
    np.testing.assert_array_equal(reader(space).read(row), flags)


@settings(max_examples=30)
@given(st.data())
def test_masks_of_parts_are_in_a_row_as_the_parts_are(data):
    pair = [data.draw(discrete_spaces()) for _ in range(2)]
    rows, masks = zip(*(flags_of(data.draw, space) for space in pair), strict=True)
    for space, mask in (
        (spaces.Tuple([pair[0], BOX, pair[1]]), (masks[0], None, masks[1])),
        (spaces.Dict(a=pair[0], b=pair[1], c=BOX), {"b": masks[1], "c": None, "a": masks[0]}),
    ):
        space.sample(mask=mask)
        np.testing.assert_array_equal(reader(space).read(mask), np.concatenate(rows))
        np.testing.assert_array_equal(reader(space).read(np.concatenate(rows)), np.hstack(rows))
    first = {"a": masks[0]}  # nothing is said of the other
    wanted = np.concatenate([rows[0], np.ones(len(rows[1]), bool)])
    np.testing.assert_array_equal(reader(space).read(first), wanted)


def test_integers_of_a_box_have_their_choices_in_the_mask():
    assert reader(spaces.Box(-1, 1, (2,), np.int8)).size == 6
    assert reader(BOX).size == 0 == reader(spaces.Box(0, 2**20, (2,), np.int32)).size


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (np.zeros(3, np.int8), "leaves no possible action"),
        (np.ones(4), "has 4 entries; 3 actions need 3"),
        (np.array([0.0, 0.5, 1.0]), "holds more than 0 and 1"),
        (np.array([0.0, -np.inf, 0.0]), "holds more than 0 and 1"),
        ("all", "not an array of flags"),
    ],
)
def test_what_is_no_mask_is_said(mask, said):
    with pytest.raises(ValueError, match=said):
        reader(spaces.Discrete(3)).read(mask)


def test_each_integer_needs_a_possible_value_unless_nobody_acts():
    read = reader(spaces.MultiDiscrete([2, 2])).read
    with pytest.raises(ValueError, match="leaves no possible action"):
        read(np.array([1, 1, 0, 0]))
    assert read(np.zeros(4), is_acting=False).all()
    with pytest.raises(ValueError, match="needs discrete actions"):
        reader(BOX).read(np.ones(2))


# ---- places


class Turning(gymnasium.Env):
    """In step t only action t % 3 of four is possible; another one raises."""

    observation_space, action_space = BOX, spaces.Discrete(4)

    def __init__(self, dtype=np.int8):
        self.dtype = dtype

    def mask(self):
        mask = np.zeros(4, self.dtype)
        mask[self.steps % 3] = 1
        return mask

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.obs(), self.info()

    def step(self, action):
        assert self.mask()[action], "an impossible action"
        self.steps += 1
        return self.obs(), 1.0, False, self.steps == 7, self.info()

    def obs(self):
        return np.zeros(2, np.float32)

    def info(self):
        return {}


class InInfo(Turning):
    def info(self):
        return {"action_mask": self.mask()}


class ByMethod(Turning):
    def action_masks(self):
        return self.mask()


class InObservation(Turning):
    part = "observations"

    def __init__(self, dtype=np.int8):
        super().__init__(dtype)
        mask = spaces.Box(0, 1, (4,), np.int8 if dtype is bool else dtype)
        self.observation_space = spaces.Dict({self.part: BOX, "action_mask": mask})

    def obs(self):
        return {self.part: np.zeros(2, np.float32), "action_mask": self.mask()}


class InPair(InObservation):
    part = "position"


class ForEach(MultiAgentEnv):
    """RLlib's, with one agent's mask in its observation and the other's in its info."""

    def __init__(self):
        self.alone = {agent: InObservation() if agent == "a" else InInfo() for agent in "ab"}
        self.possible_agents = ["a", "b"]
        self.observation_spaces = {a: env.observation_space for a, env in self.alone.items()}
        self.action_spaces = {a: env.action_space for a, env in self.alone.items()}

    def reset(self, *, seed=None, options=None):
        found = {agent: env.reset() for agent, env in self.alone.items()}
        return tuple({agent: pair[i] for agent, pair in found.items()} for i in range(2))

    def step(self, actions):
        found = {agent: self.alone[agent].step(action) for agent, action in actions.items()}
        results = [{agent: each[i] for agent, each in found.items()} for i in range(5)]
        return tuple(results)


PLACES = [InInfo, ByMethod, InObservation, InPair]


def faults_of(env):
    config = jaxrl.PPOConfig(env=env, **TINY)
    with jaxrl.Trainer(config, run_dir=None, quiet=True, workers=0) as trainer:
        result = trainer.fit()
        judged = trainer.evaluate(episodes=2)["env_runners"]
    assert np.isfinite(result["learners"][next(iter(result["learners"]))]["total_loss"])
    assert judged["num_episodes"] == 2
    return result["env_runners"]["num_faulty_episodes"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [bool, np.int8, np.float32])
def test_the_masks_of_each_place_are_those_of_the_next_action(place, dtype):
    envs = make_vector_env(functools.partial(place, dtype), 2, num_workers=0)
    first = envs.reset(np.zeros(2, np.uint32))
    space = envs.spec.observation_spaces[DEFAULT_AGENT]
    assert envs.spec.masked and "action_mask" not in getattr(space, "spaces", {})
    assert isinstance(first.obs[DEFAULT_AGENT], dict) == (place is InPair)
    mask = first.action_mask[DEFAULT_AGENT]
    for step in range(9):  # an episode of seven, and the next one
        np.testing.assert_array_equal(mask, [np.arange(4) == (step % 7) % 3] * 2)
        envs.send(0, {DEFAULT_AGENT: mask.argmax(1)})
        mask = envs.receive(0).action_mask[DEFAULT_AGENT].copy()
    assert envs.num_faults == 0


@pytest.mark.long
@pytest.mark.parametrize("place", [ByMethod, InObservation])
def test_training_and_evaluation_play_no_impossible_action(place):
    assert faults_of(place) == 0


@pytest.mark.long
def test_a_mask_below_a_wrapper_is_found():
    make = lambda: gymnasium.wrappers.TimeLimit(ByMethod(), 5)
    assert faults_of(make) == 0


@pytest.mark.long
def test_masks_of_agents_may_be_in_different_places():
    assert faults_of(ForEach) == 0


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_masks_of_a_vector_env_are_in_the_same_places(place, mode):
    mode = gymnasium.vector.AutoresetMode(mode)
    make = lambda: gymnasium.vector.SyncVectorEnv([place] * 2, autoreset_mode=mode)
    envs = make_vector_env(make, 2, num_workers=0)
    mask = envs.reset(np.zeros(2, np.uint32)).action_mask[DEFAULT_AGENT]
    for _ in range(20):
        envs.send(0, {DEFAULT_AGENT: mask.argmax(1)})
        mask = envs.receive(0).action_mask[DEFAULT_AGENT].copy()
    assert envs.num_faults == 0 and envs.spec.masked


@pytest.mark.long
def test_who_does_not_act_needs_no_possible_action():
    class Strict(Nim):  # as PettingZoo's classic games
        def observe(self, agent):
            seen = super().observe(agent)
            if agent != self.agent_selection or not self.sticks:
                seen["action_mask"][:] = 0
            return seen

    config = jaxrl.PPOConfig(env=Strict, policies="shared", **TINY)
    with jaxrl.Trainer(config, run_dir=None, quiet=True, workers=0) as trainer:
        assert trainer.fit()["env_runners"]["num_faulty_episodes"] == 0


class Nothing(InInfo):
    def mask(self):
        return np.zeros(4, np.int8)


class Short(InObservation):
    def __init__(self):
        super().__init__()
        mask = spaces.Box(0, 1, (3,), np.int8)
        self.observation_space = spaces.Dict(observations=BOX, action_mask=mask)

    def mask(self):
        return np.ones(3, np.int8)


class OnlyInSteps(InInfo):
    def info(self):
        return super().info() if self.steps else {}


class OnlyInTheReset(InInfo):
    def info(self):
        return {} if self.steps else super().info()


class Moving(InInfo):
    action_space = BOX


test_masks_that_cannot_be_kept_are_refused_before_training = refused_by(
    lambda env: jaxrl.PPOConfig(env=env).setup(),
    [
        (Nothing, r"the action_mask .* leaves no possible action"),
        (Short, "the action_mask has 3 entries; 4 actions need 4"),
        (OnlyInSteps, r"info\['action_mask'\] is in this info, and was not there before: give one"),
        (OnlyInTheReset, r"info\['action_mask'\] is missing in this info, and was there before"),
        (Moving, "an action_mask needs discrete actions"),
    ],
)


def test_a_mask_of_none_says_that_everything_is_possible():
    class Sometimes(InInfo):
        def info(self):
            return {"action_mask": None if self.steps == 2 else self.mask()}

        def step(self, action):
            return super().step(2 if self.steps == 2 else action)

    envs = make_vector_env(Sometimes, 1, num_workers=0)
    mask, sums = envs.reset(np.zeros(1, np.uint32)).action_mask[DEFAULT_AGENT], []
    for _ in range(4):
        sums.append(int(mask.sum()))
        envs.send(0, {DEFAULT_AGENT: mask.argmax(1)})
        mask = envs.receive(0).action_mask[DEFAULT_AGENT].copy()
    assert sums == [1, 1, 4, 1] and envs.num_faults == 0
