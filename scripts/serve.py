"""Serves the policies of a run to other programs: `python scripts/serve.py RUN [--port 9944]`."""

from jaxrl.cli import serve

if __name__ == "__main__":
    serve()
