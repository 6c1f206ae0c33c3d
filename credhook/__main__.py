"""Run `credhook` with `python -m credhook`."""

from credhook.cli import run

run()
