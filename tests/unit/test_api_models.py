import copy
import json
import pickle
from datetime import datetime
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from rich.pretty import pretty_repr

from credhook.worker.api import models
from credhook.worker.api.models import (
    CertificateRequest,
    Endpoint,
    EndpointRequest,
    Issuance,
    OfferRequest,
    Presentation,
    PresetRequest,
    Template,
    TrustedEntityRequest,
    UserRequest,
    WalletCredential,
    path_name,
    resource_id,
)
from credhook.worker.api.models.base import Wire, mismatch

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


PERSONAL = "ada.lovelace@private.example"


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (UserRequest, {"email": {"is": PERSONAL}, "firstName": [PERSONAL], "nickname": PERSONAL}),
        (OfferRequest, {"credentialOffer": [PERSONAL]}),
        (CertificateRequest, {"certificate": PERSONAL}),
        (EndpointRequest, {"url": PERSONAL, "filterTypes": [PERSONAL]}),
        (WalletCredential, {"id": PERSONAL, "claims": PERSONAL, "iat": PERSONAL, "vct": ""}),
        (Presentation, {"id": "p", "status": {"is": PERSONAL}, "credentials": PERSONAL}),
    ],
)
def test_no_validation_error_repeats_the_input(model: type[Wire], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields)
    assert PERSONAL not in str(caught.value)
    assert PERSONAL not in repr(caught.value)
    assert PERSONAL not in mismatch(caught.value)


# What comes back.


@pytest.mark.parametrize("status", ["verified", "VERIFIED", "Verified"])
def test_a_status_is_compared_without_case(status: str) -> None:
    assert Presentation(id="p", status=status).is_("verified")
    assert not Presentation(id="p", status=status).is_("expired", "rejected")
    assert Issuance(id="i", status="partiallyIssued").is_("PARTIALLYISSUED", "completed")


@pytest.mark.parametrize(
    ("status", "valid", "trusted"),
    [
        ("verified", [True], True),
        ("VERIFIED", [True, True], True),
        ("verified", [True, False], False),
        ("verified", [True, None], False),
        ("verified", ["true"], False),
        ("verified", [1], False),
        ("verified", [], False),
        ("ANSWERED", [True], False),
        ("rejected", [True], False),
        ("verified!", [True], False),
    ],
)
def test_a_presentation_is_trusted_only_if_everything_says_so(status: str, valid: list[Any], trusted: bool) -> None:
    credentials = [{"isValid": each} for each in valid]
    detail = {"id": "p", "status": status, "credentials": credentials}
    assert Presentation.model_validate(detail).trusted is trusted


def test_a_credential_that_does_not_say_is_not_trusted() -> None:
    assert not Presentation.model_validate({"id": "p", "status": "verified", "credentials": [{}]}).trusted
    assert not Presentation.model_validate({"id": "p", "status": "verified", "credentials": None}).trusted
    assert not Presentation.model_validate({"id": "p", "status": "verified"}).trusted


@pytest.mark.parametrize(
    ("credential", "attributes"),
    [
        ({"attributes": {"a": 1}}, {"a": 1}),
        ({"presentedAttributes": {"a": 1}}, {"a": 1}),
        ({"attributes": None, "presentedAttributes": {"a": 1}}, {"a": 1}),
        ({"attributes": {}, "presentedAttributes": {"a": 1}}, {"a": 1}),
        ({"attributes": {"a": 1}, "presentedAttributes": {"b": 2}}, {"a": 1}),
        ({"attributes": {}}, {}),
        ({"attributes": None}, None),
        ({}, None),
    ],
)
def test_attributes_are_read_by_either_name(credential: dict[str, Any], attributes: dict[str, Any] | None) -> None:
    presentation = Presentation.model_validate({"id": "p", "status": "verified", "credentials": [credential]})
    assert presentation.credentials[0].attributes == attributes
    assert presentation.has_data is bool(attributes)


@pytest.mark.parametrize(
    ("error", "message"),
    [("declined", "declined"), ({"message": "declined", "code": 7}, "declined"), ({"code": 7}, None), (["?"], None)],
)
def test_the_error_of_a_presentation_is_text_or_object(error: object, message: str | None) -> None:
    presentation = Presentation.model_validate({"id": "p", "status": "failed", "error": error})
    assert presentation.error is not None
    assert presentation.error.message == message
    assert Presentation.model_validate({"id": "p", "status": "failed", "error": None}).error is None


def test_fields_that_we_do_not_know_are_kept() -> None:
    detail = {
        "id": "p",
        "status": "verified",
        "verifierId": "v",
        "credentials": [{"isValid": True, "attributes": {"a": 1}, "holder": {"kid": "k"}}],
        "createdAt": "2026-11-01T10:00:00.000Z",
        "expiresAt": "in a while",
    }
    presentation = Presentation.model_validate(detail)
    assert presentation.model_extra == {"verifierId": "v"}
    assert isinstance(presentation.created_at, datetime)
    assert presentation.expires_at == "in a while"
    written = presentation.model_dump(mode="json", exclude_unset=True)
    assert written == detail | {"createdAt": "2026-11-01T10:00:00Z"}


def test_an_issuance_is_read_with_little_and_with_much() -> None:
    assert Issuance.model_validate({"id": "iss_1", "status": "offered"}).credentials == ()
    issuance = Issuance.model_validate(
        {
            "id": "iss_1",
            "status": "completed",
            "credentials": [{"id": "c", "status": "issued", "revocable": True, "index": 3}],
            "offerUri": "openid-credential-offer://x",
            "exchange": "oid4vci",
            "format": "vc+sd-jwt",
        }
    )
    assert issuance.credentials[0].revocable is True


def test_a_template_says_whether_it_is_archived() -> None:
    template = {"id": "t", "name": "n", "format": "sd-jwt-vc", "type": "https://a.example/t", "archivedAt": None}
    assert not Template.model_validate(template).archived
    assert Template.model_validate(template | {"archivedAt": "2026-11-01T10:00:00Z"}).archived


WALLET = {
    "id": "0b0e6d0c-7a43-4c6c-8a39-6b8a0c6a7a11",
    "claims": {"name": "Ada", "deep": {"list": [1, True, None]}},
    "iat": "2026-11-01T10:00:00Z",
    "status": "accepted",
    "format": "vc+sd-jwt",
    "vct": "v",
}


@pytest.mark.parametrize(
    "change",
    [
        {"id": "not-a-uuid"},
        {"claims": []},
        {"iat": "yesterday"},
        {"vct": ""},
        {"vct": "v" * 257},
        {"iss": ""},
        {"iss": "i" * 513},
        {"status": None},
        {"format": None},
    ],
    ids=str,
)
def test_a_wallet_credential_out_of_its_limits_is_not_read(change: dict[str, Any]) -> None:
    WalletCredential.model_validate(WALLET | {"vct": "v" * 256, "iss": "i" * 512})
    with pytest.raises(ValidationError):
        WalletCredential.model_validate(WALLET | change)


def test_an_endpoint_may_know_more_types_than_we_do() -> None:
    endpoint = Endpoint.model_validate({"id": "e", "url": "https://a.example", "filterTypes": ["x.y.z"]})
    assert endpoint.filter_types == ("x.y.z",)


# What nobody gets to see, and what nobody can change.

SECRET = "Xq7-secret"


def every_answer() -> list[Wire]:
    """One of each model whose fields are personal or secret, filled with one word, an unknown field included."""
    extra = {"somethingNew": SECRET}
    time = "2026-11-01T10:00:00Z"
    documents: list[tuple[type[Wire], dict[str, Any]]] = [
        (models.User, {"id": "u", **dict.fromkeys(("username", "email", "firstName", "lastName"), SECRET)} | extra),
        (models.OnboardingResult, {"email": SECRET, "tempPassword": SECRET} | extra),
        (models.ExternalIdentifier, {"externalIdentifier": SECRET} | extra),
        (models.IdentityLink, {"username": SECRET, "idpAlias": SECRET, "linked": True} | extra),
        (models.WalletCredential, WALLET | {"claims": {"a": SECRET}, "iss": SECRET} | extra),
        (
            models.CertificateRecord,
            {"id": "c", "certificateId": "d", "expiresAt": "e", "createdAt": "e", "updatedAt": "e"}
            | {"certificateSigningRequest": SECRET, "subjectKeyIdentifier": SECRET}
            | extra,
        ),
        (
            models.TrustedEntity,
            {"id": "t", "name": SECRET, "createdAt": time, "updatedAt": time, "certificates": [SECRET]}
            | {"dids": [{"did": SECRET, "name": SECRET}]}
            | extra,
        ),
        (models.Endpoint, {"id": "e", "url": f"https://a.example/{SECRET}"} | extra),
        (
            models.Issuance,
            {"id": "i", "status": "offered", "offerUri": SECRET, "offerQrUri": SECRET, "credentials": [extra]} | extra,
        ),
        (
            models.Presentation,
            {"id": "p", "status": "verified", "authorizationRequestUri": SECRET, "error": SECRET}
            | {"credentials": [{"name": SECRET, "attributes": {SECRET: SECRET}, "issues": [SECRET]} | extra]}
            | extra,
        ),
        (models.UserRequest, dict.fromkeys(("email", "username", "firstName", "externalIdentifier"), SECRET)),
        (models.OfferRequest, {"credentialOffer": SECRET}),
        (models.EndpointRequest, {"url": f"https://a.example/{SECRET}"}),
        (models.TrustedEntityRequest, {"name": SECRET, "certificates": [SECRET]}),
    ]
    return [model.model_validate(document) for model, document in documents]


@pytest.mark.parametrize("value", every_answer(), ids=lambda value: type(value).__name__)
def test_no_repr_shows_personal_data_or_unknown_fields(value: Wire) -> None:
    assert SECRET in value.model_dump_json()
    shown = f"{value!r} {value} {[value]} {pretty_repr(value)}"
    assert SECRET not in shown


def test_a_repr_shows_ids_types_and_states() -> None:
    presentation = Presentation.model_validate({"id": "p-1", "status": "verified", "credentials": [{"type": "Member"}]})
    assert "p-1" in repr(presentation)
    assert "verified" in repr(presentation)
    assert "Member" in repr(presentation)


@pytest.mark.parametrize("value", every_answer(), ids=lambda value: type(value).__name__)
def test_values_cannot_be_changed_but_travel_between_processes(value: Wire) -> None:
    name = next(iter(type(value).model_fields))
    with pytest.raises(ValidationError):
        setattr(value, name, "other")
    assert pickle.loads(pickle.dumps(value)) == value


# What may go into a path.


@pytest.mark.parametrize(
    "value", ["a", "cmfw0x1", "iss_1", "0b0e6d0c-7a43-4c6c-8a39-6b8a0c6a7a11", "did:web:a.b~c", "...", "a" * 128]
)
def test_ids_of_every_shape_seen_are_accepted(value: str) -> None:
    assert resource_id(value) == value


@pytest.mark.parametrize(
    "value", ["", ".", "..", "a/b", "a\\b", "a b", "a%2f", "a\n", "ä", "a?b", "a#b", "a@b", "\0", "a" * 129]
)
def test_an_id_that_could_leave_its_segment_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="should be 1 to 128"):
        resource_id(value)


@pytest.mark.parametrize("value", ["a@b.example", "a/b", "a+b", "a b", "ä", "日本", "a%2fb", "?#", "...", "x" * 256])
def test_names_of_people_hold_more(value: str) -> None:
    assert path_name(value) == value


@pytest.mark.parametrize(
    "value", ["", ".", "..", "../a", "a/../b", "a/.", "..\\a", "a\nb", "\x7f", "\x85", "\0", "\ud800", "x" * 257]
)
def test_a_name_that_could_climb_or_cannot_travel_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="should"):
        path_name(value)


@pytest.mark.parametrize("kind", [Issuance, Presentation])
def test_of_a_list_that_is_wrong_throughout_the_first_mistake_is_enough(kind: type[Issuance | Presentation]) -> None:
    with pytest.raises(ValidationError) as wrong:
        kind.model_validate({"id": "a", "status": "x", "credentials": [1] * 1_000})
    assert wrong.value.error_count() == 1
