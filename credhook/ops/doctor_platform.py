"""The doctor's checks of the platform (handlers, token, API, endpoints) and of the public URL as a sender sees it."""

import asyncio
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from credhook.events import EVENT_TYPES
from credhook.ops.doctor_redis import of_clock
from credhook.ops.doctor_settings import Setup, of_certificate
from credhook.ops.findings import Finding, fail, ok, skipped, split_remedy, warn
from credhook.worker.api.client import AsyncApi, transport_from
from credhook.worker.api.errors import ApiError, hint
from credhook.worker.api.http.exchange import HEADERS, Request, Transport, Unanswered, Unsendable
from credhook.worker.api.http.transport import shared_ssl_context
from credhook.worker.api.models import Endpoint
from credhook.worker.api.token import ClientCredentials
from credhook.worker.commands.endpoints import plan, shown
from credhook.worker.handlers.loading import CannotLoad, load
from credhook.worker.settings import PlatformSettings

NAMES: Final = ("handlers.load", "platform.clock", "platform.token", "platform.api", "platform.endpoints")
URL_NAMES: Final = ("public_url.reached", "public_url.certificate", "public_url.receiver")

#: Seconds that one question may take. A shorter CREDHOOK_FETCH_TIMEOUT wins.
_ANSWER_SECONDS: Final = 5.0
#: Bytes of the public URL's answer that are read.
_ANSWER_BYTES: Final = 65_536
#: A receiver's answer to a delivery without headers, and to a path that takes no deliveries.
_BAD_REQUEST: Final = 400
_NOT_FOUND: Final = 404
#: OpenSSL's error numbers for certificates.
_EXPIRED: Final = 10
_OTHER_NAME: Final = (62, 64)
_RENEW: Final = "renew the certificate of the proxy or receiver that ends TLS there"


def check_platform(setup: Setup) -> Iterator[Finding]:
    """Run the checks of the platform, each after the ones that it needs."""
    wanted, finding = _handlers(setup)
    yield finding
    if setup.worker is None:
        yield from (skipped(name, "the settings of the platform are missing or incomplete") for name in NAMES[1:])
        return
    yield from asyncio.run(_ask_platform(setup, setup.worker, wanted))


def _handlers(setup: Setup) -> tuple[frozenset[str] | None, Finding]:
    """Return the event types that handlers want, or None if this host cannot know them."""
    if setup.worker is None:
        return None, skipped("handlers.load", "this host is no worker's")
    try:
        registry = load(setup.worker.handlers)
    except CannotLoad as error:
        what, remedy = split_remedy(error.message)
        return None, fail("handlers.load", what, remedy or "fix it; no worker starts without its handlers")
    if not registry.handlers:
        remedy = "decorate functions with @handlers.on(…), or let CREDHOOK_HANDLERS name their module"
        return frozenset(), warn("handlers.load", "no handlers are loaded", remedy)
    return frozenset(registry.types), ok("handlers.load", ", ".join(one.name for one in registry.handlers))


async def _ask_platform(setup: Setup, settings: PlatformSettings, wanted: frozenset[str] | None) -> list[Finding]:
    soon = settings.model_copy(update={"fetch_timeout": min(settings.fetch_timeout, _ANSWER_SECONDS)})
    transport, auth = transport_from(soon), ClientCredentials.from_settings(soon)
    findings = []
    try:
        findings.append(await _clock(setup, transport, settings.api_url))
        try:
            await auth.token(transport)
        except ApiError as error:
            rest = [skipped(name, "there is no token") for name in NAMES[-2:]]
            return [*findings, _refusal("platform.token", error), *rest]
        findings.append(ok("platform.token", f"{settings.client_id} gets a token"))
        try:
            registered = await AsyncApi.from_settings(soon, auth=auth, transport=transport).endpoints.list()
        except ApiError as error:
            not_listed = skipped("platform.endpoints", "the platform does not list them")
            return [*findings, _refusal("platform.api", error), not_listed]
        findings.append(ok("platform.api", f"{settings.api_url} accepts the token"))
        url = setup.endpoint.public_url if setup.endpoint else None
        return [*findings, of_endpoints(url, wanted, registered)]
    finally:
        await auth.aclose()
        await transport.aclose()


async def _clock(setup: Setup, transport: Transport, api_url: str) -> Finding:
    """Compare the platform's clock, which its Date header shows to the second, with ours."""
    try:
        before = setup.now()
        response = await transport.send(Request("GET", api_url + "/", HEADERS, None, repeatable=True))
        now = (before + setup.now()) / 2
        date = parsedate_to_datetime(response.headers.get("date") or "").replace(tzinfo=UTC)
    except (Unanswered, Unsendable, ValueError, TypeError):
        return skipped("platform.clock", "the platform does not tell its time")
    return of_clock("platform.clock", "the platform", date.timestamp() + 0.5 - now, setup.tolerance)


def _refusal(name: str, error: ApiError) -> Finding:
    what, remedy = split_remedy(str(error))
    return fail(name, what, hint(error) or remedy or "see the platform's own log")


def of_endpoints(url: str | None, wanted: frozenset[str] | None, registered: Sequence[Endpoint]) -> Finding:
    """Check that the endpoint of our URL delivers what handlers want, and no more. Pure; None is unknown."""
    name, remedy = "platform.endpoints", "run `credhook endpoints plan`, then `credhook endpoints apply`"
    if url is None or wanted is None:
        return skipped(name, "this host does not know the public URL, or which types handlers want")
    ours = [endpoint for endpoint in registered if endpoint.url == url]
    if not ours:
        return fail(name, f"the platform delivers nothing to {shown(url)}", remedy)
    delivered = frozenset(kind for endpoint in ours for kind in endpoint.filter_types or EVENT_TYPES)
    if missing := ", ".join(sorted(wanted - delivered)):
        return fail(name, f"handlers want {missing}, which the platform does not deliver", remedy)
    if surplus := ", ".join(sorted(delivered - wanted)):
        return warn(name, f"the platform delivers {surplus}, for which there is no handler", remedy)
    if not plan(url, wanted, registered).empty:
        return warn(name, f"{len(ours)} endpoints are registered for {shown(url)}: each event comes as often", remedy)
    return ok(name, f"the platform delivers what handlers want to {shown(url)}")


class PublicAnswer(NamedTuple):
    """The answer of the public URL. `is_refusal` is True if the body has an error object, as a receiver's has."""

    status: int
    is_refusal: bool


def check_public_url(setup: Setup) -> Iterator[Finding]:
    """Check that the public URL is reached, has a valid certificate, and leads to a receiver.

    A delivery without headers is posted. A receiver refuses it before it asks Redis. Nothing is stored; the receiver's
    log has one more line.
    """
    if setup.endpoint is None:
        yield from (skipped(name, "CREDHOOK_PUBLIC_URL is missing or wrong") for name in URL_NAMES)
        return
    url = setup.endpoint.public_url
    parts = urlsplit(url)
    connection = http.client.HTTPSConnection(
        str(parts.hostname), parts.port or 443, timeout=_ANSWER_SECONDS, context=shared_ssl_context()
    )
    reached = ok("public_url.reached", f"{shown(url)} is reached from here")
    try:
        connection.connect()
        yield reached
        yield of_certificate("public_url.certificate", _expiry(connection), _RENEW, setup)
    except ssl.SSLCertVerificationError as error:
        yield reached
        yield _bad_certificate(error)
        yield skipped("public_url.receiver", "nothing is sent to a host without a valid certificate")
        return
    except (OSError, http.client.HTTPException) as error:
        yield _unreached("public_url.reached", shown(url), error)
        yield from (skipped(name, "the URL is not reached") for name in URL_NAMES[1:])
        return
    try:
        answer = _post(connection, parts.path or "/")
    except (OSError, http.client.HTTPException) as error:
        yield _unreached("public_url.receiver", shown(url), error)
    else:
        yield of_answer(answer)
    finally:
        connection.close()


def _expiry(connection: http.client.HTTPSConnection) -> datetime:
    tls = connection.sock
    certificate = tls.getpeercert() if isinstance(tls, ssl.SSLSocket) else None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(str((certificate or {}).get("notAfter", ""))), UTC)


def _post(connection: http.client.HTTPSConnection, path: str) -> PublicAnswer:
    connection.request("POST", path, body=b"", headers={"User-Agent": "credhook-doctor", "Connection": "close"})
    response = connection.getresponse()
    body = response.read(_ANSWER_BYTES)
    try:
        is_refusal = "id" in json.loads(body)["errors"][0]
    except (ValueError, LookupError, TypeError):
        is_refusal = False
    return PublicAnswer(response.status, is_refusal)


def _unreached(name: str, url: str, error: Exception) -> Finding:
    if isinstance(error, socket.gaierror):
        why, remedy = "its host's name is not known here", "check CREDHOOK_PUBLIC_URL and its DNS record"
    elif isinstance(error, TimeoutError):
        why, remedy = (
            "it does not answer in time",
            "check the firewall; a public address may be unreachable from within",
        )
    elif isinstance(error, ConnectionRefusedError):
        why, remedy = "nothing listens there", "start the proxy, or check CREDHOOK_PUBLIC_URL's port"
    elif isinstance(error, ssl.SSLError):
        why, remedy = "it does not speak TLS", "let the proxy end TLS there, or set CREDHOOK_TLS_CERTFILE"
    else:
        why, remedy = f"the connection broke ({type(error).__name__})", "see the log of the proxy"
    return fail(name, f"{url}: {why}", remedy)


def _bad_certificate(error: ssl.SSLCertVerificationError) -> Finding:
    remedy = "use a certificate of an authority that the platform trusts, with its intermediate certificates"
    if error.verify_code == _EXPIRED:
        remedy = _RENEW
    elif error.verify_code in _OTHER_NAME:
        remedy = "use a certificate for CREDHOOK_PUBLIC_URL's host, or correct that setting"
    return fail("public_url.certificate", f"senders refuse the certificate: {error.verify_message}", remedy)


def of_answer(answer: PublicAnswer) -> Finding:
    """Check that a receiver answered and takes deliveries at this path. Pure."""
    name, server = "public_url.receiver", "check CREDHOOK_PUBLIC_URL and the proxy's back end"
    if not answer.is_refusal:
        return fail(name, f"the server there, which answers {answer.status}, is no receiver", server)
    if answer.status == _NOT_FOUND:
        remedy = f"let it end as CREDHOOK_WEBHOOK_PATH and CREDHOOK_PATH_SECRET do; {server}"
        return fail(name, "the server there takes no deliveries at this path", remedy)
    if answer.status != _BAD_REQUEST:
        return fail(name, f"the receiver there answers {answer.status}", "see delivery_refused in its log")
    return ok(name, "it leads to a receiver")
