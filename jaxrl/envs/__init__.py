"""Built-in environments, each with a short name: `jaxrl.make("arena")`.

Their source is the folder `envs/` at the top of the repository. An installed wheel has the modules
in this folder; in a checkout this package reads them from there. The stubs (`*.pyi`) tell type
checkers the same.
"""

from pathlib import Path

if not (Path(__file__).parent / "cartpole.py").exists():
    __path__.append(str(Path(__file__).resolve().parents[2] / "envs"))
