"""Whom we trust, and as whom we show ourselves, in the command `api` and in `doctor`."""

import json
import os
import re
import shutil
import ssl
import subprocess
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
import trustme

from credhook.worker.api.http.environment import ssl_context
from credhook.worker.api.http.exchange import Request, Unanswered
from credhook.worker.api.http.transport import CurlTransport
from support.platform.platform_settings import leading_to
from support.platform.scripted_server import Answering, answering, presentation, tls_for
from support.process import commands


@contextmanager
def platform(authority: trustme.CA, clients: trustme.CA | None = None) -> Iterator[Answering]:
    """API and token endpoint over TLS, which want a certificate if they are told whose."""
    context = tls_for(authority)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    with answering(lambda *_: presentation("p"), context) as server:
        yield server


def environment(server: Answering, **more: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return kept | leading_to(server.url) | {name: str(path) for name, path in more.items()}


def asked(server: Answering, **more: Path) -> str:
    """Return what the command prints: the presentation's id, or an error in one line."""
    done = commands.invoke("api", "presentations", "get", "p", environment=environment(server, **more))
    assert (done.returncode, done.stderr == "") in {(0, True), (1, False)}, done.stderr
    (line,) = (done.stderr or json.loads(done.stdout)["id"]).splitlines()
    return str(line)


ANSWERED = "p"
#: The beginning of an error at the token endpoint; the cause follows.
NO_TOKEN = r"Error: token: no answer \(curl \d+, "


def test_ssl_cert_file_names_the_authorities(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = tmp_path / "authority.pem"
    other = trustme.CA().cert_pem.bytes()
    before = "# é\n".encode("latin-1")
    with platform(authority) as server:
        for text in (b"", BOM_UTF8, before + other, BOM_UTF8 + before):
            trusted.write_bytes(text + authority.cert_pem.bytes())
            assert asked(server, SSL_CERT_FILE=trusted) == ANSWERED, text
        for file in (Path(__file__), trusted.with_name("missing")):
            done = commands.invoke("doctor", environment=environment(server, SSL_CERT_FILE=file))
            assert f"SSL_CERT_FILE: {file} should be" in done.stdout
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    assert ssl_context().cert_store_stats()["x509_ca"] == 1  # None of certifi's.
    with platform(trustme.CA()) as another:
        assert re.match(
            NO_TOKEN + r"certificate, unable to get local issuer certificate\)", asked(another, SSL_CERT_FILE=trusted)
        )


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl, which names the files, is not installed")
def test_ssl_cert_dir_holds_the_authorities(
    authority: trustme.CA, ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "authorities"
    folder.mkdir()
    trustme.CA(organization_name="Another").cert_pem.write_to_path(str(folder / "another.pem"))
    shutil.copy(ca, folder)
    subprocess.run(["openssl", "rehash", str(folder)], check=True, capture_output=True)
    with platform(authority) as server:
        assert asked(server, SSL_CERT_DIR=Path(f"{folder / 'missing'}:{folder}")) == ANSWERED
        done = commands.invoke("doctor", environment=environment(server, SSL_CERT_DIR=folder / "missing"))
        assert f"SSL_CERT_DIR: {folder / 'missing'} should be" in done.stdout
        monkeypatch.setenv("SSL_CERT_DIR", str(folder))
        trust = ssl_context()
        with urlopen(f"{server.url}/{ANSWERED}", context=trust):
            assert trust.cert_store_stats()["x509_ca"] == 1  # None of certifi's.
    with platform(trustme.CA()) as another:
        assert re.match(
            NO_TOKEN + r"certificate, unable to get local issuer certificate\)", asked(another, SSL_CERT_DIR=folder)
        )


@pytest.mark.parametrize("files", ["one", "two", "two with byte order marks", "two without the last end of line"])
def test_a_platform_that_wants_a_certificate_is_shown_ours(
    authority: trustme.CA, ca: Path, tmp_path: Path, files: str
) -> None:
    clients = trustme.CA()
    ours, certificate, key = clients.issue_cert("me.example"), tmp_path / "certificate.pem", tmp_path / "key.pem"
    if files == "one":
        ours.private_key_and_cert_chain_pem.write_to_path(str(certificate))
    else:
        mark = BOM_UTF8 if "marks" in files else b""
        chain = b"".join(blob.bytes() for blob in ours.cert_chain_pems)
        certificate.write_bytes(mark + (chain.strip() if "without" in files else chain))
        key.write_bytes(mark + ours.private_key_pem.bytes())
    settings = {"CREDHOOK_CLIENT_CERTFILE": certificate} | ({"CREDHOOK_CLIENT_KEYFILE": key} if files != "one" else {})
    with platform(authority, clients) as server:
        assert asked(server, SSL_CERT_FILE=ca, **settings) == ANSWERED
        assert len(server.heads) == 2


@pytest.mark.parametrize("ours", ["none", "another authority's"])
def test_refused_client_certificate_names_the_setting(
    authority: trustme.CA, ca: Path, tmp_path: Path, ours: str
) -> None:
    settings = {"SSL_CERT_FILE": ca}
    if ours != "none":
        settings["CREDHOOK_CLIENT_CERTFILE"] = tmp_path / "certificate.pem"
        blob = trustme.CA().issue_cert("me.example").private_key_and_cert_chain_pem
        blob.write_to_path(str(settings["CREDHOOK_CLIENT_CERTFILE"]))
    with platform(authority, trustme.CA()) as server:
        told = asked(server, **settings)
        assert re.match(NO_TOKEN + r"tls\)", told)
        assert "CREDHOOK_CLIENT_CERTFILE" in told
        assert "CREDHOOK_TOKEN_URL" in told
        assert server.heads == []


async def test_new_connection_uses_the_renewed_client_certificate(
    authority: trustme.CA, ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, certificate = trustme.CA(), tmp_path / "certificate.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    with platform(authority, clients) as server:
        trustme.CA().issue_cert("me.example").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        transport = CurlTransport(60.0, certfile=certificate)
        request = Request("GET", f"{server.url}/p", {}, repeatable=True)
        with pytest.raises(Unanswered):
            await transport.send(request)
        clients.issue_cert("me.example").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        assert (await transport.send(request)).status == 200
        await transport.aclose()
