"""Builds the package `jaxrl.envs` from `envs/`; pyproject.toml declares everything else."""

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithEnvironments(build_py):
    """Copies the modules of `jaxrl.envs` from `envs/` into a wheel, as `jaxrl/envs/*.py`."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        if package == "jaxrl.envs":
            modules += super().find_package_modules(package, "envs")
        return modules


setup(cmdclass={"build_py": BuildWithEnvironments})
