"""Certificates: signing requests that wait, and the import of what an authority has made of one."""

from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from uuid import uuid4

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from credhook.sandbox.http.errors import Refusal, Source
from credhook.sandbox.http.wire import ABSENT, Wire
from credhook.sandbox.tenant.authority import make_request, pem
from credhook.sandbox.tenant.operations import Operation
from credhook.sandbox.tenant.state import Repository, State
from credhook.sandbox.tenant.tenant import Tenant

#: What reading or checking a hostile certificate may raise.
UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension)


class SigningRequest(Wire):
    """A certificate signing request that waits for its certificate."""

    id: str
    created_at: datetime
    subject: str
    key_type: str
    certificate_signing_request: str


class NewCertificate(Wire):
    """The body of the import; every certificate in PEM, the parents from the leaf's issuer towards the root."""

    certificate: str
    parent_certificates: list[str] = ABSENT


class Chain(Wire):
    """A chain as the sandbox's authority signs it, in the form that the import takes."""

    certificate: str
    parent_certificates: list[str]


class CertificateRecord(Wire):
    """The result of an import (specification, "Certificate record")."""

    id: str
    created_at: datetime
    updated_at: datetime
    certificate_signing_request: str
    subject_key_identifier: str
    certificate_id: str
    expires_at: datetime


def requests(state: State) -> Repository[SigningRequest]:
    """Return every signing request."""
    return state.shelf("csrs", SigningRequest)


def records(state: State) -> Repository[CertificateRecord]:
    """Return every import, by the id of its signing request."""
    return state.shelf("certificates", CertificateRecord)


def seed(state: State, now: datetime) -> None:
    """Make a request for each type of key, since no operation of the specification makes one."""
    for key_type in ("P-256", "Ed25519"):
        csr = make_request(key_type)
        request = SigningRequest(
            id=str(uuid4()),
            created_at=now,
            subject=csr.subject.rfc4514_string(),
            key_type=key_type,
            certificate_signing_request=pem(csr),
        )
        requests(state).put(request.id, request)


def listed(tenant: Tenant) -> list[SigningRequest]:
    """Return the signing requests."""
    return requests(tenant.state).all()


def sign(tenant: Tenant, id: str) -> Chain:  # noqa: A002  The specification's own word.
    """Have the sandbox's authority sign a request; what it returns can be imported as it is.

    Raises:
        Refusal: With 404 for an unknown request.
    """
    leaf, *parents = tenant.authority.sign(_csr(_request(tenant.state, id)))
    return Chain(certificate=leaf, parent_certificates=parents)


def import_(tenant: Tenant, id: str, wanted: NewCertificate) -> CertificateRecord:  # noqa: A002  The specification's own word.
    """Import the certificate for a signing request; importing again renews it.

    Raises:
        Refusal: With 404 for an unknown request; with 400 for what is no certificate, belongs to another key, has
            expired, or does not lead from the leaf towards the root.
    """
    request = _request(tenant.state, id)
    leaf = _read(wanted.certificate, "/certificate")
    parents = [
        _read(text, f"/parentCertificates/{place}") for place, text in enumerate(wanted.parent_certificates or [])
    ]
    try:
        _check(leaf, parents, _csr(request), tenant.now())
        key_id = _key_identifier(leaf)
    except UNREADABLE as problem:
        raise Refusal(400, "A certificate cannot be understood.") from problem
    earlier = records(tenant.state).get(id)
    now = tenant.now()
    record = CertificateRecord(
        id=id,
        created_at=earlier.created_at if earlier else now,
        updated_at=now,
        certificate_signing_request=request.certificate_signing_request,
        subject_key_identifier=key_id,
        certificate_id=str(uuid4()),
        expires_at=leaf.not_valid_after_utc,
    )
    records(tenant.state).put(id, record)
    return record


def _request(state: State, id_: str) -> SigningRequest:
    request = requests(state).get(id_)
    if request is None:
        raise Refusal(404, f"There is no certificate signing request {id_}.")
    return request


def _csr(request: SigningRequest) -> x509.CertificateSigningRequest:
    return x509.load_pem_x509_csr(request.certificate_signing_request.encode("ascii"))


def _read(text: str, place: str) -> x509.Certificate:
    try:
        (certificate,) = x509.load_pem_x509_certificates(text.encode("ascii"))
    except UNREADABLE as problem:
        raise Refusal(400, "This is not one certificate in PEM.", source=Source(pointer=place)) from problem
    return certificate


def _check(
    leaf: x509.Certificate,
    parents: Iterable[x509.Certificate],
    csr: x509.CertificateSigningRequest,
    now: datetime,
) -> None:
    if _key(leaf) != _key(csr):
        raise Refusal(400, "The certificate is for another key.", source=Source(pointer="/certificate"))
    if leaf.not_valid_after_utc <= now:
        raise Refusal(400, "The certificate has expired.", source=Source(pointer="/certificate"))
    chain = [leaf, *(parent for parent in parents if not _issued(parent, parent))]
    if not all(_issued(child, parent) for child, parent in pairwise(chain)):
        raise Refusal(
            400,
            "The parent certificates should lead from the issuer of the certificate towards the root.",
            source=Source(pointer="/parentCertificates"),
        )


def _issued(child: x509.Certificate, parent: x509.Certificate) -> bool:
    """Say whether a certificate was signed by another, or by itself as roots are."""
    try:
        child.verify_directly_issued_by(parent)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def _key(holder: x509.Certificate | x509.CertificateSigningRequest) -> bytes:
    return holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _key_identifier(certificate: x509.Certificate) -> str:
    """Return the subject key identifier in hexadecimal: the certificate's own, or the one of RFC 5280, 4.2.1.2."""
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest.hex()
    except x509.ExtensionNotFound:
        return x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest.hex()


OPERATIONS = (
    Operation(
        "POST",
        "/me-creds/api/certificates/csrs/{id}/import",
        import_,
        "Import the certificate for a signing request.",
        refusals=(404,),
    ),
    Operation("GET", "/sandbox/csrs", listed, "List the certificate signing requests."),
    Operation("POST", "/sandbox/csrs/{id}/sign", sign, "Sign a request with the sandbox's authority.", refusals=(404,)),
)
