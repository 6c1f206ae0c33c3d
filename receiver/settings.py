"""Settings of the receiver, read once from its environment into a frozen object."""

from typing import Annotated, Final, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from credhook.receiver.signature import Key, parse_key
from credhook.settings import ExistingFile, StoreSettings, check_certificate, matching
from credhook.store.health import DURABILITY

#: The user agent of `credhook doctor`, which posts no delivery: status does not report its refusal.
PROBE: Final = "credhook-doctor"


class ReceiverSettings(StoreSettings):
    """Everything `credhook receiver` reads."""

    host: str = Field("127.0.0.1", validation_alias="HOST", description="Address that the receiver binds.")
    port: int = Field(8000, ge=0, le=65_535, validation_alias="PORT", description="Port that the receiver binds.")
    tls_certfile: ExistingFile | None = Field(
        None,
        description="PEM certificate chain; with it the receiver speaks HTTPS itself. Default: a proxy does.",
    )
    tls_keyfile: ExistingFile | None = Field(
        None,
        description="PEM private key of the certificate, if it is not in the same file.",
    )
    webhook_path: Annotated[
        str,
        matching(r"(/[A-Za-z0-9._~-]+)+", "should begin with / and hold letters, digits and . _ ~ - between slashes"),
    ] = Field("/webhooks", description="Path that deliveries are posted to.")
    webhook_secrets: Annotated[SecretStr | None, NoDecode] = Field(
        None,
        description="Space-separated `whsec_…` (HMAC) and `whpk_…` (ed25519 public) keys; all are accepted, "
        "so that keys can be rotated.",
    )
    path_secret: Annotated[
        SecretStr | None,
        matching(
            r"[A-Za-z0-9_-]{22,128}( [A-Za-z0-9_-]{22,128})*",
            "should be 22 to 128 letters, digits, - and _; "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one",
        ),
    ] = Field(
        None,
        description="Unguessable last path segment, `/webhooks/<secret>`, for a sender that does not sign: "
        "22 or more letters, digits, `-` and `_`. Of several, separated by spaces, all are accepted.",
    )
    insecure: bool = Field(
        False,
        description="`1` starts the receiver with neither keys nor a path secret. For local trials only.",
    )
    tolerance: int = Field(
        300,
        ge=1,
        le=86_400,
        description="Seconds that a signature's timestamp may lie in the past or the future; less than half of "
        "`CREDHOOK_RETENTION`.",
    )
    max_body: int = Field(
        65_536,
        ge=1_024,
        le=1_048_576,
        description="Bytes that a delivery's body may have.",
    )
    durability: Annotated[str, matching(DURABILITY, "should be strict, standard, replicated or replicated:N")] = Field(
        "strict",
        description="What a 202 means: `strict` (on disk), `replicated` (on a replica; `replicated:2` on two) or "
        "`standard` (in memory).",
    )

    @field_validator("webhook_secrets")
    @classmethod
    def _keys_are_readable(cls, value: SecretStr | None) -> SecretStr | None:
        for number, text in enumerate(value.get_secret_value().split() if value else (), 1):
            try:
                parse_key(text)
            except ValueError as wrong:  # Name the key by its number, without any part of it.
                raise ValueError(f"key {number}: {wrong}") from None
        return value

    @model_validator(mode="after")
    def _protects(self) -> Self:
        # A timestamp may also lie in the future, so a delivery may be valid for twice the tolerance.
        if 2 * self.tolerance >= self.retention:
            raise ValueError(
                f"CREDHOOK_TOLERANCE: should be less than half of CREDHOOK_RETENTION, which is {self.retention} s: "
                "a captured delivery could be sent again once its id is forgotten"
            )
        if not (self.keys or self.path_secret or self.insecure):
            raise ValueError(
                "CREDHOOK_WEBHOOK_SECRETS: should hold at least one key, or CREDHOOK_PATH_SECRET a secret, "
                "to refuse strangers; CREDHOOK_INSECURE=1 starts without"
            )
        check_certificate(self.tls_certfile, self.tls_keyfile, "TLS")
        return self

    @property
    def keys(self) -> tuple[Key, ...]:
        """Return the keys that verify signatures."""
        return tuple(map(parse_key, self.webhook_secrets.get_secret_value().split())) if self.webhook_secrets else ()
