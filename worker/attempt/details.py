"""Fetch the details of an event's resource, or read them from the sealed snapshot of an earlier attempt.

Presented data may be readable once, or for minutes. An event that announces data is never handled without it: it ends
as `data_gone`. Snapshots keep presented data until every handler has run. The data is personal, so this is off unless
`CREDHOOK_SNAPSHOT_KEY` is set. No snapshot outlives a day.
"""

import base64
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import structlog
from pydantic import SecretStr, ValidationError

from credhook.events import URGENT, rank_of, resource_of
from credhook.store.errors import STORE_ERRORS, hint
from credhook.store.store import AsyncStore
from credhook.worker import metrics
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, NotFound
from credhook.worker.api.models import Issuance, Presentation, model_of
from credhook.worker.attempt.retry import DataGone
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.claims import Claim

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

log = structlog.get_logger("credhook.worker")

#: Seconds that a snapshot lives, even if it is overwritten. The default retries end after 16.6 hours at most.
LIFETIME: Final = 86_400
#: Maximum size in bytes: a full Redis would accept no events.
LARGEST: Final = 256 * 1024


class Snapshots:
    """The snapshots of all open events."""

    def __init__(self, store: AsyncStore, key: SecretStr | None) -> None:
        """`key`: keys separated by spaces. The first seals, all open. None: nothing is kept."""
        self._store = store
        self._cipher = _cipher(key.get_secret_value().split()) if key else None

    async def keep(self, event_id: str, details: bytes) -> None:
        """Note that the event's data was seen, and seal it. An earlier snapshot is overwritten but keeps its expiry."""
        sealed = b""
        if self._cipher and len(details) > LARGEST:
            log.warning("snapshot_too_large", webhook_id=event_id, bytes=len(details), most=LARGEST)
        elif self._cipher:
            sealed = self._cipher.encrypt(self._label(event_id) + details)
        try:
            await self._store.run("keep", [event_id, sealed, LIFETIME])
        except STORE_ERRORS as error:  # The data is here now and may not be again: run the handlers.
            if self._cipher:  # Otherwise there is nothing to keep.
                log.warning("snapshot_not_kept", webhook_id=event_id, error=type(error).__name__, hint=hint(error))

    async def find(self, event_id: str) -> bytes | None:
        """Return the details of an event, or None if there is no snapshot that our keys open."""
        if not self._cipher:
            return None
        try:
            sealed = await self._store.redis.get(self._store.keys.snapshot + event_id)
        except STORE_ERRORS as error:
            log.warning("snapshot_unreadable", webhook_id=event_id, error=type(error).__name__)
            return None
        if not isinstance(sealed, bytes):
            return None
        with suppress(Exception):  # Another key sealed it, or it is damaged.
            opened, label = self._cipher.decrypt(sealed), self._label(event_id)
            if opened.startswith(label):
                return opened.removeprefix(label)
        hint = "Add the key that sealed the snapshot to CREDHOOK_SNAPSHOT_KEY"
        log.warning("snapshot_unreadable", webhook_id=event_id, hint=hint)
        return None

    def _label(self, event_id: str) -> bytes:
        """Return what is sealed in front of the details: a snapshot moved to another event is not opened."""
        return (self._store.keys.snapshot + event_id).encode() + b"\n"


def _cipher(keys: Sequence[str]) -> "MultiFernet":
    """Return the cipher. A hash makes a key of Fernet's form; the secret itself must be hard to guess."""
    from cryptography.fernet import Fernet, MultiFernet  # 6 MiB that most workers do not need.

    return MultiFernet([Fernet(base64.urlsafe_b64encode(sha256(key.encode()).digest())) for key in keys])


def to_bytes(details: Issuance | Presentation) -> bytes:
    """Return the details as the platform writes them: with unknown fields, without fields that it left out."""
    return details.model_dump_json(by_alias=True, exclude_unset=True).encode()


def from_bytes(snapshot: bytes, event_type: str) -> Issuance | Presentation | None:
    """Return the details that `to_bytes` wrote, or None if they do not match the model, which may have changed."""
    with suppress(ValidationError):
        return model_of(resource_of(event_type)).model_validate_json(snapshot, by_alias=True, by_name=False)
    return None


@dataclass(slots=True)
class Fetched:
    """The state of a resource at one moment.

    Attributes:
        details: the resource.
        since: Redis's clock, in ms, before the fetch. The details cover all events received by then.
        has_data: True if the details hold presented data.
    """

    details: Issuance | Presentation
    since: int
    has_data: bool = False


async def fetch(claim: Claim, api: AsyncApi, snapshots: Snapshots, known: Fetched | None) -> Fetched:
    """Return the details of the claimed event's resource. Presented data is sealed in `snapshots` between attempts.

    `known`: details fetched for the previous event of the resource. They are used again if they are recent enough.

    Raises:
        ApiError: the platform did not return them.
        DataGone: the platform no longer has the presented data.
    """
    is_urgent = claim.type in URGENT
    may_be_sealed = is_urgent and claim.seen
    # `known` may be later than this claim if Redis's clock went back. Then the order is unknown.
    covered = known is not None and claim.received_at.timestamp() <= known.since / 1000 <= claim.now / 1000
    if known is not None and covered and _suffices(known, claim):
        fetched = known
    else:
        if may_be_sealed and (sealed := await snapshots.find(claim.event_id)):
            if details := from_bytes(sealed, claim.type):
                return Fetched(details, since=0, has_data=True)
            log.warning("snapshot_unreadable", webhook_id=claim.event_id, hint="This version has other models")
        fetched = await _ask(claim, api, may_be_sealed=may_be_sealed)
    if fetched.has_data and is_urgent:
        await snapshots.keep(claim.event_id, to_bytes(fetched.details))
    return fetched


async def _ask(claim: Claim, api: AsyncApi, *, may_be_sealed: bool) -> Fetched:
    began = time.monotonic()
    try:
        details = await getattr(api, resource_of(claim.type).namespace).get(claim.resource_id)
    except ApiError as error:
        if not isinstance(error, PlatformPaused):  # Then it was not asked.
            metrics.FETCH_SECONDS.observe(time.monotonic() - began, metrics.status_label(error))
        if may_be_sealed and isinstance(error, NotFound):
            raise DataGone(was_there=True) from None
        raise
    metrics.FETCH_SECONDS.observe(time.monotonic() - began, "2xx")
    fetched = Fetched(details, claim.now, has_data=isinstance(details, Presentation) and details.has_data)
    if not _suffices(fetched, claim):
        raise DataGone(was_there=claim.seen)
    return fetched


def _suffices(fetched: Fetched, claim: Claim) -> bool:
    """Return False if the event announced presented data, or an earlier attempt saw it, and the details lack it."""
    announced = claim.type == "openid4vc.verification.data" or (claim.type in URGENT and claim.seen)
    return fetched.has_data or not announced


def state_of(event_type: str, updated_at: datetime | str | None) -> tuple[int, int]:
    """Return the event type's rank, and the time of the resource's last update in ms. 0 stands for unknown."""
    try:
        updated = int(updated_at.timestamp() * 1000) if isinstance(updated_at, datetime) else 0
    except (ValueError, OverflowError):  # The platform sent a year out of range.
        updated = 0
    return rank_of(event_type), max(0, updated)
