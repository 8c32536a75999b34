"""Trains policies on recorded episodes: `python scripts/train_bc.py --input DIR --env cartpole`."""

from jaxrl.cli import train_bc

if __name__ == "__main__":
    train_bc()
