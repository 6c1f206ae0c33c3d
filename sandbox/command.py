"""The commands `credhook sandbox` and `credhook trigger`."""

import errno
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click
import httpx

from credhook.sandbox.deliveries.signing import parse_key
from credhook.sandbox.http import tokens
from credhook.sandbox.http.guard import is_loopback
from credhook.sandbox.options import Attributes, EventName, SigningKey, fault_options
from credhook.sandbox.settings import SANDBOX_SECRET, TIME_SCALE, Settings
from credhook.sandbox.tenant.events import EventType, concerns_issuance
from credhook.sandbox.tenant.faults import Faults
from credhook.sandbox.tenant.state import StateError

#: Connections that wait to be accepted, so that a burst of a whole fleet finds room.
BACKLOG = 2048

#: Seconds that requests under way get when the sandbox is told to end.
GRACE = 1


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8700, show_default=True, type=click.IntRange(0, 65535), help="0: a free one.")
@click.option("--env", is_flag=True, help="Print the CREDHOOK_ lines that point a worker here, and end.")
@click.option("--state", type=click.Path(dir_okay=False, path_type=Path), help="SQLite file to keep state in.")
@click.option(
    "--ca",
    "authority",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file of an authority that deliveries trust besides the system's.",
)
@click.option("--unsigned", is_flag=True, help="Do not sign deliveries.")
@click.option(
    "--signing-secret",
    "signing_secrets",
    type=SigningKey(),
    multiple=True,
    help="Sign with whsec_… (v1) or whsk_… (v1a); repeat it to sign with several. Default: a published one.",
)
@click.option(
    "--time-scale",
    default=TIME_SCALE,
    show_default=True,
    type=click.FloatRange(min=0, max=1),
    help="Multiplies the waits between retries, which are those of common senders: 5 s to 10 h.",
)
@click.option("--allowed-host", "hosts", multiple=True, help="Another name accepted in the Host header.")
@fault_options
def sandbox(
    *,
    host: str,
    port: int,
    env: bool,
    state: Path | None,
    authority: Path | None,
    unsigned: bool,
    signing_secrets: tuple[str, ...],
    time_scale: float,
    hosts: tuple[str, ...],
    **faults: Any,
) -> None:
    """Play the whole platform on this machine."""
    if unsigned and signing_secrets:
        raise click.UsageError("--unsigned and --signing-secret exclude each other.")
    secrets = () if unsigned else signing_secrets or (SANDBOX_SECRET,)
    if env:
        click.echo("\n".join(environment(_base_url(host, port), secrets)))
        return
    listener = listen(host, port)
    settings = Settings(
        base_url=_base_url(host, listener.getsockname()[1]),
        signing_secrets=secrets,
        authority=authority,
        state=state,
        time_scale=time_scale,
        faults=Faults(**faults),
        hosts=(*hosts, host),
    )
    serve(settings, listener)


@click.command()
@click.argument("event_type", metavar="TYPE", type=EventName())
@click.option("--count", default=1, show_default=True, type=click.IntRange(1, 10_000), help="How many times.")
@click.option("--resource", help="The issuance or presentation that it happens to; a new one if left out.")
@click.option(
    "--attributes",
    multiple=True,
    type=Attributes(),
    help="What the credential says: KEY=VALUE, repeated, or a JSON object.",
)
@click.option(
    "--is-valid/--no-is-valid", default=None, help="Whether the presented credential is valid. Default: it is."
)
@click.option(
    "--url",
    default="http://127.0.0.1:8700",
    envvar="CREDHOOK_SANDBOX_URL",
    show_default=True,
    show_envvar=True,
    help="Where the sandbox is.",
)
def trigger(
    *,
    event_type: EventType,
    count: int,
    resource: str | None,
    attributes: tuple[dict[str, Any], ...],
    is_valid: bool | None,
    url: str,
) -> None:
    """Make an event of TYPE happen in a running sandbox, such as `issuance.completed`."""
    if is_valid is not None and concerns_issuance(event_type):
        raise click.UsageError("--is-valid is for verification events: an issuance presents nothing.")
    wanted: dict[str, Any] = {"eventType": event_type, "count": count}
    wanted |= {"resourceId": resource} if resource else {}
    if attributes:
        wanted["attributes"] = {key: value for each in attributes for key, value in each.items()}
    wanted |= {} if is_valid is None else {"isValid": is_valid}
    try:
        answer = httpx.post(f"{url.rstrip('/')}/sandbox/events", json=wanted, timeout=60, trust_env=False)
        body = answer.json()
        if answer.is_error:
            raise click.ClickException(body["errors"][0]["detail"])
        happened = body["data"]
    except (httpx.TransportError, httpx.InvalidURL) as problem:
        raise click.ClickException(
            f"no sandbox answers at {url} ({problem}): start one with `credhook sandbox`."
        ) from problem
    except (ValueError, LookupError, TypeError) as problem:
        raise click.ClickException(f"what answers at {url} is no sandbox: check --url.") from problem
    for each in happened:
        deliveries = " ".join(each["webhookIds"]) or "no endpoint is registered for it"
        click.echo(f"{each['eventType']}  {each['resourceId']}  {deliveries}")


def environment(base_url: str, signing_secrets: Sequence[str]) -> list[str]:
    """Return the lines that point a worker and a receiver at a sandbox."""
    lines = [
        f"CREDHOOK_API_URL={base_url}",
        f"CREDHOOK_TOKEN_URL={base_url}{tokens.PATH.format(realm=tokens.REALM)}",
        f"CREDHOOK_CLIENT_ID={tokens.CLIENT_ID}",
        f"CREDHOOK_CLIENT_SECRET={tokens.CLIENT_SECRET}",
    ]
    verifiers = " ".join(parse_key(secret).verifier for secret in signing_secrets)
    if verifiers:
        # A shell splits a value at a space unless it is quoted; most often there is none.
        quote = '"' if " " in verifiers else ""
        lines.append(f"CREDHOOK_WEBHOOK_SECRETS={quote}{verifiers}{quote}")
    return lines


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        click.ClickException: The address cannot be listened on.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio switches Nagle's algorithm off; without, each answer may wait 40 ms.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as problem:
        reason = "it is in use" if problem.errno == errno.EADDRINUSE else problem.strerror
        raise click.ClickException(
            f"cannot listen on port {port} of {host}: {reason}; choose another with --port."
        ) from problem
    return listener


def serve(settings: Settings, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; both end the process with status 0.

    Raises:
        click.ClickException: The settings name something that cannot be used.
    """
    # Imported here so that `--env` and `trigger` answer at once.
    import uvicorn  # noqa: PLC0415  See above.

    from credhook.sandbox.app import create_app  # noqa: PLC0415  See above.

    try:
        app = create_app(settings)
    except StateError as problem:
        raise click.ClickException(f"{problem}.") from problem
    except (OSError, ssl.SSLError) as problem:
        raise click.ClickException(f"--ca {settings.authority} cannot be read: {problem}.") from problem
    click.echo("\n".join(environment(settings.base_url, settings.signing_secrets)))
    sys.stdout.flush()
    host = listener.getsockname()[0]
    if not is_loopback(host):
        click.echo(f"Warning: {host} can be reached from other machines, and the client's secret is public.", err=True)
    click.echo(f"The sandbox listens; its page is at {settings.base_url}/", err=True)
    # Logs go where this process has them go; uvicorn's own set-up would print them a second time.
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=GRACE,
    )
    # uvicorn raises a signal again once it has stopped: this is what then ends the process, with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    uvicorn.Server(config).run(sockets=[listener])


def _end(_: int, __: FrameType | None) -> None:
    sys.exit(0)


def _base_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
