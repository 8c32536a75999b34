"""Builds `jaxrl.envs`, and what is in it, from `envs/`; pyproject.toml declares the rest."""

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithEnvironments(build_py):
    """Copies the modules below `envs/` into a wheel, as those below `jaxrl/envs/`."""

    def find_package_modules(self, package, package_dir):
        modules = super().find_package_modules(package, package_dir)
        if package.startswith("jaxrl.envs"):
            folder = package.removeprefix("jaxrl.").replace(".", "/")
            modules += super().find_package_modules(package, folder)
        return modules


setup(cmdclass={"build_py": BuildWithEnvironments})
