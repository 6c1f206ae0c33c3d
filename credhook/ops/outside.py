"""Checks from outside: the public URL as a sender sees it, its certificate, and the endpoint at the platform.

`credhook doctor` runs them where it is typed. The leader of the workers runs them every five minutes and keeps the
findings in Redis, where status, console and metrics read them.
"""

import asyncio
import http.client
import json
import socket
import ssl
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from credhook.events import EVENT_TYPES
from credhook.ops.verdict import Finding, Outside, fail, ok, read_outside, skipped, split_remedy, warn
from credhook.receiver import DOCTOR_AGENT
from credhook.settings import WorkerSettings
from credhook.store.announcements import WorkerAnnouncement, announced
from credhook.store.store import SyncStore
from credhook.worker.api.client import AsyncApi, Sender
from credhook.worker.api.errors import ApiError, hint
from credhook.worker.api.http.environment import shared_ssl_context
from credhook.worker.api.models import Endpoint
from credhook.worker.commands.api import RETRY_SECONDS
from credhook.worker.commands.endpoints import filter_of, is_at, shown
from credhook.worker.platform.limits import pause_of, platform_key

#: Seconds between two checks.
EVERY_SECONDS: Final = 300
#: Seconds for which a result is kept.
_KEPT_SECONDS: Final = 86_400
#: Seconds that one request may take. A shorter CREDHOOK_FETCH_TIMEOUT wins.
_ANSWER_SECONDS: Final = 5.0
#: Bytes that are read of the public URL's answer.
_ANSWER_BYTES: Final = 65_536

#: A certificate that expires within this time is a warning.
_EXPIRES_SOON: Final = timedelta(days=14)
_RENEW: Final = "renew the certificate of the proxy or receiver that ends TLS there"
_OTHER_NAME: Final = "use a certificate for CREDHOOK_PUBLIC_URL's host, or correct that setting"
#: OpenSSL's error number for a certificate → what to do.
_BAD_CERTIFICATE: Final = {10: _RENEW, 62: _OTHER_NAME, 64: _OTHER_NAME}
#: Class of an error, why the public URL is not reached, what to do. More precise classes come first.
_UNREACHED: Final = (
    (socket.gaierror, "its host's name is not known here", "check CREDHOOK_PUBLIC_URL and its DNS record"),
    (TimeoutError, "it does not answer in time", "check the firewall; a public address may be unreachable from within"),
    (ConnectionRefusedError, "nothing listens there", "start the proxy, or check CREDHOOK_PUBLIC_URL's port"),
    (ssl.SSLError, "it does not speak TLS", "let the proxy end TLS there, or set CREDHOOK_TLS_CERTFILE"),
    (Exception, "the connection broke", "see the log of the proxy"),
)


def look_outside(store: SyncStore, settings: WorkerSettings, public_url: str | None) -> None:
    """Make the checks and keep the findings, unless another process has made them within five minutes.

    Call it in a thread without an event loop.
    """
    last, now = read_outside(store), store.clock()
    if last and 0 <= now - last.at < EVERY_SECONDS * 1_000:
        return
    if public_url is None:
        findings = [skipped("public_url.reached", "CREDHOOK_PUBLIC_URL is not set for the workers")]
    else:
        findings = [*check_public_url(public_url), asyncio.run(_check_endpoint(store, settings, public_url))]
    text = Outside(at=now, findings=tuple(findings)).model_dump_json()
    store.redis.set(store.keys.outside, text, ex=_KEPT_SECONDS)


async def _check_endpoint(store: SyncStore, settings: WorkerSettings, public_url: str) -> Finding:
    """Check that the platform delivers what the handlers of all workers want. Other rows tell if the platform fails."""
    name, now = "platform.endpoints", store.clock()
    if pause_of(store, platform_key(settings.api_url, settings.queue)).seconds:
        return skipped(name, "the fleet does not call the platform now")
    workers = [worker for worker in announced(store.redis.hgetall(store.keys.announcements)) if worker.is_alive(now)]
    handlers = [WorkerAnnouncement.model_validate_json(worker.text).handlers for worker in workers]
    wanted = {event_type for types in handlers for each in types.values() for event_type in each}
    registered = await list_endpoints(settings)
    return registered if isinstance(registered, Finding) else check_registered(public_url, wanted, registered)


async def list_endpoints(settings: WorkerSettings) -> Sequence[Endpoint] | Finding:
    """Return the registered endpoints, or why there is no answer."""
    soon = settings.model_copy(update={"fetch_timeout": min(settings.fetch_timeout, _ANSWER_SECONDS)})
    try:
        async with AsyncApi(Sender.from_settings(soon, retry_seconds=RETRY_SECONDS)) as api:
            return await api.endpoints.list()
    except ApiError as error:
        problem, remedy = split_remedy(str(error))
        return skipped("platform.endpoints", problem, hint(error) or remedy or "see the platform's own log")


def check_registered(url: str, wanted: Collection[str], registered: Sequence[Endpoint]) -> Finding:
    """Check that the endpoint of our URL delivers what handlers want."""
    name, remedy = "platform.endpoints", "run `credhook endpoints plan`, then `credhook endpoints apply`"
    ours = [endpoint for endpoint in registered if is_at(endpoint, url)]
    if not ours:
        return fail(name, f"the platform delivers nothing to {shown(url)}", remedy)
    delivered = frozenset(kind for endpoint in ours for kind in filter_of(endpoint) or EVENT_TYPES)
    if missing := ", ".join(sorted(set(wanted) - delivered)):
        return fail(name, f"handlers want {missing}, which the platform does not deliver", remedy)
    return ok(name, f"the platform delivers what handlers want to {shown(url)}")


def check_certificate(name: str, until: datetime, remedy: str) -> Finding:
    """Check that a certificate is valid for some more days."""
    remaining = until - datetime.now(UTC)
    end = until.astimezone(UTC).isoformat(timespec="minutes")
    if remaining.total_seconds() <= 0:
        return fail(name, f"the certificate has expired at {end}", remedy)
    if remaining < _EXPIRES_SOON:
        return warn(name, f"the certificate expires at {end} (days left: {remaining.days})", remedy)
    return ok(name, f"the certificate is valid until {end}")


def check_public_url(url: str) -> Iterator[Finding]:
    """Check that the public URL is reached, has a valid certificate, and leads to a receiver.

    A delivery without headers is posted. A receiver refuses it before it asks Redis, and neither counts nor logs it.
    """
    parts, name, headers = urlsplit(url), "public_url.reached", {"User-Agent": DOCTOR_AGENT, "Connection": "close"}
    connection = http.client.HTTPSConnection(
        str(parts.hostname), parts.port or 443, timeout=_ANSWER_SECONDS, context=shared_ssl_context()
    )
    with closing(connection):
        try:
            connection.connect()
            yield ok(name, f"{shown(url)} is reached from here")
            certificate: Any = connection.sock.getpeercert()
            until = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
            yield check_certificate("public_url.certificate", until, _RENEW)
            name = "public_url.receiver"
            connection.request("POST", parts.path or "/", body=b"", headers=headers)
            response = connection.getresponse()
            yield check_answer(response.status, response.read(_ANSWER_BYTES))
        except ssl.SSLCertVerificationError as error:
            authority = "use a certificate of an authority that the platform trusts, with its intermediate certificates"
            remedy = _BAD_CERTIFICATE.get(error.verify_code, authority)
            yield fail("public_url.certificate", f"senders refuse the certificate: {error.verify_message}", remedy)
        except (OSError, http.client.HTTPException) as error:
            reason, remedy = next((reason, remedy) for kind, reason, remedy in _UNREACHED if isinstance(error, kind))
            yield fail(name, f"{shown(url)}: {reason} ({type(error).__name__})", remedy)


def check_answer(status: int, body: bytes) -> Finding:
    """Check that a receiver answered and takes deliveries at this path. A receiver's errors have an id."""
    name, server = "public_url.receiver", "check CREDHOOK_PUBLIC_URL and the proxy's back end"
    try:
        is_receiver = "id" in json.loads(body)["errors"][0]
    except (ValueError, LookupError, TypeError):
        is_receiver = False
    if not is_receiver:
        return fail(name, f"the server there, which answers {status}, is not a receiver", server)
    if status == http.HTTPStatus.NOT_FOUND:
        remedy = f"let it end as CREDHOOK_WEBHOOK_PATH and CREDHOOK_PATH_SECRET do; {server}"
        return fail(name, "the server there takes no deliveries at this path", remedy)
    if status != http.HTTPStatus.BAD_REQUEST:
        return fail(name, f"the receiver there answers {status}", "see delivery_refused in its log")
    return ok(name, "it leads to a receiver")
