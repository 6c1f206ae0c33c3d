"""The scripts by which workers move events through the ledger, and jobs through RQ's lists beside it.

An event and its RQ job move in one step: there is no instant at which a job is in no list. RQ's records are written as
RQ writes them, so that `rq info` and its like show what is going on; tests/integration/test_rq_contract.py compares.
"""

from typing import Final

from credhook.store import lua

CLAIM: Final = lua.load("claim.lua")
TAKE_READ: Final = lua.load("take_read.lua")
REFUSE: Final = lua.load("refuse.lua")
WRITE: Final = lua.load("write.lua")
