"""Who may use the console: names and passwords, and what a page of another site can do."""

from base64 import b64encode

import pytest
from starlette.datastructures import Headers

from credhook.console.auth import authenticated, is_loopback, refusal_reason
from credhook.settings import ConsoleSettings

URL = "https://console.example"


PASSWORD = "p4ssw:rd of the té"


def basic(text: str | bytes, scheme: str = "Basic") -> str:
    return f"{scheme} {b64encode(text.encode() if isinstance(text, str) else text).decode()}"


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("ada", "ada"),
        (" Zoë ", "Zoë"),
        ("", "operator"),
        ("n" * 50, "n" * 40),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_name_of_the_operator_is_the_name_that_was_typed(typed: str | bytes, name: str) -> None:
    user = typed.encode() if isinstance(typed, str) else typed
    assert authenticated(basic(user + f":{PASSWORD}".encode()), PASSWORD) == name


def test_scheme_is_read_without_case() -> None:
    assert authenticated(basic(f"ada:{PASSWORD}", "BASIC"), PASSWORD) == "ada"


@pytest.mark.parametrize(
    "credentials",
    [
        "",
        "Basic",
        "Basic !",
        "Basic \xe9",
        basic("ada"),
        basic(PASSWORD),
        basic("ada:"),
        basic(f"ada:{PASSWORD[:-1]}"),
        basic(f"ada:{PASSWORD} "),
        basic(f"ada:{PASSWORD}".encode("latin-1")),
        basic(f"ada:{PASSWORD}", "Bearer"),
        f"{basic(f'ada:{PASSWORD}')} more",
    ],
)
def test_other_credentials_are_refused(credentials: str) -> None:
    assert authenticated(credentials, PASSWORD) is None


def test_only_addresses_of_this_machine_need_no_encryption() -> None:
    names = ["localhost", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::", "10.1.2.3", "console.example", ""]
    assert [name for name in names if is_loopback(name)] == names[:4]


@pytest.mark.parametrize(
    ("method", "headers", "url", "refused"),
    [
        *(("GET", {"host": h}, None, False) for h in ("localhost", "127.0.0.1:8060", "[::1]:8060", "10.1.2.3")),
        *(("GET", {"host": h}, None, True) for h in ("e.example", "e.example:8060", "", "[", "localhost.e.example")),
        ("GET", {"host": "console.example"}, None, True),
        ("GET", {"host": "console.example"}, URL, False),
        ("GET", {"host": "other.example"}, URL, True),
        *(("GET", {"sec-fetch-site": one}, URL, False) for one in ("same-origin", "none")),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document"}, URL, False),  # A link.
        *(("GET", {"sec-fetch-site": one}, URL, True) for one in ("cross-site", "same-site")),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "iframe"}, URL, True),
        *(("POST", {"origin": one}, URL, False) for one in ("http://localhost:8060", URL)),
        ("POST", {"sec-fetch-site": "same-origin"}, URL, False),
        ("POST", {"origin": "http://localhost:8060", "sec-fetch-site": "same-origin"}, URL, False),
        *(("POST", {"origin": one}, URL, True) for one in ("null", "https://evil.example")),
        *(("POST", {"origin": one}, URL, True) for one in ("http://localhost:9999", "https://localhost:8060")),
        *(("POST", {"sec-fetch-site": one}, URL, True) for one in ("cross-site", "same-site", "none")),
        ("POST", {"origin": "http://localhost:8060", "sec-fetch-site": "cross-site"}, URL, True),
        ("POST", {}, URL, True),
    ],
)
def test_console_serves_only_its_own_hosts_and_origins(
    method: str, headers: dict[str, str], url: str | None, refused: bool
) -> None:
    assert bool(refusal_reason(method, Headers({"host": "localhost:8060"} | headers), url)) == refused


@pytest.mark.parametrize(("url", "told"), [(None, "is not set"), (URL, f"says {URL}")])
def test_a_proxy_that_hides_its_own_name_is_told_what_to_set(url: str | None, told: str) -> None:
    headers = Headers({"host": "127.0.0.1:8060", "origin": "https://ops.example"})
    assert f"CREDHOOK_CONSOLE_URL {told}" in str(refusal_reason("POST", headers, url))


def test_url_is_an_origin_and_16_characters_are_a_password() -> None:
    settings = {"CREDHOOK_CONSOLE_PASSWORD": "x" * 16, "CREDHOOK_CONSOLE_URL": "https://Console.Example:8443/"}
    assert ConsoleSettings.model_validate(settings).url == "https://console.example:8443"
