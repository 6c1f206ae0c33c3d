import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import ValidationError

from credhook.settings import (
    ConsoleSettings,
    EndpointSettings,
    ReceiverSettings,
    StoreSettings,
    WorkerSettings,
    check_certificate,
    correction,
    in_force,
    settings_errors,
    unknown_settings,
)
from support.process.commands import invoke, run
from support.receiver.signing import SECRET

PLATFORM = {
    "CREDHOOK_API_URL": "https://api.example",
    "CREDHOOK_TOKEN_URL": "https://id.example/token",
    "CREDHOOK_CLIENT_ID": "me",
    "CREDHOOK_CLIENT_SECRET": "hush-hush",
}
LIMITS = (
    "MAX_ATTEMPTS=0 MAX_ATTEMPTS=101 CONCURRENCY=0 CONCURRENCY=1001 LEASE=0.9 LEASE=300.1 GRACE=-1 GRACE=3601 "
    "HANDLER_TIMEOUT=0.0 FETCH_TIMEOUT=0.0 FETCH_TIMEOUT=3601 FETCH_TIMEOUT=inf RATE=0.0 RATE=inf"
)
LONG = "a-path-secret-of-22-le"


def made(settings: Any, environment: Mapping[str, str]) -> Any:
    return settings(**environment)


def lines(settings: type[Any], environment: Mapping[str, str]) -> list[str]:
    with pytest.raises(ValidationError) as invalid:
        settings(**environment)
    return settings_errors(invalid.value)


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_URL", "HOST", "PORT", *PLATFORM):
        monkeypatch.delenv(name, raising=False)


def test_settings_errors_name_each_missing_or_wrong_value() -> None:
    assert [line.partition(":")[0] for line in lines(WorkerSettings, {})] == list(PLATFORM)
    (line,) = lines(ReceiverSettings, {})
    for name, value in {
        "CREDHOOK_WEBHOOK_SECRETS": SECRET,
        "CREDHOOK_PATH_SECRET": LONG,
        "CREDHOOK_INSECURE": "1",
    }.items():
        assert name in line
        assert made(ReceiverSettings, {name: value})
    (line,) = lines(ReceiverSettings, {"CREDHOOK_WEBHOOK_SECRETS": f"{SECRET} Hush!_%%%"})
    assert line.startswith("CREDHOOK_WEBHOOK_SECRETS: key 2: ")
    assert "Hus" not in line


WRONG: dict[type[Any], dict[str, tuple[str, ...]]] = {
    ReceiverSettings: {
        "PORT": ("eighty", "70000"),
        "CREDHOOK_WEBHOOK_SECRETS": ("whsec_c2hvcnQ=", "Hush!_%%%"),
        "CREDHOOK_PATH_SECRET": ("guessable", "s" * 21, "s" * 22 + "/", "s" * 22 + " guessable"),
        "CREDHOOK_WEBHOOK_PATH": ("webhooks", "/webhooks?", "/webhooks/"),
        "CREDHOOK_TLS_CERTFILE": ("/nowhere/cert.pem", __file__),
        "CREDHOOK_REDIS_CERTFILE": ("/nowhere/cert.pem",),
        "CREDHOOK_QUEUE": ("a b", "q" * 65),
        "CREDHOOK_RETENTION": ("3599", "315360001"),
        "CREDHOOK_TOLERANCE": ("0", "86401"),
        "CREDHOOK_MAX_BODY": ("1023", "1048577"),
        "CREDHOOK_IDLE_SECONDS": ("0.9", "3600.1"),
        "CREDHOOK_DURABILITY": ("Strict", "replicated:0", "replicated:x"),
        "CREDHOOK_ADMIN": (":9000", "inbox.example:", "inbox.example:0", "inbox.example:port"),
    },
    WorkerSettings: {
        "CREDHOOK_API_URL": ("ftp://x", "https://user:pw@x", "https://user:1/hush@x", "https://api.example:99999"),
        "CREDHOOK_TOKEN_URL": (
            "https://x y",
            "https://x'",
            "https://x/a b",
            "https://x\\y",
            "https://x?a=b",
            "https://x#f",
            "https:///x",
            "https://x:0",
            "https://@x",
        ),
        "CREDHOOK_TOKEN_AUTH": ("jwt",),
        "CREDHOOK_SCOPE": ('read "write', 'a"b'),
        "CREDHOOK_RESOURCE": ("https://one.example two", "https://one.example#part"),
        "CREDHOOK_CLIENT_CERTFILE": ("/nowhere/cert.pem", "-----BEGIN CERTIFICATE-----" + 300 * "MIIB", __file__),
        "CREDHOOK_CLIENT_KEYFILE": ("/nowhere/key.pem",),
        "CREDHOOK_MATCH_IDS": ("perhaps",),
        "CREDHOOK_ISSUANCE_PATH": (
            *("/credentials", "/../{id}", "/a/./{id}", "/{id}/..", "/%2e%2e/{id}", "/a?x={id}", "/a/{id}#f"),
            *("/ä/{id}", "/a b/{id}", "/a\\..\\{id}", "/a\r\nX: y/{id}", "a/{id}", "/{id}/{x}"),
        ),
        "CREDHOOK_SNAPSHOT_KEY": ("k" * 31, f"{'k' * 32} {'l' * 31}"),
    },
    EndpointSettings: {"CREDHOOK_PUBLIC_URL": ("http://i/w", "https://me@i/w", "https:///w", "https://i?x")},
    ConsoleSettings: {
        "CREDHOOK_CONSOLE_PASSWORD": ("x" * 15,),
        "CREDHOOK_CONSOLE_URL": ("http://c.example", "https://c.example/path", "https://user@c.example"),
    },
}
FILE = (
    "should be the path of a file|should be a readable PEM certificate chain, with its key, not encrypted, in the same"
)
#: What is said of the wrong values of a setting; of all others, what numbers and words may be.
SAID = {
    "CREDHOOK_WEBHOOK_SECRETS": "hold 24 to 75 bytes, a whpk_ key 32; this whsec_ key holds 5|begin with whsec_ or",
    "CREDHOOK_PATH_SECRET": "should be 22 to 128 letters, digits, - and _; python -c 'import secrets; print",
    "CREDHOOK_WEBHOOK_PATH": "should begin with / and hold letters, digits and . _ ~ - between slashes",
    **{f"CREDHOOK_{file}": FILE for file in ("TLS_CERTFILE", "REDIS_CERTFILE", "CLIENT_CERTFILE", "CLIENT_KEYFILE")},
    # Pydantic's words, and what they leave out: the unit or the use.
    "CREDHOOK_QUEUE": "should match pattern '^[A-Za-z0-9_-]{1,64}$'. Name of the RQ queue between receiver and workers",
    "CREDHOOK_RETENTION": "3600. Seconds that a settled event is remembered|315360000. Seconds that a settled event",
    "CREDHOOK_DURABILITY": "should be strict, standard, replicated or replicated:N",
    "CREDHOOK_ADMIN": "should be host:port",
    "CREDHOOK_API_URL": "should be an http:// or https:// URL without credentials, query or fragment",
    "CREDHOOK_TOKEN_URL": "should be an http:// or https:// URL without credentials, query or fragment",
    "CREDHOOK_SCOPE": "should be scopes of RFC 6749: visible ASCII without quotes and backslashes",
    "CREDHOOK_RESOURCE": "should be absolute URIs without a fragment, separated by spaces",
    "CREDHOOK_ISSUANCE_PATH": "begins with /, holds {id} once, and has no . or .. as a part|one line of visible",
    "CREDHOOK_SNAPSHOT_KEY": "should be keys of 32 or more characters, separated by spaces",
    "CREDHOOK_PUBLIC_URL": "should be an https:// URL without credentials, query or fragment",
    "CREDHOOK_CONSOLE_PASSWORD": "should be 16 or more random characters, such as `openssl rand -hex 16` prints",
    "CREDHOOK_CONSOLE_URL": "should be an https:// URL without a path",
}


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        *((settings, name, one) for settings in WRONG for name, values in WRONG[settings].items() for one in values),
        *((WorkerSettings, *f"CREDHOOK_{one}".split("=")) for one in LIMITS.split()),
    ],
)
def test_a_wrong_value_is_one_line_with_its_name_and_without_the_value(
    settings: type[Any], name: str, value: str
) -> None:
    environment = {"CREDHOOK_INSECURE": "1"} if settings is ReceiverSettings else {}
    if settings is WorkerSettings:
        environment |= PLATFORM
    (line,) = lines(settings, environment | {name: value})
    assert line.startswith(f"{name}: ")
    assert any(words in line for words in SAID.get(name, "Input should be ").split("|"))
    assert "\n" not in line
    assert value not in line.removeprefix(name) or value == __file__  # The name of a file that is there.


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        *(("CREDHOOK_IDLE_SECONDS", bound) for bound in (1, 3_600)),  # Balancers keep connections for minutes.
        *(("CREDHOOK_RETENTION", bound) for bound in (3_600, 315_360_000)),
        *(("CREDHOOK_TOLERANCE", bound) for bound in (1, 86_400)),
        *(("CREDHOOK_MAX_BODY", bound) for bound in (1_024, 1_048_576)),
    ],
)
def test_receiver_takes_the_lowest_and_the_highest_value(name: str, bound: int) -> None:
    settings = made(ReceiverSettings, {"CREDHOOK_INSECURE": "1", name: str(bound)})
    assert getattr(settings, name.removeprefix("CREDHOOK_").lower()) == bound


# What editors, shells and YAML leave around a value, in the environment or in a file.

AROUND = ["{}\n", "{}\r\n", "\ufeff{}", "  {}\t", "\n{}\xa0", "\u200b{}\ufeff\n", "\u2060{}\u2060"]
INSIDE = ["{}\n{}", "{}\r{}", "{}\t{}", "{}\ufeff{}", "{}\x00{}", '"{}"', "'{}'", "`{}`", '"{}\u201d', "\u201c{}\u201d"]
CLEANED = {
    **PLATFORM,
    "REDIS_URL": "redis://redis.example:6380/1",
    "CREDHOOK_QUEUE": "other",
    "CREDHOOK_LEASE": "20",
    "CREDHOOK_MATCH_IDS": "0",
    "CREDHOOK_ISSUANCE_PATH": "/a/{id}",
    "CREDHOOK_HANDLERS": "accounts",
    "CREDHOOK_AUDIENCE": "them",
    "CREDHOOK_TOKEN_AUTH": "basic",
    "CREDHOOK_SNAPSHOT_KEY": "k" * 32,
}
#: Settings of several values, which may stand on lines of their own.
SEPARATED = {"CREDHOOK_HANDLERS", "CREDHOOK_SNAPSHOT_KEY"}


@pytest.mark.parametrize("form", AROUND, ids=ascii)
@pytest.mark.parametrize("place", ["environment", "file"])
def test_a_value_is_used_without_what_is_around_it(
    form: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = made(WorkerSettings, CLEANED)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    for name, value in CLEANED.items():
        if place == "environment":
            monkeypatch.setenv(name, form.format(value))
        else:
            (tmp_path / name).write_bytes(form.format(value).encode())
    assert WorkerSettings() == clean


@pytest.mark.parametrize("form", INSIDE, ids=ascii)
def test_a_hidden_character_or_a_quotation_mark_is_refused(form: str) -> None:
    wrong = {name: form.format(value, value) for name, value in CLEANED.items() if name not in SEPARATED}
    refused = dict(line.split(": ", 1) for line in lines(WorkerSettings, CLEANED | wrong))
    assert refused.keys() == wrong.keys()
    assert all(re.match(r"should (be one line|have no quotation)", message) for message in refused.values())


@pytest.mark.parametrize("hidden", ["\ufeff", "\u200b", "\x00"], ids=ascii)
def test_a_hidden_character_among_several_values_is_refused(hidden: str) -> None:
    wrong = {name: CLEANED[name] + hidden + CLEANED[name] for name in SEPARATED}
    refused = dict(line.split(": ", 1) for line in lines(WorkerSettings, CLEANED | wrong))
    assert refused.keys() == wrong.keys()
    assert all(message.startswith("should be one line") for message in refused.values())


@pytest.mark.parametrize("blank", ["", " ", "\n", "\ufeff\r\n"])
def test_a_blank_value_is_not_set(blank: str) -> None:
    assert made(WorkerSettings, PLATFORM | {"CREDHOOK_RATE": blank}).rate is None
    (line,) = lines(WorkerSettings, PLATFORM | {"CREDHOOK_CLIENT_SECRET": blank})
    assert line == "CREDHOOK_CLIENT_SECRET: is not set, or empty. OAuth 2.0 client secret"


def test_several_values_may_stand_on_lines_of_their_own() -> None:
    keys = f"{'k' * 32}\r\n{'l' * 32}\n"
    settings = made(WorkerSettings, PLATFORM | {"CREDHOOK_SNAPSHOT_KEY": keys, "CREDHOOK_HANDLERS": "a,\n  b:c\n"})
    assert settings.snapshot_key.get_secret_value() == f"{'k' * 32} {'l' * 32}"
    assert settings.handlers == ("a", "b:c")


# Secrets in files, as systemd, Docker and Kubernetes mount them.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    return tmp_path


def test_settings_missing_from_the_environment_are_read_from_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**PLATFORM, "CREDHOOK_CLIENT_SECRET": ""}.items():
        monkeypatch.setenv(name, value)
    (folder / "..data").mkdir()  # Kubernetes keeps the files there, and links to them.
    for name, content in (("credhook_client_secret", b" hush \r\n"), ("CREDHOOK_CLIENT_ID", b"x"), ("REDIS_URL", b"")):
        (folder / "..data" / name).write_bytes(content)
        (folder / name).symlink_to(f"..data/{name}")
    settings = WorkerSettings()
    assert settings.client_secret.get_secret_value() == "hush"
    assert (settings.client_id, settings.redis_address) == ("me", "redis://127.0.0.1:6379/0")
    assert "hush" not in f"{settings!r}{in_force(settings)}"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("REDIS_URL", b"hush://", "should be redis://, "),
        ("REDIS_URL", b"redis://hush\xff", "/REDIS_URL should be a readable file of UTF-8 text (UnicodeDecodeError)"),
        ("CREDHOOK_ADMIN", b"hush", "should be host:port"),
        ("REDIS_URL", b"redis://hu\nsh", "should be one line of visible characters, without U+000A"),
        ("REDIS_URL", b"'redis://hush'", "should have no quotation marks around it"),
        ("CREDENTIALS_DIRECTORY", None, '/none should be a readable folder (directory "'),
    ],
)
def test_a_wrong_file_is_one_line_with_its_name_and_without_the_value(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, said: str
) -> None:
    if content is None:
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", f"{folder}/none")
    else:
        (folder / name).write_bytes(content)
    (line,) = lines(StoreSettings, {})
    assert line.startswith(f"{name}: ")
    assert said in line
    assert "hush" not in line


# Our certificates: the receiver's own, and those that the platform and Redis may ask for.


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:
    """Files by what they hold: a certificate and its key, apart and together, and keys that do not serve."""
    folder, ours = tmp_path_factory.mktemp("pem"), trustme.CA().issue_cert("ours.example")
    key = load_pem_private_key(ours.private_key_pem.bytes(), None)
    content = {
        "certificate": ours.cert_chain_pems[0].bytes(),
        "key": ours.private_key_pem.bytes(),
        "both": ours.private_key_and_cert_chain_pem.bytes(),
        "other key": trustme.CA().issue_cert("other.example").private_key_pem.bytes(),
        "encrypted key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hush-hush")),
        "no PEM": b"hush",
    }
    for name, text in content.items():
        (folder / name).write_bytes(text)
    return {name: folder / name for name in content}


@pytest.mark.parametrize(
    ("certfile", "keyfile"),
    [
        (None, "key"),
        ("certificate", None),
        ("no PEM", "key"),
        ("certificate", "no PEM"),
        ("certificate", "other key"),
        ("certificate", "encrypted key"),
    ],
)
def test_a_certificate_that_could_not_be_shown_is_refused(
    certfile: str | None, keyfile: str | None, pem: dict[str | None, Path]
) -> None:
    certificate, key = pem.get(certfile), pem.get(keyfile)
    with pytest.raises(ValueError, match=r"^CREDHOOK_OUR_CERTFILE: .*CREDHOOK_OUR_KEYFILE") as refusal:
        check_certificate(certificate, key, "OUR")
    assert not certificate or all(str(path) in str(refusal.value) for path in (certificate, key) if path)


def test_no_terminal_is_asked_for_a_password(pem: dict[str | None, Path]) -> None:
    program = "import os, pathlib, pty, sys; from credhook.settings import check_certificate; os.setsid(); "
    program += "os.open(os.ttyname(pty.openpty()[1]), os.O_RDWR); "
    program += "check_certificate(*map(pathlib.Path, sys.argv[1:]), 'OUR')"
    assert "CREDHOOK_OUR_KEYFILE" in run("-c", program, str(pem["certificate"]), str(pem["encrypted key"])).stderr


@pytest.mark.parametrize(
    ("settings", "environment", "prefix"),
    [
        (ReceiverSettings, {"CREDHOOK_INSECURE": "1"}, "CREDHOOK_TLS"),
        (WorkerSettings, PLATFORM, "CREDHOOK_CLIENT"),
        (ConsoleSettings, {"REDIS_URL": "rediss://redis.example"}, "CREDHOOK_REDIS"),
    ],
)
def test_each_process_tries_its_certificates(
    settings: type[Any], environment: dict[str, str], prefix: str, pem: dict[str | None, Path]
) -> None:
    certified = environment | {f"{prefix}_CERTFILE": str(pem["both"])}
    assert made(settings, certified)
    if settings is ConsoleSettings:
        apart = {f"{prefix}_CERTFILE": str(pem["certificate"]), f"{prefix}_KEYFILE": str(pem["key"])}
        shown = made(settings, environment | apart).open_store_sync().redis.connection_pool.connection_kwargs
        assert (shown["ssl_certfile"], shown["ssl_keyfile"]) == (pem["certificate"], pem["key"])
        (line,) = lines(settings, certified | {"REDIS_URL": "redis://redis.example"})
        assert line == "CREDHOOK_REDIS_CERTFILE: is used over TLS alone; REDIS_URL should be rediss://"
    (line,) = lines(settings, environment | {f"{prefix}_CERTFILE": str(pem["certificate"])})
    assert line.startswith(f"{prefix}_CERTFILE: ")
    assert f"{prefix}_KEYFILE" in line


@pytest.mark.parametrize(("tolerance", "enough"), [(1_799, True), (1_800, False), (3_601, False)])
def test_no_signature_counts_for_longer_than_its_id_is_remembered(tolerance: int, *, enough: bool) -> None:
    """Signed for the latest moment that is accepted now, and settled at once: it counts for twice the tolerance."""
    times = {"CREDHOOK_TOLERANCE": str(tolerance), "CREDHOOK_RETENTION": "3600"}
    if enough:
        settings = made(ReceiverSettings, times | {"CREDHOOK_WEBHOOK_SECRETS": SECRET})
        assert settings.tolerance == tolerance
        assert settings.open_store().retention == settings.open_store_sync().retention == 3_600
    else:
        (line,) = lines(ReceiverSettings, times | {"CREDHOOK_WEBHOOK_SECRETS": SECRET})
        assert line.startswith("CREDHOOK_TOLERANCE: should be less than half of CREDHOOK_RETENTION, which is 3600 s: a")


def test_secrets_print_as_stars() -> None:
    secrets = {"CREDHOOK_WEBHOOK_SECRETS": SECRET, "CREDHOOK_PATH_SECRET": LONG, "REDIS_URL": "redis://:pw1@x"}
    shown = f"{made(ReceiverSettings, secrets)!r}{made(WorkerSettings, PLATFORM | {'REDIS_URL': 'redis://:pw1@x'})!r}"
    for secret in (SECRET, LONG, "pw1", "hush-hush"):
        assert secret not in shown


def test_effective_settings_differ_from_the_defaults() -> None:
    assert in_force(made(ReceiverSettings, {"CREDHOOK_INSECURE": "1", "PORT": "8000"})) == {"CREDHOOK_INSECURE": True}
    handlers = {"CREDHOOK_HANDLERS": "a,b:c", "CREDHOOK_LEASE": "15", "CREDHOOK_GRACE": "1.5"}
    assert in_force(made(WorkerSettings, PLATFORM | handlers)) == PLATFORM | {
        "CREDHOOK_CLIENT_SECRET": "**********",
        "CREDHOOK_HANDLERS": ["a", "b:c"],
        "CREDHOOK_GRACE": 1.5,
    }


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("REDIS_URL", "rediss://user:hush@redis.example:6380/2", "rediss://redis.example:6380/2"),
        ("REDIS_URL", "redis://:hush@[::1]", "redis://[::1]:6379/0"),
        ("REDIS_URL", "redis+sentinel://:hush@a,b:1/main/3", "redis+sentinel://a:26379,b:1/main/3"),
        ("REDIS_URL", "unix://:hush@/run/redis.sock", "unix:///run/redis.sock"),
        ("REDIS_URL", "unix:///hush@/run/redis.sock", "**********"),
        ("REDIS_URL", "redis+sentinel://user:1/hush@a", "**********"),
        ("CREDHOOK_API_URL", "https://api.example/v1/", "https://api.example/v1"),  # Else a pause would not be shared.
        ("CREDHOOK_RESOURCE", "https://api.example urn:x", ["https://api.example", "urn:x"]),
        ("CREDHOOK_SNAPSHOT_KEY", f"{'hush' * 8} {'silent' * 8}", "**********"),
    ],
)
def test_nothing_secret_is_shown(name: str, value: str, shown: object) -> None:
    assert in_force(made(WorkerSettings, PLATFORM | {name: value}))[name] == shown


@pytest.mark.parametrize("command", ["receiver", "worker"])
def test_a_wrong_setting_ends_the_process_with_2_before_it_does_anything(command: str) -> None:
    done = invoke(command, environment={"PORT": "x"})
    assert done.returncode == 2
    assert "credhook: " in done.stderr
    assert "Traceback" not in done.stderr


def test_receiver_and_worker_hold_only_their_own_secrets() -> None:
    assert not {name for name in ReceiverSettings.model_fields if "client" in name or "token" in name}
    assert not {name for name in WorkerSettings.model_fields if "webhook" in name or "path_secret" in name}


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("CREDHOOK_HANDLER", "did you mean CREDHOOK_HANDLERS?"),
        ("CREDHOOK_APIURL", "did you mean CREDHOOK_API_URL?"),
        ("CREDHOOK_WEBHOOK_SECRET", "did you mean CREDHOOK_WEBHOOK_SECRETS?"),
        ("CREDHOOK_LOGLEVEL", "did you mean CREDHOOK_LOG_LEVEL?"),
        ("credhook_concurency", "did you mean CREDHOOK_CONCURRENCY?"),
        ("CREDHOOK_FROBNICATION", "deploy/README.md lists them"),
    ],
)
def test_an_unknown_setting_is_named_with_the_nearest(name: str, advice: str) -> None:
    ours = ["credhook_handlers", "CREDHOOK_API_URL"]
    of_kubernetes = ["CREDHOOK_SERVICE_HOST", "CREDHOOK_PORT_8000_TCP_ADDR", "CREDHOOK_RECEIVER_SERVICE_PORT_HTTP"]
    of_others = ["PATH", "CREDHOOK_RECEIVER_PORT", "CREDHOOKS_HANDLER", "REDIS_URLS"]
    assert unknown_settings([*ours, name, *of_kubernetes, *of_others]) == [name]
    assert correction(name) == f"{name} is not a setting; {advice}"
