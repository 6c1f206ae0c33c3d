"""What is sent to the platform and what it answers, a file for each noun."""

from credhook.worker.api.models.attribute import (
    AnyAttribute,
    AttributeNamespace,
    MdocArray,
    MdocAttribute,
    MdocNamespace,
    MdocValue,
    SdJwtArray,
    SdJwtAttribute,
    SdJwtObject,
    SdJwtValue,
)
from credhook.worker.api.models.certificate import CertificateRecord, CertificateRequest
from credhook.worker.api.models.endpoint import Endpoint, EndpointRequest, EventType
from credhook.worker.api.models.ids import path_name, path_segment, resource_id
from credhook.worker.api.models.issuance import Issuance, IssuedCredential
from credhook.worker.api.models.presentation import Presentation, PresentationError, PresentedCredential
from credhook.worker.api.models.preset import (
    CertificateSigner,
    DidSigner,
    Future,
    MdocPreset,
    MdocPresetRequest,
    MdocValidUntil,
    Preset,
    PresetRequest,
    SdJwtPreset,
    SdJwtPresetRequest,
    SdJwtValidUntil,
)
from credhook.worker.api.models.template import Template
from credhook.worker.api.models.trusted_entity import TrustedDid, TrustedDidRequest, TrustedEntity, TrustedEntityRequest
from credhook.worker.api.models.user import (
    ExternalIdentifier,
    IdentityLink,
    IdentityLinkRequest,
    OnboardingResult,
    User,
    UserRequest,
)
from credhook.worker.api.models.wallet import OfferRequest, WalletCredential

__all__ = [
    "AnyAttribute",
    "AttributeNamespace",
    "CertificateRecord",
    "CertificateRequest",
    "CertificateSigner",
    "DidSigner",
    "Endpoint",
    "EndpointRequest",
    "EventType",
    "ExternalIdentifier",
    "Future",
    "IdentityLink",
    "IdentityLinkRequest",
    "Issuance",
    "IssuedCredential",
    "MdocArray",
    "MdocAttribute",
    "MdocNamespace",
    "MdocPreset",
    "MdocPresetRequest",
    "MdocValidUntil",
    "MdocValue",
    "OfferRequest",
    "OnboardingResult",
    "Presentation",
    "PresentationError",
    "PresentedCredential",
    "Preset",
    "PresetRequest",
    "SdJwtArray",
    "SdJwtAttribute",
    "SdJwtObject",
    "SdJwtPreset",
    "SdJwtPresetRequest",
    "SdJwtValidUntil",
    "SdJwtValue",
    "Template",
    "TrustedDid",
    "TrustedDidRequest",
    "TrustedEntity",
    "TrustedEntityRequest",
    "User",
    "UserRequest",
    "WalletCredential",
    "path_name",
    "path_segment",
    "resource_id",
]
