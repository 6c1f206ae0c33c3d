"""Settings: those in force, those that are wrong, those that are none; and certificates that they name."""

import importlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from credhook.certificate import valid_until
from credhook.misspelt import correction, misspelt
from credhook.ops.finding import Finding, apart, fail, ok, skipped, warn
from credhook.ops.setup import Read, Setup
from credhook.settings import in_force
from credhook.tracing.switch import exporters
from credhook.worker.commands import endpoints

#: Its first part: these end the command with another exit code.
WRONG: Final = "settings."
NAMES: Final = (
    "settings.ledger",
    "settings.receiver",
    "settings.worker",
    "settings.endpoint",
    "settings.unknown",
    "certificate.receiver",
    "certificate.client",
    "traces.extra",
)


def check_settings(setup: Setup) -> Iterator[Finding]:
    """All of them; nothing outside of this process is asked."""
    yield of_group("settings.ledger", setup.ledger, "")
    yield of_group("settings.receiver", setup.receiver, "no receiver is set up here: it has no secrets")
    yield of_group("settings.worker", setup.worker, "no worker is set up here: it knows no platform")
    yield of_group("settings.endpoint", setup.endpoint, "CREDHOOK_PUBLIC_URL is not set here")
    yield of_names(misspelt(os.environ))
    receiver, platform = setup.receiver.settings, setup.platform.settings
    for name, certfile, variable in (
        ("certificate.receiver", receiver.tls_certfile if receiver else None, "CREDHOOK_TLS_CERTFILE"),
        ("certificate.client", platform.client_certfile if platform else None, "CREDHOOK_CLIENT_CERTFILE"),
    ):
        yield of_file(name, certfile, variable, now=setup.now(), days=setup.days)
    yield of_traces(exporters(os.environ))


def of_group(name: str, read: Read[Any], absent: str) -> Finding:
    """Whether the settings of one process can be read, and which differ from their defaults. Secrets are stars."""
    if read.errors:
        told = [apart(error) for error in read.errors]
        remedies = dict.fromkeys(remedy for _, remedy in told if remedy)
        return fail(name, "; ".join(what for what, _ in told), "; ".join(remedies) or "see deploy/README.md, Settings")
    if read.settings is None:
        return skipped(name, absent)
    in_words = (f"{variable}={shown(value)}" for variable, value in in_force(read.settings).items())
    return ok(name, ", ".join(in_words) or "all as by default")


def of_names(unknown: list[str]) -> Finding:
    """Whether variables look like settings of ours and are none."""
    if not unknown:
        return ok("settings.unknown", "every CREDHOOK_ variable is a setting")
    told = [apart(correction(name)) for name in unknown]
    return warn("settings.unknown", "; ".join(what for what, _ in told), "; ".join(remedy for _, remedy in told))


def of_traces(names: tuple[str, ...]) -> Finding:
    """Whether what exports traces is installed, where they are wanted."""
    if not names:
        return skipped("traces.extra", "no variable of OpenTelemetry's asks for traces here")
    try:
        importlib.import_module("credhook.tracing.provider")
    except ModuleNotFoundError as missing:
        what = f"traces are wanted ({', '.join(names)}), and {missing.name} is not installed"
        return warn("traces.extra", what, "pip install 'credhook[otel]', or set OTEL_SDK_DISABLED=true")
    return ok("traces.extra", "traces are wanted, and what they need is installed")


def of_file(name: str, certfile: Path | None, variable: str, *, now: float, days: int) -> Finding:
    """Whether a certificate that a setting names is still valid for so many days."""
    if certfile is None:
        return skipped(name, f"{variable} is not set here")
    return of_certificate(name, valid_until(certfile), f"renew the file that {variable} names, and restart", now, days)


def of_certificate(name: str, until: datetime, remedy: str, now: float, days: int) -> Finding:
    """Whether a certificate that is valid until then is so for so many days more."""
    left = until.timestamp() - now
    ends = until.astimezone(UTC).isoformat(timespec="minutes")
    if left <= 0:
        return fail(name, f"the certificate has expired at {ends}", remedy)
    if left < days * 86_400:
        return warn(name, f"the certificate expires in {left / 86_400:.0f} days, at {ends}", remedy)
    return ok(name, f"the certificate is valid for another {left / 86_400:.0f} days")


def shown(value: object) -> object:
    """A value as it may be printed: the last part of a URL's path may be our path secret."""
    return endpoints.shown(value) if isinstance(value, str) and "://" in value else value
