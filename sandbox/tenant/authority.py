"""A certificate authority for trying the import: a root, an intermediate, and the requests that wait for it."""

from datetime import UTC, datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

#: Validity of what the authority signs. It lives as long as the process, and these outlive it.
VALIDITY = timedelta(days=365)


class Authority:
    """Signs certificate requests with an intermediate. Its keys live in memory and are new at every start."""

    def __init__(
        self,
        root: x509.Certificate,
        intermediate: x509.Certificate,
        key: EllipticCurvePrivateKey,
    ) -> None:
        self._root = root
        self._intermediate = intermediate
        self._key = key

    @classmethod
    def create(cls) -> Self:
        """Make up a root and an intermediate."""
        root_key, key = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
        root_name, name = _name("Sandbox Root"), _name("Sandbox Intermediate")
        root = _certify(root_name, root_key.public_key(), root_name, root_key, path_length=1)
        intermediate = _certify(name, key.public_key(), root_name, root_key, path_length=0)
        return cls(root, intermediate, key)

    def sign(self, request: x509.CertificateSigningRequest) -> list[str]:
        """Return a chain in PEM for a request: the certificate, the intermediate, the root."""
        leaf = _certify(request.subject, request.public_key(), self._intermediate.subject, self._key)
        return [pem(certificate) for certificate in (leaf, self._intermediate, self._root)]


def pem(thing: x509.Certificate | x509.CertificateSigningRequest) -> str:
    """Return the PEM form."""
    return thing.public_bytes(Encoding.PEM).decode("ascii")


def make_request(key_type: str) -> x509.CertificateSigningRequest:
    """Return a signing request for a new key, `P-256` or `Ed25519`. The key itself is forgotten: nothing uses it."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(f"Sandbox Issuer {key_type}"))
    if key_type == "Ed25519":
        return builder.sign(Ed25519PrivateKey.generate(), None)
    return builder.sign(generate_private_key(SECP256R1()), SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certify(
    subject: x509.Name,
    key: CertificatePublicKeyTypes,
    issuer: x509.Name,
    issuer_key: EllipticCurvePrivateKey,
    *,
    path_length: int | None = None,
) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.BasicConstraints(ca=path_length is not None, path_length=path_length), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .sign(issuer_key, SHA256())
    )
