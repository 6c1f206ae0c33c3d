"""`credhook doctor`: every check on one line, for people and (`--json`) for programs.

It checks the settings of this host, Redis and the fleet, the public URL as a sender sees it, and the platform.
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, Final

import click
from pydantic import ValidationError

from credhook.ops.findings import check_server, findings, unreached
from credhook.ops.fleet import read_fleet, server_of
from credhook.ops.outside import check_certificate, check_public_url, check_registered, list_endpoints
from credhook.ops.verdict import Finding, Verdict, fail, ok, skipped, split_remedy, warn
from credhook.settings import (
    EndpointSettings,
    ReceiverSettings,
    StoreSettings,
    WorkerSettings,
    names_set,
    settings_errors,
    valid_until,
)
from credhook.store import health
from credhook.store.address import RedisAddress
from credhook.store.connection import BRIEFLY
from credhook.store.errors import STORE_ERRORS, Forbidden, hint
from credhook.terminal import plain
from credhook.worker.api.models import Endpoint
from credhook.worker.commands.endpoints import is_at, plan, shown
from credhook.worker.handlers.loading import CannotLoad, load

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

#: Receivers read the file at each handshake, and libcurl and redis-py at each new connection.
_RELOADED: Final = "the next connection uses it, but a copy that systemd's LoadCredential made needs a restart"


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
    public_url, names = endpoint.public_url if endpoint else None, set[str]()
    if store:
        durability = receiver.durability if receiver else (None if worker else "strict")
        for finding in _check_redis(store, durability=durability, outside=public_url is None):
            names.add(finding.name)
            yield finding
    if public_url:
        yield from check_public_url(public_url)
    elif "public_url.reached" not in names:
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


def _check_redis(settings: StoreSettings, *, durability: str | None, outside: bool = True) -> Iterator[Finding]:
    """Check Redis and the fleet. `outside`: also show what the workers have found from outside."""
    store, address = settings.open_store_sync(**BRIEFLY), settings.redis_address
    with store.redis:
        try:
            before = time.time()
            yield check_clock(store.clock() / 1_000 - (before + time.time()) / 2)
            server = server_of(health.ask_sync(store), address, durability)
            yield ok("redis.reached", f"{address} answers")
            url = settings.redis_url.get_secret_value()
            yield check_password(replace(RedisAddress.parse(url), certfile=settings.redis_certfile))
            try:
                fleet = read_fleet(store, address, durability=durability)
            except Forbidden as error:  # A receiver's or worker's user needs only its own queue.
                yield from check_server(server)
                remedy = f"run `credhook status` as that user; if this REDIS_URL is the operator's, {hint(error)}"
                yield skipped("fleet.workers", "only the operator's user reads all queues", remedy)
            else:
                yield from findings(fleet if outside else fleet.model_copy(update={"outside": None}))
        except STORE_ERRORS as error:
            yield unreached(error)


def check_password(address: RedisAddress) -> Finding:
    """Check that Redis is not open to the internet."""
    name = "redis.password"
    if address.password or address.certfile:
        return ok(name, "Redis asks who connects")
    for host, port in address.hosts:
        with suppress(OSError):  # Among several Sentinels, one may have no address.
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            if any(ip_address(str(sockaddr[0])).is_global for *_, sockaddr in addresses):
                problem = f"{host} is a public address, and Redis asks for no password"
                return warn(name, problem, "close it with a firewall, and give Redis users: deploy/redis-users.acl")
    return ok(name, "Redis is not on a public address")


def check_clock(ahead: float) -> Finding:
    """Check that Redis's clock, which is `ahead` by some seconds, agrees with this host's."""
    if abs(ahead) <= _CLOCK_SECONDS:
        return ok("redis.clock", f"Redis's clock agrees with this host's within {_CLOCK_SECONDS:.0f} s")
    problem = f"Redis's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this host's"
    return warn("redis.clock", problem, "let both follow an NTP server; signatures and retries depend on it")


def _load_handlers(settings: WorkerSettings) -> tuple[frozenset[str] | None, Finding]:
    """Return the event types that handlers want, or None if the handlers cannot be loaded."""
    try:
        registry = load(settings.handlers, settings.handler_options)
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
    registered = await list_endpoints(settings)
    if isinstance(registered, Finding):
        return [fail("platform.api", registered.what, registered.remedy)]
    accepted = ok("platform.api", f"{settings.api_url} accepts the token of {settings.client_id}")
    return [accepted, check_endpoints(public_url, wanted, registered, settings.queue)]


def check_endpoints(
    url: str | None, wanted: frozenset[str] | None, registered: Sequence[Endpoint], queue: str
) -> Finding:
    """Check that the endpoint of our URL delivers what handlers want, and no more. None means unknown."""
    name = "platform.endpoints"
    if url is None or wanted is None:
        return skipped(name, "this host does not know the public URL, or which types handlers want")
    finding = check_registered(url, wanted, registered)
    if finding.needs_attention:
        return finding
    steps = plan(url, wanted, registered, queue)
    if old := ", ".join(
        shown(endpoint.url) for endpoint in (*steps.delete, *steps.doubtful) if not is_at(endpoint, url)
    ):
        problem = f"the platform also delivers to {old}, perhaps an earlier URL of this deployment"
        return warn(name, problem, "run `credhook endpoints plan`: it says what `credhook endpoints apply` replaces")
    if not steps.empty:
        problem = f"the platform delivers to {shown(url)} more than handlers want, or some events twice"
        return warn(name, problem, "run `credhook endpoints plan`, then `credhook endpoints apply`")
    return finding
