"""Run `credhook` with `python -m credhook`."""

from credhook.cli import main

main()
