"""Signatures against vectors that were computed elsewhere: by Standard Webhooks, and by openssl."""

import base64
import re

import pytest

from credhook.sandbox.signing import SANDBOX_SECRET, BadKeyError, headers, parse_key

BODY = b'{"eventType": "x"}'
SEED = base64.b64encode(bytes(range(32))).decode()


def test_the_published_vector_of_standard_webhooks_is_met() -> None:
    key = parse_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = headers([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_hmac_agrees_with_openssl() -> None:
    # printf '%s' 'msg_1.1700000000.{"eventType": "x"}' | openssl dgst -sha256 -mac HMAC -macopt hexkey:… -binary
    signed = headers([parse_key(SANDBOX_SECRET)], "msg_1", 1700000000, BODY)
    assert signed == {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": "v1,a/e9F3tGhNoMzzqkKjCjzxuXcoF9+kHyPrbHEwgQ/ps=",
    }


def test_ed25519_agrees_with_openssl() -> None:
    # openssl pkeyutl -sign -rawin, with the seed 00 01 … 1f
    key = parse_key(f"whsk_{SEED}")
    assert headers([key], "msg_1", 1700000000, BODY)["webhook-signature"] == (
        "v1a,8++ouYB0XNn67wTK03L4KVj3xdKIzZ7rRnt7QA11Sf9LSEWnvaL64XqTDo4Xcb/76K3az0+ljbBYAc5gp1IKAw=="
    )
    assert key.verifier == "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="


def test_a_private_key_may_carry_its_public_key_behind_it() -> None:
    longer = base64.b64encode(bytes(range(32)) + bytes(32)).decode()
    assert parse_key(f"whsk_{longer}").verifier == parse_key(f"whsk_{SEED}").verifier


def test_several_keys_sign_side_by_side() -> None:
    signed = headers([parse_key(SANDBOX_SECRET), parse_key(f"whsk_{SEED}")], "msg_1", 1700000000, BODY)
    assert re.fullmatch(r"v1,\S+ v1a,\S+", signed["webhook-signature"])


def test_without_a_key_only_the_id_is_sent() -> None:
    assert headers([], "msg_1", 1700000000, BODY) == {"webhook-id": "msg_1"}


def test_a_shared_secret_verifies_with_itself() -> None:
    assert parse_key(SANDBOX_SECRET).verifier == SANDBOX_SECRET


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain text",
        "whsec_",
        "whsec_c2hvcnQ=",
        f"whsec_{SEED[:-1]}",
        "whsec_not base64 at all",
        f"whpk_{SEED}",
        "whsk_c2hvcnQ=",
        "whsec_ü",
    ],
)
def test_other_text_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(BadKeyError) as refusal:
        parse_key(text)
    assert len(text) < 10 or text not in str(refusal.value)


def test_a_key_does_not_show_itself() -> None:
    assert "c2FuZGJv" not in repr(parse_key(SANDBOX_SECRET))
    assert "sandbox-only" not in repr(parse_key(SANDBOX_SECRET))
