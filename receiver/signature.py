"""Authenticate deliveries: header rules and Standard Webhooks signatures. Clock and keys are arguments.

Standard Webhooks signs `id.timestamp.body`. A body is a JSON object, so it begins with `{`. Only an id with a dot and a
brace behind the dot could shift the boundaries of that text, so a signed id may not hold these.
"""

import binascii
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from credhook.events import LONGEST_ID
from credhook.store import BACKFILLED
from credhook.webhook_keys import Key

#: The three headers of Standard Webhooks; the platform's specification names only the first.
ID, TIMESTAMP, SIGNATURE = b"webhook-id", b"webhook-timestamp", b"webhook-signature"
#: Svix's own names of them, with the same meaning.
ALIASES: Final = {b"svix-id": ID, b"svix-timestamp": TIMESTAMP, b"svix-signature": SIGNATURE}

#: The form of each header: when deliveries are signed, and when they are not. An id may be any text.
_UNSIGNED: Final = {ID: re.compile(rb"[^\x00-\x1f\x7f]{1,%d}" % LONGEST_ID)}
_SIGNED: Final = {
    # Each class ends where the next character begins. With `.*`, a header of dots would take a tenth of a second.
    ID: re.compile(rb"(?![^.]*\.[^{]*\{)" + _UNSIGNED[ID].pattern),
    # No leading zero: the number is signed as text, so it must have only one form.
    TIMESTAMP: re.compile(rb"[1-9][0-9]{9,10}"),
    # A sender that rotates keys signs with each of them. More than ten keys at once are not plausible.
    SIGNATURE: re.compile(rb"[^ ]*( [^ ]*){0,9}"),
}

#: Begins the text of an id that is not taken as it is.
_ESCAPED: Final = "\ufffd"

Headers = Iterable[tuple[bytes, bytes]]


class BadHeaders(Exception):
    """A `webhook-*` header is missing, doubled or malformed. The message names it."""


class Encoded(Exception):
    """The body is compressed or otherwise encoded."""


class Unauthenticated(Exception):
    """No signature is of a configured key, or the timestamp is too old or too new.

    Attributes:
        hint: advice for the operator.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


class OutsideTolerance(Unauthenticated):
    """The timestamp is too far from this host's clock."""


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
        """Return the `webhook-id` as text.

        Bytes that are not UTF-8 become U+FFFD and hexadecimal digits, and so does an id that could be taken for such a
        text, or for the id of a backfilled event. Two ids never become one.
        """
        with suppress(UnicodeDecodeError):
            text = self.raw_id.decode()
            if not text.startswith((_ESCAPED, BACKFILLED)):
                return text
        return _ESCAPED + self.raw_id.hex()


def read_headers(headers: Headers, *, signatures: bool) -> SignedHeaders:
    """Read the `webhook-*` headers. Names are in lower case, as ASGI gives them.

    Without `signatures`, only the `webhook-id` is read.

    Raises:
        BadHeaders: a header is missing, doubled or malformed.
        Encoded: the body is encoded.
    """
    forms = _SIGNED if signatures else _UNSIGNED
    ours: dict[bytes, bytes] = {}
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in {b"", b"identity"}:
            raise Encoded("content-encoding should be identity, since the signature covers the body as it arrives")
        if name in forms or ALIASES.get(name) in forms:
            if name in ours:  # Sender and receiver might mean different values.
                raise BadHeaders(f"{name.decode()} should be there exactly once")
            ours[name] = value.strip(b" \t")  # RFC 9110: this whitespace is not part of the value.
    _adopt_aliases(ours)
    for name, form in forms.items():
        if name not in ours:
            raise BadHeaders(f"{name.decode()} should be there exactly once")
        if not form.fullmatch(ours[name]):
            raise BadHeaders(f"{name.decode()} is malformed")
    if not signatures:
        return SignedHeaders(ours[ID])
    return SignedHeaders(ours[ID], int(ours[TIMESTAMP]), _signatures(ours[SIGNATURE]))


def _adopt_aliases(headers: dict[bytes, bytes]) -> None:
    """Let Svix's names count. Some senders send both names."""
    for alias, name in ALIASES.items():
        if alias in headers and headers.setdefault(name, headers[alias]) != headers[alias]:
            raise BadHeaders(f"{alias.decode()} and {name.decode()} should be the same")


def authenticate(headers: SignedHeaders, body: bytes, keys: Sequence[Key], *, now: float, tolerance: float) -> None:
    """Verify that one of the keys signed this delivery, within `tolerance` seconds before or after `now`.

    Raises:
        Unauthenticated: no key signed it.
        OutsideTolerance: the timestamp is too old or too new.
    """
    if abs(now - headers.timestamp) > tolerance:
        ahead = round(headers.timestamp - now)
        raise OutsideTolerance(
            "webhook-timestamp is outside the tolerance",
            f"signed {abs(ahead)} s {'ahead of' if ahead > 0 else 'before'} this host's clock: compare it with the "
            "sender's clock, then see CREDHOOK_TOLERANCE; a delivery that is sent again keeps its old timestamp",
        )
    signed = b"%b.%d.%b" % (headers.raw_id, headers.timestamp, body)
    for key in keys:
        for version, signature in headers.signatures:
            if version == key.version and key.verify(signature, signed):
                return
    hint = "check CREDHOOK_WEBHOOK_SECRETS, and that no proxy changes the body"
    if not body:
        hint = "the body is empty: see whether a proxy or a redirect has dropped it"
    elif not {version for version, _ in headers.signatures} & {key.version for key in keys}:
        versions = " or ".join(sorted({key.version.decode() for key in keys}))
        hint = f"webhook-signature has no {versions} and base64 behind a comma: the sender signs in another way"
    raise Unauthenticated("no signature matches", hint)


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
