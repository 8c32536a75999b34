"""`python -m jaxrl`: the command `jaxrl`."""

import os
import sys
from pathlib import Path

import jaxrl


def forget_this_folder() -> None:
    """Removes the current folder, which `python -m` adds, from the path: it may be a stranger's.

    Commands that run modules of the user's add it themselves. It stays if jaxrl itself is imported
    from it.
    """
    here = os.getcwd()
    package_parent = Path(jaxrl.__file__).parents[1]
    if (
        not sys.flags.safe_path
        and sys.path[:1] == [here]
        and not os.path.samefile(here, package_parent)
    ):
        del sys.path[0]


if __name__ == "__main__":
    forget_this_folder()
    from jaxrl.cli.main import main

    main()
