"""The scripts by which workers move events through the ledger, and jobs through RQ's lists beside it.

An event and its RQ job move in one step: there is no instant at which a job is in no list. RQ's records are written as
RQ writes them, so that `rq info` and its like show what is going on; tests/integration/test_rq_contract.py compares.

All scripts take the same KEYS, `keys(index)`; the keys of single events, jobs and resources are built from arguments: a
cluster, which would want them declared, is refused at start (credhook/store/health.py).
"""

from typing import Final

from credhook.store import Keys, lua


def keys(index: Keys) -> list[str]:
    """KEYS of every script here."""
    return [
        index.open, index.leases, index.dead, index.jobs, index.scheduled, index.started, index.urgent,
        index.intermediate, index.locks, index.parked, index.refused, index.solitary, index.unhandled, index.opened,
        index.causes,
    ]  # fmt: skip


CLAIM: Final = lua.load("claim.lua")
TAKE_READ: Final = lua.load("take_read.lua")
REFUSE: Final = lua.load("refuse.lua")
WRITE: Final = lua.load("write.lua")
