"""What every algorithm shares: policies over agents, rollouts, episode statistics, the state of a run."""
