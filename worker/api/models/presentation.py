"""Presentations: what verification events refer to. Fields were published in part, observed in part."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, FailFast, Field, model_validator

from credhook.worker.api.models.base import NoneAsEmpty, ObservedTimestamp, ResponseModel, Stateful


def _only_a_boolean(value: object) -> bool | None:
    """Read `true` and `false`, and anything else as no statement: trust must not come from a coercion."""
    return value if isinstance(value, bool) else None


def _none_as_no_attributes(value: object) -> object:
    return {} if value is None else value


class PresentationError(ResponseModel):
    """Why a presentation failed. Some answers give a string, some an object with a `message`."""

    message: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, str):
            return {"message": value}
        return value if isinstance(value, dict) else {"detail": value}


class PresentedCredential(ResponseModel):
    """One credential that the holder presented. `attributes` holds personal data."""

    shown: ClassVar = ("type", "is_valid")

    is_valid: Annotated[bool | None, BeforeValidator(_only_a_boolean)] = None
    name: str | None = None
    type: str | None = None
    #: Empty where there are none, or where they can no longer be read.
    attributes: Annotated[dict[str, Any], BeforeValidator(_none_as_no_attributes)] = Field(default_factory=dict)
    issues: Annotated[tuple[Any, ...], NoneAsEmpty] = ()

    @model_validator(mode="before")
    @classmethod
    def _attributes_by_either_name(cls, value: object) -> object:
        """Take `presentedAttributes`, a sibling product's word, where `attributes` has nothing."""
        if not isinstance(value, dict) or "presentedAttributes" not in value or value.get("attributes"):
            return value
        rest = {key: item for key, item in value.items() if key != "presentedAttributes"}
        return rest | {"attributes": value["presentedAttributes"]}


class Presentation(Stateful):
    """A presentation. Seen as states: requested, verified, rejected, expired; PENDING, ANSWERED, REJECTED."""

    shown: ClassVar = ("id", "status", "presentation_template_id", "credentials")

    id: str
    error: PresentationError | None = None
    presentation_template_id: str | None = None
    credentials: Annotated[tuple[PresentedCredential, ...], FailFast(), NoneAsEmpty] = ()
    expires_at: ObservedTimestamp | None = None
    authorization_request_uri: str | None = None
    authorization_request_qr_uri: str | None = None
    created_at: ObservedTimestamp | None = None
    updated_at: ObservedTimestamp | None = None

    @property
    def trusted(self) -> bool:
        """True only if the status is verified, there is a credential, and every credential is valid."""
        credentials = self.credentials
        return self.is_("verified") and bool(credentials) and all(each.is_valid is True for each in credentials)

    @property
    def has_data(self) -> bool:
        """True if any attribute can still be read. "Verified, but no attributes" is an outcome of its own."""
        return any(credential.attributes for credential in self.credentials)
