"""The sandbox's parts: what may happen next, tokens and faults, signatures, what is accepted, and when it delivers."""

import asyncio
import base64
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError
from starlette.exceptions import HTTPException

from credhook.sandbox import certificates
from credhook.sandbox.deliveries import (
    REORDER_SECONDS,
    RETRY_SECONDS,
    SANDBOX_SECRET,
    DeliveryAttempt,
    PendingDelivery,
    Reply,
    SandboxEndpoint,
    Sender,
    headers,
    parse_key,
)
from credhook.sandbox.events import possible
from credhook.sandbox.templates import NewMdocPreset, NewPreset, NewSdJwtPreset, example, fits
from credhook.sandbox.tenant import TOKEN_LIFETIME_SECONDS, Faults, FaultSwitch, StateFile, TokenIssuer
from credhook.sandbox.users import NewUser, SandboxUser
from credhook.sandbox.wire import refusal
from credhook.testing.fake_platform import new_tenant
from support.platform.presets import MDOC, SD_JWT
from support.virtual_time import in_own_time

COMPLETED = "openid4vc.issuance.completed"


@pytest.mark.parametrize(
    ("status", "announced", "next_events"),
    [
        ("offered", "issuance.offered", {"completed", "failed", "partiallyIssued", "expired"}),
        ("partiallyIssued", "issuance.offered issuance.partiallyIssued", {"completed", "failed"}),
        ("completed", "issuance.completed", set()),
        ("failed", "issuance.failed", set()),
        ("expired", "issuance.expired", set()),
        ("requested", "verification.requested", {"verified", "data", "failed", "expired"}),
        ("verified", "verification.requested verification.verified", {"data"}),
        ("verified", "verification.requested verification.data", {"verified"}),
        ("verified", "verification.verified verification.data", set()),
        ("rejected", "verification.failed", set()),
    ],
)
def test_each_status_has_its_next_events(status: str, announced: str, next_events: set[str]) -> None:
    names = [f"openid4vc.{name}" for name in announced.split()]
    family = names[0].rpartition(".")[0]
    assert set(possible(status, names)) == {f"{family}.{word}" for word in next_events}


def test_a_token_lasts_until_it_expires_or_is_revoked() -> None:
    now = [1000.0]
    tokens = TokenIssuer(lambda: now[0])
    first, second = tokens.issue(), tokens.issue()
    tokens.revoke(first)
    now[0] += TOKEN_LIFETIME_SECONDS - 1
    assert tokens.check(f"bearer {second}") == second
    now[0] += 1
    for header in (f"Bearer {first}", f"Bearer {second}", f"Basic {second}", "Bearer ", "nonsense", "", None):
        with pytest.raises(HTTPException) as refusal:
            tokens.check(header)
        assert refusal.value.status_code == 401


async def test_a_rate_is_counted_per_second() -> None:
    faults = FaultSwitch(Faults(requests_per_second=2, retry_after=7))
    for now in (100.0, 100.5, 101.0, 101.9):
        await faults.disturb(now)
    with pytest.raises(HTTPException) as refusal:
        await faults.disturb(101.99)
    assert (refusal.value.status_code, refusal.value.headers) == (429, {"Retry-After": "7"})
    await faults.disturb(102.0)


def test_envelopes_are_swapped_always_or_at_every_other_answer() -> None:
    switches = [*map(FaultSwitch, (Faults(), Faults(envelopes="swapped"), Faults(envelopes="alternating")))]
    rounds = [[switch.swaps_envelope() for switch in switches] for _ in range(3)]
    assert rounds == [[False, True, True], [False, True, False], [False, True, True]]


BODY = '{"eventType": "x"}'
SEED = base64.b64encode(bytes(range(32))).decode()
LONGER = base64.b64encode(bytes(range(32)) + bytes(32)).decode()
PUBLIC = "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="
#: openssl pkeyutl -sign -rawin, with the seed 00 01 … 1f
SIGNED_BY_SEED = "v1a,8++ouYB0XNn67wTK03L4KVj3xdKIzZ7rRnt7QA11Sf9LSEWnvaL64XqTDo4Xcb/76K3az0+ljbBYAc5gp1IKAw=="


@pytest.mark.parametrize(
    ("key", "verifier", "signature"),
    [
        # printf '%s' 'msg_1.1700000000.{"eventType": "x"}' | openssl dgst -sha256 -mac HMAC -macopt hexkey:… -binary
        (SANDBOX_SECRET, SANDBOX_SECRET, "v1,a/e9F3tGhNoMzzqkKjCjzxuXcoF9+kHyPrbHEwgQ/ps="),
        (f"whsk_{SEED}", PUBLIC, SIGNED_BY_SEED),
        (f"whsk_{LONGER}", PUBLIC, SIGNED_BY_SEED),  # A private key may carry its public key behind it.
    ],
)
def test_signatures_agree_with_openssl(key: str, verifier: str, signature: str) -> None:
    parsed = parse_key(key)
    assert parsed.verifier == verifier
    assert key not in repr(parsed)
    assert headers([parsed], "msg_1", 1700000000.9999997, BODY) == {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": signature,
    }


def test_several_keys_sign_side_by_side() -> None:
    signed = headers([parse_key(SANDBOX_SECRET), parse_key(f"whsk_{SEED}")], "msg_1", 1700000000, BODY)
    assert re.fullmatch(r"v1,\S+ v1a,\S+", signed["webhook-signature"])
    assert all(parse_key(f"whsec_{base64.b64encode(bytes(size)).decode()}") for size in (24, 64))


@pytest.mark.parametrize(
    "text",
    [
        *("", "whsec_c2hvcnQ=", f"whsec_{SEED[:-1]}", "whsec_not base64 at all", f"whpk_{SEED}", "whsk_c2hvcnQ="),
        *(f"whsec_{base64.b64encode(bytes(size)).decode()}" for size in (23, 65)),
    ],
)
def test_other_text_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="a signing key should be") as refusal:
        parse_key(text)
    assert len(text) < 10 or text not in str(refusal.value)


def template(document: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """Return the attributes as the sandbox reads them in a preset."""
    wanted = document | {"templateAttributes": attributes}
    return TypeAdapter[NewSdJwtPreset | NewMdocPreset](NewPreset).validate_python(wanted).template_attributes


BADGE = {
    "name": {"type": "string", "name": "Name", "required": True, "alwaysDisclosed": True},
    "address": {"type": "object", "properties": {"street": {"type": "string"}, "since": {"type": "date"}}},
    "tags": {"type": "array", "items": {"type": "string"}},
    "anything": {"type": "array"},
}
ZONES = {"portrait": {"type": "binary"}, "zones": {"type": "array", "items": {"type": "string"}}}
STRICT = {"holder": {"type": "string", "required": True}, "zones": {"type": "array"}}


def test_claims_fit_a_template_or_do_not() -> None:
    badge = template(SD_JWT, BADGE)
    permit, strict = (template(MDOC, {"org.example": {"properties": each}}) for each in (ZONES, STRICT))
    numbers = template(SD_JWT, {"n": {"type": "number"}, "b": {"type": "boolean"}})
    whole = {"name": "Ada", "address": {"street": "x", "since": "2020-02-20"}, "tags": ["a"], "anything": [1, "b"]}
    fitting: list[tuple[Any, Any]] = [
        (whole, badge),
        ({"name": "Ada"}, badge),
        *((example(group), group) for group in (badge, permit, numbers)),
        ({"org.example": {"portrait": "AAAA", "zones": ["a"]}}, permit),
        ({"org.example": {"holder": "Ada", "zones": ["a", 1]}}, strict),
        ({"n": 1.5, "b": True}, numbers),
    ]
    wrong: list[tuple[Any, Any]] = [
        ({}, badge),
        ({"name": 7}, badge),
        (whole | {"unknown": 1}, badge),
        *((whole | {"address": {"since": since}}, badge) for since in ("yesterday", 7)),
        (whole | {"tags": ["a", 1]}, badge),
        (whole | {"tags": "a"}, badge),
        ([], badge),
        ("name", badge),
        ({"portrait": "AAAA"}, permit),
        *(({"org.example": wrong}, permit) for wrong in ({"portrait": "AA AA"}, {"portrait": 7}, {"zones": ["a", 1]})),
        ({}, strict),
        ({"n": True}, numbers),
        ({"b": 1}, numbers),
    ]
    assert [claims for claims, group in fitting if not fits(claims, group)] == []
    assert [claims for claims, group in wrong if fits(claims, group)] == []


def test_refusal_names_the_place_without_personal_data() -> None:
    with pytest.raises(ValidationError) as problems:
        NewUser.model_validate({"email": ["ada@example.org"]})
    error = refusal("body", problems.value)
    assert (error.status_code, error.detail) == (400, "body.email: Input should be a valid string.")
    user = SandboxUser(id="1", username="ada", email="ada@example.org", first_name="Ada", last_name="E", enabled=True)
    assert "ada" not in f"{problems.value} {error} {user!r}".lower()


def test_an_expired_certificate_is_not_imported() -> None:
    tenant = new_tenant()
    request = certificates.list_requests(tenant)[0]
    signed = certificates.sign_request(tenant, request.id)
    later = replace(tenant, now=lambda: datetime.now(UTC) + timedelta(days=365))
    with pytest.raises(HTTPException, match="The certificate has expired"):
        certificates.import_certificate(later, request.id, signed)


def today() -> datetime:
    return datetime(2026, 11, 1, tzinfo=UTC) + timedelta(seconds=asyncio.get_running_loop().time())


class Scene:
    """A sender, and a receiver that answers `status` and notes each delivery with its time in seconds."""

    def __init__(self) -> None:
        self.status: Any = 202
        self.came: list[tuple[float, str]] = []
        self.began = today()
        self.state = StateFile()
        self.faults = FaultSwitch(Faults())
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Never used: `post` is a double.
        self.sender = Sender(self.state, self.faults, [], trust, 0.5, today, self.post)
        endpoint = SandboxEndpoint(
            id="e", url="https://inbox.example", filter_types=[COMPLETED], created_at=today(), updated_at=today()
        )
        self.state.put("e", endpoint)

    async def post(self, _: httpx.AsyncClient, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> Reply:
        self.came.append((round((today() - self.began).total_seconds(), 3), dict(headers)["webhook-id"]))
        return Reply(status=self.status)

    def happens(self) -> str:
        (webhook_id,) = self.sender.announce(COMPLETED, "iss_1")
        return webhook_id


def played(act: Callable[[Scene], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of an act, which happens while the sender sends, in time of its own."""

    async def work() -> None:
        scene = Scene()
        async with scene.sender.sending():
            await act(scene)
        scene.state.close()

    return lambda: in_own_time(work())


@played
async def test_a_delivery_is_as_late_as_was_asked_for_and_holds_up_no_other(scene: Scene) -> None:
    scene.faults.on = Faults(delay_ms=2_000)
    late = scene.happens()
    scene.faults.on = Faults()
    prompt = scene.happens()
    await asyncio.sleep(60.0)
    assert scene.came == [(0.0, prompt), (2.0, late)]


@played
async def test_a_failure_is_tried_again_after_longer_and_longer_and_given_up(scene: Scene) -> None:
    scene.status = 500
    webhook_id = scene.happens()
    await asyncio.sleep(sum(RETRY_SECONDS) + 1.0)
    times = [0, 5, 305, 2_105, 9_305, 27_305, 63_305, 99_305]
    assert scene.came == [(at / 2, webhook_id) for at in times]
    outcomes = [attempt.outcome for attempt in reversed(scene.state.latest(DeliveryAttempt, 100))]
    assert outcomes == ["retrying"] * len(RETRY_SECONDS) + ["givenUp"]
    assert scene.state.count(PendingDelivery) == 0


@played
async def test_held_deliveries_go_out_in_reverse_order(scene: Scene) -> None:
    scene.faults.on = Faults(reorder=3)
    ids = [scene.happens() for _ in range(3)]
    await asyncio.sleep(0.5)
    ids.append(scene.happens())
    scene.faults.on = Faults(delay_ms=2_000)
    await asyncio.sleep(60.0)
    assert [webhook_id for _, webhook_id in scene.came] == [ids[2], ids[1], ids[0], ids[3]]
    assert scene.came[-1][0] == 0.5 + REORDER_SECONDS + 2.0


@played
async def test_copies_wait_for_the_first_acknowledgement_after_a_restart_too(scene: Scene) -> None:
    scene.status, scene.faults.on = 500, Faults(duplicate=3)
    webhook_id = scene.happens()
    await asyncio.sleep(1.0)
    async with scene.sender.sending():
        await asyncio.sleep(1.0)
    assert scene.came == [(0.0, webhook_id), (1.0, webhook_id)]


@played
async def test_forgeries_without_keys_are_unsigned(scene: Scene) -> None:
    scene.status, scene.faults.on = "no status", Faults(forge=5)
    ids = [scene.happens() for _ in range(20)]
    await asyncio.sleep(1.0)
    scene.status = 202
    ids.append(scene.happens())
    await asyncio.sleep(1.0)
    assert [webhook_id for _, webhook_id in scene.came if webhook_id in ids] == ids
    assert [attempt.forged for attempt in scene.state.all(DeliveryAttempt)] == [None, *["unsigned"] * 5]
