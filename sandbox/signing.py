"""Signatures of deliveries, as Standard Webhooks defines them. The code shares nothing with the receiver's."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: Published: it signs only the deliveries of sandboxes. Because it is fixed, `credhook sandbox --env` prints the
#: secret of a sandbox that already runs.
SANDBOX_SECRET = "whsec_c2FuZGJveC1vbmx5LXB1Ymxpc2hlZC1ieS1jcmVkaG9vaw=="  # noqa: S105  Published, see above.

#: Length of an HMAC key in bytes (Standard Webhooks, "Symmetric": 24 to 64).
HMAC_KEY_BYTES = range(24, 65)
#: An ed25519 private key is its seed, or the seed followed by the public key.
SEED_BYTES = 32


class BadKeyError(ValueError):
    """The text is no signing key."""


@dataclass(frozen=True)
class SigningKey:
    """A key that signs deliveries.

    Attributes:
        version: `v1` for HMAC-SHA256, `v1a` for ed25519.
        verifier: The key that a receiver needs: the same secret, or the public key.
        sign: Returns the signature of some bytes.
    """

    version: str
    verifier: str = field(repr=False)
    sign: Callable[[bytes], bytes] = field(repr=False)


def parse_key(text: str) -> SigningKey:
    """Read a signing key, or raise a `BadKeyError` that does not repeat the text."""
    form, _, encoded = text.partition("_")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except ValueError:
        raw = b""
    if form == "whsec" and len(raw) in HMAC_KEY_BYTES:
        return SigningKey("v1", text, lambda signed: hmac.digest(raw, signed, hashlib.sha256))
    if form == "whsk" and len(raw) in {SEED_BYTES, 2 * SEED_BYTES}:
        private = Ed25519PrivateKey.from_private_bytes(raw[:SEED_BYTES])
        public = base64.b64encode(private.public_key().public_bytes_raw()).decode()
        return SigningKey("v1a", f"whpk_{public}", private.sign)
    raise BadKeyError("a signing key should be whsec_ with 24 to 64 bytes, or whsk_ with 32 or 64 bytes, in base64")


def headers(keys: Sequence[SigningKey], webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of one attempt, made at `timestamp` in seconds since 1970.

    The id stays the same across retries (specification, "Delivery rules", 3). Without keys only the id is sent, as one
    client of the platform observed.
    """
    if not keys:
        return {"webhook-id": webhook_id}
    signed = b".".join((webhook_id.encode(), str(timestamp).encode(), body))
    signatures = (f"{key.version},{base64.b64encode(key.sign(signed)).decode()}" for key in keys)
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }
