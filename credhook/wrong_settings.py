"""A wrong setting, as whoever runs a command reads it."""

from pydantic import ValidationError


def setting_errors(invalid: ValidationError) -> list[str]:
    """One line per wrong setting: its variable's name and what it should be. Never its value, it may be a secret."""
    lines = []
    for error in invalid.errors(include_input=False, include_url=False):
        message = error["msg"].removeprefix("Value error, ")
        if error["type"] == "missing":
            message = "is not set; deploy/README.md says what it should be"
        lines.append(": ".join([*map(str, error["loc"][:1]), message]))
    return lines
