"""Every operation of the platform, as data: one line of the specification's tables each.

An operation becomes a `Call` when it is given its values: `GET_TEMPLATE(id="…")`, `CREATE_USER(request)`. A call is all
that a sender needs to know, and nothing in it can lead out of the operation's own path.
"""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import yarl
from pydantic import TypeAdapter

from credhook.events import ISSUANCE, PRESENTATION
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


#: Status codes of success. Of 200 and 201 either is accepted: a record that was created must not look as if it had not.
_SUCCESS: Final = MappingProxyType({"GET": (200,), "POST": (201, 200), "PATCH": (200, 201), "DELETE": (204, 200)})


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


@dataclass(frozen=True, slots=True)
class Operation(Generic[R]):
    """One thing that the platform does.

    Attributes:
        name: `noun.verb`, as errors report it and as the client's namespaces spell it.
        path: Path below the API's root, with placeholders.
        result: What the answer is read as; None where there is nothing to read, or a list.
        body: Types of body that it takes; none for most.
        each: What each element of a list is read as; None where the answer is none.
        identified: Whether what comes back carries the `id` that it was asked for by.
        paged: Whether the result is a `Page` of such elements, which says where the list goes on.
    """

    name: str
    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    result: TypeAdapter[R] | None = None
    body: tuple[type[RequestModel], ...] = ()
    each: TypeAdapter[Any] | None = None
    identified: bool = False
    paged: bool = False

    @property
    def expects(self) -> tuple[int, ...]:
        """Return the status codes of success, the documented one first."""
        return _SUCCESS[self.method]

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

    def _checked(self, name: str, value: str) -> str:
        try:
            return _RULES[name](value)
        except ValueError as error:
            wrong = f"{self.name}: {name} {error}"
        raise InvalidRequest(wrong, operation=self.name)


class Reading(Generic[R]):
    """The operations that read one kind of resource.

    They are not in the specification: `path` is a setting, and their lists are at the folder of that path.
    """

    def __init__(self, namespace: str, model: type[R], path: str) -> None:
        folder, result = path.partition("/{id}")[0], TypeAdapter(model)
        self.get = Operation(f"{namespace}.get", "GET", path, result, identified=True)
        self.list: Operation[tuple[R, ...]] = Operation(
            f"{namespace}.list", "GET", folder, each=result, identified=True
        )
        self.page: Operation[Page[ListedResource]] = Operation(
            f"{namespace}.page", "GET", folder, each=TypeAdapter(ListedResource), paged=True
        )


ISSUANCES = Reading(ISSUANCE.namespace, Issuance, ISSUANCE.path)
PRESENTATIONS = Reading(PRESENTATION.namespace, Presentation, PRESENTATION.path)

_ENDPOINTS: Final = "/me-creds/api/endpoints"
_USERS: Final = "/consumer-onboarding/api/users"

LIST_ENDPOINTS: Operation[tuple[Endpoint, ...]] = Operation(
    "endpoints.list", "GET", _ENDPOINTS, each=TypeAdapter(Endpoint)
)
CREATE_ENDPOINT = Operation("endpoints.create", "POST", _ENDPOINTS, TypeAdapter(Endpoint), (EndpointRequest,))
DELETE_ENDPOINT: Operation[None] = Operation("endpoints.delete", "DELETE", _ENDPOINTS + "/{id}")

CREATE_PRESET = Operation(
    "presets.create",
    "POST",
    "/me-creds/api/presets/credentials",
    cast("TypeAdapter[SdJwtPreset | MdocPreset]", TypeAdapter(Preset)),
    (SdJwtPresetRequest, MdocPresetRequest),
)
GET_TEMPLATE = Operation(
    "templates.get", "GET", "/me-creds/api/templates/credentials/{id}", TypeAdapter(Template), identified=True
)
IMPORT_CERTIFICATE = Operation(
    "certificates.import_",
    "POST",
    "/me-creds/api/certificates/csrs/{id}/import",
    TypeAdapter(CertificateRecord),
    (CertificateRequest,),
)
CREATE_TRUSTED_ENTITY = Operation(
    "trusted_entities.create",
    "POST",
    "/me-creds/api/trusted-entities",
    TypeAdapter(TrustedEntity),
    (TrustedEntityRequest,),
)

CREATE_USER = Operation("users.create", "POST", _USERS, TypeAdapter(OnboardingResult), (UserRequest,))
LIST_USERS: Operation[tuple[User, ...]] = Operation("users.list", "GET", _USERS, each=TypeAdapter(User))
FIND_USER = Operation(
    "users.by_external_identifier", "GET", _USERS + "/by-external-identifier/{externalIdentifier}", TypeAdapter(User)
)
GET_EXTERNAL_IDENTIFIER = Operation(
    "users.external_identifier", "GET", _USERS + "/{username}/external-identifier", TypeAdapter(ExternalIdentifier)
)
LINK_IDENTITY = Operation(
    "users.link_identity", "PATCH", _USERS + "/{username}/idp-link", TypeAdapter(IdentityLink), (IdentityLinkRequest,)
)

ACCEPT_OFFER: Operation[tuple[WalletCredential, ...]] = Operation(
    "wallet.accept", "POST", "/me-wallet/api/credentials", body=(OfferRequest,), each=TypeAdapter(WalletCredential)
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
