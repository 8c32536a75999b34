"""Shows what a folder of episodes holds: `python scripts/episodes.py DIR [--show 0]`."""

from jaxrl.cli import episodes

if __name__ == "__main__":
    episodes()
