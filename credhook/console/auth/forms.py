"""What a form of ours posts: read to a limit, and only if it is of one of the session's own pages."""

from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from credhook.console.auth.sessions import matches, session_of

#: Bytes of a form.
_LARGEST: Final = 65_536

Form = list[tuple[str, str]]


async def read_form(request: Request) -> Form:
    """The fields, in their order, without the session's token, which is checked here.

    Raises:
        HTTPException: 403, it is none of ours; 413, it is too large; 400, it has ended early.
    """
    fields = await read_any_form(request)
    if not matches(session_of(request), field(fields, "form_token")):
        raise HTTPException(403, "The form is of an earlier login, or of another site. Load the page again.")
    return [(name, value) for name, value in fields if name != "form_token"]


async def read_any_form(request: Request) -> Form:
    """The fields of a form whose sender has no session yet.

    Raises:
        HTTPException: as above, but for 403.
    """
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST:
                raise HTTPException(413, f"The form is larger than {_LARGEST} bytes.")
    except ClientDisconnect as error:
        raise HTTPException(400, "The form has ended early.") from error
    return parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=None)


def field(form: Form, name: str) -> str:
    """The field's value; "" if there is none."""
    return next((value for one, value in form if one == name), "")
