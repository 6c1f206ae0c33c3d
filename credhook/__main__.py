"""`python -m credhook` is `credhook`."""

from credhook.cli import main

main()
