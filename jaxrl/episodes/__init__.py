"""Episodes as data on the host: recorded step by step, cut, sliced, joined and read with NumPy."""

from jaxrl.episodes.minari_datasets import from_minari, to_minari
from jaxrl.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl.episodes.parquet import EpisodeWriter, read_episodes
from jaxrl.episodes.single_agent_episode import SingleAgentEpisode

__all__ = [
    "EpisodeWriter",
    "MultiAgentEpisode",
    "SingleAgentEpisode",
    "from_minari",
    "read_episodes",
    "to_minari",
]
