"""Presets of both formats that the specification allows, with every field that it names."""

from typing import Any

FUTURE = {"days": 0, "months": 6, "years": 1}
SD_JWT: dict[str, Any] = {
    "credentialFormat": "sd-jwt",
    "templateName": "Badge",
    "code": "badge",
    "templateDescription": "Says that somebody wears one.",
    "templateAttributes": {
        "a": {"type": "string", "name": "n", "description": "d", "required": True, "alwaysDisclosed": True}
    },
    "issuerConfig": {"signer": "certificate", "keyType": "P-256"},
    "validUntil": {"start": "issuance", "future": FUTURE},
}
MDOC: dict[str, Any] = {
    "credentialFormat": "mdoc",
    "templateName": "Permit",
    "code": "permit",
    "templateDescription": "Says that somebody may enter.",
    "type": "org.example.permit.1",
    "templateAttributes": {
        "org.example": {"properties": {"a": {"type": "string", "name": "n", "description": "d", "required": True}}}
    },
    "validUntil": {"future": FUTURE},
    "issuerConfig": {"signer": "certificate", "keyType": "Ed25519"},
}
