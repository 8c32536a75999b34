"""Writes an episode as a picture: `python scripts/render.py RUN [--out episode.gif]`."""

from jaxrl.cli import render

if __name__ == "__main__":
    render()
