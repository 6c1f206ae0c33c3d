"""What the sandbox accepts and refuses, and how it says so."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from credhook.sandbox.deliveries import NewEndpoint
from credhook.sandbox.templates import NewMdocPreset, NewPreset, NewSdJwtPreset, example, fit
from credhook.sandbox.users import NewUser, SandboxUser
from credhook.sandbox.wire import pointer, refusal

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


def lasting(start: str = "issuance", **future: int) -> dict[str, Any]:
    return {"start": start, "future": FUTURE | future}


def certified(key_type: str) -> dict[str, Any]:
    return {"signer": "certificate", "keyType": key_type}


def namespace(definition: dict[str, Any]) -> dict[str, Any]:
    return {"o": {"properties": {"a": definition}}}


#: A preset, a field, values of it that the specification allows, and values that it does not. `...` leaves it out.
PRESETS: list[tuple[dict[str, Any], str, list[Any], list[Any]]] = [
    (SD_JWT, "credentialFormat", [], ["jwt", ...]),
    (SD_JWT, "code", ["a-1"], ["Badge 1", "", "badge\n"]),
    (SD_JWT, "templateName", ["x"], [None]),
    (SD_JWT, "templateDescription", ["x"], [...]),
    (SD_JWT, "validUntil", [lasting(), lasting("validFrom"), ...],
     [{"future": FUTURE}, lasting("birth"), lasting(days=-1), {"start": "issuance", "future": {"days": 1}}, None]),
    (SD_JWT, "issuerConfig", [{"signer": "did:web"}, {"signer": "certificate"}, certified("Ed25519"), ...],
     [certified("RSA"), {"signer": "did:web", "keyType": "P-256"}]),
    (SD_JWT, "templateAttributes", [{}], [{"a": {"type": "object"}}, {"a": {"type": "binary"}}, {"a": {}}]),
    (SD_JWT, "type", [...], ["org.example.permit"]),
    (MDOC, "type", ["x"], ["", ...]),
    (MDOC, "validUntil", [{"future": FUTURE}], [..., lasting()]),
    (MDOC, "issuerConfig", [certified("P-256"), ...], [{"signer": "did:web"}]),
    (MDOC, "templateAttributes", [namespace({"type": "string"})],
     [{"o": {}}, namespace({"type": "object", "properties": {}}),
      namespace({"type": "string", "alwaysDisclosed": True})]),
]  # fmt: skip


@pytest.mark.parametrize(("base", "field", "allowed", "refused"), PRESETS, ids=range(len(PRESETS)))
def test_presets_are_held_to_the_specification(
    base: dict[str, Any], field: str, allowed: list[Any], refused: list[Any]
) -> None:
    for value in allowed:
        assert preset(changed(base, **{field: value})).template_name, value
    for value in refused:
        with pytest.raises(ValidationError):
            preset(changed(base, **{field: value}))


def test_an_endpoint_has_an_https_url_and_known_types() -> None:
    assert NewEndpoint(url="https://example.org/hooks?x=1").url == "https://example.org/hooks?x=1"
    wrongs: list[dict[str, Any]] = [
        {"url": "http://example.org"},
        {"filterType": []},
        {"filterTypes": []},
        {"filterTypes": ["x"]},
    ]
    for wrong in wrongs:
        with pytest.raises(ValidationError):
            NewEndpoint.model_validate({"url": "https://example.org"} | wrong)


def test_claims_fit_a_template_or_do_not() -> None:
    badge, permit = preset(SD_JWT).template_attributes, preset(MDOC).template_attributes
    numbers = preset(changed(SD_JWT, templateAttributes={"n": {"type": "number"}})).template_attributes
    whole = {"name": "Ada", "address": {"street": "x", "since": "2020-02-20"}, "tags": ["a"], "anything": [1, "b"]}
    fitting: list[tuple[Any, Any]] = [
        (whole, badge),
        ({"name": "Ada"}, badge),
        (example(badge), badge),
        ({"org.example": {"portrait": "AAAA"}}, permit),
        ({"n": 1.5}, numbers),
    ]
    wrong: list[tuple[Any, Any]] = [
        ({}, badge),
        ({"name": 7}, badge),
        (whole | {"unknown": 1}, badge),
        (whole | {"address": {"since": "yesterday"}}, badge),
        (whole | {"tags": ["a", 1]}, badge),
        (whole | {"tags": "a"}, badge),
        ([], badge),
        ("name", badge),
        ({"portrait": "AAAA"}, permit),
        ({"org.example": {"portrait": "not base64"}}, permit),
        ({"n": True}, numbers),
    ]
    assert [claims for claims, group in fitting if not fit(claims, group)] == []
    assert [claims for claims, group in wrong if fit(claims, group)] == []


def test_a_pointer_names_fields_and_not_variants() -> None:
    body = {"validUntil": {"future": {"days": "x"}}, "a/b": [{"~": 1}]}
    assert pointer(("sd-jwt", "validUntil", "future", "days"), body) == "/validUntil/future/days"
    assert pointer(("a/b", 0, "~"), body) == "/a~1b/0/~0"
    assert pointer(("validUntil", "start"), body) == "/validUntil/start"
    assert pointer((), body) == ""


def test_a_refusal_does_not_quote_what_it_refuses() -> None:
    body = {"email": ["ada@example.org"]}
    with pytest.raises(ValidationError) as problems:
        NewUser.model_validate(body)
    error = refusal(problems.value, body)
    assert (error.status_code, error.source) == (400, {"pointer": "/email"})
    assert "ada" not in f"{problems.value} {error} {error.detail}"


def test_a_repr_shows_no_person() -> None:
    user = SandboxUser(id="1", username="ada", email="ada@example.org", first_name="Ada", last_name="E", enabled=True)
    assert "ada" not in repr(user).lower()
