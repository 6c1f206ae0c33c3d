"""Trusted entities: issuers that the organisation believes, known by DIDs or certificates."""

from datetime import datetime
from uuid import uuid4

from pydantic import Field, JsonValue

from credhook.sandbox.http.wire import ABSENT, Wire
from credhook.sandbox.tenant.operations import Operation
from credhook.sandbox.tenant.state import Repository, State
from credhook.sandbox.tenant.tenant import Tenant

#: The syntax of a DID (W3C DID Core, 3.1), without the parts that point into its document.
DID_PATTERN = r"^did:[a-z0-9]+:[A-Za-z0-9._:%-]+$"


class NamedDid(Wire):
    """A DID and what people call it."""

    did: str = Field(pattern=DID_PATTERN)
    name: str


class NewTrustedEntity(Wire):
    """The body of `POST /trusted-entities`."""

    name: str
    dids: list[NamedDid] = ABSENT
    certificates: list[JsonValue] = ABSENT


class TrustedEntity(Wire):
    """A trusted entity (specification, "Trusted entity")."""

    id: str
    name: str
    created_at: datetime
    updated_at: datetime
    dids: list[NamedDid]
    certificates: list[JsonValue]


def shelf(state: State) -> Repository[TrustedEntity]:
    """Return every trusted entity."""
    return state.shelf("trusted-entities", TrustedEntity)


def create(tenant: Tenant, wanted: NewTrustedEntity) -> TrustedEntity:
    """Register an issuer. Certificates are kept as they come: the specification does not show their shape."""
    now = tenant.now()
    entity = TrustedEntity(
        id=str(uuid4()),
        name=wanted.name,
        created_at=now,
        updated_at=now,
        dids=wanted.dids or [],
        certificates=wanted.certificates or [],
    )
    shelf(tenant.state).put(entity.id, entity)
    return entity


OPERATIONS = (Operation("POST", "/me-creds/api/trusted-entities", create, "Register a trusted entity.", status=201),)
