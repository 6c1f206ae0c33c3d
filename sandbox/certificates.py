"""Certificates: signing requests, the import of signed certificates, and trusted entities."""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from uuid import uuid4

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, types
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import Field, JsonValue
from starlette.exceptions import HTTPException

from credhook.sandbox.operations import operation
from credhook.sandbox.tenant import Tenant
from credhook.sandbox.wire import StampedModel, WireModel


class SigningRequest(WireModel):
    """A certificate signing request that waits for its certificate."""

    id: str
    subject: str
    key_type: str
    certificate_signing_request: str


class NewCertificate(WireModel):
    """The body of the import: certificates in PEM, the parents from the leaf's issuer towards the root."""

    certificate: str
    parent_certificates: list[str] = Field(default_factory=list)


class ImportedCertificate(StampedModel):
    """The result of an import (specification, "Certificate record")."""

    certificate_signing_request: str
    subject_key_identifier: str
    certificate_id: str
    expires_at: datetime


class NamedDid(WireModel):
    """A DID and its name."""

    did: str
    name: str


class NewTrustedEntity(WireModel):
    """The body of `POST /trusted-entities`."""

    name: str
    dids: list[NamedDid] = Field(default_factory=list)
    certificates: list[JsonValue] = Field(default_factory=list)


class RegisteredEntity(StampedModel, NewTrustedEntity):
    """A trusted entity (specification, "Trusted entity")."""


@cache
def _authority() -> tuple[x509.Certificate, x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a root, an intermediate and the intermediate's key, for trying the import. All are new at every start."""
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root_name, name = map(x509.Name.from_rfc4514_string, ("CN=Sandbox Root", "CN=Sandbox Intermediate"))
    root = _certify(root_name, root_key.public_key(), root_name, root_key, path_length=1)
    return root, _certify(name, key.public_key(), root_name, root_key, path_length=0), key


def _certify(
    subject: x509.Name,
    key: types.CertificatePublicKeyTypes,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
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
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=path_length is not None, path_length=path_length), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .sign(issuer_key, SHA256())
    )


def _pem(thing: x509.Certificate | x509.CertificateSigningRequest) -> str:
    return thing.public_bytes(Encoding.PEM).decode("ascii")


def load_fixtures(tenant: Tenant) -> None:
    """Create a request for each type of key, since no operation of the specification creates one."""
    for key_type in ("P-256", "Ed25519"):
        subject = f"CN=Sandbox Issuer {key_type}"
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name.from_rfc4514_string(subject))
        is_edwards = key_type == "Ed25519"
        key = ed25519.Ed25519PrivateKey.generate() if is_edwards else ec.generate_private_key(ec.SECP256R1())
        csr = builder.sign(key, None if is_edwards else SHA256())
        request = SigningRequest(
            id=str(uuid4()),
            subject=subject,
            key_type=key_type,
            certificate_signing_request=_pem(csr),
        )
        tenant.state.put(request.id, request)


@operation("GET", "/sandbox/csrs")
def list_requests(tenant: Tenant) -> list[SigningRequest]:
    """Return the signing requests."""
    return tenant.state.all(SigningRequest)


@operation("POST", "/sandbox/csrs/{id}/sign")
def sign_request(tenant: Tenant, id_: str) -> NewCertificate:
    """Sign a request with the sandbox's authority and return the body of its import."""
    (root, intermediate, key), csr = _authority(), _csr(tenant.state.find(SigningRequest, id_, "signing request"))
    leaf = _certify(csr.subject, csr.public_key(), intermediate.subject, key)
    return NewCertificate(certificate=_pem(leaf), parent_certificates=[_pem(intermediate), _pem(root)])


@operation("POST", "/me-creds/api/certificates/csrs/{id}/import")
def import_certificate(tenant: Tenant, id_: str, body: NewCertificate) -> ImportedCertificate:
    """Import the certificate for a signing request. Another import renews it.

    Answer 404 for an unknown request, and 400 for a certificate that cannot be read, belongs to another key, has
    expired, or whose parents do not lead towards the root.
    """
    request = tenant.state.find(SigningRequest, id_, "signing request")
    leaf, *parents = map(_read, (body.certificate, *body.parent_certificates))
    now = tenant.now()
    if leaf.public_key() != _csr(request).public_key():
        raise HTTPException(400, "The certificate is for another key.")
    if leaf.not_valid_after_utc <= now:
        raise HTTPException(400, "The certificate has expired.")
    chain = [leaf, *(parent for parent in parents if not _issued(parent, parent))]
    if not all(_issued(child, parent) for child, parent in pairwise(chain)):
        raise HTTPException(400, "The parent certificates should lead from the leaf's issuer towards the root.")
    earlier = tenant.state.get(ImportedCertificate, id_)
    record = ImportedCertificate(
        id=id_,
        created_at=earlier.created_at if earlier else now,
        updated_at=now,
        certificate_signing_request=request.certificate_signing_request,
        subject_key_identifier=x509.SubjectKeyIdentifier.from_public_key(leaf.public_key()).digest.hex(),
        certificate_id=str(uuid4()),
        expires_at=leaf.not_valid_after_utc,
    )
    tenant.state.put(id_, record)
    return record


def _csr(request: SigningRequest) -> x509.CertificateSigningRequest:
    return x509.load_pem_x509_csr(request.certificate_signing_request.encode("ascii"))


def _read(text: str) -> x509.Certificate:
    try:
        (certificate,) = x509.load_pem_x509_certificates(text.encode())
    except ValueError as problem:
        raise HTTPException(400, "This is not one certificate in PEM.") from problem
    return certificate


def _issued(child: x509.Certificate, parent: x509.Certificate) -> bool:
    """Return True if `parent` signed `child`. A root signed itself."""
    try:
        child.verify_directly_issued_by(parent)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


@operation("POST", "/me-creds/api/trusted-entities", status=201)
def create_trusted_entity(tenant: Tenant, body: NewTrustedEntity) -> RegisteredEntity:
    """Register an issuer. Certificates are kept unchanged, since the specification does not show their shape."""
    now = tenant.now()
    entity = RegisteredEntity(id=str(uuid4()), created_at=now, updated_at=now, **dict(body))
    tenant.state.put(entity.id, entity)
    return entity
