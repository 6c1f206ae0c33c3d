"""What every model has in common: camelCase on the wire, frozen here, and a repr that gives nothing away."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema


def mismatch(error: ValidationError) -> str:
    """Say where the first mistake is and of what kind, in one line that does not repeat any value."""
    first = error.errors(include_input=False, include_context=False, include_url=False)[0]
    place = ".".join(str(step) for step in first["loc"]) or "the whole"
    return f"{place}: {first['type'].replace('_', ' ')}"


class NoneAsEmpty:
    """Read null, where a list was observed, as an empty one.

    A `BeforeValidator` says it in a line, and has the list made twice where models are read from bytes.
    """

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Describe a list, or null, for pydantic."""
        listed = core_schema.nullable_schema(handler(source))
        return core_schema.no_info_after_validator_function(lambda value: () if value is None else value, listed)


class Wire(BaseModel):
    """A frozen value with a wire form.

    A repr shows the fields named in `shown` and no others: a field is hidden until someone has decided that it
    is not personal data. Validation errors do not repeat the input, for the same reason.
    """

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        hide_input_in_errors=True,
    )

    #: Fields that a repr may show: identifiers, types, states.
    shown: ClassVar[tuple[str, ...]] = ()

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(name, getattr(self, name)) for name in self.shown]


class ResponseModel(Wire):
    """What the platform says. Fields that we do not know are kept, and shown to nobody."""

    model_config = ConfigDict(extra="allow")


class RequestModel(Wire):
    """What we ask of the platform. A field that it does not know is a mistake of ours."""

    model_config = ConfigDict(extra="forbid")


class Stateful(ResponseModel):
    """Something with a `status`: an open word, since the platform's pages disagree on spelling and case."""

    status: str

    def is_(self, *states: str) -> bool:
        """Say whether the status is one of these, compared without case."""
        return self.status.casefold() in {state.casefold() for state in states}


#: A timestamp where the specification promises ISO 8601.
Timestamp = datetime

#: A timestamp that was only ever observed: a `datetime` where it reads as one, otherwise the text as it came.
ObservedTimestamp = Annotated[datetime | str, Field(union_mode="left_to_right")]
