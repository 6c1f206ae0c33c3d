"""Options and arguments of the commands: signing keys, event types, and one option for each fault."""

import json
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

import click
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from credhook.sandbox.deliveries.signing import BadKeyError, parse_key
from credhook.sandbox.tenant.events import EVENT_TYPES, PREFIX, EventType, named
from credhook.sandbox.tenant.faults import Faults


class SigningKey(click.ParamType[str]):
    """A `whsec_…` or `whsk_…` key."""

    name = "key"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check that it signs."""
        try:
            parse_key(value)
        except BadKeyError as problem:
            self.fail(f"{problem}.", param, ctx)
        return str(value)


class EventName(click.ParamType[EventType]):
    """One of the ten event types, in full or without `openid4vc.`."""

    name = "type"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> EventType:
        """Return the full name."""
        known = ", ".join(event_type.removeprefix(PREFIX) for event_type in EVENT_TYPES)
        return named(value) or self.fail(f"{value!r} is none of the event types: {known}.", param, ctx)


class Attributes(click.ParamType[dict[str, Any]]):
    """Attributes of a credential: one `KEY=VALUE`, whose value is text, or a JSON object."""

    name = "attributes"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Read either form."""
        key, equals, text = value.partition("=")
        if key.strip() and equals and not value.startswith("{"):
            return {key: text}
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        return found if isinstance(found, dict) else self.fail("neither KEY=VALUE nor a JSON object.", param, ctx)


def fault_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each fault, so that flags and `/sandbox/faults` cannot differ."""
    for name, field in reversed(Faults.model_fields.items()):
        command = click.option(
            f"--{name.replace('_', '-')}",
            name,
            default=field.default,
            help=field.description,
            **_option_form(field),
        )(command)
    return command


def _option_form(field: FieldInfo) -> dict[str, Any]:
    if field.annotation is bool:
        return {"is_flag": True}
    if get_origin(field.annotation) is Literal:
        return {"type": click.Choice(get_args(field.annotation))}
    bounds: dict[str, Any] = {}
    for bound in field.metadata:
        bounds |= {"min": bound.ge} if isinstance(bound, Ge) else {}
        bounds |= {"max": bound.le} if isinstance(bound, Le) else {}
    return {"type": click.IntRange(**bounds)}
