"""Writes the page of a run as one file: `python scripts/report.py RUN [--out report.html]`."""

from jaxrl.cli import report

if __name__ == "__main__":
    report()
