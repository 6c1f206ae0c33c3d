"""Authenticate deliveries: header rules and Standard Webhooks signatures. Clock and keys are arguments.

Standard Webhooks signs `id.timestamp.body`. A body is a JSON object, so it begins with `{`. Only an id with a dot and a
brace behind the dot could shift the boundaries of that text, so a signed id may not hold these.
"""

import base64
import binascii
import hmac
import re
from collections.abc import Iterable, Sequence
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

#: RFC-sized bounds on an HMAC key, as Standard Webhooks asks: 24 to 64 bytes.
_HMAC_KEY_BYTES: Final = range(24, 65)
_ED25519_KEY_BYTES: Final = 32

#: The prime of ed25519's field, and the y of its points of order 8.
_P: Final = 2**255 - 19
_ORDER_EIGHT: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
#: The y of all eight points of low order (1, 2, 4 or 8). For such a public key a signature can be forged without the
#: private key: for every message, or for one in eight.
_LOW_ORDER: Final = frozenset({0, 1, _P - 1, _ORDER_EIGHT, _P - _ORDER_EIGHT})

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
class HmacKey:
    """A shared secret, `whsec_<base64>`: signatures are `v1`, HMAC-SHA256."""

    secret: bytes = field(repr=False)
    version: bytes = b"v1"

    def made(self, signature: bytes, signed: bytes) -> bool:
        """Return True if the signature was made with this secret."""
        return hmac.compare_digest(hmac_data(self.secret, signed), signature)


@dataclass(frozen=True, slots=True)
class Ed25519Key:
    """A public key, `whpk_<base64>`: signatures are `v1a`, ed25519."""

    public_key: Ed25519PublicKey = field(repr=False)
    version: bytes = b"v1a"

    def made(self, signature: bytes, signed: bytes) -> bool:
        """Return True if the signature was made with the private key."""
        try:
            self.public_key.verify(signature, signed)
        except InvalidSignature:
            return False
        return True


Key = HmacKey | Ed25519Key


def parse_key(text: str) -> Key:
    """Read one key of `CREDHOOK_WEBHOOK_SECRETS`, with or without base64's padding.

    Raises:
        ValueError: the key is malformed, or anyone could sign for it. The message holds no part of the key.
    """
    kind, _, encoded = text.partition("_")
    if kind not in {"whsec", "whpk"}:
        raise ValueError("every key should begin with whsec_ or whpk_")
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        raise ValueError(f"a {kind}_ key should be base64; keys are separated by spaces") from None
    if kind == "whsec":
        if len(raw) not in _HMAC_KEY_BYTES:
            raise ValueError(f"a whsec_ key should hold 24 to 64 bytes, this one holds {len(raw)}")
        return HmacKey(raw)
    if len(raw) != _ED25519_KEY_BYTES:
        raise ValueError(f"a whpk_ key should hold 32 bytes, this one holds {len(raw)}")
    y = int.from_bytes(raw, "little") & (2**255 - 1)  # The highest bit is the sign of x.
    if y % _P in _LOW_ORDER:
        raise ValueError("a whpk_ key of low order would accept forged signatures; ask the sender for its own")
    if y >= _P:
        raise ValueError("a whpk_ key should be written as RFC 8032 does, this one is not; ask the sender for it")
    return Ed25519Key(Ed25519PublicKey.from_public_bytes(raw))


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
