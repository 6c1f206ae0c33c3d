"""`python -m receiver` is `credhook receiver`."""

import sys

from credhook import main

main([__package__ or "receiver", *sys.argv[1:]])
