"""What nobody should send to the sandbox, and what it answers."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sandbox_api import CREDS, PRESET, USERS, code, data, invalid, missing, refused


def test_unknown_paths_and_methods_are_refused_in_the_same_envelope(api: httpx.Client) -> None:
    missing(api.get("/nowhere"))
    missing(api.get(f"{CREDS}/endpoints/"))
    answer = api.put(f"{CREDS}/endpoints")
    refused(answer, 405, "METHOD_NOT_ALLOWED", "Method Not Allowed")
    assert {each.strip() for each in answer.headers["allow"].split(",")} == {"GET", "HEAD", "POST"}


def test_a_body_of_another_type_or_size_is_refused(api: httpx.Client) -> None:
    path = f"{CREDS}/trusted-entities"
    other = api.post(path, content=b"name=x", headers={"content-type": "application/x-www-form-urlencoded"})
    refused(other, 415, "UNSUPPORTED_MEDIA_TYPE", "Unsupported Media Type")
    refused(api.post(path, json={"name": "x" * 1_100_000}), 413, "PAYLOAD_TOO_LARGE", "Payload Too Large")

    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 100_000

    chunked = api.post(path, content=chunks(), headers={"content-type": "application/json"})
    refused(chunked, 413, "PAYLOAD_TOO_LARGE", "Payload Too Large")


HOSTILE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b'{"name": "\x00"}',
    b'{"name": "\\ud800"}',
    b'{"name": "\\udfff\\ud800"}',
    b'{"name": NaN}',
    b'{"certificates": [NaN], "name": "x"}',
    b'{"certificates": [1e999], "name": "x"}',
    b'{"name": ' + b"9" * 5000 + b"}",
    b'{"certificates": [' + b"9" * 5000 + b'], "name": "x"}',
    b"[" * 100_000,
    b'{"certificates": ' + b"[" * 1000 + b"]" * 1000 + b', "name": "x"}',
    b'{"name": {"name": []}}',
    b'{"name": "x", "name\\u0000": 1}',
    b'{"name": "x", "constructor": {}}',
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_body_is_a_400(api: httpx.Client, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    for path in (f"{CREDS}/trusted-entities", f"{CREDS}/presets/credentials", USERS, "/sandbox/events"):
        invalid(api.post(path, content=body, headers=headers))


def test_deep_definitions_and_great_numbers_are_taken_or_refused_and_never_break(api: httpx.Client) -> None:
    for depth, expected in ((40, 200), (90, 200), (150, 400), (400, 400)):
        definition: dict[str, Any] = {"type": "string"}
        for _ in range(depth):
            definition = {"type": "object", "properties": {"a": definition}}
        wanted = PRESET | {"code": code(), "templateAttributes": {"a": definition}}
        answer = api.post(f"{CREDS}/presets/credentials", json=wanted)
        assert answer.status_code == expected, depth
        if expected == 200:
            id_ = answer.json()["data"]["id"]
            assert data(api.get(f"{CREDS}/templates/credentials/{id_}"))["attributes"] == {"a": definition}
    future = {"days": 10**4000, "months": 0.0, "years": 0}
    wanted = PRESET | {"code": code(), "validUntil": {"start": "issuance", "future": future}}
    preset = data(api.post(f"{CREDS}/presets/credentials", json=wanted))
    assert preset["validUntil"]["future"] == {"days": 10**4000, "months": 0, "years": 0}


def test_unusual_text_comes_back_as_it_went_in(api: httpx.Client) -> None:
    name = "\u0000 \U0001f600 \u202e </script> '; DROP TABLE records; --"
    assert data(api.post(f"{CREDS}/trusted-entities", json={"name": name}), 201)["name"] == name
