"""`credhook doctor`: every check on one line, for people and (`--json`) for programs. The settings' checks are here."""

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar

import click
from pydantic import ValidationError
from pydantic_settings import BaseSettings

from credhook.certificate import valid_until
from credhook.misspelt import correction, misspelt
from credhook.ops.findings import CheckGroup, Finding, Verdict, examine, fail, ok, skipped, split_remedy, warn
from credhook.receiver.settings import ReceiverSettings
from credhook.settings import LedgerSettings, in_force
from credhook.tracing.switch import exporters
from credhook.worker.commands import endpoints
from credhook.worker.settings import EndpointSettings, WorkerSettings
from credhook.wrong_settings import setting_errors

#: Days before its end from which a certificate is reported.
CERTIFICATE_DAYS: Final = 14
#: Checks of this group end the command with exit code 2.
_SETTINGS_PREFIX: Final = "settings."
_SETTINGS: Final = (
    *("settings.ledger", "settings.receiver", "settings.worker", "settings.endpoint", "settings.unknown"),
    *("certificate.receiver", "certificate.client", "traces.extra"),
)
#: Variables that are set on every receiver's host, or every worker's, and on no other host.
_RECEIVERS: Final = ("CREDHOOK_WEBHOOK_SECRETS", "CREDHOOK_PATH_SECRET", "CREDHOOK_INSECURE")
_WORKERS: Final = (
    "CREDHOOK_HANDLERS",
    *(str(field.validation_alias) for field in WorkerSettings.model_fields.values() if field.is_required()),
)

S = TypeVar("S", bound=BaseSettings)


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of this host.

    Attributes:
        errors: kind of settings → one line for each wrong setting. Wrong or absent settings are None.
        days: days before its end from which a certificate is reported.
        now: returns epoch seconds.
    """

    ledger: LedgerSettings | None
    receiver: ReceiverSettings | None
    worker: WorkerSettings | None
    endpoint: EndpointSettings | None
    errors: Mapping[str, Sequence[str]]
    days: int = CERTIFICATE_DAYS
    now: Callable[[], float] = time.time

    @classmethod
    def from_environment(cls, **more: Any) -> Self:
        """Read the settings of the processes that this host is meant for."""
        errors: dict[str, Sequence[str]] = {}

        def read(name: str, kind: type[S], *if_set: str) -> S | None:
            if if_set and not any(map(os.environ.get, if_set)):
                return None
            try:
                return kind()
            except ValidationError as invalid:
                errors[name] = setting_errors(invalid)
                return None

        return cls(
            ledger=read("ledger", LedgerSettings),
            receiver=read("receiver", ReceiverSettings, *_RECEIVERS),
            worker=read("worker", WorkerSettings, *_WORKERS),
            endpoint=read("endpoint", EndpointSettings, "CREDHOOK_PUBLIC_URL"),
            errors=errors,
            **more,
        )

    @property
    def tolerance(self) -> int:
        """Return the seconds by which clocks may differ before deliveries are refused."""
        default: int = ReceiverSettings.model_fields["tolerance"].default
        return self.receiver.tolerance if self.receiver else default


@click.command()
@click.option(
    "--days",
    type=click.IntRange(0),
    default=CERTIFICATE_DAYS,
    show_default=True,
    help="For how long certificates should still be valid.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def doctor(*, days: int, as_json: bool) -> None:
    """Try everything that receivers and workers depend on, and say what to do about each problem.

    It uses the settings of this host: a receiver's host has no platform, a worker's host no webhook secrets. Checks
    that do not apply are skipped. It writes keys of its own to Redis and deletes them. It posts a delivery without
    headers to the public URL, which a receiver refuses. Exit codes: 0 all is well, 1 something needs attention, 2 wrong
    usage or a wrong setting.
    """
    findings = examine(_groups(Setup.from_environment(days=days)))
    for finding in findings:
        click.echo(json.dumps(finding._asdict()) if as_json else line(finding))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code(findings))  # A thread that still waits for a name server would keep the process alive.


def _groups(setup: Setup) -> list[CheckGroup]:
    # Imported here: both modules need `Setup`.
    redis, platform = (importlib.import_module(f"credhook.ops.doctor_{name}") for name in ("redis", "platform"))
    return [
        CheckGroup(_SETTINGS, functools.partial(check_settings, setup)),
        CheckGroup(
            redis.NAMES, functools.partial(redis.check_redis, setup), "see whether Redis or the network is too slow"
        ),
        CheckGroup(
            platform.URL_NAMES,
            functools.partial(platform.check_public_url, setup),
            "see whether the name server answers",
        ),
        CheckGroup(
            platform.NAMES,
            functools.partial(platform.check_platform, setup),
            "see whether handlers take long to import, or the name server does not answer",
        ),
    ]


def line(finding: Finding) -> str:
    """Return the finding as one line: verdict, name, what was found, what to do."""
    text = f"{finding.verdict:<8}{finding.name:<24}{finding.what}"
    if finding.remedy:
        text += f"; {finding.remedy}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 2 if a setting is wrong, 1 if anything else needs attention, or 0."""
    if any(one.verdict is Verdict.FAIL and one.name.startswith(_SETTINGS_PREFIX) for one in findings):
        return 2
    return int(any(one.needs_attention for one in findings))


def check_settings(setup: Setup) -> Iterator[Finding]:
    """Check settings, certificates and extras. Nothing outside this process is asked."""
    for name, absent in (
        ("ledger", ""),
        ("receiver", "this host has no receiver's secrets"),
        ("worker", "this host knows no platform"),
        ("endpoint", "CREDHOOK_PUBLIC_URL is not set here"),
    ):
        yield _settings(f"settings.{name}", getattr(setup, name), setup.errors.get(name, ()), absent)
    unknown = [split_remedy(correction(name)) for name in misspelt(os.environ)]
    if unknown:
        yield warn("settings.unknown", "; ".join(what for what, _ in unknown), "; ".join(todo for _, todo in unknown))
    else:
        yield ok("settings.unknown", "every CREDHOOK_ variable is a setting")
    for name, path, variable in (
        ("certificate.receiver", setup.receiver and setup.receiver.tls_certfile, "CREDHOOK_TLS_CERTFILE"),
        ("certificate.client", setup.worker and setup.worker.client_certfile, "CREDHOOK_CLIENT_CERTFILE"),
    ):
        if not path:
            yield skipped(name, f"{variable} is not set here")
        else:
            yield of_certificate(name, valid_until(path), f"renew the file that {variable} names, and restart", setup)
    yield _traces(exporters(os.environ))


def of_certificate(name: str, until: datetime, remedy: str, setup: Setup) -> Finding:
    """Check that a certificate is valid for some more days."""
    left = until.timestamp() - setup.now()
    end = until.astimezone(UTC).isoformat(timespec="minutes")
    if left <= 0:
        return fail(name, f"the certificate has expired at {end}", remedy)
    if left < setup.days * 86_400:
        return warn(name, f"the certificate expires in {left / 86_400:.0f} days, at {end}", remedy)
    return ok(name, f"the certificate is valid for another {left / 86_400:.0f} days")


def _settings(name: str, settings: BaseSettings | None, errors: Sequence[str], absent: str) -> Finding:
    """Check the settings of one process and name those that differ from their defaults. Secrets are stars."""
    if errors:
        parts = [split_remedy(error) for error in errors]
        remedy = "; ".join(dict.fromkeys(remedy for _, remedy in parts if remedy))
        return fail(name, "; ".join(what for what, _ in parts), remedy or "see deploy/README.md, Settings")
    if settings is None:
        return skipped(name, absent)
    values = (f"{variable}={_shown(value)}" for variable, value in in_force(settings).items())
    return ok(name, ", ".join(values) or "all have their defaults")


def _shown(value: object) -> object:
    """Hide what could be the path secret at the end of a URL."""
    return endpoints.shown(value) if isinstance(value, str) and "://" in value else value


def _traces(names: Sequence[str]) -> Finding:
    if not names:
        return skipped("traces.extra", "no OpenTelemetry variable asks for traces here")
    try:
        importlib.import_module("credhook.tracing.provider")
    except ModuleNotFoundError as missing:
        what = f"traces are wanted ({', '.join(names)}), and {missing.name} is not installed"
        return warn("traces.extra", what, "pip install 'credhook[otel]', or set OTEL_SDK_DISABLED=true")
    return ok("traces.extra", "traces are wanted, and their packages are installed")
