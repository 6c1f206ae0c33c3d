"""How values look on the wire: camelCase JSON, read strictly, written without the fields that nobody set."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel

#: Default of an optional field. It is never validated and never written, so that a field may be left out but
#: not be null: the specification names no field of a request that may be null.
ABSENT: Any = None

#: One path segment that survives every client and proxy unchanged; the shape of an id chosen by a caller.
ID_PATTERN = r"^[A-Za-z0-9_~:-][A-Za-z0-9._~:-]{0,127}$"


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


#: What makes an integer a whole number: JSON does not tell 1.0 from 1, so both are read. Bounds stand before it.
WHOLE = BeforeValidator(_whole)
Whole = Annotated[int, WHOLE]


class Wire(BaseModel):
    """A value that is read from JSON or written as JSON.

    Unknown fields are refused: a mistyped `filterType` would otherwise subscribe to everything in silence.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        strict=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    def plain(self) -> dict[str, Any]:
        """Return the JSON form, with the fields that were set and no others."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)
