"""The platform in this process: the sandbox with its state in memory, which delivers nothing and listens nowhere."""

import json
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from credhook.sandbox.deliveries import endpoints
from credhook.sandbox.http.tokens import Tokens
from credhook.sandbox.resources import certificates, issuances, presentations, presets, trusted_entities, users
from credhook.sandbox.tenant.authority import Authority
from credhook.sandbox.tenant.faults import Faults, FaultSwitch
from credhook.sandbox.tenant.state import Repository, State
from credhook.sandbox.tenant.tenant import Tenant, utc_now
from credhook.sandbox.triggers.fixtures import load_fixtures

#: Where it would listen.
URL: Final = "http://127.0.0.1:8700"
TOKEN_PATH: Final = "/realms/sandbox/protocol/openid-connect/token"  # noqa: S105  A path.

#: What differs between two runs that come to the same: ids that the platform makes up, and times.
_VOLATILE: Final = frozenset({"id", "certificateId", "createdAt", "updatedAt", "archivedAt", "expiresAt", "iat"})

_SHELVES: Final[Mapping[str, Callable[[State], Repository[Any]]]] = {
    "users": users.shelf,
    "presets": presets.shelf,
    "trusted_entities": trusted_entities.shelf,
    "certificates": certificates.records,
    "endpoints": endpoints.shelf,
    "issuances": issuances.shelf,
    "presentations": presentations.shelf,
}


def new_tenant(now: Callable[[], datetime] = utc_now) -> Tenant:
    """An organisation that has what every sandbox begins with."""
    tenant = Tenant(
        URL,
        State(),
        Tokens(time.time),
        FaultSwitch(Faults()),
        lambda event_type, resource_id: [],  # noqa: ARG005  Nothing is delivered.
        Authority.create(),
        now,
    )
    load_fixtures(tenant)
    weakref.finalize(tenant, tenant.state.close)
    return tenant


def effects(tenant: Tenant) -> dict[str, list[Any]]:
    """What its state has come to, by noun, in an order that does not depend on when each was made.

    Ids that the platform makes up and times are left out: they differ between runs that come to the same.
    """
    return {
        noun: sorted((_lasting(record.plain()) for record in shelf(tenant.state).all()), key=json.dumps)
        for noun, shelf in _SHELVES.items()
    }


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(each) for name, each in value.items() if name not in _VOLATILE}
    return [_lasting(each) for each in value] if isinstance(value, list) else value
