"""Training runs on the host: the trainer, results, console, logs, checkpoints and evaluation."""
