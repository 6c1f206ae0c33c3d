"""Every operation of the platform, as data: one line of the specification's tables each.

An operation becomes a `Call` when it is given its values: `GET_TEMPLATE(id="…")`, `CREATE_USER(request)`. A call is all
that a sender needs to know, and nothing in it can lead out of the operation's own path.
"""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import yarl
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from credhook.worker.api.errors import InvalidRequest
from credhook.worker.api.models import (
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
    Preset,
    SdJwtPreset,
    SdJwtPresetRequest,
    Template,
    TrustedEntity,
    TrustedEntityRequest,
    User,
    UserRequest,
    WalletCredential,
)
from credhook.worker.api.wire import RequestModel, path_name, path_segment, resource_id

R = TypeVar("R")

#: Characters of a link, beyond which it is none.
_LONGEST: Final = 4_096


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """Part of a list.

    Attributes:
        items: what it shows.
        following: the query that leads to the next page, for the same list; None on the last one.
    """

    items: tuple[R, ...]
    following: str | None


def following(document: object) -> str | None:
    """Return the query of `links.next`, or None if there is no such link.

    Of a link only the query is followed, on the list's own path: no answer can lead anywhere else.

    Raises:
        ValueError: the link is none.
    """
    links = document.get("links") if isinstance(document, dict) else None
    link: Any = links.get("next") if isinstance(links, Mapping) else None
    if link is None:
        return None
    if not isinstance(link, str) or len(link) > _LONGEST:
        raise ValueError("links.next is no link")
    query = urlencode(parse_qsl(urlsplit(link).query, keep_blank_values=True))
    if not query:
        raise ValueError("links.next has no query")
    return query


#: What may stand for each placeholder of a path, and for a query's parameter.
_RULES: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"id": resource_id, "username": path_name, "externalIdentifier": path_name, "filter[id]": resource_id}
)

_PLACEHOLDER = re.compile(r"{(\w+)}")


@functools.cache
def _placeholders(path: str) -> frozenset[str]:
    return frozenset(_PLACEHOLDER.findall(path))


#: Where a success code is documented it comes first. The other is accepted too: it changes nothing for the caller,
#: and a record that was created must not look as if it had not been.
_READ = (200,)
_CREATED = (201, 200)
_DONE = (200, 201)
_DELETED = (204, 200)


@dataclass(slots=True)
class Call(Generic[R]):  # Not frozen, as in http/exchange.py.
    """An operation with its values: ready to send.

    `path` is percent-encoded, begins with `/` and is relative to the API's root. `asked_for` is the id that the answer
    has to carry, if any. The repr shows the operation only, since path and body may hold personal data.
    """

    operation: "Operation[R]"
    path: str
    query: str = ""
    body: bytes | None = None
    asked_for: str | None = None

    def __repr__(self) -> str:
        return f"Call({self.operation.name})"


class Envelope(TypedDict, Generic[R]):
    """What the specification puts results into. What may stand beside one is not read."""

    data: R


@dataclass(frozen=True, slots=True)
class Operation(Generic[R]):
    """One thing that the platform does.

    Attributes:
        name: `noun.verb`, as errors report it and as the client's namespaces spell it.
        path: Path below the API's root, with placeholders.
        expects: Status codes of success.
        body: Types of body that it takes; none for most.
        result: What the answer is read as; None where there is nothing to read, or a list.
        each: What each element of a list is read as; None where the answer is none.
        identified: Whether what comes back carries the `id` that it was asked for by.
        paged: Whether the result is a `Page` of such elements, which says where the list goes on.
        whole: Reads such an envelope from its bytes, without a document in between: two thirds of the time, measured,
            where nothing of the result has to be looked at before.
    """

    name: str
    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    expects: tuple[int, ...]
    body: tuple[type[RequestModel], ...] = ()
    result: TypeAdapter[R] | None = None
    each: TypeAdapter[Any] | None = None
    identified: bool = False
    paged: bool = False
    whole: TypeAdapter[Envelope[R]] | None = None

    def __call__(
        self, body: RequestModel | None = None, *, query: Mapping[str, str] | None = None, **names: str
    ) -> Call[R]:
        """Fill in the values.

        Raises:
            InvalidRequest: A name or id may not go into a path. The message does not repeat it.
            TypeError: The body is not of this operation's type, or the names are not its placeholders.
        """
        if not isinstance(body, self.body or type(None)):
            raise TypeError(f"{self.name} does not take {type(body).__name__} as its body")
        if _placeholders(self.path) != names.keys():
            raise TypeError(f"{self.name} needs exactly the names in {self.path}")
        path = self.path
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", path_segment(self._checked(name, value)))
        query = query or {}
        asked = urlencode({name: self._checked(name, value) for name, value in query.items()}) if query else ""
        sent = None if body is None else body.model_dump_json(exclude_none=True).encode()
        asked_for = names.get("id", query.get("filter[id]")) if self.identified else None
        return Call(self, path, asked, sent, asked_for)

    def at(self, path: str) -> "Operation[R]":
        """Return this operation at another path, which settings give."""
        return replace(self, path=path)

    def above(self, path: str) -> "Operation[R]":
        """Return this operation, which lists, at the folder of a path that ends in an id."""
        return replace(self, path=path.partition("/{id}")[0])

    def _checked(self, name: str, value: str) -> str:
        try:
            return _RULES[name](value)
        except ValueError as error:
            wrong = f"{self.name}: {name} {error}"
        raise InvalidRequest(wrong, operation=self.name)


LIST_ENDPOINTS: Operation[tuple[Endpoint, ...]] = Operation(
    "endpoints.list", "GET", "/me-creds/api/endpoints", _READ, each=TypeAdapter(Endpoint)
)
CREATE_ENDPOINT = Operation(
    "endpoints.create",
    "POST",
    "/me-creds/api/endpoints",
    _CREATED,
    body=(EndpointRequest,),
    result=TypeAdapter(Endpoint),
)
DELETE_ENDPOINT: Operation[None] = Operation("endpoints.delete", "DELETE", "/me-creds/api/endpoints/{id}", _DELETED)

CREATE_PRESET = Operation(
    "presets.create",
    "POST",
    "/me-creds/api/presets/credentials",
    _DONE,
    body=(SdJwtPresetRequest, MdocPresetRequest),
    result=cast("TypeAdapter[SdJwtPreset | MdocPreset]", TypeAdapter(Preset)),
)
GET_TEMPLATE = Operation(
    "templates.get",
    "GET",
    "/me-creds/api/templates/credentials/{id}",
    _READ,
    result=TypeAdapter(Template),
    identified=True,
)

IMPORT_CERTIFICATE = Operation(
    "certificates.import_",
    "POST",
    "/me-creds/api/certificates/csrs/{id}/import",
    _DONE,
    body=(CertificateRequest,),
    result=TypeAdapter(CertificateRecord),
)
CREATE_TRUSTED_ENTITY = Operation(
    "trusted_entities.create",
    "POST",
    "/me-creds/api/trusted-entities",
    _CREATED,
    body=(TrustedEntityRequest,),
    result=TypeAdapter(TrustedEntity),
)

CREATE_USER = Operation(
    "users.create",
    "POST",
    "/consumer-onboarding/api/users",
    _CREATED,
    body=(UserRequest,),
    result=TypeAdapter(OnboardingResult),
)
LIST_USERS: Operation[tuple[User, ...]] = Operation(
    "users.list", "GET", "/consumer-onboarding/api/users", _READ, each=TypeAdapter(User)
)
FIND_USER = Operation(
    "users.by_external_identifier",
    "GET",
    "/consumer-onboarding/api/users/by-external-identifier/{externalIdentifier}",
    _READ,
    result=TypeAdapter(User),
)
GET_EXTERNAL_IDENTIFIER = Operation(
    "users.external_identifier",
    "GET",
    "/consumer-onboarding/api/users/{username}/external-identifier",
    _READ,
    result=TypeAdapter(ExternalIdentifier),
)
LINK_IDENTITY = Operation(
    "users.link_identity",
    "PATCH",
    "/consumer-onboarding/api/users/{username}/idp-link",
    _DONE,
    body=(IdentityLinkRequest,),
    result=TypeAdapter(IdentityLink),
)

ACCEPT_OFFER: Operation[tuple[WalletCredential, ...]] = Operation(
    "wallet.accept",
    "POST",
    "/me-wallet/api/credentials",
    _CREATED,
    body=(OfferRequest,),
    each=TypeAdapter(WalletCredential),
)

# Not in the specification: their paths are settings, and these are the defaults.

GET_ISSUANCE = Operation(
    "issuances.get",
    "GET",
    "/me-creds/api/credentials/{id}",
    _READ,
    result=TypeAdapter(Issuance),
    identified=True,
    whole=TypeAdapter(Envelope[Issuance]),
)
PAGE_ISSUANCES: Operation[Page[ListedResource]] = Operation(
    "issuances.page", "GET", "/me-creds/api/credentials", _READ, each=TypeAdapter(ListedResource), paged=True
)
LIST_ISSUANCES: Operation[tuple[Issuance, ...]] = Operation(
    "issuances.list", "GET", "/me-creds/api/credentials", _READ, each=TypeAdapter(Issuance)
)
GET_PRESENTATION = Operation(
    "presentations.get",
    "GET",
    "/me-creds/api/presentations/{id}",
    _READ,
    result=TypeAdapter(Presentation),
    identified=True,
)
PAGE_PRESENTATIONS: Operation[Page[ListedResource]] = Operation(
    "presentations.page", "GET", "/me-creds/api/presentations", _READ, each=TypeAdapter(ListedResource), paged=True
)
LIST_PRESENTATIONS: Operation[tuple[Presentation, ...]] = Operation(
    "presentations.list", "GET", "/me-creds/api/presentations", _READ, each=TypeAdapter(Presentation), identified=True
)


#: A host as it goes over the wire.
_HOST: Final = re.compile(r"[a-z0-9._:-]+")

_ENCODED: Final = "%[0-9A-Fa-f]{2}"
#: Path and query of RFC 3986, 3.3 and 3.4, as they go over the wire.
_TARGET: Final = re.compile(
    rf"(?P<path>/(?:[\w.~!$&'()*+,;=:@/-]++|{_ENCODED})*+)(\?(?:[\w.~!$&'()*+,;=:@/?-]++|{_ENCODED})*+)?", re.ASCII
)
#: Nearly all of them: nothing is encoded, nothing begins with a dot, so nothing climbs.
_ORDINARY: Final = re.compile(r"(?:/[\w~:-][\w.~:-]*+)++", re.ASCII)
#: A segment that leaves the path, also after decoding.
_CLIMBS: Final = re.compile(r"/(\.|%2e){1,2}(/|$)", re.IGNORECASE)


class BaseUrl:
    """Origin and path prefix of the API."""

    def __init__(self, api_url: str) -> None:
        """Take the URL apart.

        Raises:
            ValueError: It is not an absolute http or https URL, or holds more than origin and path.
        """
        try:
            url = yarl.URL(api_url)
            host, port = url.raw_host or "", url.explicit_port
        except ValueError as error:
            raise ValueError(f"the API's URL is not one: {error}") from None
        plain = not url.raw_user and not url.raw_password and not url.raw_query_string and not url.raw_fragment
        if url.scheme not in {"http", "https"} or not plain or not _HOST.fullmatch(host):
            raise ValueError("the API's URL should be http:// or https://, a host and a path")
        authority = f"[{host}]" if ":" in host else host
        if port is not None and not url.is_default_port():
            authority += f":{port}"
        self._text = f"{url.scheme}://{authority}{url.raw_path.rstrip('/')}"

    def url(self, call: Call[Any]) -> str:
        """Return the call's URL. It is sent as it is: nothing in it is resolved or encoded once more.

        Raises:
            InvalidRequest: It would not lead where the operation says, which is due to a path in the settings.
        """
        target = f"{call.path}?{call.query}" if call.query else call.path
        if _ORDINARY.fullmatch(target):
            return self._text + target
        plain = _TARGET.fullmatch(target)
        if plain is None or _CLIMBS.search(plain["path"]):
            raise InvalidRequest(f"{call.operation.name}: its path leads elsewhere", operation=call.operation.name)
        return self._text + target
