"""The commands `credhook sandbox` and `credhook trigger`."""

import json
import shlex
import signal
import socket
import sqlite3
import ssl
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import httpx
from pydantic import ValidationError

from credhook.sandbox.deliveries import SANDBOX_SECRET, Sender, SigningKey, parse_key
from credhook.sandbox.events import EVENT_TYPES, PREFIX
from credhook.sandbox.tenant import CLIENT_ID, CLIENT_SECRET, TOKEN_PATH, Faults, FaultSwitch, StateFile

#: Hosts in URLs by which clients reach this machine.
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def _parse_keys(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[SigningKey]:
    try:
        return [parse_key(value) for value in values]
    except ValueError as problem:
        raise click.BadParameter(f"{problem}.") from problem


def _full_name(_: click.Context, __: click.Parameter, value: str) -> str:
    name = f"{PREFIX}{value.removeprefix(PREFIX)}"
    if name not in EVENT_TYPES:
        names = ", ".join(event_type.removeprefix(PREFIX) for event_type in EVENT_TYPES)
        raise click.BadParameter(f"{value!r} is not an event type; there is {names}.")
    return name


def _parse_attributes(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Merge values that are `KEY=VALUE`, where VALUE is text, or JSON objects."""
    merged: dict[str, Any] = {}
    for value in values:
        key, equals, text = value.partition("=")
        try:
            attributes = {key: text} if key.strip() and equals and not value.startswith("{") else json.loads(value)
            merged.update(attributes)
        except (ValueError, TypeError):
            raise click.BadParameter("neither KEY=VALUE nor a JSON object.") from None
    return merged


def _fault_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add one option for each fault, so that options and `/sandbox/faults` cannot differ."""
    for name, field in reversed(Faults.model_fields.items()):
        form: dict[str, Any] = {"is_flag": True} if field.annotation is bool else {"type": type(field.default)}
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, name, default=field.default, help=field.description, **form)(command)
    return command


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8700, show_default=True, type=click.IntRange(0, 65535), help="0: a free port.")
@click.option("--env", is_flag=True, help="Print the CREDHOOK_ lines that point a worker here, and end.")
@click.option("--state", type=click.Path(dir_okay=False, path_type=Path), help="SQLite file to keep state in.")
@click.option(
    "--ca",
    "authority",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file of an authority that deliveries trust in addition to the system's.",
)
@click.option("--unsigned", is_flag=True, help="Do not sign deliveries.")
@click.option(
    "--signing-secret",
    "keys",
    metavar="KEY",
    callback=_parse_keys,
    multiple=True,
    help="Sign with whsec_… (v1) or whsk_… (v1a); repeat it to sign with several. Default: a published key.",
)
@click.option(
    "--time-scale",
    default=0.001,  # The whole schedule, a day and four hours, passes in 100 seconds.
    show_default=True,
    type=click.FloatRange(min=0, max=1),
    help="Multiplies the waits between retries, which are those of common senders: 5 s to 10 h.",
)
@click.option("--allowed-host", "hosts", multiple=True, help="Another name or address accepted in the Host header.")
@_fault_options
def sandbox(
    *,
    host: str,
    port: int,
    env: bool,
    state: Path | None,
    authority: Path | None,
    unsigned: bool,
    keys: list[SigningKey],
    time_scale: float,
    hosts: tuple[str, ...],
    **faults: Any,
) -> None:
    """Simulate the whole platform on this machine."""
    if unsigned and keys:
        raise click.UsageError("--unsigned and --signing-secret exclude each other.")
    try:
        switched = Faults(**faults)
    except ValidationError as problems:
        first = problems.errors()[0]
        raise click.UsageError(f"--{first['loc'][0]}: {first['msg']}.") from problems
    if not unsigned:
        keys = keys or [parse_key(SANDBOX_SECRET)]
    name = f"[{host}]" if ":" in host else host
    if env:
        click.echo("\n".join(_environment(f"http://{name}:{port}", keys)))
        return
    # Imported here so that `--env` and `trigger` answer at once.
    import uvicorn

    from credhook.sandbox.app import create_app

    listener = _listen(host, port)
    base_url = f"http://{name}:{listener.getsockname()[1]}"
    trust = ssl.create_default_context()
    try:
        if authority:
            trust.load_verify_locations(authority)
        sender = Sender(StateFile(state), FaultSwitch(switched), keys, trust, time_scale)
    except sqlite3.Error as problem:
        raise click.ClickException(f"the state file {state} cannot be used: {problem}.") from problem
    except OSError as problem:
        raise click.ClickException(f"--ca {authority} cannot be read: {problem}.") from problem
    app = create_app(base_url, sender, [*LOOPBACK, name, *hosts])
    click.echo("\n".join(_environment(base_url, keys)))
    sys.stdout.flush()
    if name not in LOOPBACK:
        click.echo(f"Warning: {host} can be reached from other machines, and the client's secret is public.", err=True)
    click.echo(f"The sandbox listens; its page is at {base_url}/", err=True)
    # uvicorn's own logging set-up would print everything a second time.
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=1,
    )
    # uvicorn raises a signal again once it has stopped. These handlers then end the process with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    uvicorn.Server(config).run(sockets=[listener])


def _environment(base_url: str, keys: Sequence[SigningKey]) -> list[str]:
    lines = [
        f"CREDHOOK_API_URL={base_url}",
        f"CREDHOOK_TOKEN_URL={base_url}{TOKEN_PATH}",
        f"CREDHOOK_CLIENT_ID={CLIENT_ID}",
        f"CREDHOOK_CLIENT_SECRET={CLIENT_SECRET}",
    ]
    if keys:
        verifiers = " ".join(key.verifier for key in keys)
        lines.append(f"CREDHOOK_WEBHOOK_SECRETS={shlex.quote(verifiers)}")
    return lines


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Connections of a burst, even of a whole fleet, wait to be accepted.
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as problem:
        raise click.ClickException(
            f"cannot listen on port {port} of {host}: {problem.strerror}; choose another with --port."
        ) from problem


@click.command()
@click.argument("event_type", metavar="TYPE", callback=_full_name)
@click.option("--count", default=1, show_default=True, type=click.IntRange(1, 10_000), help="How many times.")
@click.option("--resource", help="Id of the issuance or presentation. Default: a new one.")
@click.option(
    "--attributes",
    multiple=True,
    callback=_parse_attributes,
    help="Attributes of the credential: KEY=VALUE, repeated, or a JSON object.",
)
@click.option("--is-valid/--no-is-valid", default=None, help="Validity of the presented credential. Default: valid.")
@click.option(
    "--url",
    default="http://127.0.0.1:8700",
    envvar="CREDHOOK_SANDBOX_URL",
    show_default=True,
    show_envvar=True,
    help="Address of the sandbox.",
)
def trigger(
    *, event_type: str, count: int, resource: str | None, attributes: dict[str, Any], is_valid: bool | None, url: str
) -> None:
    """Make an event of TYPE, such as `issuance.completed`, happen in a running sandbox."""
    body = {"eventType": event_type, "count": count, "resourceId": resource, "isValid": is_valid}
    body |= {"attributes": attributes or None}
    fields = {name: value for name, value in body.items() if value is not None}
    try:
        answer = httpx.post(f"{url.rstrip('/')}/sandbox/events", json=fields, timeout=60, trust_env=False)
        content = answer.json()
        if answer.is_error:
            raise click.ClickException(content["errors"][0]["detail"])
        happened = content["data"]
    except (httpx.TransportError, httpx.InvalidURL, ValueError, LookupError, TypeError) as problem:
        raise click.ClickException(
            f"no sandbox answers at {url} ({problem}): start one with `credhook sandbox`, or name another with --url."
        ) from problem
    for event in happened:
        deliveries = " ".join(event["webhookIds"]) or "no endpoint is registered for it"
        click.echo(f"{event['eventType']}  {event['resourceId']}  {deliveries}")
