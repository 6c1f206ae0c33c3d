"""What the sandbox accepts and refuses, and how it says so."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

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


def test_claims_fit_a_template_or_do_not() -> None:
    badge, permit = preset(SD_JWT).template_attributes, preset(MDOC).template_attributes
    group = {"properties": {"holder": {"type": "string", "required": True}, "zones": {"type": "array"}}}
    strict = preset(MDOC | {"templateAttributes": {"org.example": group}}).template_attributes
    numbers = preset(SD_JWT | {"templateAttributes": {"n": {"type": "number"}}}).template_attributes
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
        ({}, strict),
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
