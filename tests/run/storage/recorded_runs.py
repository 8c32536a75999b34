"""The configurations of the runs in tests/reference, and what is noted of their results."""

import hashlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl
from jaxrl.core.spaces import Box
from tests.core.environments import Corridor
from tests.probes import Joining

PICTURES, GAME = "recorded-pictures", "recorded-game"
RETURN = "env_runners/episode_return_mean"


@dataclass(frozen=True)
class Pictures(Corridor):
    """The corridor as a picture of 2 x 6 x 6 bytes, which that version read as 2 rows."""

    def observation_space(self, params=None):
        return Box(0, 255, (2, 6, 6), np.uint8)

    def observe(self, state):
        column = jnp.clip(state.position * 2, 0, 5).astype(jnp.int32)
        row = jax.nn.one_hot(column, 6) * 255
        return jnp.broadcast_to(row, (2, 6, 6)).astype(jnp.uint8)


class Counting(jaxrl.Callbacks):
    """Counts the steps of an episode, from 100 on."""

    def on_episode_start(self, state, params):
        return {"steps": jnp.int32(100)}

    def on_episode_step(self, data, step):
        return {"steps": data["steps"] + 1}

    def on_episode_end(self, data, episode):
        return {"counted": data["steps"]}


SMALL = {
    "num_envs": 2,
    "rollout_length": 8,
    "minibatch_size": 8,
    "num_epochs": 1,
    "total_env_steps": 64,
    "fcnet_hiddens": (4,),
    "metrics_num_episodes_for_smoothing": 4,
}
ARENA = {"env": "arena", "env_args": {"height": 4, "width": 4, "max_steps_in_episode": 5}}
MODEL = "jaxrl.models.rotation_network:RotationNetwork(units=(2, 2))"
RUNS = {  # of a5ee728: settings of a PPOConfig
    # one agent: an LSTM, a filter and scaled rewards
    "cartpole": dict(
        env="cartpole",
        use_lstm=True,
        lstm_cell_size=4,
        max_seq_len=4,
        observation_filter="MeanStdFilter",
        normalize_returns=True,
        **SMALL,
    ),
    # two policies, one of which is played by a pool
    "arena": dict(
        **ARENA,
        policies={"pol1": ("agent1",), "pol2": ("agent2",)},
        policies_to_train=("pol1",),
        opponents=jaxrl.OpponentPool(size=2, every=1, fixed={"random": "random"}),
        **SMALL,
    ),
    # a curriculum, whose tasks and returns are in the environments' state
    "levels": dict(
        env="cartpole",
        curriculum=jaxrl.LevelsBySuccess(
            ({"max_steps_in_episode": 4}, {"max_steps_in_episode": 16}), window=2, solved_at=3.0
        ),
        **SMALL,
    ),
    # a network of pursuit's, which was in jaxrl.models
    "turned": dict(
        env="pursuit",
        env_args={"n_pursuers": 2, "n_evaders": 2, "x_size": 5, "y_size": 5},
        per_policy={"pursuer_1": {"model": MODEL}},
        conv_filters=((2, 3, 2),),
        policies={name: (name,) for name in ("pursuer_0", "pursuer_1")},
        **SMALL,
    ),
    "pictures": dict(env=PICTURES, conv_filters=((2, 3, 2),), **SMALL),
}
LATER_RUNS = {
    # of 5b99be5, with all that a rollout may do beside playing: agents that wait, with memory; a
    # pool; a critic that is told who is present; scaled rewards; the data of a callback
    "game": dict(
        env=GAME,
        use_lstm=True,
        lstm_cell_size=4,
        max_seq_len=4,
        policies={"first": ("late",), "second": ("early",)},
        policies_to_train=("first",),
        opponents=jaxrl.OpponentPool(size=2, every=1, fixed={"random": "random"}),
        critic_observation="all-agents",
        normalize_returns=True,
        callbacks=(f"{__name__}:Counting",),
        **(SMALL | {"rollout_length": 12, "minibatch_size": 24, "total_env_steps": 96}),
    ),
}
GAMES = {PICTURES: Pictures, GAME: Joining}  # environments by the names that runs have for them
CARTPOLE = jaxrl.PPOConfig(**RUNS["cartpole"])
SEEN = {  # observations to act on
    "cartpole": [[0.0, 0.1, -0.1, 0.2], [0.5, -0.5, 0.1, -0.1]],
    "arena": [[3, 4], [0, 15]],
    "turned": [np.zeros((7, 7, 3)), np.eye(21, 7).reshape(7, 7, 3)],
    "levels": [[0.0, 0.1, -0.1, 0.2], [0.5, -0.5, 0.1, -0.1]],
    "pictures": [np.zeros((2, 6, 6), np.uint8), np.full((2, 6, 6), 200, np.uint8)],
    "game": [[1.0], [100.0]],
}


def digest(array):
    """A digest of an array's form and bits."""
    form = f"{array.dtype}{list(array.shape)}".encode()
    return hashlib.sha256(form + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def learned(result):
    """{policy: numbers that it learned with in the iteration of a result}."""
    keys = "total_loss", "entropy"
    return {
        policy: {key: float(values[key]) for key in keys if key in values}
        for policy, values in result["learners"].items()
        if policy != "__all_modules__"
    }


def chosen(path, policy, observations):
    """The actions of a run's policy, one after the other."""
    acting = jaxrl.load_policy(path, policy, trust=True)
    return [np.asarray(acting.act(obs)).tolist() for obs in observations]


def steps_of(episode):
    """What an episode of one agent, or of several, holds."""
    agents = getattr(episode, "agent_episodes", {"": episode})
    return {
        str(agent): {
            "id": steps.id_,
            "observations": np.asarray(steps.get_observations()).tolist(),
            "actions": np.asarray(steps.get_actions()).tolist(),
            "rewards": np.asarray(steps.get_rewards()).tolist(),
            "ends": [steps.is_terminated, steps.is_truncated],
        }
        for agent, steps in agents.items()
    }
