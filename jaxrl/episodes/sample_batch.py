"""The steps of an episode as columns, as in RLlib's SampleBatch."""

from typing import Any

import numpy as np

from jaxrl.episodes.values import stack


def sample_batch(episode: Any) -> dict[str, Any]:
    """See `SingleAgentEpisode.get_sample_batch`."""
    count = len(episode)
    is_last = np.arange(count) == count - 1
    return {
        "eps_id": np.full(count, episode.id_),
        "t": np.arange(episode.t_started, episode.t),
        "obs": stack(episode.get_observations(slice(None, -1))),
        "actions": stack(episode.get_actions()),
        "rewards": stack(episode.get_rewards()),
        "new_obs": stack(episode.get_observations(slice(1, None))),
        "terminateds": is_last & episode.is_terminated,
        "truncateds": is_last & episode.is_truncated,
        "infos": episode.get_infos(slice(None, -1)),
        **{key: stack(column.get()) for key, column in episode.extra_model_outputs.items()},
    }
