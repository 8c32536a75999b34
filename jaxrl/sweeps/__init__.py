"""Many trainings at once: what to try, in which programs, and what came of it."""
