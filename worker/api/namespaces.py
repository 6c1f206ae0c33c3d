"""The operations of the platform's API, grouped by noun. One definition serves both senders.

Each method returns the call for its arguments; `sent` passes the call to the namespace's sender. With an asynchronous
sender `api.users.list()` returns an awaitable, with a synchronous sender the users. The two overloads of `sent.__get__`
tell this to the type checker.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, overload

from pydantic import ValidationError

from credhook.events import PRESENTATION, RESOURCES
from credhook.worker.api import operations
from credhook.worker.api.errors import InvalidRequest
from credhook.worker.api.models import (
    MODELS,
    CertificateRecord,
    CertificateRequest,
    Endpoint,
    EndpointRequest,
    ExternalIdentifier,
    IdentityLink,
    IdentityLinkRequest,
    Issuance,
    ListedResource,
    MdocPreset,
    MdocPresetRequest,
    OfferRequest,
    OnboardingResult,
    Presentation,
    SdJwtPreset,
    SdJwtPresetRequest,
    Template,
    TrustedEntity,
    TrustedEntityRequest,
    User,
    UserRequest,
    WalletCredential,
)
from credhook.worker.api.operations import Call, Page, Reading
from credhook.worker.api.wire import mismatch

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class AsyncSender(Protocol):
    """Sends a call and awaits its result."""

    def send(self, call: Call[R]) -> Coroutine[Any, Any, R]:
        """Send the call."""


class SyncSender(Protocol):
    """Sends a call and returns its result."""

    def send(self, call: Call[R]) -> R:
        """Send the call."""


class Namespace(Generic[S]):
    """The operations of one noun."""

    def __init__(self, sender: S) -> None:
        self.sender = sender


class sent(Generic[P, R]):  # noqa: N801  It is used as a decorator, and those are written in lower case.
    """Turn a method that describes a call into a method that sends it.

    Arguments that cannot be sent are an `InvalidRequest`, raised when the method is called.
    """

    def __init__(self, describe: Callable[Concatenate[Any, P], Call[R]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, instance: Namespace[AsyncSender], owner: object) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, instance: Namespace[SyncSender], owner: object) -> Callable[P, R]: ...
    def __get__(self, instance: Namespace[Any], owner: object) -> Callable[P, Any]:
        return partial(self._send, instance)

    def _send(self, instance: Namespace[Any], *args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            call = self._describe(instance, *args, **kwargs)
        except ValidationError as error:
            wrong = mismatch(error)
        else:
            return instance.sender.send(call)
        name = self._describe.__qualname__.lower()
        raise InvalidRequest(f"{name}: {wrong}", operation=name)


class Resources(Namespace[S], Generic[S, R]):
    """The resources of one kind that events refer to."""

    def __init__(self, sender: S, operations: Reading[R]) -> None:
        super().__init__(sender)
        self._operations = operations

    @sent
    def get(self, id: str) -> Call[R]:  # noqa: A002  The platform's word.
        """Read one. A verifier can be set up so that a presentation's data is readable only once."""
        return self._operations.get(id=id)

    @sent
    def list(self) -> Call[tuple[R, ...]]:
        """Read the page that the platform gives first."""
        return self._operations.list()

    @sent
    def page(self, following: str = "") -> Call[Page[ListedResource]]:
        """Read a page of states, without personal data: the first page, or the `following` of another page."""
        return replace(self._operations.page(), query=following)


class Presentations(Resources[S, Presentation]):
    """Presentations, whose list can be filtered."""

    @sent
    def list(self, id: str | None = None) -> Call[tuple[Presentation, ...]]:  # noqa: A002  The platform's word.
        """Read the page that the platform gives first, or only the presentation with this id."""
        return self._operations.list(query={} if id is None else {"filter[id]": id})


class Endpoints(Namespace[S]):
    """Webhook endpoints of the organisation."""

    @sent
    def list(self) -> Call[tuple[Endpoint, ...]]:
        """Read all of them."""
        return operations.LIST_ENDPOINTS()

    @sent
    def create(self, request: EndpointRequest) -> Call[Endpoint]:
        """Register one."""
        return operations.CREATE_ENDPOINT(request)

    @sent
    def delete(self, id: str) -> Call[None]:  # noqa: A002  The platform's word.
        """Remove one."""
        return operations.DELETE_ENDPOINT(id=id)


class Presets(Namespace[S]):
    """Credential presets."""

    @sent
    def create(self, request: SdJwtPresetRequest | MdocPresetRequest) -> Call[SdJwtPreset | MdocPreset]:
        """Create one, in the format of the request."""
        return operations.CREATE_PRESET(request)


class Templates(Namespace[S]):
    """Credential templates."""

    @sent
    def get(self, id: str) -> Call[Template]:  # noqa: A002  The platform's word.
        """Read one."""
        return operations.GET_TEMPLATE(id=id)


class Certificates(Namespace[S]):
    """Certificates for signing requests."""

    @sent
    def import_(self, csr_id: str, request: CertificateRequest) -> Call[CertificateRecord]:
        """Import a certificate for a signing request."""
        return operations.IMPORT_CERTIFICATE(request, id=csr_id)


class TrustedEntities(Namespace[S]):
    """Issuers that the organisation trusts."""

    @sent
    def create(self, request: TrustedEntityRequest) -> Call[TrustedEntity]:
        """Register one."""
        return operations.CREATE_TRUSTED_ENTITY(request)


class Users(Namespace[S]):
    """Users of the tenant."""

    @sent
    def create(self, request: UserRequest) -> Call[OnboardingResult]:
        """Create a user, or resolve an existing one; `existed` on the result tells which."""
        return operations.CREATE_USER(request)

    @sent
    def list(self) -> Call[tuple[User, ...]]:
        """Read the tenant's users: the page that the platform gives first."""
        return operations.LIST_USERS()

    @sent
    def by_external_identifier(self, external_identifier: str) -> Call[User]:
        """Find a user by the name in another system of the tenant."""
        return operations.FIND_USER(externalIdentifier=external_identifier)

    @sent
    def external_identifier(self, username: str) -> Call[ExternalIdentifier]:
        """Read the name of a user in another system of the tenant."""
        return operations.GET_EXTERNAL_IDENTIFIER(username=username)

    @sent
    def link_identity(self, username: str, *, enabled: bool) -> Call[IdentityLink]:
        """Link a user to the tenant's identity provider, or remove the link. Repeating it changes nothing."""
        return operations.LINK_IDENTITY(IdentityLinkRequest(enabled=enabled), username=username)


class Wallet(Namespace[S]):
    """Credentials in the wallet."""

    @sent
    def accept(self, credential_offer: str) -> Call[tuple[WalletCredential, ...]]:
        """Accept a credential offer."""
        return operations.ACCEPT_OFFER(OfferRequest(credential_offer=credential_offer))


class Platform(Generic[S]):
    """The platform, noun by noun, for one sender. Each of `RESOURCES` is an attribute named after its namespace.

    Attributes:
        paths: Resource → path of its details, if that is not the default.
    """

    issuances: Resources[S, Issuance]
    presentations: Presentations[S]

    def __init__(self, sender: S, paths: Mapping[str, str]) -> None:
        self.paths: Final = paths
        for resource in RESOURCES:
            kind = Presentations if resource is PRESENTATION else Resources
            path = paths.get(resource.name, resource.path)
            reading = Reading[Any](resource.namespace, MODELS[resource.name], path)
            setattr(self, resource.namespace, kind(sender, reading))
        self.endpoints = Endpoints(sender)
        self.presets = Presets(sender)
        self.templates = Templates(sender)
        self.certificates = Certificates(sender)
        self.trusted_entities = TrustedEntities(sender)
        self.users = Users(sender)
        self.wallet = Wallet(sender)
