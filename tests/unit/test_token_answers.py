"""What the token endpoint may answer: a token in every form that servers give it, or an error of the right kind."""

import httpx
import pytest
from token_endpoint import Platform, client, credentials

from credhook.worker.api.errors import ApiError, InvalidResponse, Unauthorized, Unavailable
from credhook.worker.api.http.exchange import Response
from credhook.worker.api.token import granted


@pytest.mark.parametrize(
    ("expires_in", "used_until"),
    [("null", 270.0), ("300.5", 270.5), ('"300"', 270.0), ('"60.5"', 30.5), ("1e999", 86_370.0), (None, 270.0)],
)
def test_a_lifetime_is_read_in_every_form_that_servers_give_it(expires_in: str | None, used_until: float) -> None:
    stated = f',"expires_in":{expires_in}' if expires_in else ""
    for type_ in ("", ',"token_type":null', ',"token_type":"bearer"'):
        token = granted(Response(200, {}, f'{{"access_token":"t"{stated}{type_}}}'.encode()), 1_000.0)
        assert (token.value, token.renew_at) == ("t", 1_000.0 + used_until)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(400, json={"error": "unauthorized_client"}), Unauthorized),
        (httpx.Response(400, json={"error": {"not": "a code"}}), Unauthorized),
        (httpx.Response(401, content=b"<html>"), Unauthorized),
        (httpx.Response(403), Unauthorized),
        (httpx.Response(404, json={"error": "Realm does not exist"}), Unauthorized),
        (httpx.Response(408), Unavailable),
        (httpx.Response(429), Unavailable),
        (httpx.Response(500), Unavailable),
        (httpx.Response(302, headers={"location": "https://elsewhere.example/"}), InvalidResponse),
        (httpx.Response(200, content=b"not json"), InvalidResponse),
        (httpx.Response(200, content=b"[" * 100_000), InvalidResponse),
        (httpx.Response(200, json=[]), InvalidResponse),
        (httpx.Response(200, json={"token_type": "Bearer"}), InvalidResponse),
        (httpx.Response(200, json={"access_token": "a", "token_type": ""}), InvalidResponse),
        (httpx.Response(200, json={"access_token": "a", "token_type": "mac"}), InvalidResponse),
        (httpx.Response(200, json={"access_token": "", "token_type": "Bearer"}), InvalidResponse),
        (httpx.Response(200, json={"access_token": "a\r\nx: y", "token_type": "Bearer"}), InvalidResponse),
        (httpx.Response(200, json={"access_token": "ä", "token_type": "Bearer"}), InvalidResponse),
        *(
            (httpx.Response(200, text=f'{{"access_token": "a", "expires_in": {value}}}'), InvalidResponse)
            for value in ("-1", '"soon"', '""', "[]", "{}", '"nan"')
        ),
        (httpx.Response(200, content=b"x" * (4 * 1024 * 1024 + 1)), InvalidResponse),
        (httpx.Response(200, stream=httpx.ByteStream(b"x"), headers={"content-encoding": "br"}), InvalidResponse),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value.status_code),
)
async def test_what_is_not_a_token_is_an_error_of_the_right_kind(answer: httpx.Response, error: type[ApiError]) -> None:
    platform = Platform()
    platform.refuse_tokens = lambda _: answer
    async with client(platform, credentials()) as api:
        with pytest.raises(error) as caught:
            await api.presentations.get("p")
    assert type(caught.value) is error
    assert caught.value.operation == "token"
    assert platform.api_requests == []
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        ("invalid_client", "CREDHOOK_CLIENT_ID, CREDHOOK_CLIENT_SECRET, CREDHOOK_TOKEN_AUTH and CREDHOOK_TOKEN_URL"),
        ("invalid_scope", "CREDHOOK_SCOPE"),
        ("invalid_target", "CREDHOOK_AUDIENCE and CREDHOOK_RESOURCE"),
    ],
)
async def test_a_refusal_names_its_code_and_the_settings_that_it_concerns(code: str, settings: str) -> None:
    platform = Platform()
    platform.refuse_tokens = lambda _: httpx.Response(400, json={"error": code})
    async with client(platform, credentials()) as api:
        with pytest.raises(Unauthorized) as caught:
            await api.presentations.get("p")
    assert str(caught.value) == f"token: the token endpoint refuses this client: 400 ({code}); check {settings}"
