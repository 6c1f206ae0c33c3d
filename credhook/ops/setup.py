"""Which settings are there: all of them on a developer's machine, a receiver's or a worker's in production."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from credhook.receiver.settings import ReceiverSettings
from credhook.settings import LedgerSettings
from credhook.worker.settings import EndpointSettings, HandlerSettings, PlatformSettings, WorkerSettings
from credhook.wrong_settings import setting_errors

#: Days before its end from which on a certificate is spoken of.
DAYS: Final = 14

S = TypeVar("S", bound=BaseSettings)

#: What is set on every host of a receiver's, or of a worker's, and on no other.
_RECEIVERS: Final = ("CREDHOOK_WEBHOOK_SECRETS", "CREDHOOK_PATH_SECRET", "CREDHOOK_INSECURE")
_PLATFORMS: Final = tuple(
    str(field.validation_alias) for field in PlatformSettings.model_fields.values() if field.is_required()
)
_WORKERS: Final = (*_PLATFORMS, "CREDHOOK_HANDLERS")


@dataclass(frozen=True, slots=True)
class Read(Generic[S]):
    """Settings as they were read.

    Attributes:
        settings: None where they are not there, or wrong.
        errors: a line for each that is wrong or missing; none where this host is not meant to have them.
    """

    settings: S | None
    errors: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: type[S], *, where: Iterable[str] = ()) -> Self:
        """Read settings of that kind, if any of the variables `where` they belong is set; always if none is named."""
        names = tuple(where)
        if names and not any(os.environ.get(name) for name in names):
            return cls(None)
        try:
            return cls(kind())
        except ValidationError as invalid:
            return cls(None, tuple(setting_errors(invalid)))


@dataclass(frozen=True, slots=True)
class Setup:
    """What the doctor has to go by. A certificate is spoken of from so many `days` before its end on."""

    ledger: Read[LedgerSettings]
    receiver: Read[ReceiverSettings]
    worker: Read[WorkerSettings]
    platform: Read[PlatformSettings]
    endpoint: Read[EndpointSettings]
    handlers: Read[HandlerSettings]
    days: int = DAYS
    now: Callable[[], float] = time.time

    @classmethod
    def from_environment(cls, **more: Any) -> Self:
        """Read all that is there."""
        return cls(
            ledger=Read.of(LedgerSettings),
            receiver=Read.of(ReceiverSettings, where=_RECEIVERS),
            worker=Read.of(WorkerSettings, where=_WORKERS),
            platform=Read.of(PlatformSettings, where=_PLATFORMS),
            endpoint=Read.of(EndpointSettings, where=["CREDHOOK_PUBLIC_URL"]),
            handlers=Read.of(HandlerSettings, where=_WORKERS),
            **more,
        )

    @property
    def tolerance(self) -> int:
        """Seconds by which clocks may differ before deliveries are refused."""
        default: int = ReceiverSettings.model_fields["tolerance"].default
        return self.receiver.settings.tolerance if self.receiver.settings else default
