"""`python -m worker` is `credhook worker`."""

import sys

from credhook import main

main([__package__ or "worker", *sys.argv[1:]])
