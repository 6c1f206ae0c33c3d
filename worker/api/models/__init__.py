"""What is sent to the platform and what it answers, a file for each noun."""

from worker.api.models.attribute import (
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
from worker.api.models.certificate import CertificateRecord, CertificateRequest
from worker.api.models.endpoint import Endpoint, EndpointRequest, EventType
from worker.api.models.ids import path_name, resource_id
from worker.api.models.issuance import Issuance, IssuedCredential
from worker.api.models.presentation import Presentation, PresentationError, PresentedCredential
from worker.api.models.preset import (
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
from worker.api.models.template import Template
from worker.api.models.trusted_entity import (
    TrustedDid,
    TrustedDidRequest,
    TrustedEntity,
    TrustedEntityRequest,
)
from worker.api.models.user import (
    ExternalIdentifier,
    IdentityLink,
    IdentityLinkRequest,
    OnboardingResult,
    User,
    UserRequest,
)
from worker.api.models.wallet import OfferRequest, WalletCredential

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
    "resource_id",
]
