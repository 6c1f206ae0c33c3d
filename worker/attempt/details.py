"""Fetch the details of an event's resource, or take the details that an earlier attempt has kept.

Presented data may be readable once, or for minutes. If an attempt has seen data, no later one runs without it: the
event ends as `data_gone`. So a process keeps presented data in memory until every handler has run, for an hour at most.

Snapshots keep it for other processes, and across crashes. The data is personal, so there are none unless
`CREDHOOK_SNAPSHOT_KEY` is set. No snapshot outlives a day.
"""

import asyncio
import base64
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog
from pydantic import SecretStr
from pydantic_core import from_json, to_json

from credhook.events import URGENT, path_advice, rank_of, resource_of
from credhook.store.errors import STORE_ERRORS, hint
from credhook.store.store import AsyncStore
from credhook.worker import metrics
from credhook.worker.api.client import AsyncApi
from credhook.worker.api.errors import ApiError, NotFound
from credhook.worker.api.models import Issuance, Presentation, data_of, document_of, model_of, with_document
from credhook.worker.attempt.retry import DataGone, DetailsLate
from credhook.worker.platform.circuit import PlatformPaused
from credhook.worker.queue.claims import Claim

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

log = structlog.get_logger("credhook.worker")

#: Seconds that a snapshot lives, even if it is overwritten. The default retries end after 16.6 hours at most.
LIFETIME: Final = 86_400
#: Maximum size in bytes: a full Redis would accept no events.
LARGEST: Final = 256 * 1024
#: How sealed data begins: as Fernet's tokens do, and no JSON.
SEALED: Final = "gAAAA"
#: Seconds that presented data stays in memory: the first five retries of a handler.
SECONDS_IN_MEMORY: Final = 3_600.0
#: Maximum events of one process whose data stays in memory, and maximum bytes of all together.
MOST_IN_MEMORY: Final = 1_000
MOST_BYTES_IN_MEMORY: Final = 32 * 1024 * 1024


class RecentData:
    """Presented data that this process has fetched, in memory, by event. The oldest data makes room for the newest."""

    def __init__(self) -> None:
        self._data: dict[str, tuple[bytes, asyncio.TimerHandle]] = {}
        self._bytes = 0

    def put(self, event_id: str, data: bytes) -> None:
        """Keep the data of an event. The event's earlier data is dropped, but its time goes on."""
        if event_id in self._data:
            earlier, expiry = self._data.pop(event_id)
            self._bytes -= len(earlier)
        else:
            expiry = asyncio.get_running_loop().call_later(SECONDS_IN_MEMORY, self.drop, event_id)
        self._bytes += len(data)
        while self._data and (len(self._data) >= MOST_IN_MEMORY or self._bytes > MOST_BYTES_IN_MEMORY):
            self.drop(next(iter(self._data)))
        self._data[event_id] = data, expiry

    def get(self, event_id: str) -> bytes | None:
        """Return the data of an event, or None."""
        return self._data[event_id][0] if event_id in self._data else None

    def drop(self, event_id: str) -> None:
        """Forget the data of an event."""
        if event_id in self._data:
            data, expiry = self._data.pop(event_id)
            self._bytes -= len(data)
            expiry.cancel()


class Snapshots:
    """The presented data of open events: what this process has fetched, and snapshots in Redis."""

    def __init__(self, store: AsyncStore, key: SecretStr | None) -> None:
        """`key`: keys separated by spaces. The first seals, all open. None: no snapshots."""
        self._store = store
        self.recent = RecentData()
        self._cipher = _cipher(key.get_secret_value().split()) if key else None

    async def keep(self, event_id: str, fence: int, resource_id: str, details: bytes) -> None:
        """Note that the event's data was seen, and keep it. An earlier snapshot is overwritten but keeps its expiry.

        The snapshot belongs to the presentation: its later events find it. `fence`: of the claim that has the data.
        """
        self.recent.put(event_id, details)
        sealed = b""
        if self._cipher and len(details) > LARGEST:
            log.warning("snapshot_too_large", webhook_id=event_id, bytes=len(details), most=LARGEST)
        elif self._cipher:
            sealed = self.seal(self._store.keys.snapshot + resource_id, details)
        try:
            await self._store.run("keep", [event_id, fence, resource_id, sealed, LIFETIME])
        except STORE_ERRORS as error:  # The data is here now and may not be again: run the handlers.
            if self._cipher:  # Otherwise there is nothing to keep.
                log.warning("snapshot_not_kept", webhook_id=event_id, error=type(error).__name__, hint=hint(error))

    async def find(self, event_id: str, resource_id: str) -> bytes | None:
        """Return the details of an event, or None if this process has none and no snapshot that our keys open."""
        if recent := self.recent.get(event_id):
            return recent
        if not self._cipher:
            return None
        try:
            sealed = await self._store.redis.get(self._store.keys.snapshot + resource_id)
        except STORE_ERRORS as error:
            log.warning("snapshot_unreadable", webhook_id=event_id, error=type(error).__name__)
            return None
        if not isinstance(sealed, bytes):
            return None
        details = self.unseal(self._store.keys.snapshot + resource_id, sealed)
        if details is None:
            hint = "Add the key that sealed the snapshot to CREDHOOK_SNAPSHOT_KEY"
            log.warning("snapshot_unreadable", webhook_id=event_id, hint=hint)
        return details

    def seal(self, place: str, data: bytes) -> bytes:
        """Return the data sealed, or as it is without a key. `place`: sealed with it, so that it opens nowhere else."""
        return self._cipher.encrypt(place.encode() + b"\n" + data) if self._cipher else data

    def unseal(self, place: str, sealed: bytes) -> bytes | None:
        """Return what was sealed for this place, or None if none of our keys opens it."""
        with suppress(Exception):  # Another key sealed it, or it is damaged.
            label, opened = place.encode() + b"\n", self._cipher.decrypt(sealed) if self._cipher else b""
            if opened.startswith(label):
                return opened.removeprefix(label)
        return None


def _cipher(keys: Sequence[str]) -> "MultiFernet":
    """Return the cipher. A hash makes a key of Fernet's form; the secret itself must be hard to guess."""
    from cryptography.fernet import Fernet, MultiFernet  # 6 MiB that most workers do not need.

    return MultiFernet([Fernet(base64.urlsafe_b64encode(sha256(key.encode()).digest())) for key in keys])


def to_bytes(details: Issuance | Presentation) -> bytes:
    """Return the details as the platform wrote them."""
    return to_json(document_of(details))


def from_bytes(snapshot: bytes, event_type: str, resource_id: str) -> Issuance | Presentation:
    """Return the details that `to_bytes` wrote."""
    document = from_json(snapshot)
    details = model_of(resource_of(event_type)).model_validate(data_of(document), by_alias=True, by_name=False)
    return with_document(details if details.id else details.model_copy(update={"id": resource_id}), document)


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


class Lookups:
    """Remember which kinds of resources were ever found. The paths of details are observed, not specified."""

    def __init__(self) -> None:
        self._found = set[str]()
        #: Kind of resource → the first ids that were not found.
        self._not_found: dict[str, set[str]] = {}

    def note(self, event_type: str, resource_id: str, *, is_found: bool) -> None:
        """Note the result of a fetch that the platform answered with the details, or with 404."""
        kind = resource_of(event_type).name
        if is_found:
            self._found.add(kind)
        elif len(ids := self._not_found.setdefault(kind, set())) < NOT_FOUND_IDS:
            ids.add(resource_id)

    @property
    def never_found(self) -> tuple[str, ...]:
        """Return the kinds of resources for which every fetch of this process got a 404, if there were several."""
        return tuple(
            kind for kind, ids in self._not_found.items() if kind not in self._found and len(ids) == NOT_FOUND_IDS
        )

    def hint(self, event_type: str) -> str:
        """Return which settings to check because of a 404, or "" if a resource of this kind was found before."""
        kind = resource_of(event_type).name
        return "" if kind in self._found else f"if every fetch gets a 404, {path_advice(kind)}"


#: Different ids that should have got a 404 before a path is in doubt.
NOT_FOUND_IDS: Final = 3


async def fetch(claim: Claim, api: AsyncApi, snapshots: Snapshots, known: Fetched | None) -> Fetched:
    """Return the details of the claimed event's resource. Presented data is kept in `snapshots` between attempts.

    `known`: details fetched for the previous event of the resource. They are used again if they are recent enough.

    Raises:
        ApiError: the platform did not return them.
        DataGone: the platform no longer has the presented data.
        DetailsLate: they lack what the event announces, or are empty.
    """
    is_urgent = claim.type in URGENT
    was_seen = is_urgent and (claim.seen or snapshots.recent.get(claim.event_id) is not None)
    # `known` may be later than this claim if Redis's clock went back. Then the order is unknown.
    covered = known is not None and claim.received_at.timestamp() <= known.since / 1000 <= claim.now / 1000
    if known is not None and covered and _suffices(known, claim, was_seen=was_seen):
        fetched = known
    else:
        if was_seen and (kept := await _kept(claim, snapshots)):
            return kept
        try:
            fetched = await _ask(claim, api, was_seen=was_seen)
        except (NotFound, DataGone, DetailsLate):
            # An earlier event of the presentation may have seen data that is readable once.
            earlier = await _kept(claim, snapshots) if is_urgent else None
            if earlier is None:
                raise
            fetched = earlier
    if fetched.has_data and is_urgent:
        await snapshots.keep(claim.event_id, claim.fence, claim.resource_id, to_bytes(fetched.details))
    return fetched


async def _kept(claim: Claim, snapshots: Snapshots) -> Fetched | None:
    kept = await snapshots.find(claim.event_id, claim.resource_id)
    if kept is None:
        return None
    return Fetched(from_bytes(kept, claim.type, claim.resource_id), since=0, has_data=True)


async def _ask(claim: Claim, api: AsyncApi, *, was_seen: bool) -> Fetched:
    began = time.monotonic()
    try:
        details = await getattr(api, resource_of(claim.type).namespace).get(claim.resource_id)
    except ApiError as error:
        if not isinstance(error, PlatformPaused):  # PlatformPaused means that no request was sent.
            metrics.FETCH_SECONDS.observe(time.monotonic() - began, metrics.status_label(error))
        says_gone = error.status == HTTPStatus.GONE and claim.type == _ANNOUNCES_DATA
        if says_gone or (was_seen and isinstance(error, NotFound)):
            raise DataGone(was_seen=was_seen) from None
        raise
    metrics.FETCH_SECONDS.observe(time.monotonic() - began, "2xx")
    fetched = Fetched(details, claim.now, has_data=isinstance(details, Presentation) and details.has_data)
    if details.is_empty or not _suffices(fetched, claim, was_seen=was_seen):
        raise DataGone(was_seen=True) if was_seen else DetailsLate(fetched)
    return fetched


#: The event type whose details hold presented data.
_ANNOUNCES_DATA: Final = "openid4vc.verification.data"


def _suffices(fetched: Fetched, claim: Claim, *, was_seen: bool) -> bool:
    """Return False if the event announced presented data, or an earlier attempt saw it, and the details lack it."""
    return fetched.has_data or not (was_seen or claim.type == _ANNOUNCES_DATA)


def state_of(event_type: str, updated_at: datetime | str | None) -> tuple[int, int]:
    """Return the event type's rank, and the time of the resource's last update in ms. 0 stands for unknown."""
    try:
        updated = int(updated_at.timestamp() * 1000) if isinstance(updated_at, datetime) else 0
    except (ValueError, OverflowError):  # The platform sent a year out of range.
        updated = 0
    return rank_of(event_type), max(0, updated)
