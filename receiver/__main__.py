"""`python -m credhook.receiver` is `credhook receiver`."""

import sys

from credhook.cli import run

run(["receiver", *sys.argv[1:]])
