"""Trains policies with PPO: `python scripts/train_ppo.py --env arena`."""

from jaxrl.cli import train_ppo

if __name__ == "__main__":
    train_ppo()
