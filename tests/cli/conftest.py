"""A run for the commands that only read it."""

import pytest


@pytest.fixture
def run(trained):
    return str(trained.run_dir)
