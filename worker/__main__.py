"""`python -m credhook.worker` is `credhook worker`."""

import sys

from credhook.cli import main

main(["worker", *sys.argv[1:]])
