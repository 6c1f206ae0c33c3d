"""`credhook doctor`: every check on one line, for people and (`--json`) for programs. The settings' checks are here."""

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, Self, TypeVar

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
from credhook.worker.settings import EndpointSettings, HandlerSettings, PlatformSettings, WorkerSettings
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
_PLATFORMS: Final = tuple(
    str(field.validation_alias) for field in PlatformSettings.model_fields.values() if field.is_required()
)
_WORKERS: Final = (*_PLATFORMS, "CREDHOOK_HANDLERS")

S = TypeVar("S", bound=BaseSettings)


@dataclass(frozen=True, slots=True)
class SettingsRead(Generic[S]):
    """Settings as they were read: None if they are wrong or absent, with one error for each wrong setting."""

    settings: S | None
    errors: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: type[S], *, if_set: Iterable[str] = ()) -> Self:
        """Read settings of that kind. With `if_set`, read them only if one of these variables is set."""
        names = tuple(if_set)
        if names and not any(os.environ.get(name) for name in names):
            return cls(None)
        try:
            return cls(kind())
        except ValidationError as invalid:
            return cls(None, tuple(setting_errors(invalid)))


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of this host. A certificate is reported `days` before its end; `now` returns epoch seconds."""

    ledger: SettingsRead[LedgerSettings]
    receiver: SettingsRead[ReceiverSettings]
    worker: SettingsRead[WorkerSettings]
    platform: SettingsRead[PlatformSettings]
    endpoint: SettingsRead[EndpointSettings]
    handlers: SettingsRead[HandlerSettings]
    days: int = CERTIFICATE_DAYS
    now: Callable[[], float] = time.time

    @classmethod
    def from_environment(cls, **more: Any) -> Self:
        """Read all settings from the environment."""
        return cls(
            ledger=SettingsRead.of(LedgerSettings),
            receiver=SettingsRead.of(ReceiverSettings, if_set=_RECEIVERS),
            worker=SettingsRead.of(WorkerSettings, if_set=_WORKERS),
            platform=SettingsRead.of(PlatformSettings, if_set=_PLATFORMS),
            endpoint=SettingsRead.of(EndpointSettings, if_set=["CREDHOOK_PUBLIC_URL"]),
            handlers=SettingsRead.of(HandlerSettings, if_set=_WORKERS),
            **more,
        )

    @property
    def tolerance(self) -> int:
        """Return the seconds by which clocks may differ before deliveries are refused."""
        default: int = ReceiverSettings.model_fields["tolerance"].default
        return self.receiver.settings.tolerance if self.receiver.settings else default


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
    yield _settings("settings.ledger", setup.ledger, "")
    yield _settings("settings.receiver", setup.receiver, "this host has no receiver's secrets")
    yield _settings("settings.worker", setup.worker, "this host knows no platform")
    yield _settings("settings.endpoint", setup.endpoint, "CREDHOOK_PUBLIC_URL is not set here")
    unknown = [split_remedy(correction(name)) for name in misspelt(os.environ)]
    if unknown:
        yield warn("settings.unknown", "; ".join(what for what, _ in unknown), "; ".join(todo for _, todo in unknown))
    else:
        yield ok("settings.unknown", "every CREDHOOK_ variable is a setting")
    receiver, platform = setup.receiver.settings, setup.platform.settings
    for name, path, variable in (
        ("certificate.receiver", receiver.tls_certfile if receiver else None, "CREDHOOK_TLS_CERTFILE"),
        ("certificate.client", platform.client_certfile if platform else None, "CREDHOOK_CLIENT_CERTFILE"),
    ):
        if path is None:
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


def _settings(name: str, read: SettingsRead[Any], absent: str) -> Finding:
    """Check the settings of one process and name those that differ from their defaults. Secrets are stars."""
    if read.errors:
        errors = [split_remedy(error) for error in read.errors]
        remedies = dict.fromkeys(remedy for _, remedy in errors if remedy)
        return fail(
            name, "; ".join(what for what, _ in errors), "; ".join(remedies) or "see deploy/README.md, Settings"
        )
    if read.settings is None:
        return skipped(name, absent)
    values = (f"{variable}={_shown(value)}" for variable, value in in_force(read.settings).items())
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
