"""`python -m credhook.receiver` is `credhook receiver`."""

import sys

from credhook.cli import main

main(["receiver", *sys.argv[1:]])
