"""The environments that come with jaxrl, each announced by name: `jaxrl.make("arena")`.

Their source is the folder `envs/` at the top of the repository. An installed wheel holds the
modules in this very folder; in a checkout this package reads them from there. The stubs (`*.pyi`)
say the same to type checkers.
"""

from pathlib import Path

if not (Path(__file__).parent / "cartpole.py").exists():
    __path__.append(str(Path(__file__).resolve().parents[2] / "envs"))
