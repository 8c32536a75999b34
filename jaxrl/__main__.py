"""`python -m jaxrl`: the command `jaxrl`."""

from jaxrl.cli.main import main

if __name__ == "__main__":
    main()
