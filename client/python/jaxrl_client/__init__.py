"""Client of a jaxrl policy server: asks it for actions, or plays its policies here, in NumPy."""

from jaxrl_client.client import EpisodeLost, PolicyClient, ServerError

__all__ = ["EpisodeLost", "PolicyClient", "ServerError"]
