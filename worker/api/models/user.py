"""Users of the tenant. Specification: User, and the results of onboarding, links and identifiers."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from credhook.worker.api.models.base import RequestModel, ResponseModel


class UserRequest(RequestModel):
    """Someone to create, or to resolve if they exist already. One of `email` and `username` is needed."""

    email: Annotated[str, Field(min_length=1)] | None = None
    username: Annotated[str, Field(min_length=1)] | None = None
    first_name: str | None = None
    last_name: str | None = None
    external_identifier: str | None = None

    @model_validator(mode="after")
    def _names_someone(self) -> Self:
        if self.email is None and self.username is None:
            raise ValueError("should name at least one of email and username")
        return self


class OnboardingResult(ResponseModel):
    """The account behind a `UserRequest`. `temp_password` is empty when the account existed before."""

    email: str | None = None
    temp_password: str

    @property
    def existed(self) -> bool:
        """True if the account was there before the request."""
        return not self.temp_password


class User(ResponseModel):
    """A user of the tenant. Names and addresses stay out of the repr."""

    shown: ClassVar = ("id", "enabled")

    id: str
    username: str | None = None
    email: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    enabled: bool | None = None


class IdentityLinkRequest(RequestModel):
    """Whether the user should be linked to the tenant's identity provider."""

    shown: ClassVar = ("enabled",)

    enabled: Annotated[bool, Field(strict=True)]


class IdentityLink(ResponseModel):
    """The link between a user and the tenant's identity provider, as it now is."""

    shown: ClassVar = ("linked",)

    username: str
    idp_alias: str
    linked: bool


class ExternalIdentifier(ResponseModel):
    """What the tenant calls a user elsewhere."""

    external_identifier: str
