"""`credhook doctor`: every check on one line, for people and (`--json`) for programs.

It checks the settings of this host, Redis and the fleet, the public URL as a sender sees it, and the platform.
"""

import asyncio
import http.client
import json
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import click
from pydantic import ValidationError

from credhook.events import EVENT_TYPES
from credhook.ops.findings import (
    Finding,
    Verdict,
    check_server,
    fail,
    findings,
    ok,
    skipped,
    split_remedy,
    unreached,
    warn,
)
from credhook.ops.fleet import read_fleet, read_server
from credhook.receiver import DOCTOR_AGENT
from credhook.settings import (
    EndpointSettings,
    ReceiverSettings,
    StoreSettings,
    WorkerSettings,
    names_set,
    settings_errors,
    valid_until,
)
from credhook.store.connection import BRIEFLY
from credhook.store.errors import STORE_ERRORS, Forbidden
from credhook.store.errors import hint as store_hint
from credhook.terminal import plain
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, hint
from credhook.worker.api.http.transport import shared_ssl_context
from credhook.worker.api.models import Endpoint
from credhook.worker.commands.api import RETRY_SECONDS
from credhook.worker.commands.endpoints import filter_of, is_at, plan, shown
from credhook.worker.handlers.loading import CannotLoad, load

#: Seconds that one request may take. A shorter CREDHOOK_FETCH_TIMEOUT wins.
_ANSWER_SECONDS: Final = 5.0
#: Bytes that are read of the public URL's answer.
_ANSWER_BYTES: Final = 65_536
#: Seconds by which clocks may differ without a warning.
_CLOCK_SECONDS: Final = 5.0

#: Variables that are set on a worker's host, and on no other host.
_WORKER_VARIABLES: Final = (
    "CREDHOOK_HANDLERS",
    *(str(field.validation_alias) for field in WorkerSettings.model_fields.values() if field.is_required()),
)
#: Name of a check → the class of settings; variables that show that these apply to this host; why they do not apply.
_SETTINGS: Final[Mapping[str, tuple[type[Any], tuple[str, ...], str]]] = {
    "settings.store": (StoreSettings, (), ""),
    "settings.receiver": (
        ReceiverSettings,
        ("CREDHOOK_WEBHOOK_SECRETS", "CREDHOOK_PATH_SECRET", "CREDHOOK_INSECURE"),
        "this host has no receiver's secrets",
    ),
    "settings.worker": (WorkerSettings, _WORKER_VARIABLES, "this host knows no platform"),
    "settings.endpoint": (EndpointSettings, ("CREDHOOK_PUBLIC_URL",), "CREDHOOK_PUBLIC_URL is not set here"),
}

#: A certificate that expires within this time is a warning.
_EXPIRES_SOON: Final = timedelta(days=14)
_RENEW: Final = "renew the certificate of the proxy or receiver that ends TLS there"
#: Receivers read the file at each handshake, and libcurl and redis-py at each new connection.
_RELOADED: Final = "the next connection uses it, but a copy that systemd's LoadCredential made needs a restart"
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


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def doctor(*, as_json: bool) -> None:
    """Try everything that receivers and workers depend on, and say what to do about each problem.

    It uses the settings of this host: a receiver's host has no platform, a worker's host no webhook secrets. Checks
    that do not apply are skipped. It posts a delivery without headers to the public URL, which a receiver refuses. Exit
    codes: 0 all is well, 1 something needs attention, 2 wrong usage or a wrong setting.
    """
    findings = []
    for finding in check_all():
        findings.append(finding)
        click.echo(json.dumps(finding._asdict()) if as_json else line(finding))
    wrong = any(finding.verdict is Verdict.FAIL and finding.name in _SETTINGS for finding in findings)
    sys.exit(2 if wrong else int(any(finding.needs_attention for finding in findings)))


def line(finding: Finding) -> str:
    """Return the finding as one line: verdict, name, problem, remedy."""
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    return plain(f"{finding.verdict:<8}{finding.name:<24}{finding.what}{remedy}")


def check_all() -> Iterator[Finding]:
    """Run all checks. Leave out a check that needs the result of a failed check."""
    settings: dict[str, Any] = {}
    for name in _SETTINGS:
        settings[name], finding = _read_settings(name)
        yield finding
    store, receiver, worker, endpoint = settings.values()
    for name, path, variable in (
        ("certificate.receiver", receiver and receiver.tls_certfile, "CREDHOOK_TLS_CERTFILE"),
        ("certificate.client", worker and worker.client_certfile, "CREDHOOK_CLIENT_CERTFILE"),
        ("certificate.redis", store and store.redis_certfile, "CREDHOOK_REDIS_CERTFILE"),
    ):
        if path:
            yield check_certificate(name, valid_until(path), f"renew the file that {variable} names; {_RELOADED}")
        else:
            yield skipped(name, f"{variable} is not set here")
    if store:
        durability = receiver.durability if receiver else (None if worker else "strict")
        yield from _check_redis(store, durability=durability)
    public_url = endpoint.public_url if endpoint else None
    if public_url:
        yield from _check_public_url(public_url)
    else:
        yield skipped("public_url.reached", "CREDHOOK_PUBLIC_URL is missing or wrong")
    if worker:
        wanted, finding = _load_handlers(worker)
        yield finding
        yield from asyncio.run(_ask_platform(worker, public_url, wanted))
    else:
        yield skipped("handlers.load", "this is not a worker's host")
        yield skipped("platform.api", "the settings of the platform are missing or incomplete")


def _read_settings(name: str) -> tuple[Any, Finding]:
    """Return the settings of one process, or None if they are wrong or do not apply."""
    kind, signs, absent = _SETTINGS[name]
    if signs and names_set().isdisjoint(signs):
        return None, skipped(name, absent)
    try:
        return kind(), ok(name, "they are valid")
    except ValidationError as invalid:
        parts = [split_remedy(error) for error in settings_errors(invalid)]
        remedy = "; ".join(dict.fromkeys(remedy for _, remedy in parts if remedy))
        return None, fail(name, "; ".join(problem for problem, _ in parts), remedy or "see deploy/README.md, Settings")


def check_certificate(name: str, until: datetime, remedy: str) -> Finding:
    """Check that a certificate is valid for some more days."""
    remaining = until - datetime.now(UTC)
    end = until.astimezone(UTC).isoformat(timespec="minutes")
    if remaining.total_seconds() <= 0:
        return fail(name, f"the certificate has expired at {end}", remedy)
    if remaining < _EXPIRES_SOON:
        return warn(name, f"the certificate expires at {end} (days left: {remaining.days})", remedy)
    return ok(name, f"the certificate is valid until {end}")


def _check_redis(settings: StoreSettings, *, durability: str | None) -> Iterator[Finding]:
    store, address = settings.open_store_sync(**BRIEFLY), settings.redis_address
    with store.redis:
        try:
            before = time.time()
            yield check_clock(store.clock() / 1_000 - (before + time.time()) / 2)
            server = read_server(store, address, durability=durability)
            yield ok("redis.reached", f"{address} answers")
            try:
                fleet = read_fleet(store, address, durability=durability)
            except Forbidden as error:  # A receiver's or worker's user needs only its own queue.
                yield from check_server(server)
                yield skipped("fleet.workers", "only the operator's user reads all queues", store_hint(error))
            else:
                yield from findings(fleet)
        except STORE_ERRORS as error:
            yield unreached(error)


def check_clock(ahead: float) -> Finding:
    """Check that Redis's clock, which is `ahead` by some seconds, agrees with this host's."""
    if abs(ahead) <= _CLOCK_SECONDS:
        return ok("redis.clock", f"Redis's clock agrees with this host's within {_CLOCK_SECONDS:.0f} s")
    problem = f"Redis's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    return warn("redis.clock", problem, "let both follow an NTP server; signatures and retries depend on it")


def _check_public_url(url: str) -> Iterator[Finding]:
    """Check that the public URL is reached, has a valid certificate, and leads to a receiver.

    A delivery without headers is posted. A receiver refuses it before it asks Redis. Nothing is stored; the receiver's
    log has one more line.
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


def _load_handlers(settings: WorkerSettings) -> tuple[frozenset[str] | None, Finding]:
    """Return the event types that handlers want, or None if the handlers cannot be loaded."""
    try:
        registry = load(settings.handlers)
    except CannotLoad as error:
        problem, remedy = split_remedy(error.message)
        return None, fail("handlers.load", problem, remedy or "fix it; no worker starts without its handlers")
    if not registry.handlers:
        remedy = "decorate functions with @handlers.on(…), or let CREDHOOK_HANDLERS name their module"
        return frozenset(), warn("handlers.load", "no handlers are loaded", remedy)
    return frozenset(registry.types), ok("handlers.load", ", ".join(handler.name for handler in registry.handlers))


async def _ask_platform(
    settings: WorkerSettings, public_url: str | None, wanted: frozenset[str] | None
) -> list[Finding]:
    soon = settings.model_copy(update={"fetch_timeout": min(settings.fetch_timeout, _ANSWER_SECONDS)})
    try:
        async with AsyncApi.from_settings(soon, retry_seconds=RETRY_SECONDS) as api:
            registered = await api.endpoints.list()
    except ApiError as error:
        problem, remedy = split_remedy(str(error))
        return [fail("platform.api", problem, hint(error) or remedy or "see the platform's own log")]
    accepted = ok("platform.api", f"{settings.api_url} accepts the token of {settings.client_id}")
    return [accepted, check_endpoints(public_url, wanted, registered, settings.queue)]


def check_endpoints(
    url: str | None, wanted: frozenset[str] | None, registered: Sequence[Endpoint], queue: str
) -> Finding:
    """Check that the endpoint of our URL delivers what handlers want, and no more. None means unknown."""
    name, remedy = "platform.endpoints", "run `credhook endpoints plan`, then `credhook endpoints apply`"
    if url is None or wanted is None:
        return skipped(name, "this host does not know the public URL, or which types handlers want")
    ours = [endpoint for endpoint in registered if is_at(endpoint, url)]
    if not ours:
        return fail(name, f"the platform delivers nothing to {shown(url)}", remedy)
    delivered = frozenset(kind for endpoint in ours for kind in filter_of(endpoint) or EVENT_TYPES)
    if missing := ", ".join(sorted(wanted - delivered)):
        return fail(name, f"handlers want {missing}, which the platform does not deliver", remedy)
    steps = plan(url, wanted, registered, queue)
    if old := ", ".join(
        shown(endpoint.url) for endpoint in (*steps.delete, *steps.doubtful) if not is_at(endpoint, url)
    ):
        problem = f"the platform also delivers to {old}, perhaps an earlier URL of this deployment"
        return warn(name, problem, "run `credhook endpoints plan`: it says what `credhook endpoints apply` replaces")
    if not steps.empty:
        return warn(
            name, f"the platform delivers to {shown(url)} more than handlers want, or some events twice", remedy
        )
    return ok(name, f"the platform delivers what handlers want to {shown(url)}")
