"""`credhook api` against a platform on a real socket, made for these tests."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from credhook.worker.commands.api import api
from support.in_thread import Asked, http_server
from support.platform.platform_settings import leading_to
from support.platform.wallet import WALLET

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
PRESET = {
    "credentialFormat": "sd-jwt", "templateName": "n", "code": "c", "templateDescription": "d",
    "templateAttributes": {"a": {"type": "string"}},
}  # fmt: skip
TIMES = {"createdAt": "2026-11-01T10:00:00Z", "updatedAt": "2026-11-01T10:00:00Z"}
KEPT_PRESET = PRESET | TIMES | {"id": "a:c", "author": "a", "templateType": "u", "issuerConfig": {"signer": "did:web"}}
HOOK = {"url": "https://a.example/hooks"}
ENDPOINT = {"id": "e", **HOOK, "filterTypes": ["openid4vc.issuance.failed"]} | TIMES
NEW_USER = {"email": "ada@b.example", "firstName": "Ada"}
CRM = {"externalIdentifier": "crm/7"}
USER = {"id": "u", "username": "ada", "email": "ada@b.example", "enabled": True}
PRESENTATION = {"id": "p", "status": "verified", "credentials": [{"isValid": True, "attributes": {"name": "Ädä"}}]}
TEMPLATE = {"id": "t", "name": "n", "format": "sd-jwt-vc", "type": "urn:t", "archivedAt": "2026-11-01T10:00:00Z"}
NAMED = {"name": "n", "dids": [{"did": "did:web:a", "name": "A"}]}
ENTITY = {"id": "x", "name": "n", "certificates": ["any"]} | TIMES
CERTIFICATE = {"id": "k", "certificateId": "l", "certificateSigningRequest": "c", "subjectKeyIdentifier": "s"}
CERTIFICATE |= {"expiresAt": "2027-11-01", **TIMES}


@dataclass
class Platform:
    """Answers every request but the token's with one status and body, and remembers what was asked."""

    status: int = 200
    body: Any = None
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    url: str = ""
    failing: list[int] = field(default_factory=list)

    def answer(self, asked: Asked) -> tuple[int, dict[str, str], bytes]:
        if asked.path == "/token":
            return 200, {}, b'{"access_token": "t", "expires_in": 300, "token_type": "Bearer"}'
        self.asked.append((asked.method, asked.path, json.loads(asked.body) if asked.body else None))
        if self.failing:
            return self.failing.pop(0), {}, b""
        return self.status, {}, b"" if self.body is None else json.dumps(self.body).encode()


@pytest.fixture
def platform() -> Iterator[Platform]:
    platform = Platform()
    with http_server(platform.answer) as platform.url:
        yield platform


def run(platform: Platform, *arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner(env=leading_to(platform.url)).invoke(api, arguments, input=stdin)


REDIRECTED = "the platform redirects to another URL: check CREDHOOK_API_URL, its https:// and the slash at its end"
GONE = {"errors": [{"detail": "Template\x1b[2J\nt\u202e gone", "code": "NOT_FOUND", "id": "8c5f"}]}
USERS = "/consumer-onboarding/api/users"

#: (arguments, standard input, what the platform answers, what it was asked)
COMMANDS: list[tuple[list[str], Any, Any, tuple[str, str, Any]]] = [
    *((["users", "list"], None, users, ("GET", USERS, None)) for users in ([USER], [])),
    (["users", "create", "-"], NEW_USER, {"email": "a", "tempPassword": "Xq7"}, ("POST", USERS, NEW_USER)),
    (["users", "find", "crm/7"], None, USER, ("GET", f"{USERS}/by-external-identifier/crm%2F7", None)),
    (["users", "external-id", "a@b.example"], None, CRM, ("GET", f"{USERS}/a%40b.example/external-identifier", None)),
    *(
        (
            ["users", "link", "ada", *flag],
            None,
            {"username": "ada", "idpAlias": "idp", "linked": enabled},
            ("PATCH", f"{USERS}/ada/idp-link", {"enabled": enabled}),
        )
        for flag, enabled in (([], True), (["--unlink"], False))
    ),
    (["presets", "create", "-"], PRESET, KEPT_PRESET, ("POST", "/me-creds/api/presets/credentials", PRESET)),
    (["templates", "get", "t"], None, TEMPLATE, ("GET", "/me-creds/api/templates/credentials/t", None)),
    (["trusted-entities", "create", "-"], NAMED, ENTITY, ("POST", "/me-creds/api/trusted-entities", NAMED)),
    (["endpoints", "list"], None, [ENDPOINT], ("GET", "/me-creds/api/endpoints", None)),
    (["endpoints", "create", "-"], HOOK, ENDPOINT, ("POST", "/me-creds/api/endpoints", HOOK)),
    (["endpoints", "delete", "e"], None, None, ("DELETE", "/me-creds/api/endpoints/e", None)),  # Nothing is printed.
    (["issuances", "get", "i"], None, {"id": "i", "status": "x"}, ("GET", "/me-creds/api/credentials/i", None)),
    (["issuances", "list"], None, [{"id": "i", "status": "x"}], ("GET", "/me-creds/api/credentials", None)),
    (["presentations", "get", "p"], None, PRESENTATION, ("GET", "/me-creds/api/presentations/p", None)),
    (["presentations", "list"], None, [PRESENTATION], ("GET", "/me-creds/api/presentations", None)),
    *(
        (["wallet", "accept", offer], given, [WALLET], ("POST", "/me-wallet/api/credentials", {"credentialOffer": "o"}))
        for offer, given in (("o", None), ("-", "o\n"))  # The second keeps it off the command line.
    ),
]


@pytest.mark.parametrize(("arguments", "given", "answer", "asked"), COMMANDS, ids=lambda value: str(value)[:40])
def test_each_command_asks_for_its_operation_and_prints_the_answer_whole(
    platform: Platform, arguments: list[str], given: Any, answer: Any, asked: tuple[str, str, Any]
) -> None:
    platform.status, platform.body = (204, None) if answer is None else (200, {"data": answer})
    result = run(platform, *arguments, stdin=json.dumps(given) if isinstance(given, dict) else given)
    assert result.exit_code == 0, result.stderr
    assert platform.asked == [asked]
    assert (json.loads(result.stdout) if result.stdout else None) == answer
    assert result.stdout.isascii()
    assert bool(result.stdout) == (answer is not None)
    assert result.stderr == ""


def test_a_request_is_read_from_a_file(platform: Platform, tmp_path: Path) -> None:
    file = tmp_path / "user.json"
    file.write_text('{"username": "ada"}')
    platform.body = {"data": {"email": "", "tempPassword": ""}}
    assert run(platform, "users", "create", str(file)).exit_code == 0
    assert platform.asked == [("POST", USERS, {"username": "ada"})]
    file.write_text("[]")
    assert run(platform, "users", "create", str(file)).stderr.startswith(f"Error: {file}: Input should be")


@pytest.mark.parametrize(
    ("command", "status", "told"), [("create -", 500, True), ("create -", 429, False), ("list", 500, False)]
)
def test_a_post_that_may_have_worked_says_so(platform: Platform, command: str, status: int, told: bool) -> None:
    platform.failing, platform.body = [status], [] if command == "list" else {"tempPassword": ""}
    result = run(platform, "users", *command.split(), stdin='{"email": "a"}')
    again = "users.create: answered 500, and may have worked all the same\n"
    assert (result.exit_code, result.stderr, len(platform.asked)) == (0, again if told else "", 2)


def test_a_certificate_is_imported_with_its_parents(platform: Platform, tmp_path: Path) -> None:
    leaf, first, second = (tmp_path / name for name in ("leaf.pem", "first.pem", "second.pem"))
    a, b, c = (PEM.replace("MIIB", letter * 4) for letter in "ABC")
    leaf.write_text("\ufefffriendlyName: é\n" + PEM + a, "utf-8")  # A bundle.
    first.write_text("friendlyName: é\n" + b, "latin-1")
    second.write_text(c)
    platform.body = {"data": CERTIFICATE}
    parents = ["--parent", str(first), "--parent", str(second)]
    result = run(platform, "certificates", "import", "csr", str(leaf), *parents)
    assert json.loads(result.stdout) == CERTIFICATE
    [(_, path, body)] = platform.asked
    assert path == "/me-creds/api/certificates/csrs/csr/import"
    assert body == {"certificate": PEM, "parentCertificates": [a, b, c]}
    assert run(platform, "certificates", "import", "csr", "-", stdin=PEM).exit_code == 0
    assert platform.asked[1][2] == {"certificate": PEM}


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        (["users", "create", "-"], "{}", "standard input: should name at least one of email and username"),
        (["users", "create", "-"], '{"email": 1}', "standard input: email: Input should be a valid string"),
        (["trusted-entities", "create", "-"], '{"name": "n", "dids": [{"did": 1}]}', "standard input: dids.0.did: "),
        (["users", "create", "-"], '{"first_name": "Ada", "email": "a"}', "standard input: first_name: Extra inputs"),
        (["users", "create", "-"], "{email}", "standard input: key must be a string"),
        (["users", "create", "-"], "", "standard input: EOF while parsing"),
        (["users", "create", "-"], '{"email": NaN}', "standard input: expected value"),
        (["certificates", "import", "c", "-"], "MIIB", "standard input: should hold PEM-encoded certificates"),
        (["certificates", "import", "c", "-"], b"\xff", "standard input: should hold PEM-encoded certificates"),
        (["wallet", "accept", "-"], b"\xff", "standard input: 'utf-8' codec can't decode"),
        (["templates", "get", "../x"], None, "templates.get: id should be 1 to 512"),
        (["users", "find", "a\nb"], None, "users.by_external_identifier: externalIdentifier should be 1"),
        (["wallet", "accept", ""], None, "wallet.accept: credential_offer: string too short"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2_and_nothing_is_sent(
    platform: Platform, arguments: list[str], given: str | bytes | None, message: str
) -> None:
    result = run(platform, *arguments, stdin=given)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: {message}")
    assert result.stderr.count("\n") == 1
    assert "../x" not in result.stderr
    assert result.stdout == ""
    assert platform.asked == []


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (
            404,
            GONE,
            "templates.get: the platform answered 404 (NOT_FOUND, error 8c5f): Template\\x1b[2J t\\u202e gone",
        ),
        (404, {"errors": [{"code": "GONE"}]}, "templates.get: the platform answered 404 (GONE)"),
        *((status, None, f"templates.get: the platform answered {status}") for status in (400, 409, 500)),
        (
            302,
            None,
            f"templates.get: the platform answered 302; redirects are refused; {REDIRECTED}",
        ),
        (0, None, "token: no answer (curl 7, refused); nothing listens there: check CREDHOOK_TOKEN_URL"),
        (200, {"data": 1}, "templates.get: the answer does not match the specification: the whole: model type"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_1(platform: Platform, status: int, body: Any, message: str) -> None:
    platform.status, platform.body, platform.url = status, body, platform.url if status else "http://127.0.0.1:1"
    result = run(platform, "templates", "get", "t")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {message}\n")
