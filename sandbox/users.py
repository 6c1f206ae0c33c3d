"""Users of the tenant: onboarding, looking up, and the link to the tenant's identity provider."""

import secrets
from uuid import uuid4

from pydantic import ConfigDict, Field
from starlette.exceptions import HTTPException

from credhook.sandbox.operations import Listing, PageQuery, operation, page_of
from credhook.sandbox.tenant import Tenant
from credhook.sandbox.wire import ABSENT, WireModel

USERS = "/consumer-onboarding/api/users"


class NewUser(WireModel):
    """The body of `POST /users`: at least one of `email` and `username`."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["email"]}, {"required": ["username"]}]})

    email: str = Field(ABSENT, min_length=1, repr=False)
    username: str = Field(ABSENT, min_length=1, repr=False)
    first_name: str = Field(ABSENT, repr=False)
    last_name: str = Field(ABSENT, repr=False)
    external_identifier: str = Field(ABSENT, min_length=1, repr=False)


class SandboxUser(WireModel):
    """A user (specification, "User")."""

    id: str
    username: str = Field(repr=False)
    email: str = Field(repr=False)
    first_name: str = Field(repr=False)
    last_name: str = Field(repr=False)
    enabled: bool


class UserRecord(SandboxUser):
    """A user and what only the platform knows. `external_identifier` is empty if there is none."""

    external_identifier: str = Field(repr=False)
    linked: bool


class OnboardingAnswer(WireModel):
    """The answer of onboarding. `temp_password` is empty if the account existed."""

    email: str = Field(repr=False)
    temp_password: str = Field(repr=False)


class ExternalIdentifierAnswer(WireModel):
    """The name of a user in the tenant's own systems."""

    external_identifier: str


class LinkRequest(WireModel):
    """The body of `PATCH …/idp-link`."""

    enabled: bool


class LinkAnswer(WireModel):
    """The link of a user to the tenant's identity provider."""

    username: str
    idp_alias: str
    linked: bool


@operation("POST", USERS, status=201)
def onboard(tenant: Tenant, body: NewUser) -> OnboardingAnswer:
    """Create a user or resolve an existing account, which only gains an external identifier if it had none.

    Answer 400 without email and username, and 409 if they and the external identifier belong to different accounts.
    """
    if body.email is None and body.username is None:
        raise HTTPException(400, "At least one of email and username must be provided.")
    state = tenant.state
    # Accounts do not differ by case alone.
    email, username, external = (body.email or "").lower(), (body.username or "").lower(), body.external_identifier
    by_email = state.where(UserRecord, "email", email) if email else None
    by_name = state.where(UserRecord, "username", username) if username else None
    existing = by_email or by_name
    holder = state.where(UserRecord, "externalIdentifier", external) if external else None
    if by_email and by_name and by_email.id != by_name.id:
        raise HTTPException(409, "The email and the username belong to two accounts.")
    if holder and (existing is None or holder.id != existing.id):
        raise HTTPException(409, "The external identifier belongs to another account.")
    if existing:
        if external and not existing.external_identifier:
            state.put(existing.id, existing.model_copy(update={"external_identifier": external}))
        return OnboardingAnswer(email=existing.email, temp_password="")
    user = UserRecord(
        id=str(uuid4()),
        username=username or email,
        email=email,
        first_name=body.first_name or "",
        last_name=body.last_name or "",
        enabled=True,
        external_identifier=external or "",
        linked=False,
    )
    state.put(user.id, user)
    return OnboardingAnswer(email=email, temp_password=secrets.token_urlsafe(12))


@operation("GET", USERS)
def list_users(tenant: Tenant, query: PageQuery) -> Listing[list[SandboxUser]]:
    """Return a page of the tenant's users."""
    return page_of(tenant, UserRecord, USERS, query)


@operation("GET", f"{USERS}/by-external-identifier/{{externalIdentifier:path}}")
def find_user(tenant: Tenant, external_identifier: str) -> SandboxUser:
    """Return the user with an external identifier."""
    return _find(tenant, "externalIdentifier", external_identifier)


@operation("GET", f"{USERS}/{{username:path}}/external-identifier")
def read_external_identifier(tenant: Tenant, username: str) -> ExternalIdentifierAnswer:
    """Return the external identifier of a user, or answer 404 if the user has none."""
    record = _find(tenant, "username", username.lower())
    if not record.external_identifier:
        raise HTTPException(404, "The user has no external identifier.")
    return ExternalIdentifierAnswer(external_identifier=record.external_identifier)


@operation("PATCH", f"{USERS}/{{username:path}}/idp-link")
def link(tenant: Tenant, username: str, body: LinkRequest) -> LinkAnswer:
    """Create or remove the link to the tenant's identity provider. The operation is idempotent."""
    record = _find(tenant, "username", username.lower())
    tenant.state.put(record.id, record.model_copy(update={"linked": body.enabled}))
    return LinkAnswer(username=record.username, idp_alias="sandbox-idp", linked=body.enabled)


def _find(tenant: Tenant, field: str, value: str) -> UserRecord:
    record = tenant.state.where(UserRecord, field, value)
    if record is None:
        raise HTTPException(404, "There is no such user.")
    return record
