"""RLlib's configurations, read as this library's: `jaxrl.from_rllib`."""
