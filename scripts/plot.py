"""Draws the learning curves of runs: `python scripts/plot.py RUN [RUN ...] [--out curves.pdf]`."""

from jaxrl.cli import plot

if __name__ == "__main__":
    plot()
