"""What a new sandbox begins with: a template of each format, and requests that wait for a certificate."""

from typing import Any

from pydantic import TypeAdapter

from credhook.sandbox.resources import certificates, presets
from credhook.sandbox.tenant.tenant import Tenant

#: Template of an issuance for which none is named.
MEMBERSHIP = f"{presets.AUTHOR}:membership"

#: What a membership says where nobody has said anything else. Nobody is called that.
MEMBER: dict[str, Any] = {"givenName": "Ada", "familyName": "Example", "memberSince": "2020-02-20"}

_PRESETS: tuple[dict[str, Any], ...] = (
    {
        "credentialFormat": "sd-jwt",
        "templateName": "Membership",
        "code": "membership",
        "templateDescription": "Says that somebody is a member.",
        "templateAttributes": {
            "givenName": {"type": "string", "name": "Given name"},
            "familyName": {"type": "string", "name": "Family name"},
            "memberSince": {"type": "date", "name": "Member since", "alwaysDisclosed": True},
        },
        "validUntil": {"start": "issuance", "future": {"days": 0, "months": 0, "years": 1}},
    },
    {
        "credentialFormat": "mdoc",
        "templateName": "Permit",
        "code": "permit",
        "templateDescription": "Says that somebody may enter.",
        "type": "example.sandbox.permit.1",
        "templateAttributes": {
            "example.sandbox.permit": {
                "properties": {
                    "holder": {"type": "string", "required": True},
                    "portrait": {"type": "binary"},
                    "zones": {"type": "array", "items": {"type": "string"}},
                }
            }
        },
        "validUntil": {"future": {"days": 30, "months": 0, "years": 0}},
    },
)


def load_fixtures(tenant: Tenant) -> None:
    """Give a sandbox that has nothing yet something to work with."""
    if presets.shelf(tenant.state).count():
        return
    with tenant.state.together():
        for preset in _PRESETS:
            presets.create(tenant, TypeAdapter(presets.NewPreset).validate_python(preset))
        certificates.seed(tenant.state, tenant.now())
