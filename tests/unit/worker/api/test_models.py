"""What the platform answers, as our models read it, what we send, and what nobody gets to see of either.

tests/integration/worker/api/test_specification.py holds both to the specification.
"""

import copy
import json
import pickle
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from credhook.worker.api import models
from credhook.worker.api.models import CertificateRequest, Issuance, Presentation, Wire, mismatch
from credhook.worker.attempt.details import state_of
from support.platform.wallet import WALLET

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\nAAAA\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("status", ["verified", "VERIFIED", "Verified"])
def test_a_status_is_compared_without_case(status: str) -> None:
    assert Presentation(id="p", status=status).is_("verified")
    assert not Presentation(id="p", status=status).is_("expired", "rejected")
    assert Issuance(id="i", status="partiallyIssued").is_("completed", "partiallyIssued")


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


@pytest.mark.parametrize(
    ("credential", "attributes"),
    [
        ({"attributes": {"a": 1}}, {"a": 1}),
        ({"presentedAttributes": {"a": 1}}, {"a": 1}),
        ({"attributes": None, "presentedAttributes": {"a": 1}}, {"a": 1}),
        ({"attributes": {}, "presentedAttributes": {"a": 1}}, {"a": 1}),
        ({"attributes": {"a": 1}, "presentedAttributes": {"b": 2}}, {"a": 1}),
        ({"attributes": ["a", {"b": 1}]}, {"0": "a", "1": {"b": 1}}),
        ({"attributes": {}}, {}),
        ({"attributes": None}, {}),
        ({}, {}),
    ],
)
def test_attributes_are_read_by_either_name(credential: dict[str, Any], attributes: dict[str, Any]) -> None:
    presentation = Presentation.model_validate({"id": "p", "status": "verified", "credentials": [credential]})
    assert presentation.credentials[0].attributes == attributes
    assert presentation.has_data is bool(attributes)
    if credential:  # In place of the list, whatever else it has.
        alone = Presentation.model_validate({"id": "p", "status": "verified", "credentials": {"new": 1, **credential}})
        assert alone.credentials[0].attributes == attributes


@pytest.mark.parametrize(
    ("error", "message"),
    [("declined", "declined"), ({"message": "declined", "code": 7}, "declined"), ({"code": 7}, None), (["?"], None)],
)
def test_the_error_of_a_presentation_is_text_or_object(error: object, message: str | None) -> None:
    presentation = Presentation.model_validate({"id": "p", "status": "failed", "error": error})
    assert presentation.error is not None
    assert presentation.error.message == message
    assert Presentation.model_validate({"id": "p", "status": "failed", "error": None}).error is None


NESTED = {"name": "Ada", "address": {"city": "Paris"}, "zones": ["a", {"b": []}]}
PRESENTED = {
    "id": "p", "status": "verified", "error": {"new": NESTED}, "new": NESTED,
    "credentials": [{"attributes": NESTED, "issues": [NESTED], "new": NESTED}],
}  # fmt: skip
CHANGES = [
    "x['name'] = 1", "del x['name']", "x.pop('name')", "x.popitem()", "x.clear()", "x.update(a=1)", "x |= {'a': 1}",
    "x.setdefault('a', 1)", "x['address']['city'] = 1", "x['zones'][0] = 1", "del x['zones'][0]", "x['zones'] += [1]",
    "x['zones'] *= 2", "x['zones'].append(1)", "x['zones'].extend([1])", "x['zones'].insert(0, 1)", "x['zones'].pop()",
    "x['zones'].remove('a')", "x['zones'].reverse()", "x['zones'].clear()", "x['zones'].sort(key=str)",
    "x['zones'][1]['b'].append(1)",
]  # fmt: skip


@pytest.mark.parametrize("find", [
    lambda details: details.credentials[0].attributes,
    lambda details: details.credentials[0].issues[0],
    lambda details: details.credentials[0].new,
    lambda details: details.error.new,
    lambda details: details.new,
    lambda details: details.model_extra["new"],
])  # fmt: skip
def test_details_cannot_be_changed_but_their_copies_can(find: Any) -> None:
    details = Presentation.model_validate_json(json.dumps(PRESENTED))
    x = find(details)
    for change in CHANGES:
        with pytest.raises(TypeError, match="read-only"):
            exec(change, {"x": x})
        assert find(details) == NESTED
        exec(change, {"x": copy.deepcopy(x)})
        exec(change, {"x": pickle.loads(pickle.dumps(x))})
    assert (type(x.copy()), type(x["zones"].copy())) == (dict, list)
    assert json.loads(json.dumps(x)) == x == NESTED
    assert json.loads(details.model_dump_json(by_alias=True, exclude_unset=True)) == PRESENTED


def test_of_unknown_fields_each_caller_has_a_dict_of_its_own() -> None:
    details = Presentation.model_validate(PRESENTED)
    assert details.model_extra is not None
    details.model_extra.clear()
    assert details.model_extra == {"new": NESTED}
    with pytest.raises(TypeError, match="read-only"):
        Presentation.model_validate({"credentials": [{}]}).credentials[0].attributes["name"] = 1


NO_URLS = [
    *("", "https://a.example:8x/", "https://a.example/a b", "https://a.example/\n", "https://a.example:99999/"),
    *("https://[::1", "https://a.example:0/", "https://:443/a"),
]
#: All but one PEM certificate.
NO_CERTIFICATES = [
    *("", "MIIB", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----", PEM.removesuffix("-----\n")),
    *(PEM.replace("CERTIFICATE", "PRIVATE KEY"), PEM + PEM),
    *(PEM + PEM.replace("AAAA", "AA!A"), PEM.replace("AAAA", "AA!A")),
]
NO_CREDENTIALS: list[dict[str, Any]] = [
    *({"id": "not-a-uuid"}, {"claims": []}, {"iat": "yesterday"}, {"status": None}, {"format": None}),
    *({"vct": ""}, {"vct": "v" * 257}, {"iss": ""}, {"iss": "i" * 513}),
]


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        *((models.EndpointRequest, {"url": url}) for url in NO_URLS),
        *((models.EndpointRequest, {"url": "https://a.example", "id": id_}) for id_ in ("", "..", "a/../b", "a" * 513)),
        *((models.UserRequest, fields) for fields in ({}, {"externalIdentifier": "x"}, {"email": None})),
        *((models.UserRequest, fields) for fields in ({"email": ""}, {"username": ""})),
        *((CertificateRequest, {"certificate": text}) for text in NO_CERTIFICATES),
        *((CertificateRequest, {"certificate": PEM, "parentCertificates": [PEM, text]}) for text in NO_CERTIFICATES),
        *((models.WalletCredential, WALLET | change) for change in NO_CREDENTIALS),
    ],
)
def test_a_value_out_of_its_limits_is_refused(model: type[Wire], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(fields)
    assert models.WalletCredential.model_validate(WALLET | {"vct": "v" * 256, "iss": "i" * 512})


@pytest.mark.parametrize("url", ["https://a.example", "https://127.0.0.1:8443/s3cret?x=y", "HTTPS://A.example"])
def test_an_endpoints_url_is_sent_as_it_was_given(url: str) -> None:
    assert models.EndpointRequest(url=url).model_dump(exclude_none=True) == {"url": url}


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + PEM,
        "Bag Attributes\n    friendlyName: Ada\nsubject=CN = a\n" + PEM,
        PEM.replace("CERTIFICATE", "PRIVATE KEY") + PEM + PEM.replace("CERTIFICATE", "PRIVATE KEY"),
    ],
    ids=["a byte order mark", "text", "keys"],
)
def test_texts_around_a_certificate_are_not_sent(text: str) -> None:
    assert CertificateRequest(certificate=text).certificate == PEM
    assert CertificateRequest(certificate=PEM.replace("\n", "\r\n")).certificate == PEM.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2026-11-21T09:30:00", datetime(2026, 11, 21, 9, 30, tzinfo=UTC)),
        ("2026-11-21 09:30", datetime(2026, 11, 21, 9, 30, tzinfo=UTC)),
        ("2026-11-21T09:30:00+05:30", datetime(2026, 11, 21, 4, 0, tzinfo=UTC)),
        ("20261121T093000", datetime(2026, 11, 21, 9, 30, tzinfo=UTC)),
        ("20261121T093000.5Z", datetime(2026, 11, 21, 9, 30, 0, 500_000, tzinfo=UTC)),
        ("20261121T093000+0530", datetime(2026, 11, 21, 4, 0, tzinfo=UTC)),
        ("2026-11-21T09:30:00,5Z", datetime(2026, 11, 21, 9, 30, 0, 500_000, tzinfo=UTC)),
        ("20261121", datetime(2026, 11, 21, tzinfo=UTC)),
        ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC)),
        ("1969-12-31", datetime(1969, 12, 31, tzinfo=UTC)),
        ("1712013000000", datetime(2024, 4, 1, 23, 10, tzinfo=UTC)),
        ("0001-01-01T00:00:00+14:00", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:00:00-02:00", datetime(9999, 12, 31, 23, tzinfo=UTC)),
        (1_712_013_000, datetime(2024, 4, 1, 23, 10, tzinfo=UTC)),
        ("21.11.2026", "21.11.2026"),
        ("soon", "soon"),
    ],
)
def test_times_without_a_zone_are_read_as_utc(text: object, read: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        issuance = Issuance.model_validate({"id": "i", "status": "offered", "updatedAt": text})
        assert issuance.updated_at == read
        expected = max(0, int(read.timestamp() * 1_000)) if isinstance(read, datetime) else 0
        assert state_of("openid4vc.issuance.offered", issuance.updated_at) == (1, expected)
    finally:
        monkeypatch.undo()
        time.tzset()


PERSONAL = "ada.lovelace@private.example"


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (models.UserRequest, {"email": {"is": PERSONAL}, "firstName": [PERSONAL], "nickname": PERSONAL}),
        (models.OfferRequest, {"credentialOffer": [PERSONAL]}),
        (CertificateRequest, {"certificate": PERSONAL}),
        (models.EndpointRequest, {"url": PERSONAL, "filterTypes": [PERSONAL]}),
        (models.WalletCredential, {"id": PERSONAL, "claims": PERSONAL, "iat": PERSONAL, "vct": ""}),
    ],
)
def test_no_validation_error_repeats_the_input(model: type[Wire], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(fields)
    assert PERSONAL not in str(caught.value)
    assert PERSONAL not in repr(caught.value)
    assert PERSONAL not in mismatch(caught.value)


SECRET = "Xq7-secret"
MORE = {"somethingNew": SECRET}
TIME = "2026-11-01T10:00:00Z"
#: One of each model whose fields are personal or secret, filled with one word, an unknown field included.
EVERY: dict[type[Wire], dict[str, Any]] = {
    models.User: {"id": "u", **dict.fromkeys(("username", "email", "firstName", "lastName"), SECRET)},
    models.OnboardingResult: {"email": SECRET, "tempPassword": SECRET},
    models.ExternalIdentifier: {"externalIdentifier": SECRET},
    models.IdentityLink: {"username": SECRET, "idpAlias": SECRET, "linked": True},
    models.WalletCredential: WALLET | {"claims": {"a": SECRET}, "iss": SECRET},
    models.CertificateRecord: {"id": "c", "certificateId": "d", "expiresAt": "e", "createdAt": "e", "updatedAt": "e"}
    | {"certificateSigningRequest": SECRET, "subjectKeyIdentifier": SECRET},
    models.TrustedEntity: {"id": "t", "name": SECRET, "createdAt": TIME, "updatedAt": TIME, "certificates": [SECRET]}
    | {"dids": [{"did": SECRET, "name": SECRET}]},
    models.Endpoint: {"id": "e", "url": f"https://a.example/{SECRET}"},
    models.Issuance: {"id": "i", "status": "offered", "offerUri": SECRET, "offerQrUri": SECRET, "credentials": [MORE]},
    models.Presentation: {"id": "p", "status": "verified", "authorizationRequestUri": SECRET, "error": SECRET}
    | {"credentials": [{"name": SECRET, "attributes": {SECRET: SECRET}, "issues": [SECRET]} | MORE]},
    models.UserRequest: dict.fromkeys(("email", "username", "firstName", "externalIdentifier"), SECRET),
    models.OfferRequest: {"credentialOffer": SECRET},
    models.EndpointRequest: {"url": f"https://a.example/{SECRET}"},
    models.TrustedEntityRequest: {"name": SECRET, "certificates": [SECRET]},
}


@pytest.mark.parametrize("model", EVERY)
def test_models_are_frozen_and_hide_personal_data(model: type[Wire]) -> None:
    value = model.model_validate(EVERY[model] | (MORE if issubclass(model, models.ResponseModel) else {}))
    assert SECRET in value.model_dump_json()
    shown = f"{value!r} {value} {[value]} {list(value.__repr_args__())}"  # `rich` prints the last.
    assert SECRET not in shown
    name = next(iter(model.model_fields))
    with pytest.raises(ValidationError):
        setattr(value, name, "other")
    assert pickle.loads(pickle.dumps(value)) == value
