"""Evaluates a run's policies: `python scripts/evaluate.py RUN [--episodes 100] [--explore]`."""

from jaxrl.cli import evaluate

if __name__ == "__main__":
    evaluate()
