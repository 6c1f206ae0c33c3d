"""Certificates for signing requests. Specification: Certificate record, Certificates and trusted entities."""

from base64 import b64decode
from typing import Annotated, ClassVar

from pydantic import AfterValidator

from credhook.worker.api.models.base import RequestModel, ResponseModel

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def _one_certificate(value: str) -> str:
    """Accept one PEM certificate. Anything else, a private key above all, does not leave the machine."""
    text = value.strip()
    body = "".join(text.removeprefix(_BEGIN).removesuffix(_END).split())
    try:
        fits = text.startswith(_BEGIN) and text.endswith(_END) and bool(b64decode(body, validate=True))
    except ValueError:
        fits = False
    if not fits:
        raise ValueError("should be one PEM-encoded certificate, from BEGIN CERTIFICATE to END CERTIFICATE")
    return value


PemCertificate = Annotated[str, AfterValidator(_one_certificate)]


class CertificateRequest(RequestModel):
    """A certificate for a signing request, and its intermediates from leaf-adjacent to root-adjacent."""

    certificate: PemCertificate
    parent_certificates: tuple[PemCertificate, ...] | None = None


class CertificateRecord(ResponseModel):
    """An imported certificate. The formats of its fields are not specified, so they stay text."""

    shown: ClassVar = ("id", "certificate_id")

    id: str
    certificate_id: str
    certificate_signing_request: str
    subject_key_identifier: str
    expires_at: str
    created_at: str
    updated_at: str
