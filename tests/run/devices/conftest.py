"""A compile cache for one test."""

import warnings

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxrl.run.devices import compile_cache

SETTINGS = (
    "jax_enable_compilation_cache",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture
def jax_as_it_was():
    """JAX with its cache allowed and none in use, and afterwards as it was before."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    with warnings.catch_warnings():
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_compilation_cache_dir", None)
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def said():
    return []


@pytest.fixture
def cache(tmp_path, said, jax_as_it_was):
    """A cache in use, its first line forgotten."""
    folder = compile_cache.use(str(tmp_path / "cache"), said.append)
    said.clear()
    return folder
