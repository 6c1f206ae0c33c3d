"""Every operation of the platform, as data, grouped by noun. One table serves both senders.

Called with its values, an operation returns a `Call`: `Templates.get("…")`. As an attribute of a client it sends that
call: `api.templates.get("…")` returns an awaitable with an asynchronous sender, and the template with a synchronous
sender. The overloads of `Operation.__get__` tell this to the type checker.

Values are positional: those of the path, then the body. The fields of a body can also be given by name.
"""

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, Protocol, Self, TypeVar, get_args, overload
from urllib.parse import quote, unquote, urljoin, urlsplit

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json
from typing_extensions import ParamSpec

from credhook.events import RESOURCES, Resource
from credhook.urls import normal_url
from credhook.worker.api import models
from credhook.worker.api.errors import InvalidRequest
from credhook.worker.api.models import ListedResource, RequestModel, mismatch, model_of, path_segment

P = ParamSpec("P", default=...)
R = TypeVar("R")
S = TypeVar("S")

#: Most ids: nothing in them is encoded. Checking and encoding take 4 us more.
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9_~-]{1,512}")
#: Maximum characters of a link to the next page.
_LONGEST_LINK: Final = 4_096


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """Part of a list."""

    items: tuple[R, ...]
    """The elements of this page."""
    following: str | None
    """The argument of `page(…)` for the next page of the same list; None on the last page."""
    size: int = 0
    """Bytes of the answer."""
    raw: Any = field(default=None, repr=False, compare=False)
    """The whole JSON of the answer, with `links`, `meta` and `errors` beside its data."""


class Elements(tuple[R, ...]):  # noqa: SLOT001  A tuple can have no slots of its own.
    """A list that was read to its end.

    Attributes:
        raw: the whole JSON of the last answer, with `links`, `meta` and `errors` beside its data.
    """

    raw: Any

    def __new__(cls, items: Iterable[R], raw: Any = None) -> Self:
        """Make the tuple."""
        elements = super().__new__(cls, items)
        elements.raw = raw
        return elements


def following(document: object, url: str = "", root: str = "") -> str | None:
    """Return what `links.next` leads to, or None if there is no such link.

    `url`: of the page that has the link, which may be relative. `root`: the API's root.

    The result is a query for the same path, or a path below the API's root with its query. Of a link to another origin
    only the query is followed: no answer leads there, and behind a proxy the platform may not know its own name.

    Raises:
        ValueError: the link leads nowhere else, or is not a link.
    """
    links = document.get("links") if isinstance(document, dict) else None
    link: Any = links.get("next") if isinstance(links, Mapping) else None
    if isinstance(link, Mapping):  # JSON:API's other form.
        link = link.get("href")
    if link is None or link == "":
        return None
    if not isinstance(link, str) or len(link) > _LONGEST_LINK:
        raise ValueError("links.next is no link")
    target = urlsplit(urljoin(url, link.strip()))
    path, query = target.path, _encoded(target.query)
    root_path = urlsplit(root).path.rstrip("/")
    below = _encoded(path.removeprefix(root_path))
    is_ours = normal_url(target.geturl()).netloc == normal_url(url).netloc and path.startswith(f"{root_path}/")
    if is_ours and below != urlsplit(url).path.removeprefix(root_path):
        following_page = f"{below}?{query}" if query else below
        if _is_target(following_page):
            return following_page
    if not query:
        raise ValueError("links.next leads to no other page")
    return query


#: A percent sign that encodes nothing.
_STRAY_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")


def _encoded(text: str) -> str:
    """Encode what may not stand in a path or a query, and leave the rest as the platform wrote it."""
    return quote(_STRAY_PERCENT.sub("%25", text), safe="/?:@!$&'()*+,;=~%")


@dataclass(slots=True)
class Call(Generic[R]):  # Not frozen, as in http/exchange.py.
    """An operation with its values: ready to send.

    `path` is percent-encoded, begins with `/`, is relative to the API's root and includes the query. `asked_for` is the
    id that the answer has to carry, if any. The repr hides path and body, since they may hold personal data.
    """

    operation: "Operation[R]"
    path: str
    body: bytes | None = None
    asked_for: str | None = None

    def __repr__(self) -> str:
        return f"Call({self.operation.name})"


class AsyncSender(Protocol):
    """Sends a call and awaits its result."""

    def send(self, call: Call[R]) -> Coroutine[Any, Any, R]:
        """Send the call."""


class SyncSender(Protocol):
    """Sends a call and returns its result."""

    def send(self, call: Call[R]) -> R:
        """Send the call."""


class Namespace(Generic[S]):
    """The operations of one noun, for one sender."""

    def __init__(self, sender: S) -> None:
        self._sender = sender


Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Operation(Generic[R, P]):
    """One thing that the platform does.

    Args:
        name: `noun.verb`, as errors report it and as the client's namespaces spell it.
        path: Path below the API's root, with placeholders.
        result: Type that the answer is read as; left out where there is nothing to read, or a list.
        each: Type that each element of a list is read as.
        body: Type of the body, if it has one.
        paged: The result is a `Page` of such elements, which says where the list goes on.
        raw: The result is the answer's JSON as it came.
    """

    def __init__(
        self,
        name: str,
        method: Method,
        path: str,
        result: Any = None,
        *,
        each: Any = None,
        body: Any = None,
        paged: bool = False,
        raw: bool = False,
    ) -> None:
        self.name, self.method, self.path = name, method, path
        self.result: TypeAdapter[R] | None = result and TypeAdapter(result)
        self.each: TypeAdapter[Any] | None = each and TypeAdapter(each)
        self.paged, self.raw = paged, raw
        #: True for a list that a client reads to its end, page by page.
        self.is_list = method == "GET" and each is not None and not paged
        self.body = body
        self.placeholders = re.findall(r"{(\w+)}", path)

    @overload
    def __get__(self, namespace: None, owner: object) -> Self: ...
    @overload
    def __get__(self, namespace: Namespace[AsyncSender], owner: object) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, namespace: Namespace[SyncSender], owner: object) -> Callable[P, R]: ...
    def __get__(self, namespace: Namespace[Any] | None, owner: object) -> Any:
        return self if namespace is None else self.bound_to(namespace._sender)  # noqa: SLF001  Not for authors.

    def bound_to(self, sender: Any) -> Callable[..., Any]:
        """Return a function that sends this operation with its values."""
        return lambda *values, **fields: sender.send(self(*values, **fields))

    def __call__(self, *values: P.args, **fields: P.kwargs) -> Call[R]:
        """Fill in the values of the path, then the body or its fields, or the query of a page.

        Raises:
            InvalidRequest: A value cannot be sent. The message does not repeat it.
            TypeError: There are too few or too many values, or the body is of another type.
        """
        if fields and self.body is None:
            raise TypeError(f"{self.name} takes its values by position, not by name")
        expected = len(self.placeholders) + (self.body is not None or self.paged)
        arguments: tuple[Any, ...] = (*values, self._from_fields(fields)) if fields else values
        if len(arguments) != expected:
            raise TypeError(f"{self.name} takes {expected} values, not {len(arguments)}")
        path = self.path
        for name, value in zip(self.placeholders, arguments, strict=False):
            path = path.replace(f"{{{name}}}", self._segment(name, value))
        # A GET by id answers with this id. Other methods may answer with something else about it.
        call: Call[R] = Call(
            self, path, asked_for=arguments[0] if self.method == "GET" and self.placeholders == ["id"] else None
        )
        if self.body is not None:
            if not isinstance(arguments[-1], self.body):
                raise TypeError(f"{self.name} does not take {type(arguments[-1]).__name__} as its body")
            call.body = arguments[-1].model_dump_json(exclude_none=True).encode()
        elif self.paged and arguments[-1]:
            call.path = self._page_path(path, arguments[-1])
        return call

    def _page_path(self, path: str, page: str) -> str:
        """Return the path of a page: `page` is a query, or a path of its own as `following` gives it."""
        if not page.startswith("/"):
            return f"{path}?{page}"
        if not _is_target(page):
            raise InvalidRequest(f"{self.name}: should be `following` of another page", operation=self.name)
        return page

    def _segment(self, name: str, value: str) -> str:
        if isinstance(value, str) and _UNRESERVED.fullmatch(value):
            return value
        try:
            return quote(path_segment(value), safe="")
        except ValueError as error:
            raise InvalidRequest(f"{self.name}: {name} {error}", operation=self.name) from None

    def _from_fields(self, fields: Mapping[str, Any]) -> RequestModel:
        try:
            return TypeAdapter[RequestModel](self.body).validate_python(fields)
        except ValidationError as error:  # It holds the values.
            raise InvalidRequest(f"{self.name}: {mismatch(error)}", operation=self.name) from None


_REQUESTS: Final = {method: Operation[Any]("request", method, "", raw=True) for method in get_args(Method)}
#: Segments and a query of RFC 3986, percent-encoded.
_TARGET: Final = re.compile(
    r"(?P<path>(/(?!/)([\w.~!$&'()*+,;=:@-]|%[0-9a-f]{2})*)+)(\?([\w.~!$&'()*+,;=:@/?\[\]-]|%[0-9a-f]{2})*)?",
    re.ASCII | re.IGNORECASE,
)


def _is_target(path: str) -> bool:
    """Return True if the path, with its query, can be appended to the API's root and does not climb."""
    target = _TARGET.fullmatch(path)
    return target is not None and {".", ".."}.isdisjoint(re.split(r"[/\\]", unquote(target["path"])))


def request(method: Method, path: str, json: Any = None) -> Call[Any]:
    """Return the call of an operation that has no name here.

    The path, with its query, is appended to the API's root. So it cannot lead to another host, and it may not climb.

    Raises:
        InvalidRequest: The method, the path or the body cannot be sent. The message repeats none of them.
    """
    wrong = ""
    if method not in _REQUESTS:
        wrong = f"method should be one of {', '.join(_REQUESTS)}"
    elif not _is_target(path):
        wrong = "path should begin with one /, be percent-encoded, and have no . or .. as a part"
    try:
        body = None if json is None else to_json(json, exclude_none=isinstance(json, RequestModel))
    except PydanticSerializationError:
        wrong = "json cannot be written as JSON"
    if wrong:
        raise InvalidRequest(f"request: {wrong}", operation="request")
    return Call(_REQUESTS[method], path, body)


def reading(resource: Resource, path: str = "") -> dict[str, Operation[Any]]:
    """Return the operations that read one kind of resource, by verb. `path` is a setting; lists are at its folder."""
    path = path or resource.path
    noun, model, folder = resource.namespace, model_of(resource), path.partition("/{id}")[0]
    return {
        "get": Operation(f"{noun}.get", "GET", path, model),
        "list": Operation(f"{noun}.list", "GET", folder, each=model),
        "page": Operation(f"{noun}.page", "GET", folder, each=ListedResource, paged=True),
    }


class Resources(Namespace[S], Generic[S, R]):
    """The resources of one kind that events refer to. Their paths are settings: each client has its own operations."""

    get: Operation[R, [str]]
    """Return the resource with this id.

    A verifier can be set up so that a presentation's data is readable only once.
    """
    list: Operation[Elements[R], []]
    """Return the resources of all pages. For more than 1,000 pages or 32 MiB use `page`."""
    page: Operation[Page[ListedResource], [str]]
    """Return states without personal data: the first page for "", or the page after `following` of another page."""

    def __init__(self, sender: S, operations: Mapping[str, Operation[Any]]) -> None:
        super().__init__(sender)
        for verb, operation in operations.items():
            setattr(self, verb, operation.bound_to(sender))


_ENDPOINTS: Final = "/me-creds/api/endpoints"
_USERS: Final = "/consumer-onboarding/api/users"


class Endpoints(Namespace[S]):
    """Webhook endpoints of the organisation."""

    list: Operation[Elements[models.Endpoint], []] = Operation(
        "endpoints.list", "GET", _ENDPOINTS, each=models.Endpoint
    )
    """Return all endpoints."""
    create: Operation[models.Endpoint, [models.EndpointRequest]] = Operation(
        "endpoints.create", "POST", _ENDPOINTS, models.Endpoint, body=models.EndpointRequest
    )
    """Register an endpoint."""
    delete: Operation[None, [str]] = Operation("endpoints.delete", "DELETE", _ENDPOINTS + "/{id}")
    """Delete the endpoint with this id."""


class Presets(Namespace[S]):
    """Credential presets."""

    create: Operation[models.Preset, [models.SdJwtPresetRequest | models.MdocPresetRequest]] = Operation(
        "presets.create",
        "POST",
        "/me-creds/api/presets/credentials",
        models.Preset,
        body=models.SdJwtPresetRequest | models.MdocPresetRequest,
    )
    """Create a preset of either format."""


class Templates(Namespace[S]):
    """Credential templates."""

    get: Operation[models.Template, [str]] = Operation(
        "templates.get", "GET", "/me-creds/api/templates/credentials/{id}", models.Template
    )
    """Return the template with this id."""


class Certificates(Namespace[S]):
    """Certificates for signing requests."""

    import_: Operation[models.CertificateRecord, [str, models.CertificateRequest]] = Operation(
        "certificates.import_",
        "POST",
        "/me-creds/api/certificates/csrs/{id}/import",
        models.CertificateRecord,
        body=models.CertificateRequest,
    )
    """Import the certificate for the signing request with this id."""


class TrustedEntities(Namespace[S]):
    """Issuers that the organisation trusts."""

    create: Operation[models.TrustedEntity, [models.TrustedEntityRequest]] = Operation(
        "trusted_entities.create",
        "POST",
        "/me-creds/api/trusted-entities",
        models.TrustedEntity,
        body=models.TrustedEntityRequest,
    )
    """Trust an issuer."""


class Users(Namespace[S]):
    """Users of the tenant."""

    create: Operation[models.OnboardingResult, [models.UserRequest]] = Operation(
        "users.create", "POST", _USERS, models.OnboardingResult, body=models.UserRequest
    )
    """Create a user, or resolve an existing user; `existed` on the result tells which."""
    list: Operation[Elements[models.User], []] = Operation("users.list", "GET", _USERS, each=models.User)
    """Return the users of all pages. For more than 1,000 pages or 32 MiB use `page`."""
    page: Operation[Page[models.User], [str]] = Operation("users.page", "GET", _USERS, each=models.User, paged=True)
    """Return the first page for "", or the page after `following` of another page."""
    by_external_identifier: Operation[models.User, [str]] = Operation(
        "users.by_external_identifier", "GET", _USERS + "/by-external-identifier/{externalIdentifier}", models.User
    )
    """Return the user with this external identifier."""
    external_identifier: Operation[models.ExternalIdentifier, [str]] = Operation(
        "users.external_identifier", "GET", _USERS + "/{username}/external-identifier", models.ExternalIdentifier
    )
    """Return the external identifier of the user with this username."""
    link_identity: Operation[models.IdentityLink] = Operation(
        "users.link_identity",
        "PATCH",
        _USERS + "/{username}/idp-link",
        models.IdentityLink,
        body=models.IdentityLinkRequest,
    )
    """Link a user to the tenant's identity provider (`enabled=True`), or remove the link.

    A second call changes nothing.
    """


class Wallet(Namespace[S]):
    """Credentials in the wallet."""

    accept: Operation[Elements[models.WalletCredential]] = Operation(
        "wallet.accept", "POST", "/me-wallet/api/credentials", each=models.WalletCredential, body=models.OfferRequest
    )
    """Accept an offer: `credential_offer="…"`."""


class Platform(Generic[S]):
    """The platform, noun by noun, for one sender. Each of `RESOURCES` is an attribute named after its namespace.

    `paths`: resource → path of its details, if that is not the default.
    """

    issuances: Resources[S, models.Issuance]
    presentations: Resources[S, models.Presentation]

    def __init__(self, sender: S, paths: Mapping[str, str]) -> None:
        for resource in RESOURCES:
            operations = reading(resource, paths.get(resource.name, ""))
            setattr(self, resource.namespace, Resources[S, Any](sender, operations))
        self.endpoints = Endpoints(sender)
        self.presets = Presets(sender)
        self.templates = Templates(sender)
        self.certificates = Certificates(sender)
        self.trusted_entities = TrustedEntities(sender)
        self.users = Users(sender)
        self.wallet = Wallet(sender)
