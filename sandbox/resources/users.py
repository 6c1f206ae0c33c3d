"""Users of the tenant: onboarding, looking up, and the link to the tenant's identity provider."""

import secrets
from uuid import uuid4

from pydantic import ConfigDict, Field

from credhook.sandbox.http.errors import Refusal
from credhook.sandbox.http.wire import ABSENT, Wire
from credhook.sandbox.tenant.operations import Operation
from credhook.sandbox.tenant.state import Repository, State
from credhook.sandbox.tenant.tenant import Tenant

#: Alias of the tenant's identity provider.
IDP_ALIAS = "sandbox-idp"

#: One path segment: whatever a user is called must be able to stand in a URL.
NAME_PATTERN = r"^[^/.\x00-\x20\x7f][^/\x00-\x1f\x7f]{0,254}$"
#: Another system's name for somebody, slashes included; it stands at the end of a path, encoded.
IDENTIFIER_PATTERN = r"^[^/.\x00-\x20\x7f][^\x00-\x1f\x7f]{0,254}$"
EMAIL_PATTERN = r"^[^@/.\x00-\x20\x7f][^@/\x00-\x20\x7f]{0,127}@[^@/\x00-\x20\x7f]{1,127}$"

USERS = "/consumer-onboarding/api/users"


class NewUser(Wire):
    """The body of `POST /users`: at least one of `email` and `username`."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["email"]}, {"required": ["username"]}]})

    email: str = Field(ABSENT, pattern=EMAIL_PATTERN, repr=False)
    username: str = Field(ABSENT, pattern=NAME_PATTERN, repr=False)
    first_name: str = Field(ABSENT, repr=False)
    last_name: str = Field(ABSENT, repr=False)
    external_identifier: str = Field(ABSENT, pattern=IDENTIFIER_PATTERN, repr=False)


class User(Wire):
    """A user (specification, "User")."""

    id: str
    username: str = Field(repr=False)
    email: str = Field(repr=False)
    first_name: str = Field(repr=False)
    last_name: str = Field(repr=False)
    enabled: bool


class UserRecord(Wire):
    """A user and what only the platform knows of them. `external_identifier` is empty where there is none."""

    user: User
    external_identifier: str = Field(repr=False)
    linked: bool


class Onboarded(Wire):
    """What onboarding answers; `temp_password` is empty for an account that existed."""

    email: str = Field(repr=False)
    temp_password: str = Field(repr=False)


class ExternalIdentifier(Wire):
    """The name that the tenant's own systems have for a user."""

    external_identifier: str


class LinkWanted(Wire):
    """The body of `PATCH …/idp-link`."""

    enabled: bool


class IdentityLink(Wire):
    """Whether a user may come in through the tenant's identity provider."""

    username: str
    idp_alias: str
    linked: bool


def shelf(state: State) -> Repository[UserRecord]:
    """Return every user."""
    return state.shelf("users", UserRecord)


def onboard(tenant: Tenant, wanted: NewUser) -> Onboarded:
    """Create a user, or resolve the one who is there already.

    An account that exists stays as it is, but learns an external identifier if it had none.

    Raises:
        Refusal: With 400 if neither email nor username is given; with 409 if they belong to two accounts, or the
            external identifier to another account.
    """
    if wanted.email is None and wanted.username is None:
        raise Refusal(400, "At least one of email and username must be provided.")
    existing = _resolve(tenant.state, wanted)
    _check_external_identifier(tenant.state, wanted, existing)
    if existing:
        return _welcome_back(tenant.state, wanted, existing)
    record = _created(wanted)
    shelf(tenant.state).put(record.user.id, record)
    return Onboarded(email=record.user.email, temp_password=secrets.token_urlsafe(12))


def listed(tenant: Tenant) -> list[User]:
    """Return every user of the tenant."""
    return [record.user for record in shelf(tenant.state).all()]


def by_external_identifier(tenant: Tenant, external_identifier: str) -> User:
    """Return the user whom the tenant's own systems call this.

    Raises:
        Refusal: With 404 where there is none.
    """
    record = shelf(tenant.state).where("externalIdentifier", external_identifier)
    if record is None:
        raise Refusal(404, "There is no user with this external identifier.")
    return record.user


def external_identifier_of(tenant: Tenant, username: str) -> ExternalIdentifier:
    """Return what the tenant's own systems call a user.

    Raises:
        Refusal: With 404 for an unknown user, or one without an external identifier.
    """
    record = _named(tenant.state, username)
    if not record.external_identifier:
        raise Refusal(404, "The user has no external identifier.")
    return ExternalIdentifier(external_identifier=record.external_identifier)


def link(tenant: Tenant, username: str, wanted: LinkWanted) -> IdentityLink:
    """Create or remove the link to the tenant's identity provider; doing so again changes nothing.

    Raises:
        Refusal: With 404 for an unknown user.
    """
    record = _named(tenant.state, username)
    shelf(tenant.state).put(record.user.id, record.model_copy(update={"linked": wanted.enabled}))
    return IdentityLink(username=record.user.username, idp_alias=IDP_ALIAS, linked=wanted.enabled)


def _resolve(state: State, wanted: NewUser) -> UserRecord | None:
    """Return the account that email and username mean, if there is one; case does not tell accounts apart."""
    found = [
        record
        for field, value in (("user.email", wanted.email), ("user.username", wanted.username))
        if value is not None and (record := shelf(state).where(field, value.lower()))
    ]
    if len({record.user.id for record in found}) > 1:
        raise Refusal(409, "The email and the username belong to two accounts.")
    return found[0] if found else None


def _check_external_identifier(state: State, wanted: NewUser, existing: UserRecord | None) -> None:
    if wanted.external_identifier is None:
        return
    holder = shelf(state).where("externalIdentifier", wanted.external_identifier)
    if holder and (existing is None or holder.user.id != existing.user.id):
        raise Refusal(409, "The external identifier belongs to another account.")


def _welcome_back(state: State, wanted: NewUser, existing: UserRecord) -> Onboarded:
    if wanted.external_identifier is not None and not existing.external_identifier:
        known = existing.model_copy(update={"external_identifier": wanted.external_identifier})
        shelf(state).put(existing.user.id, known)
    return Onboarded(email=existing.user.email, temp_password="")


def _created(wanted: NewUser) -> UserRecord:
    email = (wanted.email or "").lower()
    user = User(
        id=str(uuid4()),
        username=(wanted.username or email).lower(),
        email=email,
        first_name=wanted.first_name or "",
        last_name=wanted.last_name or "",
        enabled=True,
    )
    return UserRecord(user=user, external_identifier=wanted.external_identifier or "", linked=False)


def _named(state: State, username: str) -> UserRecord:
    record = shelf(state).where("user.username", username.lower())
    if record is None:
        raise Refusal(404, "There is no user of this name.")
    return record


OPERATIONS = (
    Operation("POST", USERS, onboard, "Create a user, or resolve the one who exists.", status=201, refusals=(409,)),
    Operation("GET", USERS, listed, "List the users of the tenant."),
    Operation(
        "GET",
        f"{USERS}/by-external-identifier/{{externalIdentifier:path}}",
        by_external_identifier,
        "Find a user by external identifier.",
        refusals=(404,),
    ),
    Operation(
        "GET",
        f"{USERS}/{{username}}/external-identifier",
        external_identifier_of,
        "Read the external identifier of a user.",
        refusals=(404,),
    ),
    Operation(
        "PATCH",
        f"{USERS}/{{username}}/idp-link",
        link,
        "Create or remove the link to the tenant's identity provider.",
        refusals=(404,),
    ),
)
