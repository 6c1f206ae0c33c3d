"""What we send, held to the specification before it leaves the machine."""

import copy
import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from credhook.worker.api.models import (
    CertificateRequest,
    EndpointRequest,
    OfferRequest,
    PresetRequest,
    TrustedEntityRequest,
    UserRequest,
)

SD_JWT: dict[str, Any] = {
    "credentialFormat": "sd-jwt",
    "templateName": "Membership",
    "code": "membership-1",
    "templateDescription": "Shows that someone is a member",
    "templateAttributes": {
        "given": {"type": "string", "name": "Given name", "description": "d", "required": True},
        "born": {"type": "date", "alwaysDisclosed": False},
        "points": {"type": "number"},
        "active": {"type": "boolean"},
        "address": {
            "type": "object",
            "properties": {"lines": {"type": "array", "items": {"type": "string"}}, "any": {"type": "array"}},
        },
    },
    "issuerConfig": {"signer": "certificate", "keyType": "P-256"},
    "validUntil": {"start": "validFrom", "future": {"days": 0, "months": 0, "years": 1}},
}

MDOC: dict[str, Any] = {
    "credentialFormat": "mdoc",
    "templateName": "Licence",
    "code": "mdl",
    "templateDescription": "d",
    "type": "org.iso.18013.5.1.mDL",
    "templateAttributes": {
        "org.iso.18013.5.1": {
            "properties": {
                "portrait": {"type": "binary", "required": True},
                "names": {"type": "array", "items": {"type": "string"}},
            }
        }
    },
    "validUntil": {"future": {"days": 1, "months": 2, "years": 3}},
    "issuerConfig": {"signer": "certificate"},
}

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\nAAAA\n-----END CERTIFICATE-----\n"

PRESETS: TypeAdapter[Any] = TypeAdapter(PresetRequest)


def changed(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """The document with the value at a dotted path replaced, or removed if it is `...`."""
    result = copy.deepcopy(document)
    *folders, last = path.split(".")
    place = result
    for folder in folders:
        place = place.setdefault(folder, {})
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return result


@pytest.mark.parametrize("document", [SD_JWT, MDOC], ids=["sd-jwt", "mdoc"])
def test_a_preset_request_travels_as_it_was_written(document: dict[str, Any]) -> None:
    request = PRESETS.validate_python(document)
    assert json.loads(request.model_dump_json(exclude_none=True)) == document


@pytest.mark.parametrize(
    ("document", "path", "value"),
    [
        *((SD_JWT, "code", code) for code in ("a", "0", "-", "a-b-0")),
        (SD_JWT, "issuerConfig", ...),
        (SD_JWT, "issuerConfig", {"signer": "did:web"}),
        (SD_JWT, "issuerConfig", {"signer": "certificate", "keyType": "Ed25519"}),
        (SD_JWT, "validUntil", ...),
        (SD_JWT, "validUntil.start", "issuance"),
        (SD_JWT, "templateAttributes", {}),
        (MDOC, "issuerConfig", ...),
        (MDOC, "issuerConfig.keyType", "P-256"),
        (MDOC, "type", "x"),
        *(
            (MDOC, "templateAttributes.n", {"properties": {"a": {"type": kind}}})
            for kind in ("string", "number", "boolean", "date", "binary", "array")
        ),
    ],
)
def test_what_the_specification_allows_is_accepted(document: dict[str, Any], path: str, value: object) -> None:
    PRESETS.validate_python(changed(document, path, value))


@pytest.mark.parametrize(
    ("document", "path", "value"),
    [
        *((SD_JWT, "code", code) for code in ("", "A", "a_b", "a b", "ä", "a\n", "a/b", 7, None, ...)),
        *((MDOC, "code", code) for code in ("", "A", "a\n", ...)),
        *((SD_JWT, "credentialFormat", name) for name in ("SD-JWT", "vc+sd-jwt", "", None, ...)),
        *((each, name, ...) for each in (SD_JWT, MDOC) for name in ("templateName", "templateDescription")),
        *((each, "templateAttributes", ...) for each in (SD_JWT, MDOC)),
        (SD_JWT, "unknown", 1),
        (SD_JWT, "type", "x"),
        *((SD_JWT, "validUntil.start", start) for start in ("validUntil", "", None, ...)),
        (SD_JWT, "validUntil.future", ...),
        *((SD_JWT, f"validUntil.future.{part}", ...) for part in ("days", "months", "years")),
        *((SD_JWT, "validUntil.future.days", days) for days in (-1, 1.5, "1", True, None)),
        *((SD_JWT, "issuerConfig", {"signer": signer}) for signer in ("did:key", "", None)),
        (SD_JWT, "issuerConfig", {"signer": "did:web", "keyType": "P-256"}),
        (SD_JWT, "issuerConfig.keyType", "P-384"),
        *((SD_JWT, "templateAttributes.a", {"type": kind}) for kind in ("binary", "object", "text", "", None)),
        (SD_JWT, "templateAttributes.a", {}),
        (SD_JWT, "templateAttributes.a", {"type": "string", "properties": {}}),
        (SD_JWT, "templateAttributes.a", {"type": "string", "required": "yes"}),
        (SD_JWT, "templateAttributes.a", {"type": "string", "alwaysDisclosed": 1}),
        (SD_JWT, "templateAttributes.a", {"type": "object", "properties": {"b": {"type": "binary"}}}),
        (SD_JWT, "templateAttributes.a", {"type": "array", "items": {"type": "object"}}),
        (MDOC, "type", ""),
        (MDOC, "type", ...),
        (MDOC, "validUntil", ...),
        (MDOC, "validUntil.start", "issuance"),
        (MDOC, "validUntil.future.years", -1),
        (MDOC, "validUntil.future.months", ...),
        (MDOC, "issuerConfig", {"signer": "did:web"}),
        (MDOC, "issuerConfig", {}),
        (MDOC, "templateAttributes.a", {"type": "string"}),
        (MDOC, "templateAttributes.a", {}),
        (MDOC, "templateAttributes.a", {"properties": {"b": {"type": "object", "properties": {}}}}),
        (MDOC, "templateAttributes.a", {"properties": {"b": {"type": "string", "alwaysDisclosed": True}}}),
        (MDOC, "templateAttributes.a", {"properties": {"b": {"type": "array", "items": {"type": "object"}}}}),
    ],
)
def test_a_preset_outside_of_the_specification_is_refused(document: dict[str, Any], path: str, value: object) -> None:
    with pytest.raises(ValidationError):
        PRESETS.validate_python(changed(document, path, value))


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/",
        "https://",
        "https:///hooks",
        "a.example/hooks",
        "ftp://a.example",
        "",
        "https://a.example/ä",
        "https://a.example/a b",
        "https://a.example/\n",
        "https://a.example:99999/",
        "https://[::1",
    ],
)
def test_an_endpoint_needs_an_https_url(url: str) -> None:
    with pytest.raises(ValidationError):
        EndpointRequest(url=url)


@pytest.mark.parametrize(
    "url", ["https://a.example", "https://127.0.0.1:8443/webhooks/s3cret?x=y", "HTTPS://A.example"]
)
def test_an_endpoints_url_is_sent_as_it_was_given(url: str) -> None:
    assert EndpointRequest(url=url).model_dump(exclude_none=True) == {"url": url}


@pytest.mark.parametrize("types", [["openid4vc.issuance.revoked"], [""], [], "openid4vc.issuance.failed", [None]])
def test_an_endpoint_filters_by_the_ten_types_or_not_at_all(types: Any) -> None:
    with pytest.raises(ValidationError):
        EndpointRequest(url="https://a.example", filter_types=types)


@pytest.mark.parametrize("id_", ["", "..", "a/b", "a" * 129])
def test_an_endpoints_own_id_must_be_usable_in_a_path(id_: str) -> None:
    with pytest.raises(ValidationError):
        EndpointRequest(url="https://a.example", id=id_)


@pytest.mark.parametrize("fields", [{}, {"firstName": "Ada"}, {"email": ""}, {"username": ""}, {"email": None}])
def test_a_user_needs_an_email_or_a_username(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        UserRequest.model_validate(fields)


@pytest.mark.parametrize("fields", [{"email": "a@b.example"}, {"username": "ada"}, {"email": "a@b", "username": "ada"}])
def test_a_user_is_known_by_either(fields: dict[str, Any]) -> None:
    assert UserRequest.model_validate(fields).model_dump(exclude_none=True) == fields


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MIIB",
        PEM.replace("CERTIFICATE", "PRIVATE KEY"),
        PEM + PEM.replace("CERTIFICATE", "PRIVATE KEY"),
        PEM + PEM,
        PEM.replace("AAAA", "AA!A"),
        "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
        PEM.removesuffix("-----\n"),
    ],
    ids=["empty", "bare", "key", "with key", "two", "junk", "hollow", "cut"],
)
def test_only_one_pem_certificate_at_a_time_leaves_the_machine(text: str) -> None:
    with pytest.raises(ValidationError):
        CertificateRequest(certificate=text)
    with pytest.raises(ValidationError):
        CertificateRequest(certificate=PEM, parent_certificates=(PEM, text))


def test_a_certificate_is_sent_with_its_parents_in_order() -> None:
    other = PEM.replace("AAAA", "BBBB")
    request = CertificateRequest(certificate=PEM, parent_certificates=(other, PEM))
    assert request.model_dump(mode="json") == {"certificate": PEM, "parentCertificates": [other, PEM]}


def test_an_offer_must_not_be_empty() -> None:
    with pytest.raises(ValidationError):
        OfferRequest(credential_offer="")


@pytest.mark.parametrize(
    "fields", [{}, {"name": "n", "dids": [{"did": "did:web:a"}]}, {"name": "n", "dids": ["did:web:a"]}]
)
def test_a_trusted_entity_needs_a_name_and_each_did_as_well(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TrustedEntityRequest.model_validate(fields)
