"""The keys that verify signatures of deliveries, as `CREDHOOK_WEBHOOK_SECRETS` writes them."""

import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks.webhooks import hmac_data

#: Bytes of each kind of key. Standard Webhooks asks for 24 to 64 bytes for HMAC; Svix makes up to 75.
_KEY_BYTES: Final = {"whsec": range(24, 76), "whpk": range(32, 33)}


@dataclass(frozen=True, slots=True)
class Key:
    """A key that verifies signatures.

    Attributes:
        version: of its signatures: `v1` for HMAC-SHA256, `v1a` for ed25519.
        verify: returns True if the key made this signature of these bytes.
    """

    version: bytes
    verify: Callable[[bytes, bytes], bool] = field(repr=False)


def parse_key(text: str) -> Key:
    """Read one key of `CREDHOOK_WEBHOOK_SECRETS`, with or without base64's padding.

    `whsec_<base64>` is a shared secret, `whpk_<base64>` a public key of ed25519.

    Raises:
        ValueError: the key is malformed, or anyone could sign for it. The message holds no part of the key.
    """
    kind, _, encoded = text.partition("_")
    if kind not in _KEY_BYTES:
        raise ValueError("every key should begin with whsec_ or whpk_")
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        raise ValueError(f"a {kind}_ key should be base64; keys are separated by spaces") from None
    if len(raw) not in _KEY_BYTES[kind]:
        raise ValueError(f"a whsec_ key should hold 24 to 75 bytes, a whpk_ key 32; this {kind}_ key holds {len(raw)}")
    if kind == "whsec":
        return Key(b"v1", lambda signature, signed: hmac.compare_digest(hmac_data(raw, signed), signature))
    if not any(raw):  # Anyone can sign for a key of zeros.
        raise ValueError("a whpk_ key should not be zeros; ask the sender for its own")
    public_key = Ed25519PublicKey.from_public_bytes(raw)

    def verify(signature: bytes, signed: bytes) -> bool:
        try:
            public_key.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return Key(b"v1a", verify)
