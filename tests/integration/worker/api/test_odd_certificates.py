"""The platform's certificate as it may be wrong: each reason has a word, OpenSSL's reason and advice of its own."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from credhook.worker.api.errors import Unavailable, hint
from credhook.worker.api.token import ClientCredentials
from support.platform.scripted_server import TOKEN, answering, presentation
from support.platform.transports import api_over


@dataclass(frozen=True)
class Certified:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def certified(
    name: str,
    issuer: Certified | None = None,
    *extensions: x509.ExtensionType,
    names: Sequence[str] = ("localhost",),
    days: tuple[int, int] = (-1, 30),
) -> Certified:
    """Issue a certificate that is valid between two days from now. Without an issuer it is signed by itself."""
    key, now = generate_private_key(SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(
        issuer.certificate.subject if issuer else subject,
        subject,
        key.public_key(),
        x509.random_serial_number(),
        now + timedelta(days=days[0]),
        now + timedelta(days=days[1]),
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, names))), critical=False)
    return Certified(builder.sign(issuer.key if issuer else key, SHA256()), key)


AUTHORITY = x509.BasicConstraints(ca=True, path_length=None)
ROOT = certified("Root", None, AUTHORITY, names=())
EXPIRED_ROOT = certified("Old root", None, AUTHORITY, names=(), days=(-9, -1))
OTHER_ROOT = certified("Other root", None, AUTHORITY, names=())
INTERMEDIATE = certified("Intermediate", ROOT, AUTHORITY, names=())
LEAF = certified("Leaf", ROOT, x509.BasicConstraints(ca=False, path_length=None))
SELF_SIGNED = certified("localhost", None, AUTHORITY)
FOR_CLIENTS = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
#: Case → the chain that the server sends, the word for its mistake, and words of OpenSSL and of the advice. Without a
#: word there is no mistake.
CASES: dict[str, tuple[Sequence[Certified], str, str, str]] = {
    "good": ([certified("x", ROOT)], "", "", ""),
    "with its intermediate": ([certified("x", INTERMEDIATE), INTERMEDIATE], "", "", ""),
    "no other name than its common name": ([certified("localhost", ROOT, names=())], "", "", ""),
    "expired": ([certified("x", ROOT, days=(-9, -1))], "certificate_expired", "has expired", "renewed"),
    "expired authority": ([certified("x", EXPIRED_ROOT)], "certificate_expired", "has expired", "authority's"),
    "not valid yet": ([certified("x", ROOT, days=(9, 30))], "certificate_early", "not yet valid", "clock"),
    "other name": ([certified("x", ROOT, names=["x.example"])], "certificate_name", "", "the URL's host"),
    "no name": ([certified("x", ROOT, names=())], "certificate_name", "", "the URL's host"),
    "self-signed": ([certified("localhost")], "certificate_self_signed", "self-signed", "SSL_CERT_FILE"),
    "self-signed authority": ([SELF_SIGNED], "certificate_self_signed", "self-signed", "SSL_CERT_FILE"),
    "unknown authority": ([certified("x", OTHER_ROOT)], "certificate", "local issuer", "SSL_CERT_FILE"),
    "intermediate not sent": ([certified("x", INTERMEDIATE)], "certificate", "local issuer", "intermediate"),
    "signed by a leaf": ([certified("x", LEAF), LEAF], "certificate_authority", "invalid CA", "sign others"),
    "for clients": ([certified("x", ROOT, FOR_CLIENTS)], "certificate_unfit", "purpose", "for a server"),
}


def tls(chain: Sequence[Certified], folder: Path) -> ssl.SSLContext:
    file = folder / "server.pem"
    key = chain[0].key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(b"".join(each.pem for each in chain) + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


@pytest.mark.parametrize("case", CASES)
async def test_error_tells_what_is_wrong_with_the_certificate(
    case: str, carrier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, cause, reason, advice = CASES[case]
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(ROOT.pem + EXPIRED_ROOT.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with answering(lambda *_: presentation("p"), tls(chain, tmp_path)) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        async with api_over(carrier, url, ClientCredentials(url + TOKEN, "me", "s3cret"), timeout=5.0) as api:
            if not cause:
                assert (await api.presentations.get("p")).id == "p"
                return
            with pytest.raises(Unavailable) as caught:
                await api.presentations.get("p")
    assert caught.value.cause == cause
    assert reason in str(caught.value)
    assert advice in hint(caught.value)
    assert "x.example" not in str(caught.value)
    assert ("SSL_CERT_FILE" in hint(caught.value)) is (cause in {"certificate", "certificate_self_signed"})


async def test_an_authority_that_is_trusted_may_be_the_servers_own_certificate(
    carrier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(SELF_SIGNED.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    with answering(lambda *_: presentation("p"), tls([SELF_SIGNED], tmp_path)) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        async with api_over(carrier, url, ClientCredentials(url + TOKEN, "me", "s3cret"), timeout=5.0) as api:
            assert (await api.presentations.get("p")).id == "p"
