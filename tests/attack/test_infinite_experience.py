"""Observations, rewards and actions that are no finite numbers are never learned from."""

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.core.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from jaxrl.episodes import SingleAgentEpisode
from jaxrl.models.policy_spec import PolicyWeights
from jaxrl.run.inference.policy import Policy
from jaxrl.serving.episode_record import Experience
from tests.messages import refusal
from tests.programs import SMALL_CARTPOLE as SMALL
from tests.serving.served import Frames, serving

EXTERNAL = SMALL.replace(env="external", env_args={})
ROW = Box(-np.inf, np.inf, (2,))
BEYOND = (np.nan, np.inf, -np.inf, 1e39)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def learners():
    spaces = {"row": ROW, "parts": Dict({"a": ROW, "b": Discrete(3)})}
    made = {name: jaxrl.Learner(EXTERNAL, space, Discrete(2)) for name, space in spaces.items()}
    return {**made, "box": jaxrl.Learner(EXTERNAL, ROW, Box(-np.inf, np.inf, (1,)))}


STEPS = {
    "observations": ("row", lambda number: {"observations": [np.zeros(2), np.full(2, number)]}),
    "observations 'a'": (
        "parts",
        lambda number: {"observations": [{"a": np.array([number, 0.0]), "b": 1}] * 2},
    ),
    "reward": ("row", lambda number: {"rewards": [number]}),
    "actions": ("box", lambda number: {"actions": [np.array([number])]}),
    "policy_actions": (
        "box",
        lambda number: {
            "actions": [np.zeros(1)],
            "extra_model_outputs": {"policy_actions": [[number]]},
        },
    ),
    "action_logp": ("row", lambda number: {"extra_model_outputs": {"action_logp": [number]}}),
    "action_dist_inputs": (
        "row",
        lambda number: {"extra_model_outputs": {"action_dist_inputs": [[number, 0.0]]}},
    ),
}


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("part", STEPS)
def test_a_learner_refuses_the_part_by_name_and_keeps_nothing(learners, part, number):
    which, given = STEPS[part]
    steps = {"observations": [np.zeros(2)] * 2, "actions": [0], "rewards": [1.0]}
    with pytest.raises(ValueError, match=part) as refused:
        learners[which].add(
            SingleAgentEpisode(**{**steps, **given(number)}, terminated=True, len_lookback_buffer=0)
        )
    assert "\n" not in str(refused.value)
    assert not learners[which].num_waiting


@pytest.mark.parametrize("name", ["obs", "reward"])
def test_a_learner_refuses_a_rollout_of_such_rows_but_not_of_rows_that_nobody_played(name):
    learner, algorithm = jaxrl.Learner(SMALL), SMALL.build()
    shapes = jax.eval_shape(lambda key: algorithm.collect(algorithm.init(key))[1], KEY)
    rollout = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    (trajectory,) = rollout.trajectories
    values = np.full_like(getattr(trajectory, name), np.inf)
    nobody = trajectory.replace(**{name: values})
    learner.add(rollout.replace(trajectories=(nobody,)))
    played = nobody.replace(active=np.ones_like(trajectory.active))
    with pytest.raises(jaxrl.UsageError, match=f"{name} of a rollout holds NaN or infinity"):
        learner.add(rollout.replace(trajectories=(played,)))
    assert learner.num_waiting == learner.algorithm.num_env_steps


@pytest.fixture(scope="module")
def server():
    with serving(experience=Experience(1, 1000)) as server:
        yield server


MESSAGES = {  # after a first action
    "obs": lambda number: {"type": "get_action", "obs": [number, 0.0, 0.0]},
    "obs in bytes": lambda number: {
        "type": "get_action",
        "obs": np.array([number, 0, 0], np.float32).tobytes(),
    },
    "the reward of an action": lambda number: {
        "type": "get_action",
        "obs": [0.0] * 3,
        "reward": number,
    },
    "reward": lambda number: {"type": "log_returns", "reward": {"default_agent": number}},
    "the last obs": lambda number: {
        "type": "end_episode",
        "obs": [number, 0.0, 0.0],
        "truncated": True,
    },
    "log_prob": lambda number: {
        "type": "log_action",
        "obs": [0.0] * 3,
        "action": 0,
        "log_prob": number,
    },
}


@pytest.mark.parametrize(("text", "number"), [(True, 1e39), *((False, each) for each in BEYOND)])
def test_a_server_drops_the_episode_that_a_client_says_them_of(server, text, number):
    with Frames(server, text=text) as client:
        for what, message in MESSAGES.items():
            if text and "bytes" in what:  # JSON has none
                continue
            client.begin()
            client.act([0.0] * 3)
            with np.errstate(over="ignore"):
                asked = {**message(number), "episode": "e"}
            identity = {} if asked["type"].startswith("log") else {"id": 2}
            answer = client.ask(**asked, **identity)
            assert answer["type"] == "error" and "finite" in answer["reason"], (what, answer)
        client.begin()
    assert server.served.experience.get(0.0) is None


def log_prob_of(space, action):
    spec = SMALL.policy_spec("one", ROW, space, 1)
    shapes = jax.eval_shape(spec.model.init, KEY)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    policy = Policy(spec, PolicyWeights(params, spec.initial_filter()), name="one")
    return policy.distribution(np.zeros(2)).log_prob(action)


@pytest.mark.parametrize(
    ("space", "inside", "outside"),
    [
        (Discrete(2), 1, 2),
        (Discrete(2), 0, -1),
        (Discrete(2), 1, 0.5),
        (Discrete(3, start=-1), -1, 2),
        (MultiDiscrete((2, 3)), np.array([1, 2]), np.array([2, 0])),
        (Box(0, 3, (2,), np.int32), np.array([0, 3]), np.array([0, 4])),
        (
            Tuple((Discrete(2), Box(-1.0, 1.0, (1,)))),
            (np.int32(1), np.zeros(1, np.float32)),
            (np.int32(2), np.zeros(1, np.float32)),
        ),
        (Tuple((Discrete(2), Discrete(2))), (np.int32(1), np.int32(1)), np.array([1, 1])),
    ],
)
def test_an_action_that_a_space_does_not_have_has_no_probability(space, inside, outside):
    assert np.isfinite(log_prob_of(space, inside))
    with refusal("log_prob takes actions of"):
        log_prob_of(space, outside)
