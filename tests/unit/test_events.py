import json

import pytest

from credhook.events import EVENT_TYPES, PRESENTATION, REPEATABLE, URGENT, Event, Malformed, rank_of, resource_of


def notification(event_type: object, payload: object) -> bytes:
    return json.dumps({"eventType": event_type, "payload": payload}).encode()


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_each_of_the_ten_types_is_read_with_its_resource(event_type: str) -> None:
    name = "openId4VcIssuanceId" if ".issuance." in event_type else "openId4VcPresentationId"
    event = Event.parse(notification(event_type, {name: "cmfw-1"}))
    assert event == Event(event_type, "cmfw-1")
    assert event.fetchable
    assert (resource_of(event.type) is not PRESENTATION) == (".issuance." in event_type)
    last = event_type.rpartition(".")[2]
    assert rank_of(event_type) == {"offered": 1, "requested": 1, "partiallyIssued": 2}.get(last, 3)
    assert (event_type in URGENT) == (last in {"verified", "data"})  # Details that may be gone in minutes.
    assert (event_type in REPEATABLE) == (event_type in EVENT_TYPES[2:4])


#: Ids that no path can hold, and how they are kept.
ODD_IDS = [
    *((one, "") for one in (7, 1.5, float("nan"), None, True, {"id": "a"}, ["a"], "\ud83d")),
    *((one, one) for one in (".", "..", "./a", "a/.", "a/../b", "..\\a", "a\\.", "a\x7f", "a\x85")),
    ("é" * 257, "é" * 256 + "…[cut]"),
]


@pytest.mark.parametrize(
    ("event_type", "payload", "canonical", "resource_id"),
    [
        # The vendor's other names.
        ("openid4vc.presentation.verified", {"openId4VcPresentationId": "p"}, "openid4vc.verification.verified", "p"),
        ("openid4vc.verification.data", {"openId4VcVerificationId": "p"}, "openid4vc.verification.data", "p"),
        ("openid4vc.presentation.data", dict.fromkeys(PRESENTATION.payload_keys, "p"), EVENT_TYPES[9], "p"),
        # Types of tomorrow, with the resource if they name one.
        ("openid4vc.issuance.revoked", {"openId4VcIssuanceId": "iss_9"}, "", "iss_9"),
        *(("urn:other:thing", odd, "", "") for odd in ({"someId": 1}, {"openId4VcIssuanceId": {"id": 1}}, [1], None)),
        ("openid4vc.wallet.linked", {"openId4VcIssuanceId": "iss_1", "openId4VcPresentationId": "pre_1"}, "", ""),
        ("t" * 128, {"openId4VcIssuanceId": "a"}, "", "a"),
        *((EVENT_TYPES[0], {"openId4VcIssuanceId": odd}, "", kept) for odd, kept in ODD_IDS),
    ],
)
def test_unknown_types_and_unusual_ids_are_kept_and_not_fetched(
    event_type: str, payload: object, canonical: str, resource_id: str
) -> None:
    event = Event.parse(notification(event_type, payload))
    assert (event, event.fetchable) == (Event(canonical or event_type, resource_id), bool(canonical))


#: Beside those that tests/support/receiver/refusals.py sends to a receiver.
MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"eventType=x",
    "not UTF-8": b'{"eventType": "openid4vc.issuance.offered", "payload": {"openId4VcIssuanceId": "\xff"}}',
    "UTF-16": '{"eventType": "a"}'.encode("utf-16"),
    "an array": b"[]",
    "a string": b'"openid4vc.issuance.offered"',
    "a name twice": b'{"eventType": "openid4vc.issuance.offered", "eventType": "x", "payload": {}}',
    "a name twice inside": b'{"eventType": "openid4vc.issuance.offered", "payload": '
    b'{"openId4VcIssuanceId": "a", "openId4VcIssuanceId": "b"}}',
    "the payload twice": b'{"eventType": "openid4vc.issuance.offered", "payload": {"openId4VcIssuanceId": "a"}, '
    b'"payload": {"openId4VcIssuanceId": "b"}}',
    "no type": b'{"payload": {"openId4VcIssuanceId": "a"}}',
    "a type that is a number": notification(1, {"openId4VcIssuanceId": "a"}),
    "a type of 129 characters": notification("a" * 129, {}),
    "a type with a line break": notification("openid4vc.issuance.offered\n", {"openId4VcIssuanceId": "a"}),
    "a type that is no ASCII": notification("openid4vc.issuance.öffered", {"openId4VcIssuanceId": "a"}),
    "no payload": b'{"eventType": "openid4vc.issuance.offered"}',
    "a payload that is an array": notification(EVENT_TYPES[0], []),
    "the other kind's id": notification(EVENT_TYPES[0], {"openId4VcPresentationId": "a"}),
    "two ids": notification(EVENT_TYPES[5], {"openId4VcPresentationId": "a", "openId4VcVerificationId": "b"}),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_body_that_is_not_a_notification_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        Event.parse(body)


@pytest.mark.parametrize("extra", ['"\\ud83d"', "NaN", "-Infinity", "9" * 5_000, '1, "n": 2', '{"a": 1, "a": 2}'])
def test_defects_of_fields_that_we_do_not_use_are_no_reason_to_refuse(extra: str) -> None:
    fields = f'"n": {extra}, "openId4VcVerificationId": null, "openId4VcPresentationId": "p"'
    again = f'"eventType": "{EVENT_TYPES[5]}"'  # Twice the same is no contradiction.
    body = f'\ufeff{{"n": {extra}, {again}, {again}, "payload": {{{fields}}}}}'
    assert Event.parse(body.encode()) == Event(EVENT_TYPES[5], "p")
