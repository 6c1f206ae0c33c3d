"""Authenticate deliveries: header rules and Standard Webhooks signatures. Clock and keys are arguments.

Standard Webhooks signs `id.timestamp.body`. A body is a JSON object, so it begins with `{`. Only an id with a dot and a
brace behind the dot could shift the boundaries of that text, so a signed id may not hold these.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks.webhooks import hmac_data

from credhook.events import LONGEST_ID

#: The three headers of Standard Webhooks; the platform's specification names only the first.
ID, TIMESTAMP, SIGNATURE = b"webhook-id", b"webhook-timestamp", b"webhook-signature"

#: The form of each header: when deliveries are signed, and when they are not. An id may be any text.
_UNSIGNED: Final = {ID: re.compile(rb"[^\x00-\x1f\x7f]{1,%d}" % LONGEST_ID)}
_SIGNED: Final = {
    # Each class ends where the next character begins: with `.*`, a header of dots would take a tenth of a second.
    ID: re.compile(rb"(?![^.]*\.[^{]*\{)" + _UNSIGNED[ID].pattern),
    # Without a leading zero: the number is signed, so it must have only one form.
    TIMESTAMP: re.compile(rb"[1-9][0-9]{9,10}"),
    # A sender that rotates keys signs with each of them. More than ten keys at once are not plausible.
    SIGNATURE: re.compile(rb"[^ ]*( [^ ]*){0,9}"),
}

#: Bytes of each kind of key. Standard Webhooks asks for 24 to 64 of HMAC.
_KEY_BYTES: Final = {"whsec": range(24, 65), "whpk": range(32, 33)}

Headers = Iterable[tuple[bytes, bytes]]


class BadHeaders(Exception):
    """A `webhook-*` header is missing, doubled or malformed. The message names it."""


class Encoded(Exception):
    """The body is compressed or otherwise encoded. The signature covers the body before that."""


class Unauthenticated(Exception):
    """No configured key made any of the signatures, or the timestamp is too old or too new.

    Attributes:
        hint: advice for the operator.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


class OutsideTolerance(Unauthenticated):
    """The timestamp is too far from this host's clock."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key that verifies signatures.

    Attributes:
        version: of its signatures: `v1` for HMAC-SHA256, `v1a` for ed25519.
        made: returns True if the key made this signature of these bytes.
    """

    version: bytes
    made: Callable[[bytes, bytes], bool] = field(repr=False)


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
        raise ValueError(f"a whsec_ key should hold 24 to 64 bytes, a whpk_ key 32; this {kind}_ key holds {len(raw)}")
    if kind == "whsec":
        return Key(b"v1", lambda signature, signed: hmac.compare_digest(hmac_data(raw, signed), signature))
    if not any(raw):  # Everybody can sign for a placeholder of zeros.
        raise ValueError("a whpk_ key should not be zeros; ask the sender for its own")
    public_key = Ed25519PublicKey.from_public_bytes(raw)

    def made(signature: bytes, signed: bytes) -> bool:
        try:
            public_key.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return Key(b"v1a", made)


class SignedHeaders(NamedTuple):
    """The `webhook-*` headers of a delivery, before its signature is verified.

    Attributes:
        raw_id: the `webhook-id`, as it is signed.
        timestamp: when it was signed, seconds since the epoch; 0 without signatures.
        signatures: version and bytes of each readable signature.
    """

    raw_id: bytes
    timestamp: int = 0
    signatures: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def delivery_id(self) -> str:
        """Return the `webhook-id` as text. Bytes that are no UTF-8 are escaped."""
        return self.raw_id.decode(errors="backslashreplace")


def read_headers(headers: Headers, *, signatures: bool) -> SignedHeaders:
    """Read the `webhook-*` headers. Names are in lower case, as ASGI gives them.

    Without `signatures`, only the `webhook-id` is read.

    Raises:
        BadHeaders: one is missing, doubled or malformed.
        Encoded: the body is encoded.
    """
    forms = _SIGNED if signatures else _UNSIGNED
    ours: dict[bytes, bytes] = {}
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in {b"", b"identity"}:
            raise Encoded("content-encoding should be identity: the signature covers the body as it arrives")
        if name in forms:
            if name in ours:  # Sender and receiver might mean different values.
                raise BadHeaders(f"{name.decode()} should be there exactly once")
            ours[name] = value.strip(b" \t")  # RFC 9110: this whitespace is no part of the value.
    for name, form in forms.items():
        if name not in ours:
            raise BadHeaders(f"{name.decode()} should be there exactly once")
        if not form.fullmatch(ours[name]):
            raise BadHeaders(f"{name.decode()} is malformed")
    if not signatures:
        return SignedHeaders(ours[ID])
    return SignedHeaders(ours[ID], int(ours[TIMESTAMP]), _signatures(ours[SIGNATURE]))


def authenticate(headers: SignedHeaders, body: bytes, keys: Sequence[Key], *, now: float, tolerance: float) -> None:
    """Verify that one of the keys signed this delivery, within `tolerance` seconds before or after `now`.

    Raises:
        Unauthenticated: no key did.
        OutsideTolerance: the timestamp is too old or too new.
    """
    if abs(now - headers.timestamp) > tolerance:
        ahead = round(headers.timestamp - now)
        raise OutsideTolerance(
            "webhook-timestamp is outside the tolerance",
            f"signed {abs(ahead)} s {'ahead of' if ahead > 0 else 'before'} this host's clock: compare that with the "
            "sender's, then see CREDHOOK_TOLERANCE; an old delivery that is sent again is signed as it was",
        )
    signed = b"%b.%d.%b" % (headers.raw_id, headers.timestamp, body)
    for key in keys:
        for version, signature in headers.signatures:
            if version == key.version and key.made(signature, signed):
                return
    raise Unauthenticated("no signature matches", "check CREDHOOK_WEBHOOK_SECRETS")


def _signatures(header: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return the readable signatures of the header. Unreadable ones are skipped."""
    readable = []
    for token in header.split(b" "):
        version, _, encoded = token.partition(b",")
        try:
            readable.append((version, binascii.a2b_base64(encoded, strict_mode=True)))
        except ValueError:
            continue
    return tuple(readable)
