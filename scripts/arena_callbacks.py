"""Example callbacks of the arena: `--callbacks scripts.arena_callbacks:ArenaMetrics`.

The hooks run inside the compiled program, as pure functions of arrays;
`jaxrl.rollout.episode_callbacks` says what each is given. Several classes chain: `--callbacks
scripts.arena_callbacks:ArenaMetrics scripts.arena_callbacks:Curiosity`.
"""

from dataclasses import dataclass

import jax.numpy as jnp

from jaxrl.rollout.episode_callbacks import EpisodeCallbacks


class ArenaMetrics(EpisodeCallbacks):
    """The arena's metrics counted again from its rewards; agents' returns; rewards by step."""

    def on_episode_start(self, state, params):
        return {"new_fields": jnp.int32(0), "collisions": jnp.int32(0)}

    def on_episode_step(self, data, step):
        return {
            "new_fields": data["new_fields"]
            + (step.rewards["agent1"] == 1.0),  # the explorer is paid 1 for these alone
            "collisions": data["collisions"]
            + (step.rewards["agent2"] == 1.0),  # and the hunter for those
        }

    def hist_data(self, data, step):
        return {f"{agent}_reward": reward for agent, reward in step.rewards.items()}

    def on_episode_end(self, data, episode):
        returns = {f"{agent}_return": value for agent, value in episode.agent_returns.items()}
        return {
            "explorer_new_fields": data["new_fields"],
            "hunter_collisions": data["collisions"],
            **returns,
        }


@dataclass(frozen=True)
class RewardScale(EpisodeCallbacks):
    """Every policy learns from its rewards times `scale`; what is reported stays as it is."""

    scale: float = 0.1

    def on_postprocess_trajectory(self, policy, trajectory):
        return trajectory.replace(reward=trajectory.reward * self.scale)


@dataclass(frozen=True)
class Curiosity(EpisodeCallbacks):
    """Pays agent1's policy for rarely visited cells: bonus / sqrt(visits in this batch)."""

    bonus: float = 0.5
    policy: str = "pol1"
    num_cells: int = 100  # of the arena

    def on_postprocess_trajectory(self, policy, trajectory):
        if policy != self.policy:
            return trajectory
        cells = trajectory.obs[..., 0]  # i32[T, E, M]  the agent's own
        visits = jnp.bincount(cells.reshape(-1), length=self.num_cells)
        return trajectory.replace(reward=trajectory.reward + self.bonus / jnp.sqrt(visits[cells]))
