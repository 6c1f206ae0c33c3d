"""The settings of this host, and the doctor's checks of them: values, unknown variables, certificates, extras."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from credhook.ops.findings import Finding, fail, ok, skipped, split_remedy, warn
from credhook.receiver.settings import ReceiverSettings
from credhook.settings import StoreSettings, correction, in_force, settings_errors, unknown_settings, valid_until
from credhook.tracing import exporters
from credhook.worker.commands import endpoints
from credhook.worker.settings import EndpointSettings, WorkerSettings

#: Days before its end from which a certificate is reported.
CERTIFICATE_DAYS: Final = 14
NAMES: Final = (
    *("settings.store", "settings.receiver", "settings.worker", "settings.endpoint", "settings.unknown"),
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

    store: StoreSettings | None
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
                errors[name] = settings_errors(invalid)
                return None

        return cls(
            store=read("store", StoreSettings),
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


def check_settings(setup: Setup) -> Iterator[Finding]:
    """Check settings, certificates and extras. Nothing outside this process is asked."""
    for name, absent in (
        ("store", ""),
        ("receiver", "this host has no receiver's secrets"),
        ("worker", "this host knows no platform"),
        ("endpoint", "CREDHOOK_PUBLIC_URL is not set here"),
    ):
        yield _settings(f"settings.{name}", getattr(setup, name), setup.errors.get(name, ()), absent)
    unknown = [split_remedy(correction(name)) for name in unknown_settings(os.environ)]
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
    """Check the settings of one process and name the values that differ from their defaults. Secrets are stars."""
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
        import credhook.tracing.spans  # noqa: F401
    except ModuleNotFoundError as missing:
        what = f"traces are wanted ({', '.join(names)}), and {missing.name} is not installed"
        return warn("traces.extra", what, "pip install 'credhook[otel]', or set OTEL_SDK_DISABLED=true")
    return ok("traces.extra", "traces are wanted, and their packages are installed")
