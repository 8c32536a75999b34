"""A run on the host's clock: compiled chunks of updates, results, the live console, the run's folder."""
