"""`python -m credhook.worker` is `credhook worker`."""

import sys

from credhook.cli import run

run(["worker", *sys.argv[1:]])
