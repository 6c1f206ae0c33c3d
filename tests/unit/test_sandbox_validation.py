"""What the sandbox accepts and refuses, and how it says so."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from credhook.sandbox.certificates import NewTrustedEntity
from credhook.sandbox.deliveries import NewEndpoint
from credhook.sandbox.templates import NewMdocPreset, NewPreset, NewSdJwtPreset, example, fit
from credhook.sandbox.users import NewUser, SandboxUser
from credhook.sandbox.wire import CODES, SandboxError, pointer

FUTURE = {"days": 0, "months": 6, "years": 1}
SD_JWT: dict[str, Any] = {
    "credentialFormat": "sd-jwt",
    "templateName": "Badge",
    "code": "badge-1",
    "templateDescription": "A badge.",
    "templateAttributes": {
        "name": {"type": "string", "name": "Name", "required": True, "alwaysDisclosed": True},
        "address": {"type": "object", "properties": {"street": {"type": "string"}, "since": {"type": "date"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "anything": {"type": "array"},
    },
}
MDOC: dict[str, Any] = {
    "credentialFormat": "mdoc",
    "templateName": "Permit",
    "code": "permit-1",
    "templateDescription": "A permit.",
    "type": "org.example.permit",
    "templateAttributes": {"org.example": {"properties": {"portrait": {"type": "binary"}, "zones": {"type": "array"}}}},
    "validUntil": {"future": FUTURE},
}

preset = TypeAdapter[NewSdJwtPreset | NewMdocPreset](NewPreset).validate_python


def changed(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (body | changes).items() if value is not ...}


@pytest.mark.parametrize(
    "body",
    [
        SD_JWT,
        changed(SD_JWT, validUntil={"start": "issuance", "future": FUTURE}),
        changed(SD_JWT, validUntil={"start": "validFrom", "future": FUTURE}),
        changed(SD_JWT, issuerConfig={"signer": "did:web"}),
        changed(SD_JWT, issuerConfig={"signer": "certificate"}),
        changed(SD_JWT, issuerConfig={"signer": "certificate", "keyType": "Ed25519"}),
        changed(SD_JWT, templateAttributes={}),
        MDOC,
        changed(MDOC, issuerConfig={"signer": "certificate", "keyType": "P-256"}),
        changed(MDOC, type="x"),
    ],
)
def test_presets_of_the_specification_are_taken(body: dict[str, Any]) -> None:
    assert preset(body).code == body["code"]


@pytest.mark.parametrize(
    "body",
    [
        changed(SD_JWT, credentialFormat="jwt"),
        changed(SD_JWT, credentialFormat=...),
        changed(SD_JWT, code="Badge 1"),
        changed(SD_JWT, code=""),
        changed(SD_JWT, code="badge\n"),
        changed(SD_JWT, templateName=None),
        changed(SD_JWT, templateDescription=...),
        changed(SD_JWT, validUntil={"future": FUTURE}),
        changed(SD_JWT, validUntil={"start": "birth", "future": FUTURE}),
        changed(SD_JWT, validUntil={"start": "issuance", "future": {"days": -1, "months": 0, "years": 0}}),
        changed(SD_JWT, validUntil={"start": "issuance", "future": {"days": 1, "months": 0}}),
        changed(SD_JWT, validUntil=None),
        changed(SD_JWT, issuerConfig={"signer": "did:web", "keyType": "P-256"}),
        changed(SD_JWT, issuerConfig={"signer": "certificate", "keyType": "RSA"}),
        changed(SD_JWT, templateAttributes={"a": {"type": "object"}}),
        changed(SD_JWT, templateAttributes={"a": {"type": "binary"}}),
        changed(SD_JWT, templateAttributes={"a": {}}),
        changed(SD_JWT, type="org.example.permit"),
        changed(MDOC, type=""),
        changed(MDOC, type=...),
        changed(MDOC, validUntil=...),
        changed(MDOC, validUntil={"start": "issuance", "future": FUTURE}),
        changed(MDOC, issuerConfig={"signer": "did:web"}),
        changed(MDOC, templateAttributes={"org.example": {}}),
        changed(MDOC, templateAttributes={"o": {"properties": {"a": {"type": "object", "properties": {}}}}}),
        changed(MDOC, templateAttributes={"o": {"properties": {"a": {"type": "string", "alwaysDisclosed": True}}}}),
    ],
)
def test_presets_against_the_specification_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        preset(body)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "https://example.org/hooks?x=1",
        "https://127.0.0.1:8443/webhooks/s3cret",
        "https://[::1]:8443/",
        "https://a.b-c.example:65535/%C3%A9",
    ],
)
def test_an_endpoint_has_an_https_url(url: str) -> None:
    assert NewEndpoint(url=url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://example.org",
        "HTTPS://example.org",
        "https://",
        "https:///path",
        "https://user:word@example.org/",
        "https://example.org/#here",
        "https://exa mple.org/",
        "https://example.org/a b",
        "https://example.org/\n",
        "https://bücher.example/",
        "https://example.org:0/",
        "https://[C5aFc7E22D0]/",
        "https://example.org@evil.example/",
        "https://example.org\\@evil.example/",
        f"https://example.org/{'x' * 2048}",
    ],
)
def test_no_other_url_is_an_endpoint(url: str) -> None:
    with pytest.raises(ValidationError):
        NewEndpoint(url=url)


@pytest.mark.parametrize("id_", ["..", ".", "", "a/b", "a b", "é", "x" * 129])
def test_an_endpoint_id_is_one_path_segment(id_: str) -> None:
    with pytest.raises(ValidationError):
        NewEndpoint(url="https://example.org", id=id_)


def test_a_mistyped_field_is_refused_and_not_ignored() -> None:
    with pytest.raises(ValidationError):
        NewEndpoint.model_validate({"url": "https://example.org", "filterType": ["openid4vc.issuance.failed"]})


def test_a_did_has_the_form_of_a_did() -> None:
    with pytest.raises(ValidationError):
        NewTrustedEntity.model_validate({"name": "x", "dids": [{"did": "example.org", "name": "x"}]})


def test_claims_fit_a_template_or_do_not() -> None:
    group = preset(SD_JWT).template_attributes
    fitting = {"name": "Ada", "address": {"street": "x", "since": "2020-02-20"}, "tags": ["a"], "anything": [1, "b"]}
    assert fit(fitting, group)
    assert fit({"name": "Ada"}, group)
    assert fit(example(group), group)
    wrong: list[Any] = [
        {},
        {"name": 7},
        fitting | {"unknown": 1},
        fitting | {"address": {"since": "yesterday"}},
        fitting | {"tags": ["a", 1]},
        fitting | {"tags": "a"},
        [],
        "name",
    ]
    for claims in wrong:
        assert not fit(claims, group), claims


def test_claims_of_an_mdoc_stand_in_their_namespaces() -> None:
    group = preset(MDOC).template_attributes
    assert fit({"org.example": {"portrait": "AAAA"}}, group)
    assert not fit({"portrait": "AAAA"}, group)
    assert not fit({"org.example": {"portrait": "not base64"}}, group)


def test_a_number_is_not_a_boolean() -> None:
    group = preset(changed(SD_JWT, templateAttributes={"n": {"type": "number"}})).template_attributes
    assert fit({"n": 1.5}, group)
    assert not fit({"n": True}, group)


def test_a_pointer_names_fields_and_not_variants() -> None:
    body = {"validUntil": {"future": {"days": "x"}}, "a/b": [{"~": 1}]}
    assert pointer(("sd-jwt", "validUntil", "future", "days"), body) == "/validUntil/future/days"
    assert pointer(("a/b", 0, "~"), body) == "/a~1b/0/~0"
    assert pointer(("validUntil", "start"), body) == "/validUntil/start"
    assert pointer((), body) == ""


def test_a_refusal_does_not_quote_what_it_refuses() -> None:
    body = {"email": "ada@example.org", "username": "/secret/"}
    with pytest.raises(ValidationError) as problems:
        NewUser.model_validate(body)
    assert "secret" not in str(problems.value)
    assert "secret" not in str(SandboxError.of_validation(problems.value, body).body.plain())


@pytest.mark.parametrize("status", CODES)
def test_every_error_has_what_the_specification_asks(status: int) -> None:
    (found,) = SandboxError(status, "Something.").body.plain()["errors"]
    assert found.keys() == {"id", "status", "code", "title", "detail"}
    assert found["status"] == status


def test_a_repr_shows_no_person() -> None:
    user = SandboxUser(id="1", username="ada", email="ada@example.org", first_name="Ada", last_name="E", enabled=True)
    assert "ada" not in repr(user).lower()
