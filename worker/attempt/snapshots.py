"""Details of presentations, kept sealed until every handler has run: the platform may show them only once.

They are personal data, so this is off unless `CREDHOOK_SNAPSHOT_KEY` is set, and no snapshot outlives a day.
"""

from typing import Final

import structlog
from pydantic import SecretStr, ValidationError
from redis.asyncio import Redis

from credhook.events import concerns_issuance
from credhook.store import EVENT, SNAPSHOT, lua
from credhook.worker.api.models import Issuance, Presentation
from credhook.worker.api.models.base import mismatch
from credhook.worker.platform.cipher import Cipher, NotOurs

log = structlog.get_logger("credhook.worker")

#: Seconds that a snapshot lives, and all that take its place with it. The default retries end after 16.6 hours at most
#: (worker/attempt/retry.py).
LIFETIME: Final = 86_400
#: Bytes of the largest that is kept: a Redis that is full takes no events.
LARGEST: Final = 256 * 1024

_KEEP: Final = lua.load("keep.lua")


class Snapshots:
    """The details that each open event may need again.

    Args:
        redis: Where they are kept. Its errors are the caller's.
        key: What they are sealed with; of several, separated by spaces, the first seals and all open. None: nothing is
            kept.
    """

    def __init__(self, redis: Redis, key: SecretStr | None) -> None:
        self._redis = redis
        self._keep = redis.register_script(_KEEP)
        keys = key.get_secret_value().split() if key else ()
        self._ciphers = tuple(Cipher(SecretStr(each), "snapshot") for each in keys)

    async def keep(self, event_id: str, details: bytes) -> None:
        """Note that the data of an event has been seen, and keep it sealed, in place of earlier, but no longer."""
        name, sealed = key_name(event_id), b""
        if self._ciphers and len(details) > LARGEST:
            log.warning("snapshot_too_large", webhook_id=event_id, bytes=len(details), most=LARGEST)
        elif self._ciphers:
            sealed = self._ciphers[0].encrypt(details, name)
        await self._keep(keys=[name, EVENT + event_id], args=[sealed, LIFETIME])

    async def find(self, event_id: str) -> bytes | None:
        """Return the details of an event, or None: nothing is kept, or nothing that our keys open."""
        name = key_name(event_id)
        sealed = await self._redis.get(name) if self._ciphers else None
        if not isinstance(sealed, bytes):
            return None
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(sealed, name)
            except NotOurs:
                continue
        log.warning(
            "snapshot_unreadable", webhook_id=event_id, hint="CREDHOOK_SNAPSHOT_KEY lacks the key it was kept with"
        )
        return None


def key_name(event_id: str) -> str:
    """Return the name of the Redis key that holds the details of an event."""
    return SNAPSHOT + event_id


def to_bytes(details: Issuance | Presentation) -> bytes:
    """Write details as the platform does, with the fields that we do not know, and without those that it left out."""
    return details.model_dump_json(by_alias=True, exclude_unset=True).encode()


def from_bytes(snapshot: bytes, event_type: str) -> Issuance | Presentation:
    """Read what `to_bytes` wrote of the resource that events of this type refer to.

    Raises:
        ValueError: It does not match the model, which may have changed since. The message does not repeat any value.
    """
    model = Issuance if concerns_issuance(event_type) else Presentation
    try:
        return model.model_validate_json(snapshot, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = mismatch(error)
    # Raised outside of the handler, so that no traceback leads to an exception that holds the details.
    raise ValueError(f"the snapshot does not match: {wrong}")
