"""The platform in this process: the sandbox with its state in memory, which delivers nothing and listens nowhere."""

import json
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from credhook.sandbox.access import TokenIssuer
from credhook.sandbox.app import load_fixtures
from credhook.sandbox.certificates import ImportedCertificate, RegisteredEntity
from credhook.sandbox.deliveries import Registration
from credhook.sandbox.resources import IssuanceRecord, PresentationRecord
from credhook.sandbox.templates import PresetRecord
from credhook.sandbox.tenant import Faults, FaultSwitch, StateFile, Tenant, utc_now
from credhook.sandbox.users import UserRecord
from credhook.sandbox.wire import WireModel

#: Where it would listen.
URL: Final = "http://127.0.0.1:8700"
TOKEN_PATH: Final = "/realms/sandbox/protocol/openid-connect/token"  # noqa: S105  A path.

#: What differs between two runs that come to the same: ids that the platform makes up, and times.
_VOLATILE: Final = frozenset({"id", "certificateId", "createdAt", "updatedAt", "archivedAt", "expiresAt", "iat"})

_RECORDS: Final[Mapping[str, type[WireModel]]] = {
    "users": UserRecord,
    "presets": PresetRecord,
    "trusted_entities": RegisteredEntity,
    "certificates": ImportedCertificate,
    "endpoints": Registration,
    "issuances": IssuanceRecord,
    "presentations": PresentationRecord,
}


def new_tenant(now: Callable[[], datetime] = utc_now) -> Tenant:
    """An organisation that has what every sandbox begins with."""
    tenant = Tenant(
        URL,
        StateFile(),
        TokenIssuer(time.time),
        FaultSwitch(Faults()),
        lambda event_type, resource_id: [],  # noqa: ARG005  Nothing is delivered.
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
        noun: sorted((_lasting(record.plain()) for record in tenant.state.of(model).all()), key=json.dumps)
        for noun, model in _RECORDS.items()
    }


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(each) for name, each in value.items() if name not in _VOLATILE}
    return [_lasting(each) for each in value] if isinstance(value, list) else value
