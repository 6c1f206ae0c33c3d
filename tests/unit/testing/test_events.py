"""Events for handlers under test: every type, in both formats, as it should be and as it should not."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from credhook.events import EVENT_TYPES, ISSUANCE, resource_of
from credhook.testing import event, variants
from credhook.testing.events import SCRIPTS
from credhook.worker.api.models import Issuance, Presentation

DATA, VERIFIED = "openid4vc.verification.data", "openid4vc.verification.verified"
COMPLETED = "openid4vc.issuance.completed"


def details_of(*arguments: Any, **more: Any) -> Any:
    return event(*arguments, **more).details


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_every_type_has_details_of_its_own_kind(event_type: str) -> None:
    made = event(event_type)
    assert type(made.details) is (Issuance if resource_of(event_type) is ISSUANCE else Presentation)
    assert (made.type, made.resource_id, made.attempt) == (event_type, made.details.id, 1)
    assert re.fullmatch(r"msg_[0-9a-f]{24}", made.webhook_id)
    assert made.received_at.tzinfo is UTC
    assert event(event_type).resource_id != made.resource_id


def test_each_format_has_its_own_claims() -> None:
    plain, mdoc = details_of(DATA), details_of(DATA, format="mdoc")
    assert plain.credentials[0].attributes["givenName"] == "Ada"
    assert mdoc.credentials[0].type == "example.sandbox.permit.1"
    assert mdoc.credentials[0].attributes["example.sandbox.permit"]["holder"] == "Ada Example"
    assert details_of(COMPLETED).format == "sd-jwt-vc"
    assert details_of(COMPLETED, format="mdoc").format == "mdoc"
    assert plain.trusted
    assert mdoc.trusted


@pytest.mark.parametrize(("event_type", "variant"), [(one, each) for one in EVENT_TYPES for each in variants(one)])
def test_every_awkward_form_can_be_read(event_type: str, variant: str) -> None:
    details = details_of(event_type, variant, resource_id="r1")
    assert (details.id, type(details.status)) == ("r1", str)
    if event_type == DATA:  # Without data a worker runs no handler for it.
        assert details.has_data


def test_the_awkward_forms_are_what_they_are_called() -> None:
    assert details_of(COMPLETED, "empty").credentials == ()
    assert not details_of(VERIFIED, "no_data").has_data
    assert details_of(VERIFIED, "no_data").trusted
    assert details_of(DATA, "scripts").credentials[0].attributes == SCRIPTS
    assert details_of(COMPLETED, "missing").updated_at is None
    assert details_of(COMPLETED, "unknown_status").status not in {"completed", "offered"}


def test_everything_can_be_said_otherwise() -> None:
    moment = datetime(2026, 2, 3, tzinfo=UTC)
    made = event(
        DATA, attributes={"name": "Grace"}, is_valid=False, status="FAILED", received_at=moment, attempt=3,
        resource_id="p1", webhook_id="m1", details={"presentationTemplateId": "t", "status": "PENDING"},
    )  # fmt: skip
    details: Any = made.details
    assert (made.resource_id, made.webhook_id, made.received_at, made.attempt) == ("p1", "m1", moment, 3)
    assert (details.status, details.presentation_template_id, details.updated_at) == ("PENDING", "t", moment)
    (credential,) = details.credentials
    assert (credential.attributes, credential.is_valid) == ({"name": "Grace"}, False)
    assert not details.trusted
    assert not details_of(VERIFIED, attributes={}).has_data


@pytest.mark.parametrize("name", ["presentation_template_id", "presentationTemplate"])
def test_unknown_field_of_the_details_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is not a known field of the details.*presentationTemplateId"):
        event(DATA, details={name: "t"})


@pytest.mark.parametrize(("arguments", "more", "why"), [
    (("openid4vc.issuance.complete",), {}, "is not a known event type; there is openid4vc.issuance.offered, "),
    ((COMPLETED, "scripts"), {}, f"'scripts' is not a known variant of {COMPLETED}; there is empty, "),
    ((COMPLETED,), {"format": "jwt-vc"}, "'jwt-vc' is not a known format; there is sd-jwt, mdoc"),
    ((COMPLETED,), {"attributes": {}}, "attributes and is_valid belong to a presentation"),
    ((COMPLETED,), {"is_valid": False}, "attributes and is_valid belong to a presentation"),
    ((COMPLETED,), {"received_at": datetime(2026, 2, 3)}, "received_at= should be a datetime with a time zone"),  # noqa: DTZ001  It is refused.
    ((COMPLETED,), {"received_at": "2026-02-03"}, "received_at= should be a datetime with a time zone"),
])  # fmt: skip
def test_kit_refuses_impossible_events_with_the_reason(arguments: Any, more: Any, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as refused:
        event(*arguments, **more)
    assert "Ada" not in str(refused.value)
