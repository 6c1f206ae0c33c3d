import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from credhook.worker.platform.cipher import Cipher, NotOurs

SECRET = SecretStr("correct horse battery staple")
#: `b"plain"` under the name "here", sealed by version 1: what lies in Redis must open after an upgrade.
KEPT = bytes.fromhex("0127d7088b2625d2f57a64956386b5269bda60558495a690549db197a310b4da6a7c")

cipher = Cipher(SECRET, "token")


@given(st.binary(max_size=500), st.text(max_size=50))
def test_what_was_closed_opens_under_its_own_name(plain: bytes, name: str) -> None:
    assert cipher.decrypt(cipher.encrypt(plain, name), name) == plain


def test_what_an_earlier_version_closed_still_opens() -> None:
    assert cipher.decrypt(KEPT, "here") == b"plain"


@pytest.mark.parametrize(
    ("other", "name"),
    [(Cipher(SecretStr("another secret"), "token"), "here"), (Cipher(SECRET, "snapshot"), "here"), (cipher, "there")],
    ids=["secret", "purpose", "name"],
)
def test_it_opens_under_no_other(other: Cipher, name: str) -> None:
    with pytest.raises(NotOurs, match=name):
        other.decrypt(KEPT, name)


@pytest.mark.parametrize("place", range(len(KEPT)))
def test_no_byte_of_it_can_be_changed(place: int) -> None:
    changed = bytearray(KEPT)
    changed[place] ^= 1
    with pytest.raises(NotOurs):
        cipher.decrypt(bytes(changed), "here")


@pytest.mark.parametrize("length", range(len(KEPT)))
def test_no_part_of_it_opens(length: int) -> None:
    with pytest.raises(NotOurs):
        cipher.decrypt(KEPT[:length], "here")


@given(st.binary(max_size=100))
def test_nothing_else_opens(junk: bytes) -> None:
    with pytest.raises(NotOurs):
        cipher.decrypt(junk, "here")


def test_the_same_value_never_looks_the_same() -> None:
    assert len({cipher.encrypt(b"plain", "here") for _ in range(100)}) == 100


def test_neither_a_repr_nor_a_traceback_shows_secret_or_value() -> None:
    other, sealed = Cipher(SecretStr("hush-hush"), "token"), cipher.encrypt(b"hidden", "here")
    with pytest.raises(NotOurs) as caught:
        other.decrypt(sealed, "here")
    shown = "".join(traceback.format_exception(caught.value)) + repr(other) + repr(vars(other))
    assert "hush" not in shown
    assert "hidden" not in shown
