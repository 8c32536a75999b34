"""Shows a run in the browser while it trains: `python scripts/watch.py RUN [--port 8765]`."""

from jaxrl.cli import watch

if __name__ == "__main__":
    watch()
