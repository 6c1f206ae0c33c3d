"""Signatures against vectors that were computed elsewhere: by openssl."""

import base64
import re

import pytest

from credhook.sandbox.deliveries import SANDBOX_SECRET, headers, parse_key

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


@pytest.mark.parametrize(
    "text", ["", "whsec_c2hvcnQ=", f"whsec_{SEED[:-1]}", "whsec_not base64 at all", f"whpk_{SEED}", "whsk_c2hvcnQ="]
)
def test_other_text_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="a signing key should be") as refusal:
        parse_key(text)
    assert len(text) < 10 or text not in str(refusal.value)
