"""Trains many trials: `python scripts/sweep.py --env cartpole --grid lr=1e-4,1e-3 --seeds 8`."""

from jaxrl.cli import run_sweep

if __name__ == "__main__":
    run_sweep()
