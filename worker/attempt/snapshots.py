"""Sealed snapshots of presentations, kept until every handler has run: the platform may show the data only once.

The data is personal, so this is off unless `CREDHOOK_SNAPSHOT_KEY` is set. No snapshot outlives a day.
"""

import secrets
from typing import Final

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import SecretStr, ValidationError
from redis.asyncio import Redis

from credhook.store import Keys, lua
from credhook.worker.api.models import Issuance, Presentation, model_of
from credhook.worker.api.wire import mismatch

log = structlog.get_logger("credhook.worker")

#: Seconds that a snapshot lives, even if it is overwritten. The default retries end after 16.6 hours at most.
LIFETIME: Final = 86_400
#: Maximum size in bytes: a full Redis would accept no events.
LARGEST: Final = 256 * 1024

_NONCE_BYTES: Final = 12

_KEEP: Final = lua.load("keep.lua")


class Snapshots:
    """The snapshots of all open events."""

    def __init__(self, redis: Redis, queue: str, key: SecretStr | None) -> None:
        """`key`: keys separated by spaces. The first seals, all open. None: nothing is kept."""
        self._redis = redis
        self._index = Keys(queue)
        self._keep = redis.register_script(_KEEP)
        keys = key.get_secret_value().split() if key else ()
        self._ciphers = tuple(_cipher(each) for each in keys)

    async def keep(self, event_id: str, details: bytes) -> None:
        """Note that the event's data was seen, and seal it. An earlier snapshot is overwritten but keeps its expiry."""
        name, sealed = self._index.snapshot + event_id, b""
        if self._ciphers and len(details) > LARGEST:
            log.warning("snapshot_too_large", webhook_id=event_id, bytes=len(details), most=LARGEST)
        elif self._ciphers:
            nonce = secrets.token_bytes(_NONCE_BYTES)
            # The name is authenticated too: a snapshot moved to another event cannot be opened.
            sealed = nonce + self._ciphers[0].encrypt(nonce, details, name.encode())
        await self._keep(keys=[name, self._index.event + event_id], args=[sealed, LIFETIME])

    async def find(self, event_id: str) -> bytes | None:
        """Return the details of an event, or None if there is no snapshot that our keys open."""
        name = self._index.snapshot + event_id
        sealed = await self._redis.get(name) if self._ciphers else None
        if not isinstance(sealed, bytes):
            return None
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name.encode())
            except (InvalidTag, ValueError):  # Another key; or shorter than a nonce.
                continue
        hint = "Add the key that sealed the snapshot to CREDHOOK_SNAPSHOT_KEY"
        log.warning("snapshot_unreadable", webhook_id=event_id, hint=hint)
        return None


def _cipher(key: str) -> AESGCM:
    """Derive an AES-256-GCM key. HKDF is fast, so the secret itself must be hard to guess."""
    derivation = HKDF(SHA256(), 32, salt=None, info=b"credhook:snapshot")
    return AESGCM(derivation.derive(key.encode()))


def to_bytes(details: Issuance | Presentation) -> bytes:
    """Return the details as the platform writes them: with unknown fields, without fields that it left out."""
    return details.model_dump_json(by_alias=True, exclude_unset=True).encode()


def from_bytes(snapshot: bytes, event_type: str) -> Issuance | Presentation:
    """Return the details that `to_bytes` wrote, for an event of this type.

    Raises:
        ValueError: the snapshot does not match the model, which may have changed. The message holds no values.
    """
    try:
        return model_of(event_type).model_validate_json(snapshot, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = mismatch(error)
    # Raised outside of the except block, so that no traceback leads to the exception that holds the details.
    raise ValueError(f"the snapshot does not match: {wrong}")
