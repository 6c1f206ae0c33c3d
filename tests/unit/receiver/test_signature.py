import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from credhook.receiver.signature import (
    BadHeaders,
    SignedHeaders,
    Unauthenticated,
    authenticate,
    read_headers,
)
from credhook.webhook_keys import Key, parse_key
from support.receiver.signing import OTHER_SECRET, SECRET, sign

NOW = 1_700_000_000
BODY = b'{"eventType": "openid4vc.issuance.offered"}'
PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = "whpk_" + base64.b64encode(PRIVATE.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()

Raw = list[tuple[bytes, bytes]]


def raw(webhook_id: str = "msg_1", timestamp: str = str(NOW), signature: str | None = None) -> Raw:
    signature = sign(webhook_id, timestamp, BODY) if signature is None else signature
    return [
        (b"host", b"x"),
        (b"webhook-id", webhook_id.encode()),
        (b"webhook-timestamp", timestamp.encode()),
        (b"webhook-signature", signature.encode("latin-1")),
    ]


def ed25519(webhook_id: str = "msg_1") -> str:
    return "v1a," + base64.b64encode(PRIVATE.sign(b"%b.%d.%b" % (webhook_id.encode(), NOW, BODY))).decode()


def check(headers: Raw, *secrets: str, body: bytes = BODY, now: float = NOW) -> str:
    claim = read_headers(headers, signatures=True)
    authenticate(claim, body, [parse_key(text) for text in secrets or (SECRET,)], now=now, tolerance=300)
    return claim.delivery_id


def test_the_published_vector_of_standard_webhooks_verifies() -> None:
    body = b'{"test": 2432232314}'
    headers = [
        (b"webhook-id", b"msg_p5jXN8AQM9LWM0D4loKWxJek"),
        (b"webhook-timestamp", b"1614265330"),
        (b"webhook-signature", b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ]
    assert check(headers, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", body=body, now=1_614_265_330)


@pytest.mark.parametrize("webhook_id", ["a" * 512, "a/b+c==", "a b", "é…", "msg_1.1700000000.x", "{a}", "{.}"])
def test_a_signed_id_may_be_any_text(webhook_id: str) -> None:
    assert check(raw(webhook_id=webhook_id, signature=sign(webhook_id, str(NOW), BODY))) == webhook_id


@pytest.mark.parametrize(
    ("raw_id", "shown"),
    [
        (b"\xff", "\ufffdff"),
        (b"\\xff", "\\xff"),  # The text that escapes would make of the byte before.
        ("\ufffdff".encode(), "\ufffd" + "\ufffdff".encode().hex()),
        (b"backfilled:openid4vc.issuance.completed:i1", "\ufffd" + b"backfilled:openid4vc.issuance.completed:i1".hex()),
    ],
)
def test_id_is_verified_as_its_bytes_and_becomes_no_other_id(raw_id: bytes, shown: str) -> None:
    signed = base64.b64encode(PRIVATE.sign(b"%b.%d.%b" % (raw_id, NOW, BODY)))
    headers = [(b"webhook-id", raw_id), *without(b"webhook-id")[:2], (b"webhook-signature", b"v1a," + signed)]
    assert check(headers, PUBLIC) == shown


def under_aliases(headers: Raw) -> Raw:
    return [(name.replace(b"webhook", b"svix"), value) for name, value in headers]


#: Headers, the receiver's keys, and its clock.
AUTHENTIC: dict[str, tuple[Raw, tuple[str, ...], float]] = {
    "whitespace around each header": ([(name, b" " + value + b"\t ") for name, value in raw()], (SECRET,), NOW),
    "ed25519": (raw(signature=ed25519()), (PUBLIC,), NOW),
    "ed25519 beside HMAC, its key without padding": (raw(signature=ed25519()), (SECRET, PUBLIC.rstrip("=")), NOW),
    "a body as it is": ([*raw(), (b"content-encoding", b" Identity\t")], (SECRET,), NOW),
    "the first of two keys": (raw(), (SECRET, OTHER_SECRET), NOW),
    "the second of two keys": (raw(signature=sign("msg_1", str(NOW), BODY, OTHER_SECRET)), (SECRET, OTHER_SECRET), NOW),
    "Svix's names": (under_aliases(raw()), (SECRET,), NOW),
    "both names of each header": ([*raw(), *under_aliases(raw())], (SECRET,), NOW),
    "as old as is tolerated": (raw(), (SECRET,), NOW + 300),
    "as far ahead as is tolerated": (raw(), (SECRET,), NOW - 300),
}


@pytest.mark.parametrize(("headers", "secrets", "now"), AUTHENTIC.values(), ids=AUTHENTIC)
def test_fresh_signature_of_a_known_key_is_authentic(headers: Raw, secrets: tuple[str, ...], now: float) -> None:
    assert check(headers, *secrets, now=now) == "msg_1"


@pytest.mark.parametrize(
    "junk", ["junk", "v1", "v1,", "v1,%%%", "v1,a,b", "v9,AAAA", ",", "", "v1,\xe9", " ".join(["v1,AAAA"] * 9)]
)
@pytest.mark.parametrize("form", ["{junk} {good}", "{good} {junk}"])
def test_a_junk_token_does_not_spoil_a_good_one(junk: str, form: str) -> None:
    assert check(raw(signature=form.format(junk=junk, good=sign("msg_1", str(NOW), BODY)))) == "msg_1"


@pytest.mark.parametrize("headers", [[*raw(), (b"svix-id", b"msg_2")], [*under_aliases(raw()), (b"svix-id", b"msg_1")]])
def test_two_names_of_a_header_mean_one_value(headers: Raw) -> None:
    with pytest.raises(BadHeaders, match=r"^svix-id (and webhook-id should be the same|should be there exactly once)$"):
        check(headers)


GOOD = sign("msg_1", str(NOW), BODY)
#: Beside those that tests/support/receiver/refusals.py sends to a receiver.
UNAUTHENTIC: dict[str, tuple[Raw, tuple[str, ...], bytes, float]] = {
    "too old": (raw(), (), BODY, NOW + 301),
    "from the future": (raw(), (), BODY, NOW - 301),
    "another body": (raw(), (), BODY + b" ", NOW),
    "another timestamp": (raw(timestamp=str(NOW + 1), signature=GOOD), (), BODY, NOW),
    "no readable signature": (raw(signature="v1,%%%"), (), BODY, NOW),
    "an HMAC tagged as ed25519": (raw(signature="v1a" + GOOD[2:]), (SECRET, PUBLIC), BODY, NOW),
    "an ed25519 signature of another id": (raw(signature=ed25519("msg_2")), (PUBLIC,), BODY, NOW),
    "a body that is no text": (raw(), (), b"\xff", NOW),
    "a truncated signature": (raw(signature=GOOD[:-8]), (), BODY, NOW),
}


@pytest.mark.parametrize(("headers", "secrets", "body", "now"), UNAUTHENTIC.values(), ids=UNAUTHENTIC)
def test_other_signatures_are_unauthenticated(headers: Raw, secrets: tuple[str, ...], body: bytes, now: float) -> None:
    with pytest.raises(Unauthenticated):
        check(headers, *secrets, body=body, now=now)


@pytest.mark.parametrize(
    ("signature", "body", "now", "hint"),
    [
        (GOOD, BODY, NOW + 301, "signed 301 s before this host's clock"),
        (GOOD, BODY, NOW - 301, "signed 301 s ahead of this host's clock"),
        (GOOD, b"", NOW, "the body is empty: see whether a proxy or a redirect has dropped it"),
        (GOOD, BODY + b"\n", NOW, "no proxy changes the body"),
        ("sha256=0123abcd", BODY, NOW, "webhook-signature has no v1 or v1a"),
        (GOOD.rstrip("="), BODY, NOW, "webhook-signature has no v1 or v1a"),
        ("v2," + GOOD[3:], BODY, NOW, "webhook-signature has no v1 or v1a"),
    ],
)
def test_hint_says_what_may_be_wrong_with_a_signature(signature: str, body: bytes, now: float, hint: str) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        check(raw(signature=signature), SECRET, PUBLIC, body=body, now=now)
    assert hint in refusal.value.hint


def without(name: bytes) -> Raw:
    return [header for header in raw() if header[0] != name]


#: Beside those that tests/support/receiver/refusals.py sends to a receiver.
BAD: dict[str, Raw] = {
    **{f"no {name.decode()}": without(name) for name in (b"webhook-id", b"webhook-timestamp", b"webhook-signature")},
    "two timestamps": [*raw(), (b"webhook-timestamp", str(NOW).encode())],
    "two signatures": [*raw(), (b"webhook-signature", b"v1,AAAA")],
    "an id that swallows a timestamp and the start of a body": raw(webhook_id=f'msg_1.{NOW}. {{"a": 1}}'),
    "an empty id": raw(webhook_id=""),
    "an id of 513": raw(webhook_id="a" * 513),
    "an id of dots, which must not take a regular expression hours": raw(webhook_id="." * 4_000_000),
    "an id with a control character": raw(webhook_id="a\tb"),
    "a timestamp with a sign": raw(timestamp="+1700000000"),
    "a timestamp with an underscore": raw(timestamp="1_700_000_000"),
    "a timestamp with a leading zero": raw(timestamp="01700000000"),
    "a short timestamp": raw(timestamp="170000000"),
    "eleven signatures": raw(signature=" ".join(["v1,AAAA"] * 11)),
}


@pytest.mark.parametrize("headers", BAD.values(), ids=BAD)
def test_headers_that_two_readers_could_understand_differently_are_refused(headers: Raw) -> None:
    with pytest.raises(BadHeaders):
        read_headers(headers, signatures=True)


def test_without_signatures_only_the_id_counts_and_it_may_be_any_text() -> None:
    assert read_headers([(b"webhook-id", b"a.b/c=!")], signatures=False) == SignedHeaders(b"a.b/c=!")
    for value in (b"", b"a\x7f", b"a" * 513):
        with pytest.raises(BadHeaders):
            read_headers([(b"webhook-id", value)], signatures=False)


@pytest.mark.parametrize(
    "text",
    [
        "plain text",
        "whsec_",
        "whsec_%%%",
        "whsec_" + "a" * 40 + "-",
        "whsec_" + base64.b64encode(b"a" * 23).decode(),
        "whsec_" + base64.b64encode(b"a" * 76).decode(),
        "whpk_" + base64.b64encode(b"a" * 31).decode(),
        "whpk_" + base64.b64encode(b"a" * 33).decode(),
        "whpk_" + base64.b64encode(bytes(32)).decode(),  # A placeholder, which everybody can sign for.
        "whsk_" + base64.b64encode(b"a" * 32).decode(),
        "sk-live-with-no-form",
        "Hush!_%%%",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2La\xe9",
    ],
)
def test_a_key_that_could_not_protect_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="key") as refusal:
        parse_key(text)
    kind, _, encoded = text.partition("_")
    assert not encoded or encoded not in str(refusal.value)
    assert kind in {"whsec", "whpk"} or text[:5] not in str(refusal.value)
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize("size", [24, 32, 62, 64, 75])
def test_a_key_of_24_to_75_bytes_is_read_padded_or_not(size: int) -> None:
    padded = "whsec_" + base64.b64encode(bytes(range(size))).decode()
    headers = raw(signature=sign("msg_1", str(NOW), BODY, padded))
    assert check(headers, padded) == check(headers, padded.rstrip("=")) == "msg_1"


def test_a_key_does_not_show_itself() -> None:
    key: Key = parse_key(SECRET)
    raw = base64.b64decode(SECRET.removeprefix("whsec_"))
    assert not any(part in repr(key) for part in (SECRET[6:20], repr(raw)[2:20], "Webhook"))
